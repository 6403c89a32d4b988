//! DeleteGroups 0–2: deletes groups without members, with their offsets. One that is named twice has one row. As in Kafka.

use std::collections::HashSet;

use kaas_core::shard::operation::GroupOperation;
use kaas_proto::kafka::messages::delete_groups::{DeletableGroupResult, DeleteGroupsRequest, DeleteGroupsResponse};

use crate::context::{Call, Handle};
use crate::coordinator;

impl Handle for DeleteGroupsRequest {
    async fn handle(self, call: &Call) -> DeleteGroupsResponse {
        let mut answers = Vec::with_capacity(self.groups_names.len());
        let mut seen = HashSet::new();
        for group_id in self.groups_names.into_iter().filter(|id| seen.insert(id.clone())) {
            let delete = |reply| GroupOperation::Delete { group_id: group_id.to_string(), reply };
            answers.push((coordinator::submit(call, &group_id, delete).await, group_id));
        }
        let mut results = Vec::with_capacity(answers.len());
        for (answer, group_id) in answers {
            let refused = |error_code| DeletableGroupResult { group_id, error_code };
            results.push(answer.get().await.unwrap_or_else(refused));
        }
        DeleteGroupsResponse { results, ..Default::default() }
    }
}
