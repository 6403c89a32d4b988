//! SyncGroup, and what a coordinator's end does.

use std::time::Duration;

use bytes::Bytes;

use super::harness::{Answer, REBALANCE, SESSION, World, consumer, static_consumer};
use crate::group::effect::Synced;
use crate::group::error::GroupError;
use crate::group::ids::MemberId;
use crate::group::join::JoinRequest;
use crate::group::phase::GroupState;
use crate::group::state::Group;
use crate::group::sync::SyncRequest;
use kaas_proto::types::GenerationId;

const SECOND: Duration = Duration::from_secs(1);

/// Two consumers in CompletingRebalance of generation 1.
fn completing() -> (World, Vec<MemberId>) {
    let mut world = World::new();
    let waiters = [world.join(consumer("a")), world.join(consumer("b"))];
    world.pass(2 * world.config.initial_rebalance_delay);
    let ids = waiters.map(|waiter| world.joined(waiter).member_id).to_vec();
    assert_eq!(world.state(), GroupState::CompletingRebalance);
    (world, ids)
}

fn work(ids: &[MemberId]) -> Vec<(MemberId, String)> {
    ids.iter().map(|id| (id.clone(), format!("work of {id}"))).collect()
}

#[test]
fn nobody_is_answered_before_the_assignment_is_durable() {
    let (mut world, ids) = completing();
    world.writes = false;
    let follower = world.sync(&ids[1], &[]);
    let leader = world.sync(&ids[0], &work(&ids));
    assert!(world.is_parked(follower) && world.is_parked(leader));
    assert_eq!(world.state(), GroupState::CompletingRebalance);
    assert_eq!(world.heartbeat(&ids[1]), Ok(()));

    world.finish_writes(Ok(()));
    assert_eq!(world.state(), GroupState::Stable);
    assert_eq!(world.synced(leader), Ok(Bytes::from(format!("work of {}", ids[0]))));
    assert_eq!(world.synced(follower), Ok(Bytes::from(format!("work of {}", ids[1]))));
    let durable = world.durable.clone().unwrap();
    assert_eq!((durable.generation, durable.members.len(), durable.leader), (GenerationId(1), 2, Some(ids[0].clone())));
    // A follower that asks later gets it at once.
    let late = world.sync(&ids[1], &[]);
    assert_eq!(world.synced(late), Ok(Bytes::from(format!("work of {}", ids[1]))));
}

#[test]
fn the_answer_names_the_protocol() {
    let (mut world, ids) = completing();
    let leader = world.sync(&ids[0], &work(&ids));
    let expected = Synced {
        protocol_type: Some("consumer".into()),
        protocol: Some("range".into()),
        assignment: Bytes::from(format!("work of {}", ids[0])),
    };
    assert_eq!(world.answered(leader), Some(&Answer::Sync(Ok(expected))));
}

#[test]
fn d39_consumers_without_work_get_a_valid_empty_assignment() {
    let (mut world, ids) = completing();
    // The leader gives itself zero bytes and leaves b out.
    let leader = world.sync(&ids[0], &[(ids[0].clone(), String::new())]);
    let follower = world.sync(&ids[1], &[]);
    for waiter in [leader, follower] {
        assert_eq!(world.synced(waiter), Ok(Bytes::from_static(b"\0\0\0\0\0\0\xff\xff\xff\xff")));
    }
    // Bytes of other protocol types stay what they are.
    let mut world = World::new();
    let connect = JoinRequest { protocol_type: "connect".into(), ..consumer("c") };
    let joined = world.join(connect);
    world.pass(SECOND * 3);
    let id = world.joined(joined).member_id;
    let request = SyncRequest { protocol_type: None, ..world.sync_request(&id, &[]) };
    let synced = world.sync_with(&request);
    assert_eq!(world.synced(synced), Ok(Bytes::new()));
}

