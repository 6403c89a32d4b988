//! Coordinator slots on real partitions: what clients of a group see when its slot moves, fails, or lacks room.

use std::io::ErrorKind;
use std::time::Duration;

use kaas_core::env::Env;
use kaas_core::env::memory::{MemoryEnv, Operation};
use kaas_core::group::config::SnapshotPolicy;
use kaas_core::group::operation::{ClientIdentity, GroupOperation};
use kaas_core::shard::operation::ShardOperation;
use kaas_proto::control::{PartitionChange, PartitionKey, ShardCommand, TakeOver};
use kaas_proto::kafka::ErrorCode;
use kaas_proto::kafka::messages::join_group::JoinGroupRequestProtocol;
use kaas_proto::kafka::messages::offset_commit::{OffsetCommitRequestPartition, OffsetCommitRequestTopic};
use kaas_proto::kafka::messages::offset_fetch::{OffsetFetchRequestGroup, OffsetFetchResponseGroup};
use kaas_proto::kafka::messages::{
    HeartbeatRequest, JoinGroupRequest, JoinGroupResponse, OffsetCommitRequest, SyncGroupRequest,
};
use kaas_proto::layout::slot_directory;
use kaas_proto::types::{GenerationId, LeaderEpoch, Offset, PartitionIndex, SlotId};
use tokio::sync::oneshot;

use crate::harness::{Broker, key, run, topic_config};

pub const GROUP: &str = "group";

/// As the control thread configures slots, with smaller segments.
const SLOT_CONFIG: [(&str, &str); 3] = [("cleanup.policy", ""), ("retention.ms", "-1"), ("segment.bytes", "1048576")];

/// A member of [`GROUP`].
pub struct Member {
    id: String,
    generation: GenerationId,
}

pub fn slot() -> SlotId {
    SlotId::of(GROUP)
}

impl Broker {
    pub async fn take_slot_over(&self, epoch: Option<i32>) {
        self.command(ShardCommand::TakeOver(TakeOver {
            partition: PartitionKey::of_slot(slot()),
            topic: "".into(),
            epoch: epoch.map(LeaderEpoch),
            config: topic_config(&SLOT_CONFIG),
        }))
        .await;
    }

    /// Takes the slot over and waits until its groups are loaded.
    pub async fn lead_slot(&self, epoch: Option<i32>) {
        self.take_slot_over(epoch).await;
        while self.fetch_offsets().await.error_code != ErrorCode::None {
            self.env.sleep(Duration::from_millis(1)).await;
        }
    }

    fn send<T>(&self, operation: impl FnOnce(oneshot::Sender<T>) -> GroupOperation) -> oneshot::Receiver<T> {
        let (reply, answer) = oneshot::channel();
        self.shard.submit(ShardOperation::Group(Box::new(operation(reply))));
        answer
    }

    pub async fn commit(&self, offset: i64, member: Option<&Member>) -> ErrorCode {
        self.commit_with(offset, member, "note").await
    }

    async fn commit_with(&self, offset: i64, member: Option<&Member>, metadata: &str) -> ErrorCode {
        let partition = OffsetCommitRequestPartition {
            partition_index: PartitionIndex(0),
            committed_offset: Offset(offset),
            committed_metadata: Some(metadata.into()),
            ..OffsetCommitRequestPartition::default()
        };
        let topic =
            OffsetCommitRequestTopic { name: "t".into(), topic_id: key(0).topic_id, partitions: vec![partition] };
        let request = OffsetCommitRequest {
            group_id: GROUP.into(),
            member_id: member.map(|member| member.id.as_str().into()).unwrap_or_default(),
            generation_id_or_member_epoch: member.map_or(GenerationId(-1), |member| member.generation),
            topics: vec![topic],
            ..OffsetCommitRequest::default()
        };
        let answer = self.send(|reply| GroupOperation::Commit { request, reply });
        answer.await.unwrap().topics[0].partitions[0].error_code
    }

    pub async fn fetch_offsets(&self) -> OffsetFetchResponseGroup {
        let group = OffsetFetchRequestGroup { group_id: GROUP.into(), ..OffsetFetchRequestGroup::default() };
        self.send(|reply| GroupOperation::FetchOffsets { group, require_stable: true, reply }).await.unwrap()
    }

    /// The committed offset of the one partition; -1 without one.
    pub async fn committed(&self) -> i64 {
        let fetched = self.fetch_offsets().await;
        assert_eq!(fetched.error_code, ErrorCode::None);
        fetched.topics.first().map_or(-1, |topic| topic.partitions[0].committed_offset.0)
    }

    fn begin_join(&self, member_id: &str) -> oneshot::Receiver<JoinGroupResponse> {
        let request = JoinGroupRequest {
            group_id: GROUP.into(),
            session_timeout_ms: 30_000,
            rebalance_timeout_ms: 60_000,
            member_id: member_id.into(),
            protocol_type: "consumer".into(),
            protocols: vec![JoinGroupRequestProtocol { name: "range".into(), metadata: b"sub"[..].into() }],
            ..JoinGroupRequest::default()
        };
        let client = ClientIdentity { client_id: "app".into(), host: "/127.0.0.1".into() };
        self.send(|reply| GroupOperation::Join { request, version: 3, client, reply })
    }

