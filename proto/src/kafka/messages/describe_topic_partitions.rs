//! DescribeTopicPartitions: topics and partitions, page by page.

use crate::kafka::error_code::ErrorCode;
use crate::kafka::wire::KafkaString;
use crate::types::{BrokerId, LeaderEpoch, PartitionIndex, TopicId};

message! {
    /// Names the topics.
    pub message DescribeTopicPartitionsRequest ["0", flexible "0+"] {
        topics ["0+"]: Vec<TopicRequest>,
        response_partition_limit ["0+"]: i32 = 2_000,
        cursor ["0+", nullable "0+"]: Option<Cursor>,
    }

    /// A topic.
    pub struct TopicRequest {
        name ["0+"]: KafkaString,
    }

    /// Where the next page begins.
    pub struct Cursor {
        topic_name ["0+"]: KafkaString,
        partition_index ["0+"]: PartitionIndex,
    }
}

message! {
    /// A page.
    pub message DescribeTopicPartitionsResponse ["0", flexible "0+"] {
        throttle_time_ms ["0+"]: i32,
        topics ["0+"]: Vec<DescribeTopicPartitionsResponseTopic>,
        next_cursor ["0+", nullable "0+"]: Option<Cursor>,
    }

    /// A topic.
    pub struct DescribeTopicPartitionsResponseTopic {
        error_code ["0+"]: ErrorCode,
        name ["0+", nullable "0+"]: Option<KafkaString>,
        topic_id ["0+"]: TopicId,
        is_internal ["0+"]: bool,
        partitions ["0+"]: Vec<DescribeTopicPartitionsResponsePartition>,
        topic_authorized_operations ["0+"]: i32 = i32::MIN,
    }

    /// A partition.
    pub struct DescribeTopicPartitionsResponsePartition {
        error_code ["0+"]: ErrorCode,
        partition_index ["0+"]: PartitionIndex,
        leader_id ["0+"]: BrokerId,
        leader_epoch ["0+"]: LeaderEpoch = LeaderEpoch(-1),
        replica_nodes ["0+"]: Vec<BrokerId>,
        isr_nodes ["0+"]: Vec<BrokerId>,
        eligible_leader_replicas ["0+", nullable "0+"]: Option<Vec<BrokerId>>,
        last_known_elr ["0+", nullable "0+"]: Option<Vec<BrokerId>>,
        offline_replicas ["0+"]: Vec<BrokerId>,
    }
}
