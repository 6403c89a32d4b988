//! DeleteGroups: deletes empty groups.

use crate::kafka::error_code::ErrorCode;
use crate::kafka::wire::KafkaString;

message! {
    /// The groups to delete.
    pub message DeleteGroupsRequest ["0-2", flexible "2+"] {
        groups_names ["0+"]: Vec<KafkaString>,
    }
}

message! {
    /// Which were deleted.
    pub message DeleteGroupsResponse ["0-2", flexible "2+"] {
        throttle_time_ms ["0+"]: i32,
        results ["0+"]: Vec<DeletableGroupResult>,
    }

    /// The outcome for one group.
    pub struct DeletableGroupResult {
        group_id ["0+"]: KafkaString,
        error_code ["0+"]: ErrorCode,
    }
}
