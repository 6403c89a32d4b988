//! What was let go of, ahead of the assignment that says for whom.
//!
//! The word of a former leader travels from broker to broker, the assignment by way of the volume: either may come first, and older
//! assignments may still come in between.

use std::collections::{BTreeSet, HashMap};

use kaas_proto::control::PartitionKey;
use kaas_proto::format::assignment::Assignment;
use kaas_proto::types::{LeaderEpoch, TopicId};

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
}
