//! OffsetFetch: reads how far groups have read. One group up to version 7, any number from version 8.

use crate::kafka::error_code::ErrorCode;
use crate::kafka::wire::KafkaString;
use crate::types::{LeaderEpoch, Offset, PartitionIndex, TopicId};

message! {
    /// Asks for committed offsets.
    pub message OffsetFetchRequest ["1-10", flexible "6+"] {
        group_id ["0-7"]: KafkaString,
        topics ["0-7", nullable "2-7"]: Option<Vec<OffsetFetchRequestTopic>>,
        groups ["8+"]: Vec<OffsetFetchRequestGroup>,
        require_stable ["7+"]: bool,
    }

    /// A topic of the one group.
    pub struct OffsetFetchRequestTopic {
        name ["0-7"]: KafkaString,
        partition_indexes ["0-7"]: Vec<PartitionIndex>,
    }

    /// A group; null topics mean all that it has committed.
    pub struct OffsetFetchRequestGroup {
        group_id ["8+"]: KafkaString,
        member_id ["9+", nullable "9+"]: Option<KafkaString>,
        member_epoch ["9+"]: i32 = -1,
        topics ["8+", nullable "8+"]: Option<Vec<OffsetFetchRequestTopics>>,
    }

    /// A topic of a group.
    pub struct OffsetFetchRequestTopics {
        name ["8-9"]: KafkaString,
        topic_id ["10+"]: TopicId,
        partition_indexes ["8+"]: Vec<PartitionIndex>,
    }
}

message! {
    /// The committed offsets.
    pub message OffsetFetchResponse ["1-10", flexible "6+"] {
        throttle_time_ms ["3+"]: i32,
        topics ["0-7"]: Vec<OffsetFetchResponseTopic>,
        error_code ["2-7"]: ErrorCode,
        groups ["8+"]: Vec<OffsetFetchResponseGroup>,
    }

    /// Offsets of the one group in a topic.
    pub struct OffsetFetchResponseTopic {
        name ["0-7"]: KafkaString,
        partitions ["0-7"]: Vec<OffsetFetchResponsePartition>,
    }

    /// Its offset in a partition; −1 if none is committed.
    pub struct OffsetFetchResponsePartition {
        partition_index ["0-7"]: PartitionIndex,
        committed_offset ["0-7"]: Offset,
        committed_leader_epoch ["5-7"]: LeaderEpoch = LeaderEpoch(-1),
        metadata ["0-7", nullable "0-7"]: Option<KafkaString>,
        error_code ["0-7"]: ErrorCode,
    }

    /// Offsets of a group.
    pub struct OffsetFetchResponseGroup {
        group_id ["8+"]: KafkaString,
        topics ["8+"]: Vec<OffsetFetchResponseTopics>,
        error_code ["8+"]: ErrorCode,
    }

    /// Offsets of a group in a topic.
    pub struct OffsetFetchResponseTopics {
        name ["8-9"]: KafkaString,
        topic_id ["10+"]: TopicId,
        partitions ["8+"]: Vec<OffsetFetchResponsePartitions>,
    }

    /// Its offset in a partition; −1 if none is committed.
    pub struct OffsetFetchResponsePartitions {
        partition_index ["8+"]: PartitionIndex,
        committed_offset ["8+"]: Offset,
        committed_leader_epoch ["8+"]: LeaderEpoch = LeaderEpoch(-1),
        metadata ["8+", nullable "8+"]: Option<KafkaString>,
        error_code ["8+"]: ErrorCode,
    }
}
