//! Which names a topic can have: Kafka's rule, which is also what makes a name safe as a directory on the volume.

use thiserror::Error;

/// The longest name; with the suffixes that Kafka's own tools append, it still fits a file name.
pub const MAX_TOPIC_NAME_LENGTH: usize = 249;

/// Why a name is no topic name.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum InvalidTopicName {
    #[error("a topic name must not be empty")]
    Empty,
    #[error("a topic can't be named '.' or '..'")]
    Dots,
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
        "." | ".." => Err(InvalidTopicName::Dots),
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
        for good in ["a", "A.b_c-9", "...", &"x".repeat(249)] {
            assert_eq!(check(good), Ok(()), "{good}");
        }
        for bad in ["", ".", "..", "a/b", "a b", "ä", "a\0", &"x".repeat(250)] {
            assert!(check(bad).is_err(), "{bad}");
        }
    }
}
