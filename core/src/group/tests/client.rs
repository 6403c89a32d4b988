//! A coordinator of one slot under virtual time, and requests to it as clients send them.

use std::future::Future;
use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use futures_lite::future;
use kaas_proto::kafka::ErrorCode;
use kaas_proto::kafka::messages::delete_groups::DeletableGroupResult;
use kaas_proto::kafka::messages::describe_groups::DescribedGroup;
use kaas_proto::kafka::messages::join_group::JoinGroupRequestProtocol;
use kaas_proto::kafka::messages::leave_group::MemberIdentity;
use kaas_proto::kafka::messages::list_groups::ListedGroup;
use kaas_proto::kafka::messages::offset_commit::{OffsetCommitRequestPartition, OffsetCommitRequestTopic};
use kaas_proto::kafka::messages::offset_delete::{OffsetDeleteRequestPartition, OffsetDeleteRequestTopic};
use kaas_proto::kafka::messages::offset_fetch::{
    OffsetFetchRequestGroup, OffsetFetchRequestTopics, OffsetFetchResponseGroup,
};
use kaas_proto::kafka::messages::sync_group::SyncGroupRequestAssignment;
use kaas_proto::kafka::messages::{
    HeartbeatRequest, HeartbeatResponse, JoinGroupRequest, JoinGroupResponse, LeaveGroupRequest, LeaveGroupResponse,
    ListGroupsRequest, OffsetCommitRequest, OffsetCommitResponse, OffsetDeleteRequest, OffsetDeleteResponse,
    SyncGroupRequest, SyncGroupResponse,
};
use kaas_proto::types::{GenerationId, LeaderEpoch, Offset, PartitionIndex, SlotId, TopicId};
use tokio::sync::oneshot;

use super::memory_log::MemoryLog;
use crate::env::Env;
use crate::env::memory::MemoryEnv;
use crate::group::config::GroupConfig;
use crate::group::coordinator::GroupCoordinator;
use crate::group::operation::{ClientIdentity, GroupOperation};
use crate::steady_clock::SteadyClock;

pub(super) const GROUP: &str = "group";
pub(super) const TOPIC: &str = "topic";
pub(super) const TOPIC_ID: TopicId = TopicId([7; 16]);

/// What a broker is to the clients of one group.
pub(super) struct Broker {
    pub(super) env: MemoryEnv,
    pub(super) coordinator: GroupCoordinator<MemoryEnv>,
    pub(super) log: MemoryLog,
}

/// A member that is in a generation.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Membership {
    pub(super) id: String,
    pub(super) generation: GenerationId,
}

/// The metadata of a consumer that subscribes to topics: version 0, topics, no user data.
pub(super) fn subscription(topics: &[&str]) -> Bytes {
    let mut bytes = vec![0, 0];
    bytes.extend(u32::try_from(topics.len()).unwrap().to_be_bytes());
    for topic in topics {
        bytes.extend(u16::try_from(topic.len()).unwrap().to_be_bytes());
        bytes.extend(topic.as_bytes());
    }
    bytes.extend([0xff; 4]);
    bytes.into()
}

fn begun(env: &MemoryEnv) -> Rc<SteadyClock> {
    let clock = SteadyClock::default();
    clock.begin(env.now(), env.wall_clock(), None);
    Rc::new(clock)
}

impl Broker {
    /// Runs a test with a broker that leads the slot of [`GROUP`], loaded.
    pub(super) fn run<F: Future<Output = ()>>(config: GroupConfig, test: impl FnOnce(Self) -> F) {
        let env = MemoryEnv::virtual_time();
        env.run(async {
            let log = MemoryLog::new(&env);
            let broker =
                Self { env: env.clone(), coordinator: GroupCoordinator::new(env.clone(), config, begun(&env)), log };
            broker.coordinator.take_over(SlotId::of(GROUP), broker.log.clone());
            broker.until_loaded().await;
            test(broker).await;
        });
    }

    pub(super) async fn until_loaded(&self) {
        while self.describe(GROUP, 5).await.error_code == ErrorCode::CoordinatorLoadInProgress {
            self.pass(Duration::from_millis(1)).await;
        }
    }

    /// The process dies and another one takes the slot over.
    pub(super) async fn restart(&mut self, config: GroupConfig) {
        self.log = self.log.next_leadership();
        self.coordinator = GroupCoordinator::new(self.env.clone(), config, begun(&self.env));
        self.coordinator.take_over(SlotId::of(GROUP), self.log.clone());
        self.until_loaded().await;
    }

