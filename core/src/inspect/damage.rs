//! The first bad byte of a file: where it is, and what should be there.

use kaas_proto::format::sealed_json::{self, SealedJsonError};
use serde::de::IgnoredAny;

use super::flipped_bit::{self, FlippedBit};
use crate::format::manifest::ManifestError;
use crate::format::{SealedBinaryError, sealed_binary};

/// The first byte that is not as it should be. What can't be told more closely begins with the first byte of what a
/// checksum covers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Damage {
    /// From the start of the file.
    pub at: u64,
    pub expected: String,
    pub found: String,
}

impl Damage {
    pub(super) fn new(at: u64, expected: impl Into<String>, found: impl Into<String>) -> Self {
        Self { at, expected: expected.into(), found: found.into() }
    }

    /// A number that is not what it should be, in `N` big-endian bytes at `at`.
    pub(super) fn number<const N: usize>(
        at: u64,
        what: &str,
        (expected, found): ([u8; N], [u8; N]),
        text: [String; 2],
    ) -> Self {
        let same = expected.iter().zip(found).take_while(|(expected, found)| **expected == *found).count();
        let [expected, found] = text;
        Self::new(at + same as u64, format!("{what} {expected}"), found)
    }

    /// A checksum that does not fit: `covered` says where what it covers begins and how long that is.
    pub(super) fn checksum(checksum_at: u64, (stored, computed): (u32, u32), covered: (u64, usize)) -> Self {
        let (start, bytes) = covered;
        let end = start + bytes as u64;
        let expected = format!("CRC-32C {stored:08x} over the bytes from {start} up to {end}");
        match flipped_bit::find(stored, computed, bytes) {
            Some(FlippedBit::Checksum) => {
                Self::new(checksum_at, format!("CRC-32C {computed:08x}"), format!("{stored:08x}: a flipped bit"))
            }
            Some(FlippedBit::Content(byte)) => {
                Self::new(start + byte as u64, expected, format!("{computed:08x}: a flipped bit in this byte"))
            }
            None => Self::new(start, expected, format!("{computed:08x}: here or further behind")),
        }
    }

    /// In a file of the frame that all binary formats share.
    pub(super) fn in_binary(bytes: &[u8], error: &SealedBinaryError) -> Self {
        let length = bytes.len() as u64;
        match *error {
            SealedBinaryError::Empty => Self::new(0, "content", "an empty file"),
            SealedBinaryError::Truncated { needed, .. } => {
                Self::new(length, format!("{needed} bytes or more"), format!("the end of the file, {length} bytes"))
            }
            SealedBinaryError::Magic { expected } => {
                let same = expected.bytes().zip(bytes).take_while(|(expected, found)| expected == *found).count();
                Self::new(same as u64, format!("the file to begin with {expected:?}"), shown(bytes, same))
            }
            SealedBinaryError::Version { version, newest } => Self::new(
                sealed_binary::VERSION_AT as u64,
                format!("a version from 1 to {newest}"),
                format!("version {version}"),
            ),
            SealedBinaryError::Checksum { stored, computed } => in_binary_content(bytes, stored, computed),
            SealedBinaryError::Content { what, position } => {
                Self::new(position as u64, "content that fits together", what)
            }
        }
    }

    /// In a file of sealed JSON.
    pub(super) fn in_json(bytes: &[u8], error: &SealedJsonError) -> Self {
        match error {
            SealedJsonError::Empty => Self::new(0, "a JSON object", "an empty file"),
            SealedJsonError::Unsealed => unsealed(bytes),
            SealedJsonError::Checksum { stored, computed } => {
                let covered = bytes.len().saturating_sub(sealed_json::SEAL_BYTES);
                let checksum_at = covered + sealed_json::SEAL_BEGIN.len();
                Self::checksum(checksum_at as u64, (*stored, *computed), (0, covered))
            }
            SealedJsonError::Content(error) => Self::new(
                position(bytes, error.line(), error.column()),
                "the members of this format",
                error.to_string(),
            ),
        }
    }

    /// In a manifest.
    pub(super) fn in_manifest(bytes: &[u8], error: &ManifestError) -> Self {
        let member = match error {
            ManifestError::Json(error) => return Self::in_json(bytes, error),
            ManifestError::Epoch { .. } => "epoch",
            ManifestError::ChainEnd { .. } => "chain",
            ManifestError::Offsets { .. } => "logStartOffset",
            ManifestError::Replaced { .. } => "replaced",
        };
        Self::new(member_at(bytes, member), "members that fit together", error.to_string())
    }
}

/// Where a member of a JSON object begins; 0 if it is not there.
pub(super) fn member_at(bytes: &[u8], name: &str) -> u64 {
    let wanted = format!("\"{name}\":");
    bytes.windows(wanted.len()).position(|window| window == wanted.as_bytes()).unwrap_or(0) as u64
}

