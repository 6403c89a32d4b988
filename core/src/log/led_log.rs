//! The log of a partition under one leader epoch: what is queued, written, acknowledged, and how the epoch ended.
//!
//! ```text
//!   log start ≤ last stable offset ≤ high watermark ≤ written ≤ log end
//!               (read_committed)     durable, asked   durable   offsets given out
//! ```
//!
//! Shard-local. One task at a time writes, one asks ([`super::appender`]); both run only while there is work, so an idle
//! log has no task and no buffer. Everybody else reads the cells.

use std::cell::{Cell, OnceCell, RefCell};
use std::fmt;
use std::io;
use std::path::PathBuf;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::time::Duration;

use kaas_proto::config::topic::TopicConfig;
use kaas_proto::reserve::{Reserve, is_full};
use kaas_proto::types::{LeaderEpoch, Offset};
use tokio::sync::Notify;

use super::append_queue::AppendQueue;
use super::context::{FileOf, LogContext, Share};
use super::persist::{self, ReplaceError};
use super::read_ahead::Hints;
use super::segment::{Segment, index_interval};
use super::tail_cache::LogId;
use crate::env::{Env, MonotonicTime, is_gone};
use crate::format::partition_file::PartitionFile;
use crate::format::segment_name::SegmentName;
use crate::partition::error::{AppendError, NotLeading};

/// A write, an ask, or a file of the own epoch that takes longer makes appends fail fast until it returns: more must not be appended than
/// a checkpoint can keep up with.
pub const STALL_LIMIT: Duration = Duration::from_secs(30);

/// Why nothing more is written under an epoch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EndOfLog {
    /// A write or an ask failed: whether the write happens is not known.
    Failed { reason: Arc<str> },
    /// The volume had no room for a write.
    VolumeFull,
    /// Somebody revoked the fence. `epoch` is theirs, if it can be read.
    Superseded { epoch: Option<LeaderEpoch>, by: Arc<str> },
    /// Somebody has removed the fence, or the directory: a successor that tidied, or whoever deleted the topic.
    Gone { what: Arc<str> },
    /// Handed over, or given up: this shard was told to.
    Closed,
}

impl EndOfLog {
    /// A file of the own epoch could not be written.
    #[must_use]
    pub fn not_written(what: &str, error: &io::Error) -> Self {
        let text = || format!("{what} can't be written: {error}").into();
        match error {
            error if is_full(error) => Self::VolumeFull,
            error if is_gone(error) => Self::Gone { what: text() },
            _ => Self::Failed { reason: text() },
        }
    }

    /// Why this shard does not lead any more, if that is what it means.
    #[must_use]
    pub fn not_leading(&self) -> Option<NotLeading> {
        match self {
            Self::Failed { .. } | Self::VolumeFull => None,
            Self::Superseded { by, .. } => Some(NotLeading::Superseded { by: Arc::clone(by) }),
            Self::Gone { what } => Some(NotLeading::Gone { what: Arc::clone(what) }),
            Self::Closed => Some(NotLeading::NotHere),
        }
    }

    /// What an append that was not acknowledged is told.
    #[must_use]
    pub fn append_error(&self) -> AppendError {
        match self {
            Self::Failed { reason } => AppendError::Storage(Arc::clone(reason)),
            Self::VolumeFull => AppendError::VolumeFull,
            Self::Superseded { .. } | Self::Gone { .. } | Self::Closed => {
                self.not_leading().unwrap_or(NotLeading::NotHere).into()
            }
        }
    }
}

/// What a log tells the partition that it belongs to. Called in the middle of the log's own work: do little.
pub trait LogObserver {
    /// The high watermark moved.
    fn acknowledged(&self, high_watermark: Offset);
    /// A write or an ask has been hanging for too long (`true`), or came back (`false`).
    fn stalled(&self, stalled: bool);
    /// The epoch is over. Tickets are answered.
    fn ended(&self, end: &EndOfLog);
}

/// A batch boundary of the log that is durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogPosition {
    pub segment: SegmentName,
    pub position: u64,
    pub offset: Offset,
}

/// The topic configurations that a log looks at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogSettings {
    pub segment_bytes: u64,
    pub segment_ms: i64,
    pub segment_jitter_ms: i64,
    pub index_interval_bytes: u32,
    pub flush_messages: u64,
}

