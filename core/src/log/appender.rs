//! The appender: group commit without a timer, and the ask behind every commit.
//!
//! While a write is in flight, further batches queue; when it completes, all that queued goes out as the next write. A
//! commit is acknowledged after an ask of the own fence that began when the commit was complete; one ask covers every
//! commit that was. The next write is in flight during the ask.
//!
//! ```text
//!   write 1 ──────▶ write 2 ──────▶ write 3 ──────▶
//!                   ask ───▶        ask ───▶         ask ───▶
//!                           1 acknowledged  2 …
//! ```
//!
//! A write that fails may still land later: the epoch is over then, nothing more is written under it.

use std::cell::RefCell;
use std::io;
use std::rc::Rc;
use std::sync::Arc;

use bytes::Bytes;
use kaas_proto::reserve::is_full;
use kaas_proto::types::{Offset, TimestampMs};
use tracing::{debug, warn};

use super::append_queue::{NextStep, Ticket, Waiting};
use super::commit::{Commit, Packing, QueuedBatch, Stamp};
use super::context::{FileOf, MAX_QUEUED_BYTES_OF_SHARD};
use super::last_append::LastAppend;
use super::led_log::{EndOfLog, LedLog, LogPosition, WriteHead};
use super::segment::{OpenSegment, Segment};
use crate::env::{BLOCK_BYTES, Env, OpenMode, TaskClass, Volume, VolumeFile, is_gone};
use crate::format::fence::{Fence, RevokedBy};
use crate::format::index::{BatchSpan, SegmentIndex};
use crate::format::partition_file::PartitionFile;
use crate::format::segment_name::SegmentName;
use crate::partition::error::{AppendError, NotLeading};
use crate::planted::{PlantedBug, is_planted};
use crate::shard::operation::Appended;

/// A batch that may be appended, offsets not yet assigned.
#[derive(Clone, Debug)]
pub struct NewBatch {
    pub bytes: Bytes,
    /// How many offsets it takes.
    pub offsets: i64,
    pub max_timestamp: TimestampMs,
    pub stamp: Stamp,
}

impl NewBatch {
    /// -1 for CreateTime.
    #[must_use]
    pub fn log_append_time(&self) -> TimestampMs {
        if self.stamp == Stamp::LogAppendTime { self.max_timestamp } else { TimestampMs(-1) }
    }
}

/// A segment that was begun, and its file.
type BegunSegment<F> = (Rc<Segment<F>>, Rc<OpenSegment<F>>);

impl<E: Env> LedLog<E> {
    /// Whether a batch of this size may be queued now.
    ///
    /// # Errors
    /// The epoch is over, a call hangs, or too many bytes wait.
    pub fn check_room(&self, bytes: usize) -> Result<(), AppendError> {
        if let Some(end) = self.end() {
            return Err(end.append_error());
        }
        if self.reserve.refuses_records() {
            self.context.counters.reserve_refusals.add(1);
            return Err(AppendError::VolumeFull);
        }
        if self.is_stalled() {
            return Err(AppendError::Stalled);
        }
        let queued_in_shard = self.share.queued_bytes.get() + bytes;
        if !self.queue.borrow().has_room(bytes) || queued_in_shard > MAX_QUEUED_BYTES_OF_SHARD {
            self.context.counters.queue_full.add(1);
            return Err(AppendError::QueueFull);
        }
        Ok(())
    }

    /// Gives the batch its offset and queues it. The ticket is answered when it is acknowledged.
    ///
    /// # Panics
    /// After the end of the epoch: [`LedLog::check_room`] comes first, in the same turn.
    pub fn append(self: &Rc<Self>, batch: NewBatch, ticket: Option<Ticket>) -> Offset {
        assert!(!self.has_ended(), "nothing is appended after the end of an epoch");
        let log_append_time = batch.log_append_time();
        let NewBatch { bytes, offsets, max_timestamp, stamp } = batch;
        let mut queue = self.queue.borrow_mut();
        let base_offset = queue.log_end();
        let next_offset = base_offset.plus(offsets);
        self.share.queued_bytes.set(self.share.queued_bytes.get() + bytes.len());
        self.appended_bytes.set(self.appended_bytes.get() + bytes.len() as u64);
        queue.push(QueuedBatch { bytes, base_offset, next_offset, max_timestamp, stamp });
        if let Some(ticket) = ticket {
            let unacknowledged = (next_offset.0 - self.high_watermark().0).unsigned_abs();
            if unacknowledged < self.settings().flush_messages {
                self.context.counters.early_acknowledgements.add(1);
                ticket.answer(Ok(self.appended(base_offset, log_append_time)));
            } else {
                queue.wait(Waiting { until: next_offset, base_offset, log_append_time, ticket });
            }
        }
        drop(queue);
        if !self.writing.replace(true) {
            self.context.env.spawn(TaskClass::Latency, Rc::clone(self).write_queued());
        }
        base_offset
    }

