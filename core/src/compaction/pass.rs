//! One pass over the log of a partition.
//!
//! It reads the dirty part once, to learn the last offset of each key, then everything from the log start on once more,
//! and writes what stays. Each group of segments is recorded, asked for and switched to by itself: beside the log there
//! is never more than one group twice. A pass that ends early leaves a log that is compacted up to there.

use std::rc::Rc;

use bytes::Bytes;
use kaas_proto::record::{Batches, ControlRecordType, Filtered, Record, RecordBatchView, RecordSet, lookup};
use kaas_proto::types::Offset;

use super::config::CompactionConfig;
use super::error::CompactionError;
use super::offset_map::{MapFull, OffsetMap};
use super::output::{Output, Written, discard};
use super::rules::{Clock, is_last_of_producer};
use super::selection::groups;
use super::source::{Source, SourceRange};
use super::throttle::Throttle;
use super::transactions::{AbortedTransactions, TransactionTracker};
use crate::env::Env;
use crate::log::context::FileOf;
use crate::log::segment::Segment;
use crate::partition::compaction::{Candidate, Compacted};
use crate::partition::leader::Leader;
use crate::planted::{PlantedBug, is_planted};

/// How far a pass came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PassEnd {
    /// Everything that was dirty when it began is compacted.
    Complete,
    /// The map was full before that; another pass is to go on at once.
    MapFull,
}

/// Compacts what a candidate has to compact.
///
/// # Errors
/// Why it ended early. What was compacted until then stays so.
pub async fn compact<E: Env>(
    candidate: &Candidate<E>,
    config: &CompactionConfig,
    throttle: &mut Throttle,
) -> Result<PassEnd, CompactionError> {
    let outcome = pass(candidate, config, throttle).await;
    outcome.map_err(|error| candidate.leader.explain(error, &candidate.segments))
}

async fn pass<E: Env>(
    candidate: &Candidate<E>,
    config: &CompactionConfig,
    throttle: &mut Throttle,
) -> Result<PassEnd, CompactionError> {
    let leader = &candidate.leader;
    let env = leader.context.env();
    let first_dirty = &candidate.segments[candidate.backlog.first_dirty];
    let dirty_offsets = candidate.segments.last().map_or(0, |last| end_of(last).0 - first_dirty.start.0);
    let seeds = [env.random_u64(), env.random_u64()];
    let mut pass = Pass {
        leader,
        clock: Clock { now: leader.context.believed_now(), delete_retention_ms: leader.config().delete_retention_ms },
        map: OffsetMap::new(config.map_bytes, dirty_offsets.unsigned_abs(), seeds),
        tracker: TransactionTracker::new(AbortedTransactions::new(leader.transactions.borrow().aborted())),
        throttle,
    };
    let to = pass.fill_map(&candidate.segments[candidate.backlog.first_dirty..]).await?;
    let count = candidate.segments.partition_point(|segment| segment.start < to);
    for group in groups(&candidate.summaries[..count], leader.config().segment_bytes) {
        pass.rewrite(&candidate.segments[group], to).await?;
    }
    leader.context.log.counters.compaction_passes.add(1);
    let is_complete = candidate.segments.last().is_none_or(|last| end_of(last) <= to);
    Ok(if is_complete { PassEnd::Complete } else { PassEnd::MapFull })
}

/// The end of a segment that is not appended to.
fn end_of<F>(segment: &Segment<F>) -> Offset {
    segment.end.get().expect("the segment that is appended to is no candidate")
}

fn range_of<F>(segment: &Segment<F>, to: Offset) -> SourceRange {
    SourceRange {
        segment: segment.name,
        start: segment.start,
        end: end_of(segment).min(to),
        bytes: if segment.is_compacted() { segment.bytes.get() } else { 0 },
    }
}

struct Pass<'a, E: Env> {
    leader: &'a Rc<Leader<E>>,
    clock: Clock,
    map: OffsetMap,
    tracker: TransactionTracker,
    throttle: &'a mut Throttle,
}

