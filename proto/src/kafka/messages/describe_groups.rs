//! DescribeGroups: state and members of classic groups.

use bytes::Bytes;

use crate::kafka::error_code::ErrorCode;
use crate::kafka::wire::KafkaString;

message! {
    /// Names the groups.
    pub message DescribeGroupsRequest ["0-6", flexible "5+"] {
        groups ["0+"]: Vec<KafkaString>,
        include_authorized_operations ["3+"]: bool,
    }
}

message! {
    /// What they are.
    pub message DescribeGroupsResponse ["0-6", flexible "5+"] {
        throttle_time_ms ["1+"]: i32,
        groups ["0+"]: Vec<DescribedGroup>,
    }

    /// A group.
    pub struct DescribedGroup {
        error_code ["0+"]: ErrorCode,
        error_message ["6+", nullable "6+"]: Option<KafkaString>,
        group_id ["0+"]: KafkaString,
        group_state ["0+"]: KafkaString,
        protocol_type ["0+"]: KafkaString,
        protocol_data ["0+"]: KafkaString,
        members ["0+"]: Vec<DescribedGroupMember>,
        authorized_operations ["3+"]: i32 = i32::MIN,
    }

    /// A member of it.
    pub struct DescribedGroupMember {
        member_id ["0+"]: KafkaString,
        group_instance_id ["4+", nullable "4+"]: Option<KafkaString>,
        client_id ["0+"]: KafkaString,
        client_host ["0+"]: KafkaString,
        member_metadata ["0+"]: Bytes,
        member_assignment ["0+"]: Bytes,
    }
}
