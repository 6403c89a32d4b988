//! LeaveGroup, Heartbeat, the fence of OffsetCommit, session timeouts.

use std::time::Duration;

use super::harness::{REBALANCE, SESSION, World, consumer, static_consumer};
use crate::group::error::GroupError;
use crate::group::leave::{Leaving, Sender};
use crate::group::phase::GroupState;
use kaas_proto::types::GenerationId;

const SECOND: Duration = Duration::from_secs(1);

#[test]
fn a_member_that_is_not_heard_of_is_removed() {
    let (mut world, ids) = World::stable(&[consumer("a"), consumer("b")]);
    for _ in 0..SESSION.as_secs() {
        assert_eq!(world.heartbeat(&ids[0]), Ok(()));
        world.pass(SECOND);
    }
    assert_eq!(world.heartbeat(&ids[0]), Err(GroupError::RebalanceInProgress));
    assert_eq!(world.ids(), [ids[0].clone()]);
    assert_eq!(world.counters.expired_members, 1);
}

#[test]
fn commits_and_syncs_are_signs_of_life() {
    let (mut world, ids) = World::stable(&[consumer("a")]);
    for round in 0..3 * SESSION.as_secs() {
        if round % 2 == 0 {
            let sender = world.sender(&ids[0]);
            assert_eq!(world.commit(&sender), Ok(()));
        } else {
            world.sync(&ids[0], &[]);
        }
        world.pass(SECOND);
    }
    assert_eq!(world.state(), GroupState::Stable);
}

#[test]
fn w50_a_leave_during_the_round_lets_it_go_on() {
    let (mut world, ids) = World::stable(&[consumer("a"), consumer("b"), consumer("c")]);
    let waiters = [0, 1].map(|i| world.join(consumer("x").with_id(&ids[i])));
    assert!(world.is_parked(waiters[0]));
    assert_eq!(world.leave(&ids[2]), Ok(()));
    assert_eq!(world.joined(waiters[0]).members.len(), 2);
    assert_eq!(world.joined(waiters[1]).generation, GenerationId(2));
}

#[test]
fn a_member_that_leaves_while_it_waits_is_answered() {
    let (mut world, ids) = World::stable(&[consumer("a"), consumer("b")]);
    let parked = world.join(consumer("a").with_id(&ids[0]));
    assert_eq!(world.leave(&ids[0]), Ok(()));
    assert_eq!(world.join_refused(parked).error, GroupError::UnknownMemberId);
    assert_eq!(world.group.leader(), Some(&ids[1]), "the leadership goes on");
}

#[test]
fn the_last_one_empties_the_group_and_that_is_stored() {
    let (mut world, ids) = World::stable(&[consumer("a")]);
    world.pass(SECOND);
    assert_eq!(world.leave(&ids[0]), Ok(()));
    assert_eq!((world.state(), world.generation()), (GroupState::Empty, GenerationId(2)));
    assert!(world.group.is_unused());
    let durable = world.durable.clone().unwrap();
    assert_eq!((durable.generation, durable.members.len(), durable.since), (GenerationId(2), 0, world.now.wall));
    assert_eq!(durable.protocol_type, Some("consumer".into()), "remembered, as Kafka does");
    assert_eq!(world.group.next_deadline(), None);
    // The next generation is one more, and another protocol type may begin it.
    let other = crate::group::join::JoinRequest { protocol_type: "connect".into(), ..consumer("b") };
    let joined = world.join(other);
    world.pass(3 * SECOND);
    assert_eq!(world.joined(joined).generation, GenerationId(3));
}

