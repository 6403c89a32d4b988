//! Which brokers' pods are ready, as Kubernetes sees it. A controller that no broker has dialled yet starts from this.

use std::collections::BTreeSet;

use k8s_openapi::api::discovery::v1::{Endpoint, EndpointSlice};
use kaas_proto::types::BrokerId;
use kube::runtime::watcher;
use kube::{Api, Client};
use tokio::sync::watch;

use super::api_error::Request;
use super::candidate::broker_of_pod;
use super::objects::{self, ByName};

/// Kubernetes sets it on every slice of a service.
const SERVICE_LABEL: &str = "kubernetes.io/service-name";

/// Starts to follow the pods behind a service. Within a tokio runtime only.
#[must_use]
pub fn start(client: Client, namespace: &str, service: &str) -> watch::Receiver<Option<BTreeSet<BrokerId>>> {
    let (sender, receiver) = watch::channel(None);
    let api: Api<EndpointSlice> = Api::namespaced(client, namespace);
    let config = watcher::Config::default().labels(&format!("{SERVICE_LABEL}={service}"));
    tokio::spawn(async move {
        let following = objects::follow(api, config, [Request::ENDPOINT_LIST, Request::ENDPOINT_WATCH], |slices| {
            let ready = ready(slices);
            sender.send_if_modified(|published| {
                let changed = published.as_ref() != Some(&ready);
                if changed {
                    tracing::debug!(?ready, "endpoints that are ready");
                    *published = Some(ready);
                }
                changed
            });
        });
        tokio::select! {
            never = following => match never {},
            () = sender.closed() => {}
        }
    });
    receiver
}

fn ready(slices: &ByName<EndpointSlice>) -> BTreeSet<BrokerId> {
    let endpoints = slices.values().flat_map(|slice| &slice.endpoints);
    endpoints.filter(|endpoint| is_ready(endpoint)).filter_map(broker_of).collect()
}

/// The headless service publishes addresses before they are ready, and then `ready` is always true; `serving` is not.
fn is_ready(endpoint: &Endpoint) -> bool {
    let Some(conditions) = &endpoint.conditions else { return false };
    let ready = conditions.serving.or(conditions.ready).unwrap_or(false);
    ready && !conditions.terminating.unwrap_or(false)
}

fn broker_of(endpoint: &Endpoint) -> Option<BrokerId> {
    let target = endpoint.target_ref.as_ref()?;
    (target.kind.as_deref() == Some("Pod")).then(|| broker_of_pod(target.name.as_deref()?)).flatten()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use k8s_openapi::api::core::v1::ObjectReference;
    use k8s_openapi::api::discovery::v1::EndpointConditions;

    use super::*;

    fn endpoint(pod: &str, ready: bool, serving: Option<bool>, terminating: Option<bool>) -> Endpoint {
        let target =
            ObjectReference { kind: Some("Pod".to_owned()), name: Some(pod.to_owned()), ..ObjectReference::default() };
        let conditions = EndpointConditions { ready: Some(ready), serving, terminating };
        Endpoint { conditions: Some(conditions), target_ref: Some(target), ..Endpoint::default() }
    }

    #[test]
    fn pods_that_serve_and_do_not_leave_are_ready() {
        let first = EndpointSlice {
            endpoints: vec![
                endpoint("kaas-0", true, Some(true), None),
                endpoint("kaas-1", true, Some(false), Some(false)),
                endpoint("kaas-2", true, Some(true), Some(true)),
            ],
            ..EndpointSlice::default()
        };
        let second = EndpointSlice {
            endpoints: vec![
                endpoint("kaas-3", true, None, None),
                endpoint("postgres", true, Some(true), None),
                Endpoint::default(),
            ],
            ..EndpointSlice::default()
        };
        let slices = [("a".to_owned(), Arc::new(first)), ("b".to_owned(), Arc::new(second))].into();
        assert_eq!(ready(&slices), [BrokerId(0), BrokerId(3)].into());
    }
}
