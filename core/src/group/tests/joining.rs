//! JoinGroup of dynamic members.

use std::time::Duration;

use super::harness::{REBALANCE, SESSION, World, consumer};
use crate::group::config::{GroupConfig, NEW_MEMBER_JOIN_TIMEOUT};
use crate::group::error::GroupError;
use crate::group::ids::MemberId;
use crate::group::join::JoinRequest;
use crate::group::phase::GroupState;
use kaas_proto::types::GenerationId;

const SECOND: Duration = Duration::from_secs(1);
const DELAY: Duration = Duration::from_secs(3);

fn with_handshake(name: &str) -> JoinRequest {
    JoinRequest { requires_member_id: true, ..consumer(name) }
}

#[test]
fn d38_first_contact_needs_a_member_id_from_version_4_on() {
    let mut world = World::new();
    let first = world.join(with_handshake("app"));
    let refused = world.join_refused(first);
    assert_eq!(refused.error, GroupError::MemberIdRequired);
    let id = refused.member_id.unwrap();
    assert!(id.as_str().starts_with("app-"), "{id}");
    assert_eq!(world.state(), GroupState::Empty);
    assert!(!world.group.is_unused(), "a member is about to come");

    let second = world.join(with_handshake("app").with_id(&id));
    assert!(world.is_parked(second));
    world.pass(DELAY);
    let joined = world.joined(second);
    assert_eq!((joined.member_id, joined.generation), (id.clone(), GenerationId(1)));
    assert_eq!(joined.leader, id);
}

#[test]
fn w50_a_joiner_that_crashes_after_the_handshake_leaves_no_ghost() {
    let (mut world, ids) = World::stable(&[consumer("a")]);
    let crashed = world.join(with_handshake("b"));
    assert_eq!(world.join_refused(crashed).error, GroupError::MemberIdRequired);
    assert_eq!(world.state(), GroupState::Stable, "an id alone disturbs nobody");

    // A rebalance waits for the one that was promised a place, but not longer than its session.
    let leader = world.join(consumer("a").with_id(&ids[0]));
    assert!(world.is_parked(leader));
    world.pass(SESSION - SECOND);
    assert!(world.is_parked(leader));
    world.pass(SECOND);
    assert_eq!(world.joined(leader).members.len(), 1);
}

#[test]
fn a_pending_id_can_leave_and_lets_the_round_go_on() {
    let (mut world, ids) = World::stable(&[consumer("a")]);
    let pending = world.join(with_handshake("b"));
    let id = world.join_refused(pending).member_id.unwrap();
    let leader = world.join(consumer("a").with_id(&ids[0]));
    assert!(world.is_parked(leader));
    assert_eq!(world.leave(&id), Ok(()));
    assert_eq!(world.joined(leader).members.len(), 1);
}

#[test]
fn d38_the_initial_delay_is_for_an_empty_group_only_and_grows_while_members_come() {
    let mut world = World::new();
    let a = world.join(consumer("a"));
    world.pass(2 * SECOND);
    let b = world.join(consumer("b"));
    world.pass(SECOND);
    assert!(world.is_parked(a), "b has put the start off");
    world.pass(DELAY);
    let (a, b) = (world.joined(a), world.joined(b));
    assert_eq!((a.generation, b.generation), (GenerationId(1), GenerationId(1)));
    assert_eq!(a.leader, a.member_id);
    assert_eq!((a.members.len(), b.members.len()), (2, 0), "only the leader hears of the members");

    world.sync(&a.member_id, &[]);
    world.sync(&b.member_id, &[]);
    let c = world.join(consumer("c"));
    for (name, joined) in [("a", &a), ("b", &b)] {
        assert_eq!(world.heartbeat(&joined.member_id), Err(GroupError::RebalanceInProgress));
        world.join(consumer(name).with_id(&joined.member_id));
    }
    assert_eq!(world.joined(c).generation, GenerationId(2), "at once when all are there");
}

#[test]
fn the_initial_delay_never_exceeds_the_rebalance_timeout() {
    let mut world = World::new();
    let first = world.join(consumer("a"));
    let mut waited = Duration::ZERO;
    while world.is_parked(first) {
        world.join(consumer("more"));
        world.pass(SECOND);
        waited += SECOND;
        assert!(waited <= REBALANCE);
    }
    assert_eq!(waited, REBALANCE);
}

#[test]
fn a_delay_of_zero_starts_with_the_next_tick() {
    let mut world = World::new();
    world.config.initial_rebalance_delay = Duration::ZERO;
    let a = world.join(consumer("a"));
    world.pass(Duration::ZERO);
    assert_eq!(world.joined(a).generation, GenerationId(1));
}

