//! Reads of a led log: the tail from memory, older batches from the volume.
//!
//! Whole batches only, below the bound that the caller gives (high watermark or last stable offset), and only as far as the
//! chain says that a segment counts. Bytes are handed on as they were read.

use std::io;
use std::ops::ControlFlow;
use std::rc::Rc;

use bytes::Bytes;
use kaas_proto::record::{BatchError, RecordBatchView};
use kaas_proto::types::{Offset, TimestampMs};

use super::batch_check::BatchCheck;
use super::commit::MAX_BATCH_BYTES;
use super::context::FileOf;
use super::led_log::LedLog;
use super::read_ahead::{Hint, READ_AHEAD_BYTES};
use super::read_progress::{ReadProgress, Stop};
use super::segment::{OpenSegment, Segment};
use crate::env::{BLOCK_BYTES, Env, OpenMode, TaskClass, VolumeFile};
use crate::format::index::{BatchSpan, SegmentIndex};

/// The largest single read, unless one batch is larger.
const MAX_READ_BYTES: usize = 1 << 20;

/// A read of a position that an index gave takes at least this much: an index interval and some batches.
const MIN_READ_BYTES: usize = 64 << 10;

/// What one attempt on a segment gave.
enum SegmentRead {
    Progress,
    /// Its records up to this offset are in front of what is wanted; go on with the next segment.
    Passed(Offset),
}

impl<E: Env> LedLog<E> {
    /// Reads as far as the tail cache reaches. True if that completes the read, so that the volume is not needed.
    pub fn read_cached(&self, progress: &mut ReadProgress) -> bool {
        self.context.tail_cache.read(self.id, progress);
        let complete = progress.is_complete();
        if complete && !progress.parts.is_empty() {
            self.context.counters.cached_reads.add(1);
        }
        complete
    }

    /// Reads until the request is complete.
    ///
    /// # Errors
    /// Those of the volume, and `InvalidData` when a segment does not hold what it should.
    pub async fn read(&self, progress: &mut ReadProgress) -> io::Result<()> {
        loop {
            let before = progress.offset;
            if self.read_cached(progress) {
                return Ok(());
            }
            if progress.offset == before {
                let replacements = self.replacements.get();
                match self.read_from_volume(progress).await {
                    // What was to be read is in another segment now, and its own is gone.
                    Err(_) if self.replacements.get() != replacements => continue,
                    outcome => outcome?,
                }
                let is_over = progress.offset == before; // Nothing is left, or what is next does not fit.
                // For a few more bytes the volume is not read again.
                if is_over || progress.budget < MIN_READ_BYTES {
                    return Ok(());
                }
            }
        }
    }

    /// Adds the batches that one read of the volume gives.
    async fn read_from_volume(&self, progress: &mut ReadProgress) -> io::Result<()> {
        let segments = self.segments();
        let first = segments.partition_point(|segment| segment.start <= progress.offset).saturating_sub(1);
        for segment in &segments[first..] {
            let limit = segment.end.get().map_or(progress.end, |end| end.min(progress.end));
            if limit <= progress.offset {
                if segment.end.get().is_none_or(|end| end >= progress.end) {
                    break;
                }
                continue;
            }
            // Compaction may leave no record between two segments.
            progress.offset = progress.offset.max(segment.start);
            match self.read_from_segment(segment, limit, progress).await? {
                SegmentRead::Progress => break,
                SegmentRead::Passed(end) if end < limit => return Err(self.lost(segment, end, limit)),
                SegmentRead::Passed(_) => {}
            }
        }
        Ok(())
    }

    fn lost(&self, segment: &Segment<FileOf<E>>, found_end: Offset, should_end: Offset) -> io::Error {
        let path = self.directory.join(segment.name.log());
        let text = format!(
            "{} ends at offset {found_end}, but records up to {should_end} were acknowledged: it was cut off, or the \
             segment behind it is missing",
            path.display()
        );
        io::Error::new(io::ErrorKind::InvalidData, text)
    }

