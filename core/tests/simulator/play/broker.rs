//! One life of a broker: a shard in a process of the simulation, reached through its queues only, as from another shard.

use std::cell::{Cell, RefCell};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use kaas_core::compaction::config::CompactionConfig;
use kaas_core::env::sim::{ClientId, SimEnv, Simulation};
use kaas_core::env::{Env, TaskClass};
use kaas_core::group::config::SnapshotPolicy;
use kaas_core::partition::error::{AppendError, DeleteRecordsError, FetchError, LookupError};
use kaas_core::shard::operation::{
    Appended, DeleteRecords, Fetch, FetchPartition, Fetched, GroupOperation, IsolationLevel, OffsetForLeaderEpoch,
    Produce, ProduceBatch, RequiredAcks, ShardOperation, ShardPort,
};
use kaas_core::shard::port::{ShardHandle, queue};
use kaas_core::shard::reserve::MIN_RESERVE_BYTES;
use kaas_core::shard::{Shard, ShardChannels, ShardConfig};
use kaas_proto::config::broker::BrokerConfig;
use kaas_proto::config::topic::TopicConfig;
use kaas_proto::control::{PartitionChange, PartitionKey, ShardCommand, ShardEvent, TakeOver};
use kaas_proto::layout::{partition_directory, reserve_file, slot_directory};
use kaas_proto::record::BatchBuilder;
use kaas_proto::types::{BrokerId, LeaderEpoch, Offset, PartitionIndex, ShardId, SlotId, TimestampMs, TopicId};
use tokio::sync::{mpsc, oneshot};

use super::cluster::Setup;
use super::scenario::topic_config;

const TOPIC: &str = "t";
/// Small, so that a scenario has many checkpoints and snapshots.
const CHECKPOINT_BYTES: u64 = 8 << 10;
const RETENTION_CHECK_INTERVAL: Duration = Duration::from_secs(10);
const COMPACTION_BACKOFF: Duration = Duration::from_millis(700);
const SNAPSHOTS: SnapshotPolicy = SnapshotPolicy { after_bytes: 8 << 10, chunk_bytes: 1 << 10 };
/// One for what is appended to, and one for what is older.
const FEW_SEGMENTS: usize = 2;
/// Those of the brokers begin here.
const FIRST_NEIGHBOUR: i32 = 100;
/// As one transaction coordinator.
const OWN_BATCHES: usize = 64;

/// What the brokers of a scenario lead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Subject {
    /// A partition of a topic.
    Partition,
    /// A coordinator slot, whose log holds what groups have committed.
    Slot,
}

impl Subject {
    pub fn key(self) -> PartitionKey {
        match self {
            Self::Partition => PartitionKey { topic_id: TopicId(*b"an id of a topic"), partition: PartitionIndex(0) },
            Self::Slot => PartitionKey::of_slot(slot()),
        }
    }

    pub fn directory(self) -> PathBuf {
        match self {
            Self::Partition => directory(self.key()),
            Self::Slot => slot_directory(slot()),
        }
    }
}

pub fn directory(partition: PartitionKey) -> PathBuf {
    partition_directory(TOPIC, partition)
}

/// A partition that one broker leads beside the subject.
pub fn neighbour(id: BrokerId) -> PartitionKey {
    PartitionKey { topic_id: TopicId(*b"an id of a topic"), partition: PartitionIndex(FIRST_NEIGHBOUR + id.0) }
}

pub fn slot() -> SlotId {
    SlotId::of("group")
}

/// One answer, when it comes; an error when the broker is gone.
pub type Answer<T> = oneshot::Receiver<Vec<T>>;

/// A batch that no client may write, and where its outcome goes.
type OwnBatch = (Bytes, oneshot::Sender<Result<Appended, AppendError>>);

pub struct Broker {
    pub env: SimEnv,
    id: BrokerId,
    subject: Subject,
    operations: ShardHandle,
    own_batches: mpsc::Sender<OwnBatch>,
    commands: mpsc::Sender<ShardCommand>,
    events: RefCell<mpsc::Receiver<ShardEvent>>,
    /// What it says to lead.
    pub led: Cell<Option<LeaderEpoch>>,
}

impl Broker {
    pub fn start(simulation: &Simulation, id: i32, client: ClientId, setup: &Setup) -> Self {
        let Setup { subject, map_bytes, .. } = *setup;
        let env = simulation.start_process(client);
        let (commands, command_receiver) = mpsc::channel(64);
        let (event_sender, events) = mpsc::channel(1024);
        let (operations, operation_receiver) = queue();
        let settings = BrokerConfig::default();
        let mut config = ShardConfig {
            checkpoint_bytes: CHECKPOINT_BYTES,
            retention_check_interval: RETENTION_CHECK_INTERVAL,
            keeps_reserve: setup.capacity.is_some(),
            open_segments: if setup.is_crowded { FEW_SEGMENTS } else { usize::MAX },
            ..ShardConfig::new(ShardId(0), BrokerId(id), &settings, 1)
        };
        config.compaction = CompactionConfig { map_bytes, backoff: COMPACTION_BACKOFF, ..config.compaction };
        config.groups.snapshots = SNAPSHOTS;
        let channels =
            ShardChannels { commands: command_receiver, events: event_sender, operations: operation_receiver };
        // Its tasks hold the shard: with the process it is gone.
        let shard = Shard::start(env.clone(), config, channels);
        let (own_batches, mut requests) = mpsc::channel::<OwnBatch>(OWN_BATCHES);
        env.spawn(TaskClass::Latency, async move {
            while let Some((batch, reply)) = requests.recv().await {
                // Whoever asked may be gone.
                drop(reply.send(shard.append_own(subject.key(), batch).await));
            }
        });
        let id = BrokerId(id);
        let events = RefCell::new(events);
        let broker = Self { env, id, subject, operations, own_batches, commands, events, led: Cell::new(None) };
        if setup.is_crowded {
            broker.command(ShardCommand::TakeOver(TakeOver {
                partition: neighbour(id),
                topic: TOPIC.into(),
                epoch: None,
                config: topic_config(&[]),
            }));
        }
        broker
    }

