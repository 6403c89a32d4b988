//! Producer state and transactions to and from the snapshot on the volume. Pure.

use kaas_proto::types::{Offset, TimestampMs};

use super::producer_state::{MAX_PRODUCERS, Producer, ProducerTable, SequencedBatch};
use super::transactions::{Aborted, MAX_TRANSACTIONS, TransactionIndex};
use crate::format::producer_snapshot::{AbortedEntry, BatchEntry, LIMIT_BYTES, ProducerEntry, ProducerSnapshot};

/// All that a leader remembers can be read again.
const _: () = assert!(ProducerSnapshot::largest_bytes(MAX_PRODUCERS, MAX_TRANSACTIONS) <= LIMIT_BYTES);

/// What is known after all records below `offset`, and none above.
#[must_use]
pub fn capture(offset: Offset, producers: &ProducerTable, transactions: &TransactionIndex) -> ProducerSnapshot {
    let batch = |batch: &SequencedBatch| BatchEntry {
        first_sequence: batch.first_sequence,
        last_sequence: batch.last_sequence,
        base_offset: batch.base_offset,
        timestamp: batch.max_timestamp,
    };
    let producers = producers.sorted().into_iter().map(|(producer_id, producer)| ProducerEntry {
        producer_id,
        producer_epoch: producer.epoch,
        coordinator_epoch: producer.coordinator_epoch,
        last_timestamp: producer.last_seen,
        open_transaction: transactions.first_offset_of(producer_id),
        batches: producer.batches.iter().map(batch).collect(),
    });
    let aborted = transactions.aborted().map(|aborted| AbortedEntry {
        producer_id: aborted.producer_id,
        first_offset: aborted.first_offset,
        marker_offset: aborted.last_offset,
    });
    ProducerSnapshot { offset, producers: producers.collect(), aborted: aborted.collect() }
}

/// The tables as they were. Clocks may have been set back since: nobody was last seen after `now`.
#[must_use]
pub fn restore(snapshot: &ProducerSnapshot, now: TimestampMs) -> (ProducerTable, TransactionIndex) {
    let (mut producers, mut transactions) = (ProducerTable::default(), TransactionIndex::default());
    for entry in &snapshot.producers {
        let batch = |batch: &BatchEntry| SequencedBatch {
            first_sequence: batch.first_sequence,
            last_sequence: batch.last_sequence,
            base_offset: batch.base_offset,
            // A batch takes as many offsets as sequence numbers, which go round at 2^31.
            last_offset: batch
                .base_offset
                .plus(i64::from(batch.last_sequence.wrapping_sub(batch.first_sequence) & i32::MAX)),
            max_timestamp: batch.timestamp,
        };
        let producer = Producer {
            epoch: entry.producer_epoch,
            batches: entry.batches.iter().map(batch).collect(),
            last_seen: entry.last_timestamp.min(now),
            coordinator_epoch: entry.coordinator_epoch,
        };
        producers.restore(entry.producer_id, producer);
        if let Some(first_offset) = entry.open_transaction {
            transactions.begun(entry.producer_id, first_offset);
        }
    }
    for entry in &snapshot.aborted {
        transactions.restore_aborted(Aborted {
            producer_id: entry.producer_id,
            first_offset: entry.first_offset,
            last_offset: entry.marker_offset,
        });
    }
    (producers, transactions)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]
    use kaas_proto::record::{BatchBuilder, RecordBatchView};
    use kaas_proto::types::{ProducerEpoch, ProducerId};

    use super::*;
    use crate::partition::transactions::Outcome;

    #[test]
    fn state_comes_back_from_its_snapshot() {
        let now = TimestampMs(50);
        let (mut producers, mut transactions) = (ProducerTable::default(), TransactionIndex::default());
        for (id, sequence) in [(1, 0), (2, i32::MAX)] {
            let builder = BatchBuilder::new().producer(ProducerId(id), ProducerEpoch(3), sequence);
            let bytes = builder.record(now, None, None).record(now, None, None).build();
            producers.appended(RecordBatchView::read(&bytes).unwrap(), Offset(id * 10), now, now, |_| false);
        }
        producers.marked(ProducerId(1), ProducerEpoch(3), 8, now, |_| false);
        transactions.begun(ProducerId(2), Offset(20));
        transactions.begun(ProducerId(1), Offset(10));
        transactions.ended(ProducerId(1), Offset(12), Outcome::Aborted);
        transactions.acknowledged(Offset(22));
        let snapshot = capture(Offset(22), &producers, &transactions);
        let decoded = ProducerSnapshot::decode(&snapshot.encode()).unwrap();
        assert_eq!(restore(&decoded, now), (producers, transactions));
    }
}
