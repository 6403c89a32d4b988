//! The Lease `kaas-controller`: read and written as [`election`](super::election) says, by server-side apply.
//!
//! ```yaml
//! metadata:
//!   annotations: { kaas.io/incarnation: …, kaas.io/heartbeat: HOST:PORT }   # of the holder
//! spec: { holderIdentity: kaas-0, leaseTransitions: 7, leaseDurationSeconds: 6, acquireTime: …, renewTime: … }
//! ```
//!
//! Apply makes a Lease that is absent, whatever resource version it names (seen with Kubernetes 1.36): a holder that was
//! away would bring its own back. So every apply names the uid too, which the API server refuses when there is no such
//! object, and an absent Lease is created empty first, which only one can do, and then claimed like any other.

use std::collections::BTreeMap;
use std::time::Duration;

use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use k8s_openapi::jiff::Timestamp;
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, Client};

use super::api_error::{ApiError, Request, within};
use super::election::{Action, Answer, Holder, Record, Timings, Version};

pub const LEASE_NAME: &str = "kaas-controller";
/// Who owns what the brokers write, in the words of server-side apply.
pub const FIELD_MANAGER: &str = "kaas";
/// `leaseDurationSeconds` of a Lease that was given back, as Kubernetes' own components write it.
const RELEASED_SECONDS: i32 = 1;
const INCARNATION: &str = "kaas.io/incarnation";
const HEARTBEAT: &str = "kaas.io/heartbeat";

/// Control thread. The Lease, as one candidate reads and writes it.
#[derive(Debug)]
pub struct LeaseStore {
    api: Api<Lease>,
    me: Holder,
    lease_duration: Duration,
    request_limit: Duration,
    /// For people: no decision rests on it.
    acquired: Option<Timestamp>,
}

impl LeaseStore {
    #[must_use]
    pub fn new(client: Client, namespace: &str, me: Holder, timings: Timings) -> Self {
        Self {
            api: Api::namespaced(client, namespace),
            me,
            lease_duration: timings.lease_duration,
            // A holder has time for a second try.
            request_limit: timings.renew_deadline / 2,
            acquired: None,
        }
    }

    /// Asks the API server.
    ///
    /// # Errors
    /// The request was not, or may not have been, carried out. That somebody else was quicker is an answer, no error.
    pub async fn carry_out(&mut self, action: &Action) -> Result<Answer, ApiError> {
        match action {
            Action::Look => {
                let request = Request::LEASE_GET;
                let found = within(self.request_limit, request, self.api.get_opt(LEASE_NAME)).await?;
                Ok(found.map_or(Answer::Absent, |lease| Answer::Present(record(lease))))
            }
            Action::Create => {
                let request = Request::LEASE_CREATE;
                let post = PostParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PostParams::default() };
                let created = within(self.request_limit, request, self.api.create(&post, &named(None))).await;
                match created {
                    Ok(lease) => Ok(Answer::Present(record(lease))),
                    Err(ApiError::AlreadyExists { .. }) => Ok(Answer::Conflict),
                    Err(error) => Err(error),
                }
            }
            Action::Claim { version, transitions, acquired } => {
                let now = Timestamp::now();
                if *acquired {
                    self.acquired = Some(now);
                }
                self.apply(self.claimed(version, *transitions, now)).await
            }
            Action::Release { version, transitions } => self.apply(released(version, *transitions)).await,
        }
    }

    /// Everything that this field manager owns and the object does not name is taken out: so a release leaves no holder.
    async fn apply(&self, lease: Lease) -> Result<Answer, ApiError> {
        let request = Request::LEASE_PATCH;
        let params = PatchParams::apply(FIELD_MANAGER).force();
        let patch = Patch::Apply(&lease);
        match within(self.request_limit, request, self.api.patch(LEASE_NAME, &params, &patch)).await {
            Ok(lease) => Ok(Answer::Present(record(lease))),
            Err(ApiError::Conflict { .. }) => Ok(Answer::Conflict),
            Err(ApiError::NotFound { .. }) => Ok(Answer::Absent),
            Err(error) => Err(error),
        }
    }

    fn claimed(&self, version: &Version, transitions: i32, now: Timestamp) -> Lease {
        let mut lease = named(Some(version));
        let annotations = [(INCARNATION, &self.me.incarnation), (HEARTBEAT, &self.me.heartbeat)];
        lease.metadata.annotations =
            Some(annotations.map(|(key, value)| (key.to_owned(), value.clone())).into_iter().collect());
        let seconds = self.lease_duration.as_secs() + u64::from(self.lease_duration.subsec_nanos() > 0);
        lease.spec = Some(LeaseSpec {
            holder_identity: Some(self.me.name.clone()),
            lease_duration_seconds: Some(i32::try_from(seconds).unwrap_or(i32::MAX)),
            lease_transitions: Some(transitions),
            acquire_time: self.acquired.map(MicroTime),
            renew_time: Some(MicroTime(now)),
            ..LeaseSpec::default()
        });
        lease
    }
}

fn released(version: &Version, transitions: i32) -> Lease {
    let mut lease = named(Some(version));
    lease.spec = Some(LeaseSpec {
        lease_transitions: Some(transitions),
        lease_duration_seconds: Some(RELEASED_SECONDS),
        ..LeaseSpec::default()
    });
    lease
}

fn named(version: Option<&Version>) -> Lease {
    let metadata = ObjectMeta {
        name: Some(LEASE_NAME.to_owned()),
        uid: version.map(|version| version.uid.clone()),
        resource_version: version.map(|version| version.resource_version.clone()),
        ..ObjectMeta::default()
    };
    Lease { metadata, spec: None }
}

/// Whatever is missing or makes no sense is read as if nobody held it, with nothing lost: the transitions count all the same.
fn record(lease: Lease) -> Record {
    let annotations: BTreeMap<String, String> = lease.metadata.annotations.unwrap_or_default();
    let annotation = |key: &str| annotations.get(key).cloned().unwrap_or_default();
    let spec = lease.spec.unwrap_or_default();
    let holder = spec.holder_identity.filter(|name| !name.is_empty());
    let released = holder.is_none() && spec.lease_duration_seconds == Some(RELEASED_SECONDS);
    let seconds = spec.lease_duration_seconds.and_then(|seconds| u64::try_from(seconds).ok());
    Record {
        version: Version {
            uid: lease.metadata.uid.unwrap_or_default(),
            resource_version: lease.metadata.resource_version.unwrap_or_default(),
        },
        holder: holder.map(|name| Holder {
            name,
            incarnation: annotation(INCARNATION),
            heartbeat: annotation(HEARTBEAT),
        }),
        transitions: spec.lease_transitions.unwrap_or(0).max(0),
        lease_duration: seconds.map(Duration::from_secs),
        released,
    }
}
