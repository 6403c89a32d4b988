//! What a takeover finds: the newest chain, and the end of the log that it leads to.
//!
//! The decisions (what a listing means, where to begin, whether something is missing) are pure; [`Recovery`] carries them
//! out. Nothing is cut, deleted or written here.

use std::io;
use std::path::Path;
use std::rc::Rc;

use kaas_proto::types::{LeaderEpoch, Offset, TimestampMs};
use tracing::{info, warn};

use super::append::note;
use super::producer_state::ProducerTable;
use super::snapshot::restore;
use super::takeover::TakeoverEnd;
use super::transactions::TransactionIndex;
use crate::env::{Env, OpenMode, Volume, VolumeFile};
use crate::format::checkpoint::{self, Checkpoint};
use crate::format::inventory::{Inventory, LiveRange, newest_manifest};
use crate::format::manifest::{self, Manifest};
use crate::format::partition_file::PartitionFile;
use crate::format::producer_snapshot::{self, ProducerSnapshot};
use crate::format::segment_name::SegmentName;
use crate::log::context::LogContext;
use crate::log::last_append::LastAppend;
use crate::log::recovery::{ScanEnd, ScanStart, ScanStop, has_batch_behind, scan};
use crate::log::segment::Segment;
use crate::planted::{PlantedBug, is_planted};

/// How often a manifest may be gone when it is opened before the takeover gives up.
pub(super) const MAX_LISTINGS: usize = 10;

/// What recovery found.
#[derive(Debug)]
pub(super) struct RecoveredState<F> {
    /// The newest one below the own epoch.
    pub manifest: Option<Manifest>,
    /// Those that count, oldest first.
    pub segments: Vec<Rc<Segment<F>>>,
    pub log_start: Offset,
    pub log_end: Offset,
    pub producers: ProducerTable,
    pub transactions: TransactionIndex,
    /// The directory, as listed before it was recovered from.
    pub names: Vec<String>,
    /// The segment with garbage behind its last batch, and where that begins.
    pub torn: Option<(SegmentName, u64)>,
    /// Segments with whole batches behind garbage.
    pub damaged: Vec<SegmentName>,
}

/// The outcome of looking for the newest manifest.
#[derive(Debug)]
pub(super) enum Found {
    /// Nobody has led the partition.
    Nothing,
    Manifest(Box<Manifest>),
    /// It was listed, and is not there any more.
    Gone,
}

/// Reads the newest manifest below `epoch`. An unreadable one is never replaced by an older one.
pub(super) async fn find_manifest<V: Volume>(
    volume: &V,
    directory: &Path,
    names: &[String],
    epoch: LeaderEpoch,
) -> Result<Found, TakeoverEnd> {
    let Some(newest) = newest_manifest(names.iter().map(String::as_str), epoch) else {
        return match first_segment(names) {
            None => Ok(Found::Nothing),
            Some(segment) => Err(TakeoverEnd::refused(format!(
                "{} holds {} but no manifest says what counts; nothing is deleted, restore the manifest",
                directory.display(),
                segment.log()
            ))),
        };
    };
    let path = directory.join(PartitionFile::Manifest(newest).to_string());
    match volume.read(&path, manifest::LIMIT_BYTES).await {
        Ok(bytes) => match Manifest::decode(newest, &bytes) {
            Ok(manifest) if is_planted(PlantedBug::LowestHigherStartCuts) => {
                Ok(Found::Manifest(Box::new(cut_by_lowest_starts(volume, directory, names, manifest).await)))
            }
            Ok(manifest) => Ok(Found::Manifest(Box::new(manifest))),
            Err(error) => Err(TakeoverEnd::refused(format!("{} is damaged: {error}", path.display()))),
        },
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Found::Gone),
        Err(error) => Err(TakeoverEnd::failed(format_args!("{} can't be read", path.display()), &error)),
    }
}

