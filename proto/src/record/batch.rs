//! [`RecordBatchView`]: the header of a record batch.

use thiserror::Error;

use crate::kafka::ErrorCode;
use crate::types::{LeaderEpoch, Offset, ProducerEpoch, ProducerId, TimestampMs};

/// Where each field of the header lies. All numbers are big-endian.
pub mod field {
    /// `i64`; outside the CRC, because the broker assigns it.
    pub const BASE_OFFSET: usize = 0;
    /// `i32`: bytes that follow this field.
    pub const BATCH_LENGTH: usize = 8;
    /// `i32`; outside the CRC, because the broker assigns it.
    pub const PARTITION_LEADER_EPOCH: usize = 12;
    /// `i8`: 2.
    pub const MAGIC: usize = 16;
    /// `u32`: CRC32C of everything from the attributes on.
    pub const CRC: usize = 17;
    /// `i16`: three bits of compression, then one bit each: log append time, transactional, control, delete horizon.
    pub const ATTRIBUTES: usize = 21;
    /// `i32`: offset of the last record, less the base offset.
    pub const LAST_OFFSET_DELTA: usize = 23;
    /// `i64`: what the timestamps of records are relative to.
    pub const BASE_TIMESTAMP: usize = 27;
    /// `i64`: the largest timestamp.
    pub const MAX_TIMESTAMP: usize = 35;
    /// `i64`: −1 without an idempotent producer.
    pub const PRODUCER_ID: usize = 43;
    /// `i16`
    pub const PRODUCER_EPOCH: usize = 51;
    /// `i32`: sequence number of the first record.
    pub const BASE_SEQUENCE: usize = 53;
    /// `i32`
    pub const RECORD_COUNT: usize = 57;
    /// Records, compressed or not.
    pub const RECORDS: usize = 61;
}

/// Bytes of the header.
pub const HEADER_BYTES: usize = field::RECORDS;

/// Bytes in front of what the batch length counts.
pub const LOG_OVERHEAD: usize = field::PARTITION_LEADER_EPOCH;

/// The only format that exists since Kafka 4.0.
pub const MAGIC: i8 = 2;

pub(crate) const COMPRESSION_MASK: i16 = 0b111;
pub(crate) const LOG_APPEND_TIME: i16 = 1 << 3;
pub(crate) const TRANSACTIONAL: i16 = 1 << 4;
pub(crate) const CONTROL: i16 = 1 << 5;
pub(crate) const DELETE_HORIZON: i16 = 1 << 6;

/// How the records of a batch are compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compression {
    /// Not at all.
    None,
    /// gzip
    Gzip,
    /// Snappy, raw or in the frames of the xerial library.
    Snappy,
    /// LZ4 frames.
    Lz4,
    /// Zstandard, allowed from Produce 7 and Fetch 10 on.
    Zstd,
}

impl Compression {
    /// Its number in the attributes.
    pub(crate) const fn code(self) -> i16 {
        match self {
            Self::None => 0,
            Self::Gzip => 1,
            Self::Snappy => 2,
            Self::Lz4 => 3,
            Self::Zstd => 4,
        }
    }
}

/// Why bytes are no record batch that may be appended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum BatchError {
    /// Not one batch at all.
    #[error("no record batch")]
    Empty,
    /// The bytes end within the batch.
    #[error("record batch needs {needed} bytes, {left} are left")]
    TooShort { needed: usize, left: usize },
    /// The batch's own length is shorter than its header.
    #[error("record batch claims a length of {0}")]
    Length(i32),
    /// A format that is gone, or that does not exist yet.
    #[error("record batch has magic {0}, only {MAGIC} is supported")]
    Magic(i8),
    /// What was sent is not what arrived.
    #[error("record batch has CRC {stored:08x}, its bytes have {computed:08x}")]
    Crc { stored: u32, computed: u32 },
    /// An unknown compression.
    #[error("record batch has compression {0}")]
    Compression(i16),
    /// Records that are not numbered from 0 without a gap.
    #[error("record batch has {count} records, but its last offset delta is {last_offset_delta}")]
    Count { count: i32, last_offset_delta: i32 },
    /// Only brokers write control batches.
    #[error("a client may not write a control batch")]
    Control,
    /// A producer id without a sequence number.
    #[error("record batch of producer {producer_id} has base sequence {base_sequence}")]
    Sequence { producer_id: i64, base_sequence: i32 },
    /// A Produce request carries one batch per partition.
    #[error("{0} bytes follow the record batch")]
    LeftOver(usize),
}