    /// Another broker takes the slot over. The former one is told so.
    pub(super) fn move_slot(&mut self, config: GroupConfig) {
        self.log = self.log.next_leadership();
        self.coordinator.give_up(SlotId::of(GROUP));
        self.coordinator = GroupCoordinator::new(self.env.clone(), config, begun(&self.env));
        self.coordinator.take_over(SlotId::of(GROUP), self.log.clone());
    }

    pub(super) async fn pass(&self, duration: Duration) {
        self.env.sleep(duration).await;
    }

    /// Sends an operation; the answer comes with the receiver.
    pub(super) fn send<T>(&self, operation: impl FnOnce(oneshot::Sender<T>) -> GroupOperation) -> Pending<T> {
        let (reply, answer) = oneshot::channel();
        self.coordinator.execute(operation(reply));
        Pending(answer)
    }

    pub(super) fn join_request(member_id: &str, topics: &[&str]) -> JoinGroupRequest {
        JoinGroupRequest {
            group_id: GROUP.into(),
            session_timeout_ms: 10_000,
            rebalance_timeout_ms: 60_000,
            member_id: member_id.into(),
            protocol_type: "consumer".into(),
            protocols: vec![JoinGroupRequestProtocol { name: "range".into(), metadata: subscription(topics) }],
            ..JoinGroupRequest::default()
        }
    }

    pub(super) fn join(&self, request: JoinGroupRequest, version: i16) -> Pending<JoinGroupResponse> {
        let client = ClientIdentity { client_id: "app".into(), host: "/127.0.0.1".into() };
        self.send(|reply| GroupOperation::Join { request, version, client, reply })
    }

    pub(super) fn sync(&self, member: &Membership, assignments: &[(&str, &str)]) -> Pending<SyncGroupResponse> {
        let assignments = assignments.iter().map(|(id, work)| SyncGroupRequestAssignment {
            member_id: (*id).into(),
            assignment: Bytes::copy_from_slice(work.as_bytes()),
        });
        let request = SyncGroupRequest {
            group_id: GROUP.into(),
            generation_id: member.generation,
            member_id: member.id.as_str().into(),
            assignments: assignments.collect(),
            ..SyncGroupRequest::default()
        };
        self.send(|reply| GroupOperation::Sync { request, reply })
    }

    /// One consumer with the whole assignment, in a stable group.
    pub(super) async fn stable(&self, topics: &[&str]) -> Membership {
        let joined = self.join(Self::join_request("", topics), 3).answer().await;
        assert_eq!(joined.error_code, ErrorCode::None);
        let member = Membership { id: joined.member_id.to_string(), generation: joined.generation_id };
        let synced = self.sync(&member, &[(&member.id, "work")]).answer().await;
        assert_eq!(synced.error_code, ErrorCode::None);
        member
    }

    pub(super) fn sync_request(&self, request: SyncGroupRequest) -> Pending<SyncGroupResponse> {
        self.send(|reply| GroupOperation::Sync { request, reply })
    }

    pub(super) fn heartbeat_request(&self, request: HeartbeatRequest) -> Pending<HeartbeatResponse> {
        self.send(|reply| GroupOperation::Heartbeat { request, reply })
    }

    /// Leaves without waiting for the answer.
    pub(super) fn leave_quietly(&self, member_id: &str) {
        let identity = MemberIdentity { member_id: member_id.into(), ..MemberIdentity::default() };
        let request =
            LeaveGroupRequest { group_id: GROUP.into(), members: vec![identity], ..LeaveGroupRequest::default() };
        drop(self.send(|reply| GroupOperation::Leave { request, version: 3, reply }));
    }

    pub(super) async fn heartbeat(&self, member: &Membership) -> ErrorCode {
        let request = HeartbeatRequest {
            group_id: GROUP.into(),
            generation_id: member.generation,
            member_id: member.id.as_str().into(),
            ..HeartbeatRequest::default()
        };
        let answer: HeartbeatResponse = self.send(|reply| GroupOperation::Heartbeat { request, reply }).answer().await;
        answer.error_code
    }

    pub(super) async fn leave(&self, member: &Membership) -> LeaveGroupResponse {
        let identity = MemberIdentity { member_id: member.id.as_str().into(), ..MemberIdentity::default() };
        let request =
            LeaveGroupRequest { group_id: GROUP.into(), members: vec![identity], ..LeaveGroupRequest::default() };
        self.send(|reply| GroupOperation::Leave { request, version: 3, reply }).answer().await
    }

