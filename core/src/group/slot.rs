//! One coordinator slot: its groups, from the end of the replay to the end of the leadership. Sync, shard-local.
//!
//! What is durable lies in the [`Ledger`], what is on its way there in the [`Journal`]; a [`Group`] is in memory only
//! while it has members or is about to get some. [`super::commits`] has what concerns offsets, [`super::admin`] what
//! administrators ask. The [`super::coordinator`] drives it all.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::rc::Rc;

use kaas_proto::kafka::KafkaString;
use kaas_proto::kafka::messages::{
    HeartbeatRequest, HeartbeatResponse, JoinGroupRequest, JoinGroupResponse, LeaveGroupRequest, LeaveGroupResponse,
    SyncGroupRequest, SyncGroupResponse,
};
use kaas_proto::types::{Offset, SlotId};
use tokio::sync::oneshot;

use super::answer;
use super::effect::{AfterStore, Effect, Now, Step, Waiter};
use super::error::GroupError;
use super::ids::GroupId;
use super::join::JoinRequest;
use super::journal::{Journal, Then, Write};
use super::leave::{Leaving, Sender};
use super::ledger::Ledger;
use super::operation::ClientIdentity;
use super::phase::GroupState;
use super::record::SlotRecord;
use super::request;
use super::state::Group;
use super::sync::SyncRequest;
use super::usage::{Shared, Usage};
use crate::env::MonotonicTime;
use crate::partition::error::AppendError;

/// A request that waits for its group.
#[derive(Debug)]
enum Parked {
    Join { reply: oneshot::Sender<JoinGroupResponse>, member_id: KafkaString },
    Sync(oneshot::Sender<SyncGroupResponse>),
}

/// A group in memory, and when it is in the list of alarms.
#[derive(Debug)]
struct Live {
    group: Group,
    alarm: Option<MonotonicTime>,
}

/// The search for expired offsets, a few groups at a time.
#[derive(Debug)]
pub(super) struct Sweep {
    pub(super) due: MonotonicTime,
    /// The last group that was looked at in the sweep that is under way.
    pub(super) after: Option<GroupId>,
}

/// What the driver of a slot has to do after a batch has completed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AfterBatch {
    Continue,
    /// The log is lost to us: the slot has answered everybody and is over.
    Lost,
    /// Delete the records below this offset.
    DeleteBelow(Offset),
}

/// A slot that is led here and loaded.
#[derive(Debug)]
pub struct Slot {
    pub(super) id: SlotId,
    pub(super) shared: Rc<Shared>,
    pub(super) ledger: Ledger,
    pub(super) journal: Journal,
    live: BTreeMap<GroupId, Live>,
    alarms: BTreeSet<(MonotonicTime, GroupId)>,
    /// Members of all live groups, with those that are about to become some.
    members: usize,
    /// Bytes of the texts and blobs of all live groups.
    live_bytes: usize,
    parked: HashMap<Waiter, Parked>,
    waiters: u64,
    /// Groups whose deletion is on its way. Nothing may begin in them.
    pub(super) deleting: BTreeSet<GroupId>,
    pub(super) sweep: Sweep,
    /// The last batch was not stored.
    is_failing: bool,
    reported: Usage,
}

impl Slot {
    /// A slot as its log says. Members have to show up within their session timeouts from now on.
    #[must_use]
    pub fn new(id: SlotId, shared: Rc<Shared>, ledger: Ledger, log_bytes: usize, now: Now) -> Self {
        let sweep = Sweep { due: now.after(shared.config.offsets_retention_check_interval), after: None };
        let journal = Journal::new(log_bytes, shared.config.snapshots);
        let mut slot = Self {
            id,
            shared,
            ledger,
            journal,
            live: BTreeMap::new(),
            alarms: BTreeSet::new(),
            members: 0,
            live_bytes: 0,
            parked: HashMap::new(),
            waiters: 0,
            deleting: BTreeSet::new(),
            sweep,
            is_failing: false,
            reported: Usage::default(),
        };
        let with_members: Vec<GroupId> = slot
            .ledger
            .groups()
            .filter(|(_, group)| group.metadata.as_ref().is_some_and(|metadata| !metadata.members.is_empty()))
            .map(|(id, _)| id.clone())
            .collect();
        for group in with_members {
            slot.step(now, &group, |_, _| ());
        }
        slot.report_usage();
        slot
    }

