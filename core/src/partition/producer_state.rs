//! What a partition remembers of idempotent producers: enough to tell a new batch from a repeated one and from a gap.
//!
//! Pure. Per producer the last [`REMEMBERED_BATCHES`] batches are kept, as many as a client may have in flight. The table
//! is part of what recovery rebuilds: from a snapshot and the batches behind it.

use std::collections::VecDeque;

use ahash::AHashMap;
use kaas_proto::record::RecordBatchView;
use kaas_proto::types::{Offset, ProducerEpoch, ProducerId, TimestampMs};

use super::error::AppendError;

/// Batches remembered per producer: Kafka's clients have at most this many in flight.
pub const REMEMBERED_BATCHES: usize = 5;

/// Producers remembered per partition. Beyond it the one that was silent for longest is forgotten.
pub const MAX_PRODUCERS: usize = 16_384;

/// One batch of an idempotent producer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SequencedBatch {
    pub first_sequence: i32,
    pub last_sequence: i32,
    pub base_offset: Offset,
    pub last_offset: Offset,
    /// The largest timestamp: the append time if the topic has LogAppendTime.
    pub max_timestamp: TimestampMs,
}

/// What is known of one producer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Producer {
    pub epoch: ProducerEpoch,
    /// Oldest first, at most [`REMEMBERED_BATCHES`]. Empty after a marker of a new epoch.
    pub batches: VecDeque<SequencedBatch>,
    /// When the producer was last heard of, by this shard's wall clock: what expiry counts from.
    pub last_seen: TimestampMs,
    /// Of the transaction's coordinator that wrote the last marker; -1 before one.
    pub coordinator_epoch: i32,
}

impl Producer {
    fn new(epoch: ProducerEpoch, now: TimestampMs) -> Self {
        Self { epoch, batches: VecDeque::new(), last_seen: now, coordinator_epoch: -1 }
    }

    /// The sequence number that the next batch must begin with; `None` if any will do.
    fn expected_sequence(&self) -> Option<i32> {
        self.batches.back().map(|last| next_sequence(last.last_sequence))
    }

    fn remember(&mut self, batch: SequencedBatch) {
        if self.batches.len() == REMEMBERED_BATCHES {
            self.batches.pop_front();
        }
        self.batches.push_back(batch);
    }
}

/// What to do with a batch of an idempotent producer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    New,
    /// It was appended before, there.
    Duplicate(SequencedBatch),
}

/// After 2³¹−1 comes 0.
fn next_sequence(sequence: i32) -> i32 {
    sequence.wrapping_add(1) & i32::MAX
}

/// The producers of one partition. Shard-local.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProducerTable {
    producers: AHashMap<ProducerId, Producer>,
}

impl ProducerTable {
    /// Judges a batch with a producer id. Changes nothing.
    ///
    /// Only what has both the first and the last sequence number of a remembered batch repeats it. Whatever else does not
    /// begin where the last batch ended is out of order, also what repeats a batch that is forgotten: as Kafka says it.
    ///
    /// # Errors
    /// An old epoch, or a sequence number that is not the next one.
    pub fn check(&self, batch: RecordBatchView<'_>) -> Result<Verdict, AppendError> {
        // Nothing known, because it is new here or was forgotten: any sequence number begins it (KIP-360).
        let Some(producer) = self.producers.get(&batch.producer_id()) else { return Ok(Verdict::New) };
        let got = batch.base_sequence();
        if batch.producer_epoch() < producer.epoch {
            return Err(AppendError::InvalidProducerEpoch);
        }
        if batch.producer_epoch() > producer.epoch {
            return if got == 0 { Ok(Verdict::New) } else { Err(AppendError::OutOfOrderSequence { expected: 0, got }) };
        }
        let repeats =
            |former: &&SequencedBatch| former.first_sequence == got && former.last_sequence == batch.last_sequence();
        if let Some(original) = producer.batches.iter().find(repeats) {
            return Ok(Verdict::Duplicate(*original));
        }
        match producer.expected_sequence() {
            None => Ok(Verdict::New),
            Some(expected) if expected == got => Ok(Verdict::New),
            Some(expected) => Err(AppendError::OutOfOrderSequence { expected, got }),
        }
    }

    /// Notes a batch that goes to the log at `base_offset`, and was [`Verdict::New`] or is found there by recovery. If
    /// somebody must be forgotten for it, then none that `keeps` names. True if somebody was.
    pub fn appended(
        &mut self,
        batch: RecordBatchView<'_>,
        base_offset: Offset,
        max_timestamp: TimestampMs,
        now: TimestampMs,
        keeps: impl Fn(ProducerId) -> bool,
    ) -> bool {
        let forgot = self.make_room_for(batch.producer_id(), keeps);
        let producer = self.producer(batch.producer_id(), batch.producer_epoch(), now);
        producer.remember(SequencedBatch {
            first_sequence: batch.base_sequence(),
            last_sequence: batch.last_sequence(),
            base_offset,
            last_offset: Offset(base_offset.0 + i64::from(batch.last_offset_delta())),
            max_timestamp,
        });
        forgot
    }

