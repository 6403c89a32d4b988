//! The ends of shards: watched for, and brought about.

use std::future::poll_fn;
use std::task::Poll;
use std::time::Duration;

use kaas_proto::control::ShardCommand;
use kaas_proto::types::ShardId;
use tokio::sync::{mpsc, oneshot};
use tokio::task::spawn_local;
use tokio::time::{Instant, timeout_at};

/// How long the shards have to answer what is in flight, to relinquish, and to end.
const SHUTDOWN_WAIT: Duration = Duration::from_secs(20);

/// A shard was told to end, and did not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("shard {0} did not finish within {seconds} s of being told to stop", seconds = SHUTDOWN_WAIT.as_secs())]
pub struct ShardHangs(pub ShardId);

/// Completes with a shard that has ended.
pub(crate) async fn first_ended(shards: &[mpsc::Sender<ShardCommand>]) -> ShardId {
    let mut closed: Vec<_> = shards.iter().map(|shard| Box::pin(shard.closed())).collect();
    poll_fn(move |context| {
        let mut ended = (0..).map(ShardId).zip(&mut closed);
        match ended.find_map(|(shard, closed)| closed.as_mut().poll(context).is_ready().then_some(shard)) {
            Some(shard) => Poll::Ready(shard),
            None => Poll::Pending,
        }
    })
    .await
}

/// Tells the shards to end, and waits until they have.
pub(crate) async fn stop_shards(shards: &[mpsc::Sender<ShardCommand>]) -> Result<(), ShardHangs> {
    let deadline = Instant::now() + SHUTDOWN_WAIT;
    let stop = |commands: mpsc::Sender<ShardCommand>| async move {
        let (done, answer) = oneshot::channel();
        // A shard that has ended already needs no telling.
        if commands.send(ShardCommand::Shutdown { done }).await.is_ok() {
            let _ = answer.await;
        }
    };
    // All are told before the first is waited for.
    let stopping: Vec<_> = shards.iter().map(|commands| spawn_local(stop(commands.clone()))).collect();
    for (shard, stopped) in (0..).map(ShardId).zip(stopping) {
        timeout_at(deadline, stopped).await.map_err(|_| ShardHangs(shard))?.unwrap_or_default();
    }
    Ok(())
}
