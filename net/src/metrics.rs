//! What the network side of a shard counts. Shard-local; the control thread gets copies and merges them over shards.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::time::Duration;

use hdrhistogram::Histogram;
use kaas_proto::kafka::{Api, ApiKey};
use kaas_proto::metrics::{MetricKind, MetricName, ShardMetrics};

/// Latency of requests, by API.
pub const REQUEST_SECONDS: MetricName = MetricName {
    name: "kaas_request_seconds",
    help: "From the last byte of a request to the last byte of its response, waiting for records or members included.",
    kind: MetricKind::Histogram,
};
/// Requests, by API and version.
pub const REQUESTS: MetricName = MetricName::counter("kaas_requests_total", "Requests answered, by API and version.");
/// Open connections.
pub const CONNECTIONS: MetricName = MetricName::gauge("kaas_connections", "Open connections of clients.");
/// Accepted connections.
pub const ACCEPTED: MetricName =
    MetricName::counter("kaas_connections_accepted_total", "Connections accepted, by listener.");
/// Closed connections, by reason.
pub const CLOSED: MetricName = MetricName::counter("kaas_connections_closed_total", "Connections closed, by reason.");
/// Bytes received.
pub const RECEIVED_BYTES: MetricName = MetricName::counter("kaas_received_bytes_total", "Bytes received from clients.");
/// Bytes sent.
pub const SENT_BYTES: MetricName = MetricName::counter("kaas_sent_bytes_total", "Bytes sent to clients.");
/// System calls that sent something.
pub const SENDS: MetricName =
    MetricName::counter("kaas_socket_sends_total", "System calls that sent something to a client.");
/// A bound was reached, by bound.
pub const BOUND_REACHED: MetricName =
    MetricName::counter("kaas_net_bound_reached_total", "How often a bound of the network side was reached, by bound.");
/// Log lines that were only counted, by cause.
pub const SUPPRESSED_LINES: MetricName =
    MetricName::counter("kaas_log_lines_suppressed_total", "Log lines about clients that were only counted, by cause.");
/// Open fetch sessions.
pub const FETCH_SESSIONS: MetricName = MetricName::gauge("kaas_fetch_sessions", "Open fetch sessions (KIP-227).");

/// The bounds that are counted when they are reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Bound {
    ConnectionRequests,
    ShardRequestBytes,
    ShardWorkingBytes,
    ShardResponseBytes,
    ShardReplyBytes,
    ShardQueue,
    ShardQueueWait,
    ControlQueue,
    FetchSessions,
    Connections,
    ConnectionsPerIp,
    OpenFiles,
}

impl Bound {
    pub(crate) fn label(self) -> &'static str {
        match self {
            Self::ConnectionRequests => "connection_requests",
            Self::ShardRequestBytes => "shard_request_bytes",
            Self::ShardWorkingBytes => "shard_working_bytes",
            Self::ShardResponseBytes => "shard_response_bytes",
            Self::ShardReplyBytes => "shard_reply_bytes",
            Self::ShardQueue => "shard_queue",
            Self::ShardQueueWait => "shard_queue_wait",
            Self::ControlQueue => "control_queue",
            Self::FetchSessions => "fetch_sessions",
            Self::Connections => "max_connections",
            Self::ConnectionsPerIp => "max_connections_per_ip",
            Self::OpenFiles => "open_files",
        }
    }
}

/// Latencies up to this are told apart; longer ones count as this. A group may rebalance for minutes.
const LONGEST: Duration = Duration::from_secs(600);
/// Two significant digits: 1 % of error for 20 KiB per API in use.
const SIGNIFICANT_DIGITS: u8 = 2;

/// The counters of one shard.
#[derive(Debug, Default)]
pub struct NetMetrics {
    latencies: RefCell<BTreeMap<ApiKey, Histogram<u64>>>,
    requests: RefCell<BTreeMap<(ApiKey, i16), u64>>,
    accepted: RefCell<BTreeMap<String, u64>>,
    closed: RefCell<BTreeMap<&'static str, u64>>,
    bounds: RefCell<BTreeMap<Bound, u64>>,
    suppressed_lines: RefCell<BTreeMap<&'static str, u64>>,
    pub(crate) connections: Cell<usize>,
    pub(crate) fetch_sessions: Cell<usize>,
    pub(crate) received_bytes: Cell<u64>,
    pub(crate) sent_bytes: Cell<u64>,
    pub(crate) sends: Cell<u64>,
}

