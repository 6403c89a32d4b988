//! ApiVersions 0–4: the one table of APIs, as it is.
//!
//! The response header is always version 0, and a version that we don't know is answered in version 0 with error 35 and
//! the whole table, so that the client can ask again in one that we do (KIP-511). Since version 3 the client says what it
//! is; a name or version that Kafka would refuse is answered INVALID_REQUEST.
//!
//! Differences from Kafka: no supported or finalized features yet, so the epoch of features is -1: there is no
//! `group.version` (KIP-848) and no `transaction.version` (KIP-890) to switch clients to. Throttle time is always 0.

use kaas_proto::kafka::messages::api_versions::{ApiVersion, ApiVersionsRequest, ApiVersionsResponse};
use kaas_proto::kafka::{ErrorCode, api_key};

use crate::context::{Call, Handle};

/// From this version on the client says what it is.
const NAMED_CLIENT: i16 = 3;

impl Handle for ApiVersionsRequest {
    async fn handle(self, call: &Call) -> ApiVersionsResponse {
        if call.version < NAMED_CLIENT {
            return answer(ErrorCode::None);
        }
        let (name, version) = (&*self.client_software_name, &*self.client_software_version);
        if !is_software_name(name) || !is_software_name(version) {
            return ApiVersionsResponse { error_code: ErrorCode::InvalidRequest, ..Default::default() };
        }
        tracing::debug!(peer = %call.client.peer, name, version, "client software");
        answer(ErrorCode::None)
    }
}

/// What whoever asks in an unknown version is told.
pub(crate) fn unsupported() -> ApiVersionsResponse {
    answer(ErrorCode::UnsupportedVersion)
}

fn answer(error_code: ErrorCode) -> ApiVersionsResponse {
    let api_keys = api_key::APIS.iter().map(|api| ApiVersion {
        api_key: api.key.code(),
        min_version: api.advertised_min_version,
        max_version: api.max_version,
    });
    ApiVersionsResponse { error_code, api_keys: api_keys.collect(), ..Default::default() }
}

/// Letters, digits, `-` and `.`, the latter two not at the ends: what is safe in the name of a metric.
fn is_software_name(text: &str) -> bool {
    let inner = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.');
    let bytes = text.as_bytes();
    let ends = [bytes.first(), bytes.last()];
    bytes.iter().all(|byte| inner(*byte)) && ends.iter().all(|end| end.is_some_and(u8::is_ascii_alphanumeric))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn software_names_are_checked_as_in_kafka() {
        for good in ["apache-kafka-java", "librdkafka", "2.3.0", "a"] {
            assert!(is_software_name(good), "{good}");
        }
        for bad in ["", "-a", "a.", "a b", "ä", "a_b"] {
            assert!(!is_software_name(bad), "{bad}");
        }
    }
}
