//! `{epoch:08x}.fence`: who may still write under an epoch.
//!
//! | content | meaning |
//! |---|---|
//! | no byte | the leader of this epoch leads |
//! | one line of JSON, `{"epoch":6,"broker":2,"timeMs":1735689600000}` and a line feed | revoked by the leader of a higher epoch |
//! | any other byte | revoked, by somebody that can't be told |
//!
//! Created with `O_EXCL`, revoked in place with one synchronous write at offset 0 that cuts nothing: a second
//! revocation may leave the end of a longer line behind its own. Only "no byte" means "leads", so no tear of the
//! write can bring a leader back, and the format needs no checksum.

use std::fmt;

use kaas_proto::types::{BrokerId, LeaderEpoch, TimestampMs};
use kaas_proto::utc_time::UtcTime;
use serde::{Deserialize, Serialize};

/// A line is much shorter; asking reads one block.
pub const LIMIT_BYTES: usize = 4096;

/// What a fence says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fence {
    /// Nobody has revoked it.
    Held,
    Revoked(RevokedBy),
}

/// Who revoked a fence, as far as it can be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RevokedBy {
    Known(Revocation),
    Unreadable,
}

/// What a taker writes into every lower fence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Revocation {
    /// The epoch that takes over.
    pub epoch: LeaderEpoch,
    pub broker: BrokerId,
    pub time_ms: TimestampMs,
}

impl Revocation {
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut line = serde_json::to_vec(self).expect("plain structures serialize");
        line.push(b'\n');
        line
    }
}

impl Fence {
    /// Reads the first block of a fence. Never fails: what is not empty is revoked.
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Self {
        if bytes.is_empty() {
            return Self::Held;
        }
        let line = bytes.split(|&byte| byte == b'\n').next().unwrap_or_default();
        Self::Revoked(serde_json::from_slice(line).map_or(RevokedBy::Unreadable, RevokedBy::Known))
    }
}

impl fmt::Display for RevokedBy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Known(Revocation { epoch, broker, time_ms }) => {
                write!(f, "broker {broker} with epoch {epoch} at {}", UtcTime(*time_ms))
            }
            Self::Unreadable => f.write_str("a broker whose line can't be read"),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const REVOCATION: Revocation =
        Revocation { epoch: LeaderEpoch(6), broker: BrokerId(2), time_ms: TimestampMs(1_735_689_600_000) };

    #[test]
    fn bytes_are_golden() {
        let line = REVOCATION.encode();
        assert_eq!(line, b"{\"epoch\":6,\"broker\":2,\"timeMs\":1735689600000}\n");
        assert_eq!(Fence::decode(&line), Fence::Revoked(RevokedBy::Known(REVOCATION)));
        assert_eq!(RevokedBy::Known(REVOCATION).to_string(), "broker 2 with epoch 6 at 2025-01-01T00:00:00.000Z");
    }

    #[test]
    fn only_no_byte_means_held() {
        assert_eq!(Fence::decode(b""), Fence::Held);
        let line = REVOCATION.encode();
        for length in 1..line.len() {
            assert_ne!(Fence::decode(&line[..length]), Fence::Held);
        }
        for bytes in [&b"\n"[..], &[0; 4096], b"garbage", b"{}"] {
            assert_eq!(Fence::decode(bytes), Fence::Revoked(RevokedBy::Unreadable));
        }
    }

    #[test]
    fn a_shorter_revocation_over_a_longer_one_is_read() {
        let longer = Revocation { epoch: LeaderEpoch(123_456), ..REVOCATION }.encode();
        let shorter = REVOCATION.encode();
        let mut content = longer;
        content[..shorter.len()].copy_from_slice(&shorter);
        assert_eq!(Fence::decode(&content), Fence::Revoked(RevokedBy::Known(REVOCATION)));
    }

    proptest! {
        #[test]
        fn revocations_come_back(epoch: i32, broker: i32, time: i64) {
            let revocation = Revocation { epoch: LeaderEpoch(epoch), broker: BrokerId(broker), time_ms: TimestampMs(time) };
            let line = revocation.encode();
            prop_assert!(line.len() < LIMIT_BYTES);
            prop_assert_eq!(Fence::decode(&line), Fence::Revoked(RevokedBy::Known(revocation)));
        }
    }
}
