//! The next assignment: a pure function of the last one, the brokers, the topics, and the epochs that brokers report.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use kaas_proto::control::PartitionKey;
use kaas_proto::format::assignment::{AssignedPartition, AssignedSlot, Assignment, BrokerHealth, RegisteredBroker};
use kaas_proto::types::{
    AssignmentVersion, BrokerId, ControllerEpoch, Incarnation, LeaderEpoch, PartitionIndex, SlotId, TopicId,
};

use super::balancer::{Placement, balance};
use super::slots::slot_leaders;

/// A topic whose directories are on the volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProvisionedTopic {
    pub name: Arc<str>,
    pub id: TopicId,
    pub partitions: i32,
}

/// What epochs are known to be taken, beside those of the last assignment.
#[derive(Clone, Debug, Default)]
pub struct TakenEpochs {
    partitions: HashMap<PartitionKey, Taken>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Taken {
    epoch: LeaderEpoch,
    /// Who leads at that epoch, if that is known.
    by: Option<(BrokerId, Incarnation)>,
}

impl TakenEpochs {
    /// Somebody holds the epoch, or a higher one: a fence of it was found.
    pub fn found(&mut self, partition: PartitionKey, epoch: LeaderEpoch) {
        self.note(partition, Taken { epoch, by: None });
    }

    /// This life of this broker leads at the epoch.
    pub fn led(&mut self, partition: PartitionKey, epoch: LeaderEpoch, by: (BrokerId, Incarnation)) {
        self.note(partition, Taken { epoch, by: Some(by) });
    }

    fn note(&mut self, partition: PartitionKey, taken: Taken) {
        let known = self.partitions.entry(partition).or_insert(taken);
        if known.epoch < taken.epoch || (known.epoch == taken.epoch && taken.by.is_none()) {
            *known = taken;
        }
    }

    /// Forgets what an assignment that was written says, too.
    pub fn forget_older_than(&mut self, assignment: &Assignment) {
        if self.partitions.is_empty() {
            return;
        }
        let slots = assignment.consumer_groups.iter().map(|slot| (PartitionKey::of_slot(slot.slot), slot.epoch));
        let partitions = assignment.partitions.iter().map(|partition| (partition.key(), partition.epoch));
        let assigned: HashMap<PartitionKey, LeaderEpoch> = slots.chain(partitions).collect();
        self.partitions.retain(|key, taken| assigned.get(key).is_some_and(|&epoch| epoch < taken.epoch));
    }

    /// The epoch for a leader: not below `wanted`, and above all that others hold.
    fn lift(&self, partition: PartitionKey, wanted: LeaderEpoch, leader: (BrokerId, Incarnation)) -> LeaderEpoch {
        match self.partitions.get(&partition) {
            // It went there by itself, and may stay.
            Some(taken) if taken.by == Some(leader) => wanted.max(taken.epoch),
            Some(taken) => wanted.max(next(taken.epoch)),
            None => wanted,
        }
    }
}

/// What an assignment is made from.
#[derive(Debug)]
pub struct Inputs<'a> {
    pub controller: BrokerId,
    /// Where it listens for heartbeats.
    pub controller_heartbeat: Option<Arc<str>>,
    pub controller_epoch: ControllerEpoch,
    /// In order of id.
    pub brokers: Vec<RegisteredBroker>,
    pub candidates: &'a BTreeSet<BrokerId>,
    /// In order of name.
    pub topics: &'a [ProvisionedTopic],
    pub taken: &'a TakenEpochs,
}

/// Makes the assignment that follows on `former`.
#[must_use]
pub fn next_assignment(former: Option<&Assignment>, inputs: Inputs<'_>) -> Assignment {
    let lives = Lives::new(former, &inputs.brokers);
    let partitions = assign_partitions(former, &inputs, &lives);
    let consumer_groups = assign_slots(former, &inputs, &lives);
    let version = former.map_or(0, |former| former.assignment_version.0) + 1;
    Assignment {
        controller_epoch: inputs.controller_epoch,
        assignment_version: AssignmentVersion(version),
        controller: inputs.controller,
        controller_heartbeat: inputs.controller_heartbeat,
        brokers: inputs.brokers,
        partitions,
        consumer_groups,
    }
}

/// Whether two assignments say the same, whichever is the newer.
#[must_use]
pub fn says_the_same(a: &Assignment, b: &Assignment) -> bool {
    a.controller_epoch == b.controller_epoch
        && a.controller == b.controller
        && a.controller_heartbeat == b.controller_heartbeat
        && a.brokers == b.brokers
        && a.partitions == b.partitions
        && a.consumer_groups == b.consumer_groups
}