    async fn sync(&self, member: &Member) -> ErrorCode {
        let request = SyncGroupRequest {
            group_id: GROUP.into(),
            generation_id: member.generation,
            member_id: member.id.as_str().into(),
            ..SyncGroupRequest::default()
        };
        self.send(|reply| GroupOperation::Sync { request, reply }).await.unwrap().error_code
    }

    /// The one member of a stable group.
    async fn stable_member(&self) -> Member {
        let joined = self.begin_join("").await.unwrap();
        assert_eq!(joined.error_code, ErrorCode::None);
        let member = Member { id: joined.member_id.to_string(), generation: joined.generation_id };
        assert_eq!(self.sync(&member).await, ErrorCode::None);
        member
    }

    async fn heartbeat(&self, member: &Member) -> ErrorCode {
        let request = HeartbeatRequest {
            group_id: GROUP.into(),
            generation_id: member.generation,
            member_id: member.id.as_str().into(),
            ..HeartbeatRequest::default()
        };
        self.send(|reply| GroupOperation::Heartbeat { request, reply }).await.unwrap().error_code
    }
}

#[test]
fn offsets_and_members_survive_a_clean_stop_and_a_crash() {
    let env = MemoryEnv::virtual_time();
    run(&env, async {
        let first = Broker::start(&env, 1);
        assert_eq!(first.fetch_offsets().await.error_code, ErrorCode::NotCoordinator);
        first.lead_slot(None).await;
        let member = first.stable_member().await;
        assert_eq!(first.commit(10, Some(&member)).await, ErrorCode::None);
        first.shut_down().await;
        assert_eq!(first.heartbeat(&member).await, ErrorCode::NotCoordinator);

        let second = Broker::start(&env, 1);
        second.lead_slot(None).await;
        assert_eq!(second.committed().await, 10);
        assert_eq!(second.heartbeat(&member).await, ErrorCode::None);
        assert_eq!(second.commit(11, Some(&member)).await, ErrorCode::None);
        drop(second);

        let third = Broker::start(&env, 1);
        third.lead_slot(None).await;
        assert_eq!(third.committed().await, 11);
        assert_eq!(third.heartbeat(&member).await, ErrorCode::None);
    });
}

#[test]
fn d40_a_relinquished_slot_answers_everybody_who_waits() {
    let env = MemoryEnv::virtual_time();
    run(&env, async {
        let broker = Broker::start(&env, 1);
        broker.lead_slot(None).await;
        let joining = broker.begin_join("");
        let partition = PartitionKey::of_slot(slot());
        broker.command(ShardCommand::Relinquish { partition }).await;
        assert_eq!(joining.await.unwrap().error_code, ErrorCode::NotCoordinator);
        assert_eq!(broker.commit(1, None).await, ErrorCode::NotCoordinator);
    });
}

#[test]
fn w69_a_deposed_coordinator_acknowledges_nothing() {
    let env = MemoryEnv::virtual_time();
    run(&env, async {
        let (old, new) = (Broker::start(&env, 1), Broker::start(&env, 2));
        old.lead_slot(Some(1)).await;
        let member = old.stable_member().await;
        assert_eq!(old.commit(10, Some(&member)).await, ErrorCode::None);
        let joining = old.begin_join("");
        new.lead_slot(Some(2)).await;
        assert_eq!(new.commit(20, Some(&member)).await, ErrorCode::None);

        assert_eq!(old.commit(11, Some(&member)).await, ErrorCode::NotCoordinator);
        assert_eq!(joining.await.unwrap().error_code, ErrorCode::NotCoordinator, "those who wait are told as well");
        assert_eq!(old.heartbeat(&member).await, ErrorCode::NotCoordinator);
        assert_eq!(new.committed().await, 20);
        assert_eq!(new.heartbeat(&member).await, ErrorCode::None);
    });
}

#[test]
fn c22_a_failed_write_is_an_error_and_the_slot_comes_back_by_itself() {
    let env = MemoryEnv::virtual_time();
    run(&env, async {
        let broker = Broker::start(&env, 1);
        broker.lead_slot(None).await;
        let member = broker.stable_member().await;
        assert_eq!(broker.commit(10, Some(&member)).await, ErrorCode::None);
        env.volume().fail_next(Operation::WriteAt, ErrorKind::Other);
        assert_eq!(broker.commit(11, Some(&member)).await, ErrorCode::NotCoordinator);
        while broker.heartbeat(&member).await != ErrorCode::None {
            env.sleep(Duration::from_millis(10)).await;
        }
        assert_eq!(broker.committed().await, 10);
        assert_eq!(broker.commit(12, Some(&member)).await, ErrorCode::None);
    });
}