/// The checksum covers everything but itself; what lies in front of it takes part as if it stood right there.
fn in_binary_content(bytes: &[u8], stored: u32, computed: u32) -> Damage {
    let (crc_at, body_at) = (sealed_binary::CRC_AT, sealed_binary::BODY_AT);
    let hidden = (body_at - crc_at) as u64;
    let mut damage = Damage::checksum(crc_at as u64, (stored, computed), (0, bytes.len() - (body_at - crc_at)));
    let in_checksum = matches!(flipped_bit::find(stored, computed, 0), Some(FlippedBit::Checksum));
    if !in_checksum {
        if damage.at >= crc_at as u64 {
            damage.at += hidden;
        }
        damage.expected = format!("CRC-32C {stored:08x} over all other bytes");
    }
    damage
}

/// JSON that does not end as it should: cut off, changed on the way, or changed in its seal.
fn unsealed(bytes: &[u8]) -> Damage {
    let length = bytes.len() as u64;
    match serde_json::from_slice::<IgnoredAny>(bytes) {
        Err(error) if error.is_eof() => {
            Damage::new(length, "more of the object and its checksum", "the end of the file")
        }
        Err(error) => Damage::new(position(bytes, error.line(), error.column()), "JSON", error.to_string()),
        Ok(_) => {
            let seal_at = bytes.len().saturating_sub(sealed_json::SEAL_BYTES);
            let seal = &bytes[seal_at..];
            let is_right = |(index, &byte): (usize, &u8)| match index.checked_sub(sealed_json::SEAL_BEGIN.len()) {
                None => byte == sealed_json::SEAL_BEGIN[index],
                Some(digit) if digit < 8 => matches!(byte, b'0'..=b'9' | b'a'..=b'f'),
                Some(digit) => sealed_json::SEAL_END.get(digit - 8) == Some(&byte),
            };
            let same = seal.iter().enumerate().take_while(|&pair| is_right(pair)).count();
            let expected = "the object to end with its checksum, ,\"crc32c\":\"…\"} and a line feed";
            Damage::new((seal_at + same) as u64, expected, shown(bytes, seal_at + same))
        }
    }
}

/// The offset of a place that serde_json tells by line and column, both counted from 1.
pub(super) fn position(bytes: &[u8], line: usize, column: usize) -> u64 {
    let lines = bytes.split_inclusive(|&byte| byte == b'\n');
    let before: usize = lines.take(line.saturating_sub(1)).map(<[u8]>::len).sum();
    let at = before + column.saturating_sub(1);
    at.min(bytes.len()) as u64
}

/// One byte in words.
pub(super) fn shown(bytes: &[u8], at: usize) -> String {
    match bytes.get(at) {
        None => "the end of the file".to_owned(),
        Some(&byte) if byte.is_ascii_graphic() => format!("0x{byte:02x} ('{}')", char::from(byte)),
        Some(byte) => format!("0x{byte:02x}"),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]
    use kaas_proto::types::{LeaderEpoch, Offset};

    use super::*;
    use crate::format::chain::Chain;
    use crate::format::index::SegmentIndex;
    use crate::format::manifest::Manifest;

    /// The first byte of every flipped bit and of every cut is found, or the start of what a checksum covers.
    #[test]
    fn a_flipped_bit_is_found_in_a_binary_file() {
        let bytes = SegmentIndex::new(Offset(77)).encode();
        for bit in 0..bytes.len() * 8 {
            let mut flipped = bytes.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            let damage = Damage::in_binary(&flipped, &SegmentIndex::decode(&flipped).unwrap_err());
            // A changed version and a changed checksum are fields, known by where they begin.
            let expected = match bit / 8 {
                4 | 5 => 4,
                8..12 => 8,
                byte => byte as u64,
            };
            assert_eq!(damage.at, expected, "bit {bit}: {damage:?}");
        }
        for length in 0..bytes.len() {
            let damage = Damage::in_binary(&bytes[..length], &SegmentIndex::decode(&bytes[..length]).unwrap_err());
            assert!(damage.at == length as u64 || (length >= 12 && damage.at == 0), "cut at {length}: {damage:?}");
        }
    }

    #[test]
    fn a_flipped_bit_is_found_in_a_manifest() {
        let manifest = Manifest {
            epoch: LeaderEpoch(5),
            high_watermark: Offset(1000),
            log_start_offset: Offset(7),
            chain: Chain::default().extend(LeaderEpoch(5), Offset(0)).unwrap(),
            replaced: Vec::new(),
            relinquished: false,
        };
        let bytes = manifest.encode();
        let digits = bytes.len() - 11..bytes.len() - 3;
        for bit in 0..bytes.len() * 8 {
            let byte = bit / 8;
            let mut flipped = bytes.clone();
            flipped[byte] ^= 1 << (bit % 8);
            let damage = Damage::in_manifest(&flipped, &Manifest::decode(LeaderEpoch(5), &flipped).unwrap_err());
            let at = usize::try_from(damage.at).unwrap();
            // A digit of the checksum stands for four bits: several may look flipped. JSON whose quotes are gone is
            // found out behind them.
            assert!(at == byte || digits.contains(&byte) || at.abs_diff(byte) <= 22, "bit {bit}: {damage:?}");
        }
        for length in 0..bytes.len() {
            let cut = &bytes[..length];
            let damage = Damage::in_manifest(cut, &Manifest::decode(LeaderEpoch(5), cut).unwrap_err());
            let at = usize::try_from(damage.at).unwrap();
            assert!(at == length || length == bytes.len() - 1, "cut at {length}: {damage:?}");
        }
    }
}
