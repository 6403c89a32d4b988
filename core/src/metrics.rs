//! What a shard counts.

use std::cell::{Cell, RefCell};

use hdrhistogram::Histogram;
use kaas_proto::metrics::{MetricKind, MetricName, ShardMetrics};

use crate::env::MonotonicTime;

macro_rules! counters {
    ($($(#[$doc:meta])* $field:ident: $kind:ident $name:literal, $help:literal;)*) => {
        /// Counters and gauges of one shard. Shard-local; read out with [`Counters::collect`].
        #[derive(Debug, Default)]
        pub struct Counters {
            $($(#[$doc])* pub $field: Count,)*
            /// How long writes of group commits took.
            pub write_time: Durations,
            /// How long asks took.
            pub ask_time: Durations,
        }

        impl Counters {
            /// Adds the present values.
            pub fn collect(&self, metrics: &mut ShardMetrics) {
                $(
                    const _: () = assert!(!$help.is_empty());
                    let name = MetricName { name: $name, help: $help, kind: MetricKind::$kind };
                    #[expect(clippy::cast_precision_loss, reason = "a metric of more than 2^53 may be off by one")]
                    metrics.values.push((name, Vec::new(), self.$field.get() as f64));
                )*
                metrics.histograms.push((WRITE_TIME, Vec::new(), self.write_time.0.borrow().clone()));
                metrics.histograms.push((ASK_TIME, Vec::new(), self.ask_time.0.borrow().clone()));
            }
        }
    };
}

const WRITE_TIME: MetricName = MetricName {
    name: "kaas_log_write_seconds",
    help: "How long the stable writes of group commits took.",
    kind: MetricKind::Histogram,
};
const ASK_TIME: MetricName = MetricName {
    name: "kaas_fence_ask_seconds",
    help: "How long reads of the own fence took.",
    kind: MetricKind::Histogram,
};

/// Longer durations count as this long: ten minutes, in microseconds.
const LONGEST_US: u64 = 600_000_000;

/// How long something took, in microseconds, to two digits.
#[derive(Debug)]
pub struct Durations(RefCell<Histogram<u64>>);

impl Default for Durations {
    fn default() -> Self {
        Self(RefCell::new(Histogram::new_with_bounds(1, LONGEST_US, 2).expect("the bounds are valid")))
    }
}

impl Durations {
    /// Notes the time between two points of the clock.
    pub fn record(&self, from: MonotonicTime, to: MonotonicTime) {
        let microseconds = to.0.saturating_sub(from.0) / 1000;
        self.0.borrow_mut().saturating_record(microseconds.clamp(1, LONGEST_US));
    }
}

/// A number that one shard changes.
#[derive(Debug, Default)]
pub struct Count(Cell<u64>);

impl Count {
    pub fn add(&self, count: u64) {
        self.0.set(self.0.get() + count);
    }

    pub fn set(&self, value: u64) {
        self.0.set(value);
    }

    #[must_use]
    pub fn get(&self) -> u64 {
        self.0.get()
    }
}

counters! {
    commits: Counter "kaas_log_commits_total", "Group commits written: one stable write each.";
    committed_bytes: Counter "kaas_log_committed_bytes_total", "Bytes of record batches in group commits.";
    committed_batches: Counter "kaas_log_committed_batches_total", "Record batches in group commits.";
    asks: Counter "kaas_fence_asks_total", "Reads of the own fence.";
    failed_writes: Counter "kaas_log_failed_writes_total", "Writes that failed and ended their epoch.";
    stalls: Counter "kaas_log_stalls_total", "Writes or asks that hung for longer than the limit.";
    commits_packed_ahead: Counter "kaas_log_commits_packed_ahead_total", "Group commits that were packed while the one before was written.";
    early_acknowledgements: Counter "kaas_log_early_acknowledgements_total", "Appends that flush.messages above 1 acknowledged before they were durable.";
    queue_full: Counter "kaas_append_queue_full_total", "Appends refused because too many bytes waited to be written.";
    duplicates: Counter "kaas_append_duplicates_total", "Repeated batches of idempotent producers, answered with their first offset.";
    segments_rolled: Counter "kaas_log_segments_rolled_total", "Segments begun because the one before was full or old.";
    cached_reads: Counter "kaas_fetch_cached_reads_total", "Reads of a partition that the tail cache answered.";
    volume_reads: Counter "kaas_fetch_volume_reads_total", "Reads of segments for fetches and look-ups.";
    volume_read_bytes: Counter "kaas_fetch_volume_read_bytes_total", "Bytes of segments read for fetches and look-ups.";
    reads_ahead: Counter "kaas_fetch_reads_ahead_total", "Reads of segments in front of sequential consumers.";
    segments_opened: Counter "kaas_log_segments_opened_total", "Older segments opened on demand.";
    /// Set when collected.
    segments_displaced: Counter "kaas_log_segments_displaced_total", "Older segments closed because too many were open.";
    active_segments_reopened: Counter "kaas_log_active_segments_reopened_total", "Segments opened again for an append or a read after they were closed although they are appended to.";
    /// Set when collected.
    active_segments_displaced: Counter "kaas_log_active_segments_displaced_total", "Segments that are appended to, closed because too many were open; their partitions go on being led.";
    /// Set when collected.
    segment_waits: Counter "kaas_log_segment_waits_total", "Opens of segments that waited because all that were open were in use.";
    segments_deleted: Counter "kaas_log_segments_deleted_total", "Segments unlinked, by retention, DeleteRecords or tidying.";
    compaction_passes: Counter "kaas_compaction_passes_total", "Passes of compaction that came to their end.";
    compaction_read_bytes: Counter "kaas_compaction_read_bytes_total", "Bytes of record batches that compaction read.";
    compaction_written_bytes: Counter "kaas_compaction_written_bytes_total", "Bytes of record batches that compaction wrote.";
    compaction_dropped_records: Counter "kaas_compaction_dropped_records_total", "Records and transaction markers that compaction dropped.";
    compaction_segments_replaced: Counter "kaas_compaction_segments_replaced_total", "Segments that compaction put others in the place of.";
    compaction_map_full: Counter "kaas_compaction_map_full_total", "Passes that ended early because the map of offsets was full.";
    compaction_failures: Counter "kaas_compaction_failures_total", "Passes that failed and will be tried again.";
    takeovers: Counter "kaas_partition_takeovers_total", "Takeovers that ended in leading.";
    takeover_failures: Counter "kaas_partition_takeover_failures_total", "Takeovers that failed.";
    superseded: Counter "kaas_partition_superseded_total", "Partitions found to have a leader with a higher epoch.";
    farewells_cut_short: Counter "kaas_partition_farewells_cut_short_total", "Partitions closed without persisting what they knew because the volume hung.";
    recovered_bytes: Counter "kaas_partition_recovered_bytes_total", "Bytes that recovery read and verified.";
    watchers_displaced: Counter "kaas_watchers_displaced_total", "Long polls that ended early because too many waited.";
    producers_displaced: Counter "kaas_partition_producers_displaced_total", "Idempotent producers forgotten before they expired because a partition had too many.";
    transactions_refused: Counter "kaas_append_transactions_refused_total", "Transactions that could not begin because a partition has too many that are open, or aborted and not deleted.";
    producer_id_queue_full: Counter "kaas_producer_id_queue_full_total", "Requests for a producer id refused because too many waited.";
    reserves_given_up: Counter "kaas_reserve_given_up_total", "Times that the reserve was given up because the volume was full.";
    reserve_refusals: Counter "kaas_reserve_refused_appends_total", "Appends refused because the reserve was not in place.";
    /// Set when collected.
    overslept: Counter "kaas_shard_overslept_total", "Looks at a shard that found it late, and woke it: its thread loses its processor to others, or something keeps it busy.";
    suppressed_log_lines: Counter "kaas_storage_log_lines_suppressed_total", "Log lines about failures of the volume that were only counted.";
    /// Set when collected.
    partitions_led: Gauge "kaas_partitions_led", "Partitions that this broker leads.";
    partitions_wanted: Gauge "kaas_partitions_wanted", "Partitions that this broker is told to lead.";
    partitions_stalled: Gauge "kaas_partitions_stalled", "Led partitions with a write that hangs.";
    clock_doubted: Gauge "kaas_clock_doubted", "1 while the wall clock is ahead of where it should be and deletes nothing.";
    watchers: Gauge "kaas_watchers", "Long polls that wait.";
    tail_cache_bytes: Gauge "kaas_tail_cache_bytes", "Memory of the tail cache.";
    read_ahead_bytes: Gauge "kaas_read_ahead_bytes", "Memory of what was read in front of sequential consumers.";
    reserve_bytes: Gauge "kaas_reserve_bytes", "Room on the volume that the reserve keeps; 0 on all shards: it is given up, or there is none.";
    cluster_reserve_bytes: Gauge "kaas_cluster_reserve_bytes", "The same on the volume of the cluster directory, if that is another one.";
    open_active_segments: Gauge "kaas_open_active_segments", "Segments held open that are appended to.";
    open_segments: Gauge "kaas_open_segments", "Older segments held open for reading.";
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_metric_has_its_own_name() {
        let mut metrics = ShardMetrics::default();
        let counters = Counters::default();
        counters.commits.add(2);
        counters.collect(&mut metrics);
        let names: std::collections::BTreeSet<_> = metrics.values.iter().map(|(name, _, _)| name.name).collect();
        assert_eq!(names.len(), metrics.values.len());
        assert!(metrics.values.iter().any(|(name, _, value)| name.name == "kaas_log_commits_total" && *value > 1.5));
        for (name, _, _) in &metrics.values {
            assert_eq!(name.name.ends_with("_total"), name.kind == MetricKind::Counter, "{}", name.name);
        }
    }
}
