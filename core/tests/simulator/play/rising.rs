//! A number that leaders show and that never goes back.

use std::collections::BTreeMap;

use kaas_proto::types::LeaderEpoch;

/// The smallest and the largest that leaders of one epoch have shown.
#[derive(Clone, Copy, Debug)]
struct Range {
    low: i64,
    high: i64,
}

/// Goes back neither within an epoch nor from one to the next.
#[derive(Debug, Default)]
pub struct Rising(BTreeMap<LeaderEpoch, Range>);

impl Rising {
    /// The largest that epochs up to this one have shown.
    pub fn floor(&self, epoch: LeaderEpoch) -> i64 {
        self.0.range(..=epoch).map(|(_, range)| range.high).max().unwrap_or(0)
    }

    /// Takes note of what a leader shows; false if that contradicts another epoch.
    pub fn note(&mut self, epoch: LeaderEpoch, value: i64) -> bool {
        let range = self.0.entry(epoch).or_insert(Range { low: value, high: value });
        (range.low, range.high) = (range.low.min(value), range.high.max(value));
        let lower = self.0.range(..epoch).all(|(_, range)| range.high <= value);
        let higher = self.0.range(LeaderEpoch(epoch.0 + 1)..).all(|(_, range)| value <= range.low);
        lower && higher
    }

    /// Takes note of what a leader of `newest` or of a lower epoch has promised.
    pub fn promised(&mut self, newest: LeaderEpoch, value: i64) {
        let range = self.0.entry(newest).or_insert(Range { low: i64::MAX, high: 0 });
        range.high = range.high.max(value);
    }
}
