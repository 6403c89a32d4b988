//! One shard put together: its environment, its partitions, its server, and what they need of each other.

use std::rc::Rc;
use std::sync::Arc;

use anyhow::Context;
use kaas_core::env::memory::{MemoryEnv, MemoryVolume};
use kaas_core::env::uring::UringEnv;
use kaas_core::env::{Env, TaskClass};
use kaas_core::shard::operation::{ShardOperation, ShardPort};
use kaas_core::shard::port::ShardHandle;
use kaas_core::shard::{Shard, ShardChannels, ShardConfig};
use kaas_net::limits::Limits;
use kaas_net::listener::BoundListener;
use kaas_net::metrics::NetMetrics;
use kaas_net::server::{ConnectionCounter, Server};
use kaas_proto::config::broker::BrokerConfig;
use kaas_proto::control::{COMMAND_QUEUE_LENGTH, ShardCommand, ShardLink};
use kaas_proto::roots::Roots;
use kaas_proto::types::{BrokerId, ShardId};
use tokio::sync::{mpsc, watch};

/// Where shards keep their files.
#[derive(Clone, Debug)]
pub(crate) enum Storage {
    Directories(Roots),
    /// Local-dev mode: one volume for all shards.
    Memory(MemoryVolume),
}

/// What one shard is made of. Crosses to its thread once.
#[derive(Debug)]
pub(crate) struct ShardParts {
    pub(crate) broker: BrokerId,
    pub(crate) config: Arc<BrokerConfig>,
    pub(crate) storage: Storage,
    pub(crate) link: ShardLink,
    pub(crate) operations: mpsc::Receiver<ShardOperation>,
    /// All shards, in order; this one is reached directly.
    pub(crate) handles: Vec<ShardHandle>,
    pub(crate) listeners: Vec<BoundListener>,
    pub(crate) connections: Arc<ConnectionCounter>,
    /// Open files for them, over all shards.
    pub(crate) connection_files: usize,
    /// Of this shard.
    pub(crate) open_segments: usize,
    pub(crate) serving: Serving,
}

/// How many shards still serve connections. Shards relinquish only when none does: until then a connection of one may
/// wait for a partition of another. Crosses shards.
#[derive(Clone, Debug)]
pub(crate) struct Serving(watch::Sender<u16>);

impl Serving {
    pub(crate) fn all(shards: u16) -> Self {
        Self(watch::channel(shards).0)
    }

    fn ended(&self) {
        self.0.send_modify(|shards| *shards -= 1);
    }

    async fn all_ended(&self) {
        // The sender is this very value.
        let _ = self.0.subscribe().wait_for(|shards| *shards == 0).await;
    }
}

/// Runs a shard on the executor of the caller until it is told to shut down.
pub(crate) async fn run(parts: ShardParts) -> anyhow::Result<()> {
    match parts.storage.clone() {
        Storage::Directories(roots) => {
            let env = UringEnv::start(&roots).with_context(|| {
                format!(
                    "io_uring could not be set up for {}; it needs a kernel of 5.15 or newer, and a seccomp profile and \
                     a sysctl kernel.io_uring_disabled that allow it",
                    roots.data().display()
                )
            })?;
            serve(env, parts, false).await;
        }
        Storage::Memory(volume) => serve(MemoryEnv::on_executor(volume), parts, true).await,
    }
    Ok(())
}

async fn serve<E: Env>(env: E, parts: ShardParts, owns_directories: bool) {
    let ShardParts {
        broker,
        config,
        link,
        operations,
        handles,
        listeners,
        connections,
        connection_files,
        open_segments,
        serving,
        ..
    } = parts;
    let id = link.shard;
    let (commands, own_commands) = mpsc::channel(COMMAND_QUEUE_LENGTH);
    let channels = ShardChannels { commands: own_commands, events: link.events, operations };
    let shards = u16::try_from(handles.len()).unwrap_or(u16::MAX);
    let keeps_reserve = !owns_directories && id == ShardId(0);
    let shard_config = ShardConfig {
        owns_directories,
        keeps_reserve,
        open_segments,
        asks_volume_for_time: !owns_directories,
        ..ShardConfig::new(id, broker, &config, shards)
    };
    let shard = Shard::start_with(env.clone(), shard_config, channels, link.reserves);
    let ports = handles.into_iter().enumerate().map(|(index, handle)| -> Rc<dyn ShardPort> {
        if index == usize::from(id.0) { Rc::new(shard.port()) } else { Rc::new(handle) }
    });
    let metrics = Rc::new(NetMetrics::default());
    let server = Server {
        shard: id,
        ports: ports.collect(),
        view: link.view,
        control: link.requests,
        stopping: link.stopping,
        limits: Limits { connection_files, ..Limits::of(&config) },
        config,
        connections,
        metrics: Rc::clone(&metrics),
    };
    let server_ended = serving.clone();
    env.spawn(TaskClass::Latency, async move {
        server.run(listeners).await;
        server_ended.ended();
    });
    env.spawn(TaskClass::Latency, pass_on(link.commands, commands, shard.clone(), metrics, serving));
    shard.ended().await;
}

/// Passes commands on to the shard, with what concerns connections done on the way.
async fn pass_on<E: Env>(
    mut commands: mpsc::Receiver<ShardCommand>,
    shard_commands: mpsc::Sender<ShardCommand>,
    shard: Shard<E>,
    metrics: Rc<NetMetrics>,
    serving: Serving,
) {
    while let Some(command) = commands.recv().await {
        match command {
            ShardCommand::Metrics { reply } => {
                let mut snapshot = shard.metrics();
                metrics.add_to(&mut snapshot);
                // The control thread may have given up waiting.
                let _ = reply.send(Box::new(snapshot));
            }
            command => {
                if matches!(command, ShardCommand::Shutdown { .. }) {
                    serving.all_ended().await;
                }
                if shard_commands.send(command).await.is_err() {
                    return;
                }
            }
        }
    }
}
