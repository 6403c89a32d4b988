//! Settings and bounds of the coordinator.

use std::time::Duration;

use kaas_proto::config::broker::BrokerConfig;

/// How many groups one shard coordinates at most; more joins and first commits are refused as retriable.
pub const MAX_GROUPS_PER_SHARD: usize = 100_000;
/// How many JoinGroup and SyncGroup requests may wait on one shard.
pub const MAX_PARKED_REQUESTS_PER_SHARD: usize = 100_000;
/// Bytes of subscriptions and assignments that one group may hold: they must fit one record.
pub const MAX_MEMBERSHIP_BYTES: usize = 16 << 20;
/// How many member ids of one group may be handed out without having been used. The oldest makes room.
pub const MAX_PENDING_MEMBERS: usize = 10_000;
/// How many committed offsets one shard keeps in memory.
pub const MAX_OFFSETS_PER_SHARD: usize = 4_000_000;
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
        }
    }
}

impl Default for GroupConfig {
    fn default() -> Self {
        Self::from(&BrokerConfig::default())
    }
}
