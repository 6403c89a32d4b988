//! `__cluster/cluster-id`: 22 characters of base64url, and a line feed that may be missing.
//!
//! Created once with `O_EXCL` by the first broker on a volume, never changed.

use std::fmt;

use crate::types::TopicId;
use thiserror::Error;

pub const LIMIT_BYTES: usize = 64;

/// Names a cluster for its clients. Looks like a topic id, as in Kafka.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClusterId(TopicId);

/// A text that is no cluster id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("a cluster id is 22 characters of base64url")]
pub struct InvalidClusterId;

impl ClusterId {
    #[must_use]
    pub fn random() -> Self {
        Self(TopicId::random())
    }

    /// What clients are told while the volume's own id can't be read. Says so itself.
    #[must_use]
    pub fn unreadable() -> Self {
        Self("cluster-id-unreadableA".parse().expect("22 characters of base64url"))
    }

    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        format!("{self}\n").into_bytes()
    }

    /// # Errors
    /// When the content is anything else.
    pub fn decode(bytes: &[u8]) -> Result<Self, InvalidClusterId> {
        let line = bytes.strip_suffix(b"\n").unwrap_or(bytes);
        let id: TopicId = str::from_utf8(line).ok().and_then(|text| text.parse().ok()).ok_or(InvalidClusterId)?;
        if id == TopicId::ZERO { Err(InvalidClusterId) } else { Ok(Self(id)) }
    }
}

impl fmt::Display for ClusterId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]
    use super::*;

    #[test]
    fn bytes_are_golden() {
        let id = ClusterId::decode(b"ASNFZ4mrze_-3LqYdlQyEA\n").unwrap();
        assert_eq!(id.encode(), b"ASNFZ4mrze_-3LqYdlQyEA\n");
        assert_eq!(ClusterId::decode(b"ASNFZ4mrze_-3LqYdlQyEA"), Ok(id));
        assert_eq!(ClusterId::unreadable().to_string(), "cluster-id-unreadableA");
        let random = ClusterId::random();
        assert_eq!(ClusterId::decode(&random.encode()), Ok(random));
    }

    #[test]
    fn anything_else_is_refused() {
        for bytes in [
            &b""[..],
            b"\n",
            b"ASNFZ4mrze_-3LqYdlQyE",
            b"ASNFZ4mrze_-3LqYdlQyEA\n\n",
            b"AAAAAAAAAAAAAAAAAAAAAA",
            &[0xff; 22],
        ] {
            assert_eq!(ClusterId::decode(bytes), Err(InvalidClusterId), "{bytes:?}");
        }
    }
}
