//! The two halves of a rebalance: members join, then they fetch their assignments.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use bytes::Bytes;
use kaas_proto::types::GenerationId;

use super::effect::{AfterStore, Effect, Joined, JoinedMember, Step};
use super::error::GroupError;
use super::ids::MemberId;
use super::member::Member;
use super::phase::GroupState;
use super::protocol;
use super::state::Group;
use crate::env::MonotonicTime;

/// The wait for members to join.
#[derive(Clone, Copy, Debug)]
pub(super) struct JoinRound {
    pub(super) due: MonotonicTime,
    /// Only for a group that was empty: waits although everybody known is there.
    initial: Option<InitialDelay>,
}

#[derive(Clone, Copy, Debug)]
struct InitialDelay {
    /// How much longer the start may still be put off.
    remaining: Duration,
    /// Someone came since the last time: put it off once more.
    member_added: bool,
}

/// The wait for members to fetch their assignment.
#[derive(Clone, Debug)]
pub(super) struct SyncRound {
    pub(super) due: MonotonicTime,
    /// Who has not sent SyncGroup yet.
    pub(super) awaited: BTreeSet<MemberId>,
    /// The leader's assignment, on its way to the log.
    pub(super) storing: Option<BTreeMap<MemberId, Bytes>>,
}

impl Group {
    /// After members or pending ids are gone.
    pub(super) fn membership_shrank(&mut self, step: &mut Step<'_>, members_left: bool) {
        match self.state {
            GroupState::Stable | GroupState::CompletingRebalance if members_left => self.rebalance(step),
            GroupState::PreparingRebalance => self.complete_join_if_all_are_there(step),
            _ => {}
        }
    }

    /// Calls the members to join again, or goes on with the round that already does.
    pub(super) fn rebalance(&mut self, step: &mut Step<'_>) {
        if self.state == GroupState::PreparingRebalance {
            return self.complete_join_if_all_are_there(step);
        }
        self.fail_sync_round(step, GroupError::RebalanceInProgress);
        let timeout = self.rebalance_timeout();
        let (delay, initial) = if self.state == GroupState::Empty {
            let delay = step.config.initial_rebalance_delay;
            (delay, Some(InitialDelay { remaining: timeout.saturating_sub(delay), member_added: false }))
        } else {
            (timeout, None)
        };
        let due = step.now.after(delay);
        self.joining = Some(JoinRound { due, initial });
        self.arm(due);
        self.set_state(step, GroupState::PreparingRebalance);
        self.complete_join_if_all_are_there(step);
    }

    /// A member that was not there before has joined.
    pub(super) fn member_was_added(&mut self) {
        if let Some(JoinRound { initial: Some(initial), .. }) = &mut self.joining {
            initial.member_added = true;
        }
    }

    fn complete_join_if_all_are_there(&mut self, step: &mut Step<'_>) {
        let round = self.joining.expect("a round of joins is under way in PreparingRebalance");
        let all_there = self.pending.is_empty() && self.members.values().all(|member| member.joining.is_some());
        if round.initial.is_none() && all_there {
            self.complete_join(step);
        }
    }

    pub(super) fn join_round_is_due(&mut self, step: &mut Step<'_>) {
        let round = self.joining.as_mut().expect("checked by the caller");
        match &mut round.initial {
            Some(initial) if initial.member_added && !initial.remaining.is_zero() => {
                let delay = step.config.initial_rebalance_delay.min(initial.remaining);
                initial.remaining -= delay;
                initial.member_added = false;
                round.due = step.now.after(delay);
            }
            _ => self.complete_join(step),
        }
    }

    /// Ends the round of joins: a new generation of those who are there.
    fn complete_join(&mut self, step: &mut Step<'_>) {
        let absent: Vec<MemberId> = self
            .members
            .iter()
            .filter(|(_, member)| member.joining.is_none() && member.profile.instance_id.is_none())
            .map(|(id, _)| id.clone())
            .collect();
        for id in &absent {
            tracing::debug!(group = %self.id, member = %id, "member did not join again in time");
            step.counters.expired_members += 1;
            self.remove_member(step, id);
        }
        if !self.members.is_empty() && self.members.values().all(|member| member.joining.is_none()) {
            // Only static members are left and none has come back: their sessions decide.
            let due = step.now.after(self.rebalance_timeout());
            self.joining = Some(JoinRound { due, initial: None });
            return self.arm(due);
        }
        self.joining = None;
        step.counters.rebalances += 1;
        self.generation = GenerationId(self.generation.0.checked_add(1).unwrap_or(1));
        if self.members.is_empty() {
            self.become_empty(step);
        } else {
            self.begin_generation(step);
        }
    }

