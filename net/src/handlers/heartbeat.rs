//! Heartbeat 0–4: keeps a member of a classic group alive. Answered by the coordinator (`kaas_core::group`); only whether
//! this broker coordinates the group is decided here.

use kaas_core::shard::operation::GroupOperation;
use kaas_proto::kafka::messages::{HeartbeatRequest, HeartbeatResponse};

use crate::context::{Call, Handle};
use crate::coordinator;

impl Handle for HeartbeatRequest {
    async fn handle(self, call: &Call) -> HeartbeatResponse {
        let group_id = self.group_id.clone();
        let beat = |reply| GroupOperation::Heartbeat { request: self, reply };
        let answer = coordinator::ask(call, &group_id, beat).await;
        answer.unwrap_or_else(|error_code| HeartbeatResponse { error_code, ..Default::default() })
    }
}
