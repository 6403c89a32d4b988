//! Questions to the records of a batch. Their answers need decompression, so they are asked only where it must be.

use super::batch::RecordBatchView;
use super::record::RecordError;
use super::walk::Walk;
use crate::types::{Offset, TimestampMs};

/// The most that the records of one batch may take when all of them are needed at a time.
pub const MAX_DECOMPRESSED_BYTES: usize = 128 * 1024 * 1024;

/// The first record with this timestamp or a later one, and its offset no smaller than `from`.
///
/// # Errors
/// The records can't be read.
pub fn first_at_or_after(
    batch: RecordBatchView<'_>,
    timestamp: TimestampMs,
    from: Offset,
) -> Result<Option<(Offset, TimestampMs)>, RecordError> {
    for record in Walk::new(batch)? {
        let record = record?;
        if record.offset >= from && record.timestamp >= timestamp {
            return Ok(Some((record.offset, record.timestamp)));
        }
    }
    Ok(None)
}

/// The largest timestamp of the records from an offset on, −1 if there is none.
///
/// # Errors
/// The records can't be read.
pub fn largest_timestamp_from(batch: RecordBatchView<'_>, from: Offset) -> Result<TimestampMs, RecordError> {
    Walk::new(batch)?.try_fold(TimestampMs(-1), |largest, record| {
        let record = record?;
        Ok(if record.offset >= from { largest.max(record.timestamp) } else { largest })
    })
}
