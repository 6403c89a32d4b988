//! The fixed seeds: all of them must hold.

use std::ops::Range;

use crate::play::run::run_seed;

/// All of them.
pub const FIXED: Range<u64> = 0..1200;

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
fn seeds_0_to_299_hold() {
    hold(0..300);
}

#[test]
fn seeds_300_to_599_hold() {
    hold(300..600);
}

#[test]
fn seeds_600_to_899_hold() {
    hold(600..900);
}

#[test]
fn seeds_900_to_1199_hold() {
    hold(900..1200);
}
