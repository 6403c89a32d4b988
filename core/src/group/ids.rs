//! Names of groups and members. Cheap to clone, shard-local.

use std::borrow::Borrow;
use std::fmt;
use std::rc::Rc;

macro_rules! name {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(Rc<str>);

        impl $name {
            #[must_use]
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl From<&str> for $name {
            fn from(text: &str) -> Self {
                Self(text.into())
            }
        }

        impl From<String> for $name {
            fn from(text: String) -> Self {
                Self(text.into())
            }
        }

        impl Borrow<str> for $name {
            fn borrow(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Debug::fmt(&self.0, f)
            }
        }
    };
}

name!(
    /// `group.id`. Any text but the empty one; never used as a file name.
    GroupId
);
name!(
    /// Given to a member by the coordinator when it first joins. Random, so that no id returns after a restart.
    MemberId
);
name!(
    /// `group.instance.id`: the lasting name of a static member (KIP-345).
    InstanceId
);
name!(
    /// The name of an embedded protocol (an assignor, for consumers) or of its type ("consumer").
    ProtocolName
);

/// How much of what a member calls itself its id takes over.
const MAX_PREFIX_BYTES: usize = 255;

impl MemberId {
    /// The longest id that is generated.
    pub const MAX_BYTES: usize = MAX_PREFIX_BYTES + 37;

    /// A new id: what the member calls itself, and 128 random bits written as a UUID.
    #[must_use]
    pub fn generate(prefix: &str, random: u128) -> Self {
        let end = (0..=MAX_PREFIX_BYTES.min(prefix.len())).rev().find(|end| prefix.is_char_boundary(*end));
        let prefix = &prefix[..end.unwrap_or(0)];
        let hex = format!("{random:032x}");
        Self(format!("{prefix}-{}-{}-{}-{}-{}", &hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]).into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn member_ids_read_like_kafkas() {
        let id = MemberId::generate("app", 0x0123_4567_89ab_cdef_0011_2233_4455_6677);
        assert_eq!(id.as_str(), "app-01234567-89ab-cdef-0011-223344556677");
        let long = MemberId::generate(&"é".repeat(20_000), 1);
        assert_eq!(long.as_str().len(), MemberId::MAX_BYTES - 1, "the prefix is cut between two characters");
    }
}
