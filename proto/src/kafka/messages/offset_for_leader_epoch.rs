//! OffsetForLeaderEpoch: where a leader epoch ended, for clients that look for truncation.

use crate::kafka::error_code::ErrorCode;
use crate::kafka::wire::KafkaString;
use crate::types::{BrokerId, LeaderEpoch, Offset, PartitionIndex};

message! {
    /// Asks for the ends of epochs.
    pub message OffsetForLeaderEpochRequest ["2-4", flexible "4+"] {
        replica_id ["3+"]: BrokerId = BrokerId(-2),
        topics ["0+"]: Vec<OffsetForLeaderTopic>,
    }

    /// Epochs of one topic.
    pub struct OffsetForLeaderTopic {
        topic ["0+"]: KafkaString,
        partitions ["0+"]: Vec<OffsetForLeaderPartition>,
    }

    /// The epoch of one partition.
    pub struct OffsetForLeaderPartition {
        partition ["0+"]: PartitionIndex,
        current_leader_epoch ["2+"]: LeaderEpoch = LeaderEpoch(-1),
        leader_epoch ["0+"]: LeaderEpoch,
    }
}

message! {
    /// The ends.
    pub message OffsetForLeaderEpochResponse ["2-4", flexible "4+"] {
        throttle_time_ms ["2+"]: i32,
        topics ["0+"]: Vec<OffsetForLeaderTopicResult>,
    }

    /// Ends in one topic.
    pub struct OffsetForLeaderTopicResult {
        topic ["0+"]: KafkaString,
        partitions ["0+"]: Vec<EpochEndOffset>,
    }

    /// The end in one partition.
    pub struct EpochEndOffset {
        error_code ["0+"]: ErrorCode,
        partition ["0+"]: PartitionIndex,
        leader_epoch ["1+"]: LeaderEpoch = LeaderEpoch(-1),
        end_offset ["0+"]: Offset = Offset(-1),
    }
}
