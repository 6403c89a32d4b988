//! `{epoch:08x}.manifest.json`: what the leader of an epoch established, and has decided since.
//!
//! [Sealed JSON](kaas_proto::format::sealed_json), one object:
//!
//! | member | content |
//! |---|---|
//! | `epoch` | the epoch of the name |
//! | `highWatermark` | at the time of writing; recovery may find more |
//! | `logStartOffset` | records below are deleted |
//! | `chain` | `[[epoch, start offset], …]`, the last entry is this epoch's own |
//! | `replaced` | `[[from, to, "segment", bytes], …]`: offsets that compaction has rewritten, into which segment, and how much of it counts; sorted |
//! | `relinquished` | true if the leader closed the partition in good order: its log ends at `highWatermark` |
//!
//! Later versions may add members; they are ignored here.

use kaas_proto::format::sealed_json::{self, SealedJsonError};
use kaas_proto::types::{LeaderEpoch, Offset};
use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::chain::Chain;
use super::segment_name::SegmentName;

/// A manifest is read whole. 64 KiB hold some 3,000 epochs; a thousand times that is a broken file.
pub const LIMIT_BYTES: usize = 64 << 20;

/// What a leader has made durable about its partition.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Manifest {
    pub epoch: LeaderEpoch,
    pub high_watermark: Offset,
    pub log_start_offset: Offset,
    pub chain: Chain,
    #[serde(default)]
    pub replaced: Vec<Replaced>,
    #[serde(default)]
    pub relinquished: bool,
}

/// Offsets `from..to` are found in `segment` and nowhere else. Written as `[from, to, "segment", bytes]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Row", into = "Row")]
pub struct Replaced {
    pub from: Offset,
    pub to: Offset,
    pub segment: SegmentName,
    /// How many bytes of the segment count. As its records may end with a gap, only this tells whether some are lost.
    /// `None`: not known.
    pub bytes: Option<u64>,
}

/// How a replaced range is written.
#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum Row {
    Sized(Offset, Offset, String, u64),
    Unsized(Offset, Offset, String),
}

impl TryFrom<Row> for Replaced {
    type Error = super::segment_name::InvalidSegmentName;

    fn try_from(row: Row) -> Result<Self, Self::Error> {
        let (from, to, segment, bytes) = match row {
            Row::Sized(from, to, segment, bytes) => (from, to, segment, Some(bytes)),
            Row::Unsized(from, to, segment) => (from, to, segment, None),
        };
        Ok(Self { from, to, segment: segment.parse()?, bytes })
    }
}

impl From<Replaced> for Row {
    fn from(replaced: Replaced) -> Self {
        let Replaced { from, to, segment, bytes } = replaced;
        match bytes {
            Some(bytes) => Self::Sized(from, to, segment.to_string(), bytes),
            None => Self::Unsized(from, to, segment.to_string()),
        }
    }
}

/// Why bytes are no manifest. The partition is Failed: an older manifest is never a substitute.
#[derive(Debug, Error)]
pub enum ManifestError {
    #[error(transparent)]
    Json(#[from] SealedJsonError),
    #[error("the manifest is of epoch {found}, its name says {named}")]
    Epoch { found: LeaderEpoch, named: LeaderEpoch },
    #[error("the chain does not end with the manifest's own epoch {epoch}")]
    ChainEnd { epoch: LeaderEpoch },
    #[error("log start {log_start_offset} and high watermark {high_watermark} are not 0 <= start <= high watermark")]
    Offsets { log_start_offset: Offset, high_watermark: Offset },
    #[error(
        "replaced range {from}..{to} is empty, overlaps the one before it, or names no compacted segment that begins there"
    )]
    Replaced { from: Offset, to: Offset },
}

impl Manifest {
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        sealed_json::encode(self)
    }

    /// The replaced ranges that hold offsets at or above the log start.
    #[must_use]
    pub fn replaced_above(&self, log_start: Offset) -> Vec<Replaced> {
        self.replaced.iter().filter(|replaced| replaced.to > log_start).copied().collect()
    }

    /// Reads the content of the manifest that is named with epoch `named`.
    ///
    /// # Errors
    /// See [`ManifestError`].
    pub fn decode(named: LeaderEpoch, bytes: &[u8]) -> Result<Self, ManifestError> {
        let manifest: Self = sealed_json::decode(bytes)?;
        let Self { epoch, high_watermark, log_start_offset, .. } = manifest;
        if epoch != named {
            return Err(ManifestError::Epoch { found: epoch, named });
        }
        if manifest.chain.last().is_none_or(|last| last.epoch != epoch) {
            return Err(ManifestError::ChainEnd { epoch });
        }
        if log_start_offset < Offset(0) || high_watermark < log_start_offset {
            return Err(ManifestError::Offsets { log_start_offset, high_watermark });
        }
        check_replaced(&manifest.replaced)?;
        Ok(manifest)
    }
}

