//! `<topic>/.config.json`: the configurations that were set for a topic. Defaults are not written.
//!
//! [Sealed JSON](super::sealed_json), one object:
//!
//! | member | content |
//! |---|---|
//! | `topicId` | the incarnation that they were set for; for another one they do not count |
//! | `configs` | Kafka's names and values, both text, sorted by name |

use std::collections::BTreeMap;

use crate::types::TopicId;
use serde::{Deserialize, Serialize};

use super::sealed_json;

/// Why bytes are no topic configuration. The topic is not served: a retention that nobody knows can't be followed.
pub use super::sealed_json::SealedJsonError as TopicConfigError;

pub const LIMIT_BYTES: usize = 1 << 20;

/// The configurations that were set for a topic; names and values are validated by whoever sets them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct StoredTopicConfig {
    pub topic_id: TopicId,
    pub configs: BTreeMap<String, String>,
}

impl StoredTopicConfig {
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        sealed_json::encode(self)
    }

    /// # Errors
    /// See [`TopicConfigError`].
    pub fn decode(bytes: &[u8]) -> Result<Self, TopicConfigError> {
        sealed_json::decode(bytes)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]
    use proptest::prelude::*;

    use super::super::robustness::assert_damage_is_found;
    use super::*;

    fn config() -> StoredTopicConfig {
        StoredTopicConfig {
            topic_id: "ASNFZ4mrze_-3LqYdlQyEA".parse().unwrap(),
            configs: BTreeMap::from([
                ("cleanup.policy".to_owned(), "compact".to_owned()),
                ("retention.ms".to_owned(), "604800000".to_owned()),
            ]),
        }
    }

    #[test]
    fn bytes_are_golden() {
        let expected = concat!(
            r#"{"topicId":"ASNFZ4mrze_-3LqYdlQyEA","configs":{"cleanup.policy":"compact","retention.ms":"604800000"},"#,
            r#""crc32c":"90db758c"}"#,
            "\n"
        );
        assert_eq!(String::from_utf8(config().encode()).unwrap(), expected);
        assert_eq!(StoredTopicConfig::decode(expected.as_bytes()).unwrap(), config());
    }

    #[test]
    fn damage_is_found() {
        assert_damage_is_found(&config().encode(), StoredTopicConfig::decode);
    }

    proptest! {
        #[test]
        fn configs_come_back(configs in proptest::collection::btree_map(".*", ".*", 0..5)) {
            let config = StoredTopicConfig { topic_id: TopicId::ZERO, configs };
            prop_assert_eq!(StoredTopicConfig::decode(&config.encode()).unwrap(), config);
        }
    }
}