    /// The error of the volume with the name of the file.
    fn unreadable(&self, segment: &Segment<FileOf<E>>, error: &io::Error) -> io::Error {
        let path = self.directory.join(segment.name.log());
        io::Error::new(error.kind(), format!("{} can't be read: {error}", path.display()))
    }

    /// Records that were acknowledged are expected there.
    fn damaged(&self, segment: &Segment<FileOf<E>>, position: u64) -> io::Error {
        let path = self.directory.join(segment.name.log());
        let text = format!("{} is damaged: the batch at byte {position} is not what was written there", path.display());
        io::Error::new(io::ErrorKind::InvalidData, text)
    }

    async fn read_from_segment(
        &self,
        segment: &Rc<Segment<FileOf<E>>>,
        limit: Offset,
        progress: &mut ReadProgress,
    ) -> io::Result<SegmentRead> {
        let open = self.open(segment).await?;
        let hint = self.hints.take(segment.name, progress.offset);
        let (mut position, first_offset) = match hint {
            Some(hint) => (hint.position, hint.offset),
            None => open.index.borrow().place_of(progress.offset),
        };
        let mut check = BatchCheck::new(segment.name, Some(first_offset));
        let mut passed_offset = first_offset;
        let mut wanted = progress.budget.clamp(MIN_READ_BYTES, MAX_READ_BYTES);
        let mut least = MIN_READ_BYTES;
        loop {
            let window = self.read_window(segment, &open, position, least, wanted).await?;
            self.extend_index(segment, &open, position, &window.bytes, limit);
            let (before, end) = (progress.offset, progress.end);
            progress.end = limit;
            let taken = progress.take_checked(&window.bytes, &mut check);
            progress.end = end;
            if progress.offset > before || progress.is_complete() {
                let next = position + taken.passed as u64;
                self.hints.remember(Hint { offset: progress.offset, segment: segment.name, position: next });
                if hint.is_some() && progress.offset < limit {
                    self.read_ahead(segment, &open, next);
                }
                return Ok(SegmentRead::Progress);
            }
            passed_offset = last_next_offset(&window.bytes[..taken.passed]).unwrap_or(passed_offset);
            position += taken.passed as u64;
            match taken.stop {
                Stop::Exhausted if !window.is_last => {}
                Stop::CutOff { needed } if !window.is_last => {
                    if needed > MAX_READ_BYTES && !progress.fits(needed) {
                        return Ok(SegmentRead::Progress);
                    }
                    (least, wanted) = (needed, needed.max(wanted));
                    if needed > MAX_READ_BYTES && position + needed as u64 > open.file.size().await? {
                        return Ok(SegmentRead::Passed(passed_offset));
                    }
                }
                // A compacted segment may end with a gap: what lies at or behind the limit shows that it is complete.
                Stop::Bounds => return Ok(SegmentRead::Passed(limit)),
                Stop::NoBatch if !only_zeros(&window.bytes[taken.passed..]) => {
                    return Err(self.damaged(segment, position));
                }
                Stop::Damaged => return Err(self.damaged(segment, position)),
                _ if segment.may_end_at(position) => return Ok(SegmentRead::Passed(limit)),
                Stop::NoBatch | Stop::Exhausted | Stop::CutOff { .. } => return Ok(SegmentRead::Passed(passed_offset)),
            }
            self.context.env.yield_now().await;
        }
    }

    /// Opens a segment; the one that is appended to is open already, unless others needed its slot.
    pub(crate) async fn open(&self, segment: &Rc<Segment<FileOf<E>>>) -> io::Result<Rc<OpenSegment<FileOf<E>>>> {
        let open_segments = self.share.open_segments(segment);
        if let Some(open) = open_segments.in_use(segment) {
            return Ok(open);
        }
        let counters = &self.context.counters;
        let is_active = segment.end.get().is_none();
        if is_active { &counters.active_segments_reopened } else { &counters.segments_opened }.add(1);
        // Nothing is written under an epoch that is over.
        let mode = if is_active && !self.has_ended() { OpenMode::ReadWrite } else { OpenMode::Read };
        let opened = open_segments.open(&self.context.env, &self.directory, segment, mode).await;
        // The leadership may have ended meanwhile: then the handle is only of whoever asked for it.
        if self.fence.borrow().is_none() {
            segment.close();
        }
        opened.map_err(|error| self.unreadable(segment, &error))
    }

