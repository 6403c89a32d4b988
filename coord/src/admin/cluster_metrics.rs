//! What a broker of a cluster counts.

use kaas_proto::metrics::MetricName;

use super::prometheus::Exposition;
use crate::cluster::ClusterHealth;

const CONTROLLER: MetricName = MetricName::gauge("kaas_cluster_controller", "1 while this broker is the controller.");
const CONNECTED: MetricName =
    MetricName::gauge("kaas_cluster_heartbeat_connected", "1 while this broker has a session with the controller.");
const HEALTHY: MetricName = MetricName::gauge("kaas_cluster_healthy", "1 while this broker thinks itself fit to lead.");
const EPOCH: MetricName =
    MetricName::gauge("kaas_cluster_assignment_controller_epoch", "Of the assignment that this broker follows.");
const VERSION: MetricName =
    MetricName::gauge("kaas_cluster_assignment_version", "Of the assignment that this broker follows.");
const VOLUME_AGE: MetricName = MetricName::gauge(
    "kaas_cluster_volume_silent_seconds",
    "Since the volume has last answered a look at the assignment.",
);
const WRITTEN: MetricName = MetricName::counter(
    "kaas_cluster_assignments_written_total",
    "Assignments that this broker wrote as the controller.",
);
const BEHIND: MetricName = MetricName::gauge(
    "kaas_cluster_followers_behind",
    "Brokers that have not followed an assignment which this broker, the controller, wrote seconds ago.",
);
const REJECTED: MetricName = MetricName::counter(
    "kaas_cluster_stale_assignments_total",
    "Assignments of deposed controllers that were found and ignored.",
);
const FORGOTTEN: MetricName = MetricName::counter(
    "kaas_cluster_releases_forgotten_total",
    "Times that too many partitions were let go of ahead of the assignment: their new leaders waited.",
);

#[expect(clippy::cast_precision_loss, reason = "metrics are floating point")]
pub(super) fn add(exposition: &mut Exposition, health: &ClusterHealth) {
    let numbers = health.numbers();
    let flag = |flag: bool| f64::from(u8::from(flag));
    for (name, value) in [
        (CONTROLLER, flag(numbers.controller)),
        (CONNECTED, flag(numbers.connected)),
        (HEALTHY, flag(numbers.healthy)),
        (EPOCH, f64::from(numbers.controller_epoch)),
        (VERSION, numbers.assignment_version as f64),
        (VOLUME_AGE, numbers.volume_silent.as_secs_f64()),
        (WRITTEN, numbers.written as f64),
        (BEHIND, numbers.followers_behind as f64),
        (REJECTED, numbers.rejected as f64),
        (FORGOTTEN, numbers.forgotten_releases as f64),
    ] {
        exposition.number(name, Vec::new(), value);
    }
}