impl From<&TopicConfig> for LogSettings {
    fn from(config: &TopicConfig) -> Self {
        Self {
            segment_bytes: config.segment_bytes,
            // A record of the newest segment waits for compaction until that segment rolls.
            segment_ms: if config.compact {
                config.segment_ms.min(config.max_compaction_lag_ms)
            } else {
                config.segment_ms
            },
            segment_jitter_ms: config.segment_jitter_ms,
            index_interval_bytes: index_interval(config.index_interval_bytes, config.segment_bytes),
            flush_messages: config.flush_messages,
        }
    }
}

impl LogSettings {
    /// Whether a segment that was begun so long ago gets no more batches. `random` is the segment's own.
    #[must_use]
    pub fn is_old(&self, age: Duration, random: u64) -> bool {
        let segment_ms = u64::try_from(self.segment_ms).unwrap_or(0);
        let largest_jitter_ms = u64::try_from(self.segment_jitter_ms).unwrap_or(0).min(segment_ms);
        let jitter_ms = random.checked_rem(largest_jitter_ms).unwrap_or(0);
        age.as_millis() >= u128::from(segment_ms - jitter_ms)
    }
}

/// Where the next write goes. Taken by the write task while it runs.
#[derive(Debug)]
pub(super) struct WriteHead<F> {
    /// `None` in front of the first write of a segment: it is created then.
    pub segment: Option<Rc<Segment<F>>>,
    /// The logical end of the segment.
    pub position: u64,
    /// How long its file is: the rest are zeros.
    pub file_bytes: u64,
    /// The bytes of its last partial block.
    pub tail: Vec<u8>,
    /// When the segment was begun: by the clock that nobody sets, or a step back would keep it for ever.
    pub began: MonotonicTime,
    /// Decides the segment's share of `segment.jitter.ms`.
    pub random: u64,
}

impl<F> WriteHead<F> {
    /// From now on this segment is appended to.
    pub(super) fn begin(&mut self, segment: Rc<Segment<F>>, env: &impl Env) {
        (self.began, self.random) = (env.now(), env.random_u64());
        self.segment = Some(segment);
    }

    pub(super) fn new_segment() -> Self {
        Self { segment: None, position: 0, file_bytes: 0, tail: Vec::new(), began: MonotonicTime(0), random: 0 }
    }
}

/// What a takeover hands over.
#[derive(Debug)]
pub struct Recovered<E: Env> {
    pub directory: PathBuf,
    pub epoch: LeaderEpoch,
    pub fence: FileOf<E>,
    /// Of lower epochs, oldest first.
    pub segments: Vec<Rc<Segment<FileOf<E>>>>,
    pub log_start: Offset,
    pub log_end: Offset,
    pub settings: LogSettings,
    /// Of the volume that it is on.
    pub reserve: Reserve,
    /// Of the logs of its kind.
    pub share: Rc<Share<E>>,
}

/// Shard-local.
pub struct LedLog<E: Env> {
    pub(super) context: Rc<LogContext<E>>,
    pub(super) id: LogId,
    pub(super) directory: PathBuf,
    epoch: LeaderEpoch,
    /// While it is missing, no records are accepted.
    pub(super) reserve: Reserve,
    pub(super) share: Rc<Share<E>>,
    pub(super) fence: RefCell<Option<Rc<FileOf<E>>>>,
    pub(super) segments: RefCell<Vec<Rc<Segment<FileOf<E>>>>>,
    /// How often compaction has replaced segments.
    pub(super) replacements: Cell<u64>,
    pub(super) hints: Hints,
    log_start: Cell<Offset>,
    high_watermark: Cell<Offset>,
    pub(super) written: Cell<Offset>,
    pub(super) written_bytes: Cell<u64>,
    pub(super) written_at: Cell<Option<LogPosition>>,
    pub(super) appended_bytes: Cell<u64>,
    acknowledged_bytes: Cell<u64>,
    acknowledged_at: Cell<Option<LogPosition>>,
    pub(super) queue: RefCell<AppendQueue>,
    pub(super) head: RefCell<Option<WriteHead<FileOf<E>>>>,
    pub(super) writing: Cell<bool>,
    pub(super) asking: Cell<bool>,
    pub(super) write_began: Cell<Option<MonotonicTime>>,
    pub(super) ask_began: Cell<Option<MonotonicTime>>,
    /// When the oldest of the own files that are being replaced was begun, and how many there are.
    replacing: Cell<Option<(MonotonicTime, u32)>>,
    stalled: Cell<bool>,
    settings: Cell<LogSettings>,
    end: RefCell<Option<EndOfLog>>,
    observer: OnceCell<Weak<dyn LogObserver>>,
    /// Notified when the log comes to rest, acknowledges or ends.
    pub(super) rested: Notify,
}

