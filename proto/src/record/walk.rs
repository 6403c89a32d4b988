//! [`Walk`] and [`Summary`]: what the records of a batch tell, each looked at once and none kept. Takes a few KiB of memory however large
//! they are when decompressed.

use std::fmt;
use std::io::{BufRead, BufReader, Read};

use super::batch::RecordBatchView;
use super::compression::{Decompressing, decompressing};
use super::record::RecordError;
use super::varint;
use crate::types::{Offset, TimestampMs};

/// What is decompressed before it is looked at.
const BUFFER_BYTES: usize = 16 << 10;

/// The most that the records of a compressed batch may take without their compression, unless the batch is so large that
/// [`EXPANSION`] times its size is more: no producer makes such a batch, as it counts what it collects before it compresses.
pub const MAX_DECOMPRESSED_BYTES: u64 = 32 << 20;
const EXPANSION: u64 = 4;

/// What a walk tells of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Walked {
    /// Offset, less the batch's base offset.
    pub offset_delta: i32,
    pub offset: Offset,
    pub timestamp: TimestampMs,
    pub has_key: bool,
}

/// Goes over the records of a batch. Ends with an error if there are fewer or more than the batch says.
pub struct Walk<'a> {
    source: Source<'a>,
    /// Bytes that were read, and may be.
    position: u64,
    limit: u64,
    left: i32,
    base_offset: Offset,
    base_timestamp: TimestampMs,
    log_append_time: Option<TimestampMs>,
}

enum Source<'a> {
    Plain(&'a [u8]),
    Compressed { reader: BufReader<Box<dyn Read + 'a>>, invalid: RecordError },
}

impl<'a> Walk<'a> {
    /// # Errors
    /// The compression is not known, or not what the batch says.
    pub fn new(batch: RecordBatchView<'a>) -> Result<Self, RecordError> {
        let limit = MAX_DECOMPRESSED_BYTES.max(batch.size() as u64 * EXPANSION);
        let invalid = RecordError::Decompress(batch.compression()?);
        let source = match decompressing(batch.compression()?, batch.records(), limit)? {
            Decompressing::Plain(bytes) => Source::Plain(bytes),
            Decompressing::Stream(reader) => {
                Source::Compressed { reader: BufReader::with_capacity(BUFFER_BYTES, reader), invalid }
            }
        };
        Ok(Self {
            source,
            position: 0,
            limit,
            left: batch.record_count(),
            base_offset: batch.base_offset(),
            base_timestamp: batch.base_timestamp(),
            log_append_time: batch.is_log_append_time().then(|| batch.max_timestamp()),
        })
    }

    /// What follows, as far as it is decompressed. Empty at the end.
    fn ahead(&mut self) -> Result<&[u8], RecordError> {
        match &mut self.source {
            Source::Plain(bytes) => Ok(bytes),
            Source::Compressed { reader, invalid } => reader.fill_buf().map_err(|_| *invalid),
        }
    }

    fn pass(&mut self, bytes: usize) -> Result<(), RecordError> {
        self.position += bytes as u64;
        match &mut self.source {
            Source::Plain(rest) => *rest = &rest[bytes..],
            Source::Compressed { reader, .. } => reader.consume(bytes),
        }
        let limit = usize::try_from(self.limit).unwrap_or(usize::MAX);
        if self.position > self.limit { Err(RecordError::TooLarge(limit)) } else { Ok(()) }
    }

    /// The next byte, of which the record, if it has begun, must have one left.
    fn byte(&mut self, room: &mut u64) -> Result<u8, RecordError> {
        let too_short = RecordError::TooShort { needed: 1, left: 0 };
        *room = room.checked_sub(1).ok_or(too_short)?;
        let byte = *self.ahead()?.first().ok_or(too_short)?;
        self.pass(1)?;
        Ok(byte)
    }

    fn long(&mut self, room: &mut u64) -> Result<i64, RecordError> {
        if let Source::Plain(rest) = self.source
            && let Some((value, length)) = varint::short(rest)
            && let Some(left) = room.checked_sub(length as u64)
        {
            *room = left;
            self.pass(length)?;
            return Ok(value);
        }
        varint::decode(|| self.byte(room))
    }

    fn int(&mut self, room: &mut u64) -> Result<i32, RecordError> {
        i32::try_from(self.long(room)?).map_err(|_| RecordError::VarintTooLong)
    }

    /// Goes over a length and as many bytes. False for null.
    fn nullable(&mut self, room: &mut u64) -> Result<bool, RecordError> {
        let length = self.int(room)?;
        if length == -1 {
            return Ok(false);
        }
        let mut needed = usize::try_from(length).map_err(|_| RecordError::NegativeLength(length))?;
        let left = usize::try_from(*room).unwrap_or(usize::MAX);
        *room = room.checked_sub(needed as u64).ok_or(RecordError::TooShort { needed, left })?;
        while needed > 0 {
            let here = self.ahead()?.len().min(needed);
            if here == 0 {
                return Err(RecordError::TooShort { needed, left: 0 });
            }
            self.pass(here)?;
            needed -= here;
        }
        Ok(true)
    }

    fn record(&mut self) -> Result<Walked, RecordError> {
        let length = self.int(&mut { u64::MAX })?;
        let mut room = u64::try_from(length).map_err(|_| RecordError::NegativeLength(length))?;
        self.byte(&mut room)?;
        let timestamp_delta = self.long(&mut room)?;
        let offset_delta = self.int(&mut room)?;
        let has_key = self.nullable(&mut room)?;
        self.nullable(&mut room)?;
        let headers = self.int(&mut room)?;
        if headers < 0 {
            return Err(RecordError::NegativeLength(headers));
        }
        for _ in 0..headers {
            if !self.nullable(&mut room)? {
                return Err(RecordError::NegativeLength(-1));
            }
            self.nullable(&mut room)?;
        }
        if room > 0 {
            return Err(RecordError::LeftOver(usize::try_from(room).unwrap_or(usize::MAX)));
        }
        let create_time = || TimestampMs(self.base_timestamp.0.saturating_add(timestamp_delta));
        Ok(Walked {
            offset_delta,
            offset: Offset(self.base_offset.0.saturating_add(i64::from(offset_delta))),
            timestamp: self.log_append_time.unwrap_or_else(create_time),
            has_key,
        })
    }
}

impl fmt::Debug for Walk<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Walk")
            .field("position", &self.position)
            .field("left", &self.left)
            .finish_non_exhaustive()
    }
}

