//! Consumers that behave as real ones do, against a coordinator that moves, loses its log, and runs out of space. When
//! the trouble is over, everybody has work again, and at no time did two have the same.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use kaas_proto::kafka::ErrorCode;
use kaas_proto::kafka::messages::sync_group::SyncGroupRequestAssignment;
use kaas_proto::kafka::messages::{HeartbeatRequest, JoinGroupRequest, JoinGroupResponse, SyncGroupRequest};
use kaas_proto::types::GenerationId;
use proptest::prelude::*;

use super::client::{Broker, GROUP, codes};
use crate::env::Env;
use crate::env::memory::MemoryEnv;
use crate::group::config::{GroupConfig, SnapshotPolicy};
use crate::partition::error::AppendError;

const PARTITIONS: usize = 6;
const HEARTBEAT: Duration = Duration::from_secs(3);
const BACKOFF: Duration = Duration::from_millis(100);

/// Leadership of the slot and the claims of all consumers.
struct World {
    env: MemoryEnv,
    broker: RefCell<Broker>,
    /// Who has which partition in a generation. Generations may repeat after a leadership that never stored them.
    claims: RefCell<BTreeMap<GenerationId, BTreeMap<usize, String>>>,
}

/// The partitions of a member in a generation.
type Work = (GenerationId, Vec<usize>);

/// One consumer, seen from outside.
#[derive(Clone, Default)]
struct Consumer {
    /// Ends as a killed process does.
    killed: Rc<Cell<bool>>,
    /// Ends as `close()` does.
    closed: Rc<Cell<bool>>,
    work: Rc<RefCell<Option<Work>>>,
}

/// What an error tells a consumer to do.
enum Next {
    Rejoin,
    RejoinAsNew,
    Retry,
}

fn next_step(code: ErrorCode) -> Next {
    match code {
        ErrorCode::RebalanceInProgress | ErrorCode::IllegalGeneration => Next::Rejoin,
        ErrorCode::UnknownMemberId | ErrorCode::FencedInstanceId => Next::RejoinAsNew,
        ErrorCode::NotCoordinator | ErrorCode::CoordinatorLoadInProgress | ErrorCode::CoordinatorNotAvailable => {
            Next::Retry
        }
        other => panic!("a healthy consumer is answered {other}"),
    }
}

impl World {
    /// Every leader gives partition `p` to the member at place `p` modulo the number of members.
    fn assign(&self, joined: &JoinGroupResponse) -> Vec<SyncGroupRequestAssignment> {
        let assignments = joined.members.iter().enumerate().map(|(place, member)| {
            let partitions: Vec<u8> = (0..PARTITIONS)
                .filter(|partition| partition % joined.members.len() == place)
                .map(|partition| u8::try_from(partition).unwrap())
                .collect();
            // A member without work is left out, as some clients do.
            (member.member_id.clone(), Bytes::from(partitions))
        });
        assignments
            .filter(|(_, partitions)| !partitions.is_empty())
            .map(|(member_id, assignment)| SyncGroupRequestAssignment { member_id, assignment })
            .collect()
    }

    fn claim(&self, generation: GenerationId, member: &str, partitions: &[usize]) {
        let mut claims = self.claims.borrow_mut();
        let generation_claims = claims.entry(generation).or_default();
        for &partition in partitions {
            let holder = generation_claims.insert(partition, member.to_owned());
            let same = holder.as_deref().is_none_or(|holder| holder == member);
            assert!(same, "{partition} belongs to {holder:?} and {member} in {generation}");
        }
    }

