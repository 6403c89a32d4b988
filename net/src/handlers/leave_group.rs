//! LeaveGroup 0–5: ends memberships; one up to version 2, several from 3 on. Answered by the coordinator
//! (`kaas_core::group`); only whether this broker coordinates the group is decided here.

use kaas_core::shard::operation::GroupOperation;
use kaas_proto::kafka::messages::{LeaveGroupRequest, LeaveGroupResponse};

use crate::context::{Call, Handle};
use crate::coordinator;

impl Handle for LeaveGroupRequest {
    async fn handle(self, call: &Call) -> LeaveGroupResponse {
        let (group_id, version) = (self.group_id.clone(), call.version);
        let leave = |reply| GroupOperation::Leave { request: self, version, reply };
        let answer = coordinator::ask(call, &group_id, leave).await;
        answer.unwrap_or_else(|error_code| LeaveGroupResponse { error_code, ..Default::default() })
    }
}
