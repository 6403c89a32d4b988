//! A member of a group, with what the coordinator waits for from it.

use crate::env::MonotonicTime;

use super::effect::Waiter;
use super::metadata::MemberProfile;

/// Shard-local. The profile is durable after each rebalance; the rest ends with the leadership of the slot.
#[derive(Clone, Debug)]
pub struct Member {
    pub profile: MemberProfile,
    /// Rises with each new member of the group: who was first becomes leader.
    pub arrival: u64,
    /// When the member is taken for dead unless it is heard of. Not followed while a request of it is parked.
    pub session_due: MonotonicTime,
    /// In its first join: see [`super::config::NEW_MEMBER_JOIN_TIMEOUT`].
    pub is_new: bool,
    /// A parked JoinGroup.
    pub joining: Option<Waiter>,
    /// A parked SyncGroup.
    pub syncing: Option<Waiter>,
}

impl Member {
    /// Whether the session clock may end the membership: not while the member waits for us.
    #[must_use]
    pub fn can_expire(&self) -> bool {
        self.is_new || (self.joining.is_none() && self.syncing.is_none())
    }

    #[must_use]
    pub fn has_expired(&self, now: MonotonicTime) -> bool {
        self.can_expire() && self.session_due <= now
    }
}
