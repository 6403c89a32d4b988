//! What stays of a batch and of its records. Pure; Kafka's rules, KIP-534 included.

use kaas_proto::record::{Filter, Record, RecordBatchView, lookup};
use kaas_proto::types::{Offset, TimestampMs};

use super::offset_map::OffsetMap;
use super::transactions::BatchKind;
use crate::partition::producer_state::{Producer, ProducerTable};
use crate::planted::{PlantedBug, is_planted};

/// When a pass took place, and what it was told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Clock {
    pub now: TimestampMs,
    /// `delete.retention.ms`
    pub delete_retention_ms: i64,
}

/// What is to be done with one batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchRule {
    /// Its records go, whatever they are.
    pub drops_records: bool,
    pub filter: Filter,
}

impl Clock {
    fn has_passed(self, horizon: TimestampMs) -> bool {
        horizon <= self.now
    }

    /// What is to be done with a batch. The last one of a producer that is still remembered keeps its header at least:
    /// recovery learns the producer's sequence number from it.
    #[must_use]
    pub fn batch_rule(self, batch: RecordBatchView<'_>, kind: BatchKind, is_last_of_producer: bool) -> BatchRule {
        let drops_records = match kind {
            BatchKind::Data => false,
            BatchKind::Aborted => true,
            // A consumer that has met records of the transaction has time until the horizon to meet its end.
            BatchKind::Marker { spent } => {
                spent && batch.delete_horizon().is_some_and(|horizon| self.has_passed(horizon))
            }
        };
        let filter = Filter {
            max_decompressed_bytes: lookup::MAX_DECOMPRESSED_BYTES,
            keep_empty: is_last_of_producer,
            new_horizon: TimestampMs(self.now.0.saturating_add(self.delete_retention_ms)),
            gets_horizon: kind == BatchKind::Marker { spent: true },
        };
        BatchRule { drops_records: drops_records || batch.record_count() == 0, filter }
    }

    /// Whether a record stays in a batch that does not lose all of them.
    #[must_use]
    pub fn keeps(self, map: &OffsetMap, batch: RecordBatchView<'_>, offset: Offset, record: &Record<'_>) -> bool {
        if batch.is_control() || offset >= map.end() {
            return true;
        }
        // From a time when the topic was not compacted: nothing can ever replace it.
        let Some(key) = record.key else { return false };
        let is_last = map.get(key).is_none_or(|last| offset >= last);
        let horizon_has_passed = || batch.delete_horizon().is_some_and(|horizon| self.has_passed(horizon));
        let drops_tombstones = || horizon_has_passed() || is_planted(PlantedBug::TombstonesGoAtOnce);
        is_last && (record.value.is_some() || !drops_tombstones())
    }
}

