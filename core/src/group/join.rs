//! JoinGroup: first contact, static members, joining again.

use std::rc::Rc;
use std::time::Duration;

use super::config::{GroupConfig, NEW_MEMBER_JOIN_TIMEOUT};
use super::effect::{AfterStore, Effect, JoinRefused, Step, Waiter};
use super::error::GroupError;
use super::ids::{InstanceId, MemberId, ProtocolName};
use super::metadata::MemberProfile;
use super::phase::GroupState;
use super::protocol::{self, Protocol};
use super::state::{Group, answer_waiters};

/// A JoinGroup, as far as its versions differ already sorted out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JoinRequest {
    /// `None` at first contact.
    pub member_id: Option<MemberId>,
    pub instance_id: Option<InstanceId>,
    pub client_id: Rc<str>,
    pub client_host: Rc<str>,
    pub session_timeout: Duration,
    pub rebalance_timeout: Duration,
    pub protocol_type: ProtocolName,
    pub protocols: Rc<[Protocol]>,
    /// KIP-394, version 4 and above: a dynamic member joins with an id that it was given before.
    pub requires_member_id: bool,
    /// KIP-814, version 9 and above.
    pub can_skip_assignment: bool,
    /// For a new member id.
    pub random: u128,
}

impl JoinRequest {
    /// Checks what does not depend on the group.
    ///
    /// # Errors
    /// [`GroupError::InvalidSessionTimeout`], or [`GroupError::InconsistentGroupProtocol`] for too many protocols.
    pub fn check(&self, config: &GroupConfig) -> Result<(), GroupError> {
        let bounds = config.min_session_timeout..=config.max_session_timeout;
        if !bounds.contains(&self.session_timeout) {
            return Err(GroupError::InvalidSessionTimeout);
        }
        if self.protocols.len() > config.limits.protocols {
            return Err(GroupError::InconsistentGroupProtocol);
        }
        Ok(())
    }

    /// Bytes of texts and blobs that the group holds for a member that joins like this.
    #[must_use]
    pub fn bytes(&self) -> usize {
        MemberId::MAX_BYTES + self.protocol_type.as_str().len() + self.profile("".into()).bytes()
    }

    fn profile(&self, id: MemberId) -> MemberProfile {
        MemberProfile {
            id,
            instance_id: self.instance_id.clone(),
            client_id: Rc::clone(&self.client_id),
            client_host: Rc::clone(&self.client_host),
            session_timeout: self.session_timeout,
            rebalance_timeout: self.rebalance_timeout,
            protocols: Rc::clone(&self.protocols),
            assignment: bytes::Bytes::new(),
        }
    }
}

impl Group {
    /// A member wants to be in the next generation, or to hear about the current one.
    pub fn join(&mut self, step: &mut Step<'_>, request: &JoinRequest, waiter: Waiter) {
        if let Err(refused) = self.try_join(step, request, waiter) {
            step.effects.push(Effect::AnswerJoin { waiter, answer: Err(refused) });
        }
    }

    /// Takes over the waiter when it returns `Ok`.
    fn try_join(&mut self, step: &mut Step<'_>, request: &JoinRequest, waiter: Waiter) -> Result<(), JoinRefused> {
        if self.state == GroupState::Dead {
            return Err(GroupError::CoordinatorNotAvailable.into());
        }
        // The member whose place the request takes: its own, or that of its former incarnation.
        let former = match (&request.member_id, &request.instance_id) {
            (Some(id), _) => Some(id.clone()),
            (None, Some(instance_id)) => self.static_members.get(instance_id).cloned(),
            (None, None) => None,
        };
        if !self.has_room(step.config, request, former.as_ref()) {
            step.counters.joins_over_limit += 1;
            if let Some(id) = former.filter(|id| self.members.contains_key(id)) {
                self.remove_member(step, &id);
                self.membership_shrank(step, true);
            }
            return Err(GroupError::GroupMaxSizeReached.into());
        }
        if !self.supports(request, former.as_ref()) {
            return Err(GroupError::InconsistentGroupProtocol.into());
        }
        match (&request.member_id, former) {
            (Some(id), _) => self.join_with_id(step, request, id, waiter),
            (None, Some(former)) => {
                self.replace_static_member(step, request, &former, waiter);
                Ok(())
            }
            (None, None) => self.join_without_id(step, request, waiter),
        }
    }

