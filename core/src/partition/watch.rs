//! Long polls that wait for news of partitions: woken by new records, by the loss of leadership, or by a delete.
//!
//! Shard-local and synchronous: whoever moves a partition's end calls [`Watchers::advanced`], whoever ends its leadership
//! [`Watchers::gone`]. The clock is the client's connection: it drops its receiver when its time is over.

use std::collections::HashMap;

use kaas_proto::control::PartitionKey;
use kaas_proto::types::Offset;
use tokio::sync::oneshot;

use crate::shard::operation::{IsolationLevel, Watch};

/// How many waiters a shard keeps. One more is not woken: its client waits its whole time and then reads.
pub const MAX_WATCHERS: usize = 65_536;

/// Bytes that became readable on a partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NewBytes {
    pub read_uncommitted: usize,
    pub read_committed: usize,
}

/// All waiters of one shard.
#[derive(Debug)]
pub struct Watchers {
    limit: usize,
    next_id: u64,
    waiters: HashMap<u64, Waiter>,
    by_partition: HashMap<PartitionKey, Vec<u64>>,
    refused: u64,
}

#[derive(Debug)]
struct Waiter {
    partitions: Vec<PartitionKey>,
    isolation: IsolationLevel,
    missing_bytes: usize,
    reply: oneshot::Sender<()>,
}

impl Default for Watchers {
    fn default() -> Self {
        Self::with_limit(MAX_WATCHERS)
    }
}

impl Watchers {
    #[must_use]
    pub fn with_limit(limit: usize) -> Self {
        Self { limit, next_id: 0, waiters: HashMap::new(), by_partition: HashMap::new(), refused: 0 }
    }

    /// Takes a waiter in, or wakes it at once if there is news already. `end_of` tells how far a client of an isolation
    /// level may read a partition, `None` if it is not led here.
    pub fn register(&mut self, watch: Watch, end_of: impl Fn(PartitionKey, IsolationLevel) -> Option<Offset>) {
        let has_news = |wanted: &crate::shard::operation::WatchPartition| {
            end_of(wanted.partition, watch.isolation).is_none_or(|end| end > wanted.seen_end)
        };
        if watch.partitions.iter().any(has_news) {
            // The client may be gone already.
            watch.reply.send(()).ok();
            return;
        }
        for wanted in &watch.partitions {
            self.forget_dropped(wanted.partition);
        }
        if self.waiters.len() >= self.limit {
            self.forget_all_dropped();
        }
        if self.waiters.len() >= self.limit {
            self.refused += 1;
            return;
        }
        let id = self.next_id;
        self.next_id += 1;
        let partitions: Vec<_> = watch.partitions.iter().map(|wanted| wanted.partition).collect();
        for &partition in &partitions {
            self.by_partition.entry(partition).or_default().push(id);
        }
        let missing_bytes = watch.min_bytes.max(1);
        self.waiters.insert(id, Waiter { partitions, isolation: watch.isolation, missing_bytes, reply: watch.reply });
    }

    /// A partition has so many more bytes to read.
    pub fn advanced(&mut self, partition: PartitionKey, new: NewBytes) {
        for id in self.by_partition.get(&partition).cloned().unwrap_or_default() {
            let waiter = self.waiters.get_mut(&id).expect("listed waiters exist");
            let bytes = match waiter.isolation {
                IsolationLevel::ReadUncommitted => new.read_uncommitted,
                IsolationLevel::ReadCommitted => new.read_committed,
            };
            waiter.missing_bytes = waiter.missing_bytes.saturating_sub(bytes);
            if waiter.missing_bytes == 0 || waiter.reply.is_closed() {
                self.wake(id);
            }
        }
    }

    /// A partition is no longer led here, or its records are gone: everyone who waits for it should look again.
    pub fn gone(&mut self, partition: PartitionKey) {
        for id in self.by_partition.get(&partition).cloned().unwrap_or_default() {
            self.wake(id);
        }
    }

    /// How many wait.
    #[must_use]
    pub fn len(&self) -> usize {
        self.waiters.len()
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.waiters.is_empty()
    }

    /// How many were refused because [`MAX_WATCHERS`] was reached.
    #[must_use]
    pub fn refused(&self) -> u64 {
        self.refused
    }

    fn wake(&mut self, id: u64) {
        if let Some(waiter) = self.remove(id) {
            // The client may be gone already.
            waiter.reply.send(()).ok();
        }
    }

    fn remove(&mut self, id: u64) -> Option<Waiter> {
        let waiter = self.waiters.remove(&id)?;
        for partition in &waiter.partitions {
            if let Some(ids) = self.by_partition.get_mut(partition) {
                ids.retain(|&other| other != id);
                if ids.is_empty() {
                    self.by_partition.remove(partition);
                }
            }
        }
        Some(waiter)
    }

