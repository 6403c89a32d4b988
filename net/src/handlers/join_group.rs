//! JoinGroup 0–9: becomes a member of a classic group. Answered by the coordinator (`kaas_core::group`) when the rebalance
//! is complete; only whether this broker coordinates the group is decided here.

use kaas_core::shard::operation::GroupOperation;
use kaas_proto::kafka::KafkaString;
use kaas_proto::kafka::messages::{JoinGroupRequest, JoinGroupResponse};

use crate::context::{Call, Handle};
use crate::coordinator;

impl Handle for JoinGroupRequest {
    async fn handle(self, call: &Call) -> JoinGroupResponse {
        // Copies: the request's frame must not wait with the member.
        let (group_id, member_id) = (String::from(&*self.group_id), KafkaString::from(&*self.member_id));
        let (version, client) = (call.version, call.identity());
        let join = |reply| GroupOperation::Join { request: self, version, client, reply };
        let answer = coordinator::submit(call, &group_id, join).await;
        call.release_request();
        answer.get().await.unwrap_or_else(|error_code| JoinGroupResponse {
            error_code,
            member_id,
            ..Default::default()
        })
    }
}
