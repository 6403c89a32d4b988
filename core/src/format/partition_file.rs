//! Names in a partition's directory. Every one begins with the epoch of the leader that writes it.
//!
//! | name | content |
//! |---|---|
//! | `{epoch:08x}.fence` | [`fence`](super::fence) |
//! | `{epoch:08x}.manifest.json` | [`manifest`](super::manifest) |
//! | `{epoch:08x}.producers` | [`producer_snapshot`](super::producer_snapshot) |
//! | `{epoch:08x}.checkpoint.json` | [`checkpoint`](super::checkpoint) |
//! | `{segment}.log` | RecordBatches |
//! | `{segment}.index` | [`index`](super::index) |
//! | `{any of these}.{random:016x}.tmp` | not yet renamed |

use std::fmt;

use kaas_proto::types::LeaderEpoch;

use super::segment_name::{SegmentName, parse_epoch};
use super::{checkpoint, fence, index, manifest, producer_snapshot};

const RANDOM_DIGITS: usize = 16;

/// A file of ours in a partition's directory. Everything else there is foreign and left alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PartitionFile {
    Fence(LeaderEpoch),
    Manifest(LeaderEpoch),
    Producers(LeaderEpoch),
    Checkpoint(LeaderEpoch),
    Log(SegmentName),
    Index(SegmentName),
    /// Left behind by a crash, or about to be renamed by the leader of this epoch.
    Temporary {
        epoch: LeaderEpoch,
        of: TemporaryOf,
        random: u64,
    },
}

/// What a temporary file is going to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum TemporaryOf {
    Manifest,
    Producers,
    Checkpoint,
    Log(SegmentName),
    Index(SegmentName),
}

impl PartitionFile {
    /// None for a name that is not ours.
    #[must_use]
    pub fn parse(name: &str) -> Option<Self> {
        if let Some(rest) = name.strip_suffix(".tmp") {
            let (target, random) = rest.rsplit_once('.')?;
            let digits =
                random.len() == RANDOM_DIGITS && random.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
            let random = digits.then(|| u64::from_str_radix(random, 16).ok()).flatten()?;
            let target = Self::parse_target(target)?;
            return Some(Self::Temporary { epoch: target.epoch(), of: target.temporary()?, random });
        }
        Self::parse_target(name)
    }

    fn parse_target(name: &str) -> Option<Self> {
        let (stem, extension) = name.split_once('.')?;
        Some(match extension {
            "fence" => Self::Fence(parse_epoch(stem)?),
            "manifest.json" => Self::Manifest(parse_epoch(stem)?),
            "producers" => Self::Producers(parse_epoch(stem)?),
            "checkpoint.json" => Self::Checkpoint(parse_epoch(stem)?),
            "log" => Self::Log(stem.parse().ok()?),
            "index" => Self::Index(stem.parse().ok()?),
            _ => return None,
        })
    }

    fn temporary(self) -> Option<TemporaryOf> {
        Some(match self {
            Self::Manifest(_) => TemporaryOf::Manifest,
            Self::Producers(_) => TemporaryOf::Producers,
            Self::Checkpoint(_) => TemporaryOf::Checkpoint,
            Self::Log(segment) => TemporaryOf::Log(segment),
            Self::Index(segment) => TemporaryOf::Index(segment),
            Self::Fence(_) | Self::Temporary { .. } => return None,
        })
    }

    /// Readers refuse a larger one, so nobody writes one. A segment has a limit of its own, which is its topic's.
    #[must_use]
    pub fn limit_bytes(self) -> usize {
        match self {
            Self::Fence(_) => fence::LIMIT_BYTES,
            Self::Manifest(_) => manifest::LIMIT_BYTES,
            Self::Producers(_) => producer_snapshot::LIMIT_BYTES,
            Self::Checkpoint(_) => checkpoint::LIMIT_BYTES,
            Self::Index(_) => index::LIMIT_BYTES,
            Self::Log(_) | Self::Temporary { .. } => usize::MAX,
        }
    }

