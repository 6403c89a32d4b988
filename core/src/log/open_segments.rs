//! Which segments of a shard are open, and not more than a bound. Shard-local.
//!
//! An open segment has a slot, and keeps it until its file is closed. Who needs one when all are taken has another segment
//! closed: one that nobody uses now and that was not used since it was looked at last, which comes close to the least recently
//! used and costs its users no more than a mark. If all are in use, one of them is displaced: nobody finds it any more, and it
//! closes when its last user is done.
//!
//! ```text
//!             opened, begun               last user done
//!   closed ──────────────────▶ in use ◀──────────────────▶ idle
//!     ▲                           │           used           │
//!     │  last user done           │ a slot is wanted,        │ a slot is wanted
//!     ├───────────── displaced ◀──┘ none is idle             │
//!     └──────────────────────────────────────────────────────┘
//! ```
//!
//! The segments that are appended to and the older ones have slots of their own: a consumer that reads everything takes no
//! slot from appends. A partition whose active segment is closed goes on leading: it has its fence, the bytes of the last
//! block, and the index. Its next append or read opens the file again.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::io;
use std::path::Path;
use std::pin::pin;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::time::Duration;

use futures_lite::future;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tracing::debug;

use super::segment::{OpenSegment, Segment};
use crate::env::{Env, OpenMode, Volume, VolumeFile};
use crate::format::index::{self, SegmentIndex};
use crate::format::segment_name::SegmentName;

/// How many older segments of a shard are open at most: an index in memory may have 256 KiB.
pub const MAX_OLDER_SEGMENTS: usize = 128;

/// How many indexes of closed segments a shard keeps because building them cost much: 8 MiB.
const MAX_KEPT_INDEXES: usize = 32;

/// How soon whoever waits for a slot looks for an idle segment once more.
const LOOK_AGAIN: Duration = Duration::from_millis(50);

/// What an open segment holds for as long as its file is open.
pub type Slot = OwnedSemaphorePermit;

/// Open segments of a shard that share a bound.
#[derive(Debug)]
pub struct OpenSegments<F> {
    slots: Arc<Semaphore>,
    limit: usize,
    /// In the order in which they are looked at; some are closed by now.
    order: RefCell<VecDeque<Weak<Segment<F>>>>,
    /// How many wait for a slot and found nothing to displace: what is opened next is for them.
    owed: Cell<usize>,
    /// Closed ones that keep their index although it is on the volume, oldest first.
    keeping: RefCell<VecDeque<Weak<Segment<F>>>>,
    displaced: Cell<u64>,
    waits: Cell<u64>,
}

impl<F: VolumeFile> OpenSegments<F> {
    /// # Panics
    /// When none may be open.
    #[must_use]
    pub fn new(limit: usize) -> Self {
        assert!(limit > 0, "without a slot nothing can be opened");
        let limit = limit.min(Semaphore::MAX_PERMITS);
        Self {
            slots: Arc::new(Semaphore::new(limit)),
            limit,
            order: RefCell::default(),
            owed: Cell::new(0),
            keeping: RefCell::default(),
            displaced: Cell::new(0),
            waits: Cell::new(0),
        }
    }

    /// What is open of a segment that is about to be used, which others must outlive now.
    #[must_use]
    pub fn in_use(&self, segment: &Segment<F>) -> Option<Rc<OpenSegment<F>>> {
        segment.used.set(true);
        segment.opened()
    }