fn check_replaced(replaced: &[Replaced]) -> Result<(), ManifestError> {
    let mut end = Offset(0);
    for &Replaced { from, to, segment, .. } in replaced {
        if from < end || to <= from || segment.generation == 0 || segment.base_offset != from {
            return Err(ManifestError::Replaced { from, to });
        }
        end = to;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]
    use proptest::prelude::*;

    use super::super::chain::tests::{any_chain, chain};
    use super::super::robustness::assert_damage_is_found;
    use super::*;

    fn manifest() -> Manifest {
        let segment = SegmentName { epoch: LeaderEpoch(4), base_offset: Offset(10), generation: 1 };
        Manifest {
            epoch: LeaderEpoch(5),
            high_watermark: Offset(1000),
            log_start_offset: Offset(7),
            chain: chain(&[(3, 0), (5, 900)]),
            replaced: vec![Replaced { from: Offset(10), to: Offset(200), segment, bytes: None }],
            relinquished: false,
        }
    }

    #[test]
    fn bytes_are_golden() {
        let bytes = manifest().encode();
        let expected = concat!(
            r#"{"epoch":5,"highWatermark":1000,"logStartOffset":7,"chain":[[3,0],[5,900]],"#,
            r#""replaced":[[10,200,"00000004-00000000000000000010-00000001"]],"relinquished":false,"crc32c":"6e0d79e6"}"#,
            "\n"
        );
        assert_eq!(str::from_utf8(&bytes).unwrap(), expected);
        assert_eq!(Manifest::decode(LeaderEpoch(5), expected.as_bytes()).unwrap(), manifest());
    }

    #[test]
    fn sizes_are_golden() {
        let mut sized = manifest();
        sized.replaced[0].bytes = Some(4711);
        let bytes = sized.encode();
        let text = str::from_utf8(&bytes).unwrap();
        assert!(text.contains(r#""replaced":[[10,200,"00000004-00000000000000000010-00000001",4711]],"#), "{text}");
        assert_eq!(Manifest::decode(LeaderEpoch(5), &bytes).unwrap(), sized);
    }

    #[test]
    fn damage_is_found() {
        assert_damage_is_found(&manifest().encode(), |bytes| Manifest::decode(LeaderEpoch(5), bytes));
    }

    #[test]
    fn unknown_members_are_ignored_and_missing_ones_are_not() {
        #[derive(Serialize)]
        struct Later {
            epoch: i32,
            #[serde(rename = "highWatermark")]
            high_watermark: i64,
            #[serde(rename = "logStartOffset")]
            log_start_offset: i64,
            chain: [(i32, i64); 1],
            colour: &'static str,
        }
        let later = Later { epoch: 5, high_watermark: 3, log_start_offset: 0, chain: [(5, 0)], colour: "red" };
        let read = Manifest::decode(LeaderEpoch(5), &sealed_json::encode(&later)).unwrap();
        assert_eq!((read.high_watermark, read.replaced, read.relinquished), (Offset(3), vec![], false));
        let bytes = sealed_json::encode(&std::collections::BTreeMap::from([("epoch", 5)]));
        assert!(matches!(Manifest::decode(LeaderEpoch(5), &bytes), Err(ManifestError::Json(_))));
    }

    #[test]
    fn contradictions_are_refused() {
        let decode = |change: &dyn Fn(&mut Manifest)| {
            let mut changed = manifest();
            change(&mut changed);
            Manifest::decode(LeaderEpoch(5), &changed.encode()).unwrap_err()
        };
        assert!(matches!(decode(&|m| m.epoch = LeaderEpoch(6)), ManifestError::Epoch { .. }));
        assert!(matches!(decode(&|m| m.chain = chain(&[(3, 0)])), ManifestError::ChainEnd { .. }));
        assert!(matches!(decode(&|m| m.chain = Chain::default()), ManifestError::ChainEnd { .. }));
        assert!(matches!(decode(&|m| m.high_watermark = Offset(6)), ManifestError::Offsets { .. }));
        assert!(matches!(decode(&|m| m.log_start_offset = Offset(-1)), ManifestError::Offsets { .. }));
        assert!(matches!(decode(&|m| m.replaced[0].to = Offset(10)), ManifestError::Replaced { .. }));
        assert!(matches!(decode(&|m| m.replaced.push(m.replaced[0])), ManifestError::Replaced { .. }));
        assert!(matches!(decode(&|m| m.replaced[0].segment.generation = 0), ManifestError::Replaced { .. }));
    }

    proptest! {
        #[test]
        fn manifests_come_back(chain in any_chain(), start in 0..1000_i64, more in 0..1000_i64, relinquished: bool) {
            let Some(last) = chain.last() else { return Ok(()) };
            let manifest = Manifest {
                epoch: last.epoch,
                high_watermark: Offset(start + more),
                log_start_offset: Offset(start),
                chain,
                replaced: vec![],
                relinquished,
            };
            prop_assert_eq!(Manifest::decode(last.epoch, &manifest.encode()).unwrap(), manifest);
        }

        #[test]
        fn no_input_panics(bytes: Vec<u8>) {
            prop_assert!(Manifest::decode(LeaderEpoch(5), &bytes).is_err());
        }
    }
}
