//! Random walks: whatever clients, clock and log do, the invariants hold and nobody is forgotten.

use std::collections::BTreeMap;
use std::time::Duration;

use proptest::prelude::*;

use super::harness::{Answer, World, consumer, static_consumer};
use crate::group::effect::Waiter;
use crate::group::error::GroupError;
use crate::group::ids::{MemberId, ProtocolName};
use crate::group::join::JoinRequest;
use crate::group::leave::{Leaving, Sender};
use crate::group::phase::GroupState;
use crate::group::state::Group;
use crate::group::sync::SyncRequest;
use kaas_proto::types::GenerationId;

/// One step. Members are named by a number, taken modulo those that have been seen.
#[derive(Clone, Debug)]
enum Act {
    JoinNew { handshake: bool, offer: u8 },
    JoinStatic { instance: u8, offer: u8 },
    JoinAgain { member: usize, offer: u8 },
    Sync { member: usize, generation: i8 },
    Heartbeat { member: usize },
    Commit { member: usize },
    Leave { member: usize },
    LeaveInstance { instance: u8 },
    Pass { seconds: u16 },
    Write { succeeds: bool },
    Restart,
}

fn act() -> impl Strategy<Value = Act> {
    let member = 0..12_usize;
    prop_oneof![
        3 => (any::<bool>(), 0..4_u8).prop_map(|(handshake, offer)| Act::JoinNew { handshake, offer }),
        2 => (0..3_u8, 0..4_u8).prop_map(|(instance, offer)| Act::JoinStatic { instance, offer }),
        6 => (member.clone(), 0..4_u8).prop_map(|(member, offer)| Act::JoinAgain { member, offer }),
        8 => (member.clone(), prop_oneof![8 => Just(0_i8), 1 => -1..2_i8])
            .prop_map(|(member, generation)| Act::Sync { member, generation }),
        3 => member.clone().prop_map(|member| Act::Heartbeat { member }),
        1 => member.clone().prop_map(|member| Act::Commit { member }),
        1 => member.prop_map(|member| Act::Leave { member }),
        1 => (0..3_u8).prop_map(|instance| Act::LeaveInstance { instance }),
        4 => (0..20_u16).prop_map(|seconds| Act::Pass { seconds }),
        1 => (60..400_u16).prop_map(|seconds| Act::Pass { seconds }),
        6 => prop::bool::weighted(0.8).prop_map(|succeeds| Act::Write { succeeds }),
        1 => Just(Act::Restart),
    ]
}

fn offering(request: JoinRequest, offer: u8) -> JoinRequest {
    match offer {
        0 => request,
        1 => request.offering(&[("range", "other")]),
        2 => request.offering(&[("sticky", "s"), ("range", "r")]),
        _ => request.offering(&[("sticky", "only")]),
    }
}

/// A world, and what clients have learnt.
struct Walk {
    world: World,
    /// Members in the order of their first sight, with their instance.
    seen: Vec<(MemberId, Option<u8>)>,
    joins: Vec<(Waiter, Option<u8>)>,
    /// The protocol of each generation, as its members were told since the coordinator began.
    told: BTreeMap<GenerationId, Option<ProtocolName>>,
}

impl Walk {
    fn member(&self, number: usize) -> (MemberId, Option<u8>) {
        if self.seen.is_empty() { ("stranger".into(), None) } else { self.seen[number % self.seen.len()].clone() }
    }

    fn request(instance: Option<u8>) -> JoinRequest {
        match instance {
            Some(instance) => static_consumer(&format!("i{instance}")),
            None => consumer("c"),
        }
    }

    fn join(&mut self, request: JoinRequest, instance: Option<u8>) {
        let waiter = self.world.join(request);
        self.joins.push((waiter, instance));
    }

