//! deploy/ against the API server: accepted, and with no permission that the brokers do not use.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use kaas_coord::kubernetes::api_error::Request;
use kube::api::{Patch, PatchParams};
use kube::core::{ApiResource, DynamicObject, GroupVersionKind};
use kube::{Api, Client};
use serde_json::Value;

use super::cluster::ApiServer;

fn directory() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy")
}

fn documents(file: &str) -> Vec<Value> {
    let text = fs::read_to_string(directory().join(file)).unwrap();
    serde_saphyr::from_multiple(&text).unwrap()
}

/// A manifest with what is behind a mark, as README.md says to turn it on.
fn with(mark: &str, file: &str) -> Vec<Value> {
    let text = fs::read_to_string(directory().join(file)).unwrap();
    serde_saphyr::from_multiple(&text.replace(mark, "")).unwrap()
}

/// kaas.yaml with mutual TLS.
fn with_tls() -> Vec<Value> {
    with("#tls ", "kaas.yaml")
}

fn manifests() -> Vec<String> {
    let mut names: Vec<String> = fs::read_dir(directory())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| name.ends_with(".yaml"))
        .collect();
    names.sort();
    assert!(names.len() >= 3);
    names
}

fn text<'a>(value: &'a Value, pointer: &str) -> &'a str {
    value.pointer(pointer).and_then(Value::as_str).unwrap_or_else(|| panic!("{pointer} of {value}"))
}

async fn dry_run(client: &Client, namespace: &str, object: &Value) -> Result<DynamicObject, kube::Error> {
    let (group, version) = match text(object, "/apiVersion").split_once('/') {
        Some((group, version)) => (group, version),
        None => ("", text(object, "/apiVersion")),
    };
    let kind = text(object, "/kind");
    let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind));
    let api: Api<DynamicObject> = if kind == "CustomResourceDefinition" {
        Api::all_with(client.clone(), &resource)
    } else {
        Api::namespaced_with(client.clone(), namespace, &resource)
    };
    let params = PatchParams::apply("a-user").force().dry_run().validation_strict();
    api.patch(text(object, "/metadata/name"), &params, &Patch::Apply(object)).await
}

#[tokio::test]
async fn every_manifest_is_accepted() {
    let namespace = ApiServer::shared().namespace("deployment").await;
    let mut kinds = BTreeSet::new();
    for file in manifests() {
        for object in documents(&file) {
            kinds.insert(text(&object, "/kind").to_owned());
            if let Err(error) = dry_run(&namespace.admin, &namespace.name, &object).await {
                panic!("{file}, {}: {error}", text(&object, "/kind"));
            }
        }
    }
    for kind in
        ["CustomResourceDefinition", "PersistentVolumeClaim", "PodDisruptionBudget", "Role", "Service", "StatefulSet"]
    {
        assert!(kinds.contains(kind), "{kind} is missing");
    }
}

#[tokio::test]
async fn brokers_with_certificates_are_accepted() {
    let namespace = ApiServer::shared().namespace("deployment-tls").await;
    for object in with_tls() {
        let accepted = dry_run(&namespace.admin, &namespace.name, &object).await;
        accepted.unwrap_or_else(|error| panic!("{}: {error}", text(&object, "/kind")));
    }
    let objects = with_tls();
    let set = objects.iter().find(|object| text(object, "/kind") == "StatefulSet").unwrap();
    let container = &set["spec"]["template"]["spec"]["containers"][0];
    let variables = container["env"].as_array().unwrap().iter();
    let files: Vec<&str> = variables
        .filter(|variable| text(variable, "/name").contains("_TLS_"))
        .map(|file| text(file, "/value"))
        .collect();
    assert_eq!(files, ["/tls/tls.crt", "/tls/tls.key", "/tls/ca.crt"]);
    assert_eq!(container["volumeMounts"][1]["mountPath"], "/tls");
}

