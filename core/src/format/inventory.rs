//! What the files of a partition's directory are, given the newest chain: alive, dead, newer, or not ours.
//!
//! A pure function of names. Takeover plans its recovery with it, and what it tidies afterwards.

use kaas_proto::types::{LeaderEpoch, Offset};

use super::manifest::{Manifest, Replaced};
use super::partition_file::PartitionFile;
use super::segment_name::SegmentName;

/// Offsets that count, and the segment that holds them. Whatever else is in that segment is dead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LiveRange {
    pub segment: SegmentName,
    /// The segment's base offset, unless a compacted segment holds its beginning.
    pub start: Offset,
    /// None: open, the last segment of the newest epoch.
    pub end: Option<Offset>,
}

/// The directory, sorted out.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Inventory {
    /// In order of offsets, without overlap. Whether they are without gaps, recovery must see.
    pub live: Vec<LiveRange>,
    /// Compacted segments that hold live offsets and are not in the listing: records are lost, the partition is Failed.
    pub missing: Vec<SegmentName>,
    /// Of lower epochs than the manifest's, and named by nothing that counts. The leader of the manifest's epoch may
    /// unlink them once it leads. Fences are not among them.
    pub dead: Vec<PartitionFile>,
    /// Lower fences: to revoke, and to unlink once revoked.
    pub lower_fences: Vec<LeaderEpoch>,
    /// Of higher epochs than the manifest's. Never touched: somebody else is about to lead.
    pub newer: Vec<PartitionFile>,
    /// Not ours: skipped.
    pub foreign: Vec<String>,
}

/// The highest epoch among files of ours.
#[must_use]
pub fn highest_epoch<'name>(names: impl IntoIterator<Item = &'name str>) -> Option<LeaderEpoch> {
    names.into_iter().filter_map(PartitionFile::parse).map(PartitionFile::epoch).max()
}

/// The highest epoch with a manifest below `below`, whose chain a taker at `below` has to follow.
#[must_use]
pub fn newest_manifest<'name>(names: impl IntoIterator<Item = &'name str>, below: LeaderEpoch) -> Option<LeaderEpoch> {
    let established = |name| match PartitionFile::parse(name) {
        Some(PartitionFile::Manifest(epoch)) if epoch < below => Some(epoch),
        _ => None,
    };
    names.into_iter().filter_map(established).max()
}

impl Inventory {
    /// Sorts a listing by the newest established manifest. Files of the manifest's own epoch are never dead here: its
    /// leader knows what it is writing.
    #[must_use]
    pub fn new<'name>(manifest: &Manifest, names: impl IntoIterator<Item = &'name str>) -> Self {
        let own = manifest.epoch;
        let mut inventory = Self::default();
        let mut files = Vec::new();
        for name in names {
            match PartitionFile::parse(name) {
                None => inventory.foreign.push(name.to_owned()),
                Some(file) if file.epoch() > own => inventory.newer.push(file),
                Some(PartitionFile::Fence(epoch)) if epoch < own => inventory.lower_fences.push(epoch),
                Some(file) => files.push(file),
            }
        }
        inventory.live = live_ranges(manifest, &files);
        let live = |segment| inventory.live.iter().any(|range| range.segment == segment);
        let has = |wanted| files.contains(&wanted);
        let alive = inventory.live.iter().map(|range| range.segment);
        inventory.missing = alive.filter(|&segment| !has(PartitionFile::Log(segment))).collect();
        let dead = |file: &PartitionFile| match *file {
            _ if file.epoch() == own => false,
            PartitionFile::Log(segment) | PartitionFile::Index(segment) => !live(segment),
            // Only what the manifest's own leader wrote counts: before it established itself it made a snapshot of what it
            // had found. One of an epoch in between may speak of records that never counted.
            PartitionFile::Producers(_) | PartitionFile::Checkpoint(_) => true,
            PartitionFile::Manifest(_) | PartitionFile::Temporary { .. } => true,
            PartitionFile::Fence(_) => false,
        };
        inventory.dead = files.iter().filter(|file| dead(file)).copied().collect();
        inventory.dead.sort_unstable();
        inventory.lower_fences.sort_unstable();
        inventory.newer.sort_unstable();
        inventory
    }
}

