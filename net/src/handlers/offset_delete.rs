//! OffsetDelete 0: forgets committed offsets of partitions that the group does not subscribe to any more. Topics that do
//! not exist are answered here; the rest by the coordinator. As in Kafka.

use kaas_core::shard::operation::GroupOperation;
use kaas_proto::kafka::ErrorCode;
use kaas_proto::kafka::messages::offset_delete::{
    OffsetDeleteRequest, OffsetDeleteRequestTopic, OffsetDeleteResponse, OffsetDeleteResponsePartition,
    OffsetDeleteResponseTopic,
};

use crate::context::{Call, Handle};
use crate::coordinator;

impl Handle for OffsetDeleteRequest {
    async fn handle(mut self, call: &Call) -> OffsetDeleteResponse {
        let view = call.view();
        let (known, unknown): (Vec<_>, Vec<_>) =
            self.topics.drain(..).partition(|topic| view.topic(&topic.name).is_some());
        self.topics = known;
        let group_id = self.group_id.clone();
        let delete = |reply| GroupOperation::DeleteOffsets { request: self, reply };
        match coordinator::ask(call, &group_id, delete).await {
            Ok(mut response) => {
                if response.error_code == ErrorCode::None {
                    response.topics.extend(unknown.into_iter().map(unknown_topic));
                }
                response
            }
            Err(error_code) => OffsetDeleteResponse { error_code, ..Default::default() },
        }
    }
}

fn unknown_topic(topic: OffsetDeleteRequestTopic) -> OffsetDeleteResponseTopic {
    let partitions = topic.partitions.into_iter().map(|partition| OffsetDeleteResponsePartition {
        partition_index: partition.partition_index,
        error_code: ErrorCode::UnknownTopicOrPartition,
    });
    OffsetDeleteResponseTopic { partitions: partitions.collect(), name: topic.name }
}
