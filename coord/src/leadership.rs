//! Which partitions and coordinator slots this broker is to lead, and how far each has come.
//!
//! ```text
//!              assign          Leading               Failed
//!   (nothing) ───────▶ Waiting ───────▶ Leading ◀──────────────▶ Failed
//!                         │ Failed                    Leading      ▲
//!                         └────────────────────────────────────────┘
//!   any ── Superseded ──▶ Superseded        any ── forget, Relinquished ──▶ (nothing)
//! ```

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use kaas_proto::control::{PartitionChange, PartitionKey, ShardEvent};
use kaas_proto::types::{LeaderEpoch, TopicId};
use tokio::time::Instant;

/// How far a takeover has come.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Progress {
    /// The shard was told, or will be.
    Waiting,
    Leading,
    /// The shard says why and tries again.
    Failed(Arc<str>),
    /// Another broker has it.
    Superseded,
}

#[derive(Clone, Debug)]
struct Assigned {
    /// Empty for a coordinator slot.
    topic: Arc<str>,
    progress: Progress,
    stalled: bool,
    /// Nobody has led it before.
    is_new: bool,
    /// When the shard was to be told.
    since: Instant,
}

/// How many partitions, slots included, stand where.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    pub assigned: usize,
    pub waiting: usize,
    pub leading: usize,
    pub failed: usize,
    pub superseded: usize,
    /// Of those leading: a write has been hanging for too long.
    pub stalled: usize,
}

impl Counts {
    /// Nothing is still to come: each partition is led, or its failure is known.
    #[must_use]
    pub fn settled(&self) -> bool {
        self.waiting == 0
    }
}

/// A partition that does not do what it should.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trouble {
    pub partition: PartitionKey,
    pub topic: Arc<str>,
    pub reason: Arc<str>,
}

/// What an event means for the cluster view.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Consequence {
    None,
    /// This broker leads it with this epoch.
    Leads {
        topic: Arc<str>,
        epoch: LeaderEpoch,
    },
    /// Nobody does.
    Leaderless {
        topic: Arc<str>,
    },
    /// Another broker does; says who.
    Superseded {
        topic: Arc<str>,
        epoch: LeaderEpoch,
        by: Arc<str>,
    },
}

/// Control thread. Events in, consequences out.
#[derive(Debug, Default)]
pub struct Leadership {
    partitions: HashMap<PartitionKey, Assigned>,
}

impl Leadership {
    /// This broker is to lead the partition.
    pub fn assign(&mut self, partition: PartitionKey, topic: Arc<str>) {
        self.expect(partition, topic, false);
    }

    /// This broker is to lead a partition that has just been made, and that nobody has led before.
    pub fn assign_new(&mut self, partition: PartitionKey, topic: Arc<str>) {
        self.expect(partition, topic, true);
    }

    fn expect(&mut self, partition: PartitionKey, topic: Arc<str>, is_new: bool) {
        let waiting = Assigned { topic, progress: Progress::Waiting, stalled: false, is_new, since: Instant::now() };
        self.partitions.entry(partition).or_insert(waiting);
    }

    /// The shard is told again, at a higher epoch: whoever had the partition meanwhile counts no more.
    pub fn assign_again(&mut self, partition: PartitionKey) {
        if let Some(assigned) = self.partitions.get_mut(&partition)
            && assigned.progress == Progress::Superseded
        {
            assigned.progress = Progress::Waiting;
            assigned.is_new = false;
            assigned.since = Instant::now();
        }
    }

    /// Another broker is to lead the partition.
    pub fn remove(&mut self, partition: PartitionKey) {
        self.partitions.remove(&partition);
    }

    /// The topic is gone. Late events of its partitions mean nothing.
    pub fn forget(&mut self, topic_id: TopicId) {
        self.partitions.retain(|partition, _| partition.topic_id != topic_id);
    }

    /// Takes note of what a shard reports.
    pub fn apply(&mut self, event: ShardEvent) -> Consequence {
        let Some(assigned) = self.partitions.get_mut(&event.partition) else { return Consequence::None };
        let topic = Arc::clone(&assigned.topic);
        match event.change {
            PartitionChange::Leading { epoch } => {
                assigned.progress = Progress::Leading;
                assigned.stalled = false;
                Consequence::Leads { topic, epoch }
            }
            PartitionChange::Relinquished { .. } => {
                self.partitions.remove(&event.partition);
                Consequence::Leaderless { topic }
            }
            PartitionChange::Superseded { epoch, by } => {
                assigned.progress = Progress::Superseded;
                assigned.stalled = false;
                Consequence::Superseded { topic, epoch, by }
            }
            PartitionChange::Failed { reason } => {
                // Whoever led keeps the leader in the view: its shard answers clients with the precise error, and
                // goes on serving what it can.
                assigned.progress = Progress::Failed(reason);
                assigned.stalled = false;
                Consequence::None
            }
            PartitionChange::Stalled(stalled) => {
                assigned.stalled = stalled;
                Consequence::None
            }
        }
    }