    /// `group.max.size`: while members join, those that are first win; a member of the current generation stays.
    fn has_room(&self, config: &GroupConfig, request: &JoinRequest, former: Option<&MemberId>) -> bool {
        let known = former.and_then(|id| self.members.get(id));
        let other_bytes = self.membership_bytes - known.map_or(0, |member| member.profile.bytes());
        let bytes = known.map_or(0, |member| member.profile.assignment.len()) + request.profile("".into()).bytes();
        if other_bytes + bytes > config.limits.membership_bytes {
            return false;
        }
        match self.state {
            GroupState::Empty | GroupState::Dead => true,
            _ if self.members.len() < config.max_size => true,
            GroupState::PreparingRebalance => {
                let waiting = self.members.values().filter(|member| member.joining.is_some()).count();
                known.is_some_and(|member| member.joining.is_some()) || waiting < config.max_size
            }
            GroupState::CompletingRebalance | GroupState::Stable => known.is_some(),
        }
    }

    /// Whether at least one protocol is offered by the request and by all members that stay beside it.
    fn supports(&self, request: &JoinRequest, former: Option<&MemberId>) -> bool {
        if request.protocol_type.as_str().is_empty() || request.protocols.is_empty() {
            return false;
        }
        if self.members.is_empty() {
            return true;
        }
        let all_others_offer = |name: &ProtocolName| {
            let mut others = self.members.values().filter(|member| Some(&member.profile.id) != former);
            others.all(|member| member.profile.protocols.iter().any(|offer| offer.name == *name))
        };
        self.protocol_type.as_ref() == Some(&request.protocol_type)
            && request.protocols.iter().any(|offer| all_others_offer(&offer.name))
    }

    fn join_without_id(
        &mut self,
        step: &mut Step<'_>,
        request: &JoinRequest,
        waiter: Waiter,
    ) -> Result<(), JoinRefused> {
        let prefix = request.instance_id.as_ref().map_or(&*request.client_id, InstanceId::as_str);
        let id = MemberId::generate(prefix, request.random);
        if !request.requires_member_id || request.instance_id.is_some() {
            self.add_member(step, request, id, waiter);
            return Ok(());
        }
        if self.pending.len() >= step.config.limits.pending_members {
            step.counters.pending_over_limit += 1;
            let oldest = self.pending.iter().min_by_key(|(_, due)| **due).map(|(id, _)| id.clone());
            oldest.map(|oldest| self.pending.remove(&oldest));
        }
        let due = step.now.after(request.session_timeout);
        self.pending.insert(id.clone(), due);
        self.arm(due);
        Err(JoinRefused { error: GroupError::MemberIdRequired, member_id: Some(id) })
    }

    fn join_with_id(
        &mut self,
        step: &mut Step<'_>,
        request: &JoinRequest,
        id: &MemberId,
        waiter: Waiter,
    ) -> Result<(), JoinRefused> {
        // An id that was handed out to a dynamic member.
        if request.instance_id.is_none() && self.pending.remove(id).is_some() {
            self.add_member(step, request, id.clone(), waiter);
            return Ok(());
        }
        self.check_identity(id, request.instance_id.as_ref())?;
        let unchanged = self.members[id].profile.protocols == request.protocols;
        let is_leader = self.leader.as_ref() == Some(id);
        match self.state {
            // It has not got the answer, or asks whether anything is new; nothing is.
            GroupState::CompletingRebalance if unchanged => self.answer_current_generation(step, id, waiter),
            // A leader that joins again does it because something has changed: new topics, more partitions.
            GroupState::Stable if unchanged && !is_leader => self.answer_current_generation(step, id, waiter),
            GroupState::PreparingRebalance | GroupState::CompletingRebalance | GroupState::Stable => {
                self.update_member(request, id);
                self.park_join(step, id, waiter);
                self.rebalance(step);
            }
            GroupState::Empty | GroupState::Dead => return Err(GroupError::UnknownMemberId.into()),
        }
        Ok(())
    }

