//! A shard of its own on a directory: one thread, one executor, no network.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::future::Future;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result, anyhow, bail};
use bytes::Bytes;
use kaas_core::env::Env;
use kaas_core::env::executor::spawn_shard;
use kaas_core::env::uring::UringEnv;
use kaas_core::partition::error::AppendError;
use kaas_core::shard::operation::{Appended, Produce, ProduceBatch, RequiredAcks, ShardOperation};
use kaas_core::shard::port::{ShardHandle, queue};
use kaas_core::shard::{Shard, ShardChannels, ShardConfig};
use kaas_proto::config::broker::BrokerConfig;
use kaas_proto::config::topic::TopicConfig;
use kaas_proto::control::{PartitionChange, PartitionKey, ShardCommand, ShardEvent, TakeOver};
use kaas_proto::layout::partition_directory;
use kaas_proto::record::BatchBuilder;
use kaas_proto::roots::Roots;
use kaas_proto::types::{BrokerId, LeaderEpoch, PartitionIndex, ShardId, TopicId};
use tokio::sync::{mpsc, oneshot};

const TOPIC: &str = "bench";
/// Commands and events under way.
const CHANNEL_LENGTH: usize = 4096;

pub(super) fn key(partition: i32) -> PartitionKey {
    PartitionKey { topic_id: TopicId(*b"an id of a topic"), partition: PartitionIndex(partition) }
}

pub(super) fn directory(partition: i32) -> std::path::PathBuf {
    partition_directory(TOPIC, key(partition))
}

/// Makes the directories of so many partitions.
pub(super) fn make_directories(root: &Path, partitions: i32) -> Result<()> {
    for partition in 0..partitions {
        std::fs::create_dir_all(root.join(directory(partition)))?;
    }
    Ok(())
}

/// Runs something on a shard of its own and gives its result back. The shard ends as in a crash unless it is shut down.
pub(super) fn on_shard<T, F>(root: &Path, run: impl FnOnce(BenchShard) -> F + Send + 'static) -> Result<T>
where
    T: Send + 'static,
    F: Future<Output = Result<T>> + 'static,
{
    on_shard_with(root, |_| (), run)
}

/// The same with other settings.
pub(super) fn on_shard_with<T, F>(
    root: &Path,
    configure: impl FnOnce(&mut ShardConfig) + Send + 'static,
    run: impl FnOnce(BenchShard) -> F + Send + 'static,
) -> Result<T>
where
    T: Send + 'static,
    F: Future<Output = Result<T>> + 'static,
{
    let root = root.to_owned();
    let thread = spawn_shard("bench", None, move || async move { run(BenchShard::start(&root, configure)?).await });
    let thread = thread.map_err(|error| anyhow!("{error}"))?;
    thread.join().map_err(|error| anyhow!("{error}"))?
}

/// Lives on the shard's thread.
pub(super) struct BenchShard {
    pub(super) env: UringEnv,
    shard: Shard<UringEnv>,
    commands: mpsc::Sender<ShardCommand>,
    events: RefCell<mpsc::Receiver<ShardEvent>>,
    config: Arc<TopicConfig>,
    /// The queue is not used, but it may not close.
    _operations: ShardHandle,
}

impl BenchShard {
    fn start(root: &Path, configure: impl FnOnce(&mut ShardConfig)) -> Result<Self> {
        let env = UringEnv::start(&Roots::from(root))?;
        let (commands, command_receiver) = mpsc::channel(CHANNEL_LENGTH);
        let (event_sender, events) = mpsc::channel(CHANNEL_LENGTH);
        let (handle, operations) = queue();
        let broker = BrokerConfig::default();
        let channels = ShardChannels { commands: command_receiver, events: event_sender, operations };
        let mut shard_config = ShardConfig::new(ShardId(0), BrokerId(1), &broker, 1);
        configure(&mut shard_config);
        let shard = Shard::start(env.clone(), shard_config, channels);
        let config = Self::config(&[])?;
        Ok(Self { env, shard, commands, events: RefCell::new(events), config, _operations: handle })
    }

    /// A topic's configuration.
    pub(super) fn config(settings: &[(&str, &str)]) -> Result<Arc<TopicConfig>> {
        let own: BTreeMap<_, _> = settings.iter().map(|&(key, value)| (key.to_owned(), value.to_owned())).collect();
        Ok(Arc::new(TopicConfig::resolve(&BrokerConfig::default(), &own)?))
    }

    /// Leads partitions at an epoch.
    pub(super) async fn lead_all(&self, partitions: Range<i32>, epoch: i32) -> Result<()> {
        for partition in partitions.clone() {
            self.take_over(partition, epoch, &self.config).await?;
        }
        for _ in partitions {
            self.leads().await?;
        }
        Ok(())
    }

    /// Leads a partition with a configuration of its own, or with another one from now on.
    pub(super) async fn lead(&self, partition: i32, epoch: i32, config: &Arc<TopicConfig>) -> Result<()> {
        self.take_over(partition, epoch, config).await?;
        self.leads().await
    }

    async fn take_over(&self, partition: i32, epoch: i32, config: &Arc<TopicConfig>) -> Result<()> {
        let command = TakeOver {
            partition: key(partition),
            topic: TOPIC.into(),
            epoch: Some(LeaderEpoch(epoch)),
            config: Arc::clone(config),
        };
        Ok(self.commands.send(ShardCommand::TakeOver(command)).await?)
    }

    async fn leads(&self) -> Result<()> {
        match self.next_change().await? {
            PartitionChange::Leading { .. } => Ok(()),
            other => bail!("a takeover ended with {other:?}"),
        }
    }

    #[expect(clippy::await_holding_refcell_ref, reason = "one task listens")]
    async fn next_change(&self) -> Result<PartitionChange> {
        Ok(self.events.borrow_mut().recv().await.context("the shard has ended")?.change)
    }

    pub(super) fn begin_append(
        &self,
        partition: i32,
        batch: Bytes,
    ) -> oneshot::Receiver<Vec<std::result::Result<Appended, AppendError>>> {
        let (reply, answer) = oneshot::channel();
        let batches = vec![ProduceBatch::new(key(partition), batch).expect("the batch was made here")];
        self.shard.submit(ShardOperation::Produce(Produce { acks: RequiredAcks::All, batches, reply }));
        answer
    }

    pub(super) async fn append(&self, partition: i32, batch: Bytes) -> Result<()> {
        self.begin_append(partition, batch).await?.pop().context("a row")??;
        Ok(())
    }

    pub(super) async fn shut_down(&self) -> Result<()> {
        let (done, is_done) = oneshot::channel();
        self.commands.send(ShardCommand::Shutdown { done }).await?;
        Ok(is_done.await?)
    }

    /// A counter of the shard.
    pub(super) fn metric(&self, name: &str) -> Result<f64> {
        let metrics = self.shard.metrics();
        let found = metrics.values.iter().find(|(metric, _, _)| metric.name == name);
        found.map(|(_, _, value)| *value).with_context(|| format!("no metric {name}"))
    }

    /// One batch of about so many bytes.
    pub(super) fn batch(&self, bytes: usize) -> Bytes {
        BatchBuilder::new().record(self.env.wall_clock(), None, Some(&vec![0x6b; bytes.saturating_sub(80)])).build()
    }
}
