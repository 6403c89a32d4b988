//! The state machine of a group with the classic protocol.
//!
//! Pure and shard-local: every step takes the time and appends what is to be done to a list of
//! [`Effect`]s. Requests that have to wait are known by their [`Waiter`]; each one is answered by exactly one effect.
//! The machine asks for its next step by [`Group::alarm`].
//!
//! Here is what a group is made of; what it does lies in [`join`](super::join), [`round`](super::round),
//! [`sync`](super::sync) and [`leave`](super::leave).

use std::collections::BTreeMap;

use bytes::Bytes;
use kaas_proto::types::{GenerationId, TimestampMs};

use super::effect::{Effect, JoinRefused, Now, Step, Waiter};
use super::error::GroupError;
use super::ids::{GroupId, InstanceId, MemberId, ProtocolName};
use super::member::Member;
use super::metadata::{GroupMetadata, MemberProfile};
use super::phase::GroupState;
use super::protocol::Protocol;
use super::round::{JoinRound, SyncRound};
use crate::env::MonotonicTime;

/// A group. Shard-local.
#[derive(Clone, Debug)]
pub struct Group {
    pub(super) id: GroupId,
    pub(super) state: GroupState,
    /// When the state was entered.
    since: TimestampMs,
    pub(super) protocol_type: Option<ProtocolName>,
    pub(super) protocol: Option<ProtocolName>,
    pub(super) generation: GenerationId,
    pub(super) leader: Option<MemberId>,
    pub(super) members: BTreeMap<MemberId, Member>,
    /// Exactly the members that have an instance id.
    pub(super) static_members: BTreeMap<InstanceId, MemberId>,
    /// Ids that were handed out (KIP-394) and until when they may be used.
    pub(super) pending: BTreeMap<MemberId, MonotonicTime>,
    /// Set exactly in PreparingRebalance.
    pub(super) joining: Option<JoinRound>,
    /// Set in CompletingRebalance, and in Stable while members have not asked for their assignment yet.
    pub(super) syncing: Option<SyncRound>,
    arrivals: u64,
    /// What [`membership_bytes`](super::config::GroupLimits::membership_bytes) limits: the sum over the members.
    pub(super) membership_bytes: usize,
    /// Not later than any deadline of the group.
    alarm: Option<MonotonicTime>,
}

impl Group {
    #[must_use]
    pub fn new(id: GroupId, now: Now) -> Self {
        Self {
            id,
            state: GroupState::Empty,
            since: now.wall,
            protocol_type: None,
            protocol: None,
            generation: GenerationId(0),
            leader: None,
            members: BTreeMap::new(),
            static_members: BTreeMap::new(),
            pending: BTreeMap::new(),
            joining: None,
            syncing: None,
            arrivals: 0,
            membership_bytes: 0,
            alarm: None,
        }
    }

    /// A group as its last durable membership describes it. Members stay, with fresh sessions: they did nothing wrong.
    #[must_use]
    pub fn restore(id: GroupId, metadata: &GroupMetadata, now: Now) -> Self {
        let mut group = Self::new(id, now);
        group.since = metadata.since;
        group.protocol_type.clone_from(&metadata.protocol_type);
        group.generation = metadata.generation;
        if !metadata.members.is_empty() {
            group.state = GroupState::Stable;
            group.protocol.clone_from(&metadata.protocol);
            group.leader.clone_from(&metadata.leader);
        }
        for profile in &metadata.members {
            group.insert_member(profile.clone(), now.after(profile.session_timeout), None);
        }
        debug_assert!(group.leader.is_none() || group.members.contains_key(group.leader.as_ref().expect("just asked")));
        group
    }

    #[must_use]
    pub fn id(&self) -> &GroupId {
        &self.id
    }

    #[must_use]
    pub fn state(&self) -> GroupState {
        self.state
    }

    #[must_use]
    pub fn since(&self) -> TimestampMs {
        self.since
    }

    #[must_use]
    pub fn protocol_type(&self) -> Option<&ProtocolName> {
        self.protocol_type.as_ref()
    }

    #[must_use]
    pub fn protocol(&self) -> Option<&ProtocolName> {
        self.protocol.as_ref()
    }

    #[must_use]
    pub fn generation(&self) -> GenerationId {
        self.generation
    }

    #[must_use]
    pub fn leader(&self) -> Option<&MemberId> {
        self.leader.as_ref()
    }

    #[must_use]
    pub fn members(&self) -> &BTreeMap<MemberId, Member> {
        &self.members
    }

    /// Members, and ids that were handed out to become some.
    #[must_use]
    pub fn size(&self) -> usize {
        self.members.len() + self.pending.len()
    }