    fn answer_current_generation(&mut self, step: &mut Step<'_>, id: &MemberId, waiter: Waiter) {
        self.touch(step.now, id);
        step.effects.push(Effect::AnswerJoin { waiter, answer: Ok(self.joined(id)) });
    }

    fn add_member(&mut self, step: &mut Step<'_>, request: &JoinRequest, id: MemberId, waiter: Waiter) {
        if self.members.is_empty() {
            self.protocol_type = Some(request.protocol_type.clone());
        }
        self.insert_member(request.profile(id), step.now.after(NEW_MEMBER_JOIN_TIMEOUT), Some(waiter));
        self.member_was_added();
        self.rebalance(step);
    }

    fn update_member(&mut self, request: &JoinRequest, id: &MemberId) {
        let member = self.members.get_mut(id).expect("checked by the caller");
        self.membership_bytes -= member.profile.bytes();
        let assignment = std::mem::take(&mut member.profile.assignment);
        member.profile = MemberProfile { assignment, ..request.profile(id.clone()) };
        self.membership_bytes += member.profile.bytes();
    }

    /// The member waits for the end of the round. A request of it that waited already is answered: it will not be
    /// missed, but the connection that it came on must not wait for ever.
    fn park_join(&mut self, step: &mut Step<'_>, id: &MemberId, waiter: Waiter) {
        let member = self.members.get_mut(id).expect("checked by the caller");
        if let Some(former) = member.joining.replace(waiter) {
            let answer = Err(GroupError::RebalanceInProgress.into());
            step.effects.push(Effect::AnswerJoin { waiter: former, answer });
        }
    }

    /// KIP-345: a static member is back, without the id that its former incarnation had. That one is fenced.
    fn replace_static_member(&mut self, step: &mut Step<'_>, request: &JoinRequest, former: &MemberId, waiter: Waiter) {
        let instance_id = request.instance_id.clone().expect("only static members are replaced");
        let id = MemberId::generate(instance_id.as_str(), request.random);
        let mut member = self.members.remove(former).expect("static members are members");
        answer_waiters(&mut member, GroupError::FencedInstanceId, step);
        self.membership_bytes -= member.profile.bytes();
        member.is_new = false;
        member.profile.id = id.clone();
        self.membership_bytes += member.profile.bytes();
        self.members.insert(id.clone(), member);
        self.static_members.insert(instance_id, id.clone());
        let was_leader = self.leader.as_ref() == Some(former);
        if was_leader {
            self.leader = Some(id.clone());
        }
        if let Some(round) = &mut self.syncing
            && round.awaited.remove(former)
        {
            round.awaited.insert(id.clone());
        }
        self.update_member(request, &id);
        self.touch(step.now, &id);

        if self.state != GroupState::Stable || protocol::select(self.offers()) != self.protocol {
            self.park_join(step, &id, waiter);
            return self.rebalance(step);
        }
        // The new id must outlive this coordinator, or the member would be fenced by its own past.
        let mut joined = self.joined(&id);
        if was_leader && request.can_skip_assignment {
            joined.skip_assignment = true;
        } else if was_leader {
            // An older client that is told to lead would assign anew, which nobody asks for.
            joined.leader = former.clone();
            joined.members.clear();
        }
        let metadata = self.metadata(&std::collections::BTreeMap::new());
        step.effects.push(Effect::Store { metadata, then: AfterStore::AnswerJoin { waiter, joined } });
    }
}
