//! Produce: appends record batches to partitions.

use crate::kafka::error_code::ErrorCode;
use crate::kafka::records::Records;
use crate::kafka::wire::KafkaString;
use crate::types::{BrokerId, LeaderEpoch, Offset, PartitionIndex, TimestampMs, TopicId};

message! {
    /// Asks to append record batches.
    pub message ProduceRequest ["3-13", flexible "9+"] {
        transactional_id ["3+", nullable "3+"]: Option<KafkaString>,
        acks ["0+"]: i16,
        timeout_ms ["0+"]: i32,
        topic_data ["0+"]: Vec<TopicProduceData>,
    }

    /// What to append to one topic.
    pub struct TopicProduceData {
        name ["0-12"]: KafkaString,
        topic_id ["13+"]: TopicId,
        partition_data ["0+"]: Vec<PartitionProduceData>,
    }

    /// What to append to one partition.
    pub struct PartitionProduceData {
        index ["0+"]: PartitionIndex,
        records ["0+", nullable "0+"]: Records,
    }
}

message! {
    /// Says where they were appended.
    pub message ProduceResponse ["3-13", flexible "9+"] {
        responses ["0+"]: Vec<TopicProduceResponse>,
        throttle_time_ms ["1+"]: i32,
        node_endpoints ["10+", tag 0]: Vec<NodeEndpoint>,
    }

    /// The outcome for one topic.
    pub struct TopicProduceResponse {
        name ["0-12"]: KafkaString,
        topic_id ["13+"]: TopicId,
        partition_responses ["0+"]: Vec<PartitionProduceResponse>,
    }

    /// The outcome for one partition.
    pub struct PartitionProduceResponse {
        index ["0+"]: PartitionIndex,
        error_code ["0+"]: ErrorCode,
        base_offset ["0+"]: Offset,
        log_append_time_ms ["2+"]: TimestampMs = TimestampMs(-1),
        log_start_offset ["5+"]: Offset = Offset(-1),
        record_errors ["8+"]: Vec<BatchIndexAndErrorMessage>,
        error_message ["8+", nullable "8+"]: Option<KafkaString>,
        current_leader ["10+", tag 0]: LeaderIdAndEpoch,
    }

    /// A record that made its batch invalid.
    pub struct BatchIndexAndErrorMessage {
        batch_index ["8+"]: i32,
        batch_index_error_message ["8+", nullable "8+"]: Option<KafkaString>,
    }

    /// Who leads the partition now, if it is not this broker.
    pub struct LeaderIdAndEpoch {
        leader_id ["10+"]: BrokerId = BrokerId(-1),
        leader_epoch ["10+"]: LeaderEpoch = LeaderEpoch(-1),
    }

    /// Where a leader named in `current_leader` is reached.
    pub struct NodeEndpoint {
        node_id ["10+"]: BrokerId,
        host ["10+"]: KafkaString,
        port ["10+"]: i32,
        rack ["10+", nullable "10+"]: Option<KafkaString>,
    }
}
