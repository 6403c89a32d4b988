//! SyncGroup: the leader's assignment reaches the log, then the members.

use std::collections::BTreeMap;

use bytes::Bytes;
use kaas_proto::kafka::consumer_protocol::{CONSUMER_PROTOCOL_TYPE, empty_assignment};
use kaas_proto::types::GenerationId;

use super::effect::{AfterStore, Effect, Step, Synced, Waiter};
use super::error::GroupError;
use super::ids::{InstanceId, MemberId, ProtocolName};
use super::phase::GroupState;
use super::state::Group;

/// A SyncGroup.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SyncRequest {
    pub member_id: MemberId,
    pub instance_id: Option<InstanceId>,
    pub generation: GenerationId,
    /// Version 5 and above, like the next one.
    pub protocol_type: Option<ProtocolName>,
    pub protocol: Option<ProtocolName>,
    /// From the leader.
    pub assignments: BTreeMap<MemberId, Bytes>,
}

impl Group {
    /// A member asks for its assignment; the leader brings all of them.
    pub fn sync(&mut self, step: &mut Step<'_>, request: &SyncRequest, waiter: Waiter) {
        if let Err(error) = self.try_sync(step, request, waiter) {
            step.effects.push(Effect::AnswerSync { waiter, answer: Err(error) });
        }
    }

    /// Takes over the waiter when it returns `Ok`.
    fn try_sync(&mut self, step: &mut Step<'_>, request: &SyncRequest, waiter: Waiter) -> Result<(), GroupError> {
        self.check_sync(request)?;
        let id = &request.member_id;
        match self.state {
            GroupState::Dead => return Err(GroupError::CoordinatorNotAvailable),
            GroupState::Empty => return Err(GroupError::UnknownMemberId),
            GroupState::PreparingRebalance => return Err(GroupError::RebalanceInProgress),
            GroupState::CompletingRebalance => {
                let round = self.syncing.as_mut().expect("a round of syncs is under way in CompletingRebalance");
                round.awaited.remove(id);
                let assigned = round.storing.is_some();
                let member = self.members.get_mut(id).expect("checked above");
                if let Some(former) = member.syncing.replace(waiter) {
                    let answer = Err(GroupError::RebalanceInProgress);
                    step.effects.push(Effect::AnswerSync { waiter: former, answer });
                }
                if self.leader.as_ref() == Some(id) && !assigned {
                    self.store_assignment(step, &request.assignments);
                }
            }
            GroupState::Stable => {
                self.has_synced(id);
                self.touch(step.now, id);
                step.effects.push(Effect::AnswerSync { waiter, answer: Ok(self.synced(id)) });
            }
        }
        Ok(())
    }

    fn check_sync(&self, request: &SyncRequest) -> Result<(), GroupError> {
        if self.state == GroupState::Dead {
            return Err(GroupError::CoordinatorNotAvailable);
        }
        self.check_identity(&request.member_id, request.instance_id.as_ref())?;
        if request.generation != self.generation {
            return Err(GroupError::IllegalGeneration);
        }
        let differs = |theirs: &Option<ProtocolName>, ours: &Option<ProtocolName>| theirs.is_some() && theirs != ours;
        if differs(&request.protocol_type, &self.protocol_type) || differs(&request.protocol, &self.protocol) {
            return Err(GroupError::InconsistentGroupProtocol);
        }
        Ok(())
    }

    fn store_assignment(&mut self, step: &mut Step<'_>, from_leader: &BTreeMap<MemberId, Bytes>) {
        let is_consumer = self.protocol_type.as_ref().is_some_and(|t| t.as_str() == CONSUMER_PROTOCOL_TYPE);
        let assignments: BTreeMap<MemberId, Bytes> = self
            .members
            .keys()
            .map(|id| {
                let given = from_leader.get(id).cloned().unwrap_or_default();
                // Several clients can't read zero bytes, which is what leaders send for members without work.
                let nothing = given.is_empty() && is_consumer;
                (id.clone(), if nothing { empty_assignment() } else { given })
            })
            .collect();
        let former: usize = self.members.values().map(|member| member.profile.assignment.len()).sum();
        let new: usize = assignments.values().map(Bytes::len).sum();
        if self.membership_bytes - former + new > step.config.limits.membership_bytes {
            self.fail_sync_round(step, GroupError::MembershipTooLarge);
            return self.rebalance(step);
        }
        let metadata = self.metadata(&assignments);
        self.syncing.as_mut().expect("in CompletingRebalance").storing = Some(assignments);
        let then = AfterStore::Assign { generation: self.generation };
        step.effects.push(Effect::Store { metadata, then });
    }

    /// The outcome of writing the assignment of a generation. Comes too late when the group has moved on.
    pub fn assignment_stored(
        &mut self,
        step: &mut Step<'_>,
        generation: GenerationId,
        outcome: Result<(), GroupError>,
    ) {
        if self.state != GroupState::CompletingRebalance || self.generation != generation {
            return;
        }
        let Some(assignments) = self.syncing.as_mut().and_then(|round| round.storing.take()) else { return };
        if let Err(error) = outcome {
            self.fail_sync_round(step, error);
            return self.rebalance(step);
        }
        for (id, assignment) in assignments {
            let member = self.members.get_mut(&id).expect("a change of members would have ended the round");
            self.membership_bytes -= member.profile.assignment.len();
            self.membership_bytes += assignment.len();
            member.profile.assignment = assignment;
        }
        self.set_state(step, GroupState::Stable);
        let waiting: Vec<MemberId> =
            self.members.iter().filter(|(_, member)| member.syncing.is_some()).map(|(id, _)| id.clone()).collect();
        for id in &waiting {
            let waiter = self.members.get_mut(id).and_then(|member| member.syncing.take()).expect("found above");
            step.effects.push(Effect::AnswerSync { waiter, answer: Ok(self.synced(id)) });
            self.touch(step.now, id);
            self.has_synced(id);
        }
    }

    fn has_synced(&mut self, id: &MemberId) {
        if let Some(round) = &mut self.syncing {
            round.awaited.remove(id);
            if round.awaited.is_empty() {
                self.syncing = None;
            }
        }
    }

    fn synced(&self, id: &MemberId) -> Synced {
        Synced {
            protocol_type: self.protocol_type.clone(),
            protocol: self.protocol.clone(),
            assignment: self.members[id].profile.assignment.clone(),
        }
    }
}