    /// The open segment; opens it if it is not.
    ///
    /// # Errors
    /// Those of opening the file; `InvalidData` if one that is to be written has fewer bytes than were written. An index that can't be
    /// read is taken for one that covers nothing.
    pub async fn open<E: Env<Volume: Volume<File = F>>>(
        &self,
        env: &E,
        directory: &Path,
        segment: &Rc<Segment<F>>,
        mode: OpenMode,
    ) -> io::Result<Rc<OpenSegment<F>>> {
        if let Some(open) = self.in_use(segment) {
            return Ok(open);
        }
        let slot = self.slot(env).await;
        let volume = env.volume();
        let file = volume.open(&directory.join(segment.name.log()), mode).await?;
        // Not what others write while its size is asked for.
        let written = segment.bytes.get();
        // The name is ours, but whoever restores a directory does not know that.
        if mode == OpenMode::ReadWrite && file.size().await? < written {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "it has fewer bytes than were written"));
        }
        let is_kept = segment.kept_index.borrow().is_some();
        let read = if is_kept { None } else { Some(read_index(volume, directory, segment.name).await) };
        if let Some(open) = segment.opened() {
            return Ok(open); // Somebody else was quicker.
        }
        let open = match (segment.kept_index.take(), read) {
            (Some(kept), _) => OpenSegment::with_kept_index(file, kept, slot),
            (None, Some(read)) => OpenSegment::new(file, read, slot),
            // It was rolled meanwhile: the one that was kept is on the volume.
            (None, None) => OpenSegment::new(file, read_index(volume, directory, segment.name).await, slot),
        };
        let open = Rc::new(open);
        self.keep(segment, &open);
        Ok(open)
    }

    /// A slot for a file that is about to be opened. Waits while all are in use, which is no longer than the calls of their users take;
    /// of appends such a wait counts as one for the volume. Nothing is left behind when the future is dropped.
    pub async fn slot<E: Env>(&self, env: &E) -> Slot {
        if let Ok(slot) = Arc::clone(&self.slots).try_acquire_owned() {
            return slot;
        }
        let mut displaced = self.displace(true);
        let is_idle = displaced.as_ref().is_some_and(|open| Rc::strong_count(open) == 1);
        self.waits.set(self.waits.get() + u64::from(!is_idle));
        let owed = displaced.is_none().then(|| Owed::new(&self.owed));
        // In turn, however often this looks around meanwhile.
        let mut next_slot = pin!(Arc::clone(&self.slots).acquire_owned());
        loop {
            if let Some(Ok(idle)) = displaced.take().map(Rc::try_unwrap) {
                // Its slot comes back when it is closed, and an error changes nothing about that.
                drop(idle.close().await);
            }
            let slot = async { Some(next_slot.as_mut().await.expect("it is never closed")) };
            // What was displaced may be in use for long, and another one idle by then.
            let look_again = async {
                env.sleep(LOOK_AGAIN).await;
                None
            };
            if let Some(slot) = future::or(slot, look_again).await {
                drop(owed);
                return slot;
            }
            displaced = self.displace(false);
        }
    }

    /// Lets others find an open segment, unless its slot is wanted already.
    pub fn keep(&self, segment: &Rc<Segment<F>>, open: &Rc<OpenSegment<F>>) {
        if self.owed.get() > 0 {
            self.owed.set(self.owed.get() - 1);
            self.displaced.set(self.displaced.get() + 1);
            segment.close();
            self.keep_index(segment, open);
            return;
        }
        segment.open.replace(Some(Rc::clone(open)));
        segment.used.set(true);
        let mut order = self.order.borrow_mut();
        // Rather than to grow it forgets what was closed.
        if order.len() == order.capacity() {
            order.retain(|segment| segment.upgrade().is_some_and(|segment| self.holds(&segment).is_some()));
        }
        order.push_back(Rc::downgrade(segment));
    }

    /// Takes a segment over that has a slot elsewhere. Without a free one here it is closed: nobody waits for that.
    pub fn adopt(&self, segment: &Rc<Segment<F>>) {
        let Some(open) = segment.opened() else { return };
        match Arc::clone(&self.slots).try_acquire_owned() {
            Ok(slot) => {
                drop(open.slot.replace(slot));
                self.keep(segment, &open);
            }
            Err(_) => segment.close(),
        }
    }

    /// What is open of a segment that has one of these slots.
    fn holds(&self, segment: &Segment<F>) -> Option<Rc<OpenSegment<F>>> {
        segment.opened().filter(|open| Arc::ptr_eq(open.slot.borrow().semaphore(), &self.slots))
    }

    /// Takes one segment out, so that nobody finds it open any more; if none is idle one that is used, if that is wanted.
    fn displace(&self, may_be_used: bool) -> Option<Rc<OpenSegment<F>>> {
        let mut order = self.order.borrow_mut();
        // Marks are gone after the first round; who is in use after the second one is taken all the same.
        let mut chances = 2 * order.len();
        loop {
            let segment = order.pop_front()?;
            let Some(segment) = segment.upgrade() else { continue };
            let Some(open) = self.holds(&segment) else { continue };
            let is_in_use = Rc::strong_count(&open) > 2;
            if segment.used.take() || is_in_use {
                order.push_back(Rc::downgrade(&segment));
                if chances > 0 {
                    chances -= 1;
                    continue;
                }
                if !may_be_used {
                    return None;
                }
                order.pop_back();
            }
            segment.close();
            self.keep_index(&segment, &open);
            self.displaced.set(self.displaced.get() + 1);
            return Some(open);
        }
    }

    /// Keeps the index of a segment that is about to be closed if it is on no volume, or cost much; of the latter so many that the
    /// oldest is forgotten for it.
    fn keep_index(&self, segment: &Rc<Segment<F>>, open: &OpenSegment<F>) {
        let is_active = segment.end.get().is_none();
        if !is_active && !open.has_costly_index() {
            return;
        }
        segment.kept_index.replace(Some(Rc::clone(&open.index)));
        if is_active {
            return;
        }
        let mut keeping = self.keeping.borrow_mut();
        keeping.push_back(Rc::downgrade(segment));
        if keeping.len() > MAX_KEPT_INDEXES
            && let Some(oldest) = keeping.pop_front().and_then(|oldest| oldest.upgrade())
        {
            oldest.kept_index.take();
        }
    }

    /// How many were closed so far because their slots were wanted.
    #[must_use]
    pub fn displaced(&self) -> u64 {
        self.displaced.get()
    }

    /// How often somebody waited for a slot because all were in use.
    #[must_use]
    pub fn waits(&self) -> u64 {
        self.waits.get()
    }

    /// How many slots are taken.
    #[must_use]
    pub fn len(&self) -> usize {
        self.limit - self.slots.available_permits()
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Somebody who waits and found nothing to displace.
struct Owed<'count>(&'count Cell<usize>);

