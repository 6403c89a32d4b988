//! `{epoch:08x}.checkpoint.json`: where recovery of the active segment may begin. A hint: everything in front of it
//! was verified or written by this leader and is durable.
//!
//! [Sealed JSON](kaas_proto::format::sealed_json), one object:
//!
//! | member | content |
//! |---|---|
//! | `segment` | the segment's name without `.log` |
//! | `position` | bytes from the start of the segment, a batch boundary |
//! | `offset` | the offset of the batch at `position` |
//! | `highWatermark` | at the time of writing |
//!
//! Useful only together with a producer snapshot and an index that hold for `offset`. A checkpoint that does not fit
//! the segment (no such segment, position behind its end) is ignored: recovery then begins at the segment's start.

use kaas_proto::format::sealed_json::{self, SealedJsonError};
use kaas_proto::types::{LeaderEpoch, Offset};
use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::segment_name::{InvalidSegmentName, SegmentName};

pub const LIMIT_BYTES: usize = 4096;

/// Where recovery may begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Written", into = "Written")]
pub struct Checkpoint {
    pub segment: SegmentName,
    pub position: u64,
    pub offset: Offset,
    pub high_watermark: Offset,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Written {
    segment: String,
    position: u64,
    offset: Offset,
    high_watermark: Offset,
}

impl TryFrom<Written> for Checkpoint {
    type Error = InvalidSegmentName;

    fn try_from(written: Written) -> Result<Self, InvalidSegmentName> {
        let Written { segment, position, offset, high_watermark } = written;
        Ok(Self { segment: segment.parse()?, position, offset, high_watermark })
    }
}

impl From<Checkpoint> for Written {
    fn from(checkpoint: Checkpoint) -> Self {
        let Checkpoint { segment, position, offset, high_watermark } = checkpoint;
        Self { segment: segment.to_string(), position, offset, high_watermark }
    }
}

/// Why bytes are no checkpoint. Never more than a lost shortcut.
#[derive(Debug, Error)]
pub enum CheckpointError {
    #[error(transparent)]
    Json(#[from] SealedJsonError),
    #[error("segment {segment} is not of the epoch in the file's name, {named}")]
    Epoch { segment: SegmentName, named: LeaderEpoch },
    #[error("offset {offset} lies below the segment's base offset")]
    Offset { offset: Offset },
}

impl Checkpoint {
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        sealed_json::encode(self)
    }

    /// # Errors
    /// See [`CheckpointError`].
    pub fn decode(named: LeaderEpoch, bytes: &[u8]) -> Result<Self, CheckpointError> {
        let checkpoint: Self = sealed_json::decode(bytes)?;
        let Self { segment, offset, .. } = checkpoint;
        if segment.epoch != named {
            return Err(CheckpointError::Epoch { segment, named });
        }
        if offset < segment.base_offset {
            return Err(CheckpointError::Offset { offset });
        }
        Ok(checkpoint)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]
    use proptest::prelude::*;

    use super::super::robustness::assert_damage_is_found;
    use super::*;

    const CHECKPOINT: Checkpoint = Checkpoint {
        segment: SegmentName { epoch: LeaderEpoch(5), base_offset: Offset(900), generation: 0 },
        position: 67_108_864,
        offset: Offset(1234),
        high_watermark: Offset(1230),
    };

    #[test]
    fn bytes_are_golden() {
        let expected = concat!(
            r#"{"segment":"00000005-00000000000000000900","position":67108864,"offset":1234,"highWatermark":1230,"#,
            r#""crc32c":"a2bd9c4b"}"#,
            "\n"
        );
        assert_eq!(String::from_utf8(CHECKPOINT.encode()).unwrap(), expected);
        assert_eq!(Checkpoint::decode(LeaderEpoch(5), expected.as_bytes()).unwrap(), CHECKPOINT);
    }

    #[test]
    fn damage_is_found() {
        assert_damage_is_found(&CHECKPOINT.encode(), |bytes| Checkpoint::decode(LeaderEpoch(5), bytes));
        assert!(matches!(Checkpoint::decode(LeaderEpoch(6), &CHECKPOINT.encode()), Err(CheckpointError::Epoch { .. })));
        let low = Checkpoint { offset: Offset(899), ..CHECKPOINT }.encode();
        assert!(matches!(Checkpoint::decode(LeaderEpoch(5), &low), Err(CheckpointError::Offset { .. })));
    }

    proptest! {
        #[test]
        fn checkpoints_come_back(position: u64, offset in 900..i64::MAX, high_watermark: i64) {
            let checkpoint =
                Checkpoint { position, offset: Offset(offset), high_watermark: Offset(high_watermark), ..CHECKPOINT };
            prop_assert_eq!(Checkpoint::decode(LeaderEpoch(5), &checkpoint.encode()).unwrap(), checkpoint);
        }
    }
}
