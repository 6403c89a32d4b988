//! One life of a broker: a shard in a process of the simulation, reached through its queues only, as from another shard.

use std::cell::{Cell, RefCell};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use kaas_core::env::sim::{ClientId, SimEnv, Simulation};
use kaas_core::partition::error::{AppendError, DeleteRecordsError, FetchError, LookupError};
use kaas_core::shard::operation::{
    Appended, DeleteRecords, Fetch, FetchPartition, Fetched, IsolationLevel, OffsetForLeaderEpoch, Produce,
    ProduceBatch, RequiredAcks, ShardOperation, ShardPort,
};
use kaas_core::shard::port::{ShardHandle, queue};
use kaas_core::shard::{Shard, ShardChannels, ShardConfig};
use kaas_proto::config::broker::BrokerConfig;
use kaas_proto::config::topic::TopicConfig;
use kaas_proto::control::{PartitionChange, PartitionKey, ShardCommand, ShardEvent, TakeOver};
use kaas_proto::layout::partition_directory;
use kaas_proto::types::{BrokerId, LeaderEpoch, Offset, PartitionIndex, ShardId, TopicId};
use tokio::sync::{mpsc, oneshot};

pub const TOPIC: &str = "t";
/// Small, so that a scenario has many checkpoints and snapshots.
const CHECKPOINT_BYTES: u64 = 8 << 10;
const RETENTION_CHECK_INTERVAL: Duration = Duration::from_secs(10);

pub fn key() -> PartitionKey {
    PartitionKey { topic_id: TopicId(*b"an id of a topic"), partition: PartitionIndex(0) }
}

pub fn directory() -> PathBuf {
    partition_directory(TOPIC, key())
}

/// One answer, when it comes; an error when the broker is gone.
pub type Answer<T> = oneshot::Receiver<Vec<T>>;

pub struct Broker {
    pub env: SimEnv,
    operations: ShardHandle,
    commands: mpsc::Sender<ShardCommand>,
    events: RefCell<mpsc::Receiver<ShardEvent>>,
    /// What it says to lead.
    pub led: Cell<Option<LeaderEpoch>>,
}

impl Broker {
    pub fn start(simulation: &Simulation, id: i32, client: ClientId) -> Self {
        let env = simulation.start_process(client);
        let (commands, command_receiver) = mpsc::channel(64);
        let (event_sender, events) = mpsc::channel(1024);
        let (operations, operation_receiver) = queue();
        let settings = BrokerConfig::default();
        let config = ShardConfig {
            checkpoint_bytes: CHECKPOINT_BYTES,
            retention_check_interval: RETENTION_CHECK_INTERVAL,
            ..ShardConfig::new(ShardId(0), BrokerId(id), &settings, 1)
        };
        let channels =
            ShardChannels { commands: command_receiver, events: event_sender, operations: operation_receiver };
        // Its tasks hold the shard: with the process it is gone.
        drop(Shard::start(env.clone(), config, channels));
        Self { env, operations, commands, events: RefCell::new(events), led: Cell::new(None) }
    }

    /// What it reported since the last call.
    pub fn changes(&self) -> Vec<PartitionChange> {
        let mut events = self.events.borrow_mut();
        std::iter::from_fn(|| events.try_recv().ok()).map(|event| event.change).collect()
    }

    /// A command that does not fit the queue of a paused broker is lost, as on the network.
    fn command(&self, command: ShardCommand) {
        drop(self.commands.try_send(command));
    }

    pub fn take_over(&self, epoch: LeaderEpoch, config: &Arc<TopicConfig>) {
        let (partition, topic, config) = (key(), TOPIC.into(), Arc::clone(config));
        self.command(ShardCommand::TakeOver(TakeOver { partition, topic, epoch: Some(epoch), config }));
    }

    pub fn relinquish(&self) {
        self.command(ShardCommand::Relinquish { partition: key() });
    }

    fn submit(&self, operation: ShardOperation) {
        // A full queue of a paused broker: the reply is dropped, the client learns nothing.
        drop(self.operations.submit(operation));
    }

    pub fn produce(&self, batch: Bytes) -> Answer<Result<Appended, AppendError>> {
        let (reply, answer) = oneshot::channel();
        let batches = vec![ProduceBatch { partition: key(), batch }];
        self.submit(ShardOperation::Produce(Produce { acks: RequiredAcks::All, batches, reply }));
        answer
    }

    /// Whole batches from an offset on; refused unless it leads with this epoch.
    pub fn fetch(&self, offset: i64, epoch: LeaderEpoch) -> Answer<Result<Fetched, FetchError>> {
        let (reply, answer) = oneshot::channel();
        let wanted = FetchPartition {
            partition: key(),
            offset: Offset(offset),
            max_bytes: usize::MAX,
            current_leader_epoch: Some(epoch),
            last_fetched_epoch: None,
        };
        self.submit(ShardOperation::Fetch(Fetch {
            isolation: IsolationLevel::ReadUncommitted,
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
        let partitions = vec![(key(), wanted, Some(epoch))];
        self.submit(ShardOperation::OffsetForLeaderEpoch(OffsetForLeaderEpoch { partitions, reply }));
        answer
    }

    pub fn delete_records(&self, offset: i64) -> Answer<Result<Offset, DeleteRecordsError>> {
        let (reply, answer) = oneshot::channel();
        let partitions = vec![(key(), Offset(offset))];
        self.submit(ShardOperation::DeleteRecords(DeleteRecords { partitions, reply }));
        answer
    }
}
