//! OffsetCommit: stores how far a group has read.

use crate::kafka::error_code::ErrorCode;
use crate::kafka::wire::KafkaString;
use crate::types::{GenerationId, LeaderEpoch, Offset, PartitionIndex, TopicId};

message! {
    /// The offsets to store.
    pub message OffsetCommitRequest ["2-10", flexible "8+"] {
        group_id ["0+"]: KafkaString,
        generation_id_or_member_epoch ["1+"]: GenerationId = GenerationId(-1),
        member_id ["1+"]: KafkaString,
        group_instance_id ["7+", nullable "7+"]: Option<KafkaString>,
        retention_time_ms ["2-4"]: i64 = -1,
        topics ["0+"]: Vec<OffsetCommitRequestTopic>,
    }

    /// Offsets of one topic.
    pub struct OffsetCommitRequestTopic {
        name ["0-9"]: KafkaString,
        topic_id ["10+"]: TopicId,
        partitions ["0+"]: Vec<OffsetCommitRequestPartition>,
    }

    /// The offset of one partition.
    pub struct OffsetCommitRequestPartition {
        partition_index ["0+"]: PartitionIndex,
        committed_offset ["0+"]: Offset,
        committed_leader_epoch ["6+"]: LeaderEpoch = LeaderEpoch(-1),
        committed_metadata ["0+", nullable "0+"]: Option<KafkaString>,
    }
}

message! {
    /// Whether they are stored.
    pub message OffsetCommitResponse ["2-10", flexible "8+"] {
        throttle_time_ms ["3+"]: i32,
        topics ["0+"]: Vec<OffsetCommitResponseTopic>,
    }

    /// The outcome for one topic.
    pub struct OffsetCommitResponseTopic {
        name ["0-9"]: KafkaString,
        topic_id ["10+"]: TopicId,
        partitions ["0+"]: Vec<OffsetCommitResponsePartition>,
    }

    /// The outcome for one partition.
    pub struct OffsetCommitResponsePartition {
        partition_index ["0+"]: PartitionIndex,
        error_code ["0+"]: ErrorCode,
    }
}
