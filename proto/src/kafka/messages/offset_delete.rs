//! OffsetDelete: forgets committed offsets.

use crate::kafka::error_code::ErrorCode;
use crate::kafka::wire::KafkaString;
use crate::types::PartitionIndex;

message! {
    /// What to forget.
    pub message OffsetDeleteRequest ["0", flexible "none"] {
        group_id ["0+"]: KafkaString,
        topics ["0+"]: Vec<OffsetDeleteRequestTopic>,
    }

    /// Partitions of one topic.
    pub struct OffsetDeleteRequestTopic {
        name ["0+"]: KafkaString,
        partitions ["0+"]: Vec<OffsetDeleteRequestPartition>,
    }

    /// A partition.
    pub struct OffsetDeleteRequestPartition {
        partition_index ["0+"]: PartitionIndex,
    }
}

message! {
    /// What is forgotten.
    pub message OffsetDeleteResponse ["0", flexible "none"] {
        error_code ["0+"]: ErrorCode,
        throttle_time_ms ["0+"]: i32,
        topics ["0+"]: Vec<OffsetDeleteResponseTopic>,
    }

    /// The outcome for one topic.
    pub struct OffsetDeleteResponseTopic {
        name ["0+"]: KafkaString,
        partitions ["0+"]: Vec<OffsetDeleteResponsePartition>,
    }

    /// The outcome for one partition.
    pub struct OffsetDeleteResponsePartition {
        partition_index ["0+"]: PartitionIndex,
        error_code ["0+"]: ErrorCode,
    }
}
