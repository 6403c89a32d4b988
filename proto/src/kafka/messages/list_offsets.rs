//! ListOffsets: finds offsets by timestamp.

use crate::kafka::error_code::ErrorCode;
use crate::kafka::wire::KafkaString;
use crate::types::{BrokerId, LeaderEpoch, Offset, PartitionIndex, TimestampMs};

message! {
    /// Asks for offsets.
    pub message ListOffsetsRequest ["1-11", flexible "6+"] {
        replica_id ["0+"]: BrokerId,
        isolation_level ["2+"]: i8,
        topics ["0+"]: Vec<ListOffsetsTopic>,
        timeout_ms ["10+"]: i32,
    }

    /// Offsets wanted of one topic.
    pub struct ListOffsetsTopic {
        name ["0+"]: KafkaString,
        partitions ["0+"]: Vec<ListOffsetsPartition>,
    }

    /// The offset wanted of one partition; a negative timestamp has a special meaning.
    pub struct ListOffsetsPartition {
        partition_index ["0+"]: PartitionIndex,
        current_leader_epoch ["4+"]: LeaderEpoch = LeaderEpoch(-1),
        timestamp ["0+"]: TimestampMs,
    }
}

message! {
    /// The offsets.
    pub message ListOffsetsResponse ["1-11", flexible "6+"] {
        throttle_time_ms ["2+"]: i32,
        topics ["0+"]: Vec<ListOffsetsTopicResponse>,
    }

    /// Offsets of one topic.
    pub struct ListOffsetsTopicResponse {
        name ["0+"]: KafkaString,
        partitions ["0+"]: Vec<ListOffsetsPartitionResponse>,
    }

    /// The offset found in one partition; −1 if there is none.
    pub struct ListOffsetsPartitionResponse {
        partition_index ["0+"]: PartitionIndex,
        error_code ["0+"]: ErrorCode,
        timestamp ["1+"]: TimestampMs = TimestampMs(-1),
        offset ["1+"]: Offset = Offset(-1),
        leader_epoch ["4+"]: LeaderEpoch = LeaderEpoch(-1),
    }
}
