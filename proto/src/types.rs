//! Numbers and ids with a meaning. A bare integer never crosses a module border.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

macro_rules! newtype {
    ($(#[$doc:meta])* $name:ident($inner:ty)) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(pub $inner);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }

        impl From<$inner> for $name {
            fn from(value: $inner) -> Self {
                Self(value)
            }
        }
    };
}

newtype!(
    /// A broker of the cluster; in a pod its ordinal.
    BrokerId(i32)
);
newtype!(
    /// A partition of a topic, from 0.
    PartitionIndex(i32)
);
newtype!(
    /// The position of a record in a partition.
    Offset(i64)
);
newtype!(
    /// Rises with every change of a partition's leader, or of its incarnation. Also the prefix of its file names.
    LeaderEpoch(i32)
);
newtype!(
    /// An idempotent or transactional producer; never given out twice.
    ProducerId(i64)
);
newtype!(
    /// Rises when a producer id is taken over by another instance of the same producer.
    ProducerEpoch(i16)
);
newtype!(
    /// Milliseconds since 1970-01-01 UTC, as in records.
    TimestampMs(i64)
);
newtype!(
    /// Rises with every completed rebalance of a consumer group.
    GenerationId(i32)
);
newtype!(
    /// One of the [`COORDINATOR_SLOTS`] groups of consumer groups and transactional ids that move together.
    SlotId(u8)
);
newtype!(
    /// A shard of this broker, from 0.
    ShardId(u16)
);
newtype!(
    /// One controllership: rises with each election, never given twice.
    ControllerEpoch(i32)
);
newtype!(
    /// Rises with every assignment that a controller writes, also across controllers.
    AssignmentVersion(i64)
);

/// One life of a broker's process: random, so that a broker that came back is not taken for the one that left.
///
/// Shown as 16 lower-case hex digits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Incarnation(pub u64);

impl Incarnation {
    #[must_use]
    pub fn random() -> Self {
        Self(uuid::Uuid::new_v4().as_u64_pair().0)
    }
}

impl fmt::Display for Incarnation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

impl fmt::Debug for Incarnation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A text that is no incarnation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("an incarnation is 16 lower-case hex digits")]
pub struct InvalidIncarnation;

impl FromStr for Incarnation {
    type Err = InvalidIncarnation;

    fn from_str(text: &str) -> Result<Self, InvalidIncarnation> {
        let incarnation = u64::from_str_radix(text, 16).map(Self).map_err(|_| InvalidIncarnation)?;
        if incarnation.to_string() == text { Ok(incarnation) } else { Err(InvalidIncarnation) }
    }
}

impl Serialize for Incarnation {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Incarnation {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

/// How many coordinator slots a cluster has. Fixed: it is part of the layout on the volume.
pub const COORDINATOR_SLOTS: u8 = 50;

impl Offset {
    /// The offset `count` records later.
    #[must_use]
    pub fn plus(self, count: i64) -> Self {
        Self(self.0 + count)
    }
}

impl SlotId {
    /// The slot of a group id or transactional id: FNV-1a 32 modulo [`COORDINATOR_SLOTS`].
    #[must_use]
    pub fn of(id: &str) -> Self {
        let hash = id.bytes().fold(0x811c_9dc5_u32, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193));
        Self(u8::try_from(hash % u32::from(COORDINATOR_SLOTS)).expect("a remainder of 50 fits a byte"))
    }
}

/// One incarnation of a topic. A topic that is deleted and created anew under the same name has another id.
///
/// Shown as Kafka shows it: base64url without padding, 22 characters.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TopicId(pub [u8; 16]);

const BASE64_URL: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
const BASE64_LENGTH: usize = 22;

impl TopicId {
    /// Stands for "no id" on the wire.
    pub const ZERO: Self = Self([0; 16]);

    /// The id space of the coordinator slots, which are led like partitions of one topic. Never on the wire.
    pub const COORDINATORS: Self = Self(*b"kaas/coordinator");