    fn become_empty(&mut self, step: &mut Step<'_>) {
        self.protocol = None;
        self.leader = None;
        self.set_state(step, GroupState::Empty);
        step.effects.push(Effect::Store { metadata: self.metadata(&BTreeMap::new()), then: AfterStore::Nothing });
    }

    fn begin_generation(&mut self, step: &mut Step<'_>) {
        let leader_is_there = self.leader.as_ref().is_some_and(|id| self.members[id].joining.is_some());
        if !leader_is_there {
            self.leader = self.earliest(|member| member.joining.is_some());
        }
        self.protocol = protocol::select(self.offers());
        assert!(self.protocol.is_some(), "group {}: members without a protocol in common were let in", self.id);
        self.set_state(step, GroupState::CompletingRebalance);

        let present: BTreeSet<MemberId> =
            self.members.iter().filter(|(_, member)| member.joining.is_some()).map(|(id, _)| id.clone()).collect();
        for id in &present {
            let answer = Ok(self.joined(id));
            let member = self.members.get_mut(id).expect("present");
            let waiter = member.joining.take().expect("present members wait");
            member.is_new = false;
            step.effects.push(Effect::AnswerJoin { waiter, answer });
            self.touch(step.now, id);
        }
        let due = step.now.after(self.rebalance_timeout());
        self.syncing = Some(SyncRound { due, awaited: present, storing: None });
        self.arm(due);
    }

    /// Members that joined but never asked for their assignment are gone.
    pub(super) fn sync_round_is_due(&mut self, step: &mut Step<'_>) {
        // When everybody has asked, the log is awaited; the outcome of the write ends the round.
        let due = step.now.after(self.rebalance_timeout().max(Duration::from_secs(1)));
        let round = self.syncing.as_mut().expect("checked by the caller");
        round.due = due;
        let absent = std::mem::take(&mut round.awaited);
        for id in &absent {
            tracing::debug!(group = %self.id, member = %id, "member did not ask for its assignment in time");
            step.counters.expired_members += 1;
            self.remove_member(step, id);
        }
        if !absent.is_empty() {
            self.rebalance(step);
        }
    }

    /// Ends the round of syncs without an assignment.
    pub(super) fn fail_sync_round(&mut self, step: &mut Step<'_>, error: GroupError) {
        self.syncing = None;
        if self.state != GroupState::CompletingRebalance {
            return;
        }
        let waiting: Vec<MemberId> =
            self.members.iter().filter(|(_, member)| member.syncing.is_some()).map(|(id, _)| id.clone()).collect();
        for id in &waiting {
            let member = self.members.get_mut(id).expect("found above");
            let waiter = member.syncing.take().expect("found above");
            step.effects.push(Effect::AnswerSync { waiter, answer: Err(error) });
            self.touch(step.now, id);
        }
    }

    /// The answer to a member of the current generation.
    pub(super) fn joined(&self, id: &MemberId) -> Joined {
        let leader = self.leader.clone().expect("a group with members has a leader");
        Joined {
            member_id: id.clone(),
            generation: self.generation,
            protocol_type: self.protocol_type.clone(),
            protocol: self.protocol.clone(),
            skip_assignment: false,
            members: if leader == *id { self.joined_members() } else { Vec::new() },
            leader,
        }
    }

    pub(super) fn joined_members(&self) -> Vec<JoinedMember> {
        let protocol = self.protocol.as_ref().expect("a generation with members has a protocol");
        let described = self.members.values().map(|member| JoinedMember {
            id: member.profile.id.clone(),
            instance_id: member.profile.instance_id.clone(),
            metadata: member.profile.metadata_of(protocol),
        });
        described.collect()
    }

    /// The longest that any member may take to join again.
    fn rebalance_timeout(&self) -> Duration {
        self.members.values().map(|member| member.profile.rebalance_timeout).max().unwrap_or_default()
    }

    /// The member that has been there longest, of those that qualify.
    pub(super) fn earliest(&self, qualifies: impl Fn(&Member) -> bool) -> Option<MemberId> {
        let candidates = self.members.values().filter(|member| qualifies(member));
        candidates.min_by_key(|member| member.arrival).map(|member| member.profile.id.clone())
    }
}