impl BatchError {
    /// What a producer is told.
    #[must_use]
    pub fn error_code(&self) -> ErrorCode {
        match self {
            Self::TooShort { .. } | Self::Length(_) | Self::Crc { .. } => ErrorCode::CorruptMessage,
            Self::Compression(_) => ErrorCode::UnsupportedCompressionType,
            Self::Empty | Self::Magic(_) | Self::Count { .. } | Self::Control | Self::Sequence { .. } => {
                ErrorCode::InvalidRecord
            }
            Self::LeftOver(_) => ErrorCode::InvalidRecord,
        }
    }
}

/// A record batch whose lengths fit, so that every field of its header can be read. Its CRC is not checked yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordBatchView<'a> {
    header: &'a [u8; HEADER_BYTES],
    bytes: &'a [u8],
}

impl<'a> RecordBatchView<'a> {
    /// The batch at the start of `bytes`; more may follow it.
    pub fn read(bytes: &'a [u8]) -> Result<Self, BatchError> {
        let left = bytes.len();
        if left == 0 {
            return Err(BatchError::Empty);
        }
        // The magic has the same place in all formats, older ones being shorter than our header.
        if let Some(&magic) = bytes.get(field::MAGIC)
            && magic.cast_signed() != MAGIC
        {
            return Err(BatchError::Magic(magic.cast_signed()));
        }
        let Some(header) = bytes.first_chunk::<HEADER_BYTES>() else {
            return Err(BatchError::TooShort { needed: HEADER_BYTES, left });
        };
        let length = i32::from_be_bytes(at(header, field::BATCH_LENGTH));
        let size = usize::try_from(length).ok().map(|length| length + LOG_OVERHEAD);
        match size {
            Some(size) if size < HEADER_BYTES => Err(BatchError::Length(length)),
            Some(size) if size > left => Err(BatchError::TooShort { needed: size, left }),
            Some(size) => Ok(Self { header, bytes: &bytes[..size] }),
            None => Err(BatchError::Length(length)),
        }
    }

    /// What a producer sent for one partition: exactly one batch that a client may write, checked in full. Limits of
    /// size and what a topic demands of records are up to the caller.
    pub fn read_produced(bytes: &'a [u8]) -> Result<Self, BatchError> {
        let batch = Self::read(bytes)?;
        let left_over = bytes.len() - batch.size();
        if left_over > 0 {
            return Err(BatchError::LeftOver(left_over));
        }
        batch.check_crc()?;
        let (count, last_offset_delta) = (batch.record_count(), batch.last_offset_delta());
        if count <= 0 || last_offset_delta != count - 1 {
            return Err(BatchError::Count { count, last_offset_delta });
        }
        batch.compression()?;
        if batch.is_control() {
            return Err(BatchError::Control);
        }
        if batch.has_producer_id() && batch.base_sequence() < 0 {
            let (producer_id, base_sequence) = (batch.producer_id().0, batch.base_sequence());
            return Err(BatchError::Sequence { producer_id, base_sequence });
        }
        Ok(batch)
    }

    /// Compares the CRC with the bytes that it covers.
    pub fn check_crc(&self) -> Result<(), BatchError> {
        let stored = u32::from_be_bytes(at(self.header, field::CRC));
        let computed = crc32c::crc32c(&self.bytes[field::ATTRIBUTES..]);
        if stored == computed { Ok(()) } else { Err(BatchError::Crc { stored, computed }) }
    }

    /// All bytes of the batch.
    #[must_use]
    pub fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// How many bytes the batch takes.
    #[must_use]
    pub fn size(&self) -> usize {
        self.bytes.len()
    }

