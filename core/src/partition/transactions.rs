//! Which transactions of a partition are open and which were aborted: what read_committed needs to know.
//!
//! Pure. Rebuilt by recovery from a snapshot and the batches behind it. Entries are made when a batch gets its offset,
//! which is before it is acknowledged: a transaction holds the last stable offset until its marker is below the high
//! watermark.

use std::collections::{BTreeMap, VecDeque};

use ahash::AHashMap;
use kaas_proto::types::{Offset, ProducerId};

use super::producer_state::MAX_PRODUCERS;
use crate::shard::operation::AbortedTransaction;

/// Transactions of a partition that are open, or were aborted and not deleted yet: 24 MiB of them. An aborted one can't be forgotten
/// as long as its records are there, so beyond that no transaction begins; retention, DeleteRecords and compaction make room.
pub const MAX_TRANSACTIONS: usize = 1 << 20;

/// How many of them may be open. Producers of open transactions are never forgotten, so that is half of all that are remembered.
pub const MAX_OPEN_TRANSACTIONS: usize = MAX_PRODUCERS / 2;

/// An aborted transaction: its records lie from `first_offset` up to the marker at `last_offset`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Aborted {
    pub producer_id: ProducerId,
    pub first_offset: Offset,
    pub last_offset: Offset,
}

/// How a transaction ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    Aborted,
    Committed,
}

/// Shard-local.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TransactionIndex {
    /// First offsets of open transactions.
    open: BTreeMap<Offset, ProducerId>,
    first_offsets: AHashMap<ProducerId, Offset>,
    /// First offset and marker of transactions whose marker is not yet below the high watermark.
    ending: VecDeque<(Offset, Offset)>,
    /// In order of their markers.
    aborted: VecDeque<Aborted>,
    forgotten: u64,
}

impl TransactionIndex {
    /// A producer's transactional batch at `offset`: begins its transaction unless one is open.
    pub fn begun(&mut self, producer: ProducerId, offset: Offset) {
        if !self.first_offsets.contains_key(&producer) {
            self.first_offsets.insert(producer, offset);
            self.open.insert(offset, producer);
        }
    }

    /// Whether a batch of this producer would begin a transaction that there is no room to remember, should it be aborted.
    #[must_use]
    pub fn refuses(&self, producer: ProducerId) -> bool {
        let is_full =
            self.open.len() >= MAX_OPEN_TRANSACTIONS || self.open.len() + self.aborted.len() >= MAX_TRANSACTIONS;
        is_full && !self.first_offsets.contains_key(&producer)
    }

    /// A marker at `marker`. Does nothing if the producer has no open transaction here: markers are repeated.
    pub fn ended(&mut self, producer: ProducerId, marker: Offset, outcome: Outcome) {
        let Some(first_offset) = self.first_offsets.remove(&producer) else { return };
        self.open.remove(&first_offset);
        self.ending.push_back((first_offset, marker));
        if outcome == Outcome::Aborted {
            self.aborted.push_back(Aborted { producer_id: producer, first_offset, last_offset: marker });
        }
    }

    /// Forgets what no longer holds the last stable offset.
    pub fn acknowledged(&mut self, high_watermark: Offset) {
        while self.ending.front().is_some_and(|&(_, marker)| marker < high_watermark) {
            self.ending.pop_front();
        }
    }

    /// No transaction is undecided below it. At most the high watermark.
    #[must_use]
    pub fn last_stable_offset(&self, high_watermark: Offset) -> Offset {
        let open = self.open.keys().next().copied();
        let ending = self.ending.iter().filter(|&&(_, marker)| marker >= high_watermark).map(|&(first, _)| first).min();
        [open, ending].into_iter().flatten().fold(high_watermark, Offset::min)
    }

    /// The aborted transactions with records in `from..end`, in order of their first offsets.
    #[must_use]
    pub fn aborted_between(&self, from: Offset, end: Offset) -> Vec<AbortedTransaction> {
        let behind = self.aborted.partition_point(|aborted| aborted.last_offset < from);
        let within = self.aborted.iter().skip(behind).filter(|aborted| aborted.first_offset < end);
        let mut found: Vec<_> = within
            .map(|aborted| AbortedTransaction { producer_id: aborted.producer_id, first_offset: aborted.first_offset })
            .collect();
        found.sort_unstable_by_key(|aborted| (aborted.first_offset, aborted.producer_id));
        found
    }

    /// Forgets transactions that end below the log start.
    pub fn forget_below(&mut self, log_start: Offset) {
        while self.aborted.front().is_some_and(|aborted| aborted.last_offset < log_start) {
            self.aborted.pop_front();
        }
    }

    /// Forgets aborted transactions of which compaction has dropped all records, by their markers: a marker that is not
    /// there any more would never end them for a consumer.
    pub fn forget_compacted(&mut self, markers: &[Offset]) {
        let before = self.aborted.len();
        self.aborted.retain(|aborted| !markers.contains(&aborted.last_offset));
        self.forgotten += (before - self.aborted.len()) as u64;
    }

