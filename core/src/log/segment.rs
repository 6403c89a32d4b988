//! Segments of a led partition's log, and which of them are open.
//!
//! The segment that is appended to stays open. Older ones are opened when someone reads them and closed again when too
//! many of the shard are open. Only the leader has any open at all: an unlinked file that somebody holds open keeps its
//! space, and on NFS its directory.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::io;
use std::path::Path;
use std::rc::{Rc, Weak};

use kaas_proto::types::{Offset, TimestampMs};
use tracing::debug;

use super::last_append::LastAppend;
use crate::env::{OpenMode, Volume};
use crate::format::index::{self, SegmentIndex};
use crate::format::segment_name::SegmentName;

/// How many segments of a shard may be open for reading, besides those that are appended to.
pub const MAX_OPEN_SEGMENTS: usize = 128;

/// How many indexes of closed segments a shard keeps because building them cost much: 8 MiB.
const MAX_KEPT_INDEXES: usize = 32;

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
    /// An index that cost much to build and is on no volume.
    kept_index: RefCell<Option<SegmentIndex>>,
    open: RefCell<Option<Rc<OpenSegment<F>>>>,
    last_use: Cell<u64>,
}

/// A segment's file and index. The index may cover only the beginning; readers extend it as they go.
#[derive(Debug)]
pub struct OpenSegment<F> {
    pub file: F,
    pub index: RefCell<SegmentIndex>,
    /// How many bytes the index covered when the segment was opened.
    covered_at_first: u64,
}

impl<F> OpenSegment<F> {
    #[must_use]
    pub fn new(file: F, index: SegmentIndex) -> Self {
        let covered_at_first = index.covered_bytes;
        Self { file, index: RefCell::new(index), covered_at_first }
    }

    /// The index, if readers have built so much of it that it should not be lost.
    fn costly_index(&self) -> Option<SegmentIndex> {
        let index = self.index.borrow();
        (index.covered_bytes - self.covered_at_first >= COSTLY_INDEX_BYTES).then(|| index.clone())
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
            last_use: Cell::new(0),
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

    /// Keeps the segment open until [`Segment::close`].
    pub fn pin(&self, open: Rc<OpenSegment<F>>) {
        self.open.replace(Some(open));
    }

    /// Lets go of the file; readers that are under way finish.
    pub fn close(&self) {
        self.open.take();
    }
}

/// The older segments of a shard that are open. Shard-local.
#[derive(Debug)]
pub struct OpenSegments<F> {
    segments: RefCell<Vec<Weak<Segment<F>>>>,
    /// Closed ones that keep their index, oldest first.
    keeping: RefCell<VecDeque<Weak<Segment<F>>>>,
    uses: Cell<u64>,
    /// How many were closed because too many were open.
    displaced: Cell<u64>,
    limit: usize,
}

impl<F> OpenSegments<F> {
    #[must_use]
    pub fn new(limit: usize) -> Self {
        Self {
            segments: RefCell::default(),
            keeping: RefCell::default(),
            uses: Cell::new(0),
            displaced: Cell::new(0),
            limit,
        }
    }

    /// The open segment; opens it, and closes the one that was used least recently when there are too many.
    ///
    /// # Errors
    /// Those of opening the file. An index that can't be read is taken for one that covers nothing.
    pub async fn open<V: Volume<File = F>>(
        &self,
        volume: &V,
        directory: &Path,
        segment: &Rc<Segment<F>>,
    ) -> io::Result<Rc<OpenSegment<F>>> {
        if let Some(open) = self.in_use(segment) {
            return Ok(open);
        }
        let file = volume.open(&directory.join(segment.name.log()), OpenMode::Read).await?;
        let kept = segment.kept_index.take();
        let (index, is_kept) = match kept {
            Some(index) => (index, true),
            None => (read_index(volume, directory, segment.name).await, false),
        };
        if let Some(open) = segment.opened() {
            return Ok(open); // Somebody else was quicker.
        }
        let mut open = OpenSegment::new(file, index);
        if is_kept {
            open.covered_at_first = 0;
        }
        let open = Rc::new(open);
        segment.open.replace(Some(Rc::clone(&open)));
        self.track(segment);
        Ok(open)
    }