    /// Bytes of a segment from a batch boundary on: those that were read ahead, if they are `least`, or else so many as are
    /// `wanted` from the volume.
    async fn read_window(
        &self,
        segment: &Segment<FileOf<E>>,
        open: &OpenSegment<FileOf<E>>,
        position: u64,
        least: usize,
        wanted: usize,
    ) -> io::Result<Window> {
        // A sequential consumer takes what there is, and begins the next read in time.
        if let Some(chunk) = self.context.read_ahead.find(self.id, segment.name, position, least)
            && let Some(bytes) = chunk.from(position).await
            && bytes.len() >= least
        {
            return Ok(Window { bytes, is_last: false });
        }
        let skipped = usize::try_from(position % BLOCK_BYTES as u64).expect("less than a block");
        let length = (skipped + wanted).next_multiple_of(BLOCK_BYTES);
        let read = open.file.read_at(position - skipped as u64, length).await;
        let bytes = read.map_err(|error| self.unreadable(segment, &error))?;
        self.count_volume_read(bytes.len());
        let is_last = bytes.len() < length;
        Ok(Window { bytes: bytes.slice(skipped.min(bytes.len())..), is_last })
    }

    fn count_volume_read(&self, bytes: usize) {
        self.context.counters.volume_reads.add(1);
        self.context.counters.volume_read_bytes.add(bytes as u64);
    }

    /// Begins to read what a sequential consumer wants next, unless that is there or under way.
    fn read_ahead(&self, segment: &Segment<FileOf<E>>, open: &Rc<OpenSegment<FileOf<E>>>, position: u64) {
        let ahead = &self.context.read_ahead;
        if ahead.find(self.id, segment.name, position, MIN_READ_BYTES).is_some() {
            return;
        }
        let block = position - position % BLOCK_BYTES as u64;
        // Of a segment that is appended to, what is not durable yet would be stale soon.
        let durable = if segment.end.get().is_none() { segment.bytes.get() } else { u64::MAX };
        let length = usize::try_from(durable.saturating_sub(block)).unwrap_or(usize::MAX).min(READ_AHEAD_BYTES);
        if length < MIN_READ_BYTES {
            return;
        }
        let chunk = ahead.begin(self.id, segment.name, block, length);
        let (open, context) = (Rc::clone(open), Rc::clone(&self.context));
        self.context.env.spawn(TaskClass::Latency, async move {
            let content = open.file.read_at(block, length.next_multiple_of(BLOCK_BYTES)).await;
            context.counters.volume_reads.add(1);
            context.counters.reads_ahead.add(1);
            context.counters.volume_read_bytes.add(content.as_ref().map_or(0, Bytes::len) as u64);
            chunk.complete(content);
        });
    }

