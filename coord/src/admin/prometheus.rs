//! Metrics as Prometheus text: samples of all shards merged, one paragraph per metric.

use std::collections::BTreeMap;
use std::fmt::Write;

use hdrhistogram::Histogram;
use kaas_proto::metrics::{Labels, MetricKind, MetricName, ShardMetrics};

/// Upper bounds of histogram buckets, in microseconds: five per decade where latencies lie.
const BUCKETS_US: [u64; 19] = [
    50, 100, 200, 300, 500, 1_000, 2_000, 3_000, 5_000, 10_000, 20_000, 30_000, 50_000, 100_000, 300_000, 1_000_000,
    3_000_000, 10_000_000, 30_000_000,
];

enum Sample {
    Number(f64),
    Durations(Histogram<u64>),
}

/// Samples of several sources, added up by name and labels.
#[derive(Default)]
pub(super) struct Exposition {
    metrics: BTreeMap<MetricName, BTreeMap<Labels, Sample>>,
}

impl Exposition {
    /// Adds a counter or gauge.
    pub(super) fn number(&mut self, name: MetricName, labels: Labels, value: f64) {
        match self.metrics.entry(name).or_default().entry(labels).or_insert(Sample::Number(0.0)) {
            Sample::Number(sum) => *sum += value,
            Sample::Durations(_) => tracing::debug!(metric = name.name, "both a number and a histogram"),
        }
    }

    fn durations(&mut self, name: MetricName, labels: Labels, histogram: Histogram<u64>) {
        match self.metrics.entry(name).or_default().entry(labels) {
            std::collections::btree_map::Entry::Vacant(place) => {
                place.insert(Sample::Durations(histogram));
            }
            std::collections::btree_map::Entry::Occupied(mut sum) => {
                if let Sample::Durations(sum) = sum.get_mut()
                    && let Err(error) = sum.add(&histogram)
                {
                    tracing::debug!(metric = name.name, "a shard's histogram does not fit: {error}");
                }
            }
        }
    }

    /// Adds what one shard has counted.
    pub(super) fn shard(&mut self, metrics: ShardMetrics) {
        for (name, labels, value) in metrics.values {
            self.number(name, labels, value);
        }
        for (name, labels, histogram) in metrics.histograms {
            self.durations(name, labels, histogram);
        }
    }

    /// The text, in order of name and labels.
    pub(super) fn render(&self) -> String {
        let mut text = String::new();
        for (metric, samples) in &self.metrics {
            let kind = match metric.kind {
                MetricKind::Counter => "counter",
                MetricKind::Gauge => "gauge",
                MetricKind::Histogram => "histogram",
            };
            let name = metric.name;
            let _ = writeln!(text, "# HELP {name} {}", metric.help.replace('\\', "\\\\").replace('\n', "\\n"));
            let _ = writeln!(text, "# TYPE {name} {kind}");
            for (labels, sample) in samples {
                match sample {
                    Sample::Number(value) => {
                        let _ = writeln!(text, "{name}{} {value}", braces(labels, None));
                    }
                    Sample::Durations(histogram) => render_histogram(&mut text, name, labels, histogram),
                }
            }
        }
        text
    }
}

/// Durations were recorded in microseconds and are shown in seconds.
fn render_histogram(text: &mut String, name: &str, labels: &Labels, histogram: &Histogram<u64>) {
    let mut below = [0_u64; BUCKETS_US.len()];
    let mut sum_us = 0_u128;
    for step in histogram.iter_recorded() {
        let (value, count) = (step.value_iterated_to(), step.count_at_value());
        sum_us += u128::from(value) * u128::from(count);
        // The histogram rounds up; a value that was exactly a bound must stay below it.
        let value = histogram.lowest_equivalent(value);
        for (bound, total) in BUCKETS_US.iter().zip(&mut below) {
            if value <= *bound {
                *total += count;
            }
        }
    }
    for (bound, total) in BUCKETS_US.iter().zip(below) {
        let _ = writeln!(text, "{name}_bucket{} {total}", braces(labels, Some(&seconds(u128::from(*bound)))));
    }
    let _ = writeln!(text, "{name}_bucket{} {}", braces(labels, Some("+Inf")), histogram.len());
    let _ = writeln!(text, "{name}_sum{} {}", braces(labels, None), seconds(sum_us));
    let _ = writeln!(text, "{name}_count{} {}", braces(labels, None), histogram.len());
}

/// Exactly, without binary fractions.
fn seconds(micros: u128) -> String {
    let (whole, rest) = (micros / 1_000_000, micros % 1_000_000);
    if rest == 0 { whole.to_string() } else { format!("{whole}.{}", format!("{rest:06}").trim_end_matches('0')) }
}