    pub(super) fn join(
        &mut self,
        now: Now,
        request: &JoinGroupRequest,
        version: i16,
        client: &ClientIdentity,
        random: u128,
        reply: oneshot::Sender<JoinGroupResponse>,
    ) {
        let id = GroupId::from(&*request.group_id);
        let join = JoinRequest::read(request, version, client, random);
        if let Err(error) = self.check_join(&id, &join) {
            let _ = reply.send(answer::join(Err(error.into()), request.member_id.clone()));
            return;
        }
        let waiter = self.park(Parked::Join { reply, member_id: KafkaString::from(&*request.member_id) });
        self.step(now, &id, |group, step| group.join(step, &join, waiter));
    }

    fn check_join(&self, id: &GroupId, join: &JoinRequest) -> Result<(), GroupError> {
        join.check(&self.shared.config)?;
        if self.deleting.contains(id) {
            return Err(GroupError::CoordinatorNotAvailable);
        }
        let is_known = self.exists(id);
        if !is_known && join.member_id.is_some() {
            return Err(GroupError::UnknownMemberId);
        }
        let (usage, limits) = (self.shared.usage(), self.shared.config.limits);
        if !self.live.contains_key(id) && usage.active_groups >= limits.active_groups {
            self.shared.counters.borrow_mut().groups_over_limit += 1;
            return Err(GroupError::CoordinatorNotAvailable);
        }
        if join.member_id.is_none() && usage.members >= limits.members {
            self.shared.counters.borrow_mut().members_over_limit += 1;
            return Err(GroupError::CoordinatorNotAvailable);
        }
        let member = join.member_id.as_ref().and_then(|member| self.live.get(id)?.group.members().get(member));
        let growth = join.bytes().saturating_sub(member.map_or(0, |member| member.profile.bytes()));
        self.check_held_bytes(growth)?;
        self.check_parking()
    }

    /// Whether groups may hold so many more bytes.
    pub(super) fn check_held_bytes(&self, growth: usize) -> Result<(), GroupError> {
        if growth > 0 && self.shared.usage().held_bytes + growth > self.shared.config.limits.held_bytes {
            self.shared.counters.borrow_mut().bytes_over_limit += 1;
            return Err(GroupError::CoordinatorNotAvailable);
        }
        Ok(())
    }

    fn check_parking(&self) -> Result<(), GroupError> {
        if self.shared.usage().parked_requests >= self.shared.config.limits.parked_requests {
            self.shared.counters.borrow_mut().parked_over_limit += 1;
            return Err(GroupError::CoordinatorNotAvailable);
        }
        Ok(())
    }

    pub(super) fn sync(&mut self, now: Now, request: &SyncGroupRequest, reply: oneshot::Sender<SyncGroupResponse>) {
        let id = GroupId::from(&*request.group_id);
        let assigned = request.assignments.iter().map(|assignment| assignment.assignment.len()).sum();
        let known = if self.live.contains_key(&id) { self.check_parking() } else { Err(GroupError::UnknownMemberId) };
        if let Err(error) = known.and_then(|()| self.check_held_bytes(assigned)) {
            let _ = reply.send(answer::sync(Err(error)));
            return;
        }
        let sync = SyncRequest::read(request);
        let waiter = self.park(Parked::Sync(reply));
        self.step(now, &id, |group, step| group.sync(step, &sync, waiter));
    }

