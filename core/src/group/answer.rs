//! From the state machine to the wire.

use kaas_proto::kafka::ErrorCode;
use kaas_proto::kafka::KafkaString;
use kaas_proto::kafka::messages::delete_groups::DeletableGroupResult;
use kaas_proto::kafka::messages::describe_groups::{DescribedGroup, DescribedGroupMember};
use kaas_proto::kafka::messages::join_group::JoinGroupResponseMember;
use kaas_proto::kafka::messages::leave_group::MemberResponse;
use kaas_proto::kafka::messages::offset_commit::{OffsetCommitResponsePartition, OffsetCommitResponseTopic};
use kaas_proto::kafka::messages::offset_fetch::{OffsetFetchResponsePartitions, OffsetFetchResponseTopics};
use kaas_proto::kafka::messages::{
    JoinGroupResponse, LeaveGroupRequest, LeaveGroupResponse, OffsetCommitRequest, OffsetCommitResponse,
    OffsetDeleteResponse, SyncGroupResponse,
};
use kaas_proto::types::{GenerationId, Offset, PartitionIndex, TopicId};

use super::effect::{JoinRefused, Joined, Synced};
use super::error::GroupError;
use super::ids::GroupId;
use super::offsets::CommittedOffset;
use super::phase::GroupState;
use super::request::FIRST_LEAVE_WITH_LIST;
use super::state::Group;

/// Since this version DescribeGroups has an error for groups that do not exist (KIP-1043).
const FIRST_DESCRIBE_WITH_NOT_FOUND: i16 = 6;

pub(super) fn join(answer: Result<Joined, JoinRefused>, requested_id: KafkaString) -> JoinGroupResponse {
    match answer {
        Ok(joined) => JoinGroupResponse {
            generation_id: joined.generation,
            protocol_type: joined.protocol_type.map(|name| name.as_str().into()),
            protocol_name: joined.protocol.map(|name| name.as_str().into()),
            leader: joined.leader.as_str().into(),
            skip_assignment: joined.skip_assignment,
            member_id: joined.member_id.as_str().into(),
            members: joined
                .members
                .into_iter()
                .map(|member| JoinGroupResponseMember {
                    member_id: member.id.as_str().into(),
                    group_instance_id: member.instance_id.map(|id| id.as_str().into()),
                    metadata: member.metadata,
                })
                .collect(),
            ..JoinGroupResponse::default()
        },
        Err(refused) => JoinGroupResponse {
            error_code: refused.error.into(),
            generation_id: GenerationId(-1),
            member_id: match refused.error {
                // It has no place, so it has no id either.
                GroupError::GroupMaxSizeReached => KafkaString::default(),
                _ => refused.member_id.map_or(requested_id, |id| id.as_str().into()),
            },
            ..JoinGroupResponse::default()
        },
    }
}

pub(super) fn sync(answer: Result<Synced, GroupError>) -> SyncGroupResponse {
    match answer {
        Ok(synced) => SyncGroupResponse {
            protocol_type: synced.protocol_type.map(|name| name.as_str().into()),
            protocol_name: synced.protocol.map(|name| name.as_str().into()),
            assignment: synced.assignment,
            ..SyncGroupResponse::default()
        },
        Err(error) => SyncGroupResponse { error_code: error.into(), ..SyncGroupResponse::default() },
    }
}

/// One outcome per member of the request, in order.
pub(super) fn leave(
    request: &LeaveGroupRequest,
    version: i16,
    outcomes: &[Result<(), GroupError>],
) -> LeaveGroupResponse {
    if version < FIRST_LEAVE_WITH_LIST {
        let error_code = outcomes.first().copied().map_or(ErrorCode::None, code);
        return LeaveGroupResponse { error_code, ..LeaveGroupResponse::default() };
    }
    let members = request.members.iter().zip(outcomes).map(|(member, outcome)| MemberResponse {
        member_id: member.member_id.clone(),
        group_instance_id: member.group_instance_id.clone(),
        error_code: code(*outcome),
    });
    LeaveGroupResponse { members: members.collect(), ..LeaveGroupResponse::default() }
}