    /// Answers a repeated batch once its original is acknowledged.
    pub fn answer_when_acknowledged(&self, waiting: Waiting) {
        if waiting.until <= self.high_watermark() || is_planted(PlantedBug::DuplicateAboveHighWatermark) {
            let appended = self.appended(waiting.base_offset, waiting.log_append_time);
            waiting.ticket.answer(Ok(appended));
        } else {
            self.queue.borrow_mut().wait(waiting);
        }
    }

    pub(super) fn appended(&self, base_offset: Offset, log_append_time: TimestampMs) -> Appended {
        Appended { base_offset, log_append_time, log_start_offset: self.log_start() }
    }

    /// The write task: runs until nothing is queued.
    async fn write_queued(self: Rc<Self>) {
        let mut head = self.head.take().expect("one task writes at a time");
        while !self.has_ended() {
            // Whoever gave the reserve up needs the room more than what has queued before.
            if self.reserve.refuses_records() && self.queue.borrow().has_batches() {
                self.end_with(EndOfLog::VolumeFull);
                break;
            }
            let settings = self.settings();
            let is_old = settings.is_old(self.context.env.now().since(head.began), head.random);
            let step = self.queue.borrow_mut().next_step(head.position, settings.segment_bytes, is_old);
            match step {
                NextStep::Rest => break,
                NextStep::Roll => self.roll(&mut head),
                NextStep::Write(batches, packed) => {
                    let began = self.context.env.now();
                    self.write_began.set(Some(began));
                    let outcome = self.write(&mut head, &batches, packed).await;
                    self.write_began.set(None);
                    self.context.counters.write_time.record(began, self.context.env.now());
                    self.came_back();
                    if let Err(error) = outcome {
                        self.write_failed(&error).await;
                    }
                }
            }
        }
        self.head.replace(Some(head));
        self.writing.set(false);
        self.rested.notify_waiters();
    }

    async fn write(
        self: &Rc<Self>,
        head: &mut WriteHead<FileOf<E>>,
        batches: &[QueuedBatch],
        packed: Option<Packing>,
    ) -> io::Result<()> {
        let commit = match packed {
            Some(packing) => {
                self.context.counters.commits_packed_ahead.add(1);
                packing.finish(head.file_bytes)
            }
            None => Commit::pack(&head.tail, head.position, head.file_bytes, self.epoch(), batches),
        };
        let queued: usize = batches.iter().map(|batch| batch.bytes.len()).sum();
        self.share.queued_bytes.set(self.share.queued_bytes.get() - queued);
        let (segment, open) = match &head.segment {
            Some(segment) => (Rc::clone(segment), self.open(segment).await?),
            None => {
                let Some((segment, open)) = self.begin_segment(commit.first_offset).await? else { return Ok(()) };
                head.begin(Rc::clone(&segment), &self.context.env);
                (segment, open)
            }
        };
        // Opening may have taken its time.
        if self.has_ended() {
            return Ok(());
        }
        if is_planted(PlantedBug::AskBeforeWrite) {
            drop(self.ask().await);
        }
        if is_planted(PlantedBug::AcknowledgeBeforeDurable) {
            self.publish(&segment, &open, &commit);
        }
        self.queue.borrow_mut().pack_into(commit.pack_next(self.epoch(), self.settings().segment_bytes));
        open.file.write_at(commit.block_position, commit.content.clone()).await?;
        if self.has_ended() {
            return Ok(());
        }
        head.position = commit.end_position;
        head.file_bytes = head.file_bytes.max(commit.file_bytes());
        // Exactly as large as it is: every idle log keeps one.
        head.tail = commit.tail().to_vec();
        if !is_planted(PlantedBug::AcknowledgeBeforeDurable) {
            self.publish(&segment, &open, &commit);
        }
        Ok(())
    }

