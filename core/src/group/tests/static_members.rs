//! Static membership: KIP-345 and KIP-814.

use std::time::Duration;

use super::harness::{REBALANCE, SESSION, World, consumer, static_consumer};
use crate::group::error::GroupError;
use crate::group::join::JoinRequest;
use crate::group::leave::Sender;
use crate::group::phase::GroupState;
use kaas_proto::types::GenerationId;

const SECOND: Duration = Duration::from_secs(1);

#[test]
fn d38_static_members_skip_the_handshake() {
    let mut world = World::new();
    let waiter = world.join(JoinRequest { requires_member_id: true, ..static_consumer("pod-0") });
    world.pass(3 * SECOND);
    assert!(world.joined(waiter).member_id.as_str().starts_with("pod-0-"));
}

#[test]
fn a_restarted_follower_takes_its_place_without_a_rebalance() {
    let (mut world, ids) = World::stable(&[static_consumer("i"), static_consumer("j")]);
    world.writes = false;
    let back = world.join(static_consumer("j").offering(&[("range", "nothing owned any more")]));
    assert!(world.is_parked(back), "not before the new id is durable");
    world.finish_writes(Ok(()));
    let joined = world.joined(back);
    assert_ne!(joined.member_id, ids[1]);
    assert_eq!((joined.generation, &joined.leader), (GenerationId(1), &ids[0]));
    assert_eq!((joined.members.len(), joined.skip_assignment), (0, false));
    assert_eq!(world.state(), GroupState::Stable);
    let durable = world.durable.clone().unwrap();
    assert!(durable.members.iter().any(|member| member.id == joined.member_id));

    let synced = world.sync(&joined.member_id, &[]);
    assert_eq!(world.synced(synced).unwrap(), format!("work of {}", ids[1]), "the work of its former incarnation");
    // The former incarnation is fenced wherever it shows up.
    let former = Sender { instance_id: Some("j".into()), ..world.sender(&ids[1]) };
    assert_eq!(world.step(|group, step| group.heartbeat(step, &former)), Err(GroupError::FencedInstanceId));
    assert_eq!(world.commit(&former), Err(GroupError::FencedInstanceId));
    let rejoin = world.join(static_consumer("j").with_id(&ids[1]));
    assert_eq!(world.join_refused(rejoin).error, GroupError::FencedInstanceId);
}

#[test]
fn a_restarted_leader_is_told_to_skip_the_assignment_or_that_another_leads() {
    for can_skip_assignment in [true, false] {
        let (mut world, ids) = World::stable(&[static_consumer("i"), static_consumer("j")]);
        let back = world.join(JoinRequest { can_skip_assignment, ..static_consumer("i") });
        let joined = world.joined(back);
        assert_eq!(world.state(), GroupState::Stable);
        assert_eq!(world.group.leader(), Some(&joined.member_id));
        if can_skip_assignment {
            assert_eq!((&joined.leader, joined.skip_assignment), (&joined.member_id, true));
            assert_eq!(joined.members.len(), 2, "it has to watch their topics");
        } else {
            assert_eq!((joined.leader, joined.skip_assignment), (ids[0].clone(), false));
            assert_eq!(joined.members.len(), 0);
        }
    }
}

#[test]
fn an_id_that_could_not_be_stored_is_not_given_out() {
    let (mut world, _) = World::stable(&[static_consumer("i")]);
    world.writes = false;
    let back = world.join(static_consumer("i"));
    world.finish_writes(Err(GroupError::CoordinatorNotAvailable));
    assert_eq!(world.join_refused(back).error, GroupError::CoordinatorNotAvailable);
    // It tries again as a static member does, without an id.
    let again = world.join(static_consumer("i"));
    world.finish_writes(Ok(()));
    assert_eq!(world.joined(again).generation, GenerationId(1));
}

