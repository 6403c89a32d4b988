//! What the control thread itself counts.

use kaas_proto::metrics::MetricName;

use super::Facts;
use super::prometheus::Exposition;
use crate::cluster_state::ClusterState;

const BUILD: MetricName = MetricName::gauge("kaas_build_info", "Always 1; the labels say what runs.");
const UPTIME: MetricName = MetricName::gauge("kaas_uptime_seconds", "Since the process started.");
const TOPICS: MetricName = MetricName::gauge("kaas_topics", "Topics of the cluster.");
const PARTITIONS: MetricName = MetricName::gauge(
    "kaas_partitions",
    "Partitions and coordinator slots that this broker is to lead, by how far they are.",
);
const STALLED: MetricName =
    MetricName::gauge("kaas_storage_stalled_partitions", "Partitions of which a write has been hanging for too long.");
const SILENT: MetricName = MetricName::gauge(
    "kaas_silent_shards",
    "Shards that did not answer this scrape in time; their samples are missing in it.",
);
const REFUSED: MetricName = MetricName::counter(
    "kaas_admin_connections_refused_total",
    "Connections to the admin endpoint that were closed because too many were open.",
);
const DROPPED: MetricName = MetricName::counter(
    "kaas_admin_connections_dropped_total",
    "Connections to the admin endpoint that kept it waiting and made room for another one.",
);
const REFUSED_COMMANDS: MetricName =
    MetricName::counter("kaas_shard_commands_refused_total", "Commands that found the outbox of their shard full.");

/// How often a bound was reached.
pub(super) struct Bounds {
    pub(super) silent_shards: usize,
    pub(super) refused_connections: u64,
    pub(super) dropped_connections: u64,
    pub(super) refused_commands: u64,
}

pub(super) fn add(exposition: &mut Exposition, state: &ClusterState, facts: &Facts, bounds: Bounds) {
    let counts = state.leadership().counts();
    let build = vec![("version", facts.version.to_owned()), ("mode", facts.mode.to_owned())];
    exposition.number(BUILD, build, 1.0);
    exposition.number(UPTIME, Vec::new(), facts.started.elapsed().as_secs_f64());
    exposition.number(TOPICS, Vec::new(), count(state.view().topics.len()));
    for (progress, partitions) in [
        ("waiting", counts.waiting),
        ("leading", counts.leading),
        ("failed", counts.failed),
        ("superseded", counts.superseded),
    ] {
        exposition.number(PARTITIONS, vec![("state", progress.to_owned())], count(partitions));
    }
    for (name, value) in [
        (STALLED, count(counts.stalled)),
        (SILENT, count(bounds.silent_shards)),
        (REFUSED, total(bounds.refused_connections)),
        (DROPPED, total(bounds.dropped_connections)),
        (REFUSED_COMMANDS, total(bounds.refused_commands)),
    ] {
        exposition.number(name, Vec::new(), value);
    }
}

#[expect(clippy::cast_precision_loss, reason = "metrics are floating point")]
fn total(number: u64) -> f64 {
    number as f64
}

/// Exact up to 2^53.
#[expect(clippy::cast_precision_loss, reason = "metrics are floating point")]
fn count(number: usize) -> f64 {
    number as f64
}
