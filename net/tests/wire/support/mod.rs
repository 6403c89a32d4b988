//! A broker whose shards and control thread are pretended, and a client that blocks.

mod broker;
mod client;
mod control;
mod shard;

use std::sync::atomic::{AtomicBool, AtomicI64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use kaas_proto::record::builder::BatchBuilder;
use kaas_proto::types::{TimestampMs, TopicId};

pub(crate) use broker::{Broker, Options};
pub(crate) use client::{Client, fetch_request, produce_request};

/// Nothing in these tests takes longer, unless it hangs.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

/// What a test changes of the pretended shards while they run.
#[derive(Debug, Default)]
pub(crate) struct Switches {
    /// Appends are done, but not answered until this is off again.
    pub(crate) hold_appends: AtomicBool,
    /// Queues take nothing.
    pub(crate) queues_full: AtomicBool,
    /// Joining a group takes for ever.
    pub(crate) hold_joins: AtomicBool,
    /// The control thread does not answer.
    pub(crate) control_silent: AtomicBool,
    /// Operations that reached a shard.
    pub(crate) produced: AtomicUsize,
    pub(crate) fetched: AtomicUsize,
    /// Watches that wait.
    pub(crate) watching: AtomicI64,
}

/// The topic that is there from the start: four partitions, led by the broker itself.
pub(crate) const TOPIC: &str = "t";
pub(crate) const TOPIC_ID: TopicId = TopicId([7; 16]);
/// A topic with one partition that broker 2 leads, and one that nobody does.
pub(crate) const ELSEWHERE: &str = "elsewhere";
pub(crate) const ELSEWHERE_ID: TopicId = TopicId([8; 16]);

/// A batch with one record.
pub(crate) fn batch(value: &str) -> Bytes {
    BatchBuilder::new().record(TimestampMs(1000), Some(b"key"), Some(value.as_bytes())).build()
}

/// Waits until something holds.
pub(crate) fn eventually(what: &str, holds: impl Fn() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < deadline, "never: {what}");
        std::thread::yield_now();
    }
}

pub(crate) fn set(switch: &AtomicBool, on: bool) {
    switch.store(on, Ordering::SeqCst);
}
