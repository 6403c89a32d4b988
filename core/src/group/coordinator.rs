//! The coordinator of a shard: its slots, their logs, one timer.
//!
//! Decisions are made in [`Slot`], synchronously, when an operation comes in, a batch completes or an alarm goes off.
//! Here are the thin tasks around it: per leadership of a slot one that loads it and then carries batches to the log,
//! and one timer for all. A leadership is known by its term; a task whose term is over finds nothing to do and ends.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::time::Duration;

use futures_lite::future;
use kaas_proto::kafka::ErrorCode;
use kaas_proto::kafka::messages::ListGroupsRequest;
use kaas_proto::kafka::messages::list_groups::ListedGroup;
use kaas_proto::metrics::ShardMetrics;
use kaas_proto::types::{Offset, SlotId, TopicId};
use tokio::sync::Notify;

use super::config::GroupConfig;
use super::effect::Now;
use super::error::GroupError;
use super::operation::GroupOperation;
use super::refusal;
use super::replay::{Replayed, replay};
use super::slot::{AfterBatch, Slot};
use super::slot_log::SlotLog;
use super::usage::{Counters, Shared, Usage};
use crate::env::{Env, MonotonicTime, TaskClass};
use crate::partition::error::AppendError;
use crate::steady_clock::SteadyClock;

/// How long a slot that could not be read waits before it is read again; doubled each time up to the maximum.
const FIRST_RELOAD_DELAY: Duration = Duration::from_millis(500);
const MAX_RELOAD_DELAY: Duration = Duration::from_secs(30);

/// Coordinates the groups of the slots that this shard leads. Shard-local; clones are the same coordinator.
pub struct GroupCoordinator<E: Env>(Rc<Inner<E>>);

struct Inner<E> {
    env: E,
    shared: Rc<Shared>,
    slots: RefCell<BTreeMap<SlotId, Leadership>>,
    terms: Cell<u64>,
    /// When the timer wakes up by itself, and how to wake it up earlier.
    wakes_at: Cell<MonotonicTime>,
    timer: Notify,
    clock: Rc<SteadyClock>,
}

/// The leadership of a slot, from one takeover to its end.
struct Leadership {
    term: u64,
    /// Wakes the task that carries batches to the log.
    writer: Rc<Notify>,
    state: State,
    /// Topics that went while the slot was being loaded.
    forgotten: Vec<TopicId>,
}

enum State {
    Loading,
    /// It could not be read; another attempt follows.
    Unreadable,
    Ready(Box<Slot>),
}

type Ticket = Pin<Box<dyn Future<Output = Result<Offset, AppendError>>>>;

impl<E: Env> GroupCoordinator<E> {
    /// A coordinator without slots, and its timer. What expires does so by `clock`.
    #[must_use]
    pub fn new(env: E, config: GroupConfig, clock: Rc<SteadyClock>) -> Self {
        let wakes_at = Cell::new(MonotonicTime(u64::MAX));
        let coordinator = Self(Rc::new(Inner {
            env,
            shared: Rc::new(Shared::new(config)),
            slots: RefCell::default(),
            terms: Cell::new(0),
            wakes_at,
            timer: Notify::new(),
            clock,
        }));
        coordinator.0.env.spawn(TaskClass::Latency, coordinator.clone().run_timer());
        coordinator
    }

    /// The slot is led here from now on, with this log. A former leadership of it is over.
    pub fn take_over<L: SlotLog>(&self, slot: SlotId, log: L) {
        self.give_up(slot);
        let term = self.0.terms.get() + 1;
        self.0.terms.set(term);
        let writer = Rc::new(Notify::new());
        let leadership = Leadership { term, writer: Rc::clone(&writer), state: State::Loading, forgotten: Vec::new() };
        self.0.slots.borrow_mut().insert(slot, leadership);
        self.0.env.spawn(TaskClass::Latency, self.clone().lead(slot, term, log, writer));
    }

    /// The slot is not led here any more, for whichever reason. Everybody who waits is answered before this returns.
    pub fn give_up(&self, slot: SlotId) {
        let leadership = self.0.slots.borrow_mut().remove(&slot);
        let Some(Leadership { state, writer, .. }) = leadership else { return };
        writer.notify_one();
        if let State::Ready(mut slot) = state {
            slot.end(self.now(), GroupError::NotCoordinator);
        }
    }

    /// Takes over a request. It reaches its group in the order of the calls; the answer comes when it is ready.
    pub fn execute(&self, operation: GroupOperation) {
        match operation {
            GroupOperation::List { request, reply } => {
                let _ = reply.send(self.list(&request));
            }
            GroupOperation::ForgetTopics { topics } => self.forget_topics(&topics),
            GroupOperation::RetainTopics { topics } => self.retain_topics(&topics),
            operation => self.execute_for_group(operation),
        }
    }

    /// Adds what is counted here.
    pub fn report(&self, metrics: &mut ShardMetrics) {
        self.0.shared.report(metrics);
    }

    #[must_use]
    pub fn usage(&self) -> Usage {
        self.0.shared.usage()
    }

    #[must_use]
    pub fn counters(&self) -> Counters {
        *self.0.shared.counters.borrow()
    }

