//! Reads in front of sequential consumers.
//!
//! A log remembers where its last reads ended. A read that begins there is sequential: what follows is read into memory
//! while the consumer is busy with what it has. Shard-local; the memory is bounded for all logs of a shard together, the
//! oldest goes first.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::io;
use std::rc::Rc;

use bytes::Bytes;
use kaas_proto::types::Offset;
use tokio::sync::Notify;

use super::tail_cache::LogId;
use crate::format::segment_name::SegmentName;

/// What is read at a time.
pub const READ_AHEAD_BYTES: usize = 1 << 20;

/// How many reads ahead a shard keeps: 16 MiB.
pub const MAX_READS_AHEAD: usize = 16;

/// How many ends of reads a log remembers: consumers at so many places are recognised.
const MAX_HINTS: usize = 16;

/// Where a read of the volume ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hint {
    /// The next offset.
    pub offset: Offset,
    /// The segment, and the position of the batch in it. Its name: after a compaction another begins at the same offset.
    pub segment: SegmentName,
    pub position: u64,
}

/// The ends of the last reads of one log.
#[derive(Debug, Default)]
pub struct Hints(RefCell<VecDeque<Hint>>);

impl Hints {
    pub fn remember(&self, hint: Hint) {
        let mut hints = self.0.borrow_mut();
        if hints.len() == MAX_HINTS {
            hints.pop_front();
        }
        hints.push_back(hint);
    }

    /// Takes the hint for an offset, if a read ended there.
    #[must_use]
    pub fn take(&self, segment: SegmentName, offset: Offset) -> Option<Hint> {
        let mut hints = self.0.borrow_mut();
        let found = hints.iter().rposition(|hint| hint.segment == segment && hint.offset == offset)?;
        hints.remove(found)
    }
}

/// Part of a segment that is in memory, or about to be.
#[derive(Debug)]
pub struct Chunk {
    log: LogId,
    segment: SegmentName,
    position: u64,
    length: usize,
    content: RefCell<Option<Bytes>>,
    is_done: Cell<bool>,
    done: Notify,
}

impl Chunk {
    /// The read came back; after an error there is nothing, and readers look for themselves.
    pub fn complete(&self, content: io::Result<Bytes>) {
        let content = content.ok().map(|bytes| bytes.slice(..bytes.len().min(self.length)));
        self.content.replace(content);
        self.is_done.set(true);
        self.done.notify_waiters();
    }

    /// The bytes from a position on, once they are there.
    pub async fn from(&self, position: u64) -> Option<Bytes> {
        loop {
            let done = self.done.notified();
            if self.is_done.get() {
                break;
            }
            done.await;
        }
        let content = self.content.borrow();
        let bytes = content.as_ref()?;
        let skipped = usize::try_from(position.checked_sub(self.position)?).ok()?;
        (skipped < bytes.len()).then(|| bytes.slice(skipped..))
    }
}

/// All reads ahead of a shard, oldest first.
#[derive(Debug, Default)]
pub struct ReadAhead(RefCell<VecDeque<Rc<Chunk>>>);

impl ReadAhead {
    /// The chunk that has at least `wanted` bytes from `position` on, or will.
    #[must_use]
    pub fn find(&self, log: LogId, segment: SegmentName, position: u64, wanted: usize) -> Option<Rc<Chunk>> {
        let covers = |chunk: &&Rc<Chunk>| {
            chunk.log == log
                && chunk.segment == segment
                && chunk.position <= position
                && position + wanted as u64 <= chunk.position + chunk.length as u64
        };
        self.0.borrow().iter().find(covers).cloned()
    }

    /// Makes room for a chunk that the caller is going to read.
    #[must_use]
    pub fn begin(&self, log: LogId, segment: SegmentName, position: u64, length: usize) -> Rc<Chunk> {
        let chunk = Rc::new(Chunk {
            log,
            segment,
            position,
            length,
            content: RefCell::default(),
            is_done: Cell::new(false),
            done: Notify::new(),
        });
        let mut chunks = self.0.borrow_mut();
        if chunks.len() == MAX_READS_AHEAD {
            chunks.pop_front();
        }
        chunks.push_back(Rc::clone(&chunk));
        chunk
    }

    /// Drops everything of a log.
    pub fn forget(&self, log: LogId) {
        self.0.borrow_mut().retain(|chunk| chunk.log != log);
    }

    /// Memory of the chunks.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let of = |chunk: &Rc<Chunk>| chunk.content.borrow().as_ref().map_or(0, Bytes::len);
        self.0.borrow().iter().map(of).sum()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]
    use futures_lite::future;

    use kaas_proto::types::LeaderEpoch;

    use super::*;

    const LOG: LogId = LogId(1);

    fn segment(base: i64) -> SegmentName {
        SegmentName::appended(LeaderEpoch(1), Offset(base))
    }

    #[test]
    fn a_chunk_is_found_by_what_it_covers() {
        let ahead = ReadAhead::default();
        let chunk = ahead.begin(LOG, segment(0), 4096, 8192);
        assert!(ahead.find(LOG, segment(0), 5000, 7000).is_some());
        assert!(ahead.find(LOG, segment(0), 5000, 8000).is_none(), "too short");
        assert!(ahead.find(LOG, segment(0), 0, 10).is_none());
        assert!(ahead.find(LOG, segment(9), 5000, 10).is_none());
        assert!(ahead.find(LogId(2), segment(0), 5000, 10).is_none());
        let read = chunk.from(4100);
        chunk.complete(Ok(vec![7; 9000].into()));
        assert_eq!(future::block_on(read).unwrap().len(), 8188, "no more than is known to be durable");
        assert_eq!(ahead.bytes(), 8192);
        ahead.forget(LOG);
        assert_eq!(ahead.bytes(), 0);
    }

    #[test]
    fn a_failed_read_is_nothing() {
        let chunk = ReadAhead::default().begin(LOG, segment(0), 0, 4096);
        chunk.complete(Err(io::ErrorKind::Other.into()));
        assert_eq!(future::block_on(chunk.from(0)), None);
    }

    #[test]
    fn the_oldest_make_room() {
        let ahead = ReadAhead::default();
        for index in 0..MAX_READS_AHEAD as u64 + 1 {
            ahead.begin(LOG, segment(0), index * 4096, 4096).complete(Ok(vec![0; 4096].into()));
        }
        assert!(ahead.find(LOG, segment(0), 0, 1).is_none());
        assert_eq!(ahead.bytes(), MAX_READS_AHEAD * 4096);
        let hints = Hints::default();
        for offset in 0..20 {
            hints.remember(Hint { offset: Offset(offset), segment: segment(0), position: 0 });
        }
        assert!(hints.take(segment(0), Offset(3)).is_none());
        assert!(hints.take(segment(0), Offset(19)).is_some());
        assert!(hints.take(segment(0), Offset(19)).is_none(), "taken");
    }
}
