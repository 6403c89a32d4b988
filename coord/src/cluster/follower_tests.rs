#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

use kaas_proto::format::assignment::{AssignedPartition, AssignedSlot, BrokerHealth, RegisteredBroker};
use kaas_proto::types::{AssignmentVersion, COORDINATOR_SLOTS, ControllerEpoch, PartitionIndex, SlotId};

use super::super::releases::RELEASE_KEPT;
use super::*;

const ME: BrokerId = BrokerId(1);
const OTHER: BrokerId = BrokerId(2);
const TOPIC: TopicId = TopicId([7; 16]);

fn key(partition: i32) -> PartitionKey {
    PartitionKey { topic_id: TOPIC, partition: PartitionIndex(partition) }
}

/// All slots are with the other broker. Partitions: leader, epoch, previous.
fn assignment(partitions: &[(BrokerId, i32, Option<BrokerId>)]) -> Assignment {
    let broker = |id| RegisteredBroker {
        id,
        incarnation: Incarnation(5),
        rack: None,
        listeners: Vec::new(),
        health: BrokerHealth::Alive,
    };
    let row = |(index, &(leader, epoch, previous)): (usize, &(BrokerId, i32, Option<BrokerId>))| AssignedPartition {
        topic: "t".into(),
        topic_id: TOPIC,
        partition: PartitionIndex(i32::try_from(index).unwrap()),
        leader,
        epoch: LeaderEpoch(epoch),
        previous,
    };
    let slot = |slot| AssignedSlot { slot: SlotId(slot), leader: OTHER, epoch: LeaderEpoch(1), previous: None };
    Assignment {
        controller_epoch: ControllerEpoch(1),
        assignment_version: AssignmentVersion(1),
        controller: ME,
        controller_heartbeat: None,
        brokers: vec![broker(ME), broker(OTHER)],
        partitions: partitions.iter().enumerate().map(row).collect(),
        consumer_groups: (0..COORDINATOR_SLOTS).map(slot).collect(),
    }
}

fn take_over(partition: i32, epoch: i32) -> Step {
    Step::TakeOver { partition: key(partition), topic: "t".into(), epoch: LeaderEpoch(epoch) }
}

fn report(epoch: i32, what: What) -> Report {
    Report { partition: key(0), epoch: LeaderEpoch(epoch), what }
}

fn follower() -> Follower {
    Follower::new(ME, Incarnation(5))
}

fn leading(epoch: i32) -> PartitionChange {
    PartitionChange::Leading { epoch: LeaderEpoch(epoch) }
}

#[test]
fn what_nobody_leads_is_taken_over_at_once_and_once() {
    let (mut follower, now) = (follower(), Instant::now());
    let plan = assignment(&[(ME, 3, None), (OTHER, 1, None)]);
    assert_eq!(follower.adopt(&plan, now), [take_over(0, 3)]);
    assert_eq!(follower.adopt(&plan, now), []);
    assert_eq!(follower.adopt(&assignment(&[(ME, 4, None), (OTHER, 1, None)]), now), [take_over(0, 4)]);
}

#[test]
fn an_assignment_to_another_life_is_not_for_this_one() {
    let mut follower = Follower::new(ME, Incarnation(6));
    assert_eq!(follower.adopt(&assignment(&[(ME, 3, None)]), Instant::now()), []);
}

#[test]
fn slots_come_first() {
    let mut plan = assignment(&[(ME, 1, None)]);
    plan.consumer_groups[9].leader = ME;
    let steps = follower().adopt(&plan, Instant::now());
    let slot = Step::TakeOver { partition: PartitionKey::of_slot(SlotId(9)), topic: "".into(), epoch: LeaderEpoch(1) };
    assert_eq!(steps, [slot, take_over(0, 1)]);
}

#[test]
fn a_handover_is_waited_for_but_not_for_long() {
    let (mut follower, now) = (follower(), Instant::now());
    let plan = assignment(&[(ME, 3, Some(OTHER)), (ME, 5, Some(OTHER))]);
    assert_eq!(follower.adopt(&plan, now), []);
    assert_eq!(follower.released(key(1), LeaderEpoch(4)), Some(take_over(1, 5)));
    assert_eq!(follower.released(key(1), LeaderEpoch(4)), None, "once");
    assert_eq!(follower.next_deadline(), Some(now + HANDOVER_WAIT));
    assert_eq!(follower.clock(now), []);
    assert_eq!(follower.clock(now + HANDOVER_WAIT), [take_over(0, 3)]);
    assert_eq!(follower.next_deadline(), None);
}