impl<E: Env> Pass<'_, E> {
    fn env(&self) -> &E {
        self.leader.context.env()
    }

    /// Waits as long as the rate of reads and writes asks for. Ends the pass if there is nobody to carry it on for.
    async fn moved(&mut self, bytes: u64) -> Result<(), CompactionError> {
        let env = self.leader.context.env();
        if let Some(pause) = self.throttle.moved(bytes, env.now()) {
            env.sleep(pause).await;
        }
        if self.leader.log().has_ended() {
            return Err(CompactionError::Interrupted("the epoch is over"));
        }
        if self.leader.context.log.reserves.data.refuses_records() {
            return Err(CompactionError::Interrupted("the volume is full"));
        }
        if !self.leader.config().compact {
            return Err(CompactionError::Interrupted("the topic is not compacted any more"));
        }
        Ok(())
    }

    async fn next(&mut self, source: &mut Source<FileOf<E>>) -> Result<Option<Bytes>, CompactionError> {
        let window = source.next().await?;
        if let Some(window) = &window {
            self.leader.context.log.counters.compaction_read_bytes.add(window.len() as u64);
            self.moved(window.len() as u64).await?;
        }
        Ok(window)
    }

    /// Notes the keys of the dirty segments. Says where the pass must end: behind them, or where the map was full.
    async fn fill_map(&mut self, dirty: &[Rc<Segment<FileOf<E>>>]) -> Result<Offset, CompactionError> {
        let mut to = dirty.first().map_or(Offset(0), |first| first.start);
        for (index, segment) in dirty.iter().enumerate() {
            let range = range_of(segment, end_of(segment));
            let mut source = Source::open(self.env().volume(), self.leader.log().directory(), range).await?;
            let full_at = self.note_keys(&mut source).await;
            source.close().await;
            let Some(full_at) = full_at? else {
                to = end_of(segment);
                continue;
            };
            self.leader.context.log.counters.compaction_map_full.add(1);
            // Whole segments if there are any. That the map knows of some records behind does no harm: they stay.
            to = if index > 0 { segment.start } else { full_at };
            if to <= dirty[0].start {
                return Err(CompactionError::MapTooSmall { offset: full_at, map_bytes: self.map.bytes() });
            }
            break;
        }
        self.map.reached(to);
        Ok(to)
    }

    /// Notes the keys of a segment. Returns the offset of the batch at which the map was full, if it was.
    async fn note_keys(&mut self, source: &mut Source<FileOf<E>>) -> Result<Option<Offset>, CompactionError> {
        while let Some(window) = self.next(source).await? {
            for batch in Batches::new(&window).flatten() {
                let never_counted = self.tracker.is_aborted(batch) && !is_planted(PlantedBug::AbortedRecordsReplace);
                if batch.is_control() || never_counted {
                    continue;
                }
                match note(&mut self.map, batch).map_err(|error| unreadable(source, batch, error))? {
                    Ok(()) => {}
                    Err(MapFull) => return Ok(Some(batch.base_offset())),
                }
                self.env().yield_now().await;
            }
        }
        Ok(None)
    }

    /// Writes what stays of a group of segments below `to`, and puts it in their place.
    async fn rewrite(&mut self, group: &[Rc<Segment<FileOf<E>>>], to: Offset) -> Result<(), CompactionError> {
        let (Some(first), Some(last)) = (group.first(), group.last()) else { return Ok(()) };
        let to = end_of(last).min(to);
        let name = self.leader.name_compacted(first.start);
        let directory = self.leader.log().directory().to_path_buf();
        let interval = self.leader.log().settings().index_interval_bytes;
        let env = self.env().clone();
        let mut output = Output::create(&env, &directory, name, interval).await?;
        let mut spent_markers = Vec::new();
        let written = self.fill(&mut output, group, to, &mut spent_markers).await;
        output.close().await;
        match written {
            Ok(written) => {
                let sources = group.to_vec();
                self.leader.replace_compacted(Compacted { written, sources, to, spent_markers }).await
            }
            Err(error) => {
                discard(env.volume(), &directory, name).await;
                Err(error)
            }
        }
    }

    async fn fill(
        &mut self,
        output: &mut Output<E>,
        group: &[Rc<Segment<FileOf<E>>>],
        to: Offset,
        spent_markers: &mut Vec<Offset>,
    ) -> Result<Written, CompactionError> {
        for segment in group {
            let range = range_of(segment, to);
            let mut source = Source::open(self.env().volume(), self.leader.log().directory(), range).await?;
            let outcome = self.filter(&mut source, output, spent_markers).await;
            source.close().await;
            outcome?;
        }
        let written = output.finish().await?;
        let counters = &self.leader.context.log.counters;
        counters.compaction_written_bytes.add(written.bytes);
        Ok(written)
    }

    async fn filter(
        &mut self,
        source: &mut Source<FileOf<E>>,
        output: &mut Output<E>,
        spent_markers: &mut Vec<Offset>,
    ) -> Result<(), CompactionError> {
        while let Some(window) = self.next(source).await? {
            for batch in Batches::new(&window).flatten() {
                let filtered = self.decide(batch, spent_markers);
                let bytes = match filtered.map_err(|reason| unreadable(source, batch, reason))? {
                    Filtered::Dropped => 0,
                    Filtered::Unchanged => output.push(batch).await?,
                    Filtered::Changed(bytes) => {
                        let changed = RecordBatchView::read(&bytes).expect("it was just made");
                        output.push(changed).await?
                    }
                };
                if bytes > 0 {
                    self.moved(bytes).await?;
                }
                self.env().yield_now().await;
            }
        }
        Ok(())
    }

    /// What stays of one batch.
    fn decide(&mut self, batch: RecordBatchView<'_>, spent_markers: &mut Vec<Offset>) -> Result<Filtered, String> {
        let kind = self.tracker.next(batch).map_err(|error| error.to_string())?;
        let log = self.leader.log();
        let is_last = is_last_of_producer(batch, &self.leader.producers.borrow(), log.high_watermark());
        let rule = self.clock.batch_rule(batch, kind, is_last);
        let mut dropped = 0;
        let filtered = if rule.drops_records {
            dropped = u64::try_from(batch.record_count()).unwrap_or(0);
            let ends_aborted =
                batch.is_control() && ControlRecordType::of(batch) != Ok(Some(ControlRecordType::Commit));
            if ends_aborted && dropped > 0 {
                spent_markers.push(batch.base_offset());
            }
            rule.filter.without_records(batch)
        } else {
            let keep = |offset: Offset, record: &Record<'_>| {
                let keeps = self.clock.keeps(&self.map, batch, offset, record);
                dropped += u64::from(!keeps);
                keeps
            };
            rule.filter.apply(batch, keep).map_err(|error| error.to_string())?
        };
        self.leader.context.log.counters.compaction_dropped_records.add(dropped);
        Ok(filtered)
    }
}

/// Notes the keys of one batch.
fn note(map: &mut OffsetMap, batch: RecordBatchView<'_>) -> Result<Result<(), MapFull>, String> {
    let records = RecordSet::read(batch, lookup::MAX_DECOMPRESSED_BYTES).map_err(|error| error.to_string())?;
    for record in &records {
        let record = record.map_err(|error| error.to_string())?;
        if let Some(key) = record.key
            && map.put(key, records.offset(&record)).is_err()
        {
            return Ok(Err(MapFull));
        }
    }
    Ok(Ok(()))
}

fn unreadable<F>(source: &Source<F>, batch: RecordBatchView<'_>, reason: String) -> CompactionError {
    source.damaged(format!("the batch at offset {}: {reason}", batch.base_offset()))
}