    /// An idle partition is polled again and again: what the last polls left behind goes when the next one comes.
    fn forget_dropped(&mut self, partition: PartitionKey) {
        for id in self.by_partition.get(&partition).cloned().unwrap_or_default() {
            if self.waiters.get(&id).is_some_and(|waiter| waiter.reply.is_closed()) {
                self.remove(id);
            }
        }
    }

    fn forget_all_dropped(&mut self) {
        let dropped: Vec<_> =
            self.waiters.iter().filter(|(_, waiter)| waiter.reply.is_closed()).map(|(&id, _)| id).collect();
        for id in dropped {
            self.remove(id);
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]
    use kaas_proto::types::{PartitionIndex, TopicId};
    use tokio::sync::oneshot::error::TryRecvError;

    use super::*;
    use crate::shard::operation::WatchPartition;

    fn key(partition: i32) -> PartitionKey {
        PartitionKey { topic_id: TopicId([1; 16]), partition: PartitionIndex(partition) }
    }

    fn watch(partitions: &[i32], min_bytes: usize, isolation: IsolationLevel) -> (Watch, oneshot::Receiver<()>) {
        let (reply, receiver) = oneshot::channel();
        let partitions =
            partitions.iter().map(|&p| WatchPartition { partition: key(p), seen_end: Offset(5) }).collect();
        (Watch { isolation, partitions, min_bytes, reply }, receiver)
    }

    /// Registered on partitions that end at 5, as the client has seen.
    fn registered(watchers: &mut Watchers, partitions: &[i32], min_bytes: usize) -> oneshot::Receiver<()> {
        let (watch, receiver) = watch(partitions, min_bytes, IsolationLevel::ReadUncommitted);
        watchers.register(watch, |_, _| Some(Offset(5)));
        receiver
    }

    fn both(bytes: usize) -> NewBytes {
        NewBytes { read_uncommitted: bytes, read_committed: bytes }
    }

    fn waits(receiver: &mut oneshot::Receiver<()>) -> bool {
        receiver.try_recv() == Err(TryRecvError::Empty)
    }

    fn is_woken(receiver: &mut oneshot::Receiver<()>) -> bool {
        receiver.try_recv() == Ok(())
    }

    #[test]
    fn enough_new_bytes_wake_over_all_partitions() {
        let mut watchers = Watchers::default();
        let mut receiver = registered(&mut watchers, &[0, 1], 100);
        watchers.advanced(key(0), both(60));
        watchers.advanced(key(2), both(60));
        assert!(waits(&mut receiver));
        watchers.advanced(key(1), both(40));
        assert!(is_woken(&mut receiver));
        assert!(watchers.is_empty() && watchers.by_partition.is_empty());
    }

    #[test]
    fn readers_of_committed_records_wait_for_those() {
        let mut watchers = Watchers::default();
        let (watch, mut receiver) = watch(&[0], 1, IsolationLevel::ReadCommitted);
        watchers.register(watch, |_, _| Some(Offset(5)));
        watchers.advanced(key(0), NewBytes { read_uncommitted: 50, read_committed: 0 });
        assert!(waits(&mut receiver));
        watchers.advanced(key(0), NewBytes { read_uncommitted: 0, read_committed: 50 });
        assert!(is_woken(&mut receiver));
    }

    #[test]
    fn news_that_came_before_wakes_at_once() {
        let mut watchers = Watchers::default();
        for end in [Some(Offset(6)), None] {
            let (watch, mut receiver) = watch(&[0], 1_000, IsolationLevel::ReadUncommitted);
            watchers.register(watch, |_, _| end);
            assert!(is_woken(&mut receiver));
        }
        assert!(watchers.is_empty());
    }

    #[test]
    fn the_loss_of_one_partition_wakes() {
        let mut watchers = Watchers::default();
        let mut receiver = registered(&mut watchers, &[0, 1], 1_000);
        watchers.gone(key(1));
        assert!(is_woken(&mut receiver));
    }

    #[test]
    fn dropped_receivers_are_forgotten_and_the_number_is_bounded() {
        let mut watchers = Watchers::with_limit(2);
        for _ in 0..10 {
            drop(registered(&mut watchers, &[0], 1));
        }
        assert_eq!(watchers.len(), 1, "the next poll clears what the last one left");
        let mut first = registered(&mut watchers, &[1], 1);
        let mut second = registered(&mut watchers, &[2], 1);
        assert!(waits(&mut first) && waits(&mut second), "a dropped one of another partition makes room");
        let mut third = registered(&mut watchers, &[3], 1);
        assert_eq!(third.try_recv(), Err(TryRecvError::Closed));
        assert_eq!((watchers.len(), watchers.refused()), (2, 1));
    }
}