    /// Shows the batches of a segment from a batch boundary up to `limit`, until `visit` has seen enough.
    ///
    /// # Errors
    /// Those of the volume, and `InvalidData` when the segment does not hold what it should.
    pub(crate) async fn visit_batches(
        &self,
        segment: &Segment<FileOf<E>>,
        open: &OpenSegment<FileOf<E>>,
        mut position: u64,
        limit: Offset,
        mut visit: impl FnMut(RecordBatchView<'_>) -> ControlFlow<()>,
    ) -> io::Result<()> {
        let (mut least, mut wanted) = (MIN_READ_BYTES, MIN_READ_BYTES);
        let first_offset = {
            let index = open.index.borrow();
            // Elsewhere the first batch tells.
            let known = [(0, segment.name.base_offset), (index.covered_bytes, index.next_offset)];
            known.iter().find(|(place, _)| *place == position).map(|(_, offset)| *offset)
        };
        let mut next_offset = first_offset.unwrap_or(segment.start);
        let mut check = BatchCheck::new(segment.name, first_offset);
        while next_offset < limit {
            let window = self.read_window(segment, open, position, least, wanted).await?;
            self.extend_index(segment, open, position, &window.bytes, limit);
            let mut rest = &window.bytes[..];
            let stop = loop {
                let batch = match RecordBatchView::read(rest) {
                    Ok(batch) => batch,
                    Err(error) => break error,
                };
                if !check.admits(batch, limit) {
                    return Err(self.damaged(segment, position));
                }
                // In front of the segment's start compaction has rewritten what is there.
                let counts = batch.base_offset() >= segment.start;
                if batch.base_offset() >= limit || (counts && visit(batch).is_break()) {
                    return Ok(());
                }
                next_offset = batch.next_offset();
                position += batch.size() as u64;
                rest = &rest[batch.size()..];
                if next_offset >= limit {
                    return Ok(());
                }
            };
            match stop {
                // Compaction may leave no record at the end.
                _ if segment.may_end_at(position) && only_zeros(rest) => return Ok(()),
                _ if window.is_last => return Err(self.lost(segment, next_offset, limit)),
                BatchError::Empty => (least, wanted) = (MIN_READ_BYTES, MAX_READ_BYTES),
                BatchError::TooShort { needed, .. } if needed <= MAX_BATCH_BYTES => {
                    (least, wanted) = (needed, needed.max(MAX_READ_BYTES));
                }
                _ => return Err(self.damaged(segment, position)),
            }
            self.context.env.yield_now().await;
        }
        Ok(())
    }

    /// Lets the index cover what was read, where it ended before.
    fn extend_index(
        &self,
        segment: &Segment<FileOf<E>>,
        open: &OpenSegment<FileOf<E>>,
        position: u64,
        bytes: &[u8],
        limit: Offset,
    ) {
        let mut index = open.index.borrow_mut();
        let check = BatchCheck::new(segment.name, Some(index.next_offset));
        extend(&mut index, check, position, bytes, limit, self.settings().index_interval_bytes);
    }
}

/// Part of a segment, from a batch boundary on.
#[derive(Debug)]
pub(crate) struct Window {
    pub bytes: Bytes,
    /// Nothing follows in the file.
    pub is_last: bool,
}

/// Pushes the batches of `bytes`, which lie at `position`, that the index does not cover yet.
fn extend(
    index: &mut SegmentIndex,
    mut check: BatchCheck,
    position: u64,
    bytes: &[u8],
    limit: Offset,
    interval_bytes: u32,
) {
    let end = position + bytes.len() as u64;
    if !(position..end).contains(&index.covered_bytes) {
        return;
    }
    let skip = usize::try_from(index.covered_bytes - position).expect("inside a buffer");
    let mut rest = &bytes[skip..];
    while let Ok(batch) = RecordBatchView::read(rest)
        && batch.base_offset() < limit
        && check.admits(batch, limit)
    {
        let span = BatchSpan {
            base_offset: batch.base_offset(),
            next_offset: batch.next_offset(),
            bytes: batch.size() as u64,
            max_timestamp: largest_timestamp(batch),
        };
        index.push(span, interval_bytes);
        rest = &rest[batch.size()..];
    }
}

/// The largest timestamp of a batch's records, -1 if compaction has left none.
#[must_use]
pub(crate) fn largest_timestamp(batch: RecordBatchView<'_>) -> TimestampMs {
    if batch.record_count() > 0 { batch.max_timestamp() } else { TimestampMs(-1) }
}

/// What fills the last block of a segment.
fn only_zeros(bytes: &[u8]) -> bool {
    bytes.iter().all(|&byte| byte == 0)
}

fn last_next_offset(batches: &[u8]) -> Option<Offset> {
    let mut rest = batches;
    let mut last = None;
    while let Ok(batch) = RecordBatchView::read(rest) {
        last = Some(batch.next_offset());
        rest = &rest[batch.size()..];
    }
    last
}
