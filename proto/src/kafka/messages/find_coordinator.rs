//! FindCoordinator: which broker coordinates a group or transactional id. One key up to version 3, several from version 4.

use crate::kafka::error_code::ErrorCode;
use crate::kafka::wire::KafkaString;
use crate::types::BrokerId;

message! {
    /// Asks for coordinators.
    pub message FindCoordinatorRequest ["0-6", flexible "3+"] {
        key ["0-3"]: KafkaString,
        key_type ["1+"]: i8,
        coordinator_keys ["4+"]: Vec<KafkaString>,
    }
}

message! {
    /// Where they are.
    pub message FindCoordinatorResponse ["0-6", flexible "3+"] {
        throttle_time_ms ["1+"]: i32,
        error_code ["0-3"]: ErrorCode,
        error_message ["1-3", nullable "1-3"]: Option<KafkaString>,
        node_id ["0-3"]: BrokerId,
        host ["0-3"]: KafkaString,
        port ["0-3"]: i32,
        coordinators ["4+"]: Vec<Coordinator>,
    }

    /// The coordinator of one key.
    pub struct Coordinator {
        key ["4+"]: KafkaString,
        node_id ["4+"]: BrokerId,
        host ["4+"]: KafkaString,
        port ["4+"]: i32,
        error_code ["4+"]: ErrorCode,
        error_message ["4+", nullable "4+"]: Option<KafkaString>,
    }
}