    /// What is open of a segment that is about to be read, which others must outlive now.
    #[must_use]
    pub fn in_use(&self, segment: &Segment<F>) -> Option<Rc<OpenSegment<F>>> {
        self.uses.set(self.uses.get() + 1);
        segment.last_use.set(self.uses.get());
        segment.opened()
    }

    /// How many were closed so far because too many were open.
    #[must_use]
    pub fn displaced(&self) -> u64 {
        self.displaced.get()
    }

    /// Counts a segment that is open, and may be closed when others are needed.
    pub fn track(&self, segment: &Rc<Segment<F>>) {
        let mut segments = self.segments.borrow_mut();
        segments.retain(|segment| segment.upgrade().is_some_and(|segment| segment.open.borrow().is_some()));
        while segments.len() >= self.limit {
            let least = (0..segments.len())
                .min_by_key(|&index| segments[index].upgrade().map_or(0, |segment| segment.last_use.get()))
                .expect("the limit is above zero");
            if let Some(segment) = segments.swap_remove(least).upgrade() {
                self.keep_index(&segment);
                segment.close();
                self.displaced.set(self.displaced.get() + 1);
            }
        }
        segments.push(Rc::downgrade(segment));
    }

    /// Keeps the index of a segment that is about to be closed if it cost much; forgets the oldest that is kept for it.
    fn keep_index(&self, segment: &Rc<Segment<F>>) {
        let Some(index) = segment.opened().and_then(|open| open.costly_index()) else { return };
        segment.kept_index.replace(Some(index));
        let mut keeping = self.keeping.borrow_mut();
        keeping.push_back(Rc::downgrade(segment));
        if keeping.len() > MAX_KEPT_INDEXES
            && let Some(oldest) = keeping.pop_front().and_then(|oldest| oldest.upgrade())
        {
            oldest.kept_index.take();
        }
    }

    /// How many are open.
    #[must_use]
    pub fn len(&self) -> usize {
        let segments = self.segments.borrow();
        segments
            .iter()
            .filter(|segment| segment.upgrade().is_some_and(|segment| segment.open.borrow().is_some()))
            .count()
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// The index of a segment, as far as it was ever written.
async fn read_index<V: Volume>(volume: &V, directory: &Path, name: SegmentName) -> SegmentIndex {
    match volume.read(&directory.join(name.index()), index::LIMIT_BYTES).await {
        Ok(bytes) => match SegmentIndex::decode(&bytes) {
            Ok(index) if index.base_offset == name.base_offset => return index,
            Ok(_) => debug!(segment = %name, "the index is of another segment; building it anew"),
            Err(error) => debug!(segment = %name, %error, "the index can't be read; building it anew"),
        },
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => debug!(segment = %name, %error, "the index can't be read; building it anew"),
    }
    SegmentIndex::new(name.base_offset)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]
    use kaas_proto::types::LeaderEpoch;

    use super::*;
    use crate::env::memory::MemoryEnv;
    use crate::env::{Env, MonotonicTime};

    #[test]
    fn the_least_recently_used_is_closed() {
        let env = MemoryEnv::virtual_time();
        env.run(async {
            let volume = env.volume();
            let segments: Vec<_> = (0..3)
                .map(Offset)
                .map(|base| {
                    Segment::new(
                        SegmentName::appended(LeaderEpoch(1), base),
                        base,
                        None,
                        LastAppend::Before(MonotonicTime(0)),
                    )
                })
                .collect();
            for segment in &segments {
                volume.write(Path::new(&segment.name.log()), vec![]).await.unwrap();
            }
            volume.write(Path::new(&segments[0].name.index()), b"noise".to_vec()).await.unwrap();
            let open = OpenSegments::new(2);
            for index in [0, 1, 0, 2] {
                open.open(volume, Path::new(""), &segments[index]).await.unwrap();
            }
            let is_open: Vec<_> = segments.iter().map(|segment| segment.opened().is_some()).collect();
            assert_eq!(is_open, [true, false, true]);
            assert_eq!((open.len(), open.displaced()), (2, 1));
            segments[0].close();
            assert_eq!(open.len(), 1);
        });
    }

    #[test]
    fn indexes_stay_small() {
        assert_eq!(index_interval(4096, 1 << 20), 4096);
        assert_eq!(index_interval(4096, 1 << 30), 65_536);
    }
}
