//! A shard with its channels, and short ways to ask it.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::future::Future;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_lite::future;
use kaas_core::env::memory::MemoryEnv;
use kaas_core::env::{Env, Volume};
use kaas_core::partition::error::{AppendError, DeleteRecordsError, FetchError};
use kaas_core::shard::operation::{
    Appended, DeleteRecords, Fetch, FetchPartition, Fetched, IsolationLevel, Produce, ProduceBatch, RequiredAcks,
    ShardOperation, Watch, WatchPartition,
};
use kaas_core::shard::port::{ShardHandle, queue};
use kaas_core::shard::{Shard, ShardChannels, ShardConfig};
use kaas_proto::config::broker::BrokerConfig;
use kaas_proto::config::topic::TopicConfig;
use kaas_proto::control::{PartitionChange, PartitionKey, ShardCommand, ShardEvent, TakeOver};
use kaas_proto::layout::partition_directory;
use kaas_proto::record::{BatchBuilder, Batches};
use kaas_proto::reserve::{Reserve, Reserves};
use kaas_proto::types::{BrokerId, LeaderEpoch, Offset, PartitionIndex, ProducerEpoch, ProducerId, ShardId, TopicId};
use tokio::sync::{mpsc, oneshot};

/// Longer than anything here takes: virtual time would go on for ever.
const DEADLINE: Duration = Duration::from_secs(24 * 3600);

pub const TOPIC: &str = "t";

pub fn key(partition: i32) -> PartitionKey {
    PartitionKey { topic_id: TopicId(*b"an id of a topic"), partition: PartitionIndex(partition) }
}

pub fn directory(partition: i32) -> PathBuf {
    partition_directory(TOPIC, key(partition))
}

pub fn topic_config(settings: &[(&str, &str)]) -> Arc<TopicConfig> {
    let own: BTreeMap<_, _> = settings.iter().map(|&(key, value)| (key.to_owned(), value.to_owned())).collect();
    Arc::new(TopicConfig::resolve(&BrokerConfig::default(), &own).unwrap())
}

/// Runs a scenario until it is done.
pub fn run<T>(env: &MemoryEnv, scenario: impl Future<Output = T>) -> T {
    let deadline = async {
        env.sleep(DEADLINE).await;
        panic!("the scenario does not come to an end");
    };
    env.run(future::or(scenario, deadline))
}

/// One broker with one shard.
pub struct Broker<E: Env = MemoryEnv> {
    pub env: E,
    pub shard: Shard<E>,
    pub reserve: Reserve,
    operations: ShardHandle,
    commands: mpsc::Sender<ShardCommand>,
    events: RefCell<mpsc::Receiver<ShardEvent>>,
}

impl<E: Env> Broker<E> {
    pub fn start(env: &E, id: i32) -> Self {
        Self::start_with(env, id, |_| ())
    }

    pub fn start_with(env: &E, id: i32, configure: impl FnOnce(&mut ShardConfig)) -> Self {
        Self::start_with_reserves(env, id, Reserves::default(), configure)
    }

    pub fn start_with_reserves(env: &E, id: i32, reserves: Reserves, configure: impl FnOnce(&mut ShardConfig)) -> Self {
        let (commands, command_receiver) = mpsc::channel(64);
        let (event_sender, events) = mpsc::channel(1024);
        let (operations, operation_receiver) = queue();
        let mut config = ShardConfig {
            owns_directories: true,
            ..ShardConfig::new(ShardId(0), BrokerId(id), &BrokerConfig::default(), 1)
        };
        configure(&mut config);
        let channels =
            ShardChannels { commands: command_receiver, events: event_sender, operations: operation_receiver };
        let reserve = reserves.data.clone();
        let shard = Shard::start_with(env.clone(), config, channels, reserves);
        Self { env: env.clone(), shard, reserve, operations, commands, events: RefCell::new(events) }
    }