#[test]
fn another_selected_protocol_does_rebalance() {
    let both = |instance| static_consumer(instance).offering(&[("sticky", "s"), ("range", "s")]);
    let (mut world, _) = World::stable(&[both("i"), both("j")]);
    let back = world.join(static_consumer("j"));
    assert!(world.is_parked(back), "sticky is no longer offered by all");
    assert_eq!(world.state(), GroupState::PreparingRebalance);
}

#[test]
fn a_known_static_member_joins_like_any_other() {
    let (mut world, ids) = World::stable(&[static_consumer("i"), static_consumer("j")]);
    let unchanged = world.join(static_consumer("j").with_id(&ids[1]));
    assert_eq!(world.joined(unchanged).generation, GenerationId(1));
    let changed = world.join(static_consumer("j").with_id(&ids[1]).offering(&[("range", "more topics")]));
    assert!(world.is_parked(changed));
    let unknown = world.join(static_consumer("k").with_id(&ids[1]));
    assert_eq!(world.join_refused(unknown).error, GroupError::UnknownMemberId);
}

#[test]
fn a_duplicate_instance_fences_the_request_that_waits() {
    let (mut world, ids) = World::stable(&[static_consumer("i"), consumer("b")]);
    let first = world.join(static_consumer("i").with_id(&ids[0]));
    assert!(world.is_parked(first));
    let second = world.join(static_consumer("i"));
    let refused = world.join_refused(first);
    assert_eq!((refused.error, refused.member_id), (GroupError::FencedInstanceId, Some(ids[0].clone())));
    world.join(consumer("b").with_id(&ids[1]));
    let joined = world.joined(second);
    assert_eq!((joined.leader, joined.members.len()), (joined.member_id, 2), "the leadership goes with the instance");
}

#[test]
fn a_replacement_while_completing_starts_over_and_fences_the_waiting_sync() {
    let mut world = World::new();
    let waiters = [world.join(consumer("a")), world.join(static_consumer("i"))];
    world.pass(6 * SECOND);
    let ids = waiters.map(|waiter| world.joined(waiter).member_id);
    let syncing = world.sync(&ids[1], &[]);
    let back = world.join(static_consumer("i"));
    assert_eq!(world.synced(syncing), Err(GroupError::FencedInstanceId));
    assert_eq!(world.state(), GroupState::PreparingRebalance);
    world.join(consumer("a").with_id(&ids[0]));
    assert_eq!(world.joined(back).generation, GenerationId(2));
}

#[test]
fn an_absent_static_member_keeps_its_place_for_its_session() {
    let long = JoinRequest { session_timeout: 3 * REBALANCE, ..static_consumer("i") };
    let (mut world, ids) = World::stable(&[consumer("a"), long]);
    let a = world.join(consumer("a").with_id(&ids[0]));
    world.pass(REBALANCE);
    assert_eq!(world.joined(a).members.len(), 2, "its partitions stay where they are");
    world.sync(&ids[0], &[(ids[1].clone(), "kept".into())]);
    assert_eq!(world.state(), GroupState::Stable);
    for _ in 0..2 * REBALANCE.as_secs() {
        assert_eq!(world.heartbeat(&ids[0]), Ok(()));
        world.pass(SECOND);
    }
    assert_eq!(world.heartbeat(&ids[0]), Err(GroupError::RebalanceInProgress), "its session has ended");
}

#[test]
fn a_round_that_no_static_member_joins_waits_for_their_sessions() {
    let long = |instance| JoinRequest { session_timeout: 3 * REBALANCE, ..static_consumer(instance) };
    let (mut world, ids) = World::stable(&[consumer("a"), long("i"), long("j")]);
    world.leave(&ids[0]).unwrap();
    world.pass(REBALANCE + SECOND);
    assert_eq!((world.state(), world.ids().len()), (GroupState::PreparingRebalance, 2));
    let back = world.join(long("j"));
    world.pass(REBALANCE);
    let joined = world.joined(back);
    assert_eq!((joined.leader, joined.members.len()), (joined.member_id, 2), "who is there leads");
    world.pass(SESSION);
}