impl Iterator for Walk<'_> {
    type Item = Result<Walked, RecordError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.left < 0 {
            return None;
        }
        if self.left == 0 {
            self.left = -1;
            return match self.ahead() {
                Ok([]) => None,
                Ok(rest) => Some(Err(RecordError::LeftOver(rest.len()))),
                Err(error) => Some(Err(error)),
            };
        }
        let record = self.record();
        self.left = if record.is_err() { -1 } else { self.left - 1 };
        Some(record)
    }
}

/// What a broker has to know of the records of a batch that a client wrote.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Summary {
    /// The number, within its batch, of the first record without key: a compacted topic refuses it.
    pub first_keyless: Option<i32>,
    /// The smallest timestamp of the records that have one.
    pub earliest: Option<TimestampMs>,
    /// The largest timestamp, −1 if no record has one.
    pub latest: TimestampMs,
}

impl Summary {
    /// All records in one go: as long as the batch and its compression make it.
    ///
    /// # Errors
    /// Those of [`Summarizing::go_on`].
    pub fn of(batch: RecordBatchView<'_>) -> Result<Self, RecordError> {
        let mut summarizing = Summarizing::new(batch)?;
        loop {
            if let Some(summary) = summarizing.go_on(u64::MAX)? {
                return Ok(summary);
            }
        }
    }
}

/// A [`Summary`] in the making.
#[derive(Debug)]
pub struct Summarizing<'a> {
    walk: Walk<'a>,
    summary: Summary,
    expected: i32,
}

impl<'a> Summarizing<'a> {
    /// # Errors
    /// The compression is not known, or not what the batch says.
    pub fn new(batch: RecordBatchView<'a>) -> Result<Self, RecordError> {
        let summary = Summary { first_keyless: None, earliest: None, latest: TimestampMs(-1) };
        Ok(Self { walk: Walk::new(batch)?, summary, expected: 0 })
    }

    /// Goes over so many bytes more, to the end of a record. `None` if there are others.
    ///
    /// # Errors
    /// What makes the batch one that no consumer could read: a length, a count, offsets that do not go up by one from 0, or a
    /// compression that is not what the header says (`LogValidator` of Apache Kafka, INVALID_RECORD).
    pub fn go_on(&mut self, bytes: u64) -> Result<Option<Summary>, RecordError> {
        let until = self.walk.position.saturating_add(bytes);
        while self.walk.position < until || self.walk.left == 0 {
            let Some(record) = self.walk.next() else { return Ok(Some(self.summary)) };
            let record = record?;
            if record.offset_delta != self.expected {
                return Err(RecordError::OffsetDelta { expected: self.expected, found: record.offset_delta });
            }
            self.expected += 1;
            if !record.has_key && self.summary.first_keyless.is_none() {
                self.summary.first_keyless = Some(record.offset_delta);
            }
            if record.timestamp.0 >= 0 {
                let earliest = self.summary.earliest.unwrap_or(record.timestamp);
                self.summary.earliest = Some(earliest.min(record.timestamp));
                self.summary.latest = self.summary.latest.max(record.timestamp);
            }
        }
        Ok(None)
    }
}
