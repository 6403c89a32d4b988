//! Whether this broker is fit to lead: its shards answer, and so does the volume.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use kaas_proto::control::ShardCommand;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{MissedTickBehavior, interval, timeout_at};

use super::heartbeat::client::Status;
use super::registry::HEARTBEAT_INTERVAL;
use super::watcher::Watcher;

/// Pings in a row that may go unanswered: a shard may be busy for a moment.
const MAX_MISSED: u32 = 3;
/// A volume that has not answered for so long is not there, for this broker.
const VOLUME_PATIENCE: Duration = Duration::from_secs(10);

/// Control thread: the answers so far.
#[derive(Debug, Default)]
pub(crate) struct ShardsAnswer {
    missed: Cell<u32>,
    answered: Cell<bool>,
}

impl ShardsAnswer {
    pub(crate) fn is_fine(&self) -> bool {
        self.answered.get() && self.missed.get() < MAX_MISSED
    }

    fn note(&self, all_answered: bool) {
        if all_answered {
            self.answered.set(true);
            self.missed.set(0);
        } else {
            self.missed.set(self.missed.get().saturating_add(1));
        }
    }
}

/// Looks once a second, for ever.
pub(crate) async fn watch(
    shards: Vec<mpsc::Sender<ShardCommand>>,
    answers: Rc<ShardsAnswer>,
    watcher: Rc<Watcher>,
    status: Rc<Status>,
) {
    let mut tick = interval(HEARTBEAT_INTERVAL);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        let began = tick.tick().await;
        let ask = |shard: &mpsc::Sender<ShardCommand>| {
            let (reply, answer) = oneshot::channel();
            shard.try_send(ShardCommand::Ping { reply }).ok().map(|()| answer)
        };
        // All are asked before the first is waited for.
        let pings: Vec<_> = shards.iter().map(ask).collect();
        let mut all_answered = true;
        for ping in pings {
            let answered = match ping {
                Some(answer) => matches!(timeout_at(began + HEARTBEAT_INTERVAL, answer).await, Ok(Ok(()))),
                None => false,
            };
            all_answered &= answered;
        }
        answers.note(all_answered);
        let was = status.is_healthy();
        let healthy = answers.is_fine() && watcher.age() < VOLUME_PATIENCE;
        if was && !healthy {
            let (shards, volume) = (answers.is_fine(), watcher.age().as_secs());
            tracing::error!(shards_answer = shards, volume_silent_s = volume, "this broker is not fit to lead");
        }
        status.set_healthy(healthy);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_moment_without_an_answer_is_no_illness() {
        let answers = ShardsAnswer::default();
        assert!(!answers.is_fine(), "nothing was heard yet");
        answers.note(true);
        for _ in 1..MAX_MISSED {
            answers.note(false);
        }
        assert!(answers.is_fine());
        answers.note(false);
        assert!(!answers.is_fine());
        answers.note(true);
        assert!(answers.is_fine());
    }
}