#[test]
fn requests_of_another_generation_or_protocol_are_refused() {
    let (mut world, ids) = completing();
    let good = world.sync_request(&ids[0], &work(&ids));
    for (request, error) in [
        (SyncRequest { generation: GenerationId(0), ..good.clone() }, GroupError::IllegalGeneration),
        (SyncRequest { generation: GenerationId(2), ..good.clone() }, GroupError::IllegalGeneration),
        (SyncRequest { member_id: "stranger".into(), ..good.clone() }, GroupError::UnknownMemberId),
        (SyncRequest { instance_id: Some("i".into()), ..good.clone() }, GroupError::UnknownMemberId),
        (SyncRequest { protocol_type: Some("connect".into()), ..good.clone() }, GroupError::InconsistentGroupProtocol),
        (SyncRequest { protocol: Some("sticky".into()), ..good.clone() }, GroupError::InconsistentGroupProtocol),
    ] {
        let refused = world.sync_with(&request);
        assert_eq!(world.synced(refused), Err(error), "{request:?}");
    }
    // Versions below 5 name neither.
    let old = world.sync_with(&SyncRequest { protocol_type: None, protocol: None, ..good });
    assert!(world.synced(old).is_ok());
}

#[test]
fn w50_the_death_of_the_leader_does_not_strand_followers() {
    let (mut world, ids) = completing();
    let follower = world.sync(&ids[1], &[]);
    world.pass(SESSION);
    assert_eq!(world.synced(follower), Err(GroupError::RebalanceInProgress));
    assert_eq!((world.state(), world.ids()), (GroupState::PreparingRebalance, vec![ids[1].clone()]));
    let again = world.join(consumer("b").with_id(&ids[1]));
    assert_eq!(world.joined(again).leader, ids[1], "the survivor leads");
}

#[test]
fn w50_parked_syncers_do_not_expire() {
    let mut world = World::new();
    let leader = JoinRequest { session_timeout: 5 * SESSION, ..consumer("a") };
    let waiters = [world.join(leader), world.join(consumer("b"))];
    world.pass(2 * world.config.initial_rebalance_delay);
    let ids = waiters.map(|waiter| world.joined(waiter).member_id);
    let follower = world.sync(&ids[1], &[]);
    world.pass(4 * SESSION);
    assert!(world.is_parked(follower));
    world.sync(&ids[0], &work(&ids));
    assert!(world.synced(follower).is_ok());
    assert_eq!(world.heartbeat(&ids[1]), Ok(()));
}

#[test]
fn members_that_never_ask_for_their_assignment_are_removed() {
    let (mut world, ids) = completing();
    let leader = world.sync(&ids[0], &work(&ids));
    assert!(world.synced(leader).is_ok());
    for _ in 0..REBALANCE.as_secs() - 1 {
        world.pass(SECOND);
        assert_eq!((world.heartbeat(&ids[0]), world.heartbeat(&ids[1])), (Ok(()), Ok(())));
    }
    world.pass(SECOND);
    assert_eq!(world.heartbeat(&ids[0]), Err(GroupError::RebalanceInProgress));
    assert_eq!(world.heartbeat(&ids[1]), Err(GroupError::UnknownMemberId));
}

#[test]
fn a_join_during_completion_starts_over() {
    let (mut world, ids) = completing();
    let follower = world.sync(&ids[1], &[]);
    let c = world.join(consumer("c"));
    assert_eq!(world.synced(follower), Err(GroupError::RebalanceInProgress));
    let late = world.sync(&ids[0], &work(&ids));
    assert_eq!(world.synced(late), Err(GroupError::RebalanceInProgress));
    world.join(consumer("a").with_id(&ids[0]));
    world.join(consumer("b").with_id(&ids[1]));
    assert_eq!(world.joined(c).generation, GenerationId(2));
}

#[test]
fn a_write_that_ends_after_the_round_changes_nothing() {
    let (mut world, ids) = completing();
    world.writes = false;
    let leader = world.sync(&ids[0], &work(&ids));
    let c = world.join(consumer("c"));
    assert_eq!(world.synced(leader), Err(GroupError::RebalanceInProgress));
    world.finish_writes(Ok(()));
    assert_eq!(world.state(), GroupState::PreparingRebalance);
    world.join(consumer("a").with_id(&ids[0]));
    world.join(consumer("b").with_id(&ids[1]));
    assert_eq!(world.joined(c).generation, GenerationId(2));
    assert_eq!(world.group.members()[&ids[0]].profile.assignment, Bytes::new());
}

