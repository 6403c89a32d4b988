//! Fetch: reads record batches, waiting for them if there are none yet.

use uuid::Uuid;

use crate::kafka::error_code::ErrorCode;
use crate::kafka::records::Records;
use crate::kafka::wire::KafkaString;
use crate::types::{BrokerId, LeaderEpoch, Offset, PartitionIndex, ProducerId, TopicId};

message! {
    /// Asks for records of partitions, within or without a fetch session.
    pub message FetchRequest ["4-18", flexible "12+"] {
        cluster_id ["12+", nullable "12+", tag 0]: Option<KafkaString>,
        replica_id ["0-14"]: BrokerId = BrokerId(-1),
        replica_state ["15+", tag 1]: ReplicaState,
        max_wait_ms ["0+"]: i32,
        min_bytes ["0+"]: i32,
        max_bytes ["3+"]: i32 = i32::MAX,
        isolation_level ["4+"]: i8,
        session_id ["7+"]: i32,
        session_epoch ["7+"]: i32 = -1,
        topics ["0+"]: Vec<FetchTopic>,
        forgotten_topics_data ["7+"]: Vec<ForgottenTopic>,
        rack_id ["11+"]: KafkaString,
    }

    /// Who fetches, if it is a broker.
    pub struct ReplicaState {
        replica_id ["15+"]: BrokerId = BrokerId(-1),
        replica_epoch ["15+"]: i64 = -1,
    }

    /// What to read of one topic.
    pub struct FetchTopic {
        topic ["0-12"]: KafkaString,
        topic_id ["13+"]: TopicId,
        partitions ["0+"]: Vec<FetchPartition>,
    }

    /// What to read of one partition.
    pub struct FetchPartition {
        partition ["0+"]: PartitionIndex,
        current_leader_epoch ["9+"]: LeaderEpoch = LeaderEpoch(-1),
        fetch_offset ["0+"]: Offset,
        last_fetched_epoch ["12+"]: LeaderEpoch = LeaderEpoch(-1),
        log_start_offset ["5+"]: Offset = Offset(-1),
        partition_max_bytes ["0+"]: i32,
        replica_directory_id ["17+", tag 0]: Uuid,
        high_watermark ["18+", tag 1]: Offset = Offset(i64::MAX),
    }

    /// Partitions that the session drops.
    pub struct ForgottenTopic {
        topic ["7-12"]: KafkaString,
        topic_id ["13+"]: TopicId,
        partitions ["7+"]: Vec<PartitionIndex>,
    }
}

message! {
    /// The records.
    pub message FetchResponse ["4-18", flexible "12+"] {
        throttle_time_ms ["1+"]: i32,
        error_code ["7+"]: ErrorCode,
        session_id ["7+"]: i32,
        responses ["0+"]: Vec<FetchableTopicResponse>,
        node_endpoints ["16+", tag 0]: Vec<NodeEndpoint>,
    }

    /// Records of one topic.
    pub struct FetchableTopicResponse {
        topic ["0-12"]: KafkaString,
        topic_id ["13+"]: TopicId,
        partitions ["0+"]: Vec<PartitionData>,
    }

    /// Records of one partition, and its watermarks.
    pub struct PartitionData {
        partition_index ["0+"]: PartitionIndex,
        error_code ["0+"]: ErrorCode,
        high_watermark ["0+"]: Offset,
        last_stable_offset ["4+"]: Offset = Offset(-1),
        log_start_offset ["5+"]: Offset = Offset(-1),
        diverging_epoch ["12+", tag 0]: EpochEndOffset,
        current_leader ["12+", tag 1]: LeaderIdAndEpoch,
        snapshot_id ["12+", tag 2]: SnapshotId,
        aborted_transactions ["4+", nullable "4+"]: Option<Vec<AbortedTransaction>>,
        preferred_read_replica ["11+"]: BrokerId = BrokerId(-1),
        records ["0+", nullable "0+"]: Records,
    }

    /// Where the fetcher's log departs from the leader's.
    pub struct EpochEndOffset {
        epoch ["12+"]: LeaderEpoch = LeaderEpoch(-1),
        end_offset ["12+"]: Offset = Offset(-1),
    }

    /// Who leads the partition now, if it is not this broker.
    pub struct LeaderIdAndEpoch {
        leader_id ["12+"]: BrokerId = BrokerId(-1),
        leader_epoch ["12+"]: LeaderEpoch = LeaderEpoch(-1),
    }

    /// The snapshot to fetch instead; of KRaft's metadata log alone.
    pub struct SnapshotId {
        end_offset ["0+"]: Offset = Offset(-1),
        epoch ["0+"]: LeaderEpoch = LeaderEpoch(-1),
    }

    /// An aborted transaction with records in the returned range.
    pub struct AbortedTransaction {
        producer_id ["4+"]: ProducerId,
        first_offset ["4+"]: Offset,
    }

    /// Where a leader named in `current_leader` is reached.
    pub struct NodeEndpoint {
        node_id ["16+"]: BrokerId,
        host ["16+"]: KafkaString,
        port ["16+"]: i32,
        rack ["16+", nullable "16+"]: Option<KafkaString>,
    }
}
