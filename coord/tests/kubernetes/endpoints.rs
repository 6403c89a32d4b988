use k8s_openapi::api::discovery::v1::EndpointSlice;
use kaas_coord::kubernetes::endpoints;
use kaas_proto::types::BrokerId;
use kube::Api;
use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};

use super::cluster::{ApiServer, reaches};

fn slice(service: &str, name: &str, pods: &[(&str, bool)]) -> Value {
    let endpoints: Vec<Value> = (1..)
        .zip(pods)
        .map(|(host, (pod, serving))| {
            json!({
                "addresses": [format!("10.0.0.{host}")],
                // As a service that publishes addresses before they are ready has it.
                "conditions": { "ready": true, "serving": serving, "terminating": false },
                "targetRef": { "kind": "Pod", "name": pod },
            })
        })
        .collect();
    json!({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
        "metadata": { "name": name, "labels": { "kubernetes.io/service-name": service } },
        "endpoints": endpoints,
    })
}

#[tokio::test]
async fn pods_that_serve_are_known() {
    let namespace = ApiServer::shared().namespace("endpoints").await;
    let slices: Api<EndpointSlice> = Api::namespaced(namespace.admin.clone(), &namespace.name);
    let apply = |name: &'static str, body: Value| {
        let slices = &slices;
        async move { slices.patch(name, &PatchParams::apply("test").force(), &Patch::Apply(body)).await.unwrap() }
    };
    apply("other", slice("postgres", "other", &[("kaas-9", true)])).await;
    let connection = namespace.connection();
    let mut ready = endpoints::start(connection.client(), connection.namespace(), "kaas-headless");
    reaches(&mut ready, "nobody, which is known", |ready| ready.as_ref().is_some_and(|ready| ready.is_empty())).await;
    apply("a", slice("kaas-headless", "a", &[("kaas-0", true), ("kaas-1", false)])).await;
    let only_first = Some([BrokerId(0)].into());
    reaches(&mut ready, "the first", |ready| *ready == only_first).await;
    apply("a", slice("kaas-headless", "a", &[("kaas-0", true), ("kaas-1", true)])).await;
    let both = Some([BrokerId(0), BrokerId(1)].into());
    reaches(&mut ready, "both", |ready| *ready == both).await;
}
