//! What passes between the control thread and the shards: commands down, events and requests up.
//!
//! Down: one bounded channel of [`ShardCommand`] per shard, so that order is kept, and one watch of the
//! [`ClusterView`](crate::view::ClusterView). Up: [`ShardEvent`] for facts, [`ControlRequest`] for what a handler wants done.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot, watch};

use crate::config::topic::TopicConfig;
use crate::kafka::error_code::ErrorCode;
use crate::metrics::ShardMetrics;
use crate::reserve::Reserves;
use crate::types::{LeaderEpoch, Offset, PartitionIndex, ShardId, SlotId, TopicId};
use crate::view::ClusterView;

/// How many commands a shard may be behind before the control thread waits for it.
pub const COMMAND_QUEUE_LENGTH: usize = 1024;
/// How many events the shards may be ahead of the control thread before they wait.
pub const EVENT_QUEUE_LENGTH: usize = 4096;
/// How many requests of clients may wait for the control thread before they are answered REQUEST_TIMED_OUT.
pub const CONTROL_REQUEST_QUEUE_LENGTH: usize = 256;

/// A shard's end of the crossing. Crosses from the thread that starts the broker to the shard, once.
#[derive(Debug)]
pub struct ShardLink {
    pub shard: ShardId,
    /// How many shards the broker has.
    pub shards: u16,
    pub commands: mpsc::Receiver<ShardCommand>,
    pub events: mpsc::Sender<ShardEvent>,
    pub requests: mpsc::Sender<ControlRequest>,
    pub view: watch::Receiver<Arc<ClusterView>>,
    /// Becomes true before [`ShardCommand::Shutdown`]: listeners accept nothing more, connections read no further
    /// request, answer those they have and close.
    pub stopping: watch::Receiver<bool>,
    /// The same for all.
    pub reserves: Reserves,
}

/// The control thread's end of the crossing.
#[derive(Debug)]
pub struct ControlLink {
    /// Indexed by shard.
    pub commands: Vec<mpsc::Sender<ShardCommand>>,
    pub events: mpsc::Receiver<ShardEvent>,
    pub requests: mpsc::Receiver<ControlRequest>,
    pub view: watch::Sender<Arc<ClusterView>>,
    pub stopping: watch::Sender<bool>,
    pub reserves: Reserves,
}

/// Both ends of the crossing for so many shards.
#[must_use]
pub fn link(shards: u16, view: Arc<ClusterView>, reserves: Reserves) -> (ControlLink, Vec<ShardLink>) {
    let (event_sender, events) = mpsc::channel(EVENT_QUEUE_LENGTH);
    let (request_sender, requests) = mpsc::channel(CONTROL_REQUEST_QUEUE_LENGTH);
    let (view, view_receiver) = watch::channel(view);
    let (stopping, stopping_receiver) = watch::channel(false);
    let mut commands = Vec::with_capacity(usize::from(shards));
    let links = (0..shards)
        .map(|shard| {
            let (sender, receiver) = mpsc::channel(COMMAND_QUEUE_LENGTH);
            commands.push(sender);
            ShardLink {
                shard: ShardId(shard),
                shards,
                commands: receiver,
                events: event_sender.clone(),
                requests: request_sender.clone(),
                view: view_receiver.clone(),
                stopping: stopping_receiver.clone(),
                reserves: reserves.clone(),
            }
        })
        .collect();
    (ControlLink { commands, events, requests, view, stopping, reserves }, links)
}

/// A partition's identity across threads. A name is not an identity: the topic id is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PartitionKey {
    pub topic_id: TopicId,
    pub partition: PartitionIndex,
}

impl PartitionKey {
    /// A coordinator slot, seen as a partition of [`TopicId::COORDINATORS`].
    #[must_use]
    pub fn of_slot(slot: SlotId) -> Self {
        Self { topic_id: TopicId::COORDINATORS, partition: PartitionIndex(i32::from(slot.0)) }
    }

    /// The slot, if this is one.
    #[must_use]
    pub fn slot(self) -> Option<SlotId> {
        (self.topic_id == TopicId::COORDINATORS).then(|| u8::try_from(self.partition.0).ok().map(SlotId)).flatten()
    }

    /// Which of `shards` owns the partition: the same on every broker with as many shards, and even over a topic.
    ///
    /// # Panics
    /// If `shards` is 0.
    #[must_use]
    pub fn shard(self, shards: u16) -> ShardId {
        // The topic's hash sets where its partition 0 lies; its others follow round robin.
        let start = self
            .topic_id
            .0
            .iter()
            .fold(0x811c_9dc5_u32, |hash, &byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193));
        let index = start.wrapping_add(self.partition.0.unsigned_abs()) % u32::from(shards);
        ShardId(u16::try_from(index).expect("below the number of shards"))
    }
}

