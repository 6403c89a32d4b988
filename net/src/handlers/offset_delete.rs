//! OffsetDelete 0: forgets committed offsets of partitions that the group does not subscribe to any more. Partitions that
//! do not exist are answered here; the rest by the coordinator. As in Kafka.

use std::collections::HashMap;

use kaas_core::shard::operation::GroupOperation;
use kaas_proto::kafka::messages::offset_delete::{
    OffsetDeleteRequest, OffsetDeleteRequestPartition, OffsetDeleteResponse, OffsetDeleteResponsePartition,
    OffsetDeleteResponseTopic,
};
use kaas_proto::kafka::{ErrorCode, KafkaString};
use kaas_proto::types::PartitionIndex;

use crate::context::{Call, Handle};
use crate::coordinator;

impl Handle for OffsetDeleteRequest {
    async fn handle(mut self, call: &Call) -> OffsetDeleteResponse {
        let view = call.view();
        let mut unknown = Vec::new();
        for topic in &mut self.topics {
            let found = view.topic(&topic.name);
            let exists = |index: PartitionIndex| {
                let index = usize::try_from(index.0).ok();
                found.is_some_and(|topic| index.is_some_and(|index| index < topic.partitions.len()))
            };
            let (known, missing): (Vec<_>, Vec<_>) =
                topic.partitions.drain(..).partition(|partition| exists(partition.partition_index));
            topic.partitions = known;
            if !missing.is_empty() {
                unknown.push(unknown_partitions(topic.name.clone(), missing));
            }
        }
        self.topics.retain(|topic| !topic.partitions.is_empty());
        let group_id = self.group_id.clone();
        let delete = |reply| GroupOperation::DeleteOffsets { request: self, reply };
        match coordinator::ask(call, &group_id, delete).await {
            Ok(mut response) => {
                if response.error_code == ErrorCode::None {
                    add(&mut response.topics, unknown);
                }
                response
            }
            Err(error_code) => OffsetDeleteResponse { error_code, ..Default::default() },
        }
    }
}

fn unknown_partitions(name: KafkaString, partitions: Vec<OffsetDeleteRequestPartition>) -> OffsetDeleteResponseTopic {
    let partitions = partitions.into_iter().map(|partition| OffsetDeleteResponsePartition {
        partition_index: partition.partition_index,
        error_code: ErrorCode::UnknownTopicOrPartition,
    });
    OffsetDeleteResponseTopic { partitions: partitions.collect(), name }
}

/// One row for each topic.
fn add(topics: &mut Vec<OffsetDeleteResponseTopic>, unknown: Vec<OffsetDeleteResponseTopic>) {
    let places: HashMap<KafkaString, usize> = topics.iter().map(|topic| topic.name.clone()).zip(0..).collect();
    for topic in unknown {
        match places.get(&topic.name) {
            Some(place) => topics[*place].partitions.extend(topic.partitions),
            None => topics.push(topic),
        }
    }
}
