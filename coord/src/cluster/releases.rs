//! What was let go of, ahead of the assignment that says for whom.
//!
//! The word of a former leader travels from broker to broker, the assignment by way of the volume: either may come first, and older
//! assignments may still come in between. And while the controller is another one, it may have nobody to travel by: so it is
//! said again for a while.

use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use kaas_proto::control::PartitionKey;
use kaas_proto::format::assignment::Assignment;
use kaas_proto::types::{LeaderEpoch, TopicId};
use tokio::time::Instant;

/// How long a release is said again. Longer than a new leader takes to hear of its assignment, come to the controller and wait.
pub const RELEASE_KEPT: Duration = Duration::from_secs(3);

/// Partitions that are remembered. Then all are forgotten, which costs each a wait: more than this are old ones of topics that no
/// assignment has named here.
const MAX_RELEASES: usize = 100_000;

/// Control thread, of every broker.
#[derive(Debug, Default)]
pub struct Releases {
    /// The highest epoch that was led, and is not any more.
    epochs: HashMap<PartitionKey, LeaderEpoch>,
    forgotten: u64,
}

impl Releases {
    /// Who led the partition with this epoch has let go of it.
    pub fn note(&mut self, partition: PartitionKey, epoch: LeaderEpoch) {
        if self.epochs.len() >= MAX_RELEASES && !self.epochs.contains_key(&partition) {
            self.epochs.clear();
            self.forgotten += 1;
        }
        let known = self.epochs.entry(partition).or_insert(epoch);
        *known = epoch.max(*known);
    }

    /// Whether a leader before that of `epoch` has let go.
    #[must_use]
    pub fn precede(&self, partition: PartitionKey, epoch: LeaderEpoch) -> bool {
        self.epochs.get(&partition).is_some_and(|&released| released < epoch)
    }

    /// An assignment is followed: forgets what came before it, and of topics that are `gone`. What is ahead of it stays.
    pub fn settle(&mut self, assignment: &Assignment, gone: &BTreeSet<TopicId>) {
        if self.epochs.is_empty() {
            return;
        }
        let slots = assignment.consumer_groups.iter().map(|slot| (PartitionKey::of_slot(slot.slot), slot.epoch));
        let partitions = assignment.partitions.iter().map(|partition| (partition.key(), partition.epoch));
        for (partition, epoch) in slots.chain(partitions) {
            if self.precede(partition, epoch) {
                self.epochs.remove(&partition);
            }
        }
        self.epochs.retain(|partition, _| !gone.contains(&partition.topic_id));
    }

    /// How often all were forgotten.
    #[must_use]
    pub fn forgotten(&self) -> u64 {
        self.forgotten
    }
}

/// What was let go of a moment ago: whoever waits for the word of it may not have heard it. No more than there are partitions.
#[derive(Clone, Debug, Default)]
pub struct RecentReleases {
    released: HashMap<PartitionKey, (LeaderEpoch, Instant)>,
    /// When the oldest ones were last forgotten.
    forgotten_at: Option<Instant>,
}

impl RecentReleases {
    pub fn note(&mut self, partition: PartitionKey, epoch: LeaderEpoch, now: Instant) {
        if self.forgotten_at.is_none_or(|at| now.duration_since(at) >= RELEASE_KEPT) {
            self.forgotten_at = Some(now);
            self.released.retain(|_, &mut (_, at)| is_recent(at, now));
        }
        self.released.insert(partition, (epoch, now));
    }

    /// In order of partition.
    #[must_use]
    pub fn at(&self, now: Instant) -> Vec<(PartitionKey, LeaderEpoch)> {
        let recent = self.released.iter().filter(|(_, (_, at))| is_recent(*at, now));
        let mut recent: Vec<_> = recent.map(|(&partition, &(epoch, _))| (partition, epoch)).collect();
        recent.sort_unstable_by_key(|&(partition, _)| partition);
        recent
    }
}

fn is_recent(at: Instant, now: Instant) -> bool {
    now.duration_since(at) < RELEASE_KEPT
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]
    use kaas_proto::types::PartitionIndex;

    use super::*;

    #[test]
    fn they_are_bounded() {
        let key = |partition| PartitionKey { topic_id: TopicId([7; 16]), partition: PartitionIndex(partition) };
        let mut releases = Releases::default();
        let last = i32::try_from(MAX_RELEASES).unwrap();
        (0..last).for_each(|partition| releases.note(key(partition), LeaderEpoch(1)));
        releases.note(key(0), LeaderEpoch(2));
        assert_eq!(releases.forgotten(), 0);
        assert!(releases.precede(key(0), LeaderEpoch(3)) && !releases.precede(key(0), LeaderEpoch(2)));
        releases.note(key(last), LeaderEpoch(1));
        assert_eq!((releases.forgotten(), releases.epochs.len()), (1, 1));
    }
    #[test]
    fn the_recent_ones_are_said_again_for_a_while() {
        let key = |partition| PartitionKey { topic_id: TopicId([7; 16]), partition: PartitionIndex(partition) };
        let (mut recent, now) = (RecentReleases::default(), Instant::now());
        recent.note(key(1), LeaderEpoch(4), now);
        let later = now + RELEASE_KEPT / 2;
        recent.note(key(0), LeaderEpoch(7), later);
        assert_eq!(recent.at(later), [(key(0), LeaderEpoch(7)), (key(1), LeaderEpoch(4))]);
        assert_eq!(recent.at(now + RELEASE_KEPT), [(key(0), LeaderEpoch(7))]);
        recent.note(key(0), LeaderEpoch(9), later + RELEASE_KEPT);
        assert_eq!(recent.released.len(), 1, "the older ones are forgotten");
    }
}
