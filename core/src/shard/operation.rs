//! What a request handler asks of the shard that owns a partition or a coordinator slot.
//!
//! Everything here crosses shards. [`ShardPort::submit`] is the *ordered stage*: operations submitted by one
//! connection reach a partition in the order of the calls; replies come whenever they are ready. A reply sender that
//! is dropped means that the shard is ending.

use bytes::Bytes;
use kaas_proto::control::PartitionKey;
use kaas_proto::record::{RecordBatchView, RecordError, Summary};
use kaas_proto::types::{LeaderEpoch, Offset, ProducerEpoch, ProducerId, TimestampMs};
use tokio::sync::oneshot;

use crate::env::VolumeSpace;
pub use crate::group::operation::{ClientIdentity, GroupOperation};
use crate::partition::error::{AppendError, DeleteRecordsError, FetchError, LookupError, ProducerIdError};

/// How many operations of other shards may wait for this one before the sender stops reading from its connections.
pub const OPERATION_QUEUE_LENGTH: usize = 1024;

/// One shard, seen from a connection: this very shard, or another one behind its queue.
pub trait ShardPort {
    /// Hands the operation over without waiting. A full queue gives it back: the caller waits for
    /// [`ShardPort::has_room`] and reads nothing from its connection meanwhile.
    ///
    /// # Errors
    /// The operation itself, when the queue is full.
    fn submit(&self, operation: ShardOperation) -> Result<(), ShardOperation>;

    /// Completes when a submit may succeed again.
    fn has_room(&self) -> futures_lite::future::Boxed<()>;
}

#[derive(Debug)]
pub enum ShardOperation {
    Produce(Produce),
    Fetch(Fetch),
    Watch(Watch),
    ListOffsets(ListOffsets),
    OffsetForLeaderEpoch(OffsetForLeaderEpoch),
    DeleteRecords(DeleteRecords),
    DescribeProducers(DescribeProducers),
    DescribePartitions(DescribePartitions),
    DescribeVolume(DescribeVolume),
    AllocateProducerId(AllocateProducerId),
    /// Boxed, because it is large and rare.
    Group(Box<GroupOperation>),
}

/// When an append is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequiredAcks {
    /// `acks=0`: never; the reply comes at once and is only looked at for errors.
    None,
    /// `acks=1`.
    Leader,
    /// `acks=all`.
    All,
}

/// Appends batches to partitions of one shard.
#[derive(Debug)]
pub struct Produce {
    pub acks: RequiredAcks,
    pub batches: Vec<ProduceBatch>,
    /// One row per batch, in order.
    pub reply: oneshot::Sender<Vec<Result<Appended, AppendError>>>,
}

#[derive(Debug)]
pub struct ProduceBatch {
    pub partition: PartitionKey,
    /// Exactly one RecordBatch of magic 2, all of it already checked by the connection's shard.
    pub batch: Bytes,
    /// What its records tell.
    pub records: Summary,
}

impl ProduceBatch {
    /// A batch whose records were not gone over yet.
    ///
    /// # Errors
    /// No consumer could read them.
    pub fn new(partition: PartitionKey, batch: Bytes) -> Result<Self, RecordError> {
        let records = Summary::of(RecordBatchView::read(&batch)?)?;
        Ok(Self { partition, batch, records })
    }
}

/// Where an append ended up; for a duplicate, where its original did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Appended {
    pub base_offset: Offset,
    /// -1 unless the topic has `message.timestamp.type=LogAppendTime`.
    pub log_append_time: TimestampMs,
    pub log_start_offset: Offset,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IsolationLevel {
    ReadUncommitted,
    ReadCommitted,
}

