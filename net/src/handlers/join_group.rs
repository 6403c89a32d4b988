//! JoinGroup 0–9: becomes a member of a classic group. Answered by the coordinator (`kaas_core::group`) when the rebalance
//! is complete; only whether this broker coordinates the group is decided here.

use kaas_core::shard::operation::GroupOperation;
use kaas_proto::kafka::messages::{JoinGroupRequest, JoinGroupResponse};

use crate::context::{Call, Handle};
use crate::coordinator;

impl Handle for JoinGroupRequest {
    async fn handle(self, call: &Call) -> JoinGroupResponse {
        let (group_id, member_id) = (self.group_id.clone(), self.member_id.clone());
        let (version, client) = (call.version, call.identity());
        let join = |reply| GroupOperation::Join { request: self, version, client, reply };
        let answer = coordinator::ask(call, &group_id, join).await;
        answer.unwrap_or_else(|error_code| JoinGroupResponse { error_code, member_id, ..Default::default() })
    }
}