    pub(super) fn heartbeat(&mut self, now: Now, request: &HeartbeatRequest) -> HeartbeatResponse {
        let id = GroupId::from(&*request.group_id);
        let outcome = if self.live.contains_key(&id) {
            let sender = Sender::of_heartbeat(request);
            self.step(now, &id, |group, step| group.heartbeat(step, &sender))
        } else {
            Err(GroupError::UnknownMemberId)
        };
        HeartbeatResponse { error_code: answer::code(outcome), ..HeartbeatResponse::default() }
    }

    pub(super) fn leave(&mut self, now: Now, request: &LeaveGroupRequest, version: i16) -> LeaveGroupResponse {
        let id = GroupId::from(&*request.group_id);
        let leaving: Vec<Leaving> = request::leaving(request, version);
        let outcomes = if self.live.contains_key(&id) {
            self.step(now, &id, |group, step| group.leave(step, &leaving))
        } else {
            vec![Err(GroupError::UnknownMemberId); leaving.len()]
        };
        answer::leave(request, version, &outcomes)
    }

    /// When [`Slot::tick`] has something to do.
    #[must_use]
    pub fn next_alarm(&self) -> MonotonicTime {
        self.alarms.first().map_or(self.sweep.due, |(alarm, _)| self.sweep.due.min(*alarm))
    }

    /// Does what is due.
    pub fn tick(&mut self, now: Now) {
        while let Some((alarm, id)) = self.alarms.first().cloned()
            && alarm <= now.monotonic
        {
            self.step(now, &id, Group::tick);
        }
        if self.sweep.due <= now.monotonic {
            self.sweep(now);
        }
        self.report_usage();
    }

    /// The next batch for the log.
    pub fn next_batch(&mut self, now: Now) -> Option<bytes::Bytes> {
        let batch = self.journal.next_batch(&self.ledger, now.wall);
        self.report_usage();
        batch
    }

    /// The oldest batch on its way has ended: what it wrote takes effect, in the order of the log.
    pub fn batch_completed(&mut self, now: Now, outcome: Result<Offset, AppendError>) -> AfterBatch {
        self.note_outcome(outcome.as_ref().err());
        let refusal = match outcome.as_ref().map_err(refusal) {
            Ok(_) => None,
            Err(Some(refusal)) => Some(refusal),
            Err(None) => {
                self.end(now, GroupError::NotCoordinator);
                return AfterBatch::Lost;
            }
        };
        let completed = self.journal.completed(&self.ledger, outcome.ok());
        for write in completed.writes {
            match refusal {
                None => self.take_effect(now, write),
                Some(error) => self.fail(now, write, error),
            }
        }
        self.report_usage();
        match completed.delete_below {
            Some(offset) => {
                self.shared.counters.borrow_mut().snapshots += 1;
                AfterBatch::DeleteBelow(offset)
            }
            None => AfterBatch::Continue,
        }
    }

    /// One line when writes begin to fail and one when they succeed again, however many there are.
    fn note_outcome(&mut self, error: Option<&AppendError>) {
        match error {
            Some(error) if !self.is_failing => {
                tracing::warn!(slot = %self.id, %error, "the coordinator can't store offsets and memberships");
            }
            None if self.is_failing => tracing::info!(slot = %self.id, "the coordinator stores again"),
            _ => {}
        }
        self.is_failing = error.is_some();
    }

    /// The leadership is over: everybody who waits is told at once. The slot is to be dropped then.
    pub fn end(&mut self, now: Now, error: GroupError) {
        for write in self.journal.drain() {
            self.fail(now, write, error);
        }
        let groups: Vec<GroupId> = self.live.keys().cloned().collect();
        for id in groups {
            self.step(now, &id, |group, step| group.end(step, error));
        }
        debug_assert!(self.parked.is_empty(), "{} requests have no group", self.parked.len());
        debug_assert!(self.live.is_empty() && self.alarms.is_empty(), "every group is over");
        debug_assert!(self.members == 0 && self.live_bytes == 0, "nothing is left of them");
        self.ledger = Ledger::default();
        self.report_usage();
    }

    /// Whether anything is known of the group.
    pub(super) fn exists(&self, id: &GroupId) -> bool {
        self.live.contains_key(id) || self.ledger.group(id).is_some()
    }

