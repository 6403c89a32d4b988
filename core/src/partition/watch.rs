//! Long polls that wait for news of partitions.
//!
//! Shard-local, one table for all partitions of the shard. A waiter fires when enough bytes were added to its partitions
//! together, or when one of them is not led here any more. Its number is bounded: beyond it the oldest fires early, which
//! its consumer takes for an empty poll.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use ahash::AHashMap;
use kaas_proto::control::PartitionKey;
use kaas_proto::types::Offset;
use tokio::sync::oneshot;

use crate::metrics::Counters;
use crate::shard::operation::IsolationLevel;

/// How many may wait on one shard.
pub const MAX_WATCHERS: usize = 65_536;

/// Rises, so that the oldest waiter has the smallest.
type WaiterId = u64;

/// What a partition shows of its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PartitionEnd {
    pub high_watermark: Offset,
    pub last_stable_offset: Offset,
    /// Bytes acknowledged so far, from any beginning.
    pub bytes: u64,
}

impl PartitionEnd {
    /// The end that readers of this isolation see.
    #[must_use]
    pub fn visible(&self, isolation: IsolationLevel) -> Offset {
        match isolation {
            IsolationLevel::ReadUncommitted => self.high_watermark,
            IsolationLevel::ReadCommitted => self.last_stable_offset,
        }
    }
}

#[derive(Debug)]
struct Waiter {
    isolation: IsolationLevel,
    min_bytes: u64,
    partitions: Vec<Watched>,
    reply: oneshot::Sender<()>,
}

/// One partition of a waiter.
#[derive(Clone, Copy, Debug)]
struct Watched {
    partition: PartitionKey,
    seen_end: Offset,
    /// The partition's bytes when the wait began.
    bytes_before: u64,
    /// How many were added that the waiter may see.
    added: u64,
}

#[derive(Debug, Default)]
struct State {
    waiters: BTreeMap<WaiterId, Waiter>,
    by_partition: AHashMap<PartitionKey, Vec<WaiterId>>,
}

/// See the module.
#[derive(Debug)]
pub struct Watchers {
    state: RefCell<State>,
    next: Cell<WaiterId>,
    counters: Rc<Counters>,
}

impl Watchers {
    #[must_use]
    pub fn new(counters: Rc<Counters>) -> Self {
        Self { state: RefCell::default(), next: Cell::new(0), counters }
    }

    /// Waits for `min_bytes` behind the ends that the client has seen. The caller has found every partition led here, with
    /// these ends. Fires at once if there already is something that the client has not seen.
    pub fn wait(
        &self,
        isolation: IsolationLevel,
        min_bytes: usize,
        partitions: impl IntoIterator<Item = (PartitionKey, Offset, PartitionEnd)>,
        reply: oneshot::Sender<()>,
    ) {
        let mut watched = Vec::new();
        for (partition, seen_end, end) in partitions {
            if end.visible(isolation) > seen_end {
                // A client that is gone needs no news.
                let _ = reply.send(());
                return;
            }
            watched.push(Watched { partition, seen_end, bytes_before: end.bytes, added: 0 });
        }
        let mut state = self.state.borrow_mut();
        if state.waiters.len() >= MAX_WATCHERS
            && let Some(oldest) = state.waiters.keys().next().copied()
        {
            self.counters.watchers_displaced.add(1);
            state.fire(oldest);
        }
        let id = self.next.get();
        self.next.set(id + 1);
        for watched in &watched {
            state.by_partition.entry(watched.partition).or_default().push(id);
        }
        let min_bytes = u64::try_from(min_bytes.max(1)).expect("usize has at most 64 bits");
        state.waiters.insert(id, Waiter { isolation, min_bytes, partitions: watched, reply });
    }

    /// The end of a partition has moved.
    pub fn moved(&self, partition: PartitionKey, end: PartitionEnd) {
        let mut state = self.state.borrow_mut();
        let state = &mut *state;
        let Some(ids) = state.by_partition.get(&partition) else { return };
        let ready: Vec<_> = ids
            .iter()
            .copied()
            .filter(|id| state.waiters.get_mut(id).is_none_or(|waiter| waiter.advance(partition, end)))
            .collect();
        ready.into_iter().for_each(|id| state.fire(id));
    }

    /// The partition is not led here any more.
    pub fn lost(&self, partition: PartitionKey) {
        let mut state = self.state.borrow_mut();
        let ids = state.by_partition.get(&partition).cloned().unwrap_or_default();
        ids.into_iter().for_each(|id| state.fire(id));
    }

    /// Forgets waiters whose clients are gone.
    pub fn forget_dropped(&self) {
        let mut state = self.state.borrow_mut();
        let gone: Vec<_> =
            state.waiters.iter().filter(|(_, waiter)| waiter.reply.is_closed()).map(|(id, _)| *id).collect();
        gone.into_iter().for_each(|id| state.fire(id));
    }

