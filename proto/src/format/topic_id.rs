//! `<topic>/.topic-id.json`: which incarnation of a topic lives under its name. A topic is made whole under another name
//! and then renamed, so a directory without it is no topic.
//!
//! [Sealed JSON](super::sealed_json), one object:
//!
//! | member | content |
//! |---|---|
//! | `topicId` | 22 characters of base64url; the directory of the same name holds the partitions |
//! | `partitions` | how many there are; only rises |

use crate::types::TopicId;
use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::sealed_json::{self, SealedJsonError};

/// A partition's index is an `i32` on the wire; nobody needs so many in one topic.
pub const MAXIMUM_PARTITIONS: i32 = 1_000_000;
pub const LIMIT_BYTES: usize = 4096;

/// Which incarnation of a topic lives under its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TopicIdentity {
    pub topic_id: TopicId,
    pub partitions: i32,
}

/// Why bytes are no topic identity. The topic is not served, and nothing of it is deleted.
#[derive(Debug, Error)]
pub enum TopicIdentityError {
    #[error(transparent)]
    Json(#[from] SealedJsonError),
    #[error("the topic id is zero")]
    ZeroId,
    #[error("{partitions} partitions are not between 1 and {MAXIMUM_PARTITIONS}")]
    Partitions { partitions: i32 },
}

impl TopicIdentity {
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        sealed_json::encode(self)
    }

    /// # Errors
    /// See [`TopicIdentityError`].
    pub fn decode(bytes: &[u8]) -> Result<Self, TopicIdentityError> {
        let identity: Self = sealed_json::decode(bytes)?;
        let Self { topic_id, partitions } = identity;
        if topic_id == TopicId::ZERO {
            return Err(TopicIdentityError::ZeroId);
        }
        if !(1..=MAXIMUM_PARTITIONS).contains(&partitions) {
            return Err(TopicIdentityError::Partitions { partitions });
        }
        Ok(identity)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]
    use super::super::robustness::assert_damage_is_found;
    use super::*;

    fn identity() -> TopicIdentity {
        TopicIdentity { topic_id: "ASNFZ4mrze_-3LqYdlQyEA".parse().unwrap(), partitions: 12 }
    }

    #[test]
    fn bytes_are_golden() {
        let expected = "{\"topicId\":\"ASNFZ4mrze_-3LqYdlQyEA\",\"partitions\":12,\"crc32c\":\"100ff3fc\"}\n";
        assert_eq!(String::from_utf8(identity().encode()).unwrap(), expected);
        assert_eq!(TopicIdentity::decode(expected.as_bytes()).unwrap(), identity());
    }

    #[test]
    fn damage_is_found() {
        assert_damage_is_found(&identity().encode(), TopicIdentity::decode);
        let zero = TopicIdentity { topic_id: TopicId::ZERO, ..identity() }.encode();
        assert!(matches!(TopicIdentity::decode(&zero), Err(TopicIdentityError::ZeroId)));
        for partitions in [0, -1, MAXIMUM_PARTITIONS + 1] {
            let bytes = TopicIdentity { partitions, ..identity() }.encode();
            assert!(matches!(TopicIdentity::decode(&bytes), Err(TopicIdentityError::Partitions { .. })));
        }
    }
}
