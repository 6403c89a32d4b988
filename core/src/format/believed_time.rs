//! `__cluster/clocks/{broker id}`: until when a broker believed its wall clock. A hint for starts: a clock that is far ahead of all of
//! them deletes nothing for a while.
//!
//! [Sealed JSON](kaas_proto::format::sealed_json) with one member, `believedMs`.

use kaas_proto::format::sealed_json::{self, SealedJsonError};
use kaas_proto::types::TimestampMs;
use serde::{Deserialize, Serialize};

pub const LIMIT_BYTES: usize = 4096;

/// What a broker has written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct BelievedTime {
    pub believed_ms: TimestampMs,
}

impl BelievedTime {
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        sealed_json::encode(self)
    }

    /// # Errors
    /// The file was not written by a broker, or is damaged.
    pub fn decode(bytes: &[u8]) -> Result<Self, SealedJsonError> {
        sealed_json::decode(bytes)
    }
}