    /// The records, compressed or not.
    #[must_use]
    pub fn records(&self) -> &'a [u8] {
        &self.bytes[field::RECORDS..]
    }

    /// The offset of the first record, or of what was the first before compaction.
    #[must_use]
    pub fn base_offset(&self) -> Offset {
        Offset(i64::from_be_bytes(at(self.header, field::BASE_OFFSET)))
    }

    /// The leader epoch in which the batch was appended.
    #[must_use]
    pub fn partition_leader_epoch(&self) -> LeaderEpoch {
        LeaderEpoch(i32::from_be_bytes(at(self.header, field::PARTITION_LEADER_EPOCH)))
    }

    /// The stored CRC.
    #[must_use]
    pub fn crc(&self) -> u32 {
        u32::from_be_bytes(at(self.header, field::CRC))
    }

    pub(crate) fn attributes(&self) -> i16 {
        i16::from_be_bytes(at(self.header, field::ATTRIBUTES))
    }

    /// How the records are compressed.
    pub fn compression(&self) -> Result<Compression, BatchError> {
        match self.attributes() & COMPRESSION_MASK {
            0 => Ok(Compression::None),
            1 => Ok(Compression::Gzip),
            2 => Ok(Compression::Snappy),
            3 => Ok(Compression::Lz4),
            4 => Ok(Compression::Zstd),
            other => Err(BatchError::Compression(other)),
        }
    }

    /// Whether all records have the time at which the broker appended them, which is the largest timestamp.
    #[must_use]
    pub fn is_log_append_time(&self) -> bool {
        self.attributes() & LOG_APPEND_TIME != 0
    }

    /// Whether the batch belongs to a transaction.
    #[must_use]
    pub fn is_transactional(&self) -> bool {
        self.attributes() & TRANSACTIONAL != 0
    }

    /// Whether the batch ends a transaction instead of carrying a client's records.
    #[must_use]
    pub fn is_control(&self) -> bool {
        self.attributes() & CONTROL != 0
    }

    /// When compaction may drop the batch's tombstones, or the marker that it is (KIP-534); `None` until compaction has
    /// met it. It takes the place of the base timestamp, so the timestamps of records are relative to it.
    #[must_use]
    pub fn delete_horizon(&self) -> Option<TimestampMs> {
        (self.attributes() & DELETE_HORIZON != 0).then(|| self.base_timestamp())
    }

    /// The last offset of the batch, less the first.
    #[must_use]
    pub fn last_offset_delta(&self) -> i32 {
        i32::from_be_bytes(at(self.header, field::LAST_OFFSET_DELTA))
    }

    /// The offset of the last record.
    #[must_use]
    pub fn last_offset(&self) -> Offset {
        Offset(self.base_offset().0.saturating_add(i64::from(self.last_offset_delta())))
    }

    /// The offset behind the batch.
    #[must_use]
    pub fn next_offset(&self) -> Offset {
        Offset(self.last_offset().0.saturating_add(1))
    }

    /// What the timestamps of records are relative to.
    #[must_use]
    pub fn base_timestamp(&self) -> TimestampMs {
        TimestampMs(i64::from_be_bytes(at(self.header, field::BASE_TIMESTAMP)))
    }

    /// The largest timestamp.
    #[must_use]
    pub fn max_timestamp(&self) -> TimestampMs {
        TimestampMs(i64::from_be_bytes(at(self.header, field::MAX_TIMESTAMP)))
    }

    /// Whether an idempotent or transactional producer wrote the batch.
    #[must_use]
    pub fn has_producer_id(&self) -> bool {
        self.producer_id().0 >= 0
    }

    /// The idempotent producer; −1 without one.
    #[must_use]
    pub fn producer_id(&self) -> ProducerId {
        ProducerId(i64::from_be_bytes(at(self.header, field::PRODUCER_ID)))
    }

    /// The epoch of the idempotent producer.
    #[must_use]
    pub fn producer_epoch(&self) -> ProducerEpoch {
        ProducerEpoch(i16::from_be_bytes(at(self.header, field::PRODUCER_EPOCH)))
    }

    /// The sequence number of the first record; −1 without an idempotent producer.
    #[must_use]
    pub fn base_sequence(&self) -> i32 {
        i32::from_be_bytes(at(self.header, field::BASE_SEQUENCE))
    }

    /// The sequence number of the last record: after 2³¹−1 comes 0.
    #[must_use]
    pub fn last_sequence(&self) -> i32 {
        let last = self.base_sequence().wrapping_add(self.last_offset_delta());
        if self.base_sequence() >= 0 { last & i32::MAX } else { self.base_sequence() }
    }

    /// How many records there are, which compaction makes fewer than the offsets.
    #[must_use]
    pub fn record_count(&self) -> i32 {
        i32::from_be_bytes(at(self.header, field::RECORD_COUNT))
    }
}

fn at<const N: usize>(header: &[u8; HEADER_BYTES], position: usize) -> [u8; N] {
    *header[position..].first_chunk().expect("every field lies within the header")
}

/// The batches in a buffer, one after the other. Ends with an error if the last one is cut off.
#[derive(Clone, Debug)]
pub struct Batches<'a> {
    rest: &'a [u8],
}

impl<'a> Batches<'a> {
    /// Batches from the start of `bytes`.
    #[must_use]
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    /// What was not returned yet.
    #[must_use]
    pub fn rest(&self) -> &'a [u8] {
        self.rest
    }
}

impl<'a> Iterator for Batches<'a> {
    type Item = Result<RecordBatchView<'a>, BatchError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.is_empty() {
            return None;
        }
        let batch = RecordBatchView::read(self.rest);
        self.rest = match &batch {
            Ok(batch) => &self.rest[batch.size()..],
            Err(_) => &[],
        };
        Some(batch)
    }
}
