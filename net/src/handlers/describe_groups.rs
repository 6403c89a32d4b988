//! DescribeGroups 0–6: state and members of classic groups, each from its own coordinator slot.
//!
//! As in Kafka; from version 6 on an unknown group is an error instead of a dead group. Everything is authorized.

use kaas_core::shard::operation::GroupOperation;
use kaas_proto::kafka::messages::describe_groups::{DescribeGroupsRequest, DescribeGroupsResponse, DescribedGroup};

use crate::authorized_operations;
use crate::context::{Call, Handle};
use crate::coordinator;

impl Handle for DescribeGroupsRequest {
    async fn handle(self, call: &Call) -> DescribeGroupsResponse {
        let version = call.version;
        let mut answers = Vec::with_capacity(self.groups.len());
        for group_id in self.groups {
            let describe = |reply| GroupOperation::Describe { group_id: group_id.to_string(), version, reply };
            answers.push((coordinator::submit(call, &group_id, describe).await, group_id));
        }
        let mut groups = Vec::with_capacity(answers.len());
        for (answer, group_id) in answers {
            let refused = |error_code| DescribedGroup { error_code, group_id, ..Default::default() };
            let mut group = answer.get().await.unwrap_or_else(refused);
            if self.include_authorized_operations {
                group.authorized_operations = authorized_operations::GROUP;
            }
            groups.push(group);
        }
        DescribeGroupsResponse { groups, ..Default::default() }
    }
}