    fn act(&mut self, act: &Act) {
        match *act {
            Act::JoinNew { handshake, offer } => {
                let request = JoinRequest { requires_member_id: handshake, ..offering(consumer("c"), offer) };
                self.join(request, None);
            }
            Act::JoinStatic { instance, offer } => {
                self.join(offering(Self::request(Some(instance)), offer), Some(instance));
            }
            Act::JoinAgain { member, offer } => {
                let (id, instance) = self.member(member);
                self.join(offering(Self::request(instance), offer).with_id(&id), instance);
            }
            Act::Sync { member, generation } => {
                let (id, _) = self.member(member);
                let request = self.world.sync_request(&id, &[]);
                let generation = GenerationId(request.generation.0 + i32::from(generation));
                self.world.sync_with(&SyncRequest { generation, protocol_type: None, protocol: None, ..request });
            }
            Act::Heartbeat { member } => {
                let (id, _) = self.member(member);
                let alive = self.world.heartbeat(&id);
                assert_eq!(alive == Err(GroupError::UnknownMemberId), !self.world.ids().contains(&id));
            }
            Act::Commit { member } => {
                let (id, _) = self.member(member);
                let sender: Sender = self.world.sender(&id);
                let allowed = self.world.commit(&sender).is_ok();
                assert!(!allowed || self.world.ids().contains(&id), "a stranger has committed");
            }
            Act::Leave { member } => {
                let (id, _) = self.member(member);
                let _ = self.world.leave(&id);
                assert!(!self.world.ids().contains(&id));
            }
            Act::LeaveInstance { instance } => {
                let leaving = [Leaving { member_id: None, instance_id: Some(format!("i{instance}").into()) }];
                self.world.step(|group, step| group.leave(step, &leaving));
            }
            Act::Pass { seconds } => self.world.pass(Duration::from_secs(seconds.into())),
            Act::Write { succeeds } => {
                self.world.finish_writes(if succeeds { Ok(()) } else { Err(GroupError::CoordinatorNotAvailable) });
            }
            Act::Restart => self.restart(),
        }
        self.learn();
    }

    /// The coordinator moves: writes under way fail, everybody is told, the next one begins with what is durable.
    fn restart(&mut self) {
        self.world.step(|group, step| group.end(step, GroupError::NotCoordinator));
        self.world.finish_writes(Err(GroupError::NotCoordinator));
        assert_eq!(self.world.lost_waiters(), [], "a deposed coordinator keeps nobody waiting");
        self.learn();
        let now = self.world.now;
        self.world.group = match &self.world.durable {
            Some(durable) => Group::restore("group".into(), durable, now),
            None => Group::new("group".into(), now),
        };
        self.told.clear();
    }

    fn learn(&mut self) {
        let world = &self.world;
        let (answered, parked): (Vec<_>, Vec<_>) =
            self.joins.drain(..).partition(|(waiter, _)| !world.is_parked(*waiter));
        self.joins = parked;
        for (waiter, instance) in answered {
            match world.answered(waiter) {
                Some(Answer::Join(Ok(joined))) => {
                    if !self.seen.iter().any(|(id, _)| *id == joined.member_id) {
                        self.seen.push((joined.member_id.clone(), instance));
                    }
                    let told = self.told.entry(joined.generation).or_insert_with(|| joined.protocol.clone());
                    assert_eq!(*told, joined.protocol, "one generation, two protocols");
                    assert!(joined.generation <= world.generation());
                    assert!(joined.members.is_empty() || joined.members.iter().any(|one| one.id == joined.member_id));
                }
                Some(Answer::Join(Err(refused))) => {
                    if let Some(id) = &refused.member_id {
                        self.seen.push((id.clone(), instance));
                    }
                }
                other => panic!("{other:?}"),
            }
        }
    }
}

proptest! {
    #[test]
    fn random_walks_keep_the_invariants(acts in prop::collection::vec(act(), 1..120)) {
        let mut world = World::new();
        world.writes = false;
        let mut walk = Walk { world, seen: Vec::new(), joins: Vec::new(), told: BTreeMap::new() };
        for act in &acts {
            walk.act(act);
            prop_assert_eq!(walk.world.lost_waiters(), [], "after {:?}", act);
        }
        // Left alone, a group comes to rest: no requests, so every member leaves by the clock.
        walk.world.writes = true;
        walk.world.finish_writes(Ok(()));
        walk.world.pass(Duration::from_secs(3600));
        prop_assert_eq!(walk.world.state(), GroupState::Empty);
        prop_assert!(walk.world.group.is_unused());
        prop_assert_eq!(walk.world.lost_waiters(), []);
        prop_assert_eq!(walk.world.group.next_deadline(), None);
    }
}
