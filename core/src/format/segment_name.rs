//! Names of segments.
//!
//! | characters | content |
//! |---|---|
//! | 0..8 | leader epoch, lower-case hex |
//! | 8 | `-` |
//! | 9..29 | base offset, decimal with leading zeros |
//! | 29..38, only if generation > 0 | `-` and the generation, 8 lower-case hex digits |
//! | | `.log` or `.index` |

use std::fmt;
use std::str::FromStr;

use kaas_proto::types::{LeaderEpoch, Offset};

const EPOCH_DIGITS: usize = 8;
const OFFSET_DIGITS: usize = 20;

/// What the `.log` and the `.index` of a segment have in common.
///
/// The order is by epoch, then by base offset.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SegmentName {
    /// Whose leader writes it.
    pub epoch: LeaderEpoch,
    pub base_offset: Offset,
    /// 0 for what was appended. Compaction numbers its outputs from 1: an output never has the name of its source.
    pub generation: u32,
}

impl SegmentName {
    /// A segment that is appended to.
    #[must_use]
    pub fn appended(epoch: LeaderEpoch, base_offset: Offset) -> Self {
        Self { epoch, base_offset, generation: 0 }
    }

    #[must_use]
    pub fn log(self) -> String {
        format!("{self}.log")
    }

    #[must_use]
    pub fn index(self) -> String {
        format!("{self}.index")
    }
}

impl fmt::Display for SegmentName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:08x}-{:020}", self.epoch.0, self.base_offset.0)?;
        if self.generation > 0 {
            write!(f, "-{:08x}", self.generation)?;
        }
        Ok(())
    }
}

/// A text that is no segment name: somebody else's file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not the name of a segment")]
pub struct InvalidSegmentName;

impl FromStr for SegmentName {
    type Err = InvalidSegmentName;

    fn from_str(text: &str) -> Result<Self, InvalidSegmentName> {
        let parse = || {
            let (epoch, rest) = text.split_once('-')?;
            let (offset, generation) = match rest.split_once('-') {
                Some((offset, generation)) => (offset, Some(generation)),
                None => (rest, None),
            };
            Some(Self {
                epoch: parse_epoch(epoch)?,
                base_offset: parse_offset(offset)?,
                generation: match generation {
                    Some(digits) => parse_hex(digits).filter(|&generation| generation > 0)?,
                    None => 0,
                },
            })
        };
        parse().ok_or(InvalidSegmentName)
    }
}

/// Eight lower-case hex digits.
fn parse_hex(text: &str) -> Option<u32> {
    let digits = text.len() == EPOCH_DIGITS && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    digits.then(|| u32::from_str_radix(text, 16).ok()).flatten()
}

pub(super) fn parse_epoch(text: &str) -> Option<LeaderEpoch> {
    i32::try_from(parse_hex(text)?).ok().map(LeaderEpoch)
}

fn parse_offset(text: &str) -> Option<Offset> {
    let digits = text.len() == OFFSET_DIGITS && text.bytes().all(|byte| byte.is_ascii_digit());
    digits.then(|| text.parse().ok().map(Offset)).flatten()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn names_are_golden() {
        let name = SegmentName::appended(LeaderEpoch(0x2a), Offset(1_234_567));
        assert_eq!(name.log(), "0000002a-00000000000001234567.log");
        assert_eq!(name.index(), "0000002a-00000000000001234567.index");
        let compacted = SegmentName { generation: 3, ..name };
        assert_eq!(compacted.log(), "0000002a-00000000000001234567-00000003.log");
        let last = SegmentName { epoch: LeaderEpoch(i32::MAX), base_offset: Offset(i64::MAX), generation: u32::MAX };
        assert_eq!(last.to_string(), "7fffffff-09223372036854775807-ffffffff");
        assert_eq!(last.to_string().parse(), Ok(last));
    }

    #[test]
    fn foreign_names_are_refused() {
        for name in [
            "",
            "-",
            "0000002A-00000000000001234567", // upper case
            "2a-00000000000001234567",       // short epoch
            "0000002a-1234567",              // short offset
            "0000002a-0000000000000123456x", // no digit
            "+000002a-00000000000001234567", // signs
            "0000002a-+0000000000001234567",
            "0000002a-00000000000001234567-00000000", // generation 0 is not written
            "0000002a-00000000000001234567-1",
            "0000002a-00000000000001234567-00000001-", // more behind it
            "80000000-00000000000001234567",           // above i32
            "0000002a-09223372036854775808",           // above i64
            "0000002a-00000000000001234567.log",
            "é000002a-00000000000001234567",
        ] {
            assert_eq!(name.parse::<SegmentName>(), Err(InvalidSegmentName), "{name}");
        }
    }

    proptest! {
        #[test]
        fn names_come_back(epoch in 0..=i32::MAX, offset in 0..=i64::MAX, generation: u32) {
            let name = SegmentName { epoch: LeaderEpoch(epoch), base_offset: Offset(offset), generation };
            prop_assert_eq!(name.to_string().parse(), Ok(name));
        }

        #[test]
        fn what_parses_is_written_the_same(text in "[0-9a-f-]{0,40}") {
            if let Ok(name) = text.parse::<SegmentName>() {
                prop_assert_eq!(name.to_string(), text);
            }
        }
    }
}