    pub(super) fn commit_request(offsets: &[(i32, i64, &str)]) -> OffsetCommitRequest {
        let partitions = offsets.iter().map(|(partition, offset, metadata)| OffsetCommitRequestPartition {
            partition_index: PartitionIndex(*partition),
            committed_offset: Offset(*offset),
            committed_leader_epoch: LeaderEpoch(3),
            committed_metadata: Some((*metadata).into()),
        });
        let topic =
            OffsetCommitRequestTopic { name: TOPIC.into(), topic_id: TOPIC_ID, partitions: partitions.collect() };
        OffsetCommitRequest { group_id: GROUP.into(), topics: vec![topic], ..OffsetCommitRequest::default() }
    }

    pub(super) fn send_commit(&self, request: OffsetCommitRequest) -> Pending<OffsetCommitResponse> {
        self.send(|reply| GroupOperation::Commit { request, reply })
    }

    /// Commits as a consumer without membership does. The code of each partition.
    pub(super) async fn commit(&self, offsets: &[(i32, i64, &str)]) -> Vec<ErrorCode> {
        codes(&self.send_commit(Self::commit_request(offsets)).answer().await)
    }

    pub(super) async fn fetch(&self, topics: Option<Vec<OffsetFetchRequestTopics>>) -> OffsetFetchResponseGroup {
        let group = OffsetFetchRequestGroup { group_id: GROUP.into(), topics, ..OffsetFetchRequestGroup::default() };
        self.send(|reply| GroupOperation::FetchOffsets { group, require_stable: true, reply }).answer().await
    }

    /// The committed offset of a partition of [`TOPIC`].
    pub(super) async fn committed(&self, partition: i32) -> i64 {
        let topic = OffsetFetchRequestTopics {
            name: TOPIC.into(),
            topic_id: TOPIC_ID,
            partition_indexes: vec![PartitionIndex(partition)],
        };
        let answer = self.fetch(Some(vec![topic])).await;
        assert_eq!(answer.error_code, ErrorCode::None);
        answer.topics[0].partitions[0].committed_offset.0
    }

    pub(super) async fn delete_offsets(&self, topic: &str, partitions: &[i32]) -> OffsetDeleteResponse {
        let partitions = partitions
            .iter()
            .map(|&partition| OffsetDeleteRequestPartition { partition_index: PartitionIndex(partition) });
        let topic = OffsetDeleteRequestTopic { name: topic.into(), partitions: partitions.collect() };
        let request = OffsetDeleteRequest { group_id: GROUP.into(), topics: vec![topic] };
        self.send(|reply| GroupOperation::DeleteOffsets { request, reply }).answer().await
    }

    pub(super) async fn list(&self, states: &[&str], types: &[&str]) -> Result<Vec<ListedGroup>, ErrorCode> {
        let names = |names: &[&str]| names.iter().map(|&name| name.into()).collect();
        let request = ListGroupsRequest { states_filter: names(states), types_filter: names(types) };
        self.send(|reply| GroupOperation::List { request, reply }).answer().await
    }

    pub(super) async fn describe(&self, group: &str, version: i16) -> DescribedGroup {
        self.send(|reply| GroupOperation::Describe { group_id: group.into(), version, reply }).answer().await
    }

    pub(super) async fn delete(&self, group: &str) -> ErrorCode {
        let answer: DeletableGroupResult =
            self.send(|reply| GroupOperation::Delete { group_id: group.into(), reply }).answer().await;
        answer.error_code
    }
}

pub(super) fn codes(response: &OffsetCommitResponse) -> Vec<ErrorCode> {
    response.topics.iter().flat_map(|topic| topic.partitions.iter().map(|partition| partition.error_code)).collect()
}

/// An answer that is to come.
pub(super) struct Pending<T>(oneshot::Receiver<T>);

impl<T> Pending<T> {
    pub(super) async fn answer(self) -> T {
        self.0.await.expect("every request is answered")
    }

    /// The answer, if it is there already.
    pub(super) async fn now(&mut self) -> Option<T> {
        // Lets tasks run that are ready, without letting time pass.
        for _ in 0..50 {
            future::yield_now().await;
        }
        self.0.try_recv().ok()
    }
}
