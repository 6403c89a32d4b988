//! DescribeLogDirs 1–5: the sizes of the partitions that this broker leads. Null topics mean all.
//!
//! Differences from Kafka: there is one directory, the volume. Only partitions that are led here are listed: a shared
//! volume holds those of all brokers. Total and usable bytes (from version 4 on) are the volume's, as of a few seconds ago;
//! -1 in local-dev mode, and while the volume does not answer.

use std::collections::{BTreeMap, HashSet};

use kaas_core::shard::operation::{DescribePartitions, DescribeVolume, ShardOperation};
use kaas_proto::control::PartitionSize;
use kaas_proto::kafka::KafkaString;
use kaas_proto::kafka::messages::describe_log_dirs::{
    DescribeLogDirsPartition, DescribeLogDirsRequest, DescribeLogDirsResponse, DescribeLogDirsResult,
    DescribeLogDirsTopic,
};
use kaas_proto::types::{PartitionIndex, ShardId};

use crate::context::{Call, Handle};

/// Shown where there is no data directory: local-dev mode.
const MEMORY: &str = "memory";

/// For a size that nobody knows.
const UNKNOWN: i64 = -1;

fn number(bytes: u64) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}

impl Handle for DescribeLogDirsRequest {
    async fn handle(self, call: &Call) -> DescribeLogDirsResponse {
        let wanted: Option<HashSet<(KafkaString, PartitionIndex)>> = self.topics.map(|topics| {
            let named = |index, name: &KafkaString| (name.clone(), index);
            let all = topics.iter().flat_map(|topic| topic.partitions.iter().map(|one| named(*one, &topic.topic)));
            all.collect()
        });
        let describe = |reply| ShardOperation::DescribePartitions(DescribePartitions { reply });
        let view = call.view();
        let mut topics: BTreeMap<&str, Vec<DescribeLogDirsPartition>> = BTreeMap::new();
        for size in call.shard.router.ask_all(describe).await.into_iter().flatten() {
            let Some(topic) = view.topic_by_id(size.partition.topic_id) else { continue };
            let name = KafkaString::from(&*topic.name);
            if wanted.as_ref().is_none_or(|wanted| wanted.contains(&(name, size.partition.partition))) {
                topics.entry(&topic.name).or_default().push(partition(size));
            }
        }
        let topics = topics.into_iter().map(|(name, mut partitions)| {
            partitions.sort_by_key(|partition| partition.partition_index);
            DescribeLogDirsTopic { name: name.into(), partitions }
        });
        let directory = call.shard.config.entries().into_iter().find(|entry| entry.definition.name == "log.dirs");
        let log_dir = directory.and_then(|entry| entry.value).unwrap_or_else(|| MEMORY.to_owned());
        let describe = |reply| ShardOperation::DescribeVolume(DescribeVolume { reply });
        let space = call.shard.router.ask(ShardId(0), describe).await.flatten();
        let result = DescribeLogDirsResult {
            log_dir: log_dir.into(),
            topics: topics.collect(),
            total_bytes: space.map_or(UNKNOWN, |space| number(space.total_bytes)),
            usable_bytes: space.map_or(UNKNOWN, |space| number(space.available_bytes)),
            ..Default::default()
        };
        DescribeLogDirsResponse { results: vec![result], ..Default::default() }
    }
}

fn partition(size: PartitionSize) -> DescribeLogDirsPartition {
    DescribeLogDirsPartition {
        partition_index: size.partition.partition,
        partition_size: number(size.bytes),
        ..Default::default()
    }
}
