//! What goes into a step of the state machine besides the request, and what comes out.

use std::time::Duration;

use bytes::Bytes;
use kaas_proto::types::{GenerationId, TimestampMs};

use super::config::GroupConfig;
use super::error::GroupError;
use super::ids::{InstanceId, MemberId, ProtocolName};
use super::metadata::GroupMetadata;
use crate::env::MonotonicTime;

/// One moment, on all clocks: monotonic for timers, wall-clock for what is stored and shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Now {
    pub monotonic: MonotonicTime,
    pub wall: TimestampMs,
    /// The wall clock as far as something may be deleted because of it.
    pub believed: TimestampMs,
}

impl Now {
    /// The point of the monotonic clock that lies so much later.
    #[must_use]
    pub fn after(self, duration: Duration) -> MonotonicTime {
        let nanoseconds = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        MonotonicTime(self.monotonic.0.saturating_add(nanoseconds))
    }
}

/// A request that is not answered yet. The driver of the machine knows whose it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Waiter(pub u64);

/// What is to be done after a step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    AnswerJoin {
        waiter: Waiter,
        answer: Result<Joined, JoinRefused>,
    },
    AnswerSync {
        waiter: Waiter,
        answer: Result<Synced, GroupError>,
    },
    /// Make the membership durable, then go on as it says.
    Store {
        metadata: GroupMetadata,
        then: AfterStore,
    },
}

/// What depends on a membership's being durable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AfterStore {
    Nothing,
    /// Call [`Group::assignment_stored`] with the generation.
    Assign {
        generation: GenerationId,
    },
    /// Give this answer.
    AnswerJoin {
        waiter: Waiter,
        joined: Joined,
    },
}

/// A JoinGroup that succeeded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Joined {
    pub member_id: MemberId,
    pub generation: GenerationId,
    pub protocol_type: Option<ProtocolName>,
    pub protocol: Option<ProtocolName>,
    pub leader: MemberId,
    /// KIP-814: a static leader that came back need not assign anew.
    pub skip_assignment: bool,
    /// For the leader only.
    pub members: Vec<JoinedMember>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JoinedMember {
    pub id: MemberId,
    pub instance_id: Option<InstanceId>,
    /// For the generation's protocol.
    pub metadata: Bytes,
}

/// A JoinGroup that was refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JoinRefused {
    pub error: GroupError,
    /// With [`GroupError::MemberIdRequired`], the id to join with; otherwise the member's, if the request may not know it.
    pub member_id: Option<MemberId>,
}

impl From<GroupError> for JoinRefused {
    fn from(error: GroupError) -> Self {
        Self { error, member_id: None }
    }
}

/// A SyncGroup that succeeded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Synced {
    pub protocol_type: Option<ProtocolName>,
    pub protocol: Option<ProtocolName>,
    pub assignment: Bytes,
}

/// What a step sees of its surroundings, and where its effects go.
#[derive(Debug)]
pub struct Step<'a> {
    pub now: Now,
    pub config: &'a GroupConfig,
    pub counters: &'a mut GroupCounters,
    pub effects: &'a mut Vec<Effect>,
}

/// What the machines of a shard count.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GroupCounters {
    /// Generations that began.
    pub rebalances: u64,
    /// Members that were not heard of in time, in whichever phase.
    pub expired_members: u64,
    /// Joins refused because of `group.max.size` or [`membership_bytes`](super::config::GroupLimits::membership_bytes).
    pub joins_over_limit: u64,
    /// Member ids taken back because of [`pending_members`](super::config::GroupLimits::pending_members).
    pub pending_over_limit: u64,
}