pub(crate) fn add(counter: &Cell<u64>, amount: u64) {
    counter.set(counter.get() + amount);
}

impl NetMetrics {
    pub(crate) fn answered(&self, api: &Api, version: i16, latency: Duration) {
        let micros = u64::try_from(latency.min(LONGEST).as_micros()).expect("ten minutes fit").max(1);
        let longest = u64::try_from(LONGEST.as_micros()).expect("ten minutes fit");
        let mut latencies = self.latencies.borrow_mut();
        let histogram = latencies.entry(api.key).or_insert_with(|| {
            Histogram::new_with_max(longest, SIGNIFICANT_DIGITS).expect("the bounds of the histogram are accepted")
        });
        histogram.saturating_record(micros);
        *self.requests.borrow_mut().entry((api.key, version)).or_default() += 1;
    }

    pub(crate) fn accepted(&self, listener: &str) {
        let mut accepted = self.accepted.borrow_mut();
        match accepted.get_mut(listener) {
            Some(count) => *count += 1,
            None => {
                accepted.insert(listener.to_owned(), 1);
            }
        }
    }

    pub(crate) fn closed(&self, reason: &'static str) {
        *self.closed.borrow_mut().entry(reason).or_default() += 1;
    }

    pub(crate) fn reached(&self, bound: Bound) {
        *self.bounds.borrow_mut().entry(bound).or_default() += 1;
    }

    pub(crate) fn suppressed_line(&self, cause: &'static str) {
        *self.suppressed_lines.borrow_mut().entry(cause).or_default() += 1;
    }

    /// Adds everything to a shard's snapshot.
    pub fn add_to(&self, snapshot: &mut ShardMetrics) {
        #[expect(clippy::cast_precision_loss, reason = "Prometheus counts in floating point")]
        let mut value = |name, labels, value: u64| snapshot.values.push((name, labels, value as f64));
        value(CONNECTIONS, vec![], self.connections.get() as u64);
        value(FETCH_SESSIONS, vec![], self.fetch_sessions.get() as u64);
        value(RECEIVED_BYTES, vec![], self.received_bytes.get());
        value(SENT_BYTES, vec![], self.sent_bytes.get());
        value(SENDS, vec![], self.sends.get());
        for (listener, count) in &*self.accepted.borrow() {
            value(ACCEPTED, vec![("listener", listener.clone())], *count);
        }
        for (reason, count) in &*self.closed.borrow() {
            value(CLOSED, vec![("reason", (*reason).to_owned())], *count);
        }
        for (cause, count) in &*self.suppressed_lines.borrow() {
            value(SUPPRESSED_LINES, vec![("cause", (*cause).to_owned())], *count);
        }
        for (bound, count) in &*self.bounds.borrow() {
            value(BOUND_REACHED, vec![("bound", bound.label().to_owned())], *count);
        }
        for ((key, version), count) in &*self.requests.borrow() {
            let labels = vec![("api", key.api().name.to_owned()), ("version", version.to_string())];
            value(REQUESTS, labels, *count);
        }
        for (key, histogram) in &*self.latencies.borrow() {
            let labels = vec![("api", key.api().name.to_owned())];
            snapshot.histograms.push((REQUEST_SECONDS, labels, histogram.clone()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_snapshot_has_what_was_counted() {
        let metrics = NetMetrics::default();
        let api = ApiKey::Metadata.api();
        metrics.answered(api, 12, Duration::from_millis(3));
        metrics.answered(api, 12, Duration::from_secs(10_000));
        metrics.reached(Bound::ShardQueue);
        metrics.accepted("PLAINTEXT");
        let mut snapshot = ShardMetrics::default();
        metrics.add_to(&mut snapshot);
        let find = |name: MetricName| {
            let found = snapshot.values.iter().find(|(other, ..)| *other == name);
            found.map(|(_, labels, value)| (labels.clone(), *value))
        };
        let labels = vec![("api", "Metadata".to_owned()), ("version", "12".to_owned())];
        assert_eq!(find(REQUESTS), Some((labels, 2.0)));
        assert_eq!(find(BOUND_REACHED), Some((vec![("bound", "shard_queue".to_owned())], 1.0)));
        assert_eq!(find(ACCEPTED), Some((vec![("listener", "PLAINTEXT".to_owned())], 1.0)));
        let (name, _, histogram) = &snapshot.histograms[0];
        assert_eq!((name.name, histogram.len()), ("kaas_request_seconds", 2));
        assert!((2950..3060).contains(&histogram.min()), "{}", histogram.min());
    }
}
