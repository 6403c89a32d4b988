//! `{epoch:08x}.producers`: what a partition remembers of its producers and transactions, as of one offset.
//!
//! The leader of the epoch writes it before its manifest, if it found any producer, then with each checkpoint and when it
//! relinquishes. Only the one of the newest manifest's own epoch is ever read: without it, state begins empty where that
//! epoch does.
//!
//! Magic `kprs`, version 1, in the frame of [binary files](super::SealedBinaryError):
//!
//! | offset | size | field |
//! |---|---|---|
//! | 12 | 8 | offset that the snapshot holds for: all records below it are in, none above |
//! | 20 | 4 | number of producers |
//! | 24 | 4 | number of aborted transactions |
//! | 28 | | producers, by rising id: |
//! | +0 | 8 | producer id |
//! | +8 | 2 | producer epoch |
//! | +10 | 4 | epoch of the transaction coordinator that wrote the last marker, -1 if none did |
//! | +14 | 8 | timestamp of the last batch or marker |
//! | +22 | 8 | first offset of the open transaction, -1 if none is open |
//! | +30 | 1 | number of batches, at most [`BATCHES_KEPT`]; then for each, oldest first: |
//! | +0 | 4 | first sequence number |
//! | +4 | 4 | last sequence number |
//! | +8 | 8 | base offset |
//! | +16 | 8 | timestamp |
//! | | | aborted transactions, by rising marker offset: |
//! | +0 | 8 | producer id |
//! | +8 | 8 | first offset |
//! | +16 | 8 | offset of the abort marker |

use kaas_proto::types::{Offset, ProducerEpoch, ProducerId, TimestampMs};

use super::sealed_binary::{Decoder, Encoder, SealedBinaryError};

const MAGIC: &str = "kprs";
const VERSION: u16 = 1;
const FIXED_BYTES: usize = 8 + 4 + 4;
const PRODUCER_BYTES: usize = 8 + 2 + 4 + 8 + 8 + 1;
const BATCH_BYTES: usize = 4 + 4 + 8 + 8;
const ABORTED_BYTES: usize = 8 + 8 + 8;

/// A producer may have five requests in flight: so many batches are told from new ones.
pub const BATCHES_KEPT: usize = 5;

/// More than twice of what a leader remembers. Nobody writes a larger one.
pub const LIMIT_BYTES: usize = 64 << 20;

/// Why bytes are no snapshot. Recovery then reads the log from its start.
pub use super::sealed_binary::SealedBinaryError as ProducerSnapshotError;

/// What a partition remembers of its producers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProducerSnapshot {
    /// All records below are in, none at or above.
    pub offset: Offset,
    /// By rising producer id.
    pub producers: Vec<ProducerEntry>,
    /// By rising marker offset.
    pub aborted: Vec<AbortedEntry>,
}

/// One producer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProducerEntry {
    pub producer_id: ProducerId,
    pub producer_epoch: ProducerEpoch,
    /// -1 if no marker was seen.
    pub coordinator_epoch: i32,
    pub last_timestamp: TimestampMs,
    pub open_transaction: Option<Offset>,
    /// At most [`BATCHES_KEPT`], oldest first.
    pub batches: Vec<BatchEntry>,
}

/// One batch of a producer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchEntry {
    pub first_sequence: i32,
    pub last_sequence: i32,
    pub base_offset: Offset,
    pub timestamp: TimestampMs,
}

/// One aborted transaction whose records are still in the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AbortedEntry {
    pub producer_id: ProducerId,
    pub first_offset: Offset,
    pub marker_offset: Offset,
}

impl ProducerSnapshot {
    /// How large one is with so many producers and aborted transactions at most.
    #[must_use]
    pub const fn largest_bytes(producers: usize, aborted: usize) -> usize {
        const HEADER_BYTES: usize = 12;
        let producer_bytes = PRODUCER_BYTES + BATCHES_KEPT * BATCH_BYTES;
        HEADER_BYTES + FIXED_BYTES + producers * producer_bytes + aborted * ABORTED_BYTES
    }

