//! Compaction of a led partition: record, ask, act.
//!
//! A compacted segment is stable, then the manifest that names it, then the fence is asked; only then do readers see it,
//! and the segments that it replaces are unlinked. Up to the manifest nobody but this leader knows of the segment. From
//! there on a successor may rely on it: whatever fails then, it stays.

use std::cell::Cell;
use std::io;
use std::rc::Rc;
use std::time::Duration;

use kaas_proto::reserve::is_full;
use kaas_proto::types::{Offset, TimestampMs};
use tracing::{debug, info, warn};

use super::leader::Leader;
use crate::compaction::error::CompactionError;
use crate::compaction::output::{Written, discard};
use crate::compaction::pass::PassEnd;
use crate::compaction::selection::{Backlog, Limits, SegmentSummary, backlog};
use crate::env::{Env, MonotonicTime, Volume};
use crate::format::manifest::{Manifest, Replaced};
use crate::format::partition_file::PartitionFile;
use crate::format::segment_name::SegmentName;
use crate::log::context::FileOf;
use crate::log::led_log::EndOfLog;
use crate::log::segment::Segment;
use crate::planted::{PlantedBug, is_planted};

/// The pause after a failure; doubled with each further one.
const FIRST_BACKOFF: Duration = Duration::from_secs(15);
const MAX_BACKOFF: Duration = Duration::from_secs(600);

/// How long a replaced segment waits for readers that have it open, before it is unlinked in spite of them.
const READER_PATIENCE: Duration = Duration::from_secs(30);
const READER_PAUSE: Duration = Duration::from_millis(20);

/// What a leader remembers of its passes. Shard-local.
#[derive(Debug, Default)]
pub struct Compaction {
    /// Generations that were given out.
    generation: Cell<u32>,
    /// In a row.
    failures: Cell<u32>,
    rests_until: Cell<Option<MonotonicTime>>,
}

/// A partition that has something to compact.
#[derive(Debug)]
pub struct Candidate<E: Env> {
    pub leader: Rc<Leader<E>>,
    /// Those that may be compacted, oldest first, and what was decided by.
    pub segments: Vec<Rc<Segment<FileOf<E>>>>,
    pub summaries: Vec<SegmentSummary>,
    pub backlog: Backlog,
}

/// What is to be put in the place of some segments.
#[derive(Debug)]
pub struct Compacted<F> {
    pub written: Written,
    /// Next to each other, oldest first.
    pub sources: Vec<Rc<Segment<F>>>,
    /// Their end, unless the last one was compacted in part.
    pub to: Offset,
    /// Markers of aborted transactions that are not in it any more.
    pub spent_markers: Vec<Offset>,
}

impl<E: Env> Leader<E> {
    /// What there is to compact; nothing while the partition rests after a failure.
    ///
    /// # Errors
    /// A segment can't be looked at.
    pub(crate) async fn compaction_candidate(&self) -> Result<Option<Candidate<E>>, CompactionError> {
        let config = self.config();
        let (env, log) = (self.context.env(), self.log());
        let rests = self.compaction.rests_until.get().is_some_and(|until| env.now() < until);
        // On a full volume what room there is belongs to takeovers and deletions.
        let waits = rests || self.context.log.reserves.data.refuses_records() || !self.context.clock.has_begun();
        if !config.compact || self.key().slot().is_some() || log.has_ended() || waits {
            return Ok(None);
        }
        let mut segments = log.segments();
        // The newest is appended to, or is the last that was: there is always something at the end of the log.
        segments.pop();
        let limits = Limits {
            min_dirty_ratio: config.min_cleanable_dirty_ratio,
            min_lag_ms: config.min_compaction_lag_ms,
            max_lag_ms: config.max_compaction_lag_ms,
        };
        let now = self.context.believed_now();
        let mut summaries = Vec::with_capacity(segments.len());
        for segment in &segments {
            let Some(end) = segment.end.get() else { break };
            self.learn(segment, limits).await.map_err(|error| self.explain(error, &segments))?;
            let max_timestamp = segment.max_timestamp.get().filter(|timestamp| timestamp.0 >= 0);
            summaries.push(SegmentSummary {
                start: segment.start,
                end,
                bytes: segment.bytes.get(),
                is_compacted: segment.is_compacted(),
                max_timestamp: max_timestamp.unwrap_or_else(|| segment.last_append.get().by_wall_clock(env.now(), now)),
                first_timestamp: segment.first_timestamp.get().unwrap_or(TimestampMs(-1)),
            });
        }
        let Some(backlog) = backlog(&summaries, self.last_stable_offset(), limits, now) else {
            return Ok(None);
        };
        segments.truncate(backlog.segments);
        summaries.truncate(backlog.segments);
        Ok(Some(Candidate { leader: self.this(), segments, summaries, backlog }))
    }

