//! DescribeConfigs: configurations of topics and brokers, with their sources.

use crate::kafka::error_code::ErrorCode;
use crate::kafka::wire::KafkaString;

message! {
    /// Names the resources.
    pub message DescribeConfigsRequest ["1-4", flexible "4+"] {
        resources ["0+"]: Vec<DescribeConfigsResource>,
        include_synonyms ["1+"]: bool,
        include_documentation ["3+"]: bool,
    }

    /// A resource; null keys mean all.
    pub struct DescribeConfigsResource {
        resource_type ["0+"]: i8,
        resource_name ["0+"]: KafkaString,
        configuration_keys ["0+", nullable "0+"]: Option<Vec<KafkaString>>,
    }
}

message! {
    /// Their configurations.
    pub message DescribeConfigsResponse ["1-4", flexible "4+"] {
        throttle_time_ms ["0+"]: i32,
        results ["0+"]: Vec<DescribeConfigsResult>,
    }

    /// Configurations of one resource.
    pub struct DescribeConfigsResult {
        error_code ["0+"]: ErrorCode,
        error_message ["0+", nullable "0+"]: Option<KafkaString>,
        resource_type ["0+"]: i8,
        resource_name ["0+"]: KafkaString,
        configs ["0+"]: Vec<DescribeConfigsResourceResult>,
    }

    /// A configuration.
    pub struct DescribeConfigsResourceResult {
        name ["0+"]: KafkaString,
        value ["0+", nullable "0+"]: Option<KafkaString>,
        read_only ["0+"]: bool,
        config_source ["1+"]: i8 = -1,
        is_sensitive ["0+"]: bool,
        synonyms ["1+"]: Vec<DescribeConfigsSynonym>,
        config_type ["3+"]: i8,
        documentation ["3+", nullable "0+"]: Option<KafkaString>,
    }

    /// Another place that the configuration could have come from.
    pub struct DescribeConfigsSynonym {
        name ["1+"]: KafkaString,
        value ["1+", nullable "0+"]: Option<KafkaString>,
        source ["1+"]: i8,
    }
}