    /// # Panics
    /// If a producer has more than [`BATCHES_KEPT`] batches, or there are 2^32 of anything.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let batches: usize = self.producers.iter().map(|producer| producer.batches.len()).sum();
        let variable_bytes =
            self.producers.len() * PRODUCER_BYTES + batches * BATCH_BYTES + self.aborted.len() * ABORTED_BYTES;
        let mut encoder = Encoder::new(MAGIC, VERSION, FIXED_BYTES + variable_bytes);
        encoder.put(self.offset.0.to_be_bytes());
        encoder.put(count(self.producers.len()));
        encoder.put(count(self.aborted.len()));
        for producer in &self.producers {
            encoder.put(producer.producer_id.0.to_be_bytes());
            encoder.put(producer.producer_epoch.0.to_be_bytes());
            encoder.put(producer.coordinator_epoch.to_be_bytes());
            encoder.put(producer.last_timestamp.0.to_be_bytes());
            encoder.put(producer.open_transaction.map_or(-1, |offset| offset.0).to_be_bytes());
            assert!(producer.batches.len() <= BATCHES_KEPT, "{} batches", producer.batches.len());
            encoder.put([u8::try_from(producer.batches.len()).expect("five at most")]);
            for batch in &producer.batches {
                encoder.put(batch.first_sequence.to_be_bytes());
                encoder.put(batch.last_sequence.to_be_bytes());
                encoder.put(batch.base_offset.0.to_be_bytes());
                encoder.put(batch.timestamp.0.to_be_bytes());
            }
        }
        for aborted in &self.aborted {
            encoder.put(aborted.producer_id.0.to_be_bytes());
            encoder.put(aborted.first_offset.0.to_be_bytes());
            encoder.put(aborted.marker_offset.0.to_be_bytes());
        }
        encoder.finish()
    }

    /// # Errors
    /// See [`SealedBinaryError`].
    pub fn decode(bytes: &[u8]) -> Result<Self, ProducerSnapshotError> {
        let (_, mut decoder) = Decoder::new(MAGIC, VERSION, bytes)?;
        let offset = take_offset(&mut decoder)?;
        if offset < Offset(0) {
            return Err(decoder.wrong("a negative offset", 8));
        }
        let producer_count = decoder.take_count(PRODUCER_BYTES)?;
        let aborted_count = decoder.take_count(ABORTED_BYTES)?;
        let mut producers: Vec<ProducerEntry> = Vec::with_capacity(producer_count);
        for _ in 0..producer_count {
            let producer_id = ProducerId(i64::from_be_bytes(decoder.take()?));
            if producers.last().is_some_and(|before| producer_id <= before.producer_id) {
                return Err(decoder.wrong("producer ids do not rise", 8));
            }
            producers.push(take_producer(&mut decoder, producer_id)?);
        }
        let mut aborted: Vec<AbortedEntry> = Vec::with_capacity(aborted_count);
        for _ in 0..aborted_count {
            let entry = AbortedEntry {
                producer_id: ProducerId(i64::from_be_bytes(decoder.take()?)),
                first_offset: take_offset(&mut decoder)?,
                marker_offset: take_offset(&mut decoder)?,
            };
            if aborted.last().is_some_and(|before| entry.marker_offset <= before.marker_offset) {
                return Err(decoder.wrong("marker offsets do not rise", 8));
            }
            aborted.push(entry);
        }
        decoder.finish()?;
        Ok(Self { offset, producers, aborted })
    }
}

fn count(length: usize) -> [u8; 4] {
    u32::try_from(length).expect("fewer than 2^32 entries fit memory").to_be_bytes()
}

fn take_offset(decoder: &mut Decoder<'_>) -> Result<Offset, SealedBinaryError> {
    Ok(Offset(i64::from_be_bytes(decoder.take()?)))
}

