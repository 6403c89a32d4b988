//! ListGroups: the groups that this broker coordinates.

use crate::kafka::error_code::ErrorCode;
use crate::kafka::wire::KafkaString;

message! {
    /// Asks for groups, of certain states and types if any are given.
    pub message ListGroupsRequest ["0-5", flexible "3+"] {
        states_filter ["4+"]: Vec<KafkaString>,
        types_filter ["5+"]: Vec<KafkaString>,
    }
}

message! {
    /// The groups.
    pub message ListGroupsResponse ["0-5", flexible "3+"] {
        throttle_time_ms ["1+"]: i32,
        error_code ["0+"]: ErrorCode,
        groups ["0+"]: Vec<ListedGroup>,
    }

    /// A group.
    pub struct ListedGroup {
        group_id ["0+"]: KafkaString,
        protocol_type ["0+"]: KafkaString,
        group_state ["4+"]: KafkaString,
        group_type ["5+"]: KafkaString,
    }
}
