//! [`BatchBuilder`]: makes a batch, for the broker's own logs and for tests.

use bytes::Bytes;

use super::batch::{CONTROL, Compression, HEADER_BYTES, LOG_OVERHEAD, MAGIC, TRANSACTIONAL, field};
use super::compression::compress;
use super::patch::update_crc;
use super::varint::{put, put_nullable};
use crate::types::{LeaderEpoch, Offset, ProducerEpoch, ProducerId, TimestampMs};

/// Collects records to a batch. Offsets and leader epoch are zero and −1 until the broker assigns them.
#[derive(Clone, Debug)]
pub struct BatchBuilder {
    bytes: Vec<u8>,
    record: Vec<u8>,
    count: i32,
    attributes: i16,
    base_timestamp: TimestampMs,
    max_timestamp: TimestampMs,
    producer: (ProducerId, ProducerEpoch, i32),
    base_offset: Offset,
    leader_epoch: LeaderEpoch,
    compression: Compression,
}

/// Name and value of a header of a record.
pub type Header<'a> = (&'a str, Option<&'a [u8]>);

impl Default for BatchBuilder {
    fn default() -> Self {
        Self::new()
    }
}

impl BatchBuilder {
    /// An empty batch.
    #[must_use]
    pub fn new() -> Self {
        Self {
            bytes: vec![0; HEADER_BYTES],
            record: Vec::new(),
            count: 0,
            attributes: 0,
            base_timestamp: TimestampMs(-1),
            max_timestamp: TimestampMs(-1),
            producer: (ProducerId(-1), ProducerEpoch(-1), -1),
            base_offset: Offset(0),
            leader_epoch: LeaderEpoch(-1),
            compression: Compression::None,
        }
    }

    /// Comes from an idempotent producer.
    #[must_use]
    pub fn producer(mut self, id: ProducerId, epoch: ProducerEpoch, base_sequence: i32) -> Self {
        self.producer = (id, epoch, base_sequence);
        self
    }

    /// Belongs to a transaction.
    #[must_use]
    pub fn transactional(mut self) -> Self {
        self.attributes |= TRANSACTIONAL;
        self
    }

    /// Ends a transaction.
    #[must_use]
    pub fn control(mut self) -> Self {
        self.attributes |= CONTROL;
        self
    }

    /// Is compressed when it is built.
    #[must_use]
    pub fn compression(mut self, compression: Compression) -> Self {
        self.compression = compression;
        self
    }

    /// Starts at this offset.
    #[must_use]
    pub fn base_offset(mut self, offset: Offset) -> Self {
        self.base_offset = offset;
        self
    }

    /// Was appended in this leader epoch.
    #[must_use]
    pub fn leader_epoch(mut self, epoch: LeaderEpoch) -> Self {
        self.leader_epoch = epoch;
        self
    }

    /// Adds a record.
    #[must_use]
    pub fn record(mut self, timestamp: TimestampMs, key: Option<&[u8]>, value: Option<&[u8]>) -> Self {
        self.push(timestamp, key, value, &[]);
        self
    }

    /// Adds a record.
    pub fn push(&mut self, timestamp: TimestampMs, key: Option<&[u8]>, value: Option<&[u8]>, headers: &[Header<'_>]) {
        if self.count == 0 {
            self.base_timestamp = timestamp;
        }
        self.max_timestamp = self.max_timestamp.max(timestamp);
        self.record.clear();
        self.record.push(0);
        put(&mut self.record, timestamp.0 - self.base_timestamp.0);
        put(&mut self.record, i64::from(self.count));
        put_nullable(&mut self.record, key);
        put_nullable(&mut self.record, value);
        put(&mut self.record, i64::try_from(headers.len()).expect("a slice fits 63 bits"));
        for (name, value) in headers {
            put_nullable(&mut self.record, Some(name.as_bytes()));
            put_nullable(&mut self.record, *value);
        }
        put_nullable(&mut self.bytes, Some(&self.record));
        self.count += 1;
    }

    /// How many records there are.
    #[must_use]
    pub fn count(&self) -> i32 {
        self.count
    }

    /// How many bytes the batch takes without compression.
    #[must_use]
    pub fn size(&self) -> usize {
        self.bytes.len()
    }

    /// The batch.
    #[must_use]
    pub fn build(self) -> Bytes {
        let mut bytes = self.bytes;
        if self.compression != Compression::None {
            let records = bytes.split_off(HEADER_BYTES);
            bytes.append(&mut compress(self.compression, &records).expect("memory takes what is written to it"));
        }
        let length = i32::try_from(bytes.len() - LOG_OVERHEAD).expect("a batch is bounded far below 2 GiB");
        let (producer_id, producer_epoch, base_sequence) = self.producer;
        let mut put = |position: usize, value: &[u8]| bytes[position..position + value.len()].copy_from_slice(value);
        put(field::BASE_OFFSET, &self.base_offset.0.to_be_bytes());
        put(field::BATCH_LENGTH, &length.to_be_bytes());
        put(field::PARTITION_LEADER_EPOCH, &self.leader_epoch.0.to_be_bytes());
        put(field::MAGIC, &MAGIC.to_be_bytes());
        put(field::ATTRIBUTES, &(self.attributes | self.compression.code()).to_be_bytes());
        put(field::LAST_OFFSET_DELTA, &(self.count - 1).to_be_bytes());
        put(field::BASE_TIMESTAMP, &self.base_timestamp.0.to_be_bytes());
        put(field::MAX_TIMESTAMP, &self.max_timestamp.0.to_be_bytes());
        put(field::PRODUCER_ID, &producer_id.0.to_be_bytes());
        put(field::PRODUCER_EPOCH, &producer_epoch.0.to_be_bytes());
        put(field::BASE_SEQUENCE, &base_sequence.to_be_bytes());
        put(field::RECORD_COUNT, &self.count.to_be_bytes());
        update_crc(&mut bytes);
        bytes.into()
    }
}
