//! AlterConfigs: replaces all configurations of a resource.

use crate::kafka::error_code::ErrorCode;
use crate::kafka::wire::KafkaString;

message! {
    /// The new configurations.
    pub message AlterConfigsRequest ["0-2", flexible "2+"] {
        resources ["0+"]: Vec<AlterConfigsResource>,
        validate_only ["0+"]: bool,
    }

    /// A resource.
    pub struct AlterConfigsResource {
        resource_type ["0+"]: i8,
        resource_name ["0+"]: KafkaString,
        configs ["0+"]: Vec<AlterableConfig>,
    }

    /// A configuration of it.
    pub struct AlterableConfig {
        name ["0+"]: KafkaString,
        value ["0+", nullable "0+"]: Option<KafkaString>,
    }
}

message! {
    /// Whether they hold.
    pub message AlterConfigsResponse ["0-2", flexible "2+"] {
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