    /// Appends to the neighbour, which takes the place among the open segments from the subject.
    pub fn crowd(&self) {
        let batch = BatchBuilder::new().record(TimestampMs(0), None, Some(b"n")).build();
        drop(self.produce_to(neighbour(self.id), batch));
    }

    /// Whether there is room on the volume that it can give up.
    pub fn has_reserve(&self) -> bool {
        let path = reserve_file(self.id);
        let content = self.env.simulation().view(|view| view.content(&path.to_string_lossy()));
        content.is_some_and(|content| content.len() as u64 >= MIN_RESERVE_BYTES)
    }

    /// What it reported since the last call.
    pub fn changes(&self) -> Vec<PartitionChange> {
        let mut events = self.events.borrow_mut();
        let events = std::iter::from_fn(|| events.try_recv().ok());
        events.filter(|event| event.partition == self.subject.key()).map(|event| event.change).collect()
    }

    /// A command that does not fit the queue of a paused broker is lost, as on the network.
    fn command(&self, command: ShardCommand) {
        drop(self.commands.try_send(command));
    }

    pub fn take_over(&self, epoch: LeaderEpoch, config: &Arc<TopicConfig>) {
        let (partition, topic, config) = (self.subject.key(), TOPIC.into(), Arc::clone(config));
        self.command(ShardCommand::TakeOver(TakeOver { partition, topic, epoch: Some(epoch), config }));
    }

    pub fn relinquish(&self) {
        self.command(ShardCommand::Relinquish { partition: self.subject.key() });
    }

    fn submit(&self, operation: ShardOperation) {
        // A full queue of a paused broker: the reply is dropped, the client learns nothing.
        drop(self.operations.submit(operation));
    }

    pub fn produce(&self, batch: Bytes) -> Answer<Result<Appended, AppendError>> {
        self.produce_to(self.subject.key(), batch)
    }

    fn produce_to(&self, partition: PartitionKey, batch: Bytes) -> Answer<Result<Appended, AppendError>> {
        let (reply, answer) = oneshot::channel();
        let batches = vec![ProduceBatch::new(partition, batch).expect("it was made here")];
        self.submit(ShardOperation::Produce(Produce { acks: RequiredAcks::All, batches, reply }));
        answer
    }

    /// A batch of the broker's own.
    pub fn append_own(&self, batch: Bytes) -> oneshot::Receiver<Result<Appended, AppendError>> {
        let (reply, answer) = oneshot::channel();
        // As above.
        drop(self.own_batches.try_send((batch, reply)));
        answer
    }

    pub fn group(&self, operation: GroupOperation) {
        self.submit(ShardOperation::Group(Box::new(operation)));
    }

    /// Whole batches from an offset on; refused unless it leads with this epoch.
    pub fn fetch(
        &self,
        offset: i64,
        epoch: LeaderEpoch,
        isolation: IsolationLevel,
    ) -> Answer<Result<Fetched, FetchError>> {
        let (reply, answer) = oneshot::channel();
        let wanted = FetchPartition {
            partition: self.subject.key(),
            offset: Offset(offset),
            max_bytes: usize::MAX,
            current_leader_epoch: Some(epoch),
            last_fetched_epoch: None,
        };
        self.submit(ShardOperation::Fetch(Fetch {
            isolation,
            max_bytes: usize::MAX,
            at_least_one_batch: true,
            partitions: vec![wanted],
            reply,
        }));
        answer
    }

    pub fn end_of_epoch(
        &self,
        wanted: LeaderEpoch,
        epoch: LeaderEpoch,
    ) -> Answer<Result<(LeaderEpoch, Offset), LookupError>> {
        let (reply, answer) = oneshot::channel();
        let partitions = vec![(self.subject.key(), wanted, Some(epoch))];
        self.submit(ShardOperation::OffsetForLeaderEpoch(OffsetForLeaderEpoch { partitions, reply }));
        answer
    }

    pub fn delete_records(&self, offset: i64) -> Answer<Result<Offset, DeleteRecordsError>> {
        let (reply, answer) = oneshot::channel();
        let partitions = vec![(self.subject.key(), Offset(offset))];
        self.submit(ShardOperation::DeleteRecords(DeleteRecords { partitions, reply }));
        answer
    }
}
