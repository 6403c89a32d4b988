//! Whether this broker is fit to lead: its shards answer, and so does the volume.

use std::rc::Rc;
use std::time::Duration;

use kaas_proto::control::ShardCommand;
use tokio::sync::mpsc;
use tokio::time::{MissedTickBehavior, interval};

use super::heartbeat::client::Status;
use super::watcher::Watcher;
use crate::shard_pings::{PING_INTERVAL, ShardsAnswer};

/// A volume that has not answered for so long is not there, for this broker.
const VOLUME_PATIENCE: Duration = Duration::from_secs(10);

/// Looks once a second, for ever.
pub(crate) async fn watch(
    shards: Vec<mpsc::Sender<ShardCommand>>,
    answers: Rc<ShardsAnswer>,
    watcher: Rc<Watcher>,
    status: Rc<Status>,
) {
    let mut tick = interval(PING_INTERVAL);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tick.tick().await;
        answers.ask(&shards).await;
        let was = status.is_healthy();
        let healthy = answers.is_fine() && watcher.age() < VOLUME_PATIENCE;
        if was && !healthy {
            let (shards, volume) = (answers.is_fine(), watcher.age().as_secs());
            tracing::error!(shards_answer = shards, volume_silent_s = volume, "this broker is not fit to lead");
        }
        status.set_healthy(healthy);
    }
}
