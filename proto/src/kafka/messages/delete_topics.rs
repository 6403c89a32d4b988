//! DeleteTopics: deletes topics. By name up to version 5, by name or id from version 6.

use crate::kafka::error_code::ErrorCode;
use crate::kafka::wire::KafkaString;
use crate::types::TopicId;

message! {
    /// The topics to delete.
    pub message DeleteTopicsRequest ["1-6", flexible "4+"] {
        topics ["6+"]: Vec<DeleteTopicState>,
        topic_names ["0-5"]: Vec<KafkaString>,
        timeout_ms ["0+"]: i32,
    }

    /// A topic, by name or by id.
    pub struct DeleteTopicState {
        name ["6+", nullable "6+"]: Option<KafkaString>,
        topic_id ["6+"]: TopicId,
    }
}

message! {
    /// Which were deleted.
    pub message DeleteTopicsResponse ["1-6", flexible "4+"] {
        throttle_time_ms ["1+"]: i32,
        responses ["0+"]: Vec<DeletableTopicResult>,
    }

    /// The outcome for one topic.
    pub struct DeletableTopicResult {
        name ["0+", nullable "6+"]: Option<KafkaString>,
        topic_id ["6+"]: TopicId,
        error_code ["0+"]: ErrorCode,
        error_message ["5+", nullable "5+"]: Option<KafkaString>,
    }
}
