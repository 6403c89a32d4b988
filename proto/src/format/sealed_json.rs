//! JSON for people to read, with a checksum as its last member.
//!
//! | bytes | content |
//! |---|---|
//! | all but the last 22 | a JSON object without its closing brace |
//! | the last 22 | `,"crc32c":"xxxxxxxx"}` and a line feed; CRC-32C of all bytes before, 8 lower-case hex digits |
//!
//! A flipped digit in plain JSON would be another valid number; here it is an error.

use serde::Serialize;
use serde::de::DeserializeOwned;
use thiserror::Error;

/// What the seal begins with; eight digits follow.
pub const SEAL_BEGIN: &[u8] = b",\"crc32c\":\"";
/// What the file ends with.
pub const SEAL_END: &[u8] = b"\"}\n";
const DIGITS: usize = 8;
/// The length of the seal.
pub const SEAL_BYTES: usize = SEAL_BEGIN.len() + DIGITS + SEAL_END.len();

/// Why bytes are not the JSON file that they should be.
#[derive(Debug, Error)]
pub enum SealedJsonError {
    #[error("the file is empty")]
    Empty,
    #[error("the file does not end with its checksum: it is torn, or was not written by kaas")]
    Unsealed,
    #[error("the checksum says {stored:08x}, the content has {computed:08x}")]
    Checksum { stored: u32, computed: u32 },
    #[error("the content is not what it should be: {0}")]
    Content(#[from] serde_json::Error),
}

/// The bytes of a file.
///
/// # Panics
/// If `value` does not serialize as an object with at least one member.
#[must_use]
pub fn encode(value: &impl Serialize) -> Vec<u8> {
    let mut bytes = serde_json::to_vec(value).expect("plain structures serialize");
    let brace = bytes.pop();
    assert!(bytes.len() > 1 && brace == Some(b'}'), "a sealed value is an object with members");
    let crc = crc32c::crc32c(&bytes);
    bytes.extend_from_slice(SEAL_BEGIN);
    bytes.extend_from_slice(format!("{crc:08x}").as_bytes());
    bytes.extend_from_slice(SEAL_END);
    bytes
}

/// Reads the bytes of a file. Members that are not known are ignored: a later version may have added them.
///
/// # Errors
/// See [`SealedJsonError`].
pub fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, SealedJsonError> {
    if bytes.is_empty() {
        return Err(SealedJsonError::Empty);
    }
    let (content, seal) =
        bytes.split_at_checked(bytes.len().wrapping_sub(SEAL_BYTES)).ok_or(SealedJsonError::Unsealed)?;
    let stored = stored_crc(seal).ok_or(SealedJsonError::Unsealed)?;
    let computed = crc32c::crc32c(content);
    if stored != computed {
        return Err(SealedJsonError::Checksum { stored, computed });
    }
    let mut object = content.to_vec();
    object.push(b'}');
    Ok(serde_json::from_slice(&object)?)
}

/// None unless the seal is written exactly as [`encode`] does.
fn stored_crc(seal: &[u8]) -> Option<u32> {
    let digits = seal.strip_prefix(SEAL_BEGIN)?.strip_suffix(SEAL_END)?;
    let crc = u32::from_str_radix(str::from_utf8(digits).ok()?, 16).ok()?;
    (format!("{crc:08x}").as_bytes() == digits).then_some(crc)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]
    use std::collections::BTreeMap;

    use super::super::robustness::assert_damage_is_found;
    use super::*;

    type Map = BTreeMap<String, i64>;

    #[test]
    fn bytes_are_golden() {
        let value = Map::from([("a".to_owned(), 1), ("b".to_owned(), -2)]);
        let bytes = encode(&value);
        assert_eq!(str::from_utf8(&bytes).unwrap(), "{\"a\":1,\"b\":-2,\"crc32c\":\"dbc8fa6f\"}\n");
        assert_eq!(decode::<Map>(&bytes).unwrap(), value);
    }

    #[test]
    fn damage_is_found() {
        assert_damage_is_found(&encode(&Map::from([("abc".to_owned(), 0x7fff_ffff)])), decode::<Map>);
    }

    #[test]
    fn errors_say_what_is_wrong() {
        assert_eq!(decode::<Map>(b"").unwrap_err().to_string(), "the file is empty");
        assert!(matches!(decode::<Map>(b"{\"a\":1}\n").unwrap_err(), SealedJsonError::Unsealed));
        let other = encode(&BTreeMap::from([("a", "text")]));
        assert!(matches!(decode::<Map>(&other).unwrap_err(), SealedJsonError::Content(_)));
    }
}