    /// Notes a marker that ended a transaction. The sequence goes on, unless the marker raised the epoch. True if somebody
    /// was forgotten for it.
    pub fn marked(
        &mut self,
        id: ProducerId,
        epoch: ProducerEpoch,
        coordinator_epoch: i32,
        now: TimestampMs,
        keeps: impl Fn(ProducerId) -> bool,
    ) -> bool {
        // Who is marked has, or had, a transaction, and is there already, unless it was forgotten since.
        let forgot = self.make_room_for(id, keeps);
        self.producer(id, epoch, now).coordinator_epoch = coordinator_epoch;
        forgot
    }

    /// The producer, made anew if it is unknown or known with another epoch.
    fn producer(&mut self, id: ProducerId, epoch: ProducerEpoch, now: TimestampMs) -> &mut Producer {
        let producer = self.producers.entry(id).or_insert_with(|| Producer::new(epoch, now));
        if producer.epoch != epoch {
            producer.epoch = epoch;
            producer.batches.clear();
        }
        producer.last_seen = producer.last_seen.max(now);
        producer
    }

    /// Forgets the most silent producer, but none that `keeps` names, if a new one would be one too many. True if it did.
    fn make_room_for(&mut self, id: ProducerId, keeps: impl Fn(ProducerId) -> bool) -> bool {
        if self.producers.len() < MAX_PRODUCERS || self.producers.contains_key(&id) {
            return false;
        }
        let forgettable = self.producers.iter().filter(|(id, _)| !keeps(**id));
        let most_silent = forgettable.min_by_key(|(id, producer)| (producer.last_seen, **id));
        most_silent.map(|(id, _)| *id).is_some_and(|id| self.producers.remove(&id).is_some())
    }

    /// Forgets producers that were silent since `limit`, unless `keeps` says that one must stay.
    pub fn expire(&mut self, limit: TimestampMs, keeps: impl Fn(ProducerId) -> bool) {
        self.producers.retain(|id, producer| producer.last_seen >= limit || keeps(*id));
    }

    /// Puts a producer back that a snapshot holds.
    pub fn restore(&mut self, id: ProducerId, producer: Producer) {
        self.producers.insert(id, producer);
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.producers.is_empty()
    }

    #[must_use]
    pub fn len(&self) -> usize {
        self.producers.len()
    }

    #[must_use]
    pub fn get(&self, id: ProducerId) -> Option<&Producer> {
        self.producers.get(&id)
    }

    /// All producers in order of id, so that what is made of them is the same each time.
    #[must_use]
    pub fn sorted(&self) -> Vec<(ProducerId, &Producer)> {
        let mut all: Vec<_> = self.producers.iter().map(|(id, producer)| (*id, producer)).collect();
        all.sort_unstable_by_key(|(id, _)| *id);
        all
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]
    use bytes::Bytes;
    use kaas_proto::record::BatchBuilder;

    use super::*;

    const NOW: TimestampMs = TimestampMs(1000);
    const ID: ProducerId = ProducerId(7);

    fn batch(epoch: i16, sequence: i32, records: i32) -> Bytes {
        let mut builder = BatchBuilder::new().producer(ID, ProducerEpoch(epoch), sequence);
        for _ in 0..records {
            builder.push(NOW, None, Some(b"v"), &[]);
        }
        builder.build()
    }

    /// Appends if the verdict is new, at an offset equal to ten times the sequence.
    fn offer(table: &mut ProducerTable, epoch: i16, sequence: i32, records: i32) -> Result<Verdict, AppendError> {
        let bytes = batch(epoch, sequence, records);
        let view = RecordBatchView::read(&bytes).unwrap();
        let verdict = table.check(view)?;
        if verdict == Verdict::New {
            table.appended(view, Offset(i64::from(sequence) * 10), NOW, NOW, |_| false);
        }
        Ok(verdict)
    }

    fn base_offset_of(verdict: Result<Verdict, AppendError>) -> Offset {
        match verdict {
            Ok(Verdict::Duplicate(original)) => original.base_offset,
            other => panic!("no duplicate: {other:?}"),
        }
    }

    #[test]
    fn five_batches_are_remembered() {
        let mut table = ProducerTable::default();
        for sequence in 0..6 {
            assert_eq!(offer(&mut table, 0, sequence, 1), Ok(Verdict::New));
        }
        for sequence in 1..6 {
            assert_eq!(base_offset_of(offer(&mut table, 0, sequence, 1)), Offset(i64::from(sequence) * 10));
        }
        let forgotten = offer(&mut table, 0, 0, 1);
        assert_eq!(forgotten, Err(AppendError::OutOfOrderSequence { expected: 6, got: 0 }), "older than the window");
        assert_eq!(offer(&mut table, 0, 6, 1), Ok(Verdict::New));
    }

