//! Questions to the records of a batch. Their answers need decompression, so they are asked only where it must be.

use super::batch::RecordBatchView;
use super::record::{RecordError, RecordSet};
use crate::types::{Offset, TimestampMs};

/// The most that the records of one batch may take when we have to decompress them.
pub const MAX_DECOMPRESSED_BYTES: usize = 128 * 1024 * 1024;

/// The number, within its batch, of the first record without key: a compacted topic refuses it.
pub fn first_keyless(batch: RecordBatchView<'_>) -> Result<Option<i32>, RecordError> {
    let records = RecordSet::read(batch, MAX_DECOMPRESSED_BYTES)?;
    for record in &records {
        let record = record?;
        if record.key.is_none() {
            return Ok(Some(record.offset_delta));
        }
    }
    Ok(None)
}

/// Whether a client left the largest timestamp unset, so that [`max_timestamp`] must find it.
#[must_use]
pub fn lacks_max_timestamp(batch: RecordBatchView<'_>) -> bool {
    !batch.is_log_append_time() && batch.max_timestamp() < batch.base_timestamp()
}

/// The largest timestamp of the records themselves, and the first offset that has it.
pub fn max_timestamp(batch: RecordBatchView<'_>) -> Result<Option<(Offset, TimestampMs)>, RecordError> {
    let records = RecordSet::read(batch, MAX_DECOMPRESSED_BYTES)?;
    let mut largest: Option<(Offset, TimestampMs)> = None;
    for record in &records {
        let record = record?;
        let timestamp = records.timestamp(&record);
        if largest.is_none_or(|(_, so_far)| timestamp > so_far) {
            largest = Some((records.offset(&record), timestamp));
        }
    }
    Ok(largest)
}

/// The first record with this timestamp or a later one, and its offset no smaller than `from`.
pub fn first_at_or_after(
    batch: RecordBatchView<'_>,
    timestamp: TimestampMs,
    from: Offset,
) -> Result<Option<(Offset, TimestampMs)>, RecordError> {
    let records = RecordSet::read(batch, MAX_DECOMPRESSED_BYTES)?;
    for record in &records {
        let record = record?;
        let found = (records.offset(&record), records.timestamp(&record));
        if found.0 >= from && found.1 >= timestamp {
            return Ok(Some(found));
        }
    }
    Ok(None)
}