/// One code per partition of the request.
pub(super) fn commit(request: &OffsetCommitRequest, code: impl Fn(&str) -> ErrorCode) -> OffsetCommitResponse {
    let topics = request.topics.iter().map(|topic| OffsetCommitResponseTopic {
        name: topic.name.clone(),
        topic_id: topic.topic_id,
        partitions: topic
            .partitions
            .iter()
            .map(|partition| OffsetCommitResponsePartition {
                partition_index: partition.partition_index,
                error_code: code(partition.committed_metadata.as_deref().unwrap_or_default()),
            })
            .collect(),
    });
    OffsetCommitResponse { topics: topics.collect(), ..OffsetCommitResponse::default() }
}

/// Offset -1 without an error: nothing is committed.
pub(super) fn fetched_partition(
    partition: PartitionIndex,
    committed: Option<&CommittedOffset>,
) -> OffsetFetchResponsePartitions {
    let nothing = OffsetFetchResponsePartitions {
        partition_index: partition,
        committed_offset: Offset(-1),
        metadata: Some(KafkaString::default()),
        ..OffsetFetchResponsePartitions::default()
    };
    match committed {
        None => nothing,
        Some(committed) => OffsetFetchResponsePartitions {
            committed_offset: committed.offset,
            committed_leader_epoch: committed.leader_epoch,
            metadata: Some((&*committed.metadata).into()),
            ..nothing
        },
    }
}

pub(super) fn fetched_topic(
    name: KafkaString,
    id: TopicId,
    partitions: Vec<OffsetFetchResponsePartitions>,
) -> OffsetFetchResponseTopics {
    OffsetFetchResponseTopics { name, topic_id: id, partitions }
}

/// A group that is not there is a dead one, or in newer versions an error.
pub(super) fn described_absence(group_id: &str, version: i16) -> DescribedGroup {
    let is_error = version >= FIRST_DESCRIBE_WITH_NOT_FOUND;
    DescribedGroup {
        error_code: if is_error { ErrorCode::GroupIdNotFound } else { ErrorCode::None },
        error_message: is_error.then(|| format!("Group {group_id} not found.").into()),
        group_id: group_id.into(),
        group_state: GroupState::Dead.as_str().into(),
        ..DescribedGroup::default()
    }
}

pub(super) fn described(group: &Group) -> DescribedGroup {
    // In between, the members' protocol is not settled; Kafka shows neither it nor their metadata.
    let settled = group.protocol().filter(|_| group.state() == GroupState::Stable);
    let members = group.members().values().map(|member| DescribedGroupMember {
        member_id: member.profile.id.as_str().into(),
        group_instance_id: member.profile.instance_id.as_ref().map(|id| id.as_str().into()),
        client_id: (&*member.profile.client_id).into(),
        client_host: (&*member.profile.client_host).into(),
        member_metadata: settled.map(|protocol| member.profile.metadata_of(protocol)).unwrap_or_default(),
        member_assignment: settled.map(|_| member.profile.assignment.clone()).unwrap_or_default(),
    });
    DescribedGroup {
        group_id: group.id().as_str().into(),
        group_state: group.state().as_str().into(),
        protocol_type: group.protocol_type().map(|name| name.as_str().into()).unwrap_or_default(),
        protocol_data: settled.map(|name| name.as_str().into()).unwrap_or_default(),
        members: members.collect(),
        ..DescribedGroup::default()
    }
}

pub(super) fn code(outcome: Result<(), GroupError>) -> ErrorCode {
    outcome.err().map_or(ErrorCode::None, Into::into)
}

pub(super) fn deleted(group: &GroupId, outcome: Result<(), GroupError>) -> DeletableGroupResult {
    DeletableGroupResult { group_id: group.as_str().into(), error_code: code(outcome) }
}

/// The answer to a commit of which nothing was stored. What was refused before keeps its own code.
pub(super) fn commit_failed(mut response: OffsetCommitResponse, error: GroupError) -> OffsetCommitResponse {
    let partitions = response.topics.iter_mut().flat_map(|topic| &mut topic.partitions);
    partitions
        .filter(|partition| partition.error_code.is_none())
        .for_each(|partition| partition.error_code = error.into());
    response
}

/// The answer to an OffsetDelete of which nothing was stored.
pub(super) fn delete_offsets_failed(response: OffsetDeleteResponse, error: GroupError) -> OffsetDeleteResponse {
    OffsetDeleteResponse { error_code: error.into(), topics: Vec::new(), ..response }
}