    /// What an error comes to: nothing is wrong if one of the segments was deleted meanwhile.
    pub(crate) fn explain(&self, error: CompactionError, segments: &[Rc<Segment<FileOf<E>>>]) -> CompactionError {
        let log_start = self.log().log_start();
        let is_deleted = segments.iter().any(|segment| segment.end.get().is_some_and(|end| end <= log_start));
        if is_deleted { CompactionError::Interrupted("retention was quicker") } else { error }
    }

    /// Finds out what the decision needs of a segment, and no more.
    async fn learn(&self, segment: &Rc<Segment<FileOf<E>>>, limits: Limits) -> Result<(), CompactionError> {
        let path = self.log().directory().join(segment.name.log());
        let failed = |error: io::Error| CompactionError::volume("can't look at", &path)(error);
        if segment.is_compacted() {
            return Ok(());
        }
        if segment.bytes.get() == 0 {
            segment.bytes.set(self.context.env().volume().size(&path).await.map_err(failed)?);
        }
        if limits.min_lag_ms > 0 {
            self.learn_timestamp(segment).await.map_err(failed)?;
        }
        if limits.max_lag_ms < i64::MAX && segment.first_timestamp.get().is_none() {
            self.learn_first_timestamp(segment).await.map_err(failed)?;
        }
        Ok(())
    }

    /// The name of the next compacted segment that begins at `from`.
    pub(crate) fn name_compacted(&self, from: Offset) -> SegmentName {
        let generation = self.compaction.generation.get() + 1;
        self.compaction.generation.set(generation);
        SegmentName { epoch: self.epoch(), base_offset: from, generation }
    }

    /// Takes note of how a pass ended, and lets the partition rest. After a complete one too: each pass costs several
    /// durable writes, and a log that rolls many segments per second would be kept busy, and slow, by passes over
    /// next to nothing.
    pub(crate) fn compaction_ended(&self, outcome: Result<PassEnd, CompactionError>, backoff: Duration) {
        let compaction = &self.compaction;
        let directory = self.log().directory().display();
        let rest = match outcome {
            Ok(PassEnd::Complete) => {
                compaction.failures.set(0);
                backoff
            }
            Ok(PassEnd::MapFull) => {
                compaction.failures.set(0);
                compaction.rests_until.set(None);
                return;
            }
            Err(error) if error.is_interruption() => {
                debug!(%directory, %error, "a pass of compaction ended early");
                backoff
            }
            Err(error) => {
                let doublings = compaction.failures.get().min(16);
                compaction.failures.set(doublings + 1);
                let rest = FIRST_BACKOFF.saturating_mul(1 << doublings).min(MAX_BACKOFF);
                self.context.log.counters.compaction_failures.add(1);
                if self.context.log.may_log("compaction_failed") {
                    warn!(%directory, %error, retry_in_s = rest.as_secs(), "compaction failed; nothing is lost by it");
                }
                rest
            }
        };
        let now = self.context.env().now();
        let rest_ns = u64::try_from(rest.as_nanos()).unwrap_or(u64::MAX);
        compaction.rests_until.set(Some(MonotonicTime(now.0.saturating_add(rest_ns))));
    }

    /// Puts a compacted segment in the place of its sources.
    ///
    /// # Errors
    /// It did not happen, or is not ours to decide any more.
    pub(crate) async fn replace_compacted(&self, compacted: Compacted<FileOf<E>>) -> Result<(), CompactionError> {
        let (env, log) = (self.context.env(), self.log());
        let directory = log.directory();
        if let Err(error) = self.prepare(&compacted).await {
            discard(env.volume(), directory, compacted.written.name).await;
            return Err(error);
        }
        let mut manifest = self.manifest.lock().await;
        let changed = self.with_replaced(&manifest, &compacted);
        if is_planted(PlantedBug::ReplaceBeforeRecord) {
            for segment in &compacted.sources {
                drop(env.volume().unlink(&directory.join(segment.name.log())).await);
            }
        }
        // Record. If its outcome is not known the epoch ends, and the segment may count.
        let recorded = match self.check_still_wanted(&compacted.sources) {
            Ok(()) => {
                let path = directory.join(PartitionFile::Manifest(self.epoch()).to_string());
                let mut written = self.write_manifest(&changed).await;
                // What was compacted frees more than it needs.
                if written.as_ref().is_err_and(is_full)
                    && self.context.log.make_room(self.key()).await
                    && !log.has_ended()
                {
                    written = self.write_manifest(&changed).await;
                }
                written.map_err(CompactionError::volume("can't replace", path))
            }
            Err(error) => Err(error),
        };
        if let Err(error) = recorded {
            drop(manifest);
            if !log.has_ended() {
                discard(env.volume(), directory, compacted.written.name).await;
            }
            return Err(error);
        }
        *manifest = changed;
        // Ask.
        if !is_planted(PlantedBug::ReplaceWithoutAsk) {
            log.ask().await.map_err(|_| CompactionError::Interrupted("the epoch is over"))?;
        }
        // Act.
        let Compacted { written, sources, to, .. } = compacted;
        self.switch(written, &sources, to);
        drop(manifest);
        self.context.log.counters.compaction_segments_replaced.add(sources.len() as u64);
        info!(directory = %directory.display(), segment = %written.name, %to, bytes = written.bytes, "compacted");
        for segment in &sources {
            let is_left = segment.end.get().is_some_and(|end| end > to);
            self.retire(segment, is_left).await;
        }
        Ok(())
    }