#[test]
fn several_members_leave_with_one_request() {
    let (mut world, ids) = World::stable(&[consumer("a"), static_consumer("i"), static_consumer("j")]);
    let leaving = |member: Option<&str>, instance: Option<&str>| Leaving {
        member_id: member.map(Into::into),
        instance_id: instance.map(Into::into),
    };
    let request = [
        leaving(Some(ids[0].as_str()), None),
        leaving(None, Some("i")),
        leaving(Some("somebody else"), Some("j")),
        leaving(Some("stranger"), None),
        leaving(None, Some("unknown")),
        leaving(None, None),
    ];
    let answers = world.step(|group, step| group.leave(step, &request));
    let (unknown, fenced) = (Err(GroupError::UnknownMemberId), Err(GroupError::FencedInstanceId));
    assert_eq!(answers, [Ok(()), Ok(()), fenced, unknown, unknown, unknown]);
    assert_eq!((world.ids(), world.state()), (vec![ids[2].clone()], GroupState::PreparingRebalance));
}

#[test]
fn heartbeats_are_fenced() {
    let (mut world, ids) = World::stable(&[consumer("a"), static_consumer("i")]);
    let good = Sender { instance_id: Some("i".into()), ..world.sender(&ids[1]) };
    for (sender, expected) in [
        (good.clone(), Ok(())),
        (Sender { member_id: Some(ids[0].clone()), ..good.clone() }, Err(GroupError::FencedInstanceId)),
        (Sender { member_id: None, ..good.clone() }, Err(GroupError::FencedInstanceId)),
        (Sender { instance_id: Some("j".into()), ..good.clone() }, Err(GroupError::UnknownMemberId)),
        (Sender { member_id: Some("b".into()), instance_id: None, ..good.clone() }, Err(GroupError::UnknownMemberId)),
        (Sender { generation: GenerationId(0), ..good.clone() }, Err(GroupError::IllegalGeneration)),
        (Sender { generation: GenerationId(-1), ..good.clone() }, Err(GroupError::IllegalGeneration)),
    ] {
        assert_eq!(world.step(|group, step| group.heartbeat(step, &sender)), expected, "{sender:?}");
    }
}

#[test]
fn d37_commits_are_fenced() {
    let simple = Sender { member_id: None, instance_id: None, generation: GenerationId(-1) };
    let mut empty = World::new();
    assert_eq!(empty.commit(&simple), Ok(()));
    let ghost = Sender { member_id: Some("ghost".into()), instance_id: None, generation: GenerationId(3) };
    assert_eq!(empty.commit(&ghost), Err(GroupError::UnknownMemberId));

    let (mut world, ids) = World::stable(&[consumer("a"), static_consumer("i")]);
    let good = world.sender(&ids[0]);
    let of_instance = Sender { instance_id: Some("i".into()), ..world.sender(&ids[1]) };
    for (sender, expected) in [
        (good.clone(), Ok(())),
        (of_instance.clone(), Ok(())),
        (simple.clone(), Err(GroupError::UnknownMemberId)),
        (ghost.clone(), Err(GroupError::UnknownMemberId)),
        (Sender { generation: GenerationId(0), ..good.clone() }, Err(GroupError::IllegalGeneration)),
        (Sender { generation: GenerationId(-1), ..good.clone() }, Err(GroupError::IllegalGeneration)),
        (Sender { member_id: Some("old".into()), ..of_instance.clone() }, Err(GroupError::FencedInstanceId)),
    ] {
        assert_eq!(world.commit(&sender), expected, "{sender:?}");
    }

    // While members are called to join again they may still commit what they have; once they know the new generation
    // but not their assignment, not.
    let waiting = world.join(consumer("a").with_id(&ids[0]));
    assert_eq!(world.commit(&good), Ok(()));
    world.join(static_consumer("i").with_id(&ids[1]));
    assert_eq!(world.joined(waiting).generation, GenerationId(2));
    assert_eq!(world.commit(&good), Err(GroupError::IllegalGeneration));
    let current = world.sender(&ids[0]);
    assert_eq!(world.commit(&current), Err(GroupError::RebalanceInProgress));
}

#[test]
fn everybody_gone_during_a_round_ends_in_an_empty_group() {
    let (mut world, ids) = World::stable(&[consumer("a"), consumer("b")]);
    world.join(consumer("a").with_id(&ids[0]));
    world.leave(&ids[0]).unwrap();
    world.pass(REBALANCE);
    assert_eq!(world.state(), GroupState::Empty);
}
