#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

use super::*;

fn topic(name: &str, byte: u8, partitions: i32) -> ProvisionedTopic {
    ProvisionedTopic { name: name.into(), id: TopicId([byte; 16]), partitions }
}

struct Cluster {
    brokers: Vec<RegisteredBroker>,
    topics: Vec<ProvisionedTopic>,
    taken: TakenEpochs,
    last: Option<Assignment>,
}

impl Cluster {
    fn of(brokers: i32) -> Self {
        let mut cluster = Self { brokers: Vec::new(), topics: Vec::new(), taken: TakenEpochs::default(), last: None };
        (0..brokers).for_each(|id| cluster.put(id, 1, BrokerHealth::Alive));
        cluster
    }

    fn put(&mut self, id: i32, incarnation: u64, health: BrokerHealth) {
        self.brokers.retain(|broker| broker.id.0 != id);
        let (id, incarnation) = (BrokerId(id), Incarnation(incarnation));
        self.brokers.push(RegisteredBroker { id, incarnation, rack: None, listeners: Vec::new(), health });
        self.brokers.sort_by_key(|broker| broker.id);
    }

    fn recompute(&mut self) -> Assignment {
        let alive = self.brokers.iter().filter(|broker| broker.health == BrokerHealth::Alive);
        let candidates = alive.map(|broker| broker.id).collect();
        let inputs = Inputs {
            controller: BrokerId(0),
            controller_heartbeat: None,
            controller_epoch: ControllerEpoch(5),
            brokers: self.brokers.clone(),
            candidates: &candidates,
            topics: &self.topics,
            taken: &self.taken,
        };
        let assignment = next_assignment(self.last.as_ref(), inputs);
        assert_eq!(Assignment::decode(&assignment.encode()).unwrap(), assignment);
        self.taken.forget_older_than(&assignment);
        self.last = Some(assignment.clone());
        assignment
    }
}

fn row(assignment: &Assignment, partition: usize) -> (i32, i32, Option<i32>) {
    let row = &assignment.partitions[partition];
    (row.leader.0, row.epoch.0, row.previous.map(|broker| broker.0))
}

#[test]
fn the_first_assignment_begins_with_epoch_1() {
    let mut cluster = Cluster::of(3);
    cluster.topics = vec![topic("a", 1, 2), topic("b", 2, 1)];
    let assignment = cluster.recompute();
    assert_eq!(assignment.generation(), (ControllerEpoch(5), AssignmentVersion(1)));
    let rows: Vec<_> = (0..3).map(|partition| row(&assignment, partition)).collect();
    assert_eq!(rows, [(0, 1, None), (1, 1, None), (2, 1, None)]);
    assert!(assignment.consumer_groups.iter().all(|slot| slot.epoch == LeaderEpoch(1)));
    let again = cluster.recompute();
    assert!(says_the_same(&assignment, &again));
    assert_eq!(again.assignment_version, AssignmentVersion(2));
}

#[test]
fn a_draining_leader_hands_over_and_a_dead_one_is_not_waited_for() {
    let mut cluster = Cluster::of(3);
    cluster.topics = vec![topic("a", 1, 3)];
    cluster.recompute();
    cluster.put(1, 1, BrokerHealth::Draining);
    cluster.put(2, 1, BrokerHealth::Dead);
    let assignment = cluster.recompute();
    let rows: Vec<_> = (0..3).map(|partition| row(&assignment, partition)).collect();
    assert_eq!(rows, [(0, 1, None), (0, 2, Some(1)), (0, 2, None)]);
    assert_eq!(assignment.consumer_groups[1].previous, Some(BrokerId(1)));
    cluster.put(1, 1, BrokerHealth::Dead);
    assert_eq!(row(&cluster.recompute(), 1), (0, 2, None), "nobody is left to wait for; no other epoch for that");
}

#[test]
fn another_life_of_the_same_broker_leads_with_another_epoch() {
    let mut cluster = Cluster::of(2);
    cluster.topics = vec![topic("a", 1, 2)];
    cluster.recompute();
    cluster.put(1, 2, BrokerHealth::Alive);
    let assignment = cluster.recompute();
    assert_eq!([row(&assignment, 0), row(&assignment, 1)], [(0, 1, None), (1, 2, None)]);
    assert_eq!(assignment.consumer_groups[1].epoch, LeaderEpoch(2));
    assert_eq!(row(&cluster.recompute(), 1), (1, 2, None), "once");
}

#[test]
fn a_topic_made_anew_begins_anew_and_others_stay() {
    let mut cluster = Cluster::of(2);
    cluster.topics = vec![topic("a", 1, 2), topic("b", 2, 2)];
    cluster.recompute();
    cluster.put(1, 2, BrokerHealth::Alive);
    cluster.recompute();
    cluster.topics = vec![topic("a", 9, 2), topic("b", 2, 3)];
    let assignment = cluster.recompute();
    assert!(assignment.partitions[..2].iter().all(|row| row.epoch == LeaderEpoch(1) && row.previous.is_none()));
    assert_eq!(row(&assignment, 3).1, 2, "of b");
    assert_eq!(assignment.partitions.len(), 5);
}

#[test]
fn the_epoch_goes_above_what_was_taken() {
    let mut cluster = Cluster::of(2);
    cluster.topics = vec![topic("a", 1, 2)];
    cluster.recompute();
    let key = |partition| PartitionKey { topic_id: TopicId([1; 16]), partition: PartitionIndex(partition) };
    // The leader of 0 lost it to someone with epoch 7; that of 1 took itself over at 4.
    cluster.taken.found(key(0), LeaderEpoch(7));
    cluster.taken.led(key(1), LeaderEpoch(4), (BrokerId(1), Incarnation(1)));
    let assignment = cluster.recompute();
    assert_eq!([row(&assignment, 0), row(&assignment, 1)], [(0, 8, None), (1, 4, None)]);
    assert!(cluster.taken.partitions.is_empty(), "what the assignment says need not be kept");
    // A successor of the one that took itself over once more, without having been told so, goes above.
    cluster.taken.led(key(1), LeaderEpoch(6), (BrokerId(1), Incarnation(1)));
    cluster.put(1, 1, BrokerHealth::Dead);
    assert_eq!(row(&cluster.recompute(), 1), (0, 7, None));
    // So does another life of it.
    cluster.taken.found(PartitionKey::of_slot(SlotId(3)), LeaderEpoch(9));
    assert_eq!(cluster.recompute().consumer_groups[3].epoch, LeaderEpoch(10));
}

#[test]
fn reports_of_the_same_epoch_by_two_are_a_conflict() {
    let key = PartitionKey::of_slot(SlotId(0));
    let me = (BrokerId(1), Incarnation(1));
    let mut taken = TakenEpochs::default();
    taken.led(key, LeaderEpoch(4), me);
    assert_eq!(taken.lift(key, LeaderEpoch(1), me), LeaderEpoch(4));
    taken.found(key, LeaderEpoch(4));
    assert_eq!(taken.lift(key, LeaderEpoch(1), me), LeaderEpoch(5));
    taken.found(key, LeaderEpoch(2));
    assert_eq!(taken.lift(key, LeaderEpoch(9), me), LeaderEpoch(9));
}