/// Appended segments within their epoch's part of the chain, each up to the next one, less what compaction has replaced.
fn live_ranges(manifest: &Manifest, files: &[PartitionFile]) -> Vec<LiveRange> {
    let in_chain = |segment: SegmentName| {
        manifest
            .chain
            .range_of(segment.epoch)
            .is_some_and(|(start, end)| start <= segment.base_offset && end.is_none_or(|end| segment.base_offset < end))
    };
    let mut appended: Vec<SegmentName> = files
        .iter()
        .filter_map(|file| match *file {
            PartitionFile::Log(segment) if segment.generation == 0 && in_chain(segment) => Some(segment),
            _ => None,
        })
        .collect();
    // In a chain, rising epochs hold rising offsets: this is the order of offsets too.
    appended.sort_unstable();
    let mut live = Vec::new();
    for (index, &segment) in appended.iter().enumerate() {
        let end_of_epoch = manifest.chain.range_of(segment.epoch).and_then(|(_, end)| end);
        let next = appended.get(index + 1).filter(|next| next.epoch == segment.epoch).map(|next| next.base_offset);
        subtract_replaced(
            manifest,
            LiveRange { segment, start: segment.base_offset, end: next.or(end_of_epoch) },
            &mut live,
        );
    }
    live.extend(manifest.replaced.iter().map(|&Replaced { from, to, segment, .. }| LiveRange {
        segment,
        start: from,
        end: Some(to),
    }));
    live.retain(|range| range.end.is_none_or(|end| end > manifest.log_start_offset));
    live.sort_unstable_by_key(|range| range.start);
    live
}

