//! Settings and bounds of the coordinator.

use std::time::Duration;

use kaas_proto::config::broker::BrokerConfig;

/// A member that joins for the first time can't send heartbeats while it waits and may be gone unnoticed: this long.
pub const NEW_MEMBER_JOIN_TIMEOUT: Duration = Duration::from_secs(300);

/// The `group.*` and `offsets.*` settings that the coordinator follows, under Kafka's names and with its defaults.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupConfig {
    /// `group.initial.rebalance.delay.ms`
    pub initial_rebalance_delay: Duration,
    /// `group.min.session.timeout.ms`
    pub min_session_timeout: Duration,
    /// `group.max.session.timeout.ms`
    pub max_session_timeout: Duration,
    /// `group.max.size`, in members
    pub max_size: usize,
    /// `offset.metadata.max.bytes`
    pub max_offset_metadata_bytes: usize,
    /// `offsets.retention.minutes`
    pub offsets_retention: Duration,
    /// `offsets.retention.check.interval.ms`
    pub offsets_retention_check_interval: Duration,
    pub limits: GroupLimits,
    pub snapshots: SnapshotPolicy,
}

/// How a slot keeps its log short.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SnapshotPolicy {
    /// A snapshot is due after this much log, or twice the size of the last one if that is more.
    pub after_bytes: usize,
    /// How much of a snapshot is taken at a time. A single larger group is taken whole.
    pub chunk_bytes: usize,
}

impl Default for SnapshotPolicy {
    fn default() -> Self {
        Self { after_bytes: 8 << 20, chunk_bytes: 1 << 20 }
    }
}

/// Bounds of what clients can make the coordinator hold. Reaching one is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupLimits {
    /// Groups with members, per shard. Joins to more are refused as retriable.
    pub active_groups: usize,
    /// Members, and ids that were handed out to become some, of all groups, per shard. More are refused as retriable.
    pub members: usize,
    /// Groups with anything stored, per shard. First commits of more are refused as retriable.
    pub durable_groups: usize,
    /// Committed offsets in memory, per shard.
    pub offsets: usize,
    /// Partitions that one OffsetCommit or OffsetFetch may name of a group.
    pub partitions_per_request: usize,
    /// JoinGroup and SyncGroup requests that wait, per shard.
    pub parked_requests: usize,
    /// Bytes of all texts and blobs that clients have the groups remember, per shard: names, subscriptions, assignments,
    /// metadata of offsets. What would add more is refused as retriable; who has a place keeps it.
    pub held_bytes: usize,
    /// Bytes that wait to be written, per shard. Commits beyond are refused as retriable.
    pub queued_bytes: usize,
    /// Bytes of subscriptions and assignments of one group: they must fit one record.
    pub membership_bytes: usize,
    /// Protocols that one member may offer; clients offer one to three.
    pub protocols: usize,
    /// Member ids of one group that were handed out and not used yet. The oldest makes room.
    pub pending_members: usize,
}

impl Default for GroupLimits {
    fn default() -> Self {
        Self {
            active_groups: 100_000,
            members: 500_000,
            durable_groups: 200_000,
            offsets: 4_000_000,
            partitions_per_request: 1_000_000,
            parked_requests: 100_000,
            held_bytes: 256 << 20,
            queued_bytes: 64 << 20,
            membership_bytes: 16 << 20,
            protocols: 100,
            pending_members: 10_000,
        }
    }
}

impl From<&BrokerConfig> for GroupConfig {
    fn from(broker: &BrokerConfig) -> Self {
        Self {
            initial_rebalance_delay: broker.group_initial_rebalance_delay,
            min_session_timeout: broker.group_min_session_timeout,
            max_session_timeout: broker.group_max_session_timeout,
            max_size: broker.group_max_size,
            max_offset_metadata_bytes: broker.offset_metadata_max_bytes,
            offsets_retention: broker.offsets_retention,
            offsets_retention_check_interval: broker.offsets_retention_check_interval,
            limits: GroupLimits::default(),
            snapshots: SnapshotPolicy::default(),
        }
    }
}

impl Default for GroupConfig {
    fn default() -> Self {
        Self::from(&BrokerConfig::default())
    }
}
