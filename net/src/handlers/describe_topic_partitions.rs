//! DescribeTopicPartitions 0: topics and partitions in order of name, page by page.
//!
//! No topics means all. A page has at most as many partitions as the client or `max.request.partition.size.limit` says;
//! the cursor then names the partition that the next page begins with. Differences from Kafka: there are no eligible
//! leader replicas to list. Everything is authorized.

use std::collections::BTreeSet;

use kaas_proto::kafka::messages::describe_topic_partitions::{
    Cursor, DescribeTopicPartitionsRequest, DescribeTopicPartitionsResponse, DescribeTopicPartitionsResponsePartition,
    DescribeTopicPartitionsResponseTopic,
};
use kaas_proto::kafka::{ErrorCode, KafkaString};
use kaas_proto::topic_name;
use kaas_proto::types::PartitionIndex;
use kaas_proto::view::{ClusterView, TopicView};

use crate::authorized_operations;
use crate::cluster;
use crate::context::{Call, Client, Handle};

impl Handle for DescribeTopicPartitionsRequest {
    async fn handle(self, call: &Call) -> DescribeTopicPartitionsResponse {
        let most = call.shard.config.max_described_partitions;
        page(&self, &call.view(), &call.client, most)
    }
}

fn page(
    request: &DescribeTopicPartitionsRequest,
    view: &ClusterView,
    client: &Client,
    most: usize,
) -> DescribeTopicPartitionsResponse {
    let all = || view.topics.keys().map(|name| &**name).collect();
    let asked: BTreeSet<&str> = request.topics.iter().map(|topic| &*topic.name).collect();
    let names: BTreeSet<&str> = if asked.is_empty() { all() } else { asked };
    let (from, mut first) = match &request.cursor {
        Some(cursor) => (&*cursor.topic_name, usize::try_from(cursor.partition_index.0).unwrap_or(0)),
        None => ("", 0),
    };
    let mut left = usize::try_from(request.response_partition_limit).unwrap_or(0).clamp(1, most);
    let mut response = DescribeTopicPartitionsResponse::default();
    for name in names.range(from..) {
        let skipped = if *name == from { std::mem::take(&mut first) } else { 0 };
        let Some(topic) = view.topic(name) else {
            response.topics.push(missing(name));
            continue;
        };
        if left == 0 {
            response.next_cursor = Some(cursor(name, 0));
            break;
        }
        let shown = topic.partitions.len().saturating_sub(skipped).min(left);
        left -= shown;
        response.topics.push(described(view, topic, skipped..skipped + shown, client));
        if skipped + shown < topic.partitions.len() {
            response.next_cursor = Some(cursor(name, skipped + shown));
            break;
        }
    }
    response
}

fn cursor(topic: &str, partition: usize) -> Cursor {
    Cursor { topic_name: topic.into(), partition_index: index(partition) }
}

fn index(partition: usize) -> PartitionIndex {
    PartitionIndex(i32::try_from(partition).expect("the number of partitions is an i32"))
}

fn missing(name: &str) -> DescribeTopicPartitionsResponseTopic {
    let valid = topic_name::check(name).is_ok();
    DescribeTopicPartitionsResponseTopic {
        error_code: if valid { ErrorCode::UnknownTopicOrPartition } else { ErrorCode::InvalidTopicException },
        name: Some(name.into()),
        is_internal: topic_name::is_internal(name),
        ..Default::default()
    }
}

fn described(
    view: &ClusterView,
    topic: &TopicView,
    partitions: std::ops::Range<usize>,
    client: &Client,
) -> DescribeTopicPartitionsResponseTopic {
    let partitions = partitions.map(|partition| {
        let state = cluster::partition_state(view, topic.partitions[partition], client);
        DescribeTopicPartitionsResponsePartition {
            error_code: state.code,
            partition_index: index(partition),
            leader_id: state.leader,
            leader_epoch: state.epoch,
            replica_nodes: state.replicas,
            isr_nodes: state.in_sync,
            eligible_leader_replicas: Some(vec![]),
            last_known_elr: Some(vec![]),
            offline_replicas: state.offline,
        }
    });
    DescribeTopicPartitionsResponseTopic {
        error_code: ErrorCode::None,
        name: Some(KafkaString::from(&*topic.name)),
        topic_id: topic.id,
        is_internal: topic.is_internal(),
        partitions: partitions.collect(),
        topic_authorized_operations: authorized_operations::TOPIC,
    }
}