impl<E: Env> LedLog<E> {
    /// The log that a takeover found, as leader of its epoch. Call it only after the fence was asked.
    #[must_use]
    pub fn new(context: Rc<LogContext<E>>, recovered: Recovered<E>) -> Rc<Self> {
        let Recovered { directory, epoch, fence, segments, log_start, log_end, settings, reserve, share } = recovered;
        Rc::new(Self {
            id: context.next_log_id(),
            context,
            directory,
            epoch,
            reserve,
            share,
            fence: RefCell::new(Some(Rc::new(fence))),
            segments: RefCell::new(segments),
            replacements: Cell::new(0),
            hints: Hints::default(),
            log_start: Cell::new(log_start),
            high_watermark: Cell::new(log_end),
            written: Cell::new(log_end),
            written_bytes: Cell::new(0),
            written_at: Cell::new(None),
            appended_bytes: Cell::new(0),
            acknowledged_bytes: Cell::new(0),
            acknowledged_at: Cell::new(None),
            queue: RefCell::new(AppendQueue::new(log_end)),
            head: RefCell::new(Some(WriteHead::new_segment())),
            writing: Cell::new(false),
            asking: Cell::new(false),
            write_began: Cell::new(None),
            ask_began: Cell::new(None),
            replacing: Cell::new(None),
            stalled: Cell::new(false),
            settings: Cell::new(settings),
            end: RefCell::default(),
            observer: OnceCell::new(),
            rested: Notify::new(),
        })
    }

    /// Whom to tell. Once, before the first append.
    pub fn observe(&self, observer: Weak<dyn LogObserver>) {
        let first = self.observer.set(observer).is_ok();
        assert!(first, "a log has one observer");
    }

    fn observer(&self) -> Option<Rc<dyn LogObserver>> {
        self.observer.get().and_then(Weak::upgrade)
    }

    #[must_use]
    pub fn epoch(&self) -> LeaderEpoch {
        self.epoch
    }

    #[must_use]
    pub fn directory(&self) -> &std::path::Path {
        &self.directory
    }

    #[must_use]
    pub fn context(&self) -> &Rc<LogContext<E>> {
        &self.context
    }

    /// Records below are deleted.
    #[must_use]
    pub fn log_start(&self) -> Offset {
        self.log_start.get()
    }

    /// Raises the log start, after it was recorded and the fence asked.
    pub fn raise_log_start(&self, offset: Offset) {
        self.log_start.set(self.log_start.get().max(offset));
    }

    /// Everything below is durable and was ours to acknowledge.
    #[must_use]
    pub fn high_watermark(&self) -> Offset {
        self.high_watermark.get()
    }

    /// Everything below is durable.
    #[must_use]
    pub fn written(&self) -> Offset {
        self.written.get()
    }

    /// The offset that the next batch gets.
    #[must_use]
    pub fn log_end(&self) -> Offset {
        self.queue.borrow().log_end()
    }

    /// Bytes that were given offsets since this epoch began.
    #[must_use]
    pub fn appended_bytes(&self) -> u64 {
        self.appended_bytes.get()
    }

    /// Bytes acknowledged since this epoch began.
    #[must_use]
    pub fn acknowledged_bytes(&self) -> u64 {
        self.acknowledged_bytes.get()
    }

    /// The end of the last acknowledged commit; `None` before the first of this epoch.
    #[must_use]
    pub fn acknowledged_at(&self) -> Option<LogPosition> {
        self.acknowledged_at.get()
    }

    #[must_use]
    pub fn settings(&self) -> LogSettings {
        self.settings.get()
    }

