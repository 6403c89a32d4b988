//! DescribeProducers: the idempotent and transactional producers of partitions.

use crate::kafka::error_code::ErrorCode;
use crate::kafka::wire::KafkaString;
use crate::types::{Offset, PartitionIndex, ProducerId, TimestampMs};

message! {
    /// Names the partitions.
    pub message DescribeProducersRequest ["0", flexible "0+"] {
        topics ["0+"]: Vec<TopicRequest>,
    }

    /// Partitions of one topic.
    pub struct TopicRequest {
        name ["0+"]: KafkaString,
        partition_indexes ["0+"]: Vec<PartitionIndex>,
    }
}

message! {
    /// Their producers.
    pub message DescribeProducersResponse ["0", flexible "0+"] {
        throttle_time_ms ["0+"]: i32,
        topics ["0+"]: Vec<TopicResponse>,
    }

    /// Producers in one topic.
    pub struct TopicResponse {
        name ["0+"]: KafkaString,
        partitions ["0+"]: Vec<PartitionResponse>,
    }

    /// Producers of one partition.
    pub struct PartitionResponse {
        partition_index ["0+"]: PartitionIndex,
        error_code ["0+"]: ErrorCode,
        error_message ["0+", nullable "0+"]: Option<KafkaString>,
        active_producers ["0+"]: Vec<ProducerState>,
    }

    /// A producer.
    pub struct ProducerState {
        producer_id ["0+"]: ProducerId,
        producer_epoch ["0+"]: i32,
        last_sequence ["0+"]: i32 = -1,
        last_timestamp ["0+"]: TimestampMs = TimestampMs(-1),
        coordinator_epoch ["0+"]: i32,
        current_txn_start_offset ["0+"]: Offset = Offset(-1),
    }
}
