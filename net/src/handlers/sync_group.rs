//! SyncGroup 0–5: the leader hands in all assignments, each member gets its own. Answered by the coordinator
//! (`kaas_core::group`); only whether this broker coordinates the group is decided here.

use kaas_core::shard::operation::GroupOperation;
use kaas_proto::kafka::messages::{SyncGroupRequest, SyncGroupResponse};

use crate::context::{Call, Handle};
use crate::coordinator;

impl Handle for SyncGroupRequest {
    async fn handle(self, call: &Call) -> SyncGroupResponse {
        let group_id = self.group_id.clone();
        let sync = |reply| GroupOperation::Sync { request: self, reply };
        let answer = coordinator::ask(call, &group_id, sync).await;
        answer.unwrap_or_else(|error_code| SyncGroupResponse { error_code, ..Default::default() })
    }
}
