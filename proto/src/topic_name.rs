//! Which names a topic can have: Kafka's rule, less the few names that the layout of the volume needs for itself.

use thiserror::Error;

use crate::layout::CLUSTER_DIRECTORY;

/// The longest name; with the suffixes that Kafka's own tools append, it still fits a file name.
pub const MAX_TOPIC_NAME_LENGTH: usize = 249;

/// Names of the topics in which Kafka keeps its own state. kaas keeps none in topics, but clients may create some of these
/// names, to restore or to mirror a cluster for example.
const INTERNAL: [&str; 3] = ["__consumer_offsets", "__transaction_state", "__share_group_state"];

/// In Kafka this is not even a topic, but its controllers' own log: nobody may create one of this name.
pub const CLUSTER_METADATA: &str = "__cluster_metadata";

/// Whether Kafka's clients take a topic of this name for internal: hidden unless asked for, and not written to.
#[must_use]
pub fn is_internal(name: &str) -> bool {
    INTERNAL.contains(&name)
}

/// Why a name is no topic name.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum InvalidTopicName {
    #[error("a topic name must not be empty")]
    Empty,
    #[error("topic name '{name}' begins with '.': such directories belong to the volume itself")]
    Dot { name: String },
    #[error("topic name '{CLUSTER_DIRECTORY}' is that of the cluster's own directory")]
    Reserved,
    #[error("the topic name has {length} characters, at most {MAX_TOPIC_NAME_LENGTH} are allowed")]
    TooLong { length: usize },
    #[error("topic name '{name}': only ASCII letters, digits, '.', '_' and '-' are allowed")]
    Character { name: String },
}

/// Checks a name that a client wants to give to a topic.
///
/// # Errors
/// Says what is wrong with it.
pub fn check(name: &str) -> Result<(), InvalidTopicName> {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-');
    match name {
        "" => Err(InvalidTopicName::Empty),
        CLUSTER_DIRECTORY => Err(InvalidTopicName::Reserved),
        _ if name.starts_with('.') => {
            Err(InvalidTopicName::Dot { name: name.chars().take(MAX_TOPIC_NAME_LENGTH).collect() })
        }
        _ if name.len() > MAX_TOPIC_NAME_LENGTH => Err(InvalidTopicName::TooLong { length: name.chars().count() }),
        _ if name.bytes().all(allowed) => Ok(()),
        _ => Err(InvalidTopicName::Character { name: name.to_owned() }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_safe_as_directories() {
        for good in ["a", "A.b_c-9", "a...", "__consumer_offsets", &"x".repeat(249)] {
            assert_eq!(check(good), Ok(()), "{good}");
        }
        for bad in ["", ".", "..", "...", ".snapshot", "__cluster", "a/b", "a+b", "a b", "ä", "a\0", &"x".repeat(250)]
        {
            assert!(check(bad).is_err(), "{bad}");
        }
    }
}