fn braces(labels: &Labels, bound: Option<&str>) -> String {
    let labels = labels.iter().map(|(name, value)| (*name, value.as_str()));
    let mut pairs = labels.chain(bound.map(|bound| ("le", bound))).peekable();
    if pairs.peek().is_none() {
        return String::new();
    }
    let pair = |(name, value): (&str, &str)| {
        let value = value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
        format!("{name}=\"{value}\"")
    };
    format!("{{{}}}", pairs.map(pair).collect::<Vec<_>>().join(","))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]
    use super::*;

    const APPENDS: MetricName =
        MetricName { name: "kaas_appends_total", help: "Batches appended.", kind: MetricKind::Counter };
    const LATENCY: MetricName = MetricName {
        name: "kaas_request_duration_seconds",
        help: "From the last byte of a request to the last byte of its answer.",
        kind: MetricKind::Histogram,
    };

    fn shard(appends: f64, micros: &[u64]) -> ShardMetrics {
        let mut histogram = Histogram::new(3).unwrap();
        micros.iter().for_each(|&value| histogram.record(value).unwrap());
        ShardMetrics {
            values: vec![(APPENDS, vec![("topic", "a\"b".to_owned())], appends)],
            histograms: vec![(LATENCY, vec![("api", "Produce".to_owned())], histogram)],
        }
    }

    #[test]
    fn shards_are_merged_into_one_paragraph_per_metric() {
        let mut exposition = Exposition::default();
        exposition.shard(shard(2.0, &[90, 400, 1_000]));
        exposition.shard(shard(40.0, &[100, 2_000_000]));
        let golden = "\
# HELP kaas_appends_total Batches appended.
# TYPE kaas_appends_total counter
kaas_appends_total{topic=\"a\\\"b\"} 42
# HELP kaas_request_duration_seconds From the last byte of a request to the last byte of its answer.
# TYPE kaas_request_duration_seconds histogram
kaas_request_duration_seconds_bucket{api=\"Produce\",le=\"0.00005\"} 0
kaas_request_duration_seconds_bucket{api=\"Produce\",le=\"0.0001\"} 2
kaas_request_duration_seconds_bucket{api=\"Produce\",le=\"0.0002\"} 2
kaas_request_duration_seconds_bucket{api=\"Produce\",le=\"0.0003\"} 2
kaas_request_duration_seconds_bucket{api=\"Produce\",le=\"0.0005\"} 3
kaas_request_duration_seconds_bucket{api=\"Produce\",le=\"0.001\"} 4
kaas_request_duration_seconds_bucket{api=\"Produce\",le=\"0.002\"} 4
kaas_request_duration_seconds_bucket{api=\"Produce\",le=\"0.003\"} 4
kaas_request_duration_seconds_bucket{api=\"Produce\",le=\"0.005\"} 4
kaas_request_duration_seconds_bucket{api=\"Produce\",le=\"0.01\"} 4
kaas_request_duration_seconds_bucket{api=\"Produce\",le=\"0.02\"} 4
kaas_request_duration_seconds_bucket{api=\"Produce\",le=\"0.03\"} 4
kaas_request_duration_seconds_bucket{api=\"Produce\",le=\"0.05\"} 4
kaas_request_duration_seconds_bucket{api=\"Produce\",le=\"0.1\"} 4
kaas_request_duration_seconds_bucket{api=\"Produce\",le=\"0.3\"} 4
kaas_request_duration_seconds_bucket{api=\"Produce\",le=\"1\"} 4
kaas_request_duration_seconds_bucket{api=\"Produce\",le=\"3\"} 5
kaas_request_duration_seconds_bucket{api=\"Produce\",le=\"10\"} 5
kaas_request_duration_seconds_bucket{api=\"Produce\",le=\"30\"} 5
kaas_request_duration_seconds_bucket{api=\"Produce\",le=\"+Inf\"} 5
kaas_request_duration_seconds_sum{api=\"Produce\"} 2.002485
kaas_request_duration_seconds_count{api=\"Produce\"} 5
";
        assert_eq!(exposition.render(), golden);
    }

    #[test]
    fn numbers_without_labels_have_no_braces() {
        let mut exposition = Exposition::default();
        exposition.number(MetricName { name: "up", help: "Up.", kind: MetricKind::Gauge }, Vec::new(), 0.5);
        assert_eq!(exposition.render(), "# HELP up Up.\n# TYPE up gauge\nup 0.5\n");
    }
}