#[test]
fn w7_a_failed_write_is_not_answered_as_success() {
    let (mut world, ids) = completing();
    world.writes = false;
    let (leader, follower) = (world.sync(&ids[0], &work(&ids)), world.sync(&ids[1], &[]));
    world.finish_writes(Err(GroupError::CoordinatorNotAvailable));
    for waiter in [leader, follower] {
        assert_eq!(world.synced(waiter), Err(GroupError::CoordinatorNotAvailable));
    }
    assert_eq!(world.state(), GroupState::PreparingRebalance);
}

#[test]
fn a_repeated_sync_replaces_the_waiting_one() {
    let (mut world, ids) = completing();
    let (former, latter) = (world.sync(&ids[1], &[]), world.sync(&ids[1], &[]));
    assert_eq!(world.synced(former), Err(GroupError::RebalanceInProgress));
    world.writes = false;
    let leader = world.sync(&ids[0], &work(&ids));
    // The leader repeats itself while the first one is on its way: one write, one answer for each.
    let leader_again = world.sync(&ids[0], &work(&ids));
    assert_eq!(world.stores.len(), 1);
    assert_eq!(world.synced(leader), Err(GroupError::RebalanceInProgress));
    world.finish_writes(Ok(()));
    assert!(world.synced(latter).is_ok() && world.synced(leader_again).is_ok());
}

#[test]
fn d40_a_coordinator_that_is_deposed_answers_everybody_at_once() {
    let (mut world, ids) = World::stable(&[consumer("a"), consumer("b")]);
    let joiner = world.join(consumer("a").with_id(&ids[0]));
    world.step(|group, step| group.end(step, GroupError::NotCoordinator));
    assert_eq!(world.join_refused(joiner).error, GroupError::NotCoordinator);
    assert_eq!(world.group.alarm(), None);

    let (mut world, ids) = completing();
    let syncer = world.sync(&ids[1], &[]);
    world.step(|group, step| group.end(step, GroupError::NotCoordinator));
    assert_eq!(world.synced(syncer), Err(GroupError::NotCoordinator));
    let after = world.join(consumer("c"));
    assert_eq!(world.join_refused(after).error, GroupError::CoordinatorNotAvailable);
}

#[test]
fn c23_members_survive_a_change_of_the_coordinator() {
    let requests = [
        consumer("a").offering(&[("sticky", "x"), ("range", "y")]),
        static_consumer("i").offering(&[("sticky", "x"), ("range", "y")]),
    ];
    let (mut world, ids) = World::stable(&requests);
    let durable = world.durable.clone().unwrap();
    world.now.monotonic.0 += 3_600_000_000_000;
    world.group = Group::restore("group".into(), &durable, world.now);
    world.check_invariants();
    assert_eq!((world.state(), world.generation()), (GroupState::Stable, GenerationId(1)));
    assert_eq!(world.group.leader(), Some(&ids[0]));
    assert_eq!(world.group.since(), durable.since);
    // Nobody notices: heartbeats, commits, a repeated sync, an unchanged join.
    for id in &ids {
        assert_eq!(world.heartbeat(id), Ok(()));
        let again = world.sync(id, &[]);
        assert_eq!(world.synced(again), Ok(Bytes::from(format!("work of {id}"))));
    }
    let again = world.join(requests[1].clone().with_id(&ids[1]));
    assert_eq!(world.joined(again).generation, GenerationId(1));
    // The generation goes on from where it was, and sessions count from the takeover.
    world.pass(SESSION - SECOND);
    assert_eq!(world.ids().len(), 2);
    world.pass(SECOND);
    assert_eq!((world.state(), world.generation()), (GroupState::Empty, GenerationId(2)));
}
