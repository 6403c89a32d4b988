//! A partition on this shard: who may write it, and what its batches mean.
//!
//! [`Partition`] is one that this broker was told to lead: its state, the newest command, and a task that carries it out.
//! While it leads there is a [`leader::Leader`]. Decisions are pure functions ([`action`], [`append`], [`retention`],
//! [`recover`]'s plan, [`tidy`]'s plan); the rest carries them out. All shard-local.

pub mod action;
pub mod append;
pub mod checkpoint;
pub mod compaction;
pub mod context;
mod delete_records;
mod driver;
pub mod error;
mod largest_timestamp;
pub mod leader;
pub mod lifecycle;
mod offsets;
pub mod producer_state;
mod recover;
mod relinquish;
pub mod retention;
pub mod snapshot;
pub mod takeover;
pub mod tidy;
pub mod transactions;
pub mod watch;

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::fmt;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;

use kaas_proto::config::topic::TopicConfig;
use kaas_proto::control::{PartitionChange, PartitionKey, TakeOver};
use kaas_proto::layout::partition_directory;
use kaas_proto::types::LeaderEpoch;
use tokio::sync::Notify;

use self::action::Wanted;
use self::context::PartitionContext;
use self::error::NotLeading;
use self::leader::Leader;
use self::lifecycle::{Lifecycle, State};
use self::takeover::HeldFence;
use crate::env::{Env, MonotonicTime, TaskClass};
use crate::log::led_log::EndOfLog;

/// Shard-local.
pub struct Partition<E: Env> {
    key: PartitionKey,
    directory: PathBuf,
    context: Rc<PartitionContext<E>>,
    config: RefCell<Arc<TopicConfig>>,
    lifecycle: Lifecycle,
    wanted: Cell<Wanted>,
    /// Counts commands: work for an older one is interrupted.
    command: Cell<u64>,
    commanded: Notify,
    leader: RefCell<Option<Rc<Leader<E>>>>,
    /// The highest epoch that this shard has tried to lead with.
    attempted: Cell<Option<LeaderEpoch>>,
    /// Kept by a takeover that only lacked room on the volume.
    held: RefCell<Option<HeldFence<E>>>,
    /// Why it is not led, while it is failed or superseded.
    refusal: RefCell<Option<NotLeading>>,
    /// The last failure was a full volume.
    volume_full: Cell<bool>,
    /// When an index was given up last, for want of room.
    made_room_at: Cell<Option<MonotonicTime>>,
    /// Failures in a row, and the command that the last one happened under.
    failures: Cell<u32>,
    /// Why the takeover fails, as it was logged.
    told: RefCell<Option<Arc<str>>>,
    failed_command: Cell<u64>,
    driving: Cell<bool>,
    directory_removed: Cell<bool>,
    /// Told to let go, and has not yet said that it did.
    owes_relinquished: Cell<bool>,
    /// Facts for the control thread, in order.
    reports: RefCell<VecDeque<PartitionChange>>,
    settled: Notify,
}

impl<E: Env> Partition<E> {
    /// A partition that nothing was done for yet.
    #[must_use]
    pub fn new(context: Rc<PartitionContext<E>>, command: &TakeOver) -> Rc<Self> {
        Rc::new(Self {
            key: command.partition,
            directory: partition_directory(&command.topic, command.partition),
            context,
            config: RefCell::new(Arc::clone(&command.config)),
            lifecycle: Lifecycle::default(),
            wanted: Cell::new(Wanted::Closed),
            command: Cell::new(0),
            commanded: Notify::new(),
            leader: RefCell::default(),
            attempted: Cell::new(None),
            held: RefCell::default(),
            refusal: RefCell::default(),
            volume_full: Cell::new(false),
            made_room_at: Cell::new(None),
            failures: Cell::new(0),
            told: RefCell::default(),
            failed_command: Cell::new(0),
            driving: Cell::new(false),
            directory_removed: Cell::new(false),
            owes_relinquished: Cell::new(false),
            reports: RefCell::default(),
            settled: Notify::new(),
        })
    }

    #[must_use]
    pub fn key(&self) -> PartitionKey {
        self.key
    }