/// What [`PlantedBug::LowestHigherStartCuts`] makes of a chain: each epoch ends where any higher one says that it begins.
async fn cut_by_lowest_starts<V: Volume>(volume: &V, directory: &Path, names: &[String], newest: Manifest) -> Manifest {
    let entries = newest.chain.entries().iter();
    let mut starts: std::collections::BTreeMap<_, _> = entries.map(|entry| (entry.epoch, entry.start)).collect();
    for name in names {
        if let Some(PartitionFile::Manifest(epoch)) = PartitionFile::parse(name)
            && epoch < newest.epoch
            && let Ok(bytes) = volume.read(&directory.join(name), manifest::LIMIT_BYTES).await
            && let Ok(manifest) = Manifest::decode(epoch, &bytes)
        {
            starts.extend(manifest.chain.last().map(|own| (own.epoch, own.start)));
        }
    }
    let mut chain = crate::format::chain::Chain::default();
    for (&epoch, &start) in &starts {
        if starts.range(epoch..).skip(1).all(|(_, &higher)| start < higher) || epoch == newest.epoch {
            chain = chain.extend(epoch, start).unwrap_or(chain);
        }
    }
    Manifest { chain, ..newest }
}

fn first_segment(names: &[String]) -> Option<SegmentName> {
    let segments = names.iter().filter_map(|name| match PartitionFile::parse(name) {
        Some(PartitionFile::Log(segment)) => Some(segment),
        _ => None,
    });
    segments.min()
}

/// Where to verify the log: from the checkpoint if it fits, else from the start of the segment that holds `from`, the
/// offset that the producer snapshot holds for.
fn plan(live: &[LiveRange], from: Offset, checkpoint: Option<Checkpoint>) -> Vec<ScanStart> {
    let whole = |range: &LiveRange| ScanStart {
        segment: range.segment,
        position: 0,
        offset: range.segment.base_offset,
        limit: range.end,
    };
    let mut scans: Vec<_> = live.iter().filter(|range| range.end.is_none_or(|end| end > from)).map(whole).collect();
    if let Some(checkpoint) = checkpoint.filter(|checkpoint| checkpoint.offset <= from)
        && let Some(index) = scans.iter().position(|scan| scan.segment == checkpoint.segment)
        // It says that everything in front of it was verified, but it must not skip what the snapshot lacks.
        && (index == 0 || scans[index].offset <= from)
    {
        scans.drain(..index);
        (scans[0].position, scans[0].offset) = (checkpoint.position, checkpoint.offset);
    }
    scans
}

/// The first offsets between `log_start` and `log_end` that no segment holds.
fn missing(segments: &[(Offset, Offset)], log_start: Offset, log_end: Offset) -> Option<(Offset, Offset)> {
    let mut reached = log_start;
    for &(base, end) in segments {
        if base > reached {
            return Some((reached, base));
        }
        reached = reached.max(end);
    }
    (reached < log_end).then_some((reached, log_end))
}

pub(super) struct Recovery<'a, E: Env> {
    pub(super) env: &'a E,
    pub(super) directory: &'a Path,
    pub(super) log: &'a LogContext<E>,
    pub(super) interrupted: &'a dyn Fn() -> bool,
}