    #[test]
    fn only_the_same_batch_is_a_duplicate() {
        let mut table = ProducerTable::default();
        offer(&mut table, 0, 0, 3).unwrap();
        assert_eq!(base_offset_of(offer(&mut table, 0, 0, 3)), Offset(0));
        assert_eq!(offer(&mut table, 0, 2, 3), Err(AppendError::OutOfOrderSequence { expected: 3, got: 2 }));
        assert_eq!(offer(&mut table, 0, 4, 1), Err(AppendError::OutOfOrderSequence { expected: 3, got: 4 }));
        for (sequence, records) in [(0, 1), (0, 2), (0, 4), (1, 2), (1, 1)] {
            let overlapping = offer(&mut table, 0, sequence, records);
            let refusal = AppendError::OutOfOrderSequence { expected: 3, got: sequence };
            assert_eq!(overlapping, Err(refusal), "{records} records from {sequence}");
        }
        offer(&mut table, 0, 3, 2).unwrap();
        let both = offer(&mut table, 0, 0, 5);
        assert_eq!(both, Err(AppendError::OutOfOrderSequence { expected: 5, got: 0 }), "two batches put together");
        assert_eq!(base_offset_of(offer(&mut table, 0, 0, 3)), Offset(0));
    }

    #[test]
    fn an_unknown_producer_begins_anywhere() {
        let mut table = ProducerTable::default();
        assert_eq!(offer(&mut table, 3, 42, 1), Ok(Verdict::New));
        assert_eq!(offer(&mut table, 3, 43, 1), Ok(Verdict::New));
    }

    #[test]
    fn epochs_only_rise_and_begin_at_zero() {
        let mut table = ProducerTable::default();
        offer(&mut table, 1, 0, 1).unwrap();
        assert_eq!(offer(&mut table, 0, 1, 1), Err(AppendError::InvalidProducerEpoch));
        assert_eq!(offer(&mut table, 2, 5, 1), Err(AppendError::OutOfOrderSequence { expected: 0, got: 5 }));
        assert_eq!(offer(&mut table, 2, 0, 1), Ok(Verdict::New));
        assert_eq!(offer(&mut table, 2, 1, 1), Ok(Verdict::New));
    }

    #[test]
    fn sequences_wrap_after_the_largest() {
        let mut table = ProducerTable::default();
        offer(&mut table, 0, i32::MAX - 1, 1).unwrap();
        assert_eq!(offer(&mut table, 0, i32::MAX, 3), Ok(Verdict::New), "ends at 1");
        assert_eq!(base_offset_of(offer(&mut table, 0, i32::MAX, 3)), Offset(i64::from(i32::MAX) * 10));
        assert_eq!(offer(&mut table, 0, 3, 1), Err(AppendError::OutOfOrderSequence { expected: 2, got: 3 }));
        assert_eq!(offer(&mut table, 0, 2, 1), Ok(Verdict::New));
    }

    #[test]
    fn silent_producers_expire() {
        let mut table = ProducerTable::default();
        offer(&mut table, 0, 0, 1).unwrap();
        table.expire(NOW, |_| false);
        assert_eq!(table.len(), 1);
        table.expire(TimestampMs(NOW.0 + 1), |id| id == ID);
        assert_eq!(table.len(), 1, "it has an open transaction");
        table.expire(TimestampMs(NOW.0 + 1), |_| false);
        assert!(table.is_empty());
        assert_eq!(offer(&mut table, 0, 9, 1), Ok(Verdict::New));
    }

    #[test]
    fn a_marker_of_a_new_epoch_forgets_the_sequence() {
        let mut table = ProducerTable::default();
        offer(&mut table, 0, 0, 1).unwrap();
        table.marked(ID, ProducerEpoch(0), 1, NOW, |_| false);
        assert_eq!(offer(&mut table, 0, 1, 1), Ok(Verdict::New), "the sequence goes on");
        table.marked(ID, ProducerEpoch(1), 2, NOW, |_| false);
        assert_eq!(offer(&mut table, 0, 2, 1), Err(AppendError::InvalidProducerEpoch));
        assert_eq!(offer(&mut table, 1, 0, 1), Ok(Verdict::New));
        assert_eq!(table.get(ID).unwrap().coordinator_epoch, 2);
    }

    #[test]
    fn the_number_of_producers_is_bounded() {
        let mut table = ProducerTable::default();
        for id in 0..=i64::try_from(MAX_PRODUCERS).unwrap() {
            let forgot = table.marked(ProducerId(id), ProducerEpoch(0), 0, TimestampMs(id), |id| id == ProducerId(0));
            assert_eq!(forgot, id == i64::try_from(MAX_PRODUCERS).unwrap());
        }
        assert_eq!(table.len(), MAX_PRODUCERS);
        assert!(table.get(ProducerId(0)).is_some(), "its transaction is open");
        assert!(table.get(ProducerId(1)).is_none());
        assert!(table.get(ProducerId(2)).is_some());
    }
}
