//! OffsetCommit 2–10: stores how far a group has read. Topics by name up to version 9, by id in 10.
//!
//! Partitions that do not exist are answered here; the rest goes to the coordinator, which gets both name and id of each
//! topic, whichever the client gave. As in Kafka, retention times of versions 2 to 4 included.

use std::collections::HashMap;

use kaas_core::shard::operation::GroupOperation;
use kaas_proto::kafka::messages::offset_commit::{
    OffsetCommitRequest, OffsetCommitRequestTopic, OffsetCommitResponse, OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
};
use kaas_proto::kafka::{ErrorCode, KafkaString};
use kaas_proto::types::{PartitionIndex, TopicId};

use crate::cluster::TopicRef;
use crate::context::{Call, Handle};
use crate::coordinator;

/// The first version that names topics by id.
const TOPIC_IDS: i16 = 10;

/// A topic of the response before the coordinator was asked. Partitions without a code are its to answer.
struct Asked {
    name: KafkaString,
    sent_id: TopicId,
    /// The real one, if there is such a topic.
    id: TopicId,
    partitions: Vec<(PartitionIndex, Option<ErrorCode>)>,
}

impl Handle for OffsetCommitRequest {
    async fn handle(mut self, call: &Call) -> OffsetCommitResponse {
        let view = call.view();
        let mut asked = Vec::with_capacity(self.topics.len());
        let mut accepted = Vec::with_capacity(self.topics.len());
        for topic in std::mem::take(&mut self.topics) {
            let found = TopicRef::of(call.version, TOPIC_IDS, &topic.name, topic.topic_id).find(&view);
            let exists = |index| match found {
                Ok(topic) if topic.partition(index).is_some() => None,
                Ok(_) => Some(ErrorCode::UnknownTopicOrPartition),
                Err(code) => Some(code),
            };
            let row = |index: PartitionIndex| (index, exists(index));
            asked.push(Asked {
                name: topic.name.clone(),
                sent_id: topic.topic_id,
                id: found.map_or(TopicId::ZERO, |topic| topic.id),
                partitions: topic.partitions.iter().map(|partition| row(partition.partition_index)).collect(),
            });
            if let Ok(found) = found {
                let partitions = topic.partitions.into_iter().filter(|one| exists(one.partition_index).is_none());
                accepted.push(OffsetCommitRequestTopic {
                    name: KafkaString::from(&*found.name),
                    topic_id: found.id,
                    partitions: partitions.collect(),
                });
            }
        }
        accepted.retain(|topic| !topic.partitions.is_empty());
        let mut codes = HashMap::new();
        let mut otherwise = ErrorCode::None;
        if !accepted.is_empty() {
            let group_id = self.group_id.clone();
            let request = Self { topics: accepted, ..self };
            match coordinator::ask(call, &group_id, |reply| GroupOperation::Commit { request, reply }).await {
                Ok(answer) => codes = by_partition(&answer),
                Err(code) => otherwise = code,
            }
        }
        let row = |id: TopicId, (partition_index, code): (PartitionIndex, Option<ErrorCode>)| {
            let told = || codes.get(&(id, partition_index)).copied().unwrap_or(otherwise);
            OffsetCommitResponsePartition { partition_index, error_code: code.unwrap_or_else(told) }
        };
        let topics = asked.into_iter().map(|topic| OffsetCommitResponseTopic {
            name: topic.name,
            topic_id: topic.sent_id,
            partitions: topic.partitions.into_iter().map(|partition| row(topic.id, partition)).collect(),
        });
        OffsetCommitResponse { topics: topics.collect(), ..Default::default() }
    }
}

fn by_partition(answer: &OffsetCommitResponse) -> HashMap<(TopicId, PartitionIndex), ErrorCode> {
    let rows = answer
        .topics
        .iter()
        .flat_map(|topic| topic.partitions.iter().map(|one| ((topic.topic_id, one.partition_index), one.error_code)));
    rows.collect()
}
