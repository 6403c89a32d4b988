//! `{segment}.index`: a sparse index of one segment, by offset and by time. Rebuildable from the segment.
//!
//! Magic `kidx`, version 1, in the frame of [binary files](super::SealedBinaryError):
//!
//! | offset | size | field |
//! |---|---|---|
//! | 12 | 8 | base offset of the segment |
//! | 20 | 8 | bytes of the segment that the index covers: a batch boundary |
//! | 28 | 8 | offset of the batch at that position: the segment's end if it covers all |
//! | 36 | 8 | largest timestamp, -1 without records |
//! | 44 | 8 | base offset of the first batch with that timestamp, -1 without records |
//! | 52 | 4 | number of entries |
//! | 56 | | entries, by rising position: |
//! | +0 | 4 | base offset of a batch, relative to the segment's |
//! | +4 | 4 | position of that batch |
//! | +8 | 8 | largest timestamp of all batches in front of it, -1 for none |

use kaas_proto::types::{Offset, TimestampMs};

use super::sealed_binary::{self, Decoder, Encoder};

const MAGIC: &str = "kidx";
const VERSION: u16 = 1;
/// Where the base offset lies.
pub(crate) const BASE_OFFSET_AT: u64 = sealed_binary::BODY_AT as u64;
const FIXED_BYTES: usize = 5 * 8 + 4;
const ENTRY_BYTES: usize = 4 + 4 + 8;

/// A segment of 2 GiB with an entry each 512 bytes.
pub const LIMIT_BYTES: usize = 64 << 20;

/// Why bytes are no index. It is then rebuilt from the segment.
pub use super::sealed_binary::SealedBinaryError as IndexError;

/// A sparse index of one segment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SegmentIndex {
    pub base_offset: Offset,
    /// How many bytes of the segment are covered.
    pub covered_bytes: u64,
    /// The offset of the batch behind the covered bytes.
    pub next_offset: Offset,
    /// -1 without records.
    pub max_timestamp: TimestampMs,
    /// The batch that brought it; -1 without records.
    pub offset_of_max_timestamp: Offset,
    entries: Vec<IndexEntry>,
}

/// Where one batch begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IndexEntry {
    /// Base offset of the batch, relative to the segment's.
    pub relative_offset: u32,
    pub position: u32,
    /// Largest timestamp of all batches in front of this one, -1 for none.
    pub max_timestamp_before: TimestampMs,
}

impl SegmentIndex {
    /// The index of an empty segment.
    #[must_use]
    pub fn new(base_offset: Offset) -> Self {
        Self {
            base_offset,
            covered_bytes: 0,
            next_offset: base_offset,
            max_timestamp: TimestampMs(-1),
            offset_of_max_timestamp: Offset(-1),
            entries: Vec::new(),
        }
    }

    #[must_use]
    pub fn entries(&self) -> &[IndexEntry] {
        &self.entries
    }

    /// Covers one more batch, with an entry for it if the last one lies `interval_bytes` or more back.
    ///
    /// A segment that is too large for 32-bit positions or relative offsets gets no entries behind that point: look-ups
    /// then begin at the last one.
    pub fn push(&mut self, batch: BatchSpan, interval_bytes: u32) {
        let relative_offset = u32::try_from(batch.base_offset.0 - self.base_offset.0);
        if let (Ok(position), Ok(relative_offset)) = (u32::try_from(self.covered_bytes), relative_offset) {
            let due = self.entries.last().is_none_or(|last| position - last.position >= interval_bytes);
            if due {
                self.entries.push(IndexEntry { relative_offset, position, max_timestamp_before: self.max_timestamp });
            }
        }
        if batch.max_timestamp > self.max_timestamp {
            self.max_timestamp = batch.max_timestamp;
            self.offset_of_max_timestamp = batch.base_offset;
        }
        self.covered_bytes += batch.bytes;
        self.next_offset = batch.next_offset;
    }

    /// Where to start looking for `offset`: the position of a batch at or in front of the one that holds it.
    #[must_use]
    pub fn position_of(&self, offset: Offset) -> u64 {
        let relative = offset.0.saturating_sub(self.base_offset.0);
        self.before(self.entries.partition_point(|entry| i64::from(entry.relative_offset) <= relative))
    }

