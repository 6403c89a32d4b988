//! LeaveGroup: ends memberships. One member up to version 2, several from version 3.

use crate::kafka::error_code::ErrorCode;
use crate::kafka::wire::KafkaString;

message! {
    /// Asks to leave.
    pub message LeaveGroupRequest ["0-5", flexible "4+"] {
        group_id ["0+"]: KafkaString,
        member_id ["0-2"]: KafkaString,
        members ["3+"]: Vec<MemberIdentity>,
    }

    /// A member that leaves, by member id or instance id.
    pub struct MemberIdentity {
        member_id ["3+"]: KafkaString,
        group_instance_id ["3+", nullable "3+"]: Option<KafkaString>,
        reason ["5+", nullable "5+"]: Option<KafkaString>,
    }
}

message! {
    /// Whether they left.
    pub message LeaveGroupResponse ["0-5", flexible "4+"] {
        throttle_time_ms ["1+"]: i32,
        error_code ["0+"]: ErrorCode,
        members ["3+"]: Vec<MemberResponse>,
    }

    /// The outcome for one member.
    pub struct MemberResponse {
        member_id ["3+"]: KafkaString,
        group_instance_id ["3+", nullable "3+"]: Option<KafkaString>,
        error_code ["3+"]: ErrorCode,
    }
}