    #[must_use]
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    #[must_use]
    pub fn context(&self) -> &Rc<PartitionContext<E>> {
        &self.context
    }

    #[must_use]
    pub fn config(&self) -> Arc<TopicConfig> {
        Arc::clone(&self.config.borrow())
    }

    /// The topic's configuration has changed.
    pub fn set_config(&self, config: Arc<TopicConfig>) {
        if let Some(leader) = self.leader.borrow().as_ref() {
            leader.set_config(Arc::clone(&config));
        }
        self.config.replace(config);
    }

    #[must_use]
    pub fn state(&self) -> State {
        self.lifecycle.state()
    }

    /// What readers and writers talk to. After a failed epoch that is still the old one, which accepts nothing.
    ///
    /// # Errors
    /// Why there is none.
    pub fn leader(&self) -> Result<Rc<Leader<E>>, NotLeading> {
        self.leader.borrow().clone().ok_or_else(|| self.refusal())
    }

    fn refusal(&self) -> NotLeading {
        match (self.refusal.borrow().clone(), self.wanted.get()) {
            (Some(refusal), _) => refusal,
            (None, Wanted::Lead(_)) => NotLeading::TakingOver,
            (None, Wanted::Closed | Wanted::Abandoned | Wanted::Parked) => NotLeading::NotHere,
        }
    }

    /// A newer command: interrupts whatever is done for an older one.
    pub fn want(self: &Rc<Self>, wanted: Wanted) {
        self.wanted.set(wanted);
        self.owes_relinquished.set(wanted == Wanted::Closed);
        self.command.set(self.command.get() + 1);
        self.commanded.notify_waiters();
        self.drive();
    }

    /// Told to lead, perhaps once more with another configuration. What is on its way to that already is not interrupted;
    /// what is there already is reported again.
    pub fn want_to_lead(self: &Rc<Self>, epoch: Option<LeaderEpoch>) {
        let led = self.leader.borrow().as_ref().map(|leader| leader.epoch());
        let leads = matches!(self.state(), State::Leading | State::Stalled);
        if leads && led.is_some_and(|led| epoch.is_none_or(|epoch| epoch <= led)) {
            self.wanted.set(Wanted::Lead(epoch));
            self.report(PartitionChange::Leading { epoch: led.unwrap_or_default() });
            self.drive();
        } else if self.wanted.get() != Wanted::Lead(epoch) {
            self.want(Wanted::Lead(epoch));
        }
    }

    #[must_use]
    pub fn wanted(&self) -> Wanted {
        self.wanted.get()
    }

    /// Completes when nothing is left to do for the newest command.
    pub async fn settled(&self) {
        loop {
            let settled = self.settled.notified();
            if !self.driving.get() {
                return;
            }
            settled.await;
        }
    }

    /// Completes with the next command.
    async fn commanded_after(&self, command: u64) {
        loop {
            let commanded = self.commanded.notified();
            if self.command.get() != command {
                return;
            }
            commanded.await;
        }
    }

    /// Looks whether a write has been hanging for too long.
    pub fn check_stall(&self) {
        let leader = self.leader.borrow().clone();
        if let Some(leader) = leader {
            leader.log().check_stall(self.context.env().now());
        }
    }

    /// Forgets producers that were silent for too long.
    pub fn expire_producers(&self) {
        if let Some(leader) = self.leader.borrow().as_ref() {
            leader.expire_producers(self.context.believed_now());
        }
    }

    /// Deletes old records as the topic's limits say. A coordinator decides for itself what its slot keeps.
    pub async fn apply_retention(&self) {
        let leader = self.leader.borrow().clone();
        let leads = self.key.slot().is_none() && self.state() == State::Leading;
        if let Some(leader) = leader.filter(|_| leads && self.context.clock.has_begun()) {
            leader.apply_retention().await;
        }
    }

    /// Makes sure that the task runs which carries out what is wanted.
    fn drive(self: &Rc<Self>) {
        if !self.driving.replace(true) {
            self.context.env().spawn(TaskClass::Latency, Rc::clone(self).run());
        }
    }