fn take_producer(decoder: &mut Decoder<'_>, producer_id: ProducerId) -> Result<ProducerEntry, SealedBinaryError> {
    let producer_epoch = ProducerEpoch(i16::from_be_bytes(decoder.take()?));
    let coordinator_epoch = i32::from_be_bytes(decoder.take()?);
    let last_timestamp = TimestampMs(i64::from_be_bytes(decoder.take()?));
    let open = take_offset(decoder)?;
    let [batch_count] = decoder.take()?;
    if usize::from(batch_count) > BATCHES_KEPT {
        return Err(decoder.wrong("too many batches", 1));
    }
    let mut batches = Vec::with_capacity(usize::from(batch_count));
    for _ in 0..batch_count {
        batches.push(BatchEntry {
            first_sequence: i32::from_be_bytes(decoder.take()?),
            last_sequence: i32::from_be_bytes(decoder.take()?),
            base_offset: take_offset(decoder)?,
            timestamp: TimestampMs(i64::from_be_bytes(decoder.take()?)),
        });
    }
    let open_transaction = (open >= Offset(0)).then_some(open);
    Ok(ProducerEntry { producer_id, producer_epoch, coordinator_epoch, last_timestamp, open_transaction, batches })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::super::robustness::assert_damage_is_found;
    use super::*;

    fn snapshot() -> ProducerSnapshot {
        let batch = BatchEntry {
            first_sequence: 0x11,
            last_sequence: 0x12,
            base_offset: Offset(0x0131),
            timestamp: TimestampMs(0x0194_1f29_7c00),
        };
        ProducerSnapshot {
            offset: Offset(0x0133),
            producers: vec![ProducerEntry {
                producer_id: ProducerId(0x1001),
                producer_epoch: ProducerEpoch(2),
                coordinator_epoch: -1,
                last_timestamp: TimestampMs(0x0194_1f29_7c00),
                open_transaction: Some(Offset(0x0131)),
                batches: vec![batch],
            }],
            aborted: vec![AbortedEntry {
                producer_id: ProducerId(0x1002),
                first_offset: Offset(0x20),
                marker_offset: Offset(0x29),
            }],
        }
    }

    #[test]
    fn bytes_are_golden() {
        #[rustfmt::skip]
        let expected = [
            b'k', b'p', b'r', b's', 0, 1, 0, 0,
            0x1b, 0x9f, 0x79, 0x47,              // CRC
            0, 0, 0, 0, 0, 0, 0x01, 0x33,        // holds for offset
            0, 0, 0, 1,  0, 0, 0, 1,             // one producer, one aborted transaction
            0, 0, 0, 0, 0, 0, 0x10, 0x01,        // producer id
            0, 2,                                // producer epoch
            0xff, 0xff, 0xff, 0xff,              // no coordinator epoch
            0, 0, 0x01, 0x94, 0x1f, 0x29, 0x7c, 0, // last timestamp
            0, 0, 0, 0, 0, 0, 0x01, 0x31,        // open transaction
            1,                                   // one batch
            0, 0, 0, 0x11,  0, 0, 0, 0x12,       // sequence numbers
            0, 0, 0, 0, 0, 0, 0x01, 0x31,        // base offset
            0, 0, 0x01, 0x94, 0x1f, 0x29, 0x7c, 0, // timestamp
            0, 0, 0, 0, 0, 0, 0x10, 0x02,        // aborted: producer id
            0, 0, 0, 0, 0, 0, 0, 0x20,           // first offset
            0, 0, 0, 0, 0, 0, 0, 0x29,           // marker offset
        ];
        assert_eq!(snapshot().encode(), expected);
        assert_eq!(ProducerSnapshot::decode(&expected), Ok(snapshot()));
    }

    #[test]
    fn damage_is_found() {
        assert_damage_is_found(&snapshot().encode(), ProducerSnapshot::decode);
    }

    #[test]
    fn contradictions_are_refused() {
        let decode = |change: &dyn Fn(&mut ProducerSnapshot)| {
            let mut changed = snapshot();
            change(&mut changed);
            ProducerSnapshot::decode(&changed.encode()).unwrap_err().to_string()
        };
        assert_eq!(decode(&|s| s.offset = Offset(-1)), "a negative offset at byte 12");
        assert!(decode(&|s| s.producers.push(s.producers[0].clone())).starts_with("producer ids do not rise"));
        assert!(decode(&|s| s.aborted.push(s.aborted[0])).starts_with("marker offsets do not rise"));
        let mut huge = Encoder::new(MAGIC, VERSION, 0);
        huge.put(0_i64.to_be_bytes());
        huge.put(u32::MAX.to_be_bytes());
        huge.put(0_u32.to_be_bytes());
        assert!(matches!(ProducerSnapshot::decode(&huge.finish()), Err(SealedBinaryError::Truncated { .. })));
    }

    prop_compose! {
        fn any_batch()(first in 0..i32::MAX, last in 0..i32::MAX, base in 0..i64::MAX, time: i64) -> BatchEntry {
            BatchEntry { first_sequence: first, last_sequence: last, base_offset: Offset(base), timestamp: TimestampMs(time) }
        }
    }

    prop_compose! {
        fn any_producer()(
            epoch: i16,
            coordinator in -1..i32::MAX,
            time: i64,
            open in proptest::option::of(0..i64::MAX),
            batches in vec(any_batch(), 0..=BATCHES_KEPT),
        ) -> ProducerEntry {
            ProducerEntry {
                producer_id: ProducerId(0),
                producer_epoch: ProducerEpoch(epoch),
                coordinator_epoch: coordinator,
                last_timestamp: TimestampMs(time),
                open_transaction: open.map(Offset),
                batches,
            }
        }
    }

    proptest! {
        #[test]
        fn snapshots_come_back(
            offset in 0..i64::MAX,
            mut producers in vec(any_producer(), 0..20),
            aborted in vec((any::<i64>(), any::<i64>()), 0..20),
        ) {
            for (id, producer) in (0..).zip(&mut producers) {
                producer.producer_id = ProducerId(id);
            }
            let aborted = (0..).zip(aborted).map(|(marker, (id, first))| AbortedEntry {
                producer_id: ProducerId(id),
                first_offset: Offset(first),
                marker_offset: Offset(marker),
            });
            let snapshot = ProducerSnapshot { offset: Offset(offset), producers, aborted: aborted.collect() };
            prop_assert_eq!(ProducerSnapshot::decode(&snapshot.encode()), Ok(snapshot));
        }

        #[test]
        fn no_input_panics(bytes: Vec<u8>) {
            prop_assert!(ProducerSnapshot::decode(&bytes).is_err());
        }
    }
}
