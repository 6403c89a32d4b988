//! What the API server answers when it does not do what it was asked, in words that say what to change.

use std::time::Duration;

use kube::core::Status;

/// A request as RBAC sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Request {
    /// `get`, `list`, `watch`, `create`, `patch`, `delete`.
    pub verb: &'static str,
    /// With its API group: `leases.coordination.k8s.io`.
    pub resource: &'static str,
}

const LEASES: &str = "leases.coordination.k8s.io";
const TOPICS: &str = "kafkatopics.kaas.io";
const ENDPOINTS: &str = "endpointslices.discovery.k8s.io";

/// Every request that brokers send. `deploy/rbac.yaml` allows these and nothing else; a test compares.
impl Request {
    pub const LEASE_GET: Self = Self { verb: "get", resource: LEASES };
    pub const LEASE_CREATE: Self = Self { verb: "create", resource: LEASES };
    pub const LEASE_PATCH: Self = Self { verb: "patch", resource: LEASES };
    pub const TOPIC_GET: Self = Self { verb: "get", resource: TOPICS };
    pub const TOPIC_LIST: Self = Self { verb: "list", resource: TOPICS };
    pub const TOPIC_WATCH: Self = Self { verb: "watch", resource: TOPICS };
    pub const TOPIC_CREATE: Self = Self { verb: "create", resource: TOPICS };
    pub const TOPIC_PATCH: Self = Self { verb: "patch", resource: TOPICS };
    pub const TOPIC_DELETE: Self = Self { verb: "delete", resource: TOPICS };
    pub const TOPIC_STATUS_PATCH: Self = Self { verb: "patch", resource: "kafkatopics/status.kaas.io" };
    pub const ENDPOINT_LIST: Self = Self { verb: "list", resource: ENDPOINTS };
    pub const ENDPOINT_WATCH: Self = Self { verb: "watch", resource: ENDPOINTS };

    pub const ALL: [Self; 12] = [
        Self::LEASE_GET,
        Self::LEASE_CREATE,
        Self::LEASE_PATCH,
        Self::TOPIC_GET,
        Self::TOPIC_LIST,
        Self::TOPIC_WATCH,
        Self::TOPIC_CREATE,
        Self::TOPIC_PATCH,
        Self::TOPIC_DELETE,
        Self::TOPIC_STATUS_PATCH,
        Self::ENDPOINT_LIST,
        Self::ENDPOINT_WATCH,
    ];
}

/// A request to the API server that failed.
#[derive(Debug, thiserror::Error)]
pub enum ApiError {
    #[error(
        "forbidden: {message}. Add RBAC: the brokers' service account needs the verb '{}' on '{}' in their namespace, \
         as in deploy/rbac.yaml", .request.verb, .request.resource
    )]
    Forbidden { request: Request, message: String },
    #[error(
        "the API server does not accept this pod's credentials (401): {message}. Is the service account still there?"
    )]
    Unauthorized { message: String },
    #[error("not found: {message}{}", hint_for_missing(.request))]
    NotFound { request: Request, message: String },
    #[error("it exists already: {message}")]
    AlreadyExists { message: String },
    /// It changed since it was looked at, or is another incarnation.
    #[error("it was changed at the same time: {message}")]
    Conflict { message: String },
    #[error("the API server refuses the object: {message}")]
    Invalid { message: String },
    #[error("the API server did not answer '{} {}' within {} ms", .request.verb, .request.resource, .after.as_millis())]
    TimedOut { request: Request, after: Duration },
    #[error("'{} {}' failed: {source}", .request.verb, .request.resource)]
    Unavailable { request: Request, source: Box<kube::Error> },
}

fn hint_for_missing(request: &Request) -> &'static str {
    // Of one object, it may be the object that is missing.
    if [Request::TOPIC_LIST, Request::TOPIC_WATCH, Request::TOPIC_CREATE].contains(request) {
        ". Is the custom resource definition installed (deploy/crd.yaml)?"
    } else {
        ""
    }
}

impl ApiError {
    /// What `error` means as the answer to `request`.
    #[must_use]
    pub fn of(request: Request, error: kube::Error) -> Self {
        match error {
            kube::Error::Api(status) => Self::of_status(request, status),
            other => Self::Unavailable { request, source: Box::new(other) },
        }
    }

    fn of_status(request: Request, status: Box<Status>) -> Self {
        let message = status.message.clone();
        match (status.code, status.reason.as_str()) {
            (403, _) => Self::Forbidden { request, message },
            (401, _) => Self::Unauthorized { message },
            (404, _) => Self::NotFound { request, message },
            (409, "AlreadyExists") => Self::AlreadyExists { message },
            (409, _) => Self::Conflict { message },
            (400 | 413 | 422, _) => Self::Invalid { message },
            _ => Self::Unavailable { request, source: Box::new(kube::Error::Api(status)) },
        }
    }
}

/// Waits for the answer to `request`, but not for ever.
///
/// # Errors
/// See [`ApiError`].
pub(super) async fn within<T>(
    limit: Duration,
    request: Request,
    answer: impl Future<Output = Result<T, kube::Error>>,
) -> Result<T, ApiError> {
    match tokio::time::timeout(limit, answer).await {
        Ok(answer) => answer.map_err(|error| ApiError::of(request, error)),
        Err(_) => Err(ApiError::TimedOut { request, after: limit }),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]
    use super::*;

    fn answer(code: u16, reason: &str) -> ApiError {
        let status =
            Status { code, reason: reason.to_owned(), message: "kaas-0 said no".to_owned(), ..Status::default() };
        let request = Request::TOPIC_PATCH;
        ApiError::of(request, kube::Error::Api(Box::new(status)))
    }

    #[test]
    fn every_answer_has_its_meaning() {
        assert!(matches!(answer(401, "Unauthorized"), ApiError::Unauthorized { .. }));
        assert!(matches!(answer(404, "NotFound"), ApiError::NotFound { .. }));
        assert!(matches!(answer(409, "AlreadyExists"), ApiError::AlreadyExists { .. }));
        assert!(matches!(answer(409, "Conflict"), ApiError::Conflict { .. }));
        assert!(matches!(answer(422, "Invalid"), ApiError::Invalid { .. }));
        assert!(matches!(answer(400, "BadRequest"), ApiError::Invalid { .. }));
        for code in [429, 500, 503, 504] {
            assert!(matches!(answer(code, ""), ApiError::Unavailable { .. }), "{code}");
        }
    }

    #[test]
    fn forbidden_says_what_to_add() {
        let text = answer(403, "Forbidden").to_string();
        for part in ["forbidden", "kaas-0 said no", "'patch'", "'kafkatopics.kaas.io'", "deploy/rbac.yaml"] {
            assert!(text.contains(part), "{text}");
        }
        let message = String::new();
        let missing = ApiError::NotFound { request: Request::TOPIC_LIST, message };
        assert!(missing.to_string().contains("deploy/crd.yaml"));
    }
}
