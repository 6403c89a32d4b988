//! [`Record`] and [`RecordSet`]: what is inside a batch.

use std::borrow::Cow;

use thiserror::Error;

use super::batch::{BatchError, Compression, RecordBatchView};
use super::compression::decompress;
use super::varint::{take, take_i32, take_i64, take_nullable};
use crate::types::{Offset, TimestampMs};

/// Why the records of a batch can not be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum RecordError {
    /// The header says something impossible.
    #[error(transparent)]
    Batch(#[from] BatchError),
    /// A field claims more bytes than are left.
    #[error("needs {needed} bytes, {left} are left")]
    TooShort { needed: usize, left: usize },
    /// A length below zero, other than the −1 that stands for null.
    #[error("length {0} is negative")]
    NegativeLength(i32),
    /// A variable-length integer that does not end, or exceeds its type.
    #[error("variable-length integer does not fit its type")]
    VarintTooLong,
    /// Bytes behind the last field of a record, or behind the last record.
    #[error("{0} bytes are left over")]
    LeftOver(usize),
    /// Offsets of a client's batch that do not go up by one from 0.
    #[error("offset delta {found} where {expected} is expected")]
    OffsetDelta { expected: i32, found: i32 },
    /// Bytes that are not what their compression makes.
    #[error("records are not valid {0:?}")]
    Decompress(Compression),
    /// Records that would grow above the bound.
    #[error("records are larger than {0} bytes when decompressed")]
    TooLarge(usize),
}

/// A record, borrowed from its batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record<'a> {
    /// Timestamp, less the batch's base timestamp.
    pub timestamp_delta: i64,
    /// Offset, less the batch's base offset.
    pub offset_delta: i32,
    /// The key.
    pub key: Option<&'a [u8]>,
    /// The value; null deletes the key in a compacted topic.
    pub value: Option<&'a [u8]>,
    header_count: i32,
    headers: &'a [u8],
    /// All of it, with its length in front.
    pub(super) whole: &'a [u8],
    pub(super) attributes: u8,
    /// What follows the timestamp.
    pub(super) behind_timestamp: &'a [u8],
}

impl<'a> Record<'a> {
    fn take(bytes: &mut &'a [u8]) -> Result<Self, RecordError> {
        let start = *bytes;
        let length = take_i32(bytes)?;
        let length = usize::try_from(length).map_err(|_| RecordError::NegativeLength(length))?;
        let mut body = take(bytes, length)?;
        let whole = &start[..start.len() - bytes.len()];
        // None is defined.
        let attributes = take(&mut body, 1)?[0];
        let timestamp_delta = take_i64(&mut body)?;
        let record = Self {
            whole,
            attributes,
            timestamp_delta,
            behind_timestamp: body,
            offset_delta: take_i32(&mut body)?,
            key: take_nullable(&mut body)?,
            value: take_nullable(&mut body)?,
            header_count: take_i32(&mut body)?,
            headers: body,
        };
        if record.header_count < 0 {
            return Err(RecordError::NegativeLength(record.header_count));
        }
        let mut headers = record.headers();
        headers.by_ref().try_for_each(|header| header.map(drop))?;
        match headers.rest.len() {
            0 => Ok(record),
            left => Err(RecordError::LeftOver(left)),
        }
    }

    /// The headers, in order; names may repeat.
    #[must_use]
    pub fn headers(&self) -> Headers<'a> {
        Headers { left: self.header_count, rest: self.headers }
    }
}

/// The headers of a record.
#[derive(Clone, Debug)]
pub struct Headers<'a> {
    left: i32,
    rest: &'a [u8],
}

impl<'a> Iterator for Headers<'a> {
    type Item = Result<(&'a [u8], Option<&'a [u8]>), RecordError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.left == 0 {
            return None;
        }
        self.left -= 1;
        let name = take_nullable(&mut self.rest).and_then(|name| name.ok_or(RecordError::NegativeLength(-1)));
        let header = name.and_then(|name| Ok((name, take_nullable(&mut self.rest)?)));
        if header.is_err() {
            self.left = 0;
        }
        Some(header)
    }
}

/// The records of a batch, decompressed.
#[derive(Clone, Debug)]
pub struct RecordSet<'a> {
    bytes: Cow<'a, [u8]>,
    count: i32,
    base_offset: Offset,
    base_timestamp: TimestampMs,
    log_append_time: Option<TimestampMs>,
}

impl<'a> RecordSet<'a> {
    /// The records of `batch`, which may take no more than `max_bytes` when decompressed.
    pub fn read(batch: RecordBatchView<'a>, max_bytes: usize) -> Result<Self, RecordError> {
        Ok(Self {
            bytes: decompress(batch.compression()?, batch.records(), max_bytes)?,
            count: batch.record_count(),
            base_offset: batch.base_offset(),
            base_timestamp: batch.base_timestamp(),
            log_append_time: batch.is_log_append_time().then(|| batch.max_timestamp()),
        })
    }

    /// Goes over the records. Ends with an error if there are fewer or more than the batch says.
    #[must_use]
    pub fn iter(&self) -> Iter<'_> {
        Iter { left: self.count, rest: &self.bytes }
    }

    /// The offset of a record of this set.
    #[must_use]
    pub fn offset(&self, record: &Record<'_>) -> Offset {
        Offset(self.base_offset.0.saturating_add(i64::from(record.offset_delta)))
    }

    /// The timestamp of a record of this set.
    #[must_use]
    pub fn timestamp(&self, record: &Record<'_>) -> TimestampMs {
        let create_time = || TimestampMs(self.base_timestamp.0.saturating_add(record.timestamp_delta));
        self.log_append_time.unwrap_or_else(create_time)
    }
}

impl<'a> IntoIterator for &'a RecordSet<'_> {
    type Item = Result<Record<'a>, RecordError>;
    type IntoIter = Iter<'a>;

    fn into_iter(self) -> Iter<'a> {
        self.iter()
    }
}

/// Goes over the records of a [`RecordSet`].
#[derive(Clone, Debug)]
pub struct Iter<'a> {
    left: i32,
    rest: &'a [u8],
}

impl<'a> Iterator for Iter<'a> {
    type Item = Result<Record<'a>, RecordError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.left <= 0 {
            let left_over = std::mem::take(&mut self.rest).len();
            return (left_over > 0).then_some(Err(RecordError::LeftOver(left_over)));
        }
        self.left -= 1;
        let record = Record::take(&mut self.rest);
        if record.is_err() {
            (self.left, self.rest) = (0, &[]);
        }
        Some(record)
    }
}
