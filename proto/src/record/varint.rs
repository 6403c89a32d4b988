//! Variable-length integers of records: zigzag, seven bits a byte, least significant first.

use super::record::RecordError;

/// Takes bytes off the front of a slice.
pub(crate) fn take<'a>(bytes: &mut &'a [u8], count: usize) -> Result<&'a [u8], RecordError> {
    let left = bytes.len();
    let (taken, rest) = bytes.split_at_checked(count).ok_or(RecordError::TooShort { needed: count, left })?;
    *bytes = rest;
    Ok(taken)
}

/// Takes an `i64` off the front of a slice.
pub(crate) fn take_i64(bytes: &mut &[u8]) -> Result<i64, RecordError> {
    decode(|| Ok(take(bytes, 1)?[0]))
}

/// What most integers of records are: a small one at the front of a slice, and how many bytes it takes. `None`: it is a longer one, or there
/// is less.
pub(crate) fn short(bytes: &[u8]) -> Option<(i64, usize)> {
    let (bits, length) = match *bytes {
        [first, ..] if first < 0x80 => (u64::from(first), 1),
        [first, second, ..] if second < 0x80 => (u64::from(first & 0x7f) | u64::from(second) << 7, 2),
        _ => return None,
    };
    Some(((bits >> 1).cast_signed() ^ -(bits & 1).cast_signed(), length))
}

/// An `i64` whose bytes come one by one.
pub(crate) fn decode(mut next: impl FnMut() -> Result<u8, RecordError>) -> Result<i64, RecordError> {
    let mut bits = 0_u64;
    for index in 0..10 {
        let byte = next()?;
        if index == 9 && byte > 1 {
            break;
        }
        bits |= u64::from(byte & 0x7f) << (7 * index);
        if byte & 0x80 == 0 {
            return Ok((bits >> 1).cast_signed() ^ -(bits & 1).cast_signed());
        }
    }
    Err(RecordError::VarintTooLong)
}

/// Takes an `i32` off the front of a slice.
pub(crate) fn take_i32(bytes: &mut &[u8]) -> Result<i32, RecordError> {
    i32::try_from(take_i64(bytes)?).map_err(|_| RecordError::VarintTooLong)
}

/// Takes a length, of which −1 stands for null, and as many bytes.
pub(crate) fn take_nullable<'a>(bytes: &mut &'a [u8]) -> Result<Option<&'a [u8]>, RecordError> {
    match take_i32(bytes)? {
        -1 => Ok(None),
        length => {
            let length = usize::try_from(length).map_err(|_| RecordError::NegativeLength(length))?;
            take(bytes, length).map(Some)
        }
    }
}

/// Adds an integer.
pub(crate) fn put(bytes: &mut Vec<u8>, value: i64) {
    let mut bits = (value << 1 ^ value >> 63).cast_unsigned();
    while bits > 0x7f {
        bytes.push(bits.to_le_bytes()[0] | 0x80);
        bits >>= 7;
    }
    bytes.push(bits.to_le_bytes()[0]);
}

/// Adds a length and as many bytes, −1 for null.
pub(crate) fn put_nullable(bytes: &mut Vec<u8>, value: Option<&[u8]>) {
    match value {
        None => put(bytes, -1),
        Some(value) => {
            put(bytes, i64::try_from(value.len()).expect("a slice fits 63 bits"));
            bytes.extend_from_slice(value);
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]
    use super::*;

    #[test]
    fn small_magnitudes_are_short_and_all_come_back() {
        for (value, encoded) in
            [(0, &[0][..]), (-1, &[1]), (1, &[2]), (63, &[126]), (64, &[0x80, 1]), (-65, &[0x81, 1])]
        {
            let mut bytes = Vec::new();
            put(&mut bytes, value);
            assert_eq!(bytes, encoded);
        }
        for value in [i64::MIN, i64::MAX, i64::from(i32::MIN), -1_000_000, 12_345_678_901] {
            let mut bytes = Vec::new();
            put(&mut bytes, value);
            let mut rest = &bytes[..];
            assert_eq!(take_i64(&mut rest).unwrap(), value);
            assert!(rest.is_empty());
            assert_eq!(short(&bytes), None);
        }
        for value in -8192..8192 {
            let mut bytes = Vec::new();
            put(&mut bytes, value);
            assert_eq!(short(&bytes), Some((value, bytes.len())));
            assert_eq!(short(&bytes[..bytes.len() - 1]), None, "cut");
        }
        assert_eq!(take_i64(&mut &[0xff; 11][..]), Err(RecordError::VarintTooLong));
        assert_eq!(take_i32(&mut &[0x80, 0x80, 0x80, 0x80, 0x20][..]), Err(RecordError::VarintTooLong));
    }
}