    /// Creates the segment that begins at `base_offset`, durably; none if the epoch ends before.
    async fn begin_segment(&self, base_offset: Offset) -> io::Result<Option<BegunSegment<FileOf<E>>>> {
        let name = SegmentName::appended(self.epoch(), base_offset);
        let slot = self.share.active_segments.slot(&self.context.env).await;
        if self.has_ended() {
            return Ok(None);
        }
        let volume = self.context.env.volume();
        let file = volume.open(&self.directory.join(name.log()), OpenMode::CreateNew).await?;
        volume.sync_directory(&self.directory).await?;
        let open = Rc::new(OpenSegment::new(file, SegmentIndex::new(base_offset), slot));
        let segment = Segment::new(name, base_offset, None, LastAppend::Before(self.context.env.now()));
        segment.max_timestamp.set(Some(TimestampMs(-1)));
        self.share.active_segments.keep(&segment, &open);
        self.segments.borrow_mut().push(Rc::clone(&segment));
        Ok(Some((segment, open)))
    }

    /// Tells readers of a commit that is durable, and has the fence asked. They see it once it is acknowledged.
    fn publish(self: &Rc<Self>, segment: &Segment<FileOf<E>>, open: &OpenSegment<FileOf<E>>, commit: &Commit) {
        let mut index = open.index.borrow_mut();
        let interval = self.settings().index_interval_bytes;
        let ends = commit.batches.iter().skip(1).map(|next| (next.base_offset, next.position));
        let ends = ends.chain([(commit.next_offset, commit.end_position)]);
        for (batch, (next_offset, end_position)) in commit.batches.iter().zip(ends) {
            let bytes = end_position - batch.position;
            let (base_offset, max_timestamp) = (batch.base_offset, batch.max_timestamp);
            index.push(BatchSpan { base_offset, next_offset, bytes, max_timestamp }, interval);
        }
        segment.bytes.set(commit.end_position);
        let known = segment.max_timestamp.get().unwrap_or(TimestampMs(-1));
        segment.max_timestamp.set(commit.batches.iter().map(|batch| batch.max_timestamp).chain([known]).max());
        segment.last_append.set(LastAppend::Before(self.context.env.now()));
        self.context.tail_cache.insert(self.id, segment.start, commit);
        let bytes = commit.end_position - commit.first_position;
        self.written.set(commit.next_offset);
        self.written_bytes.set(self.written_bytes.get() + bytes);
        self.written_at.set(Some(LogPosition {
            segment: segment.name,
            position: commit.end_position,
            offset: commit.next_offset,
        }));
        let counters = &self.context.counters;
        counters.commits.add(1);
        counters.committed_bytes.add(bytes);
        counters.committed_batches.add(commit.batches.len() as u64);
        if !self.asking.replace(true) {
            self.context.env.spawn(TaskClass::Latency, Rc::clone(self).ask_until_acknowledged());
        }
    }

    async fn write_failed(&self, error: &io::Error) {
        self.context.counters.failed_writes.add(1);
        if self.not_leading_after(error).await.is_some() {
            return;
        }
        if is_planted(PlantedBug::GoOnAfterFailedWrite) {
            self.queue.borrow_mut().forget_queued(self.written.get());
            return;
        }
        if self.context.may_log("write_failed") {
            warn!(directory = %self.directory.display(), epoch = %self.epoch(), %error, "a write failed, the epoch ends");
        }
        self.end_with(if is_full(error) {
            EndOfLog::VolumeFull
        } else {
            EndOfLog::Failed { reason: format!("a write failed: {error}").into() }
        });
    }

    /// Ends the segment that is appended to; the next write begins another. Its index goes to the volume.
    fn roll(self: &Rc<Self>, head: &mut WriteHead<FileOf<E>>) {
        let rolled = std::mem::replace(head, WriteHead::new_segment());
        let Some(segment) = rolled.segment else { return };
        segment.end.set(Some(self.written.get()));
        self.context.counters.segments_rolled.add(1);
        let (log, index) = (Rc::clone(self), segment.index());
        self.context.env.spawn(TaskClass::Background, async move {
            if let Some(index) = index {
                log.write_index(segment.name, &index).await;
            }
            segment.kept_index.take();
            log.share.older_segments.adopt(&segment);
        });
    }