#[test]
fn c1_a_full_volume_refuses_commits_only() {
    let env = MemoryEnv::virtual_time();
    run(&env, async {
        let broker = Broker::start(&env, 1);
        broker.lead_slot(None).await;
        let member = broker.stable_member().await;
        assert_eq!(broker.commit(10, Some(&member)).await, ErrorCode::None);
        env.volume().set_capacity(Some(0));
        // More than what is left of the last block.
        let long = "x".repeat(4096);
        assert_eq!(broker.commit_with(11, Some(&member), &long).await, ErrorCode::CoordinatorNotAvailable);
        // Members stay, offsets can be read, for as long as it takes.
        for _ in 0..20 {
            assert_eq!(broker.commit(11, Some(&member)).await, ErrorCode::CoordinatorNotAvailable);
            assert_eq!(broker.heartbeat(&member).await, ErrorCode::None);
            assert_eq!(broker.committed().await, 10);
            env.sleep(Duration::from_secs(5)).await;
        }
        env.volume().set_capacity(None);
        while broker.commit(12, Some(&member)).await != ErrorCode::None {
            env.sleep(Duration::from_millis(100)).await;
        }
        assert_eq!((broker.committed().await, broker.heartbeat(&member).await), (12, ErrorCode::None));
    });
}

#[test]
fn a_coordinator_without_room_is_over_when_somebody_else_leads() {
    let env = MemoryEnv::virtual_time();
    run(&env, async {
        let (old, new) = (Broker::start(&env, 1), Broker::start(&env, 2));
        old.lead_slot(Some(1)).await;
        let member = old.stable_member().await;
        env.volume().set_capacity(Some(0));
        let long = "x".repeat(4096);
        assert_eq!(old.commit_with(11, Some(&member), &long).await, ErrorCode::CoordinatorNotAvailable);
        env.volume().set_capacity(None);
        new.lead_slot(Some(9)).await;
        while old.heartbeat(&member).await == ErrorCode::None {
            env.sleep(Duration::from_millis(100)).await;
        }
        assert_eq!(old.heartbeat(&member).await, ErrorCode::NotCoordinator);
        assert_eq!(new.heartbeat(&member).await, ErrorCode::None);
    });
}

#[test]
fn snapshots_let_old_segments_go() {
    let env = MemoryEnv::virtual_time();
    run(&env, async {
        let broker = Broker::start_with(&env, 1, |config| {
            config.groups.snapshots = SnapshotPolicy { after_bytes: 256 << 10, chunk_bytes: 1 << 10 };
        });
        broker.lead_slot(None).await;
        let long = "x".repeat(4096);
        for offset in 0..1500 {
            assert_eq!(broker.commit_with(offset, None, &long).await, ErrorCode::None);
        }
        env.sleep(Duration::from_secs(60)).await;
        let names = kaas_core::env::Volume::list(env.volume(), &slot_directory(slot())).await.unwrap();
        let segments = names.iter().filter(|entry| entry.name.ends_with(".log")).count();
        assert!(segments <= 3, "{names:?}");
        assert!(broker.metric("kaas_group_snapshots_total") > 5);

        let next = Broker::start(&env, 1);
        next.lead_slot(None).await;
        assert_eq!(next.committed().await, 1499);
        assert!(next.metric("kaas_group_replayed_records_total") < 200);
    });
}

#[test]
fn an_abandoned_topic_takes_its_offsets_along() {
    let env = MemoryEnv::virtual_time();
    run(&env, async {
        let broker = Broker::start(&env, 1);
        broker.lead_slot(None).await;
        assert_eq!(broker.commit(10, None).await, ErrorCode::None);
        let (done, is_done) = oneshot::channel();
        broker.command(ShardCommand::Abandon { topic_id: key(0).topic_id, done }).await;
        is_done.await.unwrap();
        env.sleep(Duration::from_secs(1)).await;
        assert_eq!(broker.committed().await, -1);
    });
}

#[test]
fn the_control_thread_hears_of_slots_as_of_partitions() {
    let env = MemoryEnv::virtual_time();
    run(&env, async {
        let broker = Broker::start(&env, 1);
        broker.take_slot_over(Some(7)).await;
        assert_eq!(broker.next_change().await, PartitionChange::Leading { epoch: LeaderEpoch(7) });
    });
}

#[test]
fn w8_a_repeated_command_to_lead_disturbs_nobody() {
    let env = MemoryEnv::virtual_time();
    run(&env, async {
        let broker = Broker::start(&env, 1);
        broker.lead_slot(Some(1)).await;
        let member = broker.stable_member().await;
        let mut joining = broker.begin_join("");
        for epoch in [Some(1), None] {
            broker.take_slot_over(epoch).await;
            env.sleep(Duration::from_secs(1)).await;
        }
        assert!(joining.try_recv().is_err(), "still parked");
        assert_eq!(broker.heartbeat(&member).await, ErrorCode::RebalanceInProgress);
        broker.begin_join(&member.id).await.unwrap();
        assert_eq!(joining.await.unwrap().error_code, ErrorCode::None);
    });
}