    pub(self) fn enter(&self, next: State) {
        self.lifecycle.enter(next);
    }

    fn report(&self, change: PartitionChange) {
        self.reports.borrow_mut().push_back(change);
    }

    /// The log of a leader stalls or heals.
    fn stalled(self: &Rc<Self>, stalled: bool) {
        match (self.state(), stalled) {
            (State::Leading, true) => self.enter(State::Stalled),
            (State::Stalled, false) => self.enter(State::Leading),
            _ => {}
        }
        self.report(PartitionChange::Stalled(stalled));
        self.drive();
    }

    /// The epoch of a leader is over, by itself.
    fn log_ended(self: &Rc<Self>, ended: &Leader<E>, end: &EndOfLog) {
        let is_current = self.leader.borrow().as_ref().is_some_and(|leader| std::ptr::eq(&raw const **leader, ended));
        if !is_current || *end == EndOfLog::Closed {
            return;
        }
        match end {
            EndOfLog::Superseded { epoch, by } => {
                // An unreadable line says that somebody is above us, not how far.
                let epoch = epoch.unwrap_or(LeaderEpoch(ended.epoch().0.saturating_add(1)));
                self.superseded(epoch, Arc::clone(by));
            }
            EndOfLog::Failed { reason } => self.failed(Arc::clone(reason), false),
            EndOfLog::VolumeFull => self.failed(Arc::from("no space is left on the volume"), true),
            EndOfLog::Gone { what } => self.gone(Arc::clone(what)),
            EndOfLog::Closed => {}
        }
        self.context.watchers.lost(self.key);
        // Where only room is missing, nobody else leads: a coordinator keeps its groups until it leads again.
        if *end != EndOfLog::VolumeFull {
            self.tell_lost();
        }
        self.drive();
    }

    /// Somebody has a higher epoch: everything is let go, nothing is written, and nothing happens until a newer command.
    /// One to lead above that epoch may be there already.
    fn superseded(&self, epoch: LeaderEpoch, by: Arc<str>) {
        self.enter(State::Superseded);
        self.context.log.counters.superseded.add(1);
        self.close_leader();
        self.tell_lost();
        if let Wanted::Lead(wanted) = self.wanted.get()
            && wanted.is_none_or(|wanted| wanted <= epoch)
        {
            self.wanted.set(Wanted::Parked);
        }
        self.refusal.replace(Some(NotLeading::Superseded { by: Arc::clone(&by) }));
        self.report(PartitionChange::Superseded { epoch, by });
    }

    /// An epoch or a takeover failed: the leader, if there was one, is kept for readers.
    fn failed(&self, reason: Arc<str>, volume_full: bool) {
        self.volume_full.set(volume_full);
        self.fail(NotLeading::Failed { reason: Arc::clone(&reason) }, reason);
    }

    /// The fence or the directory was removed. Somebody else leads, or nobody, as the topic is gone; the next try finds out who, and leads
    /// if nobody does.
    fn gone(&self, what: Arc<str>) {
        self.volume_full.set(false);
        self.fail(NotLeading::Gone { what: Arc::clone(&what) }, what);
        // Not even readers are served: of a topic that is gone, or of one that somebody else leads.
        self.close_leader();
    }

    fn fail(&self, refusal: NotLeading, reason: Arc<str>) {
        self.enter(State::Failed);
        self.failures.set(self.failures.get() + 1);
        self.failed_command.set(self.command.get());
        self.refusal.replace(Some(refusal));
        self.report(PartitionChange::Failed { reason });
    }

    fn close_leader(&self) {
        let leader = self.leader.take();
        if let Some(leader) = leader {
            leader.close();
            // Readers of a failed epoch wait too.
            self.context.watchers.lost(self.key);
        }
    }

    fn tell_lost(&self) {
        self.context.watchers.lost(self.key);
        if let Some(observer) = self.context.observer() {
            observer.lost(self.key);
        }
    }
}

impl<E: Env> fmt::Debug for Partition<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Partition")
            .field("key", &self.key)
            .field("state", &self.state())
            .field("wanted", &self.wanted.get())
            .finish_non_exhaustive()
    }
}
