//! CreateTopics: creates topics.

use crate::kafka::error_code::ErrorCode;
use crate::kafka::wire::KafkaString;
use crate::types::{BrokerId, PartitionIndex, TopicId};

message! {
    /// The topics to create.
    pub message CreateTopicsRequest ["2-7", flexible "5+"] {
        topics ["0+"]: Vec<CreatableTopic>,
        timeout_ms ["0+"]: i32 = 60_000,
        validate_only ["1+"]: bool,
    }

    /// A topic to create.
    pub struct CreatableTopic {
        name ["0+"]: KafkaString,
        num_partitions ["0+"]: i32,
        replication_factor ["0+"]: i16,
        assignments ["0+"]: Vec<CreatableReplicaAssignment>,
        configs ["0+"]: Vec<CreatableTopicConfig>,
    }

    /// Brokers chosen by hand for a partition.
    pub struct CreatableReplicaAssignment {
        partition_index ["0+"]: PartitionIndex,
        broker_ids ["0+"]: Vec<BrokerId>,
    }

    /// A configuration of a new topic.
    pub struct CreatableTopicConfig {
        name ["0+"]: KafkaString,
        value ["0+", nullable "0+"]: Option<KafkaString>,
    }
}

message! {
    /// Which were created.
    pub message CreateTopicsResponse ["2-7", flexible "5+"] {
        throttle_time_ms ["2+"]: i32,
        topics ["0+"]: Vec<CreatableTopicResult>,
    }

    /// The outcome for one topic.
    pub struct CreatableTopicResult {
        name ["0+"]: KafkaString,
        topic_id ["7+"]: TopicId,
        error_code ["0+"]: ErrorCode,
        error_message ["1+", nullable "0+"]: Option<KafkaString>,
        topic_config_error_code ["5+", tag 0]: ErrorCode,
        num_partitions ["5+"]: i32 = -1,
        replication_factor ["5+"]: i16 = -1,
        configs ["5+", nullable "5+"]: Option<Vec<CreatableTopicConfigs>>,
    }

    /// A configuration as the new topic has it.
    pub struct CreatableTopicConfigs {
        name ["5+"]: KafkaString,
        value ["5+", nullable "5+"]: Option<KafkaString>,
        read_only ["5+"]: bool,
        config_source ["5+"]: i8 = -1,
        is_sensitive ["5+"]: bool,
    }
}