    /// A broker that leads partition 0, which holds one record: `a`.
    pub async fn start_with_a(env: &E, config: &Arc<TopicConfig>) -> Self {
        let broker = Self::start(env, 1);
        broker.lead(0, None, config).await;
        broker.append(0, "a").await;
        broker
    }

    pub async fn command(&self, command: ShardCommand) {
        self.commands.send(command).await.unwrap();
    }

    pub async fn take_over(&self, partition: i32, epoch: Option<i32>, config: &Arc<TopicConfig>) {
        self.command(ShardCommand::TakeOver(TakeOver {
            partition: key(partition),
            topic: TOPIC.into(),
            epoch: epoch.map(LeaderEpoch),
            config: Arc::clone(config),
        }))
        .await;
    }

    /// Takes over and waits until it leads; returns the epoch.
    pub async fn lead(&self, partition: i32, epoch: Option<i32>, config: &Arc<TopicConfig>) -> LeaderEpoch {
        self.take_over(partition, epoch, config).await;
        match self.next_change().await {
            PartitionChange::Leading { epoch } => epoch,
            other => panic!("not leading: {other:?}"),
        }
    }

    /// The next thing that the control thread is told.
    pub async fn next_change(&self) -> PartitionChange {
        self.next_event().await.change
    }

    #[expect(clippy::await_holding_refcell_ref, reason = "one task of a scenario listens")]
    pub async fn next_event(&self) -> ShardEvent {
        self.events.borrow_mut().recv().await.unwrap()
    }

    pub fn no_change(&self) -> bool {
        self.events.borrow_mut().try_recv().is_err()
    }

    pub async fn shut_down(&self) {
        let (done, is_done) = oneshot::channel();
        self.command(ShardCommand::Shutdown { done }).await;
        is_done.await.unwrap();
    }

    /// The way in from other shards.
    pub fn handle(&self) -> ShardHandle {
        self.operations.clone()
    }

    pub fn begin_produce(
        &self,
        partition: i32,
        acks: RequiredAcks,
        batch: Bytes,
    ) -> oneshot::Receiver<Vec<Result<Appended, AppendError>>> {
        let (reply, answer) = oneshot::channel();
        let batches = vec![ProduceBatch::new(key(partition), batch).unwrap()];
        self.shard.submit(ShardOperation::Produce(Produce { acks, batches, reply }));
        answer
    }

    pub async fn produce(&self, partition: i32, batch: Bytes) -> Result<Appended, AppendError> {
        self.begin_produce(partition, RequiredAcks::All, batch).await.unwrap().remove(0)
    }

    /// The base offset.
    pub async fn append(&self, partition: i32, value: &str) -> i64 {
        self.produce(partition, batch(&self.env, &[value])).await.unwrap().base_offset.0
    }

    pub async fn fetch_with(
        &self,
        partition: i32,
        offset: i64,
        isolation: IsolationLevel,
        max_bytes: usize,
        at_least_one_batch: bool,
    ) -> Result<Fetched, FetchError> {
        let (reply, answer) = oneshot::channel();
        let wanted = FetchPartition {
            partition: key(partition),
            offset: Offset(offset),
            max_bytes,
            current_leader_epoch: None,
            last_fetched_epoch: None,
        };
        let partitions = vec![wanted];
        self.shard.submit(ShardOperation::Fetch(Fetch { isolation, max_bytes, at_least_one_batch, partitions, reply }));
        answer.await.unwrap().remove(0)
    }

    pub async fn fetch(&self, partition: i32, offset: i64) -> Result<Fetched, FetchError> {
        self.fetch_with(partition, offset, IsolationLevel::ReadUncommitted, usize::MAX, true).await
    }

    /// Offsets and values from an offset to the high watermark.
    pub async fn read(&self, partition: i32, offset: i64) -> Vec<(i64, String)> {
        self.try_read(partition, offset).await.unwrap()
    }