    /// Changed topic configurations; they hold for the next commit.
    pub fn set_settings(&self, settings: LogSettings) {
        self.settings.set(settings);
    }

    /// The segments that count, oldest first.
    #[must_use]
    pub fn segments(&self) -> Vec<Rc<Segment<FileOf<E>>>> {
        self.segments.borrow().clone()
    }

    /// Takes segments out that lie wholly below the log start, for unlinking.
    ///
    /// Never the newest of the own epoch: recovery learns from it where the log ends. Where an epoch has none, the chain
    /// says it.
    #[must_use]
    pub fn take_deleted_segments(&self) -> Vec<Rc<Segment<FileOf<E>>>> {
        let mut segments = self.segments.borrow_mut();
        let below = |segment: &Rc<Segment<FileOf<E>>>| segment.end.get().is_some_and(|end| end <= self.log_start.get());
        let mut count = segments.iter().take_while(|segment| below(segment)).count();
        if count == segments.len() && segments.last().is_some_and(|newest| newest.name.epoch == self.epoch) {
            count -= 1;
        }
        segments.drain(..count).collect()
    }

    /// Puts what compaction wrote in the place of the segments that lie within its offsets. `rest` is what is left of a
    /// segment that was compacted in part.
    pub fn replace_segments(&self, compacted: Rc<Segment<FileOf<E>>>, rest: Option<Rc<Segment<FileOf<E>>>>) {
        let (from, to) = (compacted.start, compacted.end.get().expect("what is compacted ends"));
        let mut segments = self.segments.borrow_mut();
        segments.retain(|segment| segment.start < from || segment.start >= to);
        let place = segments.partition_point(|segment| segment.start < from);
        segments.splice(place..place, [Some(compacted), rest].into_iter().flatten());
        self.context.tail_cache.forget_below(self.id, to);
        self.replacements.set(self.replacements.get() + 1);
    }

    /// How often [`LedLog::replace_segments`] was called: a reader that failed may find elsewhere what it looks for.
    #[must_use]
    pub fn replacements(&self) -> u64 {
        self.replacements.get()
    }

    /// Why nothing more is written, if so.
    #[must_use]
    pub fn end(&self) -> Option<EndOfLog> {
        self.end.borrow().clone()
    }

    #[must_use]
    pub fn has_ended(&self) -> bool {
        self.end.borrow().is_some()
    }

    #[must_use]
    pub fn is_stalled(&self) -> bool {
        self.stalled.get()
    }

    /// Ends the epoch: nothing more is written, tickets are answered. Only the first call counts.
    pub fn end_with(&self, end: EndOfLog) {
        if self.has_ended() {
            return;
        }
        self.end.replace(Some(end.clone()));
        let mut queue = self.queue.borrow_mut();
        self.share.queued_bytes.set(self.share.queued_bytes.get() - queue.bytes());
        let waiting = queue.close();
        drop(queue);
        let error = end.append_error();
        waiting.into_iter().for_each(|waiting| waiting.ticket.answer(Err(error.clone())));
        self.rested.notify_waiters();
        if let Some(observer) = self.observer() {
            observer.ended(&end);
        }
    }

    /// Lets go of every handle and of the tail cache. Calls under way keep theirs until they return.
    pub fn close_handles(&self) {
        self.fence.take();
        self.segments.borrow().iter().for_each(|segment| segment.close());
        self.context.tail_cache.forget(self.id);
        self.context.read_ahead.forget(self.id);
    }

    /// Completes when everything queued is written and acknowledged, or the epoch has ended, and no call is under way.
    pub async fn at_rest(&self) {
        loop {
            let rested = self.rested.notified();
            let idle = !self.writing.get() && !self.asking.get();
            if idle && (self.has_ended() || self.queue.borrow().is_empty()) {
                return;
            }
            rested.await;
        }
    }

    /// Completes when everything below `offset` is acknowledged.
    ///
    /// # Errors
    /// The epoch has ended before.
    pub async fn acknowledged_to(&self, offset: Offset) -> Result<(), EndOfLog> {
        loop {
            let moved = self.rested.notified();
            if self.high_watermark() >= offset {
                return Ok(());
            }
            if let Some(end) = self.end() {
                return Err(end);
            }
            moved.await;
        }
    }