fn assign_partitions(former: Option<&Assignment>, inputs: &Inputs<'_>, lives: &Lives) -> Vec<AssignedPartition> {
    let assigned = former.map_or(&[][..], |former| &former.partitions);
    let known: HashMap<PartitionKey, &AssignedPartition> = assigned.iter().map(|known| (known.key(), known)).collect();
    let mut keys = Vec::with_capacity(assigned.len());
    let mut placements = Vec::with_capacity(assigned.len());
    for (number, topic) in inputs.topics.iter().enumerate() {
        for partition in (0..topic.partitions).map(PartitionIndex) {
            let key = PartitionKey { topic_id: topic.id, partition };
            placements.push(Placement { topic: number, leader: known.get(&key).map(|known| known.leader) });
            keys.push((key, &topic.name));
        }
    }
    let leaders = balance(&placements, inputs.candidates);
    let assign = |((key, topic), leader): ((PartitionKey, &Arc<str>), BrokerId)| {
        let former = known.get(&key).map(|known| Led::new(known.leader, known.epoch, known.previous));
        let led = lives.follow(key, former, leader, inputs.taken);
        AssignedPartition {
            topic: Arc::clone(topic),
            topic_id: key.topic_id,
            partition: key.partition,
            leader,
            epoch: led.epoch,
            previous: led.previous,
        }
    };
    keys.into_iter().zip(leaders).map(assign).collect()
}

fn assign_slots(former: Option<&Assignment>, inputs: &Inputs<'_>, lives: &Lives) -> Vec<AssignedSlot> {
    let registered: Vec<BrokerId> = inputs.brokers.iter().map(|broker| broker.id).collect();
    let assign = |(slot, leader): (SlotId, BrokerId)| {
        let known = former.and_then(|former| former.consumer_groups.get(usize::from(slot.0)));
        let former = known.map(|known| Led::new(known.leader, known.epoch, known.previous));
        let led = lives.follow(PartitionKey::of_slot(slot), former, leader, inputs.taken);
        AssignedSlot { slot, leader, epoch: led.epoch, previous: led.previous }
    };
    (0..).map(SlotId).zip(slot_leaders(&registered, inputs.candidates)).map(assign).collect()
}

/// A leadership.
struct Led {
    leader: BrokerId,
    epoch: LeaderEpoch,
    previous: Option<BrokerId>,
}

impl Led {
    fn new(leader: BrokerId, epoch: LeaderEpoch, previous: Option<BrokerId>) -> Self {
        Self { leader, epoch, previous }
    }
}

/// Which life of each broker the last assignment was for, and which it is now.
struct Lives {
    then: HashMap<BrokerId, Incarnation>,
    now: HashMap<BrokerId, (Incarnation, BrokerHealth)>,
}

impl Lives {
    fn new(former: Option<&Assignment>, brokers: &[RegisteredBroker]) -> Self {
        let then = former.map_or(&[][..], |former| &former.brokers);
        Self {
            then: then.iter().map(|broker| (broker.id, broker.incarnation)).collect(),
            now: brokers.iter().map(|broker| (broker.id, (broker.incarnation, broker.health))).collect(),
        }
    }

    fn incarnation(&self, broker: BrokerId) -> Incarnation {
        self.now.get(&broker).map_or(Incarnation(0), |&(incarnation, _)| incarnation)
    }

    fn is_another_life(&self, broker: BrokerId) -> bool {
        self.then.get(&broker).is_some_and(|&then| then != self.incarnation(broker))
    }

    /// Whether a broker still does what it was told, so that waiting for it makes sense.
    fn can_hand_over(&self, broker: BrokerId) -> bool {
        let is_there = self.now.get(&broker).is_some_and(|&(_, health)| health != BrokerHealth::Dead);
        is_there && !self.is_another_life(broker)
    }

    /// The leadership of `leader` after that of the last assignment: another leader, or another life of it, leads with
    /// another epoch.
    fn follow(&self, key: PartitionKey, former: Option<Led>, leader: BrokerId, taken: &TakenEpochs) -> Led {
        let changed = former.as_ref().is_none_or(|led| led.leader != leader || self.is_another_life(leader));
        let wanted = former.as_ref().map_or(LeaderEpoch(0), |led| led.epoch);
        let wanted = if changed { next(wanted) } else { wanted };
        let epoch = taken.lift(key, wanted, (leader, self.incarnation(leader)));
        let previous = former.and_then(|led| match changed {
            // Another life of it has nothing to hand over to this one.
            true => Some(led.leader).filter(|&previous| previous != leader),
            false => led.previous,
        });
        Led { leader, epoch, previous: previous.filter(|&previous| self.can_hand_over(previous)) }
    }
}

fn next(epoch: LeaderEpoch) -> LeaderEpoch {
    LeaderEpoch(epoch.0.saturating_add(1))
}

#[cfg(test)]
#[path = "plan_tests.rs"]
mod tests;