    fn execute_for_group(&self, operation: GroupOperation) {
        let (group, needs_id) = refusal::group_of(&operation);
        if needs_id && group.is_empty() {
            return refusal::refuse(operation, GroupError::InvalidGroupId);
        }
        let id = SlotId::of(group);
        let mut slots = self.0.slots.borrow_mut();
        let leadership = slots.get_mut(&id);
        let slot = match leadership {
            None => return refusal::refuse(operation, GroupError::NotCoordinator),
            Some(Leadership { state: State::Loading, .. }) => {
                return refusal::refuse(operation, GroupError::CoordinatorLoadInProgress);
            }
            Some(Leadership { state: State::Unreadable, .. }) => {
                return refusal::refuse(operation, GroupError::CoordinatorNotAvailable);
            }
            Some(Leadership { state: State::Ready(slot), writer, .. }) => {
                writer.notify_one();
                slot
            }
        };
        let now = self.now();
        match operation {
            GroupOperation::Join { request, version, client, reply } => {
                slot.join(now, &request, version, &client, self.random(), reply);
            }
            GroupOperation::Sync { request, reply } => slot.sync(now, &request, reply),
            GroupOperation::Heartbeat { request, reply } => {
                let _ = reply.send(slot.heartbeat(now, &request));
            }
            GroupOperation::Leave { request, version, reply } => {
                let _ = reply.send(slot.leave(now, &request, version));
            }
            GroupOperation::Commit { request, reply } => slot.commit(now, &request, reply),
            // Nothing is ever unstable: there are no transactions yet.
            GroupOperation::FetchOffsets { group, require_stable: _, reply } => {
                let _ = reply.send(slot.fetch_offsets(&group));
            }
            GroupOperation::DeleteOffsets { request, reply } => slot.delete_offsets(&request, reply),
            GroupOperation::Describe { group_id, version, reply } => {
                let _ = reply.send(slot.describe(&group_id, version));
            }
            GroupOperation::Delete { group_id, reply } => slot.delete(&group_id, reply),
            GroupOperation::List { .. } | GroupOperation::ForgetTopics { .. } | GroupOperation::RetainTopics { .. } => {
                unreachable!("these are for all slots")
            }
        }
        let alarm = slot.next_alarm();
        drop(slots);
        self.wake_timer_at(alarm);
    }

    fn list(&self, request: &ListGroupsRequest) -> Result<Vec<ListedGroup>, ErrorCode> {
        let slots = self.0.slots.borrow();
        let mut groups = Vec::new();
        for leadership in slots.values() {
            match &leadership.state {
                State::Ready(slot) => groups.extend(slot.list(request)),
                State::Loading => return Err(GroupError::CoordinatorLoadInProgress.into()),
                State::Unreadable => return Err(GroupError::CoordinatorNotAvailable.into()),
            }
        }
        Ok(groups)
    }

    fn forget_topics(&self, topics: &[TopicId]) {
        for leadership in self.0.slots.borrow_mut().values_mut() {
            match &mut leadership.state {
                State::Ready(slot) => slot.forget_topics(topics),
                State::Loading | State::Unreadable => leadership.forgotten.extend(topics),
            }
            leadership.writer.notify_one();
        }
    }

    fn retain_topics(&self, topics: &BTreeSet<TopicId>) {
        let now = self.now();
        for leadership in self.0.slots.borrow_mut().values_mut() {
            if let State::Ready(slot) = &mut leadership.state {
                slot.retain_topics(now, topics);
                leadership.writer.notify_one();
            }
        }
    }

    /// One leadership of a slot: load, then carry batches to the log and their outcomes back.
    async fn lead<L: SlotLog>(self, slot: SlotId, term: u64, log: L, writer: Rc<Notify>) {
        let load = self.load(slot, term, &log);
        let Some(replayed) = future::or(load, self.until_over(slot, term, &writer)).await else { return };
        let mut ready = Slot::new(slot, Rc::clone(&self.0.shared), replayed.ledger, replayed.log_bytes, self.now());
        let alarm = ready.next_alarm();
        {
            let mut slots = self.0.slots.borrow_mut();
            let Some(leadership) = slots.get_mut(&slot).filter(|leadership| leadership.term == term) else { return };
            ready.forget_topics(&leadership.forgotten);
            leadership.state = State::Ready(Box::new(ready));
        }
        tracing::debug!(%slot, records = replayed.records, bytes = replayed.log_bytes, "coordinator slot is loaded");
        self.wake_timer_at(alarm);

        let tickets: RefCell<VecDeque<Ticket>> = RefCell::default();
        let more_tickets = Notify::new();
        let write = async {
            while self.write(slot, term, &log, &tickets, &more_tickets) {
                writer.notified().await;
            }
        };
        let complete = async {
            loop {
                let ticket = tickets.borrow_mut().pop_front();
                let Some(ticket) = ticket else {
                    more_tickets.notified().await;
                    continue;
                };
                let outcome = ticket.await;
                if !self.complete(slot, term, &log, outcome) {
                    return;
                }
                writer.notify_one();
            }
        };
        future::or(write, complete).await;
    }

