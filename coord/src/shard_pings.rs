//! Whether the shards answer: each is asked once a second.

use std::cell::Cell;
use std::time::Duration;

use kaas_proto::control::ShardCommand;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, MissedTickBehavior, interval, timeout_at};

/// Between two pings; also how long one may take.
pub(crate) const PING_INTERVAL: Duration = Duration::from_secs(1);
/// Pings in a row that may go unanswered: a shard may be busy for a moment.
const MAX_MISSED: u32 = 3;

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

    pub(crate) fn note(&self, all_answered: bool) {
        if all_answered {
            self.answered.set(true);
            self.missed.set(0);
        } else {
            self.missed.set(self.missed.get().saturating_add(1));
        }
    }

    /// Asks all of them once.
    pub(crate) async fn ask(&self, shards: &[mpsc::Sender<ShardCommand>]) {
        let deadline = Instant::now() + PING_INTERVAL;
        let ask = |shard: &mpsc::Sender<ShardCommand>| {
            let (reply, answer) = oneshot::channel();
            shard.try_send(ShardCommand::Ping { reply }).ok().map(|()| answer)
        };
        // All are asked before the first is waited for.
        let pings: Vec<_> = shards.iter().map(ask).collect();
        let mut all_answered = true;
        for ping in pings {
            let answered = match ping {
                Some(answer) => matches!(timeout_at(deadline, answer).await, Ok(Ok(()))),
                None => false,
            };
            all_answered &= answered;
        }
        self.note(all_answered);
    }

    /// Asks again and again, for ever.
    pub(crate) async fn watch(&self, shards: &[mpsc::Sender<ShardCommand>]) {
        let mut tick = interval(PING_INTERVAL);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tick.tick().await;
            self.ask(shards).await;
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]
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

    #[tokio::test(start_paused = true)]
    async fn one_shard_that_is_silent_is_noticed() {
        let answers = ShardsAnswer::default();
        let (first, mut well) = mpsc::channel(8);
        let (second, mut silent) = mpsc::channel(8);
        let shards = [first, second];
        let mut kept = Vec::new();
        let obey = async {
            loop {
                let (reply, is_well) = tokio::select! {
                    Some(ShardCommand::Ping { reply }) = well.recv() => (reply, true),
                    Some(ShardCommand::Ping { reply }) = silent.recv() => (reply, false),
                    else => panic!("only pings are sent"),
                };
                // The first one is answered by both.
                if is_well || kept.is_empty() && !answers.answered.get() {
                    reply.send(()).unwrap();
                } else {
                    kept.push(reply);
                }
            }
        };
        let asking = async {
            answers.ask(&shards).await;
            assert!(answers.is_fine());
            for _ in 0..MAX_MISSED {
                assert!(answers.is_fine());
                answers.ask(&shards).await;
            }
            assert!(!answers.is_fine());
        };
        tokio::select! {
            () = asking => {}
            () = obey => {}
        }
    }
}