    async fn run_consumer(self: Rc<Self>, name: String, is_static: bool, consumer: Consumer) {
        let mut member_id = String::new();
        let goes_on = || !consumer.killed.get() && !consumer.closed.get();
        while goes_on() {
            consumer.work.replace(None);
            let request = JoinGroupRequest {
                group_instance_id: is_static.then(|| name.as_str().into()),
                ..Broker::join_request(&member_id, &["t"])
            };
            let joined = self.broker.borrow().join(request, 9);
            let joined = joined.answer().await;
            match joined.error_code {
                ErrorCode::None => {}
                ErrorCode::MemberIdRequired => {
                    member_id = joined.member_id.to_string();
                    continue;
                }
                code => {
                    if matches!(next_step(code), Next::RejoinAsNew) {
                        member_id.clear();
                    }
                    self.env.sleep(BACKOFF).await;
                    continue;
                }
            }
            if consumer.killed.get() {
                return;
            }
            member_id = joined.member_id.to_string();
            let leads = joined.leader == joined.member_id && !joined.skip_assignment;
            let request = SyncGroupRequest {
                group_id: GROUP.into(),
                generation_id: joined.generation_id,
                member_id: joined.member_id.clone(),
                group_instance_id: is_static.then(|| name.as_str().into()),
                protocol_type: Some("consumer".into()),
                protocol_name: Some("range".into()),
                assignments: if leads { self.assign(&joined) } else { Vec::new() },
            };
            let synced = self.broker.borrow().sync_request(request);
            let synced = synced.answer().await;
            if synced.error_code != ErrorCode::None {
                if matches!(next_step(synced.error_code), Next::RejoinAsNew) {
                    member_id.clear();
                }
                self.env.sleep(BACKOFF).await;
                continue;
            }
            // Ten bytes are the assignment of nothing that the coordinator makes up.
            let partitions: Vec<usize> = match &synced.assignment[..] {
                b"\0\0\0\0\0\0\xff\xff\xff\xff" => Vec::new(),
                partitions => partitions.iter().map(|&partition| partition.into()).collect(),
            };
            self.claim(joined.generation_id, &name, &partitions);
            consumer.work.replace(Some((joined.generation_id, partitions)));
            if !self.consume(joined.generation_id, &member_id, is_static.then_some(name.as_str()), &consumer).await {
                member_id.clear();
            }
        }
        if consumer.closed.get() && !is_static && !member_id.is_empty() {
            self.broker.borrow().leave_quietly(&member_id);
        }
    }

    /// Heartbeats and commits until something happens. False if the member id is of no use any more.
    async fn consume(
        &self,
        generation: GenerationId,
        member_id: &str,
        instance: Option<&str>,
        consumer: &Consumer,
    ) -> bool {
        while !consumer.killed.get() && !consumer.closed.get() {
            self.env.sleep(HEARTBEAT).await;
            let mut commit = Broker::commit_request(&[(0, 1, "")]);
            commit.member_id = member_id.into();
            commit.generation_id_or_member_epoch = generation;
            commit.group_instance_id = instance.map(Into::into);
            let request = HeartbeatRequest {
                group_id: GROUP.into(),
                generation_id: generation,
                member_id: member_id.into(),
                group_instance_id: instance.map(Into::into),
            };
            let (heartbeat, commit) = {
                let broker = self.broker.borrow();
                (broker.heartbeat_request(request), broker.send_commit(commit))
            };
            for code in [heartbeat.answer().await.error_code, codes(&commit.answer().await)[0]] {
                if code != ErrorCode::None {
                    match next_step(code) {
                        Next::Rejoin => return true,
                        Next::RejoinAsNew => return false,
                        Next::Retry => {}
                    }
                }
            }
        }
        true
    }
}

#[derive(Clone, Debug)]
enum Trouble {
    Start {
        is_static: bool,
    },
    Kill {
        consumer: usize,
    },
    Close {
        consumer: usize,
    },
    /// The slot moves to another coordinator on the same volume.
    Move,
    /// The log is lost after some more batches; the slot is taken over a second later.
    LoseLog {
        batches: usize,
    },
    FullVolume {
        seconds: u8,
    },
    Pass {
        seconds: u8,
    },
}