    /// What must be durable before a manifest may name the segment.
    async fn prepare(&self, compacted: &Compacted<FileOf<E>>) -> Result<(), CompactionError> {
        let directory = self.log().directory();
        if !compacted.spent_markers.is_empty() {
            self.transactions.borrow_mut().forget_compacted(&compacted.spent_markers);
        }
        let mut kept = self.keep_what_goes(compacted).await;
        if kept == Err(EndOfLog::VolumeFull) && self.context.log.make_room(self.key()).await {
            kept = self.keep_what_goes(compacted).await;
        }
        match kept {
            Ok(()) => {}
            Err(EndOfLog::Failed { reason }) => return Err(CompactionError::Refused(reason)),
            Err(EndOfLog::VolumeFull) => {
                return Err(CompactionError::Refused("no space is left on the volume".into()));
            }
            Err(EndOfLog::Superseded { .. } | EndOfLog::Gone { .. } | EndOfLog::Closed) => {
                return Err(CompactionError::Interrupted("the epoch is over"));
            }
        }
        let synced = self.context.env().volume().sync_directory(directory).await;
        synced.map_err(CompactionError::volume("can't sync", directory))
    }

    /// Makes durable what producers and transactions need of records that go.
    async fn keep_what_goes(&self, compacted: &Compacted<FileOf<E>>) -> Result<(), EndOfLog> {
        if compacted.spent_markers.is_empty() {
            self.keep_producers_below(compacted.to).await
        } else {
            self.write_present_snapshot().await
        }
    }

    fn with_replaced(&self, manifest: &Manifest, compacted: &Compacted<FileOf<E>>) -> Manifest {
        let Written { name, bytes, .. } = compacted.written;
        let new = Replaced { from: name.base_offset, to: compacted.to, segment: name, bytes: Some(bytes) };
        let mut replaced = manifest.replaced_above(manifest.log_start_offset);
        replaced.retain(|old| old.to <= new.from || old.from >= new.to);
        replaced.push(new);
        replaced.sort_unstable_by_key(|replaced| replaced.from);
        Manifest { high_watermark: self.log().high_watermark(), replaced, ..manifest.clone() }
    }

    /// Whether what was compacted is still there, and ours.
    fn check_still_wanted(&self, sources: &[Rc<Segment<FileOf<E>>>]) -> Result<(), CompactionError> {
        let held = self.log().segments();
        let is_held = |source: &Rc<Segment<_>>| held.iter().any(|segment| Rc::ptr_eq(segment, source));
        if self.log().has_ended() {
            return Err(CompactionError::Interrupted("the epoch is over"));
        }
        if !sources.iter().all(is_held) {
            return Err(CompactionError::Interrupted("retention was quicker"));
        }
        Ok(())
    }

    /// Shows readers the compacted segment.
    fn switch(&self, written: Written, sources: &[Rc<Segment<FileOf<E>>>], to: Offset) {
        let Some(last) = sources.last() else { return };
        let last_append = last.last_append.get();
        let segment = Segment::new(written.name, written.name.base_offset, Some(to), last_append);
        segment.bytes.set(written.bytes);
        segment.max_timestamp.set(Some(written.max_timestamp));
        segment.first_timestamp.set(Some(written.first_timestamp));
        let rest = last.end.get().is_some_and(|end| end > to).then(|| {
            let rest = Segment::new(last.name, to, last.end.get(), last.last_append.get());
            rest.bytes.set(last.bytes.get());
            rest.max_timestamp.set(last.max_timestamp.get());
            rest
        });
        self.log().replace_segments(segment, rest);
    }

    /// Closes a segment that readers do not find any more, and unlinks it unless part of it still counts.
    async fn retire(&self, segment: &Rc<Segment<FileOf<E>>>, is_left: bool) {
        let (env, directory) = (self.context.env(), self.log().directory());
        if let Some(open) = segment.opened() {
            segment.close();
            let mut waited = Duration::ZERO;
            while Rc::strong_count(&open) > 1 && waited < READER_PATIENCE {
                env.sleep(READER_PAUSE).await;
                waited += READER_PAUSE;
            }
            if let Some(open) = Rc::into_inner(open) {
                drop(open.close().await);
            }
        }
        if is_left {
            return;
        }
        // The index first: without its segment it is only litter.
        drop(env.volume().unlink(&directory.join(segment.name.index())).await);
        match env.volume().unlink(&directory.join(segment.name.log())).await {
            Ok(()) => self.context.log.counters.segments_deleted.add(1),
            Err(error) => {
                debug!(directory = %directory.display(), segment = %segment.name, %error, "a replaced segment stays for now");
            }
        }
    }
}
