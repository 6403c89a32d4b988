//! Chance, from a seed.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

/// The same seed gives the same numbers. Clones go on together; [`SimRandom::fork`] begins a stream of its own.
#[derive(Clone, Debug)]
pub struct SimRandom(Rc<Cell<u64>>);

impl SimRandom {
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self(Rc::new(Cell::new(seed)))
    }

    /// SplitMix64: a counter, well stirred.
    #[must_use]
    pub fn next(&self) -> u64 {
        let counter = self.0.get().wrapping_add(0x9e37_79b9_7f4a_7c15);
        self.0.set(counter);
        let stirred = (counter ^ (counter >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let stirred = (stirred ^ (stirred >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        stirred ^ (stirred >> 31)
    }

    #[must_use]
    pub fn fork(&self) -> Self {
        Self::new(self.next())
    }

    /// A number in `0..bound`.
    ///
    /// # Panics
    /// When `bound` is 0.
    #[must_use]
    pub fn below(&self, bound: u64) -> u64 {
        assert!(bound > 0, "there is no number below 0");
        self.next() % bound
    }

    /// True in so many of a thousand cases.
    #[must_use]
    pub fn chance(&self, per_mille: u32) -> bool {
        self.below(1000) < u64::from(per_mille)
    }

    /// One of these.
    ///
    /// # Panics
    /// When there is none.
    #[must_use]
    pub fn of<T: Copy>(&self, choices: &[T]) -> T {
        *self.any(choices)
    }

    /// One of these.
    ///
    /// # Panics
    /// When there is none.
    #[must_use]
    pub fn any<'a, T>(&self, choices: &'a [T]) -> &'a T {
        let index = self.below(choices.len() as u64);
        &choices[usize::try_from(index).expect("below a length")]
    }

    /// Any time up to `longest`.
    #[must_use]
    pub fn duration(&self, longest: Duration) -> Duration {
        let longest_us = u64::try_from(longest.as_micros()).unwrap_or(u64::MAX - 1);
        Duration::from_micros(self.below(longest_us + 1))
    }
}
