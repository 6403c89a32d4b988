//! What a declaration says about itself, for tests that compare it with Kafka's definitions or make up messages of it.

use super::writer::Writer;

/// A range of versions in Kafka's notation: `"0+"`, `"3-13"`, `"0"` or `"none"`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Versions {
    /// The first version.
    pub min: i16,
    /// The last version; `i16::MAX` if open.
    pub max: i16,
}

impl Versions {
    /// No version at all.
    pub const NONE: Self = Self { min: 1, max: 0 };

    /// Reads Kafka's notation.
    ///
    /// # Panics
    /// If the notation is wrong: meant for constants, where that fails the build.
    #[must_use]
    pub const fn parse(text: &str) -> Self {
        if let b"none" = text.as_bytes() {
            return Self::NONE;
        }
        let (min, rest) = parse_number(text.as_bytes());
        match rest {
            [] => Self { min, max: min },
            b"+" => Self { min, max: i16::MAX },
            [b'-', rest @ ..] => {
                let (max, rest) = parse_number(rest);
                assert!(rest.is_empty() && min <= max, "versions are spelled like 3-13");
                Self { min, max }
            }
            _ => panic!("versions are spelled like 0+, 3-13, 0 or none"),
        }
    }

    /// Whether a version lies in the range.
    #[must_use]
    pub const fn contains(self, version: i16) -> bool {
        self.min <= version && version <= self.max
    }
}

const fn parse_number(mut text: &[u8]) -> (i16, &[u8]) {
    assert!(matches!(text.first(), Some(b'0'..=b'9')), "a version starts with a digit");
    let mut number = 0;
    while let [digit @ b'0'..=b'9', rest @ ..] = text {
        number = number * 10 + (*digit - b'0') as i16;
        text = rest;
    }
    (number, text)
}

/// The type of a field.
#[derive(Clone, Copy, Debug)]
pub enum Kind {
    /// `bool`
    Bool,
    /// `int8`
    Int8,
    /// `int16`
    Int16,
    /// `int16` that holds an error code.
    ErrorCode,
    /// `int32`
    Int32,
    /// `int64`
    Int64,
    /// `uuid`
    Uuid,
    /// `string`
    String,
    /// `bytes`
    Bytes,
    /// `records`
    Records,
    /// A nested structure.
    Struct(&'static Structure),
    /// `[]` of another type.
    Array(&'static Kind),
}

/// A message or a structure nested in one.
#[derive(Clone, Copy, Debug)]
pub struct Structure {
    /// Kafka's name.
    pub name: &'static str,
    /// Its fields in the order of the wire.
    pub fields: &'static [Field],
}

/// A field of a structure.
#[derive(Clone, Copy, Debug)]
pub struct Field {
    /// Kafka's name in snake case.
    pub name: &'static str,
    /// The type.
    pub kind: Kind,
    /// Versions of the message that have the field.
    pub versions: Versions,
    /// Versions of the message in which it may be null.
    pub nullable: Versions,
    /// Its tag, if it is a tagged field; then all of its versions have it so.
    pub tag: Option<u32>,
    /// Writes the default value.
    pub write_default: fn(&mut Writer),
}
