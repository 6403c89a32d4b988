//! JoinGroup: becomes a member of a classic group and waits for its rebalance.

use bytes::Bytes;

use crate::kafka::error_code::ErrorCode;
use crate::kafka::wire::KafkaString;
use crate::types::GenerationId;

message! {
    /// Asks to join.
    pub message JoinGroupRequest ["0-9", flexible "6+"] {
        group_id ["0+"]: KafkaString,
        session_timeout_ms ["0+"]: i32,
        rebalance_timeout_ms ["1+"]: i32 = -1,
        member_id ["0+"]: KafkaString,
        group_instance_id ["5+", nullable "5+"]: Option<KafkaString>,
        protocol_type ["0+"]: KafkaString,
        protocols ["0+"]: Vec<JoinGroupRequestProtocol>,
        reason ["8+", nullable "8+"]: Option<KafkaString>,
    }

    /// An assignor that the member supports, with its subscription.
    pub struct JoinGroupRequestProtocol {
        name ["0+"]: KafkaString,
        metadata ["0+"]: Bytes,
    }
}

message! {
    /// The generation that was formed.
    pub message JoinGroupResponse ["0-9", flexible "6+"] {
        throttle_time_ms ["2+"]: i32,
        error_code ["0+"]: ErrorCode,
        generation_id ["0+"]: GenerationId = GenerationId(-1),
        protocol_type ["7+", nullable "7+"]: Option<KafkaString>,
        protocol_name ["0+", nullable "7+"]: Option<KafkaString>,
        leader ["0+"]: KafkaString,
        skip_assignment ["9+"]: bool,
        member_id ["0+"]: KafkaString,
        members ["0+"]: Vec<JoinGroupResponseMember>,
    }

    /// A member, told to the leader only.
    pub struct JoinGroupResponseMember {
        member_id ["0+"]: KafkaString,
        group_instance_id ["5+", nullable "5+"]: Option<KafkaString>,
        metadata ["0+"]: Bytes,
    }
}
