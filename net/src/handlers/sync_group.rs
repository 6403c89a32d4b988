//! SyncGroup 0–5: the leader hands in all assignments, each member gets its own. Answered by the coordinator
//! (`kaas_core::group`); only whether this broker coordinates the group is decided here.

use kaas_core::shard::operation::GroupOperation;
use kaas_proto::kafka::messages::{SyncGroupRequest, SyncGroupResponse};

use crate::context::{Call, Handle};
use crate::coordinator;

impl Handle for SyncGroupRequest {
    async fn handle(self, call: &Call) -> SyncGroupResponse {
        // A copy: the request's frame must not wait with the member.
        let group_id = String::from(&*self.group_id);
        let sync = |reply| GroupOperation::Sync { request: self, reply };
        let answer = coordinator::submit(call, &group_id, sync).await;
        call.release_request();
        answer.get().await.unwrap_or_else(|error_code| SyncGroupResponse { error_code, ..Default::default() })
    }
}