fn trouble() -> impl Strategy<Value = Trouble> {
    prop_oneof![
        4 => any::<bool>().prop_map(|is_static| Trouble::Start { is_static }),
        2 => (0..8_usize).prop_map(|consumer| Trouble::Kill { consumer }),
        1 => (0..8_usize).prop_map(|consumer| Trouble::Close { consumer }),
        2 => Just(Trouble::Move),
        1 => (0..5_usize).prop_map(|batches| Trouble::LoseLog { batches }),
        1 => (1..60_u8).prop_map(|seconds| Trouble::FullVolume { seconds }),
        5 => (0..90_u8).prop_map(|seconds| Trouble::Pass { seconds }),
    ]
}

fn config() -> GroupConfig {
    let snapshots = SnapshotPolicy { after_bytes: 5000, chunk_bytes: 1 };
    GroupConfig { snapshots, ..GroupConfig::default() }
}

async fn run(broker: Broker, troubles: Vec<Trouble>) {
    let env = broker.env.clone();
    let world = Rc::new(World { env: env.clone(), broker: RefCell::new(broker), claims: RefCell::default() });
    let mut consumers: Vec<Consumer> = Vec::new();
    for trouble in troubles {
        match trouble {
            Trouble::Start { is_static } => {
                let consumer = Consumer::default();
                let name = format!("c{}", consumers.len());
                env.spawn(
                    crate::env::TaskClass::Latency,
                    Rc::clone(&world).run_consumer(name, is_static, consumer.clone()),
                );
                consumers.push(consumer);
            }
            Trouble::Kill { consumer } => {
                if let Some(consumer) = consumers.get(consumer) {
                    consumer.killed.set(true);
                }
            }
            Trouble::Close { consumer } => {
                if let Some(consumer) = consumers.get(consumer) {
                    consumer.closed.set(true);
                }
            }
            Trouble::Move => move_slot(&world),
            Trouble::LoseLog { batches } => {
                world.broker.borrow().log.control().batches_left.set(batches);
                env.sleep(Duration::from_secs(10)).await;
                move_slot(&world);
            }
            Trouble::FullVolume { seconds } => {
                let log = world.broker.borrow().log.clone();
                *log.control().failure.borrow_mut() = Some(AppendError::VolumeFull);
                env.sleep(Duration::from_secs(seconds.into())).await;
                *log.control().failure.borrow_mut() = None;
            }
            Trouble::Pass { seconds } => env.sleep(Duration::from_secs(seconds.into())).await,
        }
    }
    // Everybody who is dead is missed, everybody else comes to rest.
    env.sleep(Duration::from_secs(200)).await;
    let alive: Vec<&Consumer> =
        consumers.iter().filter(|consumer| !consumer.killed.get() && !consumer.closed.get()).collect();
    let mut work: Vec<Work> = Vec::new();
    for consumer in &alive {
        work.push(consumer.work.borrow().clone().expect("everybody is a member again"));
    }
    if let Some((generation, _)) = work.first() {
        assert!(work.iter().all(|(other, _)| other == generation), "all are in one generation: {work:?}");
        let mut all: Vec<usize> = work.iter().flat_map(|(_, partitions)| partitions.clone()).collect();
        all.sort_unstable();
        assert_eq!(all, (0..PARTITIONS).collect::<Vec<_>>(), "every partition is read once");
    }
    let described = {
        let broker = world.broker.borrow();
        broker.send(|reply| crate::group::operation::GroupOperation::Describe {
            group_id: GROUP.into(),
            version: 5,
            reply,
        })
    };
    let described = described.answer().await;
    let expected = if alive.is_empty() { &["Empty", "Dead"][..] } else { &["Stable"] };
    assert!(expected.contains(&&*described.group_state), "{}", described.group_state);
    assert_eq!(described.members.len(), alive.len());
}

/// Another coordinator takes the slot over; what the former one had not stored is gone, claims of it too.
fn move_slot(world: &World) {
    let mut broker = world.broker.borrow_mut();
    broker.move_slot(config());
    world.claims.borrow_mut().clear();
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn consumers_come_to_rest_after_any_trouble(troubles in prop::collection::vec(trouble(), 1..25)) {
        Broker::run(config(), |broker| run(broker, troubles));
    }
}