    /// Bytes of its texts and blobs, with those of the ids that were handed out.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let names = [&self.protocol_type, &self.protocol];
        let names: usize = names.into_iter().flatten().map(|name| name.as_str().len()).sum();
        self.id.as_str().len() + names + self.membership_bytes + self.pending.len() * MemberId::MAX_BYTES
    }

    /// Nobody is in the group or about to be: without offsets there is no reason to keep it.
    #[must_use]
    pub fn is_unused(&self) -> bool {
        self.state == GroupState::Empty && self.pending.is_empty()
    }

    /// When the machine wants [`Group::tick`] to be called. Too early is harmless.
    #[must_use]
    pub fn alarm(&self) -> Option<MonotonicTime> {
        self.alarm
    }

    /// The group leaves this coordinator: everybody who waits gets the error.
    pub fn end(&mut self, step: &mut Step<'_>, error: GroupError) {
        if self.state == GroupState::Dead {
            return;
        }
        self.set_state(step, GroupState::Dead);
        (self.joining, self.syncing, self.alarm) = (None, None, None);
        for member in self.members.values_mut() {
            answer_waiters(member, error, step);
        }
    }

    /// Does what is due.
    pub fn tick(&mut self, step: &mut Step<'_>) {
        let now = step.now.monotonic;
        if self.state == GroupState::Dead || self.alarm.is_none_or(|alarm| alarm > now) {
            return;
        }
        let before = (self.pending.len(), self.members.len());
        self.pending.retain(|_, due| *due > now);
        let expired: Vec<MemberId> =
            self.members.iter().filter(|(_, member)| member.has_expired(now)).map(|(id, _)| id.clone()).collect();
        for id in &expired {
            tracing::debug!(group = %self.id, member = %id, "member's session has expired");
            step.counters.expired_members += 1;
            self.remove_member(step, id);
        }
        if before != (self.pending.len(), self.members.len()) {
            self.membership_shrank(step, !expired.is_empty());
        }
        if self.joining.is_some_and(|round| round.due <= now) {
            self.join_round_is_due(step);
        }
        if self.syncing.as_ref().is_some_and(|round| round.due <= now) {
            self.sync_round_is_due(step);
        }
        self.alarm = self.next_deadline();
    }

    /// The earliest of all deadlines.
    #[must_use]
    pub fn next_deadline(&self) -> Option<MonotonicTime> {
        let sessions = self.members.values().filter(|member| member.can_expire()).map(|member| member.session_due);
        let pending = self.pending.values().copied();
        let rounds = self.joining.iter().map(|round| round.due).chain(self.syncing.iter().map(|round| round.due));
        sessions.chain(pending).chain(rounds).min()
    }

    /// The one place that changes the state.
    pub(super) fn set_state(&mut self, step: &Step<'_>, next: GroupState) {
        assert!(self.state.may_become(next), "group {}: {:?} must not become {next:?}", self.id, self.state);
        tracing::debug!(group = %self.id, from = ?self.state, to = ?next, generation = %self.generation, "group state");
        self.state = next;
        self.since = step.now.wall;
    }

    /// Makes sure that the group is looked at by then.
    pub(super) fn arm(&mut self, due: MonotonicTime) {
        self.alarm = Some(self.alarm.map_or(due, |alarm| alarm.min(due)));
    }

    /// The member was heard of: its session begins anew.
    pub(super) fn touch(&mut self, now: Now, id: &MemberId) {
        let member = self.members.get_mut(id).expect("only members are touched");
        if member.is_new {
            return;
        }
        member.session_due = now.after(member.profile.session_timeout);
        let due = member.session_due;
        self.arm(due);
    }

    /// Whether the request comes from the member that it names (KIP-345).
    pub(super) fn check_identity(&self, id: &MemberId, instance_id: Option<&InstanceId>) -> Result<(), GroupError> {
        if let Some(instance_id) = instance_id {
            match self.static_members.get(instance_id) {
                None => return Err(GroupError::UnknownMemberId),
                Some(current) if current != id => return Err(GroupError::FencedInstanceId),
                Some(_) => {}
            }
        }
        if self.members.contains_key(id) { Ok(()) } else { Err(GroupError::UnknownMemberId) }
    }

    pub(super) fn insert_member(
        &mut self,
        profile: MemberProfile,
        session_due: MonotonicTime,
        joining: Option<Waiter>,
    ) {
        let id = profile.id.clone();
        if let Some(instance_id) = &profile.instance_id {
            self.static_members.insert(instance_id.clone(), id.clone());
        }
        self.leader.get_or_insert_with(|| id.clone());
        self.arrivals += 1;
        self.membership_bytes += profile.bytes();
        let member =
            Member { profile, arrival: self.arrivals, session_due, is_new: joining.is_some(), joining, syncing: None };
        self.members.insert(id, member);
        self.arm(session_due);
    }

    /// Takes the member out of everything; its parked requests learn that it is not known any more.
    pub(super) fn remove_member(&mut self, step: &mut Step<'_>, id: &MemberId) {
        let Some(mut member) = self.members.remove(id) else { return };
        self.membership_bytes -= member.profile.bytes();
        if let Some(instance_id) = &member.profile.instance_id {
            self.static_members.remove(instance_id);
        }
        if let Some(round) = &mut self.syncing {
            round.awaited.remove(id);
        }
        if self.leader.as_ref() == Some(id) {
            self.leader = self.earliest(|_| true);
        }
        answer_waiters(&mut member, GroupError::UnknownMemberId, step);
    }

    /// What is stored of the group, with new assignments where there are some.
    pub(super) fn metadata(&self, assignments: &BTreeMap<MemberId, Bytes>) -> GroupMetadata {
        let members = self.members.values().map(|member| {
            let mut profile = member.profile.clone();
            if let Some(assignment) = assignments.get(&profile.id) {
                profile.assignment = assignment.clone();
            }
            profile
        });
        GroupMetadata {
            protocol_type: self.protocol_type.clone(),
            generation: self.generation,
            protocol: self.protocol.clone(),
            leader: self.leader.clone(),
            since: self.since,
            members: members.collect(),
        }
    }

    pub(super) fn offers(&self) -> impl Iterator<Item = &[Protocol]> + Clone {
        self.members.values().map(|member| &*member.profile.protocols)
    }
}

/// Ends whatever the member waits for.
pub(super) fn answer_waiters(member: &mut Member, error: GroupError, step: &mut Step<'_>) {
    if let Some(waiter) = member.joining.take() {
        // One that is fenced may learn here which member it was.
        let member_id = (error == GroupError::FencedInstanceId).then(|| member.profile.id.clone());
        step.effects.push(Effect::AnswerJoin { waiter, answer: Err(JoinRefused { error, member_id }) });
    }
    if let Some(waiter) = member.syncing.take() {
        step.effects.push(Effect::AnswerSync { waiter, answer: Err(error) });
    }
}