    /// Moves the high watermark and answers the tickets that it passes.
    pub(super) fn acknowledge(&self, offset: Offset, bytes: u64, position: Option<LogPosition>) {
        debug_assert!(offset >= self.high_watermark.get(), "the high watermark never falls");
        self.high_watermark.set(offset);
        self.acknowledged_bytes.set(bytes);
        self.acknowledged_at.set(position);
        self.rested.notify_waiters();
        let acknowledged: Vec<_> = self.queue.borrow_mut().acknowledged(offset).collect();
        for waiting in acknowledged {
            let appended = self.appended(waiting.base_offset, waiting.log_append_time);
            waiting.ticket.answer(Ok(appended));
        }
        if let Some(observer) = self.observer() {
            observer.acknowledged(offset);
        }
    }

    /// Marks the log stalled if a call has been hanging for too long.
    pub fn check_stall(&self, now: MonotonicTime) {
        let hangs = |began: Option<MonotonicTime>| {
            began.is_some_and(|began| Duration::from_nanos(now.0.saturating_sub(began.0)) >= STALL_LIMIT)
        };
        let began = [self.write_began.get(), self.ask_began.get(), self.replacing.get().map(|(began, _)| began)];
        if !self.stalled.get() && !self.has_ended() && began.into_iter().any(hangs) {
            self.stalled.set(true);
            self.context.counters.stalls.add(1);
            if let Some(observer) = self.observer() {
                observer.stalled(true);
            }
        }
    }

    /// Replaces a file of the own epoch. While that hangs for too long, the log is stalled.
    ///
    /// # Errors
    /// Those of [`persist::try_replace`].
    pub(crate) async fn replace(&self, file: PartitionFile, content: Vec<u8>) -> Result<(), ReplaceError> {
        let (began, others) = self.replacing.get().unwrap_or((self.context.env.now(), 0));
        self.replacing.set(Some((began, others + 1)));
        // Also when whoever waits gives up.
        let _under_way = UnderWay(self);
        persist::try_replace(&self.context.env, &self.directory, file, content).await
    }

    fn replaced(&self) {
        self.replacing
            .set(self.replacing.get().filter(|&(_, count)| count > 1).map(|(began, count)| (began, count - 1)));
        self.came_back();
    }

    /// A call came back.
    pub(super) fn came_back(&self) {
        let nothing_is_under_way =
            self.write_began.get().is_none() && self.ask_began.get().is_none() && self.replacing.get().is_none();
        if self.stalled.get() && nothing_is_under_way {
            self.stalled.set(false);
            if let Some(observer) = self.observer().filter(|_| !self.has_ended()) {
                observer.stalled(false);
            }
        }
    }
}

/// A file of a log that is being replaced.
struct UnderWay<'a, E: Env>(&'a LedLog<E>);

impl<E: Env> Drop for UnderWay<'_, E> {
    fn drop(&mut self) {
        self.0.replaced();
    }
}

impl<E: Env> Drop for LedLog<E> {
    fn drop(&mut self) {
        self.context.tail_cache.forget(self.id);
        self.context.read_ahead.forget(self.id);
        let queued = self.queue.get_mut().bytes();
        self.share.queued_bytes.set(self.share.queued_bytes.get() - queued);
    }
}

impl<E: Env> fmt::Debug for LedLog<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LedLog")
            .field("directory", &self.directory)
            .field("epoch", &self.epoch)
            .field("high_watermark", &self.high_watermark.get())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn segments_are_old_a_little_earlier_than_told() {
        let settings = |segment_ms, segment_jitter_ms| LogSettings {
            segment_bytes: 0,
            segment_ms,
            segment_jitter_ms,
            index_interval_bytes: 0,
            flush_messages: 1,
        };
        let is_old = |settings: LogSettings, age_ms, random| settings.is_old(Duration::from_millis(age_ms), random);
        let exact = settings(1000, 0);
        assert_eq!([999, 1000].map(|age| is_old(exact, age, 77)), [false, true]);
        let early = settings(1000, 100);
        assert_eq!([922, 923].map(|age| is_old(early, age, 177)), [false, true], "77 off");
        let all = settings(10, i64::MAX);
        assert!((0..50).all(|random| is_old(all, 10, random)), "never more than the whole time is taken off");
        assert!(!is_old(all, 0, 3));
    }
}
