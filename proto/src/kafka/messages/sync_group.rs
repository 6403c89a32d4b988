//! SyncGroup: the leader hands in all assignments, each member gets its own.

use bytes::Bytes;

use crate::kafka::error_code::ErrorCode;
use crate::kafka::wire::KafkaString;
use crate::types::GenerationId;

message! {
    /// Asks for the assignment.
    pub message SyncGroupRequest ["0-5", flexible "4+"] {
        group_id ["0+"]: KafkaString,
        generation_id ["0+"]: GenerationId,
        member_id ["0+"]: KafkaString,
        group_instance_id ["3+", nullable "3+"]: Option<KafkaString>,
        protocol_type ["5+", nullable "5+"]: Option<KafkaString>,
        protocol_name ["5+", nullable "5+"]: Option<KafkaString>,
        assignments ["0+"]: Vec<SyncGroupRequestAssignment>,
    }

    /// The assignment of one member, from the leader.
    pub struct SyncGroupRequestAssignment {
        member_id ["0+"]: KafkaString,
        assignment ["0+"]: Bytes,
    }
}

message! {
    /// The assignment of this member.
    pub message SyncGroupResponse ["0-5", flexible "4+"] {
        throttle_time_ms ["1+"]: i32,
        error_code ["0+"]: ErrorCode,
        protocol_type ["5+", nullable "5+"]: Option<KafkaString>,
        protocol_name ["5+", nullable "5+"]: Option<KafkaString>,
        assignment ["0+"]: Bytes,
    }
}