#[test]
fn a_release_may_come_before_the_assignment() {
    let (mut follower, now) = (follower(), Instant::now());
    assert_eq!(follower.released(key(0), LeaderEpoch(2)), None);
    assert_eq!(follower.adopt(&assignment(&[(ME, 3, Some(OTHER))]), now), [take_over(0, 3)]);
}

#[test]
fn a_release_outlives_assignments_that_are_older() {
    let (mut follower, now) = (follower(), Instant::now());
    let older = assignment(&[(OTHER, 2, None), (OTHER, 1, None)]);
    assert_eq!(follower.adopt(&older, now), []);
    assert_eq!(follower.released(key(0), LeaderEpoch(2)), None);
    assert_eq!(follower.adopt(&older, now), [], "something else has changed");
    let mine = assignment(&[(ME, 3, Some(OTHER)), (OTHER, 1, None)]);
    assert_eq!(follower.adopt(&mine, now), [take_over(0, 3)]);
    // The next handover is another one.
    follower.adopt(&assignment(&[(OTHER, 4, Some(ME)), (OTHER, 1, None)]), now);
    follower.changed(key(0), &PartitionChange::Relinquished { epoch: LeaderEpoch(3) }, now);
    assert_eq!(follower.adopt(&assignment(&[(ME, 5, Some(OTHER)), (OTHER, 1, None)]), now), []);
    assert_eq!(follower.released(key(0), LeaderEpoch(4)), Some(take_over(0, 5)));
}

#[test]
fn a_release_may_come_before_this_broker_itself_has_let_go() {
    let (mut follower, now) = (follower(), Instant::now());
    follower.adopt(&assignment(&[(ME, 3, None)]), now);
    assert_eq!(follower.released(key(0), LeaderEpoch(2)), None, "that was before this broker");
    assert_eq!(follower.released(key(0), LeaderEpoch(4)), None, "of an assignment that is still to come here");
    follower.adopt(&assignment(&[(OTHER, 4, Some(ME))]), now);
    follower.changed(key(0), &PartitionChange::Relinquished { epoch: LeaderEpoch(3) }, now);
    assert_eq!(follower.adopt(&assignment(&[(ME, 5, Some(OTHER))]), now), [take_over(0, 5)]);
}

#[test]
fn what_another_is_to_lead_is_relinquished_and_reported() {
    let (mut follower, now) = (follower(), Instant::now());
    follower.adopt(&assignment(&[(ME, 3, None)]), now);
    let plan = assignment(&[(OTHER, 4, Some(ME))]);
    assert_eq!(follower.adopt(&plan, now), [Step::Relinquish { partition: key(0) }]);
    assert_eq!(follower.adopt(&plan, now), [], "once");
    assert!(!follower.is_empty());
    let steps = follower.changed(key(0), &PartitionChange::Relinquished { epoch: LeaderEpoch(3) }, now);
    assert_eq!(steps, [Step::Forget { partition: key(0) }, Step::Report(report(3, What::Relinquished))]);
    assert!(follower.is_empty());
}

#[test]
fn what_was_relinquished_is_said_again_to_a_controller_that_comes_soon() {
    let (mut follower, now) = (follower(), Instant::now());
    follower.adopt(&assignment(&[(ME, 3, None)]), now);
    follower.adopt(&assignment(&[(OTHER, 4, Some(ME))]), now);
    follower.changed(key(0), &PartitionChange::Relinquished { epoch: LeaderEpoch(3) }, now);
    assert_eq!(follower.outstanding(now + HANDOVER_WAIT), [report(3, What::Relinquished)]);
    assert_eq!(follower.outstanding(now + RELEASE_KEPT), [], "whoever waited for it has begun");
    // It is to lead it again: now that would be wrong.
    follower.adopt(&assignment(&[(ME, 5, Some(OTHER))]), now);
    assert_eq!(follower.outstanding(now), []);
}

#[test]
fn what_was_only_waited_for_is_let_go_at_once() {
    let (mut follower, now) = (follower(), Instant::now());
    follower.adopt(&assignment(&[(ME, 3, Some(OTHER))]), now);
    let steps = follower.adopt(&assignment(&[(OTHER, 4, Some(ME))]), now);
    assert_eq!(steps, [Step::Forget { partition: key(0) }, Step::Report(report(3, What::Relinquished))]);
}

