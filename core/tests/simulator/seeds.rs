//! The fixed seeds: all of them must hold.

use std::ops::Range;

use crate::play::run::run_seed;

/// All of them.
pub const FIXED: Range<u64> = 0..1000;

/// Every promise is kept, and enough happens to show it.
fn hold(seeds: Range<u64>) {
    let count = seeds.end - seeds.start;
    let (mut acknowledged, mut reads) = (0, 0);
    for seed in seeds {
        match run_seed(seed) {
            Ok(summary) => {
                acknowledged += summary.acknowledged as u64;
                reads += summary.reads as u64;
            }
            Err(failure) => panic!("{failure}"),
        }
    }
    assert!(acknowledged > count * 10, "{acknowledged} batches acknowledged: too few to show anything");
    assert!(reads > count * 5, "{reads} reads: too few to show anything");
}

#[test]
fn seeds_0_to_249_hold() {
    hold(0..250);
}

#[test]
fn seeds_250_to_499_hold() {
    hold(250..500);
}

#[test]
fn seeds_500_to_749_hold() {
    hold(500..750);
}

#[test]
fn seeds_750_to_999_hold() {
    hold(750..1000);
}
