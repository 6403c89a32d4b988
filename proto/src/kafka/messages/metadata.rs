//! Metadata: brokers, topics, and who leads what.

use crate::kafka::error_code::ErrorCode;
use crate::kafka::wire::KafkaString;
use crate::types::{BrokerId, LeaderEpoch, PartitionIndex, TopicId};

message! {
    /// Asks for topics: null means all, in version 0 an empty list does.
    pub message MetadataRequest ["0-13", flexible "9+"] {
        topics ["0+", nullable "1+"]: Option<Vec<MetadataRequestTopic>>,
        allow_auto_topic_creation ["4+"]: bool = true,
        include_cluster_authorized_operations ["8-10"]: bool,
        include_topic_authorized_operations ["8+"]: bool,
    }

    /// A topic, by name, or by id where the name is null.
    pub struct MetadataRequestTopic {
        topic_id ["10+"]: TopicId,
        name ["0+", nullable "10+"]: Option<KafkaString>,
    }
}

message! {
    /// The cluster as this broker sees it.
    pub message MetadataResponse ["0-13", flexible "9+"] {
        throttle_time_ms ["3+"]: i32,
        brokers ["0+"]: Vec<MetadataResponseBroker>,
        cluster_id ["2+", nullable "2+"]: Option<KafkaString>,
        controller_id ["1+"]: BrokerId = BrokerId(-1),
        topics ["0+"]: Vec<MetadataResponseTopic>,
        cluster_authorized_operations ["8-10"]: i32 = i32::MIN,
        error_code ["13+"]: ErrorCode,
    }

    /// A broker and its address.
    pub struct MetadataResponseBroker {
        node_id ["0+"]: BrokerId,
        host ["0+"]: KafkaString,
        port ["0+"]: i32,
        rack ["1+", nullable "1+"]: Option<KafkaString>,
    }

    /// A topic and its partitions.
    pub struct MetadataResponseTopic {
        error_code ["0+"]: ErrorCode,
        name ["0+", nullable "12+"]: Option<KafkaString>,
        topic_id ["10+"]: TopicId,
        is_internal ["1+"]: bool,
        partitions ["0+"]: Vec<MetadataResponsePartition>,
        topic_authorized_operations ["8+"]: i32 = i32::MIN,
    }

    /// A partition and its leader.
    pub struct MetadataResponsePartition {
        error_code ["0+"]: ErrorCode,
        partition_index ["0+"]: PartitionIndex,
        leader_id ["0+"]: BrokerId,
        leader_epoch ["7+"]: LeaderEpoch = LeaderEpoch(-1),
        replica_nodes ["0+"]: Vec<BrokerId>,
        isr_nodes ["0+"]: Vec<BrokerId>,
        offline_replicas ["5+"]: Vec<BrokerId>,
    }
}