    /// The group, if it has members or is about to.
    pub(super) fn live_group(&self, id: &GroupId) -> Option<&Group> {
        self.live.get(id).map(|live| &live.group)
    }

    pub(super) fn live_groups(&self) -> impl Iterator<Item = (&GroupId, &Group)> {
        self.live.iter().map(|(id, live)| (id, &live.group))
    }

    /// One step of a group's state machine, with all that follows from it.
    pub(super) fn step<T>(&mut self, now: Now, id: &GroupId, act: impl FnOnce(&mut Group, &mut Step<'_>) -> T) -> T {
        let (size_before, bytes_before) =
            self.live.get(id).map_or((0, 0), |live| (live.group.size(), live.group.bytes()));
        let live = self.live.entry(id.clone()).or_insert_with(|| {
            let metadata = self.ledger.group(id).and_then(|durable| durable.metadata.as_ref());
            let group = match metadata {
                Some(metadata) => Group::restore(id.clone(), metadata, now),
                None => Group::new(id.clone(), now),
            };
            Live { group, alarm: None }
        });
        let mut effects = Vec::new();
        let shared = Rc::clone(&self.shared);
        let mut counters = shared.counters.borrow_mut();
        let mut step = Step { now, config: &shared.config, counters: &mut counters.groups, effects: &mut effects };
        let value = act(&mut live.group, &mut step);
        drop(counters);
        self.members = self.members + live.group.size() - size_before;
        self.live_bytes = self.live_bytes + live.group.bytes() - bytes_before;

        let (former, alarm) = (live.alarm, live.group.alarm());
        if former != alarm {
            live.alarm = alarm;
            if let Some(former) = former {
                self.alarms.remove(&(former, id.clone()));
            }
            if let Some(alarm) = alarm {
                self.alarms.insert((alarm, id.clone()));
            }
        }
        for effect in effects {
            self.carry_out(id, effect);
        }
        self.retire(id);
        self.report_usage();
        value
    }

    fn carry_out(&mut self, id: &GroupId, effect: Effect) {
        match effect {
            Effect::AnswerJoin { waiter, answer } => {
                if let Some(Parked::Join { reply, member_id }) = self.parked.remove(&waiter) {
                    // A client that is gone does not need its answer.
                    let _ = reply.send(answer::join(answer, member_id));
                }
            }
            Effect::AnswerSync { waiter, answer } => {
                if let Some(Parked::Sync(reply)) = self.parked.remove(&waiter) {
                    let _ = reply.send(answer::sync(answer));
                }
            }
            Effect::Store { metadata, then } => {
                let records = vec![SlotRecord::GroupStored { group: id.clone(), metadata: Rc::new(metadata) }];
                self.journal.push(Write { group: id.clone(), records, then: Then::Membership(then) });
            }
        }
    }

    fn take_effect(&mut self, now: Now, write: Write) {
        write.records.iter().for_each(|record| self.ledger.apply(record));
        match write.then {
            Then::Nothing => {}
            Then::Membership(AfterStore::Nothing) => {}
            Then::Membership(AfterStore::Assign { generation }) => {
                if self.live.contains_key(&write.group) {
                    self.step(now, &write.group, |group, step| group.assignment_stored(step, generation, Ok(())));
                }
            }
            Then::Membership(AfterStore::AnswerJoin { waiter, joined }) => {
                self.carry_out(&write.group, Effect::AnswerJoin { waiter, answer: Ok(joined) });
            }
            Then::Commit { reply, response } => {
                let partitions = response.topics.iter().flat_map(|topic| &topic.partitions);
                let stored = partitions.filter(|partition| partition.error_code.is_none()).count();
                self.shared.counters.borrow_mut().committed_offsets += stored as u64;
                let _ = reply.send(response);
            }
            Then::DeleteOffsets { reply, response } => {
                let _ = reply.send(response);
            }
            Then::DeleteGroup { reply } => {
                self.deleting.remove(&write.group);
                if self.live.contains_key(&write.group) {
                    self.step(now, &write.group, |group, step| group.end(step, GroupError::GroupIdNotFound));
                }
                if let Some(reply) = reply {
                    let _ = reply.send(answer::deleted(&write.group, Ok(())));
                }
            }
        }
        self.retire(&write.group);
    }

    /// Nothing of the write is in the log.
    fn fail(&mut self, now: Now, write: Write, error: GroupError) {
        match write.then {
            Then::Nothing | Then::Membership(AfterStore::Nothing) => {}
            Then::Membership(AfterStore::Assign { generation }) => {
                if self.live.contains_key(&write.group) {
                    self.step(now, &write.group, |group, step| group.assignment_stored(step, generation, Err(error)));
                }
            }
            Then::Membership(AfterStore::AnswerJoin { waiter, .. }) => {
                self.carry_out(&write.group, Effect::AnswerJoin { waiter, answer: Err(error.into()) });
            }
            Then::Commit { reply, response } => {
                let _ = reply.send(answer::commit_failed(response, error));
            }
            Then::DeleteOffsets { reply, response } => {
                let _ = reply.send(answer::delete_offsets_failed(response, error));
            }
            Then::DeleteGroup { reply } => {
                self.deleting.remove(&write.group);
                if let Some(reply) = reply {
                    let _ = reply.send(answer::deleted(&write.group, Err(error)));
                }
            }
        }
        self.retire(&write.group);
    }

    /// Lets go of a group that has no members, once the ledger says the same.
    fn retire(&mut self, id: &GroupId) {
        let Some(Live { group, .. }) = self.live.get(id) else { return };
        let stored = self.ledger.group(id).and_then(|durable| durable.metadata.as_ref());
        let is_stored = match stored {
            Some(metadata) => metadata.members.is_empty() && metadata.generation == group.generation(),
            None => group.generation().0 == 0,
        };
        let is_over = group.is_unused() && is_stored && !self.journal.has_open_writes(id);
        if is_over || group.state() == GroupState::Dead {
            self.drop_group(id);
        }
    }

    fn drop_group(&mut self, id: &GroupId) {
        let Some(Live { group, alarm }) = self.live.remove(id) else { return };
        self.members -= group.size();
        self.live_bytes -= group.bytes();
        if let Some(alarm) = alarm {
            self.alarms.remove(&(alarm, id.clone()));
        }
    }

    fn park(&mut self, parked: Parked) -> Waiter {
        self.waiters += 1;
        let waiter = Waiter(self.waiters);
        self.parked.insert(waiter, parked);
        waiter
    }

    /// Keeps the sums over all slots right.
    pub(super) fn report_usage(&mut self) {
        let usage = Usage {
            active_groups: self.live.len(),
            members: self.members,
            durable_groups: self.ledger.group_count(),
            offsets: self.ledger.offset_count(),
            parked_requests: self.parked.len(),
            held_bytes: self.live_bytes + self.ledger.bytes(),
            queued_bytes: self.journal.queued_bytes(),
        };
        self.shared.replace(self.reported, usage);
        self.reported = usage;
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.shared.replace(self.reported, Usage::default());
    }
}

/// What requests are told when nothing was written and the slot goes on; `None` when the log is lost to us.
fn refusal(error: &AppendError) -> Option<GroupError> {
    match error {
        AppendError::NotLeading(_) | AppendError::Storage(_) => None,
        AppendError::VolumeFull | AppendError::Stalled | AppendError::QueueFull => {
            Some(GroupError::CoordinatorNotAvailable)
        }
        AppendError::TooLarge { .. }
        | AppendError::InvalidRecord(_)
        | AppendError::MissingKey { .. }
        | AppendError::InvalidTimestamp
        | AppendError::OutOfOrderSequence { .. }
        | AppendError::InvalidProducerEpoch
        | AppendError::TooManyTransactions => Some(GroupError::MembershipTooLarge),
    }
}
