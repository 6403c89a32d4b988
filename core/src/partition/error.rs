//! Why a partition refuses, one enum per operation. `kaas-net` maps each variant to one Kafka error code.

use std::sync::Arc;

use kaas_proto::types::{LeaderEpoch, Offset};
use thiserror::Error;

/// Why this shard can't answer for a partition at all. Part of every other error.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum NotLeading {
    #[error("this shard does not lead the partition")]
    NotHere,
    #[error("the takeover is still under way")]
    TakingOver,
    #[error("superseded by {by}")]
    Superseded { by: Arc<str> },
    /// Somebody has removed what was led here; the partition looks who leads it now.
    #[error("what was led here is gone: {what}")]
    Gone { what: Arc<str> },
    /// A write failed; the partition takes itself over again.
    #[error("the partition is failed: {reason}")]
    Failed { reason: Arc<str> },
    #[error("the client's leader epoch {client} is older than {current}")]
    FencedLeaderEpoch { client: LeaderEpoch, current: LeaderEpoch },
    #[error("the client's leader epoch {client} is newer than {current}")]
    UnknownLeaderEpoch { client: LeaderEpoch, current: LeaderEpoch },
}

/// Why a batch was not appended, or is not known to be.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum AppendError {
    #[error(transparent)]
    NotLeading(#[from] NotLeading),
    #[error("the write did not complete: {0}")]
    Storage(Arc<str>),
    #[error("no space is left on the volume")]
    VolumeFull,
    #[error("a write has been hanging for too long")]
    Stalled,
    #[error("too many bytes wait to be written")]
    QueueFull,
    #[error("the batch has {size} bytes, max.message.bytes is {limit}")]
    TooLarge { size: usize, limit: usize },
    #[error("invalid record: {0}")]
    InvalidRecord(Arc<str>),
    #[error("record {index} has no key, the topic is compacted")]
    MissingKey { index: i32 },
    #[error("the timestamp is outside message.timestamp.before.max.ms or .after.max.ms")]
    InvalidTimestamp,
    #[error("the sequence number is out of order: expected {expected}, got {got}")]
    OutOfOrderSequence { expected: i32, got: i32 },
    #[error("the producer's epoch is older than the last seen")]
    InvalidProducerEpoch,
    #[error("too many transactions of the partition are open, or were aborted and are not deleted yet")]
    TooManyTransactions,
}

#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum FetchError {
    #[error(transparent)]
    NotLeading(#[from] NotLeading),
    #[error("offset {offset} is outside {log_start}..={end}")]
    OffsetOutOfRange { offset: Offset, log_start: Offset, end: Offset },
    #[error("reading failed: {0}")]
    Storage(Arc<str>),
}

/// Why offsets, epochs or producers could not be looked up.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum LookupError {
    #[error(transparent)]
    NotLeading(#[from] NotLeading),
    #[error("reading failed: {0}")]
    Storage(Arc<str>),
}

#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum DeleteRecordsError {
    #[error(transparent)]
    NotLeading(#[from] NotLeading),
    #[error("offset {offset} is above the high watermark {high_watermark}")]
    OffsetOutOfRange { offset: Offset, high_watermark: Offset },
    #[error("the new log start is not durable: {0}")]
    Storage(Arc<str>),
    /// `cleanup.policy` has no `delete`.
    #[error("the topic is compacted, its records can't be deleted by offset")]
    Compacted,
}

#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ProducerIdError {
    #[error("no block of producer ids could be claimed: {0}")]
    Storage(Arc<str>),
}