/// Whether a batch is the last of a producer that is remembered. Later ones count only once they are acknowledged: until
/// then they may vanish with the epoch.
#[must_use]
pub fn is_last_of_producer(batch: RecordBatchView<'_>, producers: &ProducerTable, high_watermark: Offset) -> bool {
    let is_last = |producer: &Producer| {
        if producer.batches.is_empty() {
            // A marker was the last to tell the epoch.
            return batch.is_control() && batch.producer_epoch() == producer.epoch;
        }
        let mut acknowledged = producer.batches.iter().rev().filter(|sent| sent.last_offset < high_watermark);
        acknowledged.next().is_none_or(|last| !batch.is_control() && batch.last_offset() >= last.last_offset)
    };
    batch.has_producer_id() && producers.get(batch.producer_id()).is_some_and(is_last)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]
    use bytes::Bytes;
    use kaas_proto::record::{BatchBuilder, ControlRecordType, Filtered, RecordSet};
    use kaas_proto::types::{ProducerEpoch, ProducerId};

    use super::*;

    const CLOCK: Clock = Clock { now: TimestampMs(1000), delete_retention_ms: 100 };

    fn map(keys: &[(&[u8], i64)], end: i64) -> OffsetMap {
        let mut map = OffsetMap::new(1 << 16, 100, [3, 4]);
        keys.iter().for_each(|&(key, offset)| map.put(key, Offset(offset)).unwrap());
        map.reached(Offset(end));
        map
    }

    /// Keys a, b and c at offsets 10, 11 and 12; b is a tombstone.
    fn batch() -> Bytes {
        let builder = BatchBuilder::new().base_offset(Offset(10)).record(TimestampMs(1), Some(b"a"), Some(b"1"));
        builder.record(TimestampMs(1), Some(b"b"), None).record(TimestampMs(1), Some(b"c"), Some(b"1")).build()
    }

    fn kept(clock: Clock, map: &OffsetMap, bytes: &[u8]) -> Vec<i64> {
        let batch = RecordBatchView::read(bytes).unwrap();
        let records = RecordSet::read(batch, 1 << 20).unwrap();
        let offset = |record: Record<'_>| {
            let offset = records.offset(&record);
            clock.keeps(map, batch, offset, &record).then_some(offset.0)
        };
        records.iter().filter_map(|record| offset(record.unwrap())).collect()
    }

    #[test]
    fn the_last_record_of_a_key_stays() {
        let bytes = batch();
        assert_eq!(kept(CLOCK, &map(&[], 100), &bytes), [10, 11, 12], "no key is dirty");
        assert_eq!(kept(CLOCK, &map(&[(b"a", 10), (b"c", 30)], 100), &bytes), [10, 11]);
        assert_eq!(kept(CLOCK, &map(&[(b"a", 50), (b"b", 50), (b"c", 50)], 12), &bytes), [12], "not noted yet");
        let keyless = BatchBuilder::new().record(TimestampMs(1), None, Some(b"v")).build();
        assert!(kept(CLOCK, &map(&[], 100), &keyless).is_empty());
    }

    #[test]
    fn tombstones_stay_until_their_horizon() {
        let (bytes, map) = (batch(), map(&[(b"b", 11)], 100));
        let view = RecordBatchView::read(&bytes).unwrap();
        let rule = CLOCK.batch_rule(view, BatchKind::Data, false);
        assert_eq!((rule.drops_records, rule.filter.keep_empty), (false, false));
        let keep = |offset, record: &Record<'_>| CLOCK.keeps(&map, view, offset, record);
        let Filtered::Changed(with_horizon) = rule.filter.apply(view, keep).unwrap() else { panic!("it changes") };
        assert_eq!(RecordBatchView::read(&with_horizon).unwrap().delete_horizon(), Some(TimestampMs(1100)));
        let at = |now| Clock { now: TimestampMs(now), ..CLOCK };
        assert_eq!(kept(at(1099), &map, &with_horizon), [10, 11, 12]);
        assert_eq!(kept(at(1100), &map, &with_horizon), [10, 12]);
    }

    #[test]
    fn markers_stay_until_they_are_spent_and_their_horizon_has_passed() {
        let marker = ControlRecordType::Abort.batch(ProducerId(1), ProducerEpoch(0), 0, TimestampMs(1));
        let view = RecordBatchView::read(&marker).unwrap();
        let spent = BatchKind::Marker { spent: true };
        assert!(!CLOCK.batch_rule(view, BatchKind::Marker { spent: false }, false).filter.gets_horizon);
        let rule = CLOCK.batch_rule(view, spent, false);
        assert_eq!((rule.drops_records, rule.filter.gets_horizon), (false, true));
        let Filtered::Changed(bytes) = rule.filter.apply(view, |_, _| true).unwrap() else { panic!("it changes") };
        let view = RecordBatchView::read(&bytes).unwrap();
        assert!(!CLOCK.batch_rule(view, spent, false).drops_records);
        let late = Clock { now: TimestampMs(1100), ..CLOCK };
        assert!(late.batch_rule(view, spent, false).drops_records);
        assert!(!late.batch_rule(view, BatchKind::Marker { spent: false }, false).drops_records);
        assert!(CLOCK.batch_rule(view, BatchKind::Aborted, false).drops_records);
    }

    #[test]
    fn the_last_batch_of_a_producer_is_known() {
        let sent = |sequence, offset| {
            let builder = BatchBuilder::new().producer(ProducerId(5), ProducerEpoch(1), sequence);
            builder.base_offset(Offset(offset)).record(TimestampMs(1), Some(b"k"), None).build()
        };
        let mut producers = ProducerTable::default();
        for (sequence, offset) in [(0, 10), (1, 20), (2, 30)] {
            let bytes = sent(sequence, offset);
            let batch = RecordBatchView::read(&bytes).unwrap();
            producers.appended(batch, Offset(offset), TimestampMs(1), TimestampMs(1), |_| false);
        }
        let is_last = |producers: &ProducerTable, bytes: &[u8], high_watermark| {
            is_last_of_producer(RecordBatchView::read(bytes).unwrap(), producers, Offset(high_watermark))
        };
        assert!(!is_last(&producers, &sent(1, 20), 31));
        assert!(is_last(&producers, &sent(2, 30), 31));
        assert!(is_last(&producers, &sent(1, 20), 30), "the third is not acknowledged");
        assert!(is_last(&producers, &sent(0, 10), 10), "of none it is known that it stays");
        assert!(!is_last(&ProducerTable::default(), &sent(2, 30), 31), "forgotten");
        assert!(!is_last(&producers, &batch(), 31));
        let marker = |epoch| ControlRecordType::Abort.batch(ProducerId(5), ProducerEpoch(epoch), 0, TimestampMs(1));
        assert!(!is_last(&producers, &marker(1), 31));
        producers.marked(ProducerId(5), ProducerEpoch(2), 0, TimestampMs(1), |_| false);
        assert!(is_last(&producers, &marker(2), 31));
        assert!(!is_last(&producers, &marker(1), 31));
    }
}
