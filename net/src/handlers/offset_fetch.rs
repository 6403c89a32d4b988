//! OffsetFetch 1–10: how far groups have read. One group up to version 7, any number from 8 on; topics by id in 10; null
//! topics, from version 2 on, mean all that the group has committed.
//!
//! A partition without a commit is no error: offset -1, empty metadata. The coordinator gets both name and id of each
//! topic; what does not exist is answered here: without a commit if it was named, UNKNOWN_TOPIC_ID if it was not. As in
//! Kafka.

use std::collections::HashMap;

use kaas_core::shard::operation::GroupOperation;
use kaas_proto::kafka::messages::offset_fetch::{
    OffsetFetchRequest, OffsetFetchRequestGroup, OffsetFetchRequestTopics, OffsetFetchResponse,
    OffsetFetchResponseGroup, OffsetFetchResponsePartition, OffsetFetchResponsePartitions, OffsetFetchResponseTopic,
    OffsetFetchResponseTopics,
};
use kaas_proto::kafka::{ErrorCode, KafkaString};
use kaas_proto::types::{Offset, PartitionIndex, TopicId};
use kaas_proto::view::ClusterView;

use crate::cluster::TopicRef;
use crate::context::{Call, Handle};
use crate::coordinator::{self, Answer};

/// The first version with several groups.
const BATCHES: i16 = 8;
/// The first version that names topics by id.
const TOPIC_IDS: i16 = 10;
/// The first version with an error for the group as a whole.
const GROUP_ERROR: i16 = 2;

impl Handle for OffsetFetchRequest {
    async fn handle(self, call: &Call) -> OffsetFetchResponse {
        let groups = if call.version < BATCHES { vec![only_group(&self)] } else { self.groups };
        let mut asked = Vec::with_capacity(groups.len());
        for group in groups {
            asked.push(ask(group, self.require_stable, call).await);
        }
        let mut answered = Vec::with_capacity(asked.len());
        for (topics, group_id, answer) in asked {
            answered.push(match answer.get().await {
                Ok(group) => complete(group, topics),
                Err(error_code) => OffsetFetchResponseGroup { group_id, error_code, ..Default::default() },
            });
        }
        if call.version >= BATCHES {
            return OffsetFetchResponse { groups: answered, ..Default::default() };
        }
        let group = answered.pop().expect("there is one group");
        let topics = match (group.error_code, self.topics) {
            // Version 1 has no other place to say it.
            (code, Some(topics)) if code != ErrorCode::None && call.version < GROUP_ERROR => {
                let rows = topics.iter().map(|topic| (topic.name.clone(), &topic.partition_indexes));
                let row = |index: &PartitionIndex| (*index, code);
                rows.map(|(name, indexes)| error_topic(name, TopicId::ZERO, indexes.iter().map(row))).collect()
            }
            _ => group.topics,
        };
        let topics = topics.into_iter().map(old_topic).collect();
        OffsetFetchResponse { topics, error_code: group.error_code, ..Default::default() }
    }
}

/// The one group of versions below 8, in the form of later ones.
fn only_group(request: &OffsetFetchRequest) -> OffsetFetchRequestGroup {
    let topics = request.topics.as_ref().map(|topics| {
        let topic =
            |topic: &kaas_proto::kafka::messages::offset_fetch::OffsetFetchRequestTopic| OffsetFetchRequestTopics {
                name: topic.name.clone(),
                partition_indexes: topic.partition_indexes.clone(),
                ..Default::default()
            };
        topics.iter().map(topic).collect()
    });
    OffsetFetchRequestGroup { group_id: request.group_id.clone(), topics, ..Default::default() }
}

/// A topic of the request, and its real id if it exists.
struct Asked {
    topic: OffsetFetchRequestTopics,
    found: Result<TopicId, ErrorCode>,
}

type Question = (Option<Vec<Asked>>, KafkaString, Answer<OffsetFetchResponseGroup>);

async fn ask(mut group: OffsetFetchRequestGroup, require_stable: bool, call: &Call) -> Question {
    let view = call.view();
    let asked = group
        .topics
        .take()
        .map(|topics| topics.into_iter().map(|topic| resolve(topic, &view, call.version)).collect::<Vec<Asked>>());
    group.topics = asked.as_ref().map(|asked| {
        let known = asked.iter().filter_map(|Asked { topic, found }| {
            let topic_id = *found.as_ref().ok()?;
            let name = KafkaString::from(&*view.topic_by_id(topic_id)?.name);
            let partition_indexes = topic.partition_indexes.clone();
            Some(OffsetFetchRequestTopics { name, topic_id, partition_indexes })
        });
        known.collect()
    });
    let group_id = group.group_id.clone();
    let fetch = |reply| GroupOperation::FetchOffsets { group, require_stable, reply };
    let answer = coordinator::submit(call, &group_id, fetch).await;
    (asked, group_id, answer)
}

fn resolve(topic: OffsetFetchRequestTopics, view: &ClusterView, version: i16) -> Asked {
    let found = TopicRef::of(version, TOPIC_IDS, &topic.name, topic.topic_id).find(view).map(|topic| topic.id);
    Asked { topic, found }
}

/// Puts the coordinator's answer in the order of the request, with what it was not asked about.
fn complete(mut group: OffsetFetchResponseGroup, asked: Option<Vec<Asked>>) -> OffsetFetchResponseGroup {
    let Some(asked) = asked.filter(|_| group.error_code == ErrorCode::None) else { return group };
    let mut answers: HashMap<TopicId, OffsetFetchResponseTopics> =
        group.topics.drain(..).map(|topic| (topic.topic_id, topic)).collect();
    for Asked { topic, found } in asked {
        let code = match found {
            Ok(id) => match answers.remove(&id) {
                Some(answer) => {
                    group.topics.push(answer);
                    continue;
                }
                None => ErrorCode::None,
            },
            Err(ErrorCode::UnknownTopicId) => ErrorCode::UnknownTopicId,
            Err(_) => ErrorCode::None,
        };
        let rows = topic.partition_indexes.iter().map(|index| (*index, code));
        group.topics.push(error_topic(topic.name, topic.topic_id, rows));
    }
    group
}

/// Rows without a commit.
fn error_topic(
    name: KafkaString,
    topic_id: TopicId,
    rows: impl Iterator<Item = (PartitionIndex, ErrorCode)>,
) -> OffsetFetchResponseTopics {
    let partitions = rows.map(|(partition_index, error_code)| OffsetFetchResponsePartitions {
        partition_index,
        committed_offset: Offset(-1),
        metadata: Some("".into()),
        error_code,
        ..Default::default()
    });
    OffsetFetchResponseTopics { name, topic_id, partitions: partitions.collect() }
}

fn old_topic(topic: OffsetFetchResponseTopics) -> OffsetFetchResponseTopic {
    let partitions = topic.partitions.into_iter().map(|partition| OffsetFetchResponsePartition {
        partition_index: partition.partition_index,
        committed_offset: partition.committed_offset,
        committed_leader_epoch: partition.committed_leader_epoch,
        metadata: partition.metadata,
        error_code: partition.error_code,
    });
    OffsetFetchResponseTopic { partitions: partitions.collect(), name: topic.name }
}
