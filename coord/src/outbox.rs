//! Commands on their way to the shards.
//!
//! A shard that is busy may leave its command channel full; the control thread must not wait for it. So commands go
//! into an outbox first, one per shard, and a task moves them on, in order.

use std::cell::Cell;
use std::time::Duration;

use kaas_proto::control::ShardCommand;
use kaas_proto::types::ShardId;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use crate::topics::decide::MAX_PARTITIONS_PER_BROKER;

/// Room for a takeover and an abandonment of every partition.
const OUTBOX_LENGTH: usize = 2 * MAX_PARTITIONS_PER_BROKER;

/// A shard that takes no command for so long is mentioned in the log.
const PATIENCE: Duration = Duration::from_secs(10);

/// The shard takes no commands, and too many wait already.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("shard {0} takes no commands, and {OUTBOX_LENGTH} wait for it already")]
pub struct OutboxFull(pub ShardId);

/// Control thread.
#[derive(Debug)]
pub struct Outbox {
    queues: Vec<mpsc::Sender<ShardCommand>>,
    forwarders: Vec<JoinHandle<()>>,
    refused: Cell<u64>,
}

impl Outbox {
    /// Starts to forward. Within a tokio runtime only.
    #[must_use]
    pub fn start(shards: &[mpsc::Sender<ShardCommand>]) -> Self {
        let mut outbox = Self { queues: Vec::new(), forwarders: Vec::new(), refused: Cell::new(0) };
        for (shard, commands) in (0..).map(ShardId).zip(shards) {
            let (sender, receiver) = mpsc::channel(OUTBOX_LENGTH);
            outbox.queues.push(sender);
            outbox.forwarders.push(tokio::spawn(forward(shard, receiver, commands.clone())));
        }
        outbox
    }

    #[must_use]
    pub fn shards(&self) -> u16 {
        u16::try_from(self.queues.len()).expect("as many as there are shards")
    }

    /// Puts a command behind those that wait.
    ///
    /// # Errors
    /// Too many wait already.
    pub fn send(&self, shard: ShardId, command: ShardCommand) -> Result<(), OutboxFull> {
        self.queues[usize::from(shard.0)].try_send(command).map_err(|_| {
            self.refused.set(self.refused.get() + 1);
            OutboxFull(shard)
        })
    }

    /// How many commands found the outbox full.
    #[must_use]
    pub fn refused(&self) -> u64 {
        self.refused.get()
    }

    /// Forwards nothing more: what waits is dropped.
    pub fn stop(&self) {
        for forwarder in &self.forwarders {
            forwarder.abort();
        }
    }
}

async fn forward(shard: ShardId, mut queue: mpsc::Receiver<ShardCommand>, commands: mpsc::Sender<ShardCommand>) {
    while let Some(command) = queue.recv().await {
        let place = match tokio::time::timeout(PATIENCE, commands.reserve()).await {
            Ok(place) => place,
            Err(_) => {
                tracing::warn!(shard = shard.0, waiting = queue.len(), "the shard takes no commands");
                commands.reserve().await
            }
        };
        match place {
            Ok(place) => place.send(command),
            // The shard has ended; whoever watches the shards ends the process.
            Err(_) => return,
        }
    }
}