    pub async fn try_read(&self, partition: i32, offset: i64) -> Result<Vec<(i64, String)>, FetchError> {
        let mut next = offset;
        let mut found = Vec::new();
        loop {
            let fetched = self.fetch(partition, next).await?;
            if fetched.records.is_empty() {
                return Ok(found);
            }
            for batch in fetched.records.iter().flat_map(|part| Batches::new(part)) {
                let batch = batch.unwrap();
                batch.check_crc().unwrap();
                next = batch.next_offset().0;
                let records = kaas_proto::record::RecordSet::read(batch, 1 << 24).unwrap();
                for record in &records {
                    let record = record.unwrap();
                    let value = String::from_utf8_lossy(record.value.unwrap_or_default()).into_owned();
                    if records.offset(&record).0 >= offset {
                        found.push((records.offset(&record).0, value));
                    }
                }
            }
        }
    }

    pub async fn values(&self, partition: i32) -> Vec<String> {
        self.read(partition, 0).await.into_iter().map(|(_, value)| value).collect()
    }

    pub fn begin_delete_records(
        &self,
        partition: i32,
        offset: i64,
    ) -> oneshot::Receiver<Vec<Result<Offset, DeleteRecordsError>>> {
        let (reply, answer) = oneshot::channel();
        let partitions = vec![(key(partition), Offset(offset))];
        self.shard.submit(ShardOperation::DeleteRecords(DeleteRecords { partitions, reply }));
        answer
    }

    pub async fn delete_records(&self, partition: i32, offset: i64) -> Result<Offset, DeleteRecordsError> {
        self.begin_delete_records(partition, offset).await.unwrap().remove(0)
    }

    /// Where the log begins.
    pub async fn log_start(&self, partition: i32) -> i64 {
        match self.fetch(partition, 0).await {
            Ok(fetched) => fetched.log_start_offset.0,
            Err(FetchError::OffsetOutOfRange { log_start, .. }) => log_start.0,
            Err(error) => panic!("{error}"),
        }
    }

    pub fn watch(&self, partition: i32, seen_end: i64, min_bytes: usize) -> oneshot::Receiver<()> {
        let (reply, answer) = oneshot::channel();
        self.shard.submit(ShardOperation::Watch(Watch {
            isolation: IsolationLevel::ReadUncommitted,
            partitions: vec![WatchPartition { partition: key(partition), seen_end: Offset(seen_end) }],
            min_bytes,
            reply,
        }));
        answer
    }

    /// A counter or gauge of the shard.
    pub fn metric(&self, name: &str) -> u64 {
        let metrics = self.shard.metrics();
        let value = metrics.values.iter().find(|(metric, _, _)| metric.name == name).map(|(_, _, value)| *value);
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "counters here are small")]
        value.map_or_else(|| panic!("no metric {name}"), |value| value as u64)
    }
}

pub fn batch(env: &impl Env, values: &[&str]) -> Bytes {
    let mut builder = BatchBuilder::new();
    for value in values {
        builder.push(env.wall_clock(), Some(b"k"), Some(value.as_bytes()), &[]);
    }
    builder.build()
}

/// A batch of one record from idempotent producer 9.
pub fn sequenced(env: &impl Env, sequence: i32, value: &str) -> Bytes {
    sequenced_by(env, 9, sequence, value)
}

/// A batch of one record from an idempotent producer.
pub fn sequenced_by(env: &impl Env, producer: i64, sequence: i32, value: &str) -> Bytes {
    let builder = BatchBuilder::new().producer(ProducerId(producer), ProducerEpoch(0), sequence);
    builder.record(env.wall_clock(), Some(b"k"), Some(value.as_bytes())).build()
}

/// The names in a partition's directory, sorted.
pub async fn names(volume: &impl Volume, partition: i32) -> Vec<String> {
    let mut names: Vec<_> =
        volume.list(&directory(partition)).await.unwrap().into_iter().map(|entry| entry.name).collect();
    names.sort();
    names
}

/// Gives background work its time.
pub async fn settle(env: &impl Env) {
    env.sleep(Duration::from_millis(50)).await;
}
