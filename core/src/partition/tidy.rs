//! What a leader cleans up after its takeover, whenever convenient: dead files, the torn tail, lower fences.
//!
//! Only names of lower epochs that the own, asked manifest calls dead. Fences stay for a while: a deposed leader that asks
//! its fence then reads who deposed it, instead of finding a stale handle.

use std::io;
use std::path::Path;
use std::time::Duration;

use kaas_proto::types::LeaderEpoch;
use tracing::{debug, info, warn};

use crate::env::{OpenMode, Volume, VolumeFile};
use crate::format::inventory::Inventory;
use crate::format::manifest::Manifest;
use crate::format::partition_file::PartitionFile;
use crate::format::segment_name::SegmentName;
use crate::metrics::Counters;

/// How long revoked fences stay.
pub const FENCE_LINGER: Duration = Duration::from_secs(60);

/// Behind the name of a segment that does not count any more and is not deleted: nobody but people reads it.
const KEPT_SUFFIX: &str = ".damaged";

/// Shard-local.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tidy {
    /// Dead by the own manifest.
    unlink: Vec<PartitionFile>,
    /// A live segment of a lower epoch, and where its last record ends.
    cut: Option<(SegmentName, u64)>,
    /// Dead like the rest, but with batches that somebody may miss.
    keep: Vec<SegmentName>,
    /// Revoked by this leader.
    fences: Vec<LeaderEpoch>,
}

impl Tidy {
    /// Decides, given the own manifest, the directory as it was recovered from, and the fences that were revoked.
    #[must_use]
    pub fn plan(
        manifest: &Manifest,
        names: &[String],
        revoked: &[LeaderEpoch],
        torn: Option<(SegmentName, u64)>,
        damaged: &[SegmentName],
    ) -> Self {
        let inventory = Inventory::new(manifest, names.iter().map(String::as_str));
        let is_kept = |file| matches!(file, PartitionFile::Log(segment) if damaged.contains(&segment));
        let is_live = |segment: SegmentName| inventory.live.iter().any(|live| live.segment == segment);
        Self {
            cut: torn.filter(|&(segment, _)| segment.epoch < manifest.epoch && is_live(segment)),
            keep: damaged
                .iter()
                .copied()
                .filter(|segment| inventory.dead.contains(&PartitionFile::Log(*segment)))
                .collect(),
            unlink: inventory.dead.into_iter().filter(|file| !is_kept(*file)).collect(),
            fences: revoked.to_vec(),
        }
    }

    /// Unlinks what is dead and cuts the torn tail. Failures are for the next leader.
    pub async fn run(&self, volume: &impl Volume, directory: &Path, counters: &Counters) {
        for file in &self.unlink {
            match unlink(volume, directory, *file).await {
                Ok(()) if matches!(file, PartitionFile::Log(_)) => counters.segments_deleted.add(1),
                Ok(()) => {}
                Err(error) => debug!(directory = %directory.display(), %file, %error, "a dead file stays for now"),
            }
        }
        for segment in &self.keep {
            let name = segment.log();
            let kept = format!("{name}{KEPT_SUFFIX}");
            let outcome = volume.rename(&directory.join(&name), &directory.join(&kept)).await;
            warn!(directory = %directory.display(), kept, ?outcome, "a damaged segment is out of the way");
        }
        if let Some((segment, length)) = self.cut {
            let outcome = cut(volume, &directory.join(segment.log()), length).await;
            info!(directory = %directory.display(), %segment, length, ?outcome, "cut a torn tail");
        }
    }

    /// Unlinks the fences that were revoked, after [`FENCE_LINGER`].
    pub async fn unlink_fences(&self, volume: &impl Volume, directory: &Path) {
        for &epoch in &self.fences {
            if let Err(error) = unlink(volume, directory, PartitionFile::Fence(epoch)).await {
                debug!(directory = %directory.display(), %epoch, %error, "a revoked fence stays for now");
            }
        }
    }
}

async fn unlink(volume: &impl Volume, directory: &Path, file: PartitionFile) -> io::Result<()> {
    volume.unlink(&directory.join(file.to_string())).await
}

pub(super) async fn cut(volume: &impl Volume, path: &Path, length: u64) -> io::Result<()> {
    let file = volume.open(path, OpenMode::ReadWrite).await?;
    file.truncate(length).await?;
    file.close().await
}

#[cfg(test)]
mod tests {
    use kaas_proto::types::Offset;

    use super::*;
    use crate::format::chain::Chain;

    #[test]
    fn only_dead_names_of_lower_epochs_go() {
        let chain = Chain::default()
            .extend(LeaderEpoch(1), Offset(0))
            .and_then(|chain| chain.extend(LeaderEpoch(3), Offset(9)));
        let manifest = Manifest {
            epoch: LeaderEpoch(3),
            high_watermark: Offset(9),
            log_start_offset: Offset(0),
            chain: chain.unwrap_or_default(),
            replaced: Vec::new(),
            relinquished: false,
        };
        let (live, dead) =
            (SegmentName::appended(LeaderEpoch(1), Offset(0)), SegmentName::appended(LeaderEpoch(2), Offset(4)));
        let files = [
            PartitionFile::Fence(LeaderEpoch(1)),
            PartitionFile::Fence(LeaderEpoch(2)),
            PartitionFile::Fence(LeaderEpoch(3)),
            PartitionFile::Manifest(LeaderEpoch(1)),
            PartitionFile::Manifest(LeaderEpoch(3)),
            PartitionFile::Manifest(LeaderEpoch(4)),
            PartitionFile::Log(live),
            PartitionFile::Log(dead),
        ];
        let names: Vec<_> = files.iter().map(ToString::to_string).chain(["lost+found".to_owned()]).collect();
        let tidy = Tidy::plan(&manifest, &names, &[LeaderEpoch(1)], Some((live, 100)), &[]);
        assert_eq!(tidy.unlink, [PartitionFile::Manifest(LeaderEpoch(1)), PartitionFile::Log(dead)]);
        assert_eq!(tidy.cut, Some((live, 100)));
        assert_eq!(tidy.fences, [LeaderEpoch(1)], "the fence of 2 was made later and is not revoked");
        assert_eq!(Tidy::plan(&manifest, &names, &[], Some((dead, 5)), &[]).cut, None);
        let tidy = Tidy::plan(&manifest, &names, &[], None, &[live, dead]);
        assert_eq!((tidy.unlink, tidy.keep), (vec![PartitionFile::Manifest(LeaderEpoch(1))], vec![dead]));
    }
}