#[test]
fn w50_parked_joiners_do_not_expire() {
    let (mut world, ids) = World::stable(&[consumer("a"), consumer("b")]);
    let a = world.join(consumer("a").with_id(&ids[0]));
    // b is alive but busy: it sends heartbeats, and joins after many sessions of a.
    for _ in 0..REBALANCE.as_secs() - 1 {
        world.pass(SECOND);
        assert_eq!(world.heartbeat(&ids[1]), Err(GroupError::RebalanceInProgress));
    }
    let b = world.join(consumer("b").with_id(&ids[1]));
    assert_eq!(world.joined(a).members.len(), 2);
    assert_eq!(world.joined(b).generation, GenerationId(2));
    assert_eq!(world.heartbeat(&ids[0]), Ok(()), "its session began anew with the answer");
}

#[test]
fn the_rebalance_timeout_is_the_longest_of_all_members() {
    let patient = JoinRequest { rebalance_timeout: 3 * REBALANCE, session_timeout: 6 * REBALANCE, ..consumer("b") };
    let (mut world, ids) = World::stable(&[consumer("a"), patient]);
    let a = world.join(consumer("a").with_id(&ids[0]));
    world.pass(3 * REBALANCE - SECOND);
    assert!(world.is_parked(a));
    world.pass(SECOND);
    let joined = world.joined(a);
    assert_eq!(joined.members.len(), 1, "b did not come back");
    assert_eq!(world.counters.expired_members, 1);
    assert_eq!(world.heartbeat(&ids[1]), Err(GroupError::UnknownMemberId));
}

#[test]
fn w50_a_repeated_join_replaces_the_waiting_one() {
    let (mut world, ids) = World::stable(&[consumer("a"), consumer("b")]);
    let former = world.join(consumer("a").with_id(&ids[0]));
    let latter = world.join(consumer("a").with_id(&ids[0]));
    assert_eq!(world.join_refused(former).error, GroupError::RebalanceInProgress);
    assert!(world.is_parked(latter));
    world.join(consumer("b").with_id(&ids[1]));
    assert_eq!(world.joined(latter).members.len(), 2, "one waiter, one place");
}

#[test]
fn an_unchanged_follower_hears_the_current_generation() {
    let (mut world, ids) = World::stable(&[consumer("a"), consumer("b")]);
    let again = world.join(consumer("b").with_id(&ids[1]));
    let joined = world.joined(again);
    assert_eq!((joined.generation, joined.leader, joined.members.len()), (GenerationId(1), ids[0].clone(), 0));
    assert_eq!(world.state(), GroupState::Stable);

    let changed = world.join(consumer("b").with_id(&ids[1]).offering(&[("range", "other topics")]));
    assert!(world.is_parked(changed));
    assert_eq!(world.state(), GroupState::PreparingRebalance);
}

#[test]
fn a_leader_that_joins_again_rebalances_even_unchanged() {
    let (mut world, ids) = World::stable(&[consumer("a"), consumer("b")]);
    world.join(consumer("a").with_id(&ids[0]));
    assert_eq!(world.state(), GroupState::PreparingRebalance);
}

#[test]
fn a_lost_join_answer_is_given_again_while_completing() {
    let (mut world, ids) = World::stable(&[consumer("a"), consumer("b")]);
    world.join(consumer("a").with_id(&ids[0]));
    world.join(consumer("b").with_id(&ids[1]));
    assert_eq!(world.state(), GroupState::CompletingRebalance);
    let (leader, follower) = (world.join(consumer("a").with_id(&ids[0])), world.join(consumer("b").with_id(&ids[1])));
    assert_eq!(world.joined(leader).members.len(), 2);
    assert_eq!(world.joined(follower).generation, GenerationId(2));
    assert_eq!(world.state(), GroupState::CompletingRebalance);
    // With another subscription it is no repetition.
    let changed = world.join(consumer("b").with_id(&ids[1]).offering(&[("range", "more")]));
    assert!(world.is_parked(changed));
    assert_eq!(world.state(), GroupState::PreparingRebalance);
}