    /// A new random id. Never zero, and never one whose text starts with `-`, which command lines take for an option.
    #[must_use]
    pub fn random() -> Self {
        loop {
            let id = Self(*uuid::Uuid::new_v4().as_bytes());
            if id != Self::ZERO && !id.to_string().starts_with('-') {
                return id;
            }
        }
    }
}

impl fmt::Display for TopicId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bits = u128::from_be_bytes(self.0);
        for position in 0..BASE64_LENGTH {
            // The last character holds the low two bits, followed by four zero bits.
            let shift = 122 - 6 * i32::try_from(position).expect("below 22");
            let sextet = if shift >= 0 { bits >> shift } else { bits << -shift } & 0x3f;
            let index = usize::try_from(sextet).expect("six bits");
            f.write_str(char::from(BASE64_URL[index]).encode_utf8(&mut [0; 4]))?;
        }
        Ok(())
    }
}

impl fmt::Debug for TopicId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A text that is no topic id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a topic id is {BASE64_LENGTH} characters of base64url")]
pub struct InvalidTopicId;

impl FromStr for TopicId {
    type Err = InvalidTopicId;

    fn from_str(text: &str) -> Result<Self, InvalidTopicId> {
        if text.len() != BASE64_LENGTH {
            return Err(InvalidTopicId);
        }
        let mut bits = 0_u128;
        for (position, byte) in text.bytes().enumerate() {
            let value = BASE64_URL.iter().position(|&c| c == byte).ok_or(InvalidTopicId)? as u128;
            if position + 1 < BASE64_LENGTH {
                bits = bits << 6 | value;
            } else if value & 0xf == 0 {
                bits = bits << 2 | value >> 4;
            } else {
                return Err(InvalidTopicId);
            }
        }
        Ok(Self(bits.to_be_bytes()))
    }
}

impl Serialize for TopicId {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for TopicId {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

/// A point of the monotonic clock, in nanoseconds since an arbitrary start. Differences are durations.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MonotonicTime(pub u64);

impl MonotonicTime {
    /// How long ago an earlier point was.
    #[must_use]
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]
    use super::*;

    #[test]
    fn topic_ids_read_like_kafkas() {
        // org.apache.kafka.common.Uuid: new Uuid(0x0123456789abcdefL, 0xfedcba9876543210L).toString()
        let id = TopicId(0x0123_4567_89ab_cdef_fedc_ba98_7654_3210_u128.to_be_bytes());
        assert_eq!(id.to_string(), "ASNFZ4mrze_-3LqYdlQyEA");
        assert_eq!("ASNFZ4mrze_-3LqYdlQyEA".parse(), Ok(id));
        assert_eq!("ASNFZ4mrze_-3LqYdlQyEB".parse::<TopicId>(), Err(InvalidTopicId));
        assert_eq!("short".parse::<TopicId>(), Err(InvalidTopicId));
        assert_eq!(TopicId::ZERO.to_string(), "AAAAAAAAAAAAAAAAAAAAAA");
        let random = TopicId::random();
        assert_eq!(random.to_string().parse(), Ok(random));
        assert_eq!(serde_json::from_str::<TopicId>(&serde_json::to_string(&random).unwrap()).unwrap(), random);
    }

    #[test]
    fn incarnations_have_one_spelling() {
        assert_eq!("00000000000000ff".parse(), Ok(Incarnation(255)));
        assert_eq!(Incarnation(255).to_string(), "00000000000000ff");
        for other in ["ff", "00000000000000FF", "+0000000000000ff", ""] {
            assert_eq!(other.parse::<Incarnation>(), Err(InvalidIncarnation), "{other}");
        }
    }

    #[test]
    fn slots_follow_fnv_1a() {
        // FNV-1a 32 of "" is its offset basis, of "a" 0xe40c292c (published test vectors).
        assert_eq!(SlotId::of(""), SlotId(u8::try_from(0x811c_9dc5_u32 % 50).unwrap()));
        assert_eq!(SlotId::of("a"), SlotId(u8::try_from(0xe40c_292c_u32 % 50).unwrap()));
    }
}