    /// The epoch of the leader that writes this name.
    #[must_use]
    pub fn epoch(self) -> LeaderEpoch {
        match self {
            Self::Fence(epoch)
            | Self::Manifest(epoch)
            | Self::Producers(epoch)
            | Self::Checkpoint(epoch)
            | Self::Temporary { epoch, .. } => epoch,
            Self::Log(segment) | Self::Index(segment) => segment.epoch,
        }
    }
}

impl fmt::Display for PartitionFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fence(epoch) => write!(f, "{:08x}.fence", epoch.0),
            Self::Manifest(epoch) => write!(f, "{:08x}.manifest.json", epoch.0),
            Self::Producers(epoch) => write!(f, "{:08x}.producers", epoch.0),
            Self::Checkpoint(epoch) => write!(f, "{:08x}.checkpoint.json", epoch.0),
            Self::Log(segment) => write!(f, "{segment}.log"),
            Self::Index(segment) => write!(f, "{segment}.index"),
            Self::Temporary { epoch, of, random } => {
                let target = match *of {
                    TemporaryOf::Manifest => Self::Manifest(*epoch),
                    TemporaryOf::Producers => Self::Producers(*epoch),
                    TemporaryOf::Checkpoint => Self::Checkpoint(*epoch),
                    TemporaryOf::Log(segment) => Self::Log(segment),
                    TemporaryOf::Index(segment) => Self::Index(segment),
                };
                write!(f, "{target}.{random:016x}.tmp")
            }
        }
    }
}

/// The name that a file is written under before it is renamed to `name`.
#[must_use]
pub fn temporary_name(name: &str, random: u64) -> String {
    format!("{name}.{random:016x}.tmp")
}

#[cfg(test)]
mod tests {
    use kaas_proto::types::Offset;
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn names_are_golden() {
        let epoch = LeaderEpoch(7);
        let segment = SegmentName::appended(epoch, Offset(10));
        for (file, name) in [
            (PartitionFile::Fence(epoch), "00000007.fence"),
            (PartitionFile::Manifest(epoch), "00000007.manifest.json"),
            (PartitionFile::Producers(epoch), "00000007.producers"),
            (PartitionFile::Checkpoint(epoch), "00000007.checkpoint.json"),
            (PartitionFile::Log(segment), "00000007-00000000000000000010.log"),
            (PartitionFile::Index(segment), "00000007-00000000000000000010.index"),
            (
                PartitionFile::Temporary { epoch, of: TemporaryOf::Manifest, random: 0xabc },
                "00000007.manifest.json.0000000000000abc.tmp",
            ),
            (
                PartitionFile::Temporary { epoch, of: TemporaryOf::Index(segment), random: 1 },
                "00000007-00000000000000000010.index.0000000000000001.tmp",
            ),
        ] {
            assert_eq!(file.to_string(), name);
            assert_eq!(PartitionFile::parse(name), Some(file));
        }
        assert_eq!(temporary_name("00000007.manifest.json", 0xabc), "00000007.manifest.json.0000000000000abc.tmp");
    }

    #[test]
    fn foreign_names_are_left_alone() {
        for name in [
            "lost+found",
            ".snapshot",
            ".nfs000000000000001200000001",
            "manifest.json",
            "producer-state.snapshot",
            "00000000000000000000.log",
            "00000007.manifest",
            "00000007.fence.0000000000000001.tmp", // fences are created, never renamed
            "00000007.manifest.json.1.tmp",
            "00000007.manifest.json.0000000000000001.tmp.0000000000000001.tmp",
            "00000007-00000000000000000010.log.sealed",
            "",
            ".",
            ".tmp",
        ] {
            assert_eq!(PartitionFile::parse(name), None, "{name}");
        }
    }

    proptest! {
        #[test]
        fn what_parses_is_written_the_same(text in "[0-9a-f]{8}(-[0-9]{20})?\\.(fence|log|index|producers|manifest\\.json)(\\.[0-9a-f]{16}\\.tmp)?") {
            if let Some(file) = PartitionFile::parse(&text) {
                prop_assert_eq!(file.to_string(), text);
            }
        }
    }
}
