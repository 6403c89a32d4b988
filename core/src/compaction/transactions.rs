//! Which batches belong to aborted transactions, and which markers have nothing left to speak of. Pure.

use ahash::{AHashMap, AHashSet};
use kaas_proto::record::{ControlRecordType, RecordBatchView, RecordError};
use kaas_proto::types::{Offset, ProducerId};

use crate::partition::transactions::Aborted;

/// The aborted transactions of a log, by producer.
#[derive(Clone, Debug, Default)]
pub struct AbortedTransactions(AHashMap<ProducerId, Vec<(Offset, Offset)>>);

impl AbortedTransactions {
    #[must_use]
    pub fn new<'a>(aborted: impl IntoIterator<Item = &'a Aborted>) -> Self {
        let mut by_producer: AHashMap<_, Vec<_>> = AHashMap::default();
        for transaction in aborted {
            let ranges = by_producer.entry(transaction.producer_id).or_default();
            ranges.push((transaction.first_offset, transaction.last_offset));
        }
        by_producer.values_mut().for_each(|ranges| ranges.sort_unstable());
        Self(by_producer)
    }

    /// Whether the records of a batch never counted.
    #[must_use]
    pub fn contains(&self, batch: RecordBatchView<'_>) -> bool {
        let offset = batch.base_offset();
        batch.is_transactional()
            && !batch.is_control()
            && self.0.get(&batch.producer_id()).is_some_and(|ranges| {
                let behind = ranges.partition_point(|&(first, _)| first <= offset);
                ranges[..behind].last().is_some_and(|&(_, marker)| offset < marker)
            })
    }
}

/// What a batch is to compaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BatchKind {
    /// Records that count.
    Data,
    /// Records of an aborted transaction.
    Aborted,
    /// A marker. It is spent if no batch of its transaction is there any more.
    Marker { spent: bool },
}

/// Follows the transactions of a log from its start on.
#[derive(Clone, Debug)]
pub struct TransactionTracker {
    aborted: AbortedTransactions,
    /// Producers of which a batch was met since their last marker.
    met: AHashSet<ProducerId>,
}

impl TransactionTracker {
    #[must_use]
    pub fn new(aborted: AbortedTransactions) -> Self {
        Self { aborted, met: AHashSet::default() }
    }

    /// Whether the records of a batch never counted, wherever it lies.
    #[must_use]
    pub fn is_aborted(&self, batch: RecordBatchView<'_>) -> bool {
        self.aborted.contains(batch)
    }

    /// Says what the next batch is.
    ///
    /// # Errors
    /// A marker can't be read.
    pub fn next(&mut self, batch: RecordBatchView<'_>) -> Result<BatchKind, RecordError> {
        if batch.is_control() {
            // One that was emptied was spent already. Of a type that we do not know we know nothing.
            let known = batch.record_count() == 0 || ControlRecordType::of(batch)?.is_some();
            let met = known && self.met.remove(&batch.producer_id());
            return Ok(BatchKind::Marker { spent: known && !met });
        }
        if batch.is_transactional() {
            self.met.insert(batch.producer_id());
        }
        Ok(if self.aborted.contains(batch) { BatchKind::Aborted } else { BatchKind::Data })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]
    use bytes::Bytes;
    use kaas_proto::record::{BatchBuilder, patch};
    use kaas_proto::types::{ProducerEpoch, TimestampMs};

    use super::*;

    fn data(producer: i64, offset: i64) -> Bytes {
        let builder = BatchBuilder::new().producer(ProducerId(producer), ProducerEpoch(0), 0).transactional();
        builder.base_offset(Offset(offset)).record(TimestampMs(1), Some(b"k"), None).build()
    }

    fn marker(kind: ControlRecordType, producer: i64, offset: i64) -> Bytes {
        let mut bytes = kind.batch(ProducerId(producer), ProducerEpoch(0), 0, TimestampMs(1)).to_vec();
        patch::patch_base_offset(&mut bytes, Offset(offset));
        bytes.into()
    }

    #[test]
    fn markers_are_spent_when_their_transaction_is_gone() {
        let transaction = |first, last| Aborted {
            producer_id: ProducerId(1),
            first_offset: Offset(first),
            last_offset: Offset(last),
        };
        let aborted = AbortedTransactions::new(&[transaction(2, 4), transaction(20, 25)]);
        let mut tracker = TransactionTracker::new(aborted);
        use ControlRecordType::{Abort, Commit};
        let plain = BatchBuilder::new().record(TimestampMs(1), Some(b"k"), None).build();
        let log = [
            (data(1, 0), BatchKind::Data),
            (marker(Commit, 1, 1), BatchKind::Marker { spent: false }),
            (data(1, 2), BatchKind::Aborted),
            (data(2, 3), BatchKind::Data),
            (plain, BatchKind::Data),
            (marker(Abort, 1, 4), BatchKind::Marker { spent: false }),
            (data(1, 5), BatchKind::Data),
            (marker(Commit, 1, 6), BatchKind::Marker { spent: false }),
            (marker(Commit, 1, 7), BatchKind::Marker { spent: true }),
            (marker(Abort, 1, 25), BatchKind::Marker { spent: true }),
            (marker(Commit, 2, 26), BatchKind::Marker { spent: false }),
        ];
        for (bytes, kind) in log {
            let batch = RecordBatchView::read(&bytes).unwrap();
            assert_eq!(tracker.next(batch).unwrap(), kind, "offset {}", batch.base_offset());
        }
    }
}
