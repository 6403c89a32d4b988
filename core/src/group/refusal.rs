//! What each operation is answered when its group can't be asked.

use kaas_proto::kafka::messages::describe_groups::DescribedGroup;
use kaas_proto::kafka::messages::offset_fetch::OffsetFetchResponseGroup;
use kaas_proto::kafka::messages::{HeartbeatResponse, LeaveGroupResponse, OffsetDeleteResponse};

use super::answer;
use super::error::GroupError;
use super::ids::GroupId;
use super::operation::GroupOperation;
use super::phase::GroupState;

/// The group that an operation concerns, and whether an empty id is none. Offsets may be kept under an empty id, as old
/// clients without `group.id` do; membership needs one.
pub(super) fn group_of(operation: &GroupOperation) -> (&str, bool) {
    match operation {
        GroupOperation::Join { request, .. } => (&request.group_id, true),
        GroupOperation::Sync { request, .. } => (&request.group_id, true),
        GroupOperation::Heartbeat { request, .. } => (&request.group_id, true),
        GroupOperation::Leave { request, .. } => (&request.group_id, true),
        GroupOperation::DeleteOffsets { request, .. } => (&request.group_id, true),
        GroupOperation::Commit { request, .. } => (&request.group_id, false),
        GroupOperation::FetchOffsets { group, .. } => (&group.group_id, false),
        GroupOperation::Describe { group_id, .. } | GroupOperation::Delete { group_id, .. } => (group_id, false),
        GroupOperation::List { .. } | GroupOperation::ForgetTopics { .. } | GroupOperation::RetainTopics { .. } => {
            ("", false)
        }
    }
}

/// Answers an operation with an error. A client that is gone does not need its answer.
pub(super) fn refuse(operation: GroupOperation, error: GroupError) {
    match operation {
        GroupOperation::Join { request, reply, .. } => {
            let _ = reply.send(answer::join(Err(error.into()), request.member_id));
        }
        GroupOperation::Sync { reply, .. } => {
            let _ = reply.send(answer::sync(Err(error)));
        }
        GroupOperation::Heartbeat { reply, .. } => {
            let _ = reply.send(HeartbeatResponse { error_code: error.into(), ..HeartbeatResponse::default() });
        }
        GroupOperation::Leave { reply, .. } => {
            let _ = reply.send(LeaveGroupResponse { error_code: error.into(), ..LeaveGroupResponse::default() });
        }
        GroupOperation::Commit { request, reply } => {
            let _ = reply.send(answer::commit(&request, |_| error.into()));
        }
        GroupOperation::FetchOffsets { group, reply, .. } => {
            let refusal = OffsetFetchResponseGroup {
                group_id: group.group_id,
                error_code: error.into(),
                ..OffsetFetchResponseGroup::default()
            };
            let _ = reply.send(refusal);
        }
        GroupOperation::DeleteOffsets { reply, .. } => {
            let _ = reply.send(OffsetDeleteResponse { error_code: error.into(), ..OffsetDeleteResponse::default() });
        }
        GroupOperation::List { reply, .. } => {
            let _ = reply.send(Err(error.into()));
        }
        GroupOperation::Describe { group_id, reply, .. } => {
            let refusal = DescribedGroup {
                error_code: error.into(),
                group_id: group_id.into(),
                group_state: GroupState::Dead.as_str().into(),
                ..DescribedGroup::default()
            };
            let _ = reply.send(refusal);
        }
        GroupOperation::Delete { group_id, reply } => {
            let _ = reply.send(answer::deleted(&GroupId::from(group_id), Err(error)));
        }
        GroupOperation::ForgetTopics { .. } | GroupOperation::RetainTopics { .. } => {}
    }
}