    /// The same, with the offset of the batch at that position.
    #[must_use]
    pub fn place_of(&self, offset: Offset) -> (u64, Offset) {
        let relative = offset.0.saturating_sub(self.base_offset.0);
        let behind = self.entries.partition_point(|entry| i64::from(entry.relative_offset) <= relative);
        self.entries[..behind].last().map_or((0, self.base_offset), |entry| {
            (u64::from(entry.position), self.base_offset.plus(entry.relative_offset.into()))
        })
    }

    /// The last entry in front of `limit`: its position, and the largest timestamp in front of that.
    #[must_use]
    pub fn last_in_front_of(&self, limit: Offset) -> (u64, TimestampMs) {
        let relative = limit.0.saturating_sub(self.base_offset.0);
        let behind = self.entries.partition_point(|entry| i64::from(entry.relative_offset) < relative);
        let last = self.entries[..behind].last();
        last.map_or((0, TimestampMs(-1)), |entry| (u64::from(entry.position), entry.max_timestamp_before))
    }

    /// Where to start looking for the first record at or after `time`; `None` if no covered record is that late.
    #[must_use]
    pub fn position_at(&self, time: TimestampMs) -> Option<u64> {
        (self.max_timestamp >= time)
            .then(|| self.before(self.entries.partition_point(|entry| entry.max_timestamp_before < time)))
    }

    fn before(&self, index: usize) -> u64 {
        self.entries[..index].last().map_or(0, |entry| u64::from(entry.position))
    }

    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut encoder = Encoder::new(MAGIC, VERSION, FIXED_BYTES + self.entries.len() * ENTRY_BYTES);
        encoder.put(self.base_offset.0.to_be_bytes());
        encoder.put(self.covered_bytes.to_be_bytes());
        encoder.put(self.next_offset.0.to_be_bytes());
        encoder.put(self.max_timestamp.0.to_be_bytes());
        encoder.put(self.offset_of_max_timestamp.0.to_be_bytes());
        encoder.put(u32::try_from(self.entries.len()).expect("positions rise and have 32 bits").to_be_bytes());
        for entry in &self.entries {
            encoder.put(entry.relative_offset.to_be_bytes());
            encoder.put(entry.position.to_be_bytes());
            encoder.put(entry.max_timestamp_before.0.to_be_bytes());
        }
        encoder.finish()
    }

    /// # Errors
    /// See [`SealedBinaryError`](super::SealedBinaryError).
    pub fn decode(bytes: &[u8]) -> Result<Self, IndexError> {
        let (_, mut decoder) = Decoder::new(MAGIC, VERSION, bytes)?;
        let base_offset = Offset(i64::from_be_bytes(decoder.take()?));
        let covered_bytes = u64::from_be_bytes(decoder.take()?);
        let next_offset = Offset(i64::from_be_bytes(decoder.take()?));
        if base_offset < Offset(0) || next_offset < base_offset {
            return Err(decoder.wrong("offsets are not 0 <= base <= next", 8));
        }
        let max_timestamp = TimestampMs(i64::from_be_bytes(decoder.take()?));
        let offset_of_max_timestamp = Offset(i64::from_be_bytes(decoder.take()?));
        let count = decoder.take_count(ENTRY_BYTES)?;
        let mut entries: Vec<IndexEntry> = Vec::with_capacity(count);
        for _ in 0..count {
            let entry = IndexEntry {
                relative_offset: u32::from_be_bytes(decoder.take()?),
                position: u32::from_be_bytes(decoder.take()?),
                max_timestamp_before: TimestampMs(i64::from_be_bytes(decoder.take()?)),
            };
            let rises = entries.last().is_none_or(|before| {
                before.position < entry.position
                    && before.relative_offset < entry.relative_offset
                    && before.max_timestamp_before <= entry.max_timestamp_before
            });
            if !rises || u64::from(entry.position) >= covered_bytes {
                return Err(decoder.wrong("an entry does not rise or lies outside", ENTRY_BYTES));
            }
            entries.push(entry);
        }
        decoder.finish()?;
        Ok(Self { base_offset, covered_bytes, next_offset, max_timestamp, offset_of_max_timestamp, entries })
    }
}

