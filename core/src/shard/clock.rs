//! Remembers on the volume until when the wall clock was believed, and begins with that: a clock that is wrong already when the
//! process starts is found out like one that is set later.
//!
//! All brokers write, each its own file, and the latest counts. Nobody waits for it: until it is known what the volume says, nothing
//! is old.

use std::io;

use futures_lite::future;
use kaas_proto::layout::{clock_file, clocks_directory};
use kaas_proto::types::{ShardId, TimestampMs};
use tracing::warn;

use super::Shard;
use crate::env::{Env, Volume};
use crate::format::believed_time::{BelievedTime, LIMIT_BYTES};
use crate::partition::context::PartitionContext;
use crate::steady_clock::WITNESS_INTERVAL;

/// So many brokers' files are read; a cluster has fewer.
const MAX_WITNESSES: usize = 1000;

impl<E: Env> Shard<E> {
    /// Asks the volume, then begins to believe the clock, as far as it fits. One shard goes on and writes what is believed.
    pub(super) async fn keep_clock(self) {
        let (context, env) = (&self.0.context, self.env());
        let latest = latest(env.volume()).await;
        context.clock.begin(env.now(), env.wall_clock(), latest);
        while context.shard == ShardId(0) && !*self.0.ended.borrow() {
            if let Err(error) = write(context).await
                && context.log.may_log("time_not_written")
            {
                let path = clock_file(context.log.broker);
                warn!(file = %path.display(), %error, "the time can't be written; a start may wait before it deletes anything");
            }
            future::or(env.sleep(WITNESS_INTERVAL), self.ended()).await;
        }
    }
}

/// The latest time that any broker has believed; `None` on a volume where none has written.
async fn latest(volume: &impl Volume) -> Option<TimestampMs> {
    let directory = clocks_directory();
    let mut latest = None;
    for entry in volume.list(&directory).await.unwrap_or_default().into_iter().take(MAX_WITNESSES) {
        // Foreign names are skipped, and so is what is not renamed yet.
        if entry.name.parse::<i32>().is_err() {
            continue;
        }
        let content = volume.read(&directory.join(&entry.name), LIMIT_BYTES).await;
        match content.and_then(|content| BelievedTime::decode(&content).map_err(io::Error::other)) {
            Ok(time) => latest = latest.max(Some(time.believed_ms)),
            Err(error) => {
                warn!(file = %directory.join(&entry.name).display(), %error, "ignored: it does not say a time")
            }
        }
    }
    latest
}

async fn write<E: Env>(context: &PartitionContext<E>) -> io::Result<()> {
    let (volume, path) = (context.env().volume(), clock_file(context.log.broker));
    let temporary = path.with_extension("tmp");
    volume.create_directories(&clocks_directory()).await?;
    let content = BelievedTime { believed_ms: context.believed_now() }.encode();
    if let Err(error) = volume.write(&temporary, content).await {
        // A full volume should not keep the remains.
        drop(volume.unlink(&temporary).await);
        return Err(error);
    }
    volume.rename(&temporary, &path).await
}
