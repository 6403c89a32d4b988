//! What the coordinator of a shard holds and has counted, over all its slots.

use std::cell::{Cell, RefCell};

use kaas_proto::metrics::{MetricName, ShardMetrics};

use super::config::GroupConfig;
use super::effect::GroupCounters;

/// What takes memory; each has a bound.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Groups with members, or about to have some.
    pub active_groups: usize,
    /// Their members, with those that are about to become some.
    pub members: usize,
    /// Groups with offsets or a stored membership.
    pub durable_groups: usize,
    pub offsets: usize,
    pub parked_requests: usize,
    /// Of texts and blobs.
    pub held_bytes: usize,
    /// Waiting to be written.
    pub queued_bytes: usize,
}

/// What happened. Grows only.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    pub groups: GroupCounters,
    pub committed_offsets: u64,
    pub expired_offsets: u64,
    pub snapshots: u64,
    pub replayed_records: u64,
    pub failed_loads: u64,
    /// Requests refused because of a bound.
    pub groups_over_limit: u64,
    pub members_over_limit: u64,
    pub offsets_over_limit: u64,
    pub parked_over_limit: u64,
    pub bytes_over_limit: u64,
    pub queue_over_limit: u64,
}

/// Shared by the slots of one shard.
#[derive(Debug, Default)]
pub struct Shared {
    pub config: GroupConfig,
    pub counters: RefCell<Counters>,
    usage: Cell<Usage>,
}

const ACTIVE: MetricName = MetricName::gauge("kaas_group_active_groups", "Consumer groups with members.");
const MEMBERS: MetricName = MetricName::gauge("kaas_group_members", "Members of consumer groups.");
const DURABLE: MetricName =
    MetricName::gauge("kaas_group_stored_groups", "Consumer groups with offsets or a stored membership.");
const OFFSETS: MetricName = MetricName::gauge("kaas_group_offsets", "Committed offsets in memory.");
const PARKED: MetricName =
    MetricName::gauge("kaas_group_parked_requests", "JoinGroup and SyncGroup requests that wait.");
const HELD_BYTES: MetricName = MetricName::gauge(
    "kaas_group_held_bytes",
    "Bytes of names, subscriptions, assignments and metadata that groups hold.",
);
const REBALANCES: MetricName = MetricName::counter("kaas_group_rebalances_total", "Generations that began.");
const EXPIRED_MEMBERS: MetricName =
    MetricName::counter("kaas_group_expired_members_total", "Members that were not heard of in time.");
const COMMITTED: MetricName =
    MetricName::counter("kaas_group_committed_offsets_total", "Offsets that were committed durably.");
const EXPIRED_OFFSETS: MetricName =
    MetricName::counter("kaas_group_expired_offsets_total", "Offsets kept for their whole retention.");
const SNAPSHOTS: MetricName =
    MetricName::counter("kaas_group_snapshots_total", "Snapshots of slots that were completed.");
const REPLAYED: MetricName =
    MetricName::counter("kaas_group_replayed_records_total", "Records read when slots were taken over.");
const FAILED_LOADS: MetricName =
    MetricName::counter("kaas_group_failed_loads_total", "Attempts to read a slot that failed.");
const REFUSED: MetricName = MetricName::counter("kaas_group_refusals_total", "Requests refused because of a bound.");

impl Shared {
    #[must_use]
    pub fn new(config: GroupConfig) -> Self {
        Self { config, ..Self::default() }
    }

    /// The sum over all slots.
    #[must_use]
    pub fn usage(&self) -> Usage {
        self.usage.get()
    }

    /// One slot's part has changed.
    pub fn replace(&self, former: Usage, new: Usage) {
        let total = self.usage.get();
        self.usage.set(Usage {
            active_groups: total.active_groups - former.active_groups + new.active_groups,
            members: total.members - former.members + new.members,
            durable_groups: total.durable_groups - former.durable_groups + new.durable_groups,
            offsets: total.offsets - former.offsets + new.offsets,
            parked_requests: total.parked_requests - former.parked_requests + new.parked_requests,
            held_bytes: total.held_bytes - former.held_bytes + new.held_bytes,
            queued_bytes: total.queued_bytes - former.queued_bytes + new.queued_bytes,
        });
    }

    /// Adds what is counted here.
    #[expect(clippy::cast_precision_loss, reason = "metrics are floating-point numbers")]
    pub fn report(&self, metrics: &mut ShardMetrics) {
        let usage = self.usage.get();
        let counters = *self.counters.borrow();
        let mut add = |name, value: u64| metrics.values.push((name, Vec::new(), value as f64));
        add(ACTIVE, usage.active_groups as u64);
        add(MEMBERS, usage.members as u64);
        add(DURABLE, usage.durable_groups as u64);
        add(OFFSETS, usage.offsets as u64);
        add(PARKED, usage.parked_requests as u64);
        add(HELD_BYTES, usage.held_bytes as u64);
        add(REBALANCES, counters.groups.rebalances);
        add(EXPIRED_MEMBERS, counters.groups.expired_members);
        add(COMMITTED, counters.committed_offsets);
        add(EXPIRED_OFFSETS, counters.expired_offsets);
        add(SNAPSHOTS, counters.snapshots);
        add(REPLAYED, counters.replayed_records);
        add(FAILED_LOADS, counters.failed_loads);
        for (bound, value) in [
            ("group_size", counters.groups.joins_over_limit),
            ("members", counters.members_over_limit),
            ("pending_members", counters.groups.pending_over_limit),
            ("groups", counters.groups_over_limit),
            ("offsets", counters.offsets_over_limit),
            ("parked_requests", counters.parked_over_limit),
            ("held_bytes", counters.bytes_over_limit),
            ("queued_bytes", counters.queue_over_limit),
        ] {
            metrics.values.push((REFUSED, vec![("bound", bound.to_owned())], value as f64));
        }
    }
}