impl<'count> Owed<'count> {
    fn new(count: &'count Cell<usize>) -> Self {
        count.set(count.get() + 1);
        Self(count)
    }
}

impl Drop for Owed<'_> {
    fn drop(&mut self) {
        // Somebody may have paid already.
        self.0.set(self.0.get().saturating_sub(1));
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
    use kaas_proto::types::{LeaderEpoch, Offset};

    use super::*;
    use crate::env::MonotonicTime;
    use crate::env::memory::{MemoryEnv, MemoryVolume};
    use crate::log::last_append::LastAppend;

    type File = <MemoryVolume as Volume>::File;

    /// Empty segments, the last of them appended to.
    async fn segments(volume: &MemoryVolume, count: i64) -> Vec<Rc<Segment<File>>> {
        let mut segments = Vec::new();
        for base in (0..count).map(Offset) {
            let name = SegmentName::appended(LeaderEpoch(1), base);
            let end = (base.0 < count - 1).then(|| base.plus(1));
            volume.write(Path::new(&name.log()), vec![]).await.unwrap();
            segments.push(Segment::new(name, base, end, LastAppend::Before(MonotonicTime(0))));
        }
        segments
    }

    async fn open(open: &OpenSegments<File>, env: &MemoryEnv, segment: &Rc<Segment<File>>) -> Rc<OpenSegment<File>> {
        open.open(env, Path::new(""), segment, OpenMode::ReadWrite).await.unwrap()
    }

    #[test]
    fn what_was_not_used_lately_is_closed() {
        let env = MemoryEnv::virtual_time();
        env.run(async {
            let volume = env.volume();
            let segments = segments(volume, 3).await;
            volume.write(Path::new(&segments[0].name.index()), b"noise".to_vec()).await.unwrap();
            let opened = OpenSegments::new(2);
            for index in [0, 1, 0, 2] {
                open(&opened, &env, &segments[index]).await;
            }
            // All had a mark: the first one goes. Then those without.
            let is_open = || segments.iter().map(|segment| segment.opened().is_some()).collect::<Vec<_>>();
            assert_eq!(is_open(), [false, true, true]);
            open(&opened, &env, &segments[2]).await;
            open(&opened, &env, &segments[0]).await;
            assert_eq!(is_open(), [true, false, true]);
            assert_eq!((opened.len(), opened.displaced(), opened.waits()), (2, 2, 0));
            segments[0].close();
            assert_eq!(opened.len(), 1);
        });
    }

    #[test]
    fn whoever_uses_a_segment_is_waited_for() {
        let env = MemoryEnv::virtual_time();
        env.run(async {
            let volume = env.volume();
            let segments = segments(volume, 3).await;
            let opened = OpenSegments::new(1);
            let user = open(&opened, &env, &segments[0]).await;
            let mut second = Box::pin(open(&opened, &env, &segments[1]));
            let mut third = Box::pin(open(&opened, &env, &segments[2]));
            // Both want the one slot. The first of them displaces the segment, the second finds nothing.
            assert!(future::poll_once(&mut second).await.is_none());
            assert!(future::poll_once(&mut third).await.is_none());
            assert!(segments[0].opened().is_none(), "nobody else begins to use it");
            env.sleep(Duration::from_secs(1)).await;
            assert!(future::poll_once(&mut second).await.is_none(), "it is in use");
            drop(user);
            let second = second.await;
            assert!(future::poll_once(&mut third).await.is_none());
            drop(second);
            third.await;
            assert_eq!((opened.len(), opened.displaced(), opened.waits()), (1, 2, 2));
        });
    }

    #[test]
    fn whoever_waits_for_one_that_is_in_use_takes_another_that_is_idle_before() {
        let env = MemoryEnv::virtual_time();
        env.run(async {
            let volume = env.volume();
            let segments = segments(volume, 3).await;
            let opened = OpenSegments::new(2);
            let (_hanging, brief) = (open(&opened, &env, &segments[0]).await, open(&opened, &env, &segments[1]).await);
            let mut third = Box::pin(open(&opened, &env, &segments[2]));
            assert!(future::poll_once(&mut third).await.is_none());
            assert!(segments[0].opened().is_none() && segments[1].opened().is_some());
            drop(brief);
            third.await;
            assert!(segments[1].opened().is_none());
            assert_eq!((opened.len(), opened.displaced(), opened.waits()), (2, 2, 1));
        });
    }

    #[test]
    fn an_active_segment_keeps_its_index() {
        let env = MemoryEnv::virtual_time();
        env.run(async {
            let volume = env.volume();
            let segments = segments(volume, 2).await;
            let opened = OpenSegments::new(1);
            let first = open(&opened, &env, &segments[1]).await;
            let mut other = Box::pin(open(&opened, &env, &segments[0]));
            assert!(future::poll_once(&mut other).await.is_none());
            // It is displaced, and still written to.
            first.index.borrow_mut().covered_bytes = 77;
            drop(first);
            other.await;
            assert_eq!(open(&opened, &env, &segments[1]).await.index.borrow().covered_bytes, 77);
            // What is shorter than it was is not written to.
            segments[1].close();
            segments[1].bytes.set(1);
            let error = opened.open(&env, Path::new(""), &segments[1], OpenMode::ReadWrite).await.unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::InvalidData);
            assert!(opened.is_empty(), "a failed open keeps no slot");
        });
    }

    #[test]
    fn a_segment_that_is_adopted_leaves_its_slot() {
        let env = MemoryEnv::virtual_time();
        env.run(async {
            let volume = env.volume();
            let segments = segments(volume, 3).await;
            let (active, older) = (OpenSegments::new(1), OpenSegments::new(1));
            open(&active, &env, &segments[0]).await;
            older.adopt(&segments[0]);
            assert_eq!((active.len(), older.len()), (0, 1));
            open(&active, &env, &segments[2]).await;
            assert_eq!(active.displaced(), 0, "it is not its own any more");
            open(&older, &env, &segments[1]).await;
            assert!(segments[0].opened().is_none());
            older.adopt(&segments[0]);
            assert_eq!((active.len(), older.len()), (1, 1), "what is closed needs none");
            older.adopt(&segments[2]);
            assert_eq!((active.len(), older.len()), (0, 1), "without a free slot it is closed");
        });
    }
}