    /// Begins a new, empty segment, so that all others may be unlinked: its name says where the log ends. Does nothing
    /// while records are on their way, or if the newest segment is empty already.
    pub async fn begin_empty_segment(self: &Rc<Self>) {
        if self.writing.replace(true) {
            return;
        }
        let mut head = self.head.take().expect("one task writes at a time");
        if !self.has_ended() && head.position > 0 {
            self.write_began.set(Some(self.context.env.now()));
            self.roll(&mut head);
            match self.begin_segment(self.written.get()).await {
                Ok(Some((segment, _))) => head.begin(segment, &self.context.env),
                Ok(None) => {}
                Err(error) => self.write_failed(&error).await,
            }
            self.write_began.set(None);
            self.came_back();
        }
        self.head.replace(Some(head));
        // What has queued meanwhile; without anything the task ends at once.
        self.context.env.spawn(TaskClass::Latency, Rc::clone(self).write_queued());
    }

    /// Makes the index of an own segment durable. A failure costs a later reader a scan, nothing else.
    pub(crate) async fn write_index(&self, name: SegmentName, index: &RefCell<SegmentIndex>) {
        let content = index.borrow().encode();
        if let Err(error) = self.replace(PartitionFile::Index(name), content).await {
            debug!(directory = %self.directory.display(), segment = %name, %error, "the index was not written");
        }
    }

    /// Writes the index of the segment that is appended to, as far as it goes.
    pub(crate) async fn write_index_of_head(&self) {
        let newest = self.segments.borrow().last().cloned();
        if let Some(segment) = newest.filter(|segment| segment.end.get().is_none())
            && let Some(index) = segment.index()
        {
            self.write_index(segment.name, &index).await;
        }
    }

    /// The ask task: runs until every written commit is acknowledged.
    async fn ask_until_acknowledged(self: Rc<Self>) {
        while !self.has_ended() && self.high_watermark() < self.written.get() {
            // What is complete now is covered by an ask that begins now.
            let covered = (self.written.get(), self.written_bytes.get(), self.written_at.get());
            let skips_ask = is_planted(PlantedBug::NoFenceCheck) || is_planted(PlantedBug::AskBeforeWrite);
            if skips_ask || self.ask().await.is_ok() {
                self.acknowledge(covered.0, covered.1, covered.2);
            }
        }
        self.asking.set(false);
        self.rested.notify_waiters();
    }

    /// Reads the own fence. Anything but an empty one ends the epoch.
    ///
    /// # Errors
    /// Why the epoch is over.
    pub async fn ask(&self) -> Result<(), EndOfLog> {
        let fence = self.fence.borrow().clone();
        let (None, Some(fence)) = (self.end(), fence) else { return Err(self.end().unwrap_or(EndOfLog::Closed)) };
        let outermost = self.ask_began.get().is_none();
        let began = self.context.env.now();
        if outermost {
            self.ask_began.set(Some(began));
        }
        let answer = ask_fence(&*fence).await;
        self.context.counters.ask_time.record(began, self.context.env.now());
        if outermost {
            self.ask_began.set(None);
            self.came_back();
        }
        self.context.counters.asks.add(1);
        match answer {
            Ok(Fence::Held) => {}
            Ok(Fence::Revoked(by)) => self.end_with(superseded(&by)),
            Err(error) => {
                if self.context.may_log("ask_failed") {
                    warn!(directory = %self.directory.display(), epoch = %self.epoch(), %error, "the fence can't be asked");
                }
                self.end_with(if is_gone(&error) {
                    EndOfLog::Gone { what: format!("the own fence: {error}").into() }
                } else {
                    EndOfLog::Failed { reason: format!("the fence can't be asked: {error}").into() }
                });
            }
        }
        self.end().map_or(Ok(()), Err)
    }

    /// Why this shard does not lead any more, if an error is because of that: of a file that is not there any more only the
    /// fence says whether somebody else has removed it.
    pub async fn not_leading_after(&self, error: &io::Error) -> Option<NotLeading> {
        // A file that is shorter than it was may have been cut by a successor.
        if !is_gone(error) && error.kind() != io::ErrorKind::InvalidData {
            return None;
        }
        self.ask().await.err().and_then(|end| end.not_leading())
    }
}

/// What a fence says, through the handle that was kept open since it was created.
///
/// # Errors
/// Those of the read.
pub async fn ask_fence(fence: &impl VolumeFile) -> io::Result<Fence> {
    Ok(Fence::decode(&fence.read_at(0, BLOCK_BYTES).await?))
}

fn superseded(by: &RevokedBy) -> EndOfLog {
    let epoch = match by {
        RevokedBy::Known(revocation) => Some(revocation.epoch),
        RevokedBy::Unreadable => None,
    };
    EndOfLog::Superseded { epoch, by: Arc::from(by.to_string()) }
}
