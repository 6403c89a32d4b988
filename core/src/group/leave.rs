//! Signs of life and of the opposite: Heartbeat, the fence of OffsetCommit, LeaveGroup.

use kaas_proto::types::GenerationId;

use super::effect::Step;
use super::error::GroupError;
use super::ids::{InstanceId, MemberId};
use super::phase::GroupState;
use super::state::Group;

/// Who sends a heartbeat or a commit, as the request says it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sender {
    /// `None`: not a member, as with `assign()`.
    pub member_id: Option<MemberId>,
    pub instance_id: Option<InstanceId>,
    /// Negative: none.
    pub generation: GenerationId,
}

/// One member of a LeaveGroup. An administrator may know the instance id only.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Leaving {
    pub member_id: Option<MemberId>,
    pub instance_id: Option<InstanceId>,
}

impl Group {
    /// The member is alive; it learns whether it has to join again.
    ///
    /// # Errors
    /// [`GroupError::RebalanceInProgress`] is the call to join; the others say that the sender is not a member (any more).
    pub fn heartbeat(&mut self, step: &Step<'_>, sender: &Sender) -> Result<(), GroupError> {
        if self.state == GroupState::Dead {
            return Err(GroupError::CoordinatorNotAvailable);
        }
        self.check_member(sender)?;
        self.touch_sender(step, sender);
        match self.state {
            GroupState::PreparingRebalance => Err(GroupError::RebalanceInProgress),
            // CompletingRebalance: a member has its JoinGroup answer and sends the heartbeat beside its SyncGroup.
            _ => Ok(()),
        }
    }

    /// Whether the sender may commit offsets. A commit is a sign of life too.
    ///
    /// # Errors
    /// The sender is not a member of the current generation, or there are members and it is none.
    pub fn check_commit(&mut self, step: &Step<'_>, sender: &Sender) -> Result<(), GroupError> {
        let anonymous = sender.member_id.is_none() && sender.instance_id.is_none();
        match self.state {
            GroupState::Dead => return Err(GroupError::CoordinatorNotAvailable),
            GroupState::Empty if sender.generation.0 < 0 => return Ok(()),
            _ if anonymous && sender.generation.0 < 0 => return Err(GroupError::UnknownMemberId),
            _ => {}
        }
        self.check_member(sender)?;
        self.touch_sender(step, sender);
        match self.state {
            // It knows the new generation but not its assignment: what it commits belongs to the former one.
            GroupState::CompletingRebalance => Err(GroupError::RebalanceInProgress),
            _ => Ok(()),
        }
    }

    /// Members leave; each gets its own answer.
    pub fn leave(&mut self, step: &mut Step<'_>, leaving: &[Leaving]) -> Vec<Result<(), GroupError>> {
        let members_before = self.members.len();
        let outcomes = leaving.iter().map(|one| self.leave_one(step, one)).collect();
        self.membership_shrank(step, self.members.len() < members_before);
        outcomes
    }

    fn leave_one(&mut self, step: &mut Step<'_>, leaving: &Leaving) -> Result<(), GroupError> {
        if self.state == GroupState::Dead {
            return Err(GroupError::CoordinatorNotAvailable);
        }
        let id = match (&leaving.member_id, &leaving.instance_id) {
            (None, None) => return Err(GroupError::UnknownMemberId),
            (None, Some(instance_id)) => {
                self.static_members.get(instance_id).ok_or(GroupError::UnknownMemberId)?.clone()
            }
            (Some(id), None) if self.pending.remove(id).is_some() => return Ok(()),
            (Some(id), instance_id) => {
                self.check_identity(id, instance_id.as_ref())?;
                id.clone()
            }
        };
        tracing::debug!(group = %self.id, member = %id, "member leaves");
        self.remove_member(step, &id);
        Ok(())
    }

    fn check_member(&self, sender: &Sender) -> Result<(), GroupError> {
        let nobody = MemberId::from("");
        self.check_identity(sender.member_id.as_ref().unwrap_or(&nobody), sender.instance_id.as_ref())?;
        if sender.generation == self.generation { Ok(()) } else { Err(GroupError::IllegalGeneration) }
    }

    fn touch_sender(&mut self, step: &Step<'_>, sender: &Sender) {
        if let Some(id) = &sender.member_id {
            self.touch(step.now, id);
        }
    }
}