    #[must_use]
    pub fn len(&self) -> usize {
        self.state.borrow().waiters.len()
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl State {
    fn fire(&mut self, id: WaiterId) {
        let Some(waiter) = self.waiters.remove(&id) else { return };
        for watched in &waiter.partitions {
            if let Some(ids) = self.by_partition.get_mut(&watched.partition) {
                ids.retain(|&other| other != id);
                if ids.is_empty() {
                    self.by_partition.remove(&watched.partition);
                }
            }
        }
        // A client that is gone needs no news.
        let _ = waiter.reply.send(());
    }
}

impl Waiter {
    /// Takes note of a new end. True if that is enough.
    fn advance(&mut self, partition: PartitionKey, end: PartitionEnd) -> bool {
        let visible = end.visible(self.isolation);
        for watched in self.partitions.iter_mut().filter(|watched| watched.partition == partition) {
            if visible > watched.seen_end {
                let all_visible = visible == end.high_watermark;
                // Bytes are known for the high watermark only: while a transaction hides some of them, news is enough.
                watched.added = if all_visible { end.bytes - watched.bytes_before } else { self.min_bytes };
            }
        }
        self.partitions.iter().map(|watched| watched.added).sum::<u64>() >= self.min_bytes
    }
}

#[cfg(test)]
mod tests {
    use kaas_proto::types::{PartitionIndex, TopicId};

    use super::*;

    fn key(partition: i32) -> PartitionKey {
        PartitionKey { topic_id: TopicId::ZERO, partition: PartitionIndex(partition) }
    }

    fn end(high_watermark: i64, last_stable_offset: i64, bytes: u64) -> PartitionEnd {
        PartitionEnd { high_watermark: Offset(high_watermark), last_stable_offset: Offset(last_stable_offset), bytes }
    }

    fn watch(
        watchers: &Watchers,
        isolation: IsolationLevel,
        min_bytes: usize,
        partitions: &[i32],
    ) -> oneshot::Receiver<()> {
        let (sender, receiver) = oneshot::channel();
        let partitions = partitions.iter().map(|&partition| (key(partition), Offset(5), end(5, 5, 100)));
        watchers.wait(isolation, min_bytes, partitions, sender);
        receiver
    }

    fn fired(receiver: &mut oneshot::Receiver<()>) -> bool {
        receiver.try_recv().is_ok()
    }

    #[test]
    fn bytes_of_all_partitions_add_up() {
        let watchers = Watchers::new(Rc::default());
        let mut waiter = watch(&watchers, IsolationLevel::ReadUncommitted, 50, &[0, 1]);
        watchers.moved(key(0), end(6, 6, 130));
        watchers.moved(key(2), end(60, 60, 1300));
        assert!(!fired(&mut waiter));
        watchers.moved(key(1), end(6, 6, 120));
        assert!(fired(&mut waiter));
        assert!(watchers.is_empty() && watchers.state.borrow().by_partition.is_empty());
    }

    #[test]
    fn news_that_were_missed_fire_at_once() {
        let watchers = Watchers::new(Rc::default());
        let (sender, mut receiver) = oneshot::channel();
        watchers.wait(IsolationLevel::ReadUncommitted, 1000, [(key(0), Offset(4), end(5, 5, 100))], sender);
        assert!(fired(&mut receiver));
        assert!(watchers.is_empty());
    }

    #[test]
    fn read_committed_waits_for_the_last_stable_offset() {
        let watchers = Watchers::new(Rc::default());
        let mut waiter = watch(&watchers, IsolationLevel::ReadCommitted, 1, &[0]);
        watchers.moved(key(0), end(9, 5, 500));
        assert!(!fired(&mut waiter));
        watchers.moved(key(0), end(9, 7, 500));
        assert!(fired(&mut waiter));
    }

    #[test]
    fn lost_partitions_and_lost_clients_end_the_wait() {
        let watchers = Watchers::new(Rc::default());
        let mut waiter = watch(&watchers, IsolationLevel::ReadUncommitted, 1, &[0, 1]);
        watchers.lost(key(1));
        assert!(fired(&mut waiter));
        drop(watch(&watchers, IsolationLevel::ReadUncommitted, 1, &[0]));
        assert_eq!(watchers.len(), 1);
        watchers.forget_dropped();
        assert!(watchers.is_empty());
    }

    #[test]
    fn the_oldest_makes_room() {
        let watchers = Watchers::new(Rc::default());
        let mut waiters: Vec<_> =
            (0..=MAX_WATCHERS).map(|_| watch(&watchers, IsolationLevel::ReadUncommitted, 1, &[0])).collect();
        assert!(fired(&mut waiters[0]));
        assert!(!fired(&mut waiters[1]));
        assert_eq!(watchers.len(), MAX_WATCHERS);
        assert_eq!(watchers.counters.watchers_displaced.get(), 1);
    }
}
