//! [`Filter`]: a batch without some of its records, as compaction leaves it.
//!
//! Offsets never change: base offset, last offset delta, sequence numbers and leader epoch stay as they were, whatever is
//! dropped. The compression stays too.

use std::io;

use bytes::Bytes;
use thiserror::Error;

use super::batch::{Compression, DELETE_HORIZON, HEADER_BYTES, LOG_OVERHEAD, RecordBatchView, field};
use super::compression::compress;
use super::patch::update_crc;
use super::record::{Record, RecordError, RecordSet};
use super::varint::put;
use super::{BatchError, batch};
use crate::types::{Offset, TimestampMs};

/// What is to be done with one batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Filter {
    /// The most that the records may take without compression.
    pub max_decompressed_bytes: usize,
    /// A batch that loses all records stays as a header: it says what its producer sent last.
    pub keep_empty: bool,
    /// The delete horizon that the batch gets if what stays has a tombstone, and if it has no horizon yet.
    pub new_horizon: TimestampMs,
    /// The batch gets the horizon in any case: it is a marker whose transaction is gone.
    pub gets_horizon: bool,
}

/// What is left of a batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Filtered {
    /// Nothing.
    Dropped,
    /// It stays as it is.
    Unchanged,
    Changed(Bytes),
}

/// Why a batch can't be filtered.
#[derive(Debug, Error)]
pub enum FilterError {
    #[error(transparent)]
    Records(#[from] RecordError),
    #[error("records can't be compressed again: {0}")]
    Compress(#[from] io::Error),
    #[error("the batch would have {0} bytes")]
    TooLarge(usize),
}

impl From<BatchError> for FilterError {
    fn from(error: BatchError) -> Self {
        RecordError::from(error).into()
    }
}

impl Filter {
    /// Keeps the records that `keep` wants, which is asked once for each, in order.
    ///
    /// # Errors
    /// The records can't be read, or not written again.
    pub fn apply(
        &self,
        batch: RecordBatchView<'_>,
        mut keep: impl FnMut(Offset, &Record<'_>) -> bool,
    ) -> Result<Filtered, FilterError> {
        let records = RecordSet::read(batch, self.max_decompressed_bytes)?;
        let mut kept = Vec::new();
        for record in &records {
            let record = record?;
            if keep(records.offset(&record), &record) {
                kept.push(record);
            }
        }
        if kept.is_empty() {
            return Ok(if self.keep_empty { Filtered::Changed(emptied(batch)) } else { Filtered::Dropped });
        }
        let has_tombstone = !batch.is_control() && kept.iter().any(|record| record.value.is_none());
        let sets_horizon = batch.delete_horizon().is_none() && (has_tombstone || self.gets_horizon);
        let keeps_all = i32::try_from(kept.len()).is_ok_and(|kept| kept == batch.record_count());
        if keeps_all && !sets_horizon {
            return Ok(Filtered::Unchanged);
        }
        let base_timestamp = if sets_horizon { self.new_horizon } else { batch.base_timestamp() };
        rebuilt(batch, &records, &kept, base_timestamp, sets_horizon).map(Filtered::Changed)
    }

    /// What is left of a batch that loses all its records, whatever they are.
    #[must_use]
    pub fn without_records(&self, batch: RecordBatchView<'_>) -> Filtered {
        match self.keep_empty {
            true if batch.record_count() == 0 => Filtered::Unchanged,
            true => Filtered::Changed(emptied(batch)),
            false => Filtered::Dropped,
        }
    }
}

/// The header alone. It has no compression, because there is nothing to compress, and no delete horizon.
fn emptied(batch: RecordBatchView<'_>) -> Bytes {
    let mut bytes = batch.bytes()[..HEADER_BYTES].to_vec();
    let attributes = batch.attributes() & !(batch::COMPRESSION_MASK | DELETE_HORIZON);
    patch(&mut bytes, field::ATTRIBUTES, attributes.to_be_bytes());
    patch(&mut bytes, field::BASE_TIMESTAMP, (-1_i64).to_be_bytes());
    finish(bytes, 0).expect("a header is small")
}

fn rebuilt(
    batch: RecordBatchView<'_>,
    records: &RecordSet<'_>,
    kept: &[Record<'_>],
    base_timestamp: TimestampMs,
    sets_horizon: bool,
) -> Result<Bytes, FilterError> {
    let mut content = Vec::new();
    for record in kept {
        if sets_horizon {
            // As if relative to the old base, also with LogAppendTime, where nobody looks at it.
            let timestamp = batch.base_timestamp().0.saturating_add(record.timestamp_delta);
            let mut body = vec![record.attributes];
            put(&mut body, timestamp.wrapping_sub(base_timestamp.0));
            body.extend_from_slice(record.behind_timestamp);
            put(&mut content, i64::try_from(body.len()).expect("a record fits memory"));
            content.extend_from_slice(&body);
        } else {
            content.extend_from_slice(record.whole);
        }
    }
    let mut bytes = batch.bytes()[..HEADER_BYTES].to_vec();
    match batch.compression()? {
        Compression::None => bytes.append(&mut content),
        compression => bytes.append(&mut compress(compression, &content)?),
    }
    let mut attributes = batch.attributes();
    if sets_horizon {
        attributes |= DELETE_HORIZON;
    }
    patch(&mut bytes, field::ATTRIBUTES, attributes.to_be_bytes());
    patch(&mut bytes, field::BASE_TIMESTAMP, base_timestamp.0.to_be_bytes());
    let largest = kept.iter().map(|record| records.timestamp(record)).max();
    patch(&mut bytes, field::MAX_TIMESTAMP, largest.unwrap_or(batch.max_timestamp()).0.to_be_bytes());
    let count = i32::try_from(kept.len()).expect("no more than there were");
    finish(bytes, count)
}

fn finish(mut bytes: Vec<u8>, count: i32) -> Result<Bytes, FilterError> {
    let length = i32::try_from(bytes.len() - LOG_OVERHEAD).map_err(|_| FilterError::TooLarge(bytes.len()))?;
    patch(&mut bytes, field::BATCH_LENGTH, length.to_be_bytes());
    patch(&mut bytes, field::RECORD_COUNT, count.to_be_bytes());
    update_crc(&mut bytes);
    Ok(bytes.into())
}

fn patch<const N: usize>(bytes: &mut [u8], position: usize, value: [u8; N]) {
    bytes[position..position + N].copy_from_slice(&value);
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]
    use super::super::BatchBuilder;
    use super::super::compression::decompress;
    use super::super::patch as header;
    use super::*;
    use crate::types::{LeaderEpoch, ProducerEpoch, ProducerId};

    const FILTER: Filter = Filter {
        max_decompressed_bytes: 1 << 24,
        keep_empty: false,
        new_horizon: TimestampMs(5_000_000),
        gets_horizon: false,
    };
    const ALL: [Compression; 5] =
        [Compression::None, Compression::Gzip, Compression::Snappy, Compression::Lz4, Compression::Zstd];

    /// Keys 0 to 9 at timestamps 1000 to 1009; key 7 is a tombstone.
    fn batch(compression: Compression) -> Vec<u8> {
        let mut builder = BatchBuilder::new()
            .producer(ProducerId(4), ProducerEpoch(2), 90)
            .base_offset(Offset(100))
            .leader_epoch(LeaderEpoch(3));
        for index in 0..10 {
            let value = (index != 7).then(|| vec![b'v'; 20_000]);
            let headers: &[(&str, Option<&[u8]>)] = &[("h", Some(b"x"))];
            builder.push(TimestampMs(1000 + i64::from(index)), Some(&[index]), value.as_deref(), headers);
        }
        builder.compression(compression).build().to_vec()
    }

    fn contents(bytes: &[u8]) -> Vec<(i64, i64, u8, bool)> {
        let view = RecordBatchView::read(bytes).unwrap();
        view.check_crc().unwrap();
        let records = RecordSet::read(view, 1 << 24).unwrap();
        let row = |record: Record<'_>| {
            assert_eq!(record.headers().count(), 1);
            let (offset, timestamp) = (records.offset(&record), records.timestamp(&record));
            (offset.0, timestamp.0, record.key.unwrap()[0], record.value.is_some())
        };
        records.iter().map(|record| row(record.unwrap())).collect()
    }

    #[test]
    fn what_is_compressed_can_be_read_again() {
        let bytes: Vec<u8> = (0..300_000_u32).flat_map(|n| (n / 7).to_le_bytes()).collect();
        for compression in ALL {
            for part in [&bytes[..], &bytes[..10], &[]] {
                let compressed = compress(compression, part).unwrap();
                assert_eq!(decompress(compression, &compressed, 1 << 24).unwrap(), part, "{compression:?}");
            }
        }
    }

    #[test]
    fn kept_records_stay_where_they_were() {
        for compression in ALL {
            let bytes = batch(compression);
            let before = contents(&bytes);
            let view = RecordBatchView::read(&bytes).unwrap();
            let odd = |_: Offset, record: &Record<'_>| record.key.is_some_and(|key| key[0] % 2 == 1 && key[0] < 7);
            let Filtered::Changed(after) = FILTER.apply(view, odd).unwrap() else { panic!("it changes") };
            let expected: Vec<_> = before.iter().copied().filter(|row| row.2 % 2 == 1 && row.2 < 7).collect();
            assert_eq!(contents(&after), expected);
            let changed = RecordBatchView::read(&after).unwrap();
            assert_eq!(changed.compression(), view.compression());
            assert_eq!((changed.base_offset(), changed.last_offset()), (Offset(100), Offset(109)));
            assert_eq!((changed.base_sequence(), changed.last_sequence()), (90, 99));
            assert_eq!(changed.partition_leader_epoch(), LeaderEpoch(3));
            assert_eq!((changed.record_count(), changed.max_timestamp()), (3, TimestampMs(1005)));
            assert_eq!(changed.delete_horizon(), None);
        }
    }

    #[test]
    fn a_kept_tombstone_gets_a_horizon_once() {
        for compression in ALL {
            let bytes = batch(compression);
            let view = RecordBatchView::read(&bytes).unwrap();
            let Filtered::Changed(first) = FILTER.apply(view, |_, _| true).unwrap() else { panic!("it changes") };
            assert_eq!(contents(&first), contents(&bytes), "timestamps too");
            let changed = RecordBatchView::read(&first).unwrap();
            assert_eq!(changed.delete_horizon(), Some(FILTER.new_horizon));
            let later = Filter { new_horizon: TimestampMs(9_000_000), ..FILTER };
            assert_eq!(later.apply(changed, |_, _| true).unwrap(), Filtered::Unchanged);
            let last = |_: Offset, record: &Record<'_>| record.key == Some(&[9]);
            let Filtered::Changed(second) = later.apply(changed, last).unwrap() else { panic!("it changes") };
            assert_eq!(contents(&second), [(109, 1009, 9, true)]);
            assert_eq!(RecordBatchView::read(&second).unwrap().delete_horizon(), Some(FILTER.new_horizon));
        }
    }

    #[test]
    fn the_last_batch_of_a_producer_stays_as_a_header() {
        let bytes = batch(Compression::Zstd);
        let view = RecordBatchView::read(&bytes).unwrap();
        assert_eq!(FILTER.apply(view, |_, _| false).unwrap(), Filtered::Dropped);
        assert_eq!(FILTER.without_records(view), Filtered::Dropped);
        let keeping = Filter { keep_empty: true, ..FILTER };
        let Filtered::Changed(empty) = keeping.apply(view, |_, _| false).unwrap() else { panic!("it changes") };
        assert_eq!(keeping.without_records(view), Filtered::Changed(empty.clone()));
        assert_eq!(empty.len(), HEADER_BYTES);
        let emptied = RecordBatchView::read(&empty).unwrap();
        emptied.check_crc().unwrap();
        assert_eq!((emptied.base_offset(), emptied.last_offset()), (Offset(100), Offset(109)));
        assert_eq!((emptied.producer_id(), emptied.last_sequence()), (ProducerId(4), 99));
        assert_eq!(emptied.max_timestamp(), TimestampMs(1009));
        assert_eq!(contents(&empty), []);
        assert_eq!(keeping.without_records(emptied), Filtered::Unchanged);
    }

    #[test]
    fn append_time_stays() {
        let mut bytes = batch(Compression::None);
        header::set_log_append_time(&mut bytes, TimestampMs(7777));
        let view = RecordBatchView::read(&bytes).unwrap();
        let late = |_: Offset, record: &Record<'_>| record.key.is_some_and(|key| key[0] > 6);
        let Filtered::Changed(after) = FILTER.apply(view, late).unwrap() else { panic!("it changes") };
        assert_eq!(contents(&after), [(107, 7777, 7, false), (108, 7777, 8, true), (109, 7777, 9, true)]);
        assert_eq!(RecordBatchView::read(&after).unwrap().max_timestamp(), TimestampMs(7777));
    }

    #[test]
    fn damage_is_an_error() {
        let mut bytes = batch(Compression::Gzip);
        let end = bytes.len();
        bytes.truncate(end - 30);
        let bytes = finish(bytes, 10).unwrap();
        let view = RecordBatchView::read(&bytes).unwrap();
        assert!(FILTER.apply(view, |_, _| true).is_err());
        let small = Filter { max_decompressed_bytes: 1000, ..FILTER };
        let bytes = batch(Compression::Zstd);
        let error = small.apply(RecordBatchView::read(&bytes).unwrap(), |_, _| true).unwrap_err();
        assert!(matches!(error, FilterError::Records(RecordError::TooLarge(1000))));
    }
}
