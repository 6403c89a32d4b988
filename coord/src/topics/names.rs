//! Which topic names exist: Kafka's rules, and the few names that the layout of the volume needs for itself.

use kaas_proto::layout::CLUSTER_DIRECTORY;

/// Kafka's limit; leaves room for the file system's 255.
pub const MAX_NAME_LENGTH: usize = 249;

/// Why a name is refused. Maps to INVALID_TOPIC_EXCEPTION.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    #[error("a topic name has at least one character")]
    Empty,
    #[error("a topic name has at most {MAX_NAME_LENGTH} characters, this one has {0}")]
    TooLong(usize),
    #[error("topic name '{0}' is refused: accepted are ASCII letters, digits, '.', '_' and '-'")]
    Character(String),
    #[error("topic name '{0}' is refused: names that begin with '.' are directories of the volume itself")]
    Dot(String),
    #[error("topic name '{CLUSTER_DIRECTORY}' is refused: it is a directory of the cluster itself")]
    Reserved,
    /// Kafka refuses it because names of metrics have '_' for '.'.
    #[error("topic name '{name}' is refused: it differs from the existing topic '{existing}' only in '.' and '_'")]
    Collision { name: String, existing: String },
}

/// Checks a name by itself.
///
/// # Errors
/// Says which rule it breaks.
pub fn check(name: &str) -> Result<(), NameError> {
    if name.is_empty() {
        return Err(NameError::Empty);
    }
    if !name.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-')) {
        return Err(NameError::Character(name.chars().take(MAX_NAME_LENGTH).collect()));
    }
    if name.len() > MAX_NAME_LENGTH {
        return Err(NameError::TooLong(name.len()));
    }
    if name.starts_with('.') {
        return Err(NameError::Dot(name.to_owned()));
    }
    if name == CLUSTER_DIRECTORY {
        return Err(NameError::Reserved);
    }
    Ok(())
}

/// Checks a new name against those that exist.
///
/// # Errors
/// One of them is equal but for '.' and '_'.
pub fn check_collision<'a>(name: &str, mut existing: impl Iterator<Item = &'a str>) -> Result<(), NameError> {
    if !name.contains(['.', '_']) {
        return Ok(());
    }
    let same = |a: u8, b: u8| a == b || (matches!(a, b'.' | b'_') && matches!(b, b'.' | b'_'));
    let collides = |other: &str| {
        other.len() == name.len() && other != name && other.bytes().zip(name.bytes()).all(|(a, b)| same(a, b))
    };
    match existing.find(|other| collides(other)) {
        Some(existing) => Err(NameError::Collision { name: name.to_owned(), existing: existing.to_owned() }),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kafkas_names_are_accepted() {
        for name in ["a", "A-1_b.c", "orders", "x.", "__consumer_offsets", "-", &"n".repeat(249)] {
            assert_eq!(check(name), Ok(()), "{name}");
        }
    }

    #[test]
    fn others_are_refused_with_the_rule() {
        assert_eq!(check(""), Err(NameError::Empty));
        assert_eq!(check(&"n".repeat(250)), Err(NameError::TooLong(250)));
        for name in ["a b", "a/b", "../etc", "ä", "a\0", "a+b"] {
            assert_eq!(check(name), Err(NameError::Character(name.to_owned())), "{name}");
        }
        for name in [".", "..", ".snapshot", ".deleting-x"] {
            assert_eq!(check(name), Err(NameError::Dot(name.to_owned())), "{name}");
        }
        assert_eq!(check("__cluster"), Err(NameError::Reserved));
    }

    #[test]
    fn dots_and_underscores_collide() {
        let existing = ["a.b", "c_d"];
        let collision = |name: &str| check_collision(name, existing.iter().copied()).is_err();
        assert!(collision("a_b") && collision("c.d"));
        assert!(!collision("a.b"), "the same name is another matter");
        assert!(!collision("a-b") && !collision("ab") && !collision("a.bc"));
    }
}