    /// Reads the slot's log until that succeeds.
    async fn load<L: SlotLog>(&self, slot: SlotId, term: u64, log: &L) -> Option<Replayed> {
        let mut delay = FIRST_RELOAD_DELAY;
        loop {
            let error = match replay(&self.0.env, log).await {
                Ok(replayed) => {
                    self.0.shared.counters.borrow_mut().replayed_records += replayed.records;
                    return Some(replayed);
                }
                Err(error) => error,
            };
            tracing::error!(%slot, %error, retry_in = ?delay, "the log of a coordinator slot can't be read");
            self.0.shared.counters.borrow_mut().failed_loads += 1;
            if let Some(leadership) = self.0.slots.borrow_mut().get_mut(&slot)
                && leadership.term == term
            {
                leadership.state = State::Unreadable;
            }
            self.0.env.sleep(delay).await;
            delay = (2 * delay).min(MAX_RELOAD_DELAY);
        }
    }

    /// Ends with the leadership.
    async fn until_over<T>(&self, slot: SlotId, term: u64, writer: &Notify) -> Option<T> {
        while self.0.slots.borrow().get(&slot).is_some_and(|leadership| leadership.term == term) {
            writer.notified().await;
        }
        None
    }

    /// Hands all that may go now over to the log. False when the leadership is over.
    fn write<L: SlotLog>(
        &self,
        slot: SlotId,
        term: u64,
        log: &L,
        tickets: &RefCell<VecDeque<Ticket>>,
        more_tickets: &Notify,
    ) -> bool {
        let now = self.now();
        while let Some(batch) = {
            let Some(batch) = self.with_slot(slot, term, |slot| slot.next_batch(now)) else { return false };
            batch
        } {
            tickets.borrow_mut().push_back(Box::pin(log.append(batch)));
            more_tickets.notify_one();
        }
        true
    }

    /// Lets the outcome of the oldest batch take effect. False when the leadership is over.
    fn complete<L: SlotLog>(&self, slot: SlotId, term: u64, log: &L, outcome: Result<Offset, AppendError>) -> bool {
        let now = self.now();
        let after = self.with_slot(slot, term, |slot| (slot.batch_completed(now, outcome), slot.next_alarm()));
        let Some((after, alarm)) = after else { return false };
        match after {
            AfterBatch::Continue => {}
            AfterBatch::DeleteBelow(offset) => {
                let log = log.clone();
                self.0.env.spawn(TaskClass::Background, async move {
                    if let Err(error) = log.delete_records_below(offset).await {
                        tracing::warn!(%slot, %offset, %error, "old records stay until the next snapshot");
                    }
                });
            }
            AfterBatch::Lost => {
                self.0.slots.borrow_mut().remove(&slot);
                return false;
            }
        }
        self.wake_timer_at(alarm);
        true
    }

    /// Acts on the slot if this leadership of it goes on.
    fn with_slot<T>(&self, slot: SlotId, term: u64, act: impl FnOnce(&mut Slot) -> T) -> Option<T> {
        let mut slots = self.0.slots.borrow_mut();
        let leadership = slots.get_mut(&slot).filter(|leadership| leadership.term == term)?;
        match &mut leadership.state {
            State::Ready(slot) => Some(act(slot)),
            State::Loading | State::Unreadable => None,
        }
    }

    /// Wakes every slot that has something to do, and sleeps until the next one has.
    async fn run_timer(self) {
        loop {
            let now = self.now();
            let mut next = MonotonicTime(u64::MAX);
            for leadership in self.0.slots.borrow_mut().values_mut() {
                let State::Ready(slot) = &mut leadership.state else { continue };
                if slot.next_alarm() <= now.monotonic {
                    slot.tick(now);
                    leadership.writer.notify_one();
                }
                next = next.min(slot.next_alarm());
            }
            self.0.wakes_at.set(next);
            let pause = Duration::from_nanos(next.0.saturating_sub(now.monotonic.0));
            if next == MonotonicTime(u64::MAX) {
                self.0.timer.notified().await;
            } else {
                future::or(self.0.env.sleep(pause), self.0.timer.notified()).await;
            }
        }
    }

    fn wake_timer_at(&self, alarm: MonotonicTime) {
        if alarm < self.0.wakes_at.get() {
            self.0.wakes_at.set(alarm);
            self.0.timer.notify_one();
        }
    }

    fn now(&self) -> Now {
        let (monotonic, wall) = (self.0.env.now(), self.0.env.wall_clock());
        Now { monotonic, wall, believed: self.0.clock.believe(monotonic, wall) }
    }

    fn random(&self) -> u128 {
        u128::from(self.0.env.random_u64()) << 64 | u128::from(self.0.env.random_u64())
    }
}

impl<E: Env> Clone for GroupCoordinator<E> {
    fn clone(&self) -> Self {
        Self(Rc::clone(&self.0))
    }
}

impl<E: Env> fmt::Debug for GroupCoordinator<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let slots: Vec<SlotId> = self.0.slots.borrow().keys().copied().collect();
        f.debug_struct("GroupCoordinator").field("slots", &slots).finish_non_exhaustive()
    }
}