    /// Whether the shard says that it leads the partition.
    #[must_use]
    pub fn leads(&self, partition: PartitionKey) -> bool {
        self.partitions.get(&partition).is_some_and(|assigned| assigned.progress == Progress::Leading)
    }

    #[must_use]
    pub fn counts(&self) -> Counts {
        let mut counts = Counts { assigned: self.partitions.len(), ..Counts::default() };
        for assigned in self.partitions.values() {
            match assigned.progress {
                Progress::Waiting => counts.waiting += 1,
                Progress::Leading => counts.leading += 1,
                Progress::Failed(_) => counts.failed += 1,
                Progress::Superseded => counts.superseded += 1,
            }
            counts.stalled += usize::from(assigned.stalled);
        }
        counts
    }

    /// How many partitions are still to be taken over, less those that are new and younger than `grace`.
    #[must_use]
    pub fn overdue(&self, grace: Duration) -> usize {
        let waiting = self.partitions.values().filter(|assigned| assigned.progress == Progress::Waiting);
        waiting.filter(|assigned| !assigned.is_new || assigned.since.elapsed() >= grace).count()
    }

    /// Up to `limit` partitions that are failed or stalled, in order of topic id and partition.
    #[must_use]
    pub fn troubles(&self, limit: usize) -> Vec<Trouble> {
        let reason = |assigned: &Assigned| match &assigned.progress {
            Progress::Failed(reason) => Some(Arc::clone(reason)),
            Progress::Leading if assigned.stalled => Some("a write to the volume hangs".into()),
            _ => None,
        };
        let mut troubles: Vec<Trouble> = self
            .partitions
            .iter()
            .filter_map(|(&partition, assigned)| {
                Some(Trouble { partition, topic: Arc::clone(&assigned.topic), reason: reason(assigned)? })
            })
            .collect();
        troubles.sort_by_key(|trouble| trouble.partition);
        troubles.truncate(limit);
        troubles
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kaas_proto::types::{PartitionIndex, ShardId};

    fn key(partition: i32) -> PartitionKey {
        PartitionKey { topic_id: TopicId([7; 16]), partition: PartitionIndex(partition) }
    }

    fn event(partition: i32, change: PartitionChange) -> ShardEvent {
        ShardEvent { shard: ShardId(0), partition: key(partition), change }
    }

    fn leadership() -> Leadership {
        let mut leadership = Leadership::default();
        for partition in 0..3 {
            leadership.assign(key(partition), "orders".into());
        }
        leadership
    }

    #[test]
    fn ready_when_every_partition_is_led_or_known_to_be_failed() {
        let mut leadership = leadership();
        let leads = Consequence::Leads { topic: "orders".into(), epoch: LeaderEpoch(4) };
        assert_eq!(leadership.apply(event(0, PartitionChange::Leading { epoch: LeaderEpoch(4) })), leads);
        assert_eq!(leadership.apply(event(1, PartitionChange::Failed { reason: "disk".into() })), Consequence::None);
        assert!(!leadership.counts().settled());
        leadership.apply(event(2, PartitionChange::Leading { epoch: LeaderEpoch(1) }));
        leadership.apply(event(2, PartitionChange::Stalled(true)));
        let expected = Counts { assigned: 3, leading: 2, failed: 1, stalled: 1, ..Counts::default() };
        assert_eq!(leadership.counts(), expected);
        assert!(leadership.counts().settled());
        let reasons: Vec<Arc<str>> = leadership.troubles(9).into_iter().map(|trouble| trouble.reason).collect();
        assert_eq!(reasons, ["disk".into(), "a write to the volume hangs".into()]);
        assert_eq!(leadership.troubles(1).len(), 1);
    }

    #[test]
    fn failures_heal_with_the_next_epoch() {
        let mut leadership = leadership();
        leadership.apply(event(0, PartitionChange::Failed { reason: "disk".into() }));
        leadership.apply(event(0, PartitionChange::Leading { epoch: LeaderEpoch(5) }));
        assert_eq!(leadership.counts().failed, 0);
    }

    #[test]
    fn events_of_a_deleted_topic_mean_nothing() {
        let mut leadership = leadership();
        leadership.forget(key(0).topic_id);
        let by: Arc<str> = "broker 2".into();
        let superseded = PartitionChange::Superseded { epoch: LeaderEpoch(9), by };
        assert_eq!(leadership.apply(event(0, superseded)), Consequence::None);
        assert_eq!(leadership.counts(), Counts::default());
    }

    #[test]
    fn superseded_names_who() {
        let mut leadership = leadership();
        let change = PartitionChange::Superseded { epoch: LeaderEpoch(9), by: "broker 2".into() };
        let expected = Consequence::Superseded { topic: "orders".into(), epoch: LeaderEpoch(9), by: "broker 2".into() };
        assert_eq!(leadership.apply(event(1, change)), expected);
        assert_eq!(leadership.counts().superseded, 1);
    }
}
