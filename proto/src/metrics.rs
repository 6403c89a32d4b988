//! Metrics as plain values: each shard and the control thread hand in samples, the admin endpoint merges and renders them.

use hdrhistogram::Histogram;

/// A name, its unit in the name, and what it means. Declared once, as a constant beside the code that counts.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Clone, Copy)]
pub struct MetricName {
    /// `kaas_<noun>_<unit>`, counters with `_total`.
    pub name: &'static str,
    pub help: &'static str,
    pub kind: MetricKind,
}

impl MetricName {
    #[must_use]
    pub const fn counter(name: &'static str, help: &'static str) -> Self {
        Self { name, help, kind: MetricKind::Counter }
    }

    #[must_use]
    pub const fn gauge(name: &'static str, help: &'static str) -> Self {
        Self { name, help, kind: MetricKind::Gauge }
    }
}

#[derive(Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Clone, Copy)]
pub enum MetricKind {
    /// Only rises; shards are added up.
    Counter,
    /// Rises and falls; shards are added up.
    Gauge,
    /// Durations recorded in microseconds, rendered in seconds; shards are merged.
    Histogram,
}

/// Label names and values, in rendering order.
pub type Labels = Vec<(&'static str, String)>;

/// What one shard has counted. Crosses from a shard to the control thread.
#[derive(Clone, Debug, Default)]
pub struct ShardMetrics {
    pub values: Vec<(MetricName, Labels, f64)>,
    pub histograms: Vec<(MetricName, Labels, Histogram<u64>)>,
}
