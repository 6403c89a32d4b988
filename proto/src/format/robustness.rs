//! What every checksummed format must withstand.

use std::fmt::Debug;

/// Every truncation and every single flipped bit of `encoded` is an error.
pub(super) fn assert_damage_is_found<T: Debug, E: Debug>(encoded: &[u8], decode: impl Fn(&[u8]) -> Result<T, E>) {
    decode(encoded).expect("undamaged bytes decode");
    for length in 0..encoded.len() {
        assert!(decode(&encoded[..length]).is_err(), "truncation to {length} of {} bytes", encoded.len());
    }
    let mut damaged = encoded.to_vec();
    for position in 0..encoded.len() {
        for bit in 0..8 {
            damaged[position] ^= 1 << bit;
            assert!(decode(&damaged).is_err(), "bit {bit} of byte {position} flipped");
            damaged[position] ^= 1 << bit;
        }
    }
    let mut longer = encoded.to_vec();
    longer.push(0);
    assert!(decode(&longer).is_err(), "a byte too many");
    decode(&vec![0; encoded.len()]).expect_err("zeros in place of the content");
}
