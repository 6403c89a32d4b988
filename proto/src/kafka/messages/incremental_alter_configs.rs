//! IncrementalAlterConfigs: changes single configurations of a resource.

use crate::kafka::error_code::ErrorCode;
use crate::kafka::wire::KafkaString;

message! {
    /// The changes.
    pub message IncrementalAlterConfigsRequest ["0-1", flexible "1+"] {
        resources ["0+"]: Vec<AlterConfigsResource>,
        validate_only ["0+"]: bool,
    }

    /// A resource.
    pub struct AlterConfigsResource {
        resource_type ["0+"]: i8,
        resource_name ["0+"]: KafkaString,
        configs ["0+"]: Vec<AlterableConfig>,
    }

    /// A change: set, delete, append or subtract.
    pub struct AlterableConfig {
        name ["0+"]: KafkaString,
        config_operation ["0+"]: i8,
        value ["0+", nullable "0+"]: Option<KafkaString>,
    }
}

message! {
    /// Whether they hold.
    pub message IncrementalAlterConfigsResponse ["0-1", flexible "1+"] {
        throttle_time_ms ["0+"]: i32,
        responses ["0+"]: Vec<AlterConfigsResourceResponse>,
    }

    /// The outcome for one resource.
    pub struct AlterConfigsResourceResponse {
        error_code ["0+"]: ErrorCode,
        error_message ["0+", nullable "0+"]: Option<KafkaString>,
        resource_type ["0+"]: i8,
        resource_name ["0+"]: KafkaString,
    }
}
