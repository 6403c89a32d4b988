//! ApiVersions: what a broker speaks; the first thing that clients ask. Its response header is always version 0.

use crate::kafka::error_code::ErrorCode;
use crate::kafka::wire::KafkaString;

message! {
    /// Asks, and says what the client is.
    pub message ApiVersionsRequest ["0-4", flexible "3+"] {
        client_software_name ["3+"]: KafkaString,
        client_software_version ["3+"]: KafkaString,
    }
}

message! {
    /// The APIs and versions.
    pub message ApiVersionsResponse ["0-4", flexible "3+"] {
        error_code ["0+"]: ErrorCode,
        api_keys ["0+"]: Vec<ApiVersion>,
        throttle_time_ms ["1+"]: i32,
        supported_features ["3+", tag 0]: Vec<SupportedFeatureKey>,
        finalized_features_epoch ["3+", tag 1]: i64 = -1,
        finalized_features ["3+", tag 2]: Vec<FinalizedFeatureKey>,
        zk_migration_ready ["3+", tag 3]: bool,
    }

    /// An API and its range of versions.
    pub struct ApiVersion {
        api_key ["0+"]: i16,
        min_version ["0+"]: i16,
        max_version ["0+"]: i16,
    }

    /// A feature and the levels that this broker supports.
    pub struct SupportedFeatureKey {
        name ["3+"]: KafkaString,
        min_version ["3+"]: i16,
        max_version ["3+"]: i16,
    }

    /// A feature and the levels that the cluster has settled on.
    pub struct FinalizedFeatureKey {
        name ["3+"]: KafkaString,
        max_version_level ["3+"]: i16,
        min_version_level ["3+"]: i16,
    }
}
