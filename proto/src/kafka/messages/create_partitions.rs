//! CreatePartitions: adds partitions to topics.

use crate::kafka::error_code::ErrorCode;
use crate::kafka::wire::KafkaString;
use crate::types::BrokerId;

message! {
    /// The new counts.
    pub message CreatePartitionsRequest ["0-3", flexible "2+"] {
        topics ["0+"]: Vec<CreatePartitionsTopic>,
        timeout_ms ["0+"]: i32,
        validate_only ["0+"]: bool,
    }

    /// A topic and how many partitions it shall have.
    pub struct CreatePartitionsTopic {
        name ["0+"]: KafkaString,
        count ["0+"]: i32,
        assignments ["0+", nullable "0+"]: Option<Vec<CreatePartitionsAssignment>>,
    }

    /// Brokers chosen by hand for a new partition.
    pub struct CreatePartitionsAssignment {
        broker_ids ["0+"]: Vec<BrokerId>,
    }
}

message! {
    /// Whether they exist.
    pub message CreatePartitionsResponse ["0-3", flexible "2+"] {
        throttle_time_ms ["0+"]: i32,
        results ["0+"]: Vec<CreatePartitionsTopicResult>,
    }

    /// The outcome for one topic.
    pub struct CreatePartitionsTopicResult {
        name ["0+"]: KafkaString,
        error_code ["0+"]: ErrorCode,
        error_message ["0+", nullable "0+"]: Option<KafkaString>,
    }
}
