//! Heartbeat: keeps a member of a classic group alive.

use crate::kafka::error_code::ErrorCode;
use crate::kafka::wire::KafkaString;
use crate::types::GenerationId;

message! {
    /// A sign of life.
    pub message HeartbeatRequest ["0-4", flexible "4+"] {
        group_id ["0+"]: KafkaString,
        generation_id ["0+"]: GenerationId,
        member_id ["0+"]: KafkaString,
        group_instance_id ["3+", nullable "3+"]: Option<KafkaString>,
    }
}

message! {
    /// Whether the member is still one, and of which generation.
    pub message HeartbeatResponse ["0-4", flexible "4+"] {
        throttle_time_ms ["1+"]: i32,
        error_code ["0+"]: ErrorCode,
    }
}
