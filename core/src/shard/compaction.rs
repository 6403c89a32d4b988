//! Compaction by the clock: one partition of the shard at a time, the dirtiest first, in what the shard's other work
//! leaves.

use std::time::Duration;

use futures_lite::future;

use super::Shard;
use crate::compaction::pass::compact;
use crate::compaction::throttle::Throttle;
use crate::env::Env;
use crate::partition::compaction::Candidate;
use crate::partition::lifecycle::State;

/// Looking costs something, whatever `log.cleaner.backoff.ms` says.
const SHORTEST_BACKOFF: Duration = Duration::from_millis(100);

impl<E: Env> Shard<E> {
    pub(super) async fn keep_compact(self) {
        let config = self.0.config.compaction;
        if !config.enabled {
            return;
        }
        let backoff = config.backoff.max(SHORTEST_BACKOFF);
        let mut throttle = Throttle::new(config.bytes_per_second);
        loop {
            future::or(self.env().sleep(backoff), self.ended()).await;
            while let Some(candidate) = self.dirtiest(backoff).await {
                let outcome = Box::pin(compact(&candidate, &config, &mut throttle)).await;
                candidate.leader.compaction_ended(outcome, backoff);
            }
            if *self.0.ended.borrow() {
                return;
            }
        }
    }

    /// Partitions whose records have waited for too long come first, then those of which most is dirty.
    async fn dirtiest(&self, backoff: Duration) -> Option<Candidate<E>> {
        let rank = |candidate: &Candidate<E>| (candidate.backlog.is_overdue, candidate.backlog.dirty_ratio);
        let mut best: Option<Candidate<E>> = None;
        for partition in self.partitions() {
            let Ok(leader) = partition.leader() else { continue };
            if partition.state() != State::Leading {
                continue;
            }
            match leader.compaction_candidate().await {
                Ok(Some(found)) if best.as_ref().is_none_or(|best| rank(&found) > rank(best)) => best = Some(found),
                Ok(_) => {}
                Err(error) => leader.compaction_ended(Err(error), backoff),
            }
            self.env().yield_now().await;
        }
        best
    }
}
