//! Names that are too alike: Kafka's names of metrics have '_' for '.'.

/// Maps to INVALID_TOPIC_EXCEPTION, as in Kafka.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("topic name '{name}' is refused: it differs from the existing topic '{existing}' only in '.' and '_'")]
pub struct NameCollision {
    name: String,
    existing: String,
}

/// Checks a new name against those that exist.
///
/// # Errors
/// One of them is equal but for '.' and '_'.
pub fn check_collision<'a>(name: &str, mut existing: impl Iterator<Item = &'a str>) -> Result<(), NameCollision> {
    if !name.contains(['.', '_']) {
        return Ok(());
    }
    let same = |a: u8, b: u8| a == b || (matches!(a, b'.' | b'_') && matches!(b, b'.' | b'_'));
    let collides = |other: &str| {
        other.len() == name.len() && other != name && other.bytes().zip(name.bytes()).all(|(a, b)| same(a, b))
    };
    match existing.find(|other| collides(other)) {
        Some(existing) => Err(NameCollision { name: name.to_owned(), existing: existing.to_owned() }),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dots_and_underscores_collide() {
        let existing = ["a.b", "c_d"];
        let collision = |name: &str| check_collision(name, existing.iter().copied()).is_err();
        assert!(collision("a_b") && collision("c.d"));
        assert!(!collision("a.b"), "the same name is another matter");
        assert!(!collision("a-b") && !collision("ab") && !collision("a.bc"));
    }
}
