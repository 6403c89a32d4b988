//! What the broker writes into a batch. All functions take bytes that start with a batch that [`RecordBatchView::read`]
//! accepts, and panic on bytes shorter than a header.

use super::batch::{LOG_APPEND_TIME, RecordBatchView, field};
use crate::types::{LeaderEpoch, Offset, TimestampMs};

/// Assigns the offset of the first record. Outside the CRC.
pub fn patch_base_offset(batch: &mut [u8], offset: Offset) {
    put(batch, field::BASE_OFFSET, offset.0.to_be_bytes());
}

/// Assigns the leader epoch. Outside the CRC.
pub fn patch_leader_epoch(batch: &mut [u8], epoch: LeaderEpoch) {
    put(batch, field::PARTITION_LEADER_EPOCH, epoch.0.to_be_bytes());
}

/// Gives all records the time of their append: sets the attribute and the largest timestamp, which readers take for every
/// record, and leaves base timestamp and deltas alone. Computes a new CRC.
pub fn set_log_append_time(batch: &mut [u8], now: TimestampMs) {
    let attributes = i16::from_be_bytes([batch[field::ATTRIBUTES], batch[field::ATTRIBUTES + 1]]);
    put(batch, field::ATTRIBUTES, (attributes | LOG_APPEND_TIME).to_be_bytes());
    set_max_timestamp(batch, now);
}

/// Sets the largest timestamp, for a client that left it unset. Computes a new CRC.
pub fn set_max_timestamp(batch: &mut [u8], timestamp: TimestampMs) {
    put(batch, field::MAX_TIMESTAMP, timestamp.0.to_be_bytes());
    update_crc(batch);
}

/// Computes the CRC anew, after a change to what it covers.
pub fn update_crc(batch: &mut [u8]) {
    let size = RecordBatchView::read(batch).map_or(batch.len(), |batch| batch.size());
    let crc = crc32c::crc32c(&batch[field::ATTRIBUTES..size]);
    put(batch, field::CRC, crc.to_be_bytes());
}

fn put<const N: usize>(batch: &mut [u8], position: usize, value: [u8; N]) {
    batch[position..position + N].copy_from_slice(&value);
}
