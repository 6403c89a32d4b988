//! The tail cache: what was appended last stays in memory, so that consumers at the tail never touch the volume.
//!
//! Shard-local, one for all logs of the shard. A chunk is the very memory that a group commit was written from. It is
//! bounded in bytes: the log that was used least recently loses its oldest chunk first, and no log may take more than
//! its share, so that a flood on one does not push out the tails of the others.

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};

use ahash::AHashMap;
use bytes::Bytes;
use kaas_proto::types::Offset;

use super::commit::Commit;
use super::read_progress::{ReadProgress, Stop};

/// One log may take this part of the cache.
const LARGEST_SHARE: usize = 4;

/// A log of this shard: one leadership of one partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LogId(pub u64);

/// Whole batches of one segment, one behind the other.
#[derive(Debug)]
struct Chunk {
    /// Base offset of the segment.
    segment: Offset,
    /// Where the write began: a later commit that begins there contains this one.
    block_position: u64,
    /// Where the first batch lies.
    position: u64,
    first_offset: Offset,
    next_offset: Offset,
    content: Bytes,
    /// Bytes that the memory behind it takes.
    charge: usize,
}

#[derive(Debug, Default)]
struct Tail {
    chunks: VecDeque<Chunk>,
    charge: usize,
    last_use: u64,
}

#[derive(Debug, Default)]
struct State {
    tails: AHashMap<LogId, Tail>,
    /// By last use; keys are unique.
    order: BTreeMap<u64, LogId>,
    charge: usize,
    uses: u64,
}

/// Shard-local; shared by the logs of a shard.
#[derive(Debug)]
pub struct TailCache {
    state: RefCell<State>,
    limit_bytes: usize,
}

impl TailCache {
    #[must_use]
    pub fn new(limit_bytes: usize) -> Self {
        Self { state: RefCell::default(), limit_bytes }
    }

    /// Keeps what `commit` appended to the segment with this base offset.
    pub fn insert(&self, log: LogId, segment: Offset, commit: &Commit) {
        let mut state = self.state.borrow_mut();
        let state = &mut *state;
        let tail = state.tails.entry(log).or_default();
        let (content, charge) = kept(commit, commit.first_position);
        let mut chunk = Chunk {
            segment,
            block_position: commit.block_position,
            position: commit.first_position,
            first_offset: commit.first_offset,
            next_offset: commit.next_offset,
            content,
            charge,
        };
        // Small commits share a block: the newer write holds all of the older one.
        let last = tail.chunks.back();
        if last.is_some_and(|last| last.segment == segment && last.block_position == commit.block_position)
            && let Some(last) = tail.chunks.pop_back()
        {
            (chunk.content, chunk.charge) = kept(commit, last.position);
            (chunk.position, chunk.first_offset) = (last.position, last.first_offset);
            tail.charge -= last.charge;
            state.charge -= last.charge;
        }
        tail.charge += chunk.charge;
        state.charge += chunk.charge;
        tail.chunks.push_back(chunk);
        state.touch(log);
        let share = self.limit_bytes / LARGEST_SHARE;
        while state.tails.get(&log).is_some_and(|tail| tail.charge > share) {
            state.drop_oldest_chunk(log);
        }
        while state.charge > self.limit_bytes
            && let Some(log) = state.order.values().next().copied()
        {
            state.drop_oldest_chunk(log);
        }
    }

    /// Goes on with a read as far as the cache reaches.
    pub fn read(&self, log: LogId, progress: &mut ReadProgress) {
        let mut state = self.state.borrow_mut();
        state.touch(log);
        let Some(tail) = state.tails.get(&log) else { return };
        let first = tail.chunks.partition_point(|chunk| chunk.next_offset <= progress.offset);
        for chunk in tail.chunks.range(first..) {
            if chunk.first_offset > progress.offset || progress.take(&chunk.content).stop != Stop::Exhausted {
                break;
            }
        }
    }

    /// Drops what lies below an offset: compaction has rewritten it. Segments, and so chunks, begin there.
    pub fn forget_below(&self, log: LogId, offset: Offset) {
        let mut state = self.state.borrow_mut();
        let is_below = |tail: &Tail| tail.chunks.front().is_some_and(|chunk| chunk.first_offset < offset);
        while state.tails.get(&log).is_some_and(is_below) {
            state.drop_oldest_chunk(log);
        }
    }

    /// Drops everything of a log.
    pub fn forget(&self, log: LogId) {
        let mut state = self.state.borrow_mut();
        if let Some(tail) = state.tails.remove(&log) {
            state.charge -= tail.charge;
            state.order.remove(&tail.last_use);
        }
    }

    /// Bytes of memory that the chunks take.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.state.borrow().charge
    }
}

impl State {
    fn touch(&mut self, log: LogId) {
        let Some(tail) = self.tails.get_mut(&log) else { return };
        self.order.remove(&tail.last_use);
        self.uses += 1;
        tail.last_use = self.uses;
        self.order.insert(self.uses, log);
    }

    fn drop_oldest_chunk(&mut self, log: LogId) {
        let Some(tail) = self.tails.get_mut(&log) else { return };
        if let Some(chunk) = tail.chunks.pop_front() {
            tail.charge -= chunk.charge;
            self.charge -= chunk.charge;
        }
        if tail.chunks.is_empty() {
            self.order.remove(&tail.last_use);
            self.tails.remove(&log);
        }
    }
}

