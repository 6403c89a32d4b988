//! Which single bit, flipped, explains a wrong checksum.
//!
//! CRC-32C is linear: what a flipped bit changes in the checksum depends only on how far it lies from the end. Up to 2^31
//! bits no two distances give the same change, so a match is the place.

/// CRC-32C's polynomial, lowest power in the highest bit.
const POLYNOMIAL: u32 = 0x82f6_3b78;

/// Where the flipped bit is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FlippedBit {
    /// So many bytes behind the start of what the checksum covers.
    Content(usize),
    /// In the checksum itself.
    Checksum,
}

/// Explains the difference between two checksums over `covered_bytes` by one flipped bit, if one can.
pub(super) fn find(stored: u32, computed: u32, covered_bytes: usize) -> Option<FlippedBit> {
    let difference = stored ^ computed;
    if difference.is_power_of_two() {
        return Some(FlippedBit::Checksum);
    }
    // What the last bit changes; then the one in front of it, and so on.
    let mut change = POLYNOMIAL;
    for byte in (0..covered_bytes).rev() {
        for _ in 0..8 {
            if change == difference {
                return Some(FlippedBit::Content(byte));
            }
            change = (change >> 1) ^ if change & 1 == 1 { POLYNOMIAL } else { 0 };
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_flipped_bit_is_found() {
        let content: Vec<u8> = (0..=255).cycle().take(600).collect();
        let stored = crc32c::crc32c(&content);
        for bit in 0..content.len() * 8 {
            let mut flipped = content.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(find(stored, crc32c::crc32c(&flipped), content.len()), Some(FlippedBit::Content(bit / 8)));
        }
        for bit in 0..32 {
            assert_eq!(find(stored ^ (1 << bit), stored, content.len()), Some(FlippedBit::Checksum));
        }
    }

    #[test]
    fn more_than_one_is_not_explained_away() {
        let content = [7; 100];
        let mut changed = content;
        (changed[10], changed[50]) = (8, 9);
        assert_eq!(find(crc32c::crc32c(&content), crc32c::crc32c(&changed), 100), None);
    }
}
