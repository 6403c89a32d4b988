//! ListGroups 0–5: the groups that this broker coordinates. Filters by state from version 4 on, by type from 5 on.
//!
//! As in Kafka. While a slot is still being loaded, the answer says COORDINATOR_LOAD_IN_PROGRESS beside what is known.

use kaas_core::shard::operation::{GroupOperation, ShardOperation};
use kaas_proto::kafka::messages::{ListGroupsRequest, ListGroupsResponse};

use crate::context::{Call, Handle};

impl Handle for ListGroupsRequest {
    async fn handle(self, call: &Call) -> ListGroupsResponse {
        let list = |reply| ShardOperation::Group(Box::new(GroupOperation::List { request: self.clone(), reply }));
        let mut response = ListGroupsResponse::default();
        for answer in call.shard.router.ask_all(list).await {
            match answer {
                Ok(groups) => response.groups.extend(groups),
                Err(error_code) => response.error_code = error_code,
            }
        }
        response.groups.sort_by(|a, b| a.group_id.cmp(&b.group_id));
        response
    }
}