#[test]
fn a_partition_that_comes_back_while_it_is_relinquished_is_taken_over_again() {
    let (mut follower, now) = (follower(), Instant::now());
    follower.adopt(&assignment(&[(ME, 3, None)]), now);
    follower.adopt(&assignment(&[(OTHER, 4, Some(ME))]), now);
    assert_eq!(follower.adopt(&assignment(&[(ME, 5, Some(OTHER))]), now), [take_over(0, 5)]);
    let late = PartitionChange::Relinquished { epoch: LeaderEpoch(3) };
    assert_eq!(follower.changed(key(0), &late, now), [], "that was for the older command");
    assert!(!follower.is_empty());
}

#[test]
fn epochs_that_the_controller_can_not_know_are_reported_until_it_does() {
    let (mut follower, now) = (follower(), Instant::now());
    follower.adopt(&assignment(&[(ME, 3, None)]), now);
    assert_eq!(follower.changed(key(0), &leading(3), now), []);
    assert_eq!(follower.outstanding(now), []);
    assert_eq!(follower.changed(key(0), &leading(5), now), [Step::Report(report(5, What::Leads))]);
    assert_eq!(follower.outstanding(now), [report(5, What::Leads)]);
    assert_eq!(follower.adopt(&assignment(&[(ME, 5, None)]), now), [take_over(0, 5)], "the shard rests: it does that");
    assert_eq!(follower.outstanding(now), []);

    let superseded = PartitionChange::Superseded { epoch: LeaderEpoch(9), by: "2".into() };
    assert_eq!(follower.changed(key(0), &superseded, now), [Step::Report(report(9, What::Superseded))]);
    assert_eq!(follower.led(key(0)), None);
    assert_eq!(follower.led_of(TOPIC).count(), 0, "no configuration is sent to what is superseded");
    assert_eq!(follower.adopt(&assignment(&[(ME, 10, None)]), now), [take_over(0, 10)]);
    assert_eq!(follower.outstanding(now), []);
    assert_eq!(follower.led_of(TOPIC).collect::<Vec<_>>(), [(key(0), LeaderEpoch(10))]);
}

#[test]
fn a_topic_that_is_gone_is_abandoned_once() {
    let (mut follower, now) = (follower(), Instant::now());
    let plan = assignment(&[(ME, 3, None), (OTHER, 1, None)]);
    follower.adopt(&plan, now);
    assert_eq!(follower.delete_topic(TOPIC), [Step::Abandon { topic_id: TOPIC }]);
    assert_eq!(follower.delete_topic(TOPIC), []);
    assert_eq!(follower.adopt(&plan, now), [], "an assignment that has not heard of it yet");
    assert_eq!(follower.adopt(&assignment(&[]), now), [], "abandoned already");
    assert!(!follower.is_deleted(TOPIC), "forgotten once no assignment names it");
}

#[test]
fn a_topic_that_is_in_no_assignment_any_more_is_abandoned_by_all() {
    let (mut follower, now) = (follower(), Instant::now());
    follower.adopt(&assignment(&[(OTHER, 1, None)]), now);
    assert_eq!(follower.adopt(&assignment(&[]), now), [Step::Abandon { topic_id: TOPIC }]);
    assert_eq!(follower.delete_topic(TOPIC), [], "it is not known any more");
}

#[test]
fn slots_that_were_taken_over_hear_once_which_topics_there_are() {
    let (mut follower, now) = (follower(), Instant::now());
    let slot = PartitionKey::of_slot(SlotId(3));
    let mut plan = assignment(&[(OTHER, 1, None)]);
    plan.consumer_groups[3].leader = ME;
    follower.adopt(&plan, now);
    assert_eq!(follower.next_deadline(), None);
    follower.changed(slot, &leading(1), now);
    let due = now + GONE_TOPIC_AGE;
    assert_eq!(follower.next_deadline(), Some(due));
    assert_eq!(follower.clock(due), [Step::RetainTopics { topics: [TOPIC].into() }]);
    assert_eq!((follower.clock(due), follower.next_deadline()), (vec![], None), "once");
    // It leads anew, and the topic is known to be gone before an assignment says so.
    follower.changed(slot, &leading(2), now);
    follower.delete_topic(TOPIC);
    assert_eq!(follower.clock(due), [Step::RetainTopics { topics: [].into() }]);
}