    /// How many transactions [`TransactionIndex::forget_compacted`] has forgotten.
    #[must_use]
    pub fn forgotten(&self) -> u64 {
        self.forgotten
    }

    /// Where a producer's open transaction begins.
    #[must_use]
    pub fn first_offset_of(&self, producer: ProducerId) -> Option<Offset> {
        self.first_offsets.get(&producer).copied()
    }

    /// All aborted transactions in order of their markers, for a snapshot.
    pub fn aborted(&self) -> impl Iterator<Item = &Aborted> {
        self.aborted.iter()
    }

    /// Puts an aborted transaction back that a snapshot holds. Call it in order of the markers.
    pub fn restore_aborted(&mut self, aborted: Aborted) {
        self.aborted.push_back(aborted);
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.open.is_empty() && self.aborted.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: ProducerId = ProducerId(1);
    const B: ProducerId = ProducerId(2);

    #[test]
    fn the_first_open_transaction_holds_the_last_stable_offset() {
        let mut index = TransactionIndex::default();
        assert_eq!(index.last_stable_offset(Offset(5)), Offset(5));
        index.begun(A, Offset(3));
        index.begun(A, Offset(4));
        index.begun(B, Offset(6));
        assert_eq!(index.last_stable_offset(Offset(2)), Offset(2));
        assert_eq!(index.last_stable_offset(Offset(9)), Offset(3));
        assert_eq!(index.first_offset_of(A), Some(Offset(3)));
        index.ended(A, Offset(9), Outcome::Committed);
        assert_eq!(index.last_stable_offset(Offset(9)), Offset(3), "the marker is not acknowledged");
        index.acknowledged(Offset(10));
        assert_eq!(index.last_stable_offset(Offset(10)), Offset(6));
        index.ended(B, Offset(10), Outcome::Aborted);
        index.acknowledged(Offset(11));
        assert_eq!(index.last_stable_offset(Offset(11)), Offset(11));
    }

    #[test]
    fn aborted_transactions_are_listed_by_first_offset_wherever_they_overlap() {
        let mut index = TransactionIndex::default();
        index.begun(A, Offset(0));
        index.begun(B, Offset(2));
        index.ended(B, Offset(5), Outcome::Aborted);
        index.ended(A, Offset(8), Outcome::Aborted);
        let list = |from, end| -> Vec<ProducerId> {
            index.aborted_between(Offset(from), Offset(end)).iter().map(|aborted| aborted.producer_id).collect()
        };
        assert_eq!(list(0, 9), [A, B]);
        assert_eq!(list(0, 2), [A]);
        assert_eq!(list(5, 6), [A, B]);
        assert_eq!(list(6, 9), [A]);
        assert!(list(9, 20).is_empty());
        index.forget_below(Offset(6));
        assert_eq!(index.aborted().count(), 1);
    }

    #[test]
    fn what_is_compacted_away_is_forgotten() {
        let mut index = TransactionIndex::default();
        for first in [0, 10, 20] {
            index.begun(A, Offset(first));
            index.ended(A, Offset(first + 5), Outcome::Aborted);
        }
        index.forget_compacted(&[Offset(15), Offset(99)]);
        assert_eq!(index.forgotten(), 1);
        let left: Vec<_> = index.aborted().map(|aborted| aborted.first_offset.0).collect();
        assert_eq!(left, [0, 20]);
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let mut index = TransactionIndex::default();
        for at in (0..).step_by(2).take(MAX_TRANSACTIONS - 1) {
            index.begun(A, Offset(at));
            index.ended(A, Offset(at + 1), Outcome::Aborted);
        }
        let end = 2 * i64::try_from(MAX_TRANSACTIONS).unwrap_or_default();
        assert!(!index.refuses(B));
        index.begun(A, Offset(end));
        assert!(index.refuses(B) && !index.refuses(A), "one that is open goes on");
        index.ended(A, Offset(end + 1), Outcome::Aborted);
        assert!(index.refuses(A));
        index.forget_below(Offset(2));
        assert!(!index.refuses(A), "records were deleted");
    }

    #[test]
    fn so_many_producers_and_no_more_have_open_transactions() {
        let mut index = TransactionIndex::default();
        for (id, offset) in (0..).zip(0..).take(MAX_OPEN_TRANSACTIONS) {
            assert!(!index.refuses(ProducerId(id)));
            index.begun(ProducerId(id), Offset(offset));
        }
        assert!(index.refuses(ProducerId(-7)) && !index.refuses(ProducerId(0)));
        index.ended(ProducerId(0), Offset(1 << 20), Outcome::Committed);
        assert!(!index.refuses(ProducerId(-7)));
    }

    #[test]
    fn a_repeated_marker_does_nothing() {
        let mut index = TransactionIndex::default();
        index.begun(A, Offset(0));
        index.ended(A, Offset(1), Outcome::Aborted);
        index.ended(A, Offset(2), Outcome::Aborted);
        assert_eq!(index.aborted().count(), 1);
        assert_eq!(index.last_stable_offset(Offset(3)), Offset(3));
    }
}