/// Adds to `live` what is left of a range without the replaced ones, which are sorted.
fn subtract_replaced(manifest: &Manifest, range: LiveRange, live: &mut Vec<LiveRange>) {
    let mut start = range.start;
    for replaced in &manifest.replaced {
        let ends_before = range.end.is_some_and(|end| end <= replaced.from);
        if replaced.to <= start || ends_before {
            continue;
        }
        if start < replaced.from {
            live.push(LiveRange { start, end: Some(replaced.from), ..range });
        }
        start = replaced.to;
    }
    if range.end.is_none_or(|end| start < end) {
        live.push(LiveRange { start, ..range });
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::chain::tests::{any_chain, chain};
    use super::*;

    fn appended(epoch: i32, base: i64) -> SegmentName {
        SegmentName::appended(LeaderEpoch(epoch), Offset(base))
    }

    fn compacted(epoch: i32, base: i64) -> SegmentName {
        SegmentName { generation: 1, ..appended(epoch, base) }
    }

    fn range(segment: SegmentName, start: i64, end: Option<i64>) -> LiveRange {
        LiveRange { segment, start: Offset(start), end: end.map(Offset) }
    }

    fn manifest(epochs: &[(i32, i64)], log_start: i64) -> Manifest {
        let chain = chain(epochs);
        Manifest {
            epoch: chain.last().map_or(LeaderEpoch(0), |last| last.epoch),
            high_watermark: Offset(log_start),
            log_start_offset: Offset(log_start),
            chain,
            replaced: vec![],
            relinquished: false,
        }
    }

    fn sort(manifest: &Manifest, files: &[PartitionFile]) -> Inventory {
        let names: Vec<_> = files.iter().map(ToString::to_string).collect();
        Inventory::new(manifest, names.iter().map(String::as_str))
    }

    #[test]
    fn an_overtaken_leaders_segment_is_dead_although_its_offset_is_high() {
        let manifest = manifest(&[(1, 0), (3, 10)], 0);
        let names = [
            "00000001-00000000000000000000.log",
            "00000001-00000000000000000000.index",
            "00000001-00000000000000000010.log", // rolled by epoch 1 after it was deposed
            "00000001-00000000000000000010.index",
            "00000002-00000000000000000005.log", // an overtaken candidate: must not cut epoch 1
            "00000003-00000000000000000010.log",
            "00000001.manifest.json",
            "00000002.manifest.json.00000000000000ff.tmp",
            "00000001.producers",
            "00000003.manifest.json",
            "00000001.fence",
            "00000003.fence",
            "00000004.fence",
            "lost+found",
        ];
        let inventory = Inventory::new(&manifest, names);
        assert_eq!(inventory.live, [range(appended(1, 0), 0, Some(10)), range(appended(3, 10), 10, None)]);
        let dead: Vec<_> = inventory.dead.iter().map(ToString::to_string).collect();
        assert_eq!(
            dead,
            [
                "00000001.manifest.json",
                "00000001.producers",
                "00000001-00000000000000000010.log",
                "00000002-00000000000000000005.log",
                "00000001-00000000000000000010.index",
                "00000002.manifest.json.00000000000000ff.tmp",
            ]
        );
        assert_eq!(inventory.lower_fences, [LeaderEpoch(1)]);
        assert_eq!(inventory.newer, [PartitionFile::Fence(LeaderEpoch(4))]);
        assert_eq!(inventory.foreign, ["lost+found"]);
        assert_eq!(highest_epoch(names), Some(LeaderEpoch(4)));
        assert_eq!(newest_manifest(names, LeaderEpoch(3)), Some(LeaderEpoch(1)));
        assert_eq!(newest_manifest(names, LeaderEpoch(1)), None);
    }

    #[test]
    fn a_snapshot_dies_with_its_epoch() {
        let manifest = manifest(&[(1, 0), (2, 5)], 0);
        let [old, own] = [1, 2].map(|epoch| PartitionFile::Producers(LeaderEpoch(epoch)));
        assert_eq!(sort(&manifest, &[old, own]).dead, [old]);
    }

    #[test]
    fn compaction_replaces() {
        let mut manifest = manifest(&[(1, 0), (2, 30)], 0);
        let files = [appended(1, 0), appended(1, 10), appended(1, 20), appended(2, 30), compacted(2, 0)]
            .map(PartitionFile::Log);
        // The output that no manifest names yet is its leader's own business.
        let before = sort(&manifest, &files);
        assert_eq!((before.live.len(), before.dead.len()), (4, 0));
        manifest.replaced = vec![Replaced { from: Offset(0), to: Offset(20), segment: compacted(2, 0), bytes: None }];
        let after = sort(&manifest, &files);
        assert_eq!(
            after.live,
            [
                range(compacted(2, 0), 0, Some(20)),
                range(appended(1, 20), 20, Some(30)),
                range(appended(2, 30), 30, None)
            ]
        );
        assert_eq!(after.dead, [PartitionFile::Log(appended(1, 0)), PartitionFile::Log(appended(1, 10))]);
        let lost = sort(&manifest, &files[..4]);
        assert_eq!(lost.missing, [compacted(2, 0)]);
        // A range may even end inside a segment.
        manifest.replaced[0].to = Offset(25);
        assert_eq!(sort(&manifest, &files).live[1], range(appended(1, 20), 25, Some(30)));
    }

    #[test]
    fn retention_kills_whole_segments_below_the_log_start() {
        let manifest = manifest(&[(1, 0), (2, 30)], 12);
        let files = [appended(1, 0), appended(1, 10), appended(2, 30)].map(PartitionFile::Log);
        let inventory = sort(&manifest, &files);
        assert_eq!(inventory.live, [range(appended(1, 10), 10, Some(30)), range(appended(2, 30), 30, None)]);
        assert_eq!(inventory.dead, [PartitionFile::Log(appended(1, 0))]);
    }

    proptest! {
        /// Offset by offset: the segment with the highest base at or below it, of the epoch that the chain names.
        #[test]
        fn ranges_follow_the_chain_rule(
            chain in any_chain(),
            bases in proptest::collection::btree_set((1..30_i32, 0..250_i64), 0..20),
            cut in (0..250_i64, 1..100_i64),
        ) {
            let Some(last) = chain.last() else { return Ok(()) };
            let segment = compacted(last.epoch.0, cut.0);
            let replaced = Replaced { from: Offset(cut.0), to: Offset(cut.0 + cut.1), segment, bytes: None };
            let manifest = Manifest { epoch: last.epoch, replaced: vec![replaced], chain, ..manifest(&[(1, 0)], 0) };
            let segments: Vec<_> = bases.iter().map(|&(epoch, base)| appended(epoch, base)).collect();
            let files: Vec<_> = segments.iter().copied().map(PartitionFile::Log).collect();
            let inventory = sort(&manifest, &files);
            for offset in (0..300).map(Offset) {
                let epoch = manifest.chain.epoch_of(offset);
                let start = epoch.and_then(|epoch| manifest.chain.range_of(epoch)).map(|(start, _)| start);
                let expected = if replaced.from <= offset && offset < replaced.to {
                    Some(segment)
                } else {
                    segments
                        .iter()
                        .filter(|s| Some(s.epoch) == epoch && Some(s.base_offset) >= start && s.base_offset <= offset)
                        .max()
                        .copied()
                };
                let found: Vec<_> = inventory
                    .live
                    .iter()
                    .filter(|range| range.start <= offset && range.end.is_none_or(|end| offset < end))
                    .map(|range| range.segment)
                    .collect();
                prop_assert_eq!(found, expected.into_iter().collect::<Vec<_>>());
            }
        }
    }
}