/// Reads what is there now, without waiting for more.
#[derive(Debug)]
pub struct Fetch {
    pub isolation: IsolationLevel,
    /// For all partitions of this operation together.
    pub max_bytes: usize,
    /// KIP-74: the first partition with records returns one whole batch even above the limits.
    pub at_least_one_batch: bool,
    pub partitions: Vec<FetchPartition>,
    /// One row per partition, in order.
    pub reply: oneshot::Sender<Vec<Result<Fetched, FetchError>>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FetchPartition {
    pub partition: PartitionKey,
    pub offset: Offset,
    pub max_bytes: usize,
    /// What the client believes; checked if given (KIP-320).
    pub current_leader_epoch: Option<LeaderEpoch>,
    /// Epoch of the last record that the client has; a diverging one is answered with where to go back to (KIP-595).
    pub last_fetched_epoch: Option<LeaderEpoch>,
}

#[derive(Clone, Debug)]
pub struct Fetched {
    pub high_watermark: Offset,
    pub last_stable_offset: Offset,
    pub log_start_offset: Offset,
    /// Only for read_committed; sorted by first offset.
    pub aborted: Vec<AbortedTransaction>,
    /// Whole batches, as on disk. Empty when there is nothing (or no room).
    pub records: Vec<Bytes>,
    /// The epoch and end offset that the log diverges at, if the client's last epoch is not in the log.
    pub diverging: Option<(LeaderEpoch, Offset)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AbortedTransaction {
    pub producer_id: ProducerId,
    pub first_offset: Offset,
}

/// Waits for news of partitions: the second half of a long poll.
#[derive(Debug)]
pub struct Watch {
    pub isolation: IsolationLevel,
    pub partitions: Vec<WatchPartition>,
    /// Fires when this many bytes were added behind the given offsets, or any of the partitions is no longer led here,
    /// or is not from the start. The waiter is forgotten when the receiver is dropped.
    pub min_bytes: usize,
    pub reply: oneshot::Sender<()>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WatchPartition {
    pub partition: PartitionKey,
    /// The end that the client has seen: high watermark, or last stable offset for read_committed.
    pub seen_end: Offset,
}

/// Offsets by time, for partitions of one shard.
#[derive(Debug)]
pub struct ListOffsets {
    pub isolation: IsolationLevel,
    pub partitions: Vec<(PartitionKey, OffsetQuery, Option<LeaderEpoch>)>,
    pub reply: oneshot::Sender<Vec<Result<FoundOffset, LookupError>>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OffsetQuery {
    /// -1: last stable offset or high watermark.
    Latest,
    /// -2: log start. Also -4, earliest local.
    Earliest,
    /// -3: the record with the largest timestamp (KIP-734).
    MaxTimestamp,
    /// The first record at or after this time.
    AtOrAfter(TimestampMs),
}

/// Offset -1 and timestamp -1 when no record matches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FoundOffset {
    pub offset: Offset,
    pub timestamp: TimestampMs,
    pub leader_epoch: LeaderEpoch,
}

/// The end offset of an epoch, from the chain (KIP-320).
#[derive(Debug)]
pub struct OffsetForLeaderEpoch {
    /// Partition, wanted epoch, the client's current epoch.
    pub partitions: Vec<(PartitionKey, LeaderEpoch, Option<LeaderEpoch>)>,
    /// The largest known epoch not above the wanted one and its end offset; epoch -1 and offset -1 if there is none.
    pub reply: oneshot::Sender<Vec<Result<(LeaderEpoch, Offset), LookupError>>>,
}

/// Raises log start offsets, durably before the answer.
#[derive(Debug)]
pub struct DeleteRecords {
    /// Offset -1: up to the high watermark.
    pub partitions: Vec<(PartitionKey, Offset)>,
    /// The new low watermark.
    pub reply: oneshot::Sender<Vec<Result<Offset, DeleteRecordsError>>>,
}

/// The producers that a partition remembers (KIP-664).
#[derive(Debug)]
pub struct DescribeProducers {
    pub partitions: Vec<PartitionKey>,
    pub reply: oneshot::Sender<Vec<Result<Vec<ActiveProducer>, LookupError>>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ActiveProducer {
    pub producer_id: ProducerId,
    pub producer_epoch: ProducerEpoch,
    /// Of the transaction coordinator that wrote the last marker; -1 before one.
    pub coordinator_epoch: i32,
    pub last_sequence: i32,
    pub last_timestamp: TimestampMs,
    /// -1 outside a transaction.
    pub current_transaction_start_offset: Offset,
}

/// Sizes of all partitions led by this shard, coordinator slots left out.
#[derive(Debug)]
pub struct DescribePartitions {
    pub reply: oneshot::Sender<Vec<kaas_proto::control::PartitionSize>>,
}

/// The size of the volume that this shard writes to. Any shard answers, from what it knows.
#[derive(Debug)]
pub struct DescribeVolume {
    /// `None`: local-dev mode, or the volume has not said yet.
    pub reply: oneshot::Sender<Option<VolumeSpace>>,
}

/// A producer id that was never given out before. Handled by shard 0.
#[derive(Debug)]
pub struct AllocateProducerId {
    pub reply: oneshot::Sender<Result<ProducerId, ProducerIdError>>,
}