#[test]
fn w67_members_that_do_not_fit_are_refused() {
    let (mut world, ids) = World::stable(&[consumer("a"), consumer("b")]);
    let other_type = JoinRequest { protocol_type: "connect".into(), ..consumer("c") };
    let no_type = JoinRequest { protocol_type: "".into(), ..consumer("c") };
    for (request, error) in [
        (other_type, GroupError::InconsistentGroupProtocol),
        (no_type, GroupError::InconsistentGroupProtocol),
        (consumer("c").offering(&[]), GroupError::InconsistentGroupProtocol),
        (consumer("c").offering(&[("sticky", "")]), GroupError::InconsistentGroupProtocol),
        (consumer("c").with_id(&"never seen".into()), GroupError::UnknownMemberId),
    ] {
        let refused = world.join(request.clone());
        assert_eq!(world.join_refused(refused).error, error, "{request:?}");
    }
    assert_eq!((world.state(), world.ids().len()), (GroupState::Stable, ids.len()));
    // The first member of an empty group chooses, but has to offer something.
    let mut world = World::new();
    let refused = world.join(consumer("a").offering(&[]));
    assert_eq!(world.join_refused(refused).error, GroupError::InconsistentGroupProtocol);
    assert!(world.group.is_unused());
}

#[test]
fn protocols_change_over_by_members_that_offer_both() {
    let old = |name| consumer(name).offering(&[("eager", "s")]);
    let both = |name| consumer(name).offering(&[("cooperative", "s"), ("eager", "s")]);
    let (mut world, ids) = World::stable(&[old("a"), old("b")]);
    let a = world.join(both("a").with_id(&ids[0]));
    world.join(old("b").with_id(&ids[1]));
    assert_eq!(world.joined(a).protocol, Some("eager".into()), "the only one that all offer");
    let b = world.join(both("b").with_id(&ids[1]));
    world.join(both("a").with_id(&ids[0]));
    assert_eq!(world.joined(b).protocol, Some("cooperative".into()));
}

#[test]
fn w67_session_timeouts_have_bounds() {
    let config = GroupConfig::default();
    for (seconds, expected) in [
        (5, Err(GroupError::InvalidSessionTimeout)),
        (6, Ok(())),
        (1800, Ok(())),
        (1801, Err(GroupError::InvalidSessionTimeout)),
    ] {
        let request = JoinRequest { session_timeout: Duration::from_secs(seconds), ..consumer("a") };
        assert_eq!(request.check(&config), expected, "{seconds}");
    }
}

#[test]
fn group_max_size_keeps_members_and_refuses_others() {
    let (mut world, ids) = World::stable(&[consumer("a"), consumer("b")]);
    world.config.max_size = 2;
    let c = world.join(consumer("c"));
    assert_eq!(world.join_refused(c).error, GroupError::GroupMaxSizeReached);
    assert_eq!(world.state(), GroupState::Stable);
    // A smaller limit puts out those who come back last.
    world.config.max_size = 1;
    let a = world.join(consumer("a").with_id(&ids[0]));
    let b = world.join(consumer("b").with_id(&ids[1]));
    assert_eq!(world.join_refused(b).error, GroupError::GroupMaxSizeReached);
    assert_eq!(world.joined(a).members.len(), 1);
    assert_eq!(world.counters.joins_over_limit, 2);
}

#[test]
fn a_first_join_that_nobody_hears_ends_after_five_minutes() {
    let patient = JoinRequest {
        rebalance_timeout: 4 * NEW_MEMBER_JOIN_TIMEOUT,
        session_timeout: 4 * NEW_MEMBER_JOIN_TIMEOUT,
        ..consumer("a")
    };
    let (mut world, _) = World::stable(&[patient]);
    let ghost = world.join(consumer("ghost"));
    world.pass(NEW_MEMBER_JOIN_TIMEOUT - SECOND);
    assert!(world.is_parked(ghost));
    world.pass(SECOND);
    assert_eq!(world.join_refused(ghost).error, GroupError::UnknownMemberId);
    assert_eq!(world.ids().len(), 1);
}

#[test]
fn subscriptions_above_the_limit_are_refused() {
    let (mut world, _) = World::stable(&[consumer("a")]);
    world.config.limits.membership_bytes = 1000;
    let big = "x".repeat(1000);
    let b = world.join(consumer("b").offering(&[("range", &big)]));
    assert_eq!(world.join_refused(b).error, GroupError::GroupMaxSizeReached);
    assert_eq!(world.state(), GroupState::Stable);
}

#[test]
fn ids_that_are_handed_out_and_never_used_are_bounded() {
    let mut world = World::new();
    world.config.limits.pending_members = 10;
    let ids: Vec<MemberId> = (0..11)
        .map(|_| {
            let waiter = world.join(with_handshake("flood"));
            world.join_refused(waiter).member_id.unwrap()
        })
        .collect();
    assert_eq!(world.counters.pending_over_limit, 1);
    let newest = world.join(with_handshake("flood").with_id(ids.last().unwrap()));
    assert!(world.is_parked(newest));
    world.pass(SESSION);
    assert_eq!(world.joined(newest).members.len(), 1);
}
