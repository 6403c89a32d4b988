//! What a slot needs of its log.

use std::future::Future;

use bytes::Bytes;
use kaas_proto::types::Offset;

use crate::partition::error::{AppendError, DeleteRecordsError, FetchError};

/// The log of a slot, led under one epoch. Shard-local; clones are the same log.
///
/// A partition is one; tests have one in memory.
pub trait SlotLog: Clone + 'static {
    /// Hands a batch over to the log. Batches get their offsets in the order of the calls, and the futures complete in
    /// that order: with the offset of the first record once the batch is durable and the leadership was confirmed
    /// afterwards, or with the reason why nothing of it is in the log.
    ///
    /// [`AppendError::NotLeading`] and [`AppendError::Storage`] mean that the log is lost to us for good.
    fn append(&self, batch: Bytes) -> impl Future<Output = Result<Offset, AppendError>> + 'static;

    /// The first offset that counts.
    fn log_start(&self) -> Offset;

    /// One above the last durable record.
    fn high_watermark(&self) -> Offset;

    /// Whole batches from the one that holds this offset on, about so many bytes, at least one batch. Nothing above the
    /// high watermark.
    fn read(&self, from: Offset, max_bytes: usize) -> impl Future<Output = Result<Vec<Bytes>, FetchError>>;

    /// Raises the log start, durably.
    fn delete_records_below(&self, offset: Offset) -> impl Future<Output = Result<(), DeleteRecordsError>>;
}