impl<E: Env> Recovery<'_, E> {
    /// Finds the end of the log that the manifest's chain leads to, and rebuilds what is known of it.
    pub(super) async fn run<F>(self, manifest: Manifest, names: Vec<String>) -> Result<RecoveredState<F>, TakeoverEnd>
    where
        E::Volume: Volume<File = F>,
    {
        let inventory = Inventory::new(&manifest, names.iter().map(String::as_str));
        if let Some(segment) = inventory.missing.first() {
            let path = self.directory.join(segment.log());
            return Err(TakeoverEnd::refused(format!("{} is missing, the manifest names it", path.display())));
        }
        let last = manifest.chain.last().expect("decoding checks that the chain ends with the manifest's epoch");
        // The checkpoint first: a snapshot that is read later is not older.
        let checkpoint = self.read_checkpoint(&names, manifest.epoch).await;
        let snapshot = self.read_snapshot(&names, manifest.epoch).await?;
        let now = self.env.wall_clock();
        let (from, (mut producers, mut transactions)) = match snapshot {
            SnapshotFound::Of(snapshot) if is_planted(PlantedBug::SnapshotNotRestored) => {
                (snapshot.offset, Default::default())
            }
            SnapshotFound::Of(snapshot) => (snapshot.offset, restore(&snapshot, now)),
            SnapshotFound::NoProducers => (last.start, Default::default()),
            SnapshotFound::Damaged => (manifest.log_start_offset, Default::default()),
        };
        let high_watermark = checkpoint
            .map_or(manifest.high_watermark, |checkpoint| checkpoint.high_watermark.max(manifest.high_watermark));
        let mut log_end = last.start;
        let (mut torn, mut damaged) = (None, Vec::new());
        let mut found: Vec<(SegmentName, ScanEnd, Option<TimestampMs>)> = Vec::new();
        for start in plan(&inventory.live, from, checkpoint) {
            let mut max_timestamp = TimestampMs(-1);
            let counts_from =
                inventory.live.iter().find(|range| range.segment == start.segment).map(|range| range.start);
            let from = counts_from.map_or(from, |counts_from| counts_from.max(from));
            let (start, end) = self
                .scan(start, |batch| {
                    max_timestamp = max_timestamp.max(batch.max_timestamp());
                    if batch.base_offset() >= from {
                        let (offset, time) = (batch.base_offset(), batch.max_timestamp());
                        let forgot = note(batch, offset, time, now, &mut producers, &mut transactions);
                        self.log.counters.producers_displaced.add(u64::from(forgot));
                    }
                })
                .await?;
            let is_short = match manifest.replaced.iter().find(|replaced| replaced.segment == start.segment) {
                // Compaction leaves gaps: it ends where its bytes do.
                Some(replaced) => replaced.bytes.is_some_and(|bytes| end.position < bytes),
                None => start.limit.is_some_and(|limit| end.offset < limit),
            };
            if is_short {
                return Err(TakeoverEnd::refused(format!(
                    "{} is damaged at byte {}: it should hold records up to offset {}",
                    self.directory.join(start.segment.log()).display(),
                    end.position,
                    start.limit.unwrap_or_default()
                )));
            }
            log_end = log_end.max(start.limit.unwrap_or(end.offset));
            if end.stop == ScanStop::Garbage && self.is_damaged(start.segment, end).await? {
                damaged.push(start.segment);
            } else if end.stop == ScanStop::Garbage || is_planted(PlantedBug::CutBeforeAsk) {
                torn = Some((start.segment, end.position));
            }
            found.push((start.segment, end, (start.position == 0).then_some(max_timestamp)));
        }
        if log_end < high_watermark {
            return Err(TakeoverEnd::refused(format!(
                "{} ends at offset {log_end}, but records up to {high_watermark} were acknowledged: the volume has lost some",
                self.directory.display()
            )));
        }
        let segments = self.segments(&inventory.live, &found, log_end);
        for replaced in &manifest.replaced {
            if let Some(segment) = segments.iter().find(|segment| segment.name == replaced.segment) {
                segment.bytes.set(replaced.bytes.unwrap_or(segment.bytes.get()));
            }
        }
        let ranges: Vec<_> =
            segments.iter().map(|segment| (segment.start, segment.end.get().unwrap_or(log_end))).collect();
        if let Some((first, end)) = missing(&ranges, manifest.log_start_offset, log_end) {
            return Err(TakeoverEnd::refused(format!(
                "{} has no segment for offsets {first} up to {end}",
                self.directory.display()
            )));
        }
        transactions.acknowledged(log_end);
        transactions.forget_below(manifest.log_start_offset);
        Ok(RecoveredState {
            log_start: manifest.log_start_offset,
            manifest: Some(manifest),
            segments,
            log_end,
            producers,
            transactions,
            names,
            torn,
            damaged,
        })
    }

    /// Whether more stands behind the end of a segment than a torn write explains. It does not count, but is not
    /// deleted either.
    async fn is_damaged(&self, segment: SegmentName, end: ScanEnd) -> Result<bool, TakeoverEnd> {
        if segment.generation > 0 {
            return Ok(false);
        }
        let path = self.directory.join(segment.log());
        let failed = |error: io::Error| TakeoverEnd::failed(format_args!("{} can't be read", path.display()), &error);
        let file = self.env.volume().open(&path, OpenMode::Read).await.map_err(failed)?;
        let found = has_batch_behind(self.env, &file, segment, end).await.map_err(failed)?;
        drop(file.close().await);
        if found {
            warn!(segment = %path.display(), position = end.position, offset = %end.offset,
                "damaged: whole batches stand behind bytes that are none; records from this offset on are lost to \
                 consumers unless they were never acknowledged; the file is kept");
        }
        Ok(found)
    }

    /// The live segments as objects. One that was begun and never written to drops out.
    fn segments<F>(
        &self,
        live: &[LiveRange],
        found: &[(SegmentName, ScanEnd, Option<TimestampMs>)],
        log_end: Offset,
    ) -> Vec<Rc<Segment<F>>> {
        let last_append = LastAppend::Before(self.env.now());
        live.iter()
            .filter(|range| range.start < log_end)
            .map(|range| {
                let end = range.end.unwrap_or(log_end);
                let end = if is_planted(PlantedBug::NoTruncation) { Offset(i64::MAX) } else { end };
                let segment = Segment::new(range.segment, range.start, Some(end), last_append);
                if let Some((_, end, max_timestamp)) = found.iter().find(|(name, ..)| *name == range.segment) {
                    segment.bytes.set(end.position);
                    segment.max_timestamp.set(*max_timestamp);
                }
                segment
            })
            .collect()
    }

    /// Verifies one segment. A position behind its end is no place to begin.
    async fn scan(
        &self,
        mut start: ScanStart,
        mut visit: impl FnMut(kaas_proto::record::RecordBatchView<'_>),
    ) -> Result<(ScanStart, ScanEnd), TakeoverEnd> {
        let path = self.directory.join(start.segment.log());
        let failed = |error: io::Error| TakeoverEnd::failed(format_args!("{} can't be read", path.display()), &error);
        let file = self.env.volume().open(&path, OpenMode::Read).await.map_err(failed)?;
        if start.position > 0 && start.position > file.size().await.map_err(failed)? {
            if self.log.may_log("checkpoint_ignored") {
                warn!(segment = %path.display(), position = start.position, "the checkpoint lies behind the end; ignored");
            }
            (start.position, start.offset) = (0, start.segment.base_offset);
        }
        let end = scan(self.env, &file, start, self.interrupted, |batch, _| visit(batch)).await.map_err(failed)?;
        self.log.counters.recovered_bytes.add(end.bytes);
        drop(file.close().await);
        match end.stop {
            ScanStop::Interrupted => Err(TakeoverEnd::Interrupted),
            ScanStop::Garbage if start.limit.is_none() => {
                info!(segment = %path.display(), position = end.position, offset = %end.offset, "a torn tail ends here");
                Ok((start, end))
            }
            ScanStop::Garbage | ScanStop::End | ScanStop::Limit => Ok((start, end)),
        }
    }

    /// A hint: whatever is wrong with it costs time only.
    async fn read_checkpoint(&self, names: &[String], epoch: LeaderEpoch) -> Option<Checkpoint> {
        let name = PartitionFile::Checkpoint(epoch).to_string();
        names.contains(&name).then_some(())?;
        let path = self.directory.join(name);
        let bytes = self.env.volume().read(&path, checkpoint::LIMIT_BYTES).await.ok()?;
        Checkpoint::decode(epoch, &bytes)
            .inspect_err(|error| {
                if self.log.may_log("checkpoint_ignored") {
                    warn!(checkpoint = %path.display(), %error, "ignored: recovery reads more");
                }
            })
            .ok()
    }

    async fn read_snapshot(&self, names: &[String], epoch: LeaderEpoch) -> Result<SnapshotFound, TakeoverEnd> {
        let name = PartitionFile::Producers(epoch).to_string();
        let is_listed = names.contains(&name);
        let path = self.directory.join(name);
        match self.env.volume().read(&path, producer_snapshot::LIMIT_BYTES).await {
            Ok(bytes) => Ok(match ProducerSnapshot::decode(&bytes) {
                Ok(snapshot) => SnapshotFound::Of(snapshot),
                Err(error) => {
                    if self.log.may_log("snapshot_damaged") {
                        warn!(snapshot = %path.display(), %error, "rebuilding producer state from the whole log");
                    }
                    SnapshotFound::Damaged
                }
            }),
            // A listing is no snapshot: it may show a manifest and lack what was written before it. Only the name itself tells.
            Err(error) if error.kind() == io::ErrorKind::NotFound && !is_listed => Ok(SnapshotFound::NoProducers),
            Err(error) => Err(TakeoverEnd::failed(format_args!("{} can't be read", path.display()), &error)),
        }
    }
}