/// What the index needs to know of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchSpan {
    pub base_offset: Offset,
    /// Behind its last offset.
    pub next_offset: Offset,
    pub bytes: u64,
    pub max_timestamp: TimestampMs,
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::super::robustness::assert_damage_is_found;
    use super::*;

    fn span(base: i64, next: i64, bytes: u64, time: i64) -> BatchSpan {
        BatchSpan { base_offset: Offset(base), next_offset: Offset(next), bytes, max_timestamp: TimestampMs(time) }
    }

    fn index() -> SegmentIndex {
        let mut index = SegmentIndex::new(Offset(100));
        index.push(span(100, 110, 3000, 50), 4096);
        index.push(span(110, 111, 2000, 90), 4096);
        index.push(span(111, 120, 1000, 70), 4096);
        index
    }

    #[test]
    fn bytes_are_golden() {
        #[rustfmt::skip]
        let expected = [
            b'k', b'i', b'd', b'x', 0, 1, 0, 0,
            0x93, 0x13, 0xa5, 0x6f,        // CRC
            0, 0, 0, 0, 0, 0, 0, 100,      // base offset
            0, 0, 0, 0, 0, 0, 0x17, 0x70,  // covered bytes
            0, 0, 0, 0, 0, 0, 0, 120,      // next offset
            0, 0, 0, 0, 0, 0, 0, 90,       // largest timestamp
            0, 0, 0, 0, 0, 0, 0, 110,      // where it is
            0, 0, 0, 2,                    // two entries
            0, 0, 0, 0,  0, 0, 0, 0,       // first batch
            0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff,
            0, 0, 0, 11, 0, 0, 0x13, 0x88, // third batch
            0, 0, 0, 0, 0, 0, 0, 90,
        ];
        assert_eq!(index().encode(), expected);
        assert_eq!(SegmentIndex::decode(&expected), Ok(index()));
    }

    #[test]
    fn damage_is_found() {
        assert_damage_is_found(&index().encode(), SegmentIndex::decode);
    }

    #[test]
    fn look_ups_start_in_front() {
        let index = index();
        assert_eq!([99, 100, 110, 111, 1000].map(|offset| index.position_of(Offset(offset))), [0, 0, 0, 5000, 5000]);
        let at = |time| index.position_at(TimestampMs(time));
        assert_eq!([0, 50, 90, 91].map(at), [Some(0), Some(0), Some(0), None]);
        let mut more = index.clone();
        more.push(span(120, 121, 10, 95), 0);
        assert_eq!(more.position_at(TimestampMs(91)), Some(6000));
    }

    #[test]
    fn positions_that_do_not_fit_get_no_entry() {
        let mut index = SegmentIndex::new(Offset(0));
        index.push(span(0, 1, u64::from(u32::MAX) + 1, 1), 4096);
        index.push(span(1, 2, 100, 2), 4096);
        assert_eq!(index.entries().len(), 1);
        assert_eq!(index.position_of(Offset(1)), 0);
        assert_eq!(SegmentIndex::decode(&index.encode()), Ok(index));
    }

    proptest! {
        #[test]
        fn look_ups_find_what_a_scan_finds(
            batches in vec((1..5_i64, 100..3000_u64, 0..100_i64), 0..60),
            wanted in 0..200_i64,
            time in 0..110_i64,
        ) {
            let mut index = SegmentIndex::new(Offset(0));
            let mut spans = Vec::new();
            let (mut offset, mut position) = (0, 0);
            for (records, bytes, timestamp) in batches {
                let batch = span(offset, offset + records, bytes, timestamp);
                index.push(batch, 4096);
                spans.push((position, batch));
                offset += records;
                position += bytes;
            }
            prop_assert_eq!(SegmentIndex::decode(&index.encode()), Ok(index.clone()));
            let starts = |position| position == 0 || spans.iter().any(|&(start, _)| start == position);
            if let Some((position, _)) = spans.iter().find(|(_, batch)| batch.next_offset.0 > wanted) {
                let found = index.position_of(Offset(wanted));
                prop_assert!(starts(found) && found <= *position && position - found < 4096 + 3000);
            }
            let first = spans.iter().find(|(_, batch)| batch.max_timestamp.0 >= time);
            let found = index.position_at(TimestampMs(time));
            prop_assert_eq!(found.is_some(), first.is_some());
            if let (Some(found), Some((position, _))) = (found, first) {
                prop_assert!(starts(found) && found <= *position && position - found < 4096 + 3000);
            }
        }

        #[test]
        fn no_input_panics(bytes: Vec<u8>) {
            prop_assert!(SegmentIndex::decode(&bytes).is_err());
        }
    }
}