#[tokio::test]
async fn brokers_with_a_cluster_volume_are_accepted() {
    let namespace = ApiServer::shared().namespace("deployment-cluster").await;
    let (objects, claims) = (with("#cluster ", "kaas.yaml"), with("#cluster ", "volume.yaml"));
    for object in objects.iter().chain(&claims) {
        let accepted = dry_run(&namespace.admin, &namespace.name, object).await;
        accepted.unwrap_or_else(|error| panic!("{}: {error}", text(object, "/kind")));
    }
    let set = objects.iter().find(|object| text(object, "/kind") == "StatefulSet").unwrap();
    let pod = &set["spec"]["template"]["spec"];
    let container = &pod["containers"][0];
    let variables = container["env"].as_array().unwrap();
    let variable = variables.iter().find(|variable| text(variable, "/name") == "KAAS_CLUSTER_DIR").unwrap();
    assert_eq!(variable["value"], container["volumeMounts"][1]["mountPath"]);
    let volume = &pod["volumes"][1];
    assert_eq!(volume["name"], container["volumeMounts"][1]["name"]);
    assert_eq!(volume["persistentVolumeClaim"]["claimName"], claims[1]["metadata"]["name"]);
}

#[test]
fn brokers_may_do_what_they_do_and_nothing_else() {
    let objects = documents("rbac.yaml");
    let role = objects.iter().find(|object| text(object, "/kind") == "Role").unwrap();
    let list = |rule: &Value, key: &str| -> Vec<String> {
        rule[key].as_array().unwrap().iter().map(|item| item.as_str().unwrap().to_owned()).collect()
    };
    let mut allowed = BTreeSet::new();
    for rule in role["rules"].as_array().unwrap() {
        for group in list(rule, "apiGroups") {
            for resource in list(rule, "resources") {
                for verb in list(rule, "verbs") {
                    assert!(allowed.insert((verb, format!("{resource}.{group}"))));
                }
            }
        }
    }
    let used: BTreeSet<(String, String)> =
        Request::ALL.iter().map(|request| (request.verb.to_owned(), request.resource.to_owned())).collect();
    assert_eq!(allowed, used);
}

#[test]
fn pods_have_cpus_of_their_own_and_no_privileges() {
    let objects = documents("kaas.yaml");
    let set = objects.iter().find(|object| text(object, "/kind") == "StatefulSet").unwrap();
    let pod = &set["spec"]["template"]["spec"];
    let containers = pod["containers"].as_array().unwrap();
    assert_eq!(containers.len(), 1);
    let resources = &containers[0]["resources"];
    assert_eq!(resources["requests"], resources["limits"], "guaranteed QoS");
    text(resources, "/limits/cpu").parse::<u32>().expect("whole CPUs, or the kubelet pins none");
    assert_eq!(text(pod, "/securityContext/seccompProfile/localhostProfile"), "profiles/kaas.json");
    assert_eq!(pod["securityContext"]["runAsNonRoot"], true);
    assert_eq!(containers[0]["securityContext"]["capabilities"]["drop"], serde_json::json!(["ALL"]));
    assert_eq!(containers[0]["securityContext"]["readOnlyRootFilesystem"], true);
}

#[test]
fn the_seccomp_profile_allows_io_uring() {
    let profile = fs::read_to_string(directory().join("seccomp/kaas.json")).unwrap();
    let profile: Value = serde_json::from_str(&profile).unwrap();
    assert_eq!(profile["defaultAction"], "SCMP_ACT_ERRNO");
    let rules = profile["syscalls"].as_array().unwrap();
    let allowed: BTreeSet<&str> = rules
        .iter()
        .filter(|rule| rule["action"] == "SCMP_ACT_ALLOW")
        .flat_map(|rule| rule["names"].as_array().unwrap())
        .map(|name| name.as_str().unwrap())
        .collect();
    for call in ["io_uring_setup", "io_uring_enter", "io_uring_register", "futex", "openat", "sched_setaffinity"] {
        assert!(allowed.contains(call), "{call}");
    }
    for call in ["ptrace", "mount", "bpf", "unshare", "init_module", "perf_event_open", "userfaultfd"] {
        assert!(!allowed.contains(call), "{call}");
    }
}
