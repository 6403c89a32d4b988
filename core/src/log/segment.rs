//! Segments of a led partition's log.
//!
//! They are opened when somebody appends or reads, and stay open until [too many](super::open_segments) are. Only the leader
//! has any open at all: an unlinked file that somebody holds open keeps its space, and on NFS its directory.

use std::cell::{Cell, RefCell};
use std::io;
use std::rc::Rc;

use kaas_proto::types::{Offset, TimestampMs};

use super::last_append::LastAppend;
use super::open_segments::Slot;
use crate::env::VolumeFile;
use crate::format::index::SegmentIndex;
use crate::format::segment_name::SegmentName;

/// An index that readers had to build from so many bytes is kept.
const COSTLY_INDEX_BYTES: u64 = 1 << 20;

/// An index has at most about this many entries, however large its segment: 256 KiB of memory.
const MAX_INDEX_ENTRIES: u64 = 16_384;

/// Bytes between two index entries of a segment that rolls at `segment_bytes`.
#[must_use]
pub fn index_interval(index_interval_bytes: u64, segment_bytes: u64) -> u32 {
    u32::try_from(index_interval_bytes.max(segment_bytes / MAX_INDEX_ENTRIES)).unwrap_or(u32::MAX)
}

/// One segment that counts. Shard-local.
#[derive(Debug)]
pub struct Segment<F> {
    pub name: SegmentName,
    /// The first offset that counts: the name's, unless a compacted segment holds what is in front.
    pub start: Offset,
    /// The offset behind its last record; `None` while it is appended to. Bytes behind it are dead.
    pub end: Cell<Option<Offset>>,
    /// Bytes on the volume, padding aside; 0 until somebody looked.
    pub bytes: Cell<u64>,
    /// The largest timestamp of its records from `timestamp_from` on, -1 without any; `None` until somebody looked.
    pub max_timestamp: Cell<Option<TimestampMs>>,
    pub timestamp_from: Cell<Offset>,
    /// That of the first batch; `None` until somebody looked.
    pub first_timestamp: Cell<Option<TimestampMs>>,
    pub last_append: Cell<LastAppend>,
    /// The file was asked when it was written last.
    pub asked_file_time: Cell<bool>,
    /// The index of a closed segment that is on no volume, or cost much to build.
    pub(super) kept_index: RefCell<Option<Rc<RefCell<SegmentIndex>>>>,
    pub(super) open: RefCell<Option<Rc<OpenSegment<F>>>>,
    /// Since somebody looked for a segment to close.
    pub(super) used: Cell<bool>,
}

/// A segment's file and index. The index may cover only the beginning; readers extend it as they go.
#[derive(Debug)]
pub struct OpenSegment<F> {
    pub file: F,
    pub index: Rc<RefCell<SegmentIndex>>,
    /// How many bytes the index covered when the segment was opened.
    covered_at_first: u64,
    pub(super) slot: RefCell<Slot>,
}

impl<F: VolumeFile> OpenSegment<F> {
    /// With what the volume has of the index.
    #[must_use]
    pub fn new(file: F, index: SegmentIndex, slot: Slot) -> Self {
        let covered_at_first = index.covered_bytes;
        Self { file, index: Rc::new(RefCell::new(index)), covered_at_first, slot: RefCell::new(slot) }
    }

    pub(super) fn with_kept_index(file: F, index: Rc<RefCell<SegmentIndex>>, slot: Slot) -> Self {
        Self { file, index, covered_at_first: 0, slot: RefCell::new(slot) }
    }

    /// Whether so much of the index was built that it should not be lost.
    pub(super) fn has_costly_index(&self) -> bool {
        self.index.borrow().covered_bytes - self.covered_at_first >= COSTLY_INDEX_BYTES
    }

    /// Closes the file, then lets go of the slot.
    ///
    /// # Errors
    /// Those of the volume.
    pub async fn close(self) -> io::Result<()> {
        let Self { file, slot, .. } = self;
        let closed = file.close().await;
        drop(slot);
        closed
    }
}

impl<F> Segment<F> {
    #[must_use]
    pub fn new(name: SegmentName, start: Offset, end: Option<Offset>, last_append: LastAppend) -> Rc<Self> {
        Rc::new(Self {
            name,
            start,
            end: Cell::new(end),
            bytes: Cell::new(0),
            max_timestamp: Cell::new(None),
            timestamp_from: Cell::new(name.base_offset),
            first_timestamp: Cell::new(None),
            last_append: Cell::new(last_append),
            asked_file_time: Cell::new(false),
            kept_index: RefCell::default(),
            open: RefCell::default(),
            used: Cell::new(false),
        })
    }

    /// Whether the largest timestamp is known of exactly the records from `offset` on, or of all that count.
    #[must_use]
    pub fn knows_timestamp_from(&self, offset: Offset) -> bool {
        self.max_timestamp.get().is_some() && self.timestamp_from.get() >= offset
    }

    /// Whether compaction wrote it: there are gaps between its offsets, and it may end with one.
    #[must_use]
    pub fn is_compacted(&self) -> bool {
        self.name.generation > 0
    }

    /// Whether a reader that finds no batch at this position has met the end of a compacted segment, and no damage.
    pub(super) fn may_end_at(&self, position: u64) -> bool {
        self.is_compacted() && position >= self.bytes.get()
    }

    /// What is open, if it is.
    #[must_use]
    pub fn opened(&self) -> Option<Rc<OpenSegment<F>>> {
        self.open.borrow().clone()
    }

    /// The index, if it is in memory: that of a segment that is appended to always is.
    #[must_use]
    pub fn index(&self) -> Option<Rc<RefCell<SegmentIndex>>> {
        let open = self.open.borrow();
        open.as_ref().map(|open| Rc::clone(&open.index)).or_else(|| self.kept_index.borrow().clone())
    }

    /// Lets go of the file; readers that are under way finish.
    pub fn close(&self) {
        self.open.take();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn indexes_stay_small() {
        assert_eq!(index_interval(4096, 1 << 20), 4096);
        assert_eq!(index_interval(4096, 1 << 30), 65_536);
    }
}