/// What a commit holds from a position of the segment on, and how much memory that keeps. Zeros for later commits are not worth it.
fn kept(commit: &Commit, from: u64) -> (Bytes, usize) {
    let content = commit.slice(from, commit.end_position);
    if commit.has_zeros_ahead() {
        let copy = Bytes::copy_from_slice(&content);
        let charge = copy.len();
        (copy, charge)
    } else {
        (content, commit.memory_bytes)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]
    use kaas_proto::record::{BatchBuilder, Batches};
    use kaas_proto::types::{LeaderEpoch, TimestampMs};

    use super::*;
    use crate::log::commit::{QueuedBatch, Stamp};

    const LOG: LogId = LogId(1);

    /// Appends single-record batches to one segment, as the appender does.
    struct Writer {
        tail: Vec<u8>,
        position: u64,
        file_bytes: u64,
        offset: i64,
    }

    impl Writer {
        fn new() -> Self {
            Self { tail: Vec::new(), position: 0, file_bytes: 0, offset: 0 }
        }

        fn commit(&mut self, batches: i64, value_bytes: usize) -> Commit {
            let batch = |offset: i64| QueuedBatch {
                bytes: BatchBuilder::new().record(TimestampMs(1), None, Some(&vec![1; value_bytes])).build(),
                base_offset: Offset(offset),
                next_offset: Offset(offset + 1),
                max_timestamp: TimestampMs(1),
                stamp: Stamp::Nothing,
            };
            let batches: Vec<_> = (self.offset..self.offset + batches).map(batch).collect();
            let commit = Commit::pack(&self.tail, self.position, self.file_bytes, LeaderEpoch(1), &batches);
            self.file_bytes = self.file_bytes.max(commit.file_bytes());
            self.tail = commit.tail().to_vec();
            self.position = commit.end_position;
            self.offset = commit.next_offset.0;
            commit
        }
    }

    fn read(cache: &TailCache, offset: i64, end: i64, budget: usize, at_least_one: bool) -> Vec<i64> {
        let mut progress = ReadProgress::new(Offset(offset), Offset(end), budget, at_least_one);
        cache.read(LOG, &mut progress);
        progress.parts.iter().flat_map(|part| Batches::new(part)).map(|batch| batch.unwrap().base_offset().0).collect()
    }

    #[test]
    fn batches_are_read_whole_from_any_offset() {
        let (cache, mut writer) = (TailCache::new(1 << 20), Writer::new());
        for _ in 0..3 {
            cache.insert(LOG, Offset(0), &writer.commit(3, 1000));
        }
        assert_eq!(read(&cache, 0, 9, usize::MAX, false), (0..9).collect::<Vec<_>>());
        assert_eq!(read(&cache, 4, 6, usize::MAX, false), [4, 5]);
        assert_eq!(read(&cache, 4, 9, 2200, false), [4, 5]);
        assert_eq!(read(&cache, 4, 9, 10, true), [4]);
        assert!(read(&cache, 4, 9, 10, false).is_empty());
        assert!(read(&cache, 9, 9, 10, true).is_empty());
    }

    #[test]
    fn small_commits_share_their_block() {
        let (cache, mut writer) = (TailCache::new(1 << 20), Writer::new());
        for _ in 0..20 {
            cache.insert(LOG, Offset(0), &writer.commit(1, 50));
        }
        assert_eq!(cache.bytes(), 4096);
        assert_eq!(read(&cache, 3, 20, usize::MAX, false), (3..20).collect::<Vec<_>>());
        cache.insert(LOG, Offset(0), &writer.commit(100, 50));
        assert_eq!(read(&cache, 0, 120, usize::MAX, false), (0..120).collect::<Vec<_>>());
    }

    #[test]
    fn bytes_are_bounded_and_the_idle_lose_first() {
        let cache = TailCache::new(64 << 10);
        let (mut idle, mut busy) = (Writer::new(), Writer::new());
        cache.insert(LogId(2), Offset(0), &idle.commit(1, 3000));
        for _ in 0..100 {
            cache.insert(LOG, Offset(0), &busy.commit(1, 8000));
        }
        assert!(cache.bytes() <= (64 << 10) / LARGEST_SHARE + 4096, "{}", cache.bytes());
        assert!(read(&cache, 0, 100, usize::MAX, true).is_empty(), "evicted");
        assert_eq!(read(&cache, 99, 100, usize::MAX, true), [99]);
        for log in 3..30 {
            cache.insert(LogId(log), Offset(0), &Writer::new().commit(1, 8000));
        }
        assert!(cache.bytes() <= 64 << 10);
        let mut progress = ReadProgress::new(Offset(0), Offset(1), 1, true);
        cache.read(LogId(2), &mut progress);
        assert!(progress.parts.is_empty());
        for log in 1..30 {
            cache.forget(LogId(log));
        }
        assert_eq!(cache.bytes(), 0);
        assert!(cache.state.borrow().order.is_empty());
    }

    #[test]
    fn what_was_compacted_is_forgotten() {
        let (cache, mut writer) = (TailCache::new(1 << 20), Writer::new());
        cache.insert(LOG, Offset(0), &writer.commit(2, 50));
        let mut rolled = Writer { offset: 2, ..Writer::new() };
        cache.insert(LOG, Offset(2), &rolled.commit(2, 50));
        cache.forget_below(LOG, Offset(2));
        assert!(read(&cache, 1, 4, usize::MAX, false).is_empty());
        assert_eq!(read(&cache, 2, 4, usize::MAX, false), [2, 3]);
        cache.forget_below(LOG, Offset(9));
        assert_eq!(cache.bytes(), 0);
    }

    #[test]
    fn a_new_segment_is_a_new_chunk() {
        let (cache, mut writer) = (TailCache::new(1 << 20), Writer::new());
        cache.insert(LOG, Offset(0), &writer.commit(2, 50));
        let mut rolled = Writer { offset: 2, ..Writer::new() };
        cache.insert(LOG, Offset(2), &rolled.commit(2, 50));
        assert_eq!(read(&cache, 1, 4, usize::MAX, false), [1, 2, 3]);
    }
}