enum SnapshotFound {
    /// The leader of the epoch found no producer and has met none for long: state begins empty with its epoch.
    NoProducers,
    Of(ProducerSnapshot),
    Damaged,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn live(base: i64, end: Option<i64>) -> LiveRange {
        let segment = SegmentName::appended(LeaderEpoch(2), Offset(base));
        LiveRange { segment, start: Offset(base), end: end.map(Offset) }
    }

    fn checkpoint(base: i64, position: u64, offset: i64) -> Checkpoint {
        Checkpoint {
            segment: live(base, None).segment,
            position,
            offset: Offset(offset),
            high_watermark: Offset(offset),
        }
    }

    fn starts(live: &[LiveRange], from: i64, checkpoint: Option<Checkpoint>) -> Vec<(i64, u64, i64)> {
        let scans = plan(live, Offset(from), checkpoint);
        scans.iter().map(|scan| (scan.segment.base_offset.0, scan.position, scan.offset.0)).collect()
    }

    #[test]
    fn recovery_begins_at_the_checkpoint_or_in_front_of_the_snapshot() {
        let segments = [live(0, Some(10)), live(10, Some(20)), live(20, None)];
        assert_eq!(starts(&segments, 20, None), [(20, 0, 20)]);
        assert_eq!(starts(&segments, 25, Some(checkpoint(20, 900, 24))), [(20, 900, 24)]);
        assert_eq!(starts(&segments, 15, None), [(10, 0, 10), (20, 0, 20)]);
        assert_eq!(starts(&segments, 15, Some(checkpoint(10, 700, 14))), [(10, 700, 14), (20, 0, 20)]);
        assert_eq!(starts(&segments, 15, Some(checkpoint(20, 900, 24))), [(10, 0, 10), (20, 0, 20)], "too far");
        assert_eq!(starts(&segments, 25, Some(checkpoint(30, 900, 24))), [(20, 0, 20)], "no such segment");
        assert!(starts(&[], 0, None).is_empty());
    }

    #[test]
    fn holes_are_found() {
        let offset =
            |ranges: &[(i64, i64)]| -> Vec<_> { ranges.iter().map(|&(a, b)| (Offset(a), Offset(b))).collect() };
        assert_eq!(missing(&offset(&[(0, 5), (5, 9)]), Offset(2), Offset(9)), None);
        assert_eq!(missing(&offset(&[(5, 9)]), Offset(2), Offset(9)), Some((Offset(2), Offset(5))));
        assert_eq!(missing(&offset(&[(0, 5), (6, 9)]), Offset(0), Offset(9)), Some((Offset(5), Offset(6))));
        assert_eq!(missing(&[], Offset(9), Offset(9)), None);
        assert_eq!(missing(&[], Offset(3), Offset(9)), Some((Offset(3), Offset(9))));
    }
}