/// What the control thread tells a shard to do. Commands for one partition are carried out in order; a newer one
/// interrupts an older one that still runs.
#[derive(Debug)]
pub enum ShardCommand {
    /// Fence, recover and lead. Sent again for a partition that is led already, it brings a changed configuration.
    TakeOver(TakeOver),
    /// Stop accepting, drain, persist, close.
    Relinquish { partition: PartitionKey },
    /// The topic is gone: close every handle of that incarnation, persist nothing, drop the state. Sent to every shard:
    /// the groups of its coordinator slots forget what they committed for that topic.
    Abandon { topic_id: TopicId, done: oneshot::Sender<()> },
    /// All topics that there are, some time after coordinator slots were taken over: their groups forget what was committed, longer
    /// ago than [`GONE_TOPIC_AGE`], for topics that went while nobody led the slot.
    RetainTopics { topics: Arc<BTreeSet<TopicId>> },
    /// Relinquish everything, then end the shard.
    Shutdown { done: oneshot::Sender<()> },
    /// Answers at once: the shard is alive.
    Ping { reply: oneshot::Sender<()> },
    /// A snapshot of this shard's metrics.
    Metrics { reply: oneshot::Sender<Box<ShardMetrics>> },
}

/// How old an offset is at least that goes because its topic is not known. A list of topics may be a little older than the last commit, but
/// not by so much; and it is made so long after the takeover.
pub const GONE_TOPIC_AGE: Duration = Duration::from_secs(60);

/// A takeover, with all that the shard needs to know of the partition.
#[derive(Clone, Debug)]
pub struct TakeOver {
    pub partition: PartitionKey,
    /// For paths and logs; empty for a coordinator slot.
    pub topic: Arc<str>,
    /// The epoch to lead with; `None` in a standalone broker: one above the highest found.
    pub epoch: Option<LeaderEpoch>,
    pub config: Arc<TopicConfig>,
}

/// A fact that a shard reports.
#[derive(Debug)]
pub struct ShardEvent {
    pub shard: ShardId,
    pub partition: PartitionKey,
    pub change: PartitionChange,
}

/// What became of a partition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PartitionChange {
    /// This broker leads it since this epoch; also sent when a partition took itself over after a failed write.
    Leading { epoch: LeaderEpoch },
    /// Closed after a [`ShardCommand::Relinquish`], all state persisted.
    Relinquished { epoch: LeaderEpoch },
    /// Someone leads with a higher epoch; handles are released. `by` is what the fence says, for people.
    Superseded { epoch: LeaderEpoch, by: Arc<str> },
    /// Not led for now; the shard tries again by itself at a higher epoch.
    Failed { reason: Arc<str> },
    /// A write has been hanging for longer than the limit (`true`), or has returned (`false`).
    Stalled(bool),
}

/// What a request handler asks of the control thread. Replies carry one row per requested item, in order.
#[derive(Debug)]
pub enum ControlRequest {
    CreateTopics {
        topics: Vec<NewTopic>,
        validate_only: bool,
        reply: oneshot::Sender<Vec<TopicResult>>,
    },
    DeleteTopics {
        topics: Vec<TopicName>,
        reply: oneshot::Sender<Vec<TopicResult>>,
    },
    CreatePartitions {
        topics: Vec<(Arc<str>, i32)>,
        validate_only: bool,
        reply: oneshot::Sender<Vec<TopicResult>>,
    },
    /// Replaces a topic's own settings (not the merged ones); validated by the caller and once more here.
    AlterTopicConfigs {
        topics: Vec<(Arc<str>, ConfigChange)>,
        validate_only: bool,
        reply: oneshot::Sender<Vec<TopicResult>>,
    },
}

/// A topic by name or by id.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TopicName {
    Name(Arc<str>),
    Id(TopicId),
}

/// A topic to create.
#[derive(Clone, Debug)]
pub struct NewTopic {
    pub name: Arc<str>,
    /// -1: the broker's `num.partitions`.
    pub partitions: i32,
    /// Only what the client set; names and values as Kafka spells them.
    pub configs: BTreeMap<String, String>,
}

/// How a topic's own settings change.
#[derive(Clone, Debug)]
pub enum ConfigChange {
    /// AlterConfigs: these settings and no others.
    Replace(BTreeMap<String, String>),
    /// IncrementalAlterConfigs, in order.
    Incremental(Vec<(String, ConfigOperation)>),
}

/// One operation of IncrementalAlterConfigs (KIP-339).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ConfigOperation {
    Set(String),
    Delete,
    /// Adds items to a list value.
    Append(String),
    /// Takes items out of a list value.
    Subtract(String),
}

/// The outcome for one requested topic.
#[derive(Clone, Debug)]
pub struct TopicResult {
    pub name: Option<Arc<str>>,
    pub outcome: Result<TopicDone, TopicRefusal>,
}

/// What now holds for the topic.
#[derive(Clone, Debug)]
pub struct TopicDone {
    pub id: TopicId,
    pub partitions: i32,
    pub config: Arc<TopicConfig>,
}

/// Why nothing was changed, in Kafka's code and in words that say what to change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TopicRefusal {
    pub code: ErrorCode,
    pub message: String,
}

/// High watermark and size of a partition, for metrics and DescribeLogDirs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PartitionSize {
    pub partition: PartitionKey,
    pub log_start: Offset,
    pub high_watermark: Offset,
    pub bytes: u64,
}
