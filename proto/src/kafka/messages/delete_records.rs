//! DeleteRecords: raises log start offsets.

use crate::kafka::error_code::ErrorCode;
use crate::kafka::wire::KafkaString;
use crate::types::{Offset, PartitionIndex};

message! {
    /// Asks to delete what lies below certain offsets.
    pub message DeleteRecordsRequest ["0-2", flexible "2+"] {
        topics ["0+"]: Vec<DeleteRecordsTopic>,
        timeout_ms ["0+"]: i32,
    }

    /// Partitions of one topic.
    pub struct DeleteRecordsTopic {
        name ["0+"]: KafkaString,
        partitions ["0+"]: Vec<DeleteRecordsPartition>,
    }

    /// The offset for one partition; −1 is its high watermark.
    pub struct DeleteRecordsPartition {
        partition_index ["0+"]: PartitionIndex,
        offset ["0+"]: Offset,
    }
}

message! {
    /// The new log start offsets.
    pub message DeleteRecordsResponse ["0-2", flexible "2+"] {
        throttle_time_ms ["0+"]: i32,
        topics ["0+"]: Vec<DeleteRecordsTopicResult>,
    }

    /// The outcome for one topic.
    pub struct DeleteRecordsTopicResult {
        name ["0+"]: KafkaString,
        partitions ["0+"]: Vec<DeleteRecordsPartitionResult>,
    }

    /// The outcome for one partition.
    pub struct DeleteRecordsPartitionResult {
        partition_index ["0+"]: PartitionIndex,
        low_watermark ["0+"]: Offset,
        error_code ["0+"]: ErrorCode,
    }
}
