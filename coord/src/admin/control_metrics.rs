//! What the control thread itself counts.

use kaas_proto::metrics::{MetricKind, MetricName};

use super::Facts;
use super::prometheus::Exposition;
use crate::cluster_state::ClusterState;

const fn gauge(name: &'static str, help: &'static str) -> MetricName {
    MetricName { name, help, kind: MetricKind::Gauge }
}

const BUILD: MetricName = gauge("kaas_build_info", "Always 1; the labels say what runs.");
const UPTIME: MetricName = gauge("kaas_uptime_seconds", "Since the process started.");
const TOPICS: MetricName = gauge("kaas_topics", "Topics of the cluster.");
const PARTITIONS: MetricName =
    gauge("kaas_partitions", "Partitions and coordinator slots that this broker is to lead, by how far they are.");
const STALLED: MetricName =
    gauge("kaas_storage_stalled_partitions", "Partitions of which a write has been hanging for too long.");
const SILENT: MetricName =
    gauge("kaas_silent_shards", "Shards that did not answer this scrape in time; their samples are missing in it.");
const REFUSED: MetricName = MetricName {
    name: "kaas_admin_connections_refused_total",
    help: "Connections to the admin endpoint that were closed because too many were open.",
    kind: MetricKind::Counter,
};

const DROPPED: MetricName = MetricName {
    name: "kaas_admin_connections_dropped_total",
    help: "Connections to the admin endpoint that kept it waiting and made room for another one.",
    kind: MetricKind::Counter,
};

const REFUSED_COMMANDS: MetricName = MetricName {
    name: "kaas_shard_commands_refused_total",
    help: "Commands that found the outbox of their shard full.",
    kind: MetricKind::Counter,
};

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
    exposition.number(STALLED, Vec::new(), count(counts.stalled));
    exposition.number(SILENT, Vec::new(), count(bounds.silent_shards));
    exposition.number(REFUSED, Vec::new(), total(bounds.refused_connections));
    exposition.number(DROPPED, Vec::new(), total(bounds.dropped_connections));
    exposition.number(REFUSED_COMMANDS, Vec::new(), total(bounds.refused_commands));
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
