//! Three real brokers on one directory and a real Kubernetes API server, with the permissions of `deploy/rbac.yaml`.

#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

use std::path::Path;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use kaas_bench::api_server::ApiServer;
use kaas_bench::broker::wait_until;
use kaas_bench::client::Client;
use kaas_bench::cluster::{Cluster, Outside};
use kaas_bench::scenario::{Scenario, Setting, Stage};
use kaas_bench::tester::{Tester, connect};
use kaas_proto::format::assignment::AssignedPartition;
use serde_json::{Value, json};

/// The one that all tests here share.
fn api_server() -> &'static ApiServer {
    static SHARED: OnceLock<ApiServer> = OnceLock::new();
    SHARED.get_or_init(|| ApiServer::start().unwrap())
}

/// A cluster, and its namespace as an administrator sees it.
struct Kubernetes<'a> {
    server: &'a ApiServer,
    namespace: &'static str,
    cluster: Cluster,
}

impl<'a> Kubernetes<'a> {
    fn start(server: &'a ApiServer, namespace: &'static str) -> Self {
        let outside = Outside::Kubernetes { kubeconfig: server.make_namespace(namespace).unwrap() };
        let (binary, directory) = (Path::new(env!("CARGO_BIN_EXE_kaas")), Path::new(env!("CARGO_TARGET_TMPDIR")));
        let cluster = Cluster::start_with(binary, directory, outside, &[], 3).unwrap();
        Self { server, namespace, cluster }
    }

    fn lease(&self) -> Value {
        let path = format!("/apis/coordination.k8s.io/v1/namespaces/{}/leases/kaas-controller", self.namespace);
        self.server.command(&format!("ask GET {path}")).unwrap()
    }

    /// The broker that the Lease names.
    fn holder(&self) -> Option<i32> {
        self.lease()["spec"]["holderIdentity"].as_str()?.rsplit_once('-')?.1.parse().ok()
    }

    fn path_of(&self, topic: &str) -> String {
        format!("/apis/kaas.io/v1alpha1/namespaces/{}/kafkatopics/{topic}", self.namespace)
    }

    fn object(&self, topic: &str) -> Value {
        self.server.command(&format!("ask GET {}", self.path_of(topic))).unwrap()
    }

    /// As `kubectl apply --server-side` does it.
    fn apply(&self, topic: &str, spec: &Value) {
        let object = json!({
            "apiVersion": "kaas.io/v1alpha1", "kind": "KafkaTopic", "metadata": { "name": topic }, "spec": spec
        });
        let path = self.path_of(topic);
        self.server
            .command(&format!("ask PATCH {path}?fieldManager=user application/apply-patch+yaml {object}"))
            .unwrap();
    }

    fn delete(&self, topic: &str) {
        self.server.command(&format!("ask DELETE {}", self.path_of(topic))).unwrap();
    }

    fn client(&self) -> Client {
        connect(self.cluster.brokers.values().next().unwrap().kafka()).unwrap()
    }

    /// Waits until all brokers show so many partitions of a topic, each with a leader.
    fn wait_for_topic(&self, topic: &str, partitions: usize) {
        for broker in self.cluster.brokers.values() {
            let shown = || {
                let metadata = connect(broker.kafka())?.metadata(topic)?;
                let rows = metadata.topics.first().map_or(&[][..], |topic| &topic.partitions);
                Ok(rows.len() == partitions && rows.iter().all(|row| row.leader_id.0 >= 0))
            };
            wait_until(&format!("{topic} is served"), shown)
                .unwrap_or_else(|error| panic!("{error}\n{}", self.cluster.logs()));
        }
    }
}

#[test]
fn topics_are_objects_and_objects_are_topics() {
    let kubernetes = Kubernetes::start(api_server(), "kaas-topics");
    let controller = kubernetes.cluster.controller().unwrap();
    assert_eq!(kubernetes.holder(), Some(controller));

    // A client's topic is an object.
    kubernetes.client().create_topic("Orders_EU", 6, &[("retention.ms", "3600000")]).unwrap();
    let listed =
        kubernetes.server.command(&format!("ask GET {}", kubernetes.path_of("").trim_end_matches('/'))).unwrap();
    let object = &listed["items"][0];
    assert_eq!(object["spec"]["topicName"], "Orders_EU");
    assert_eq!(
        (&object["spec"]["partitions"], &object["spec"]["config"]["retention.ms"]),
        (&json!(6), &json!("3600000"))
    );
    let name = object["metadata"]["name"].as_str().unwrap();
    wait_until("the controller answers", || Ok(kubernetes.object(name)["status"]["conditions"][0]["status"] == "True"))
        .unwrap();
    kubernetes.wait_for_topic("Orders_EU", 6);
    let mut tester = Tester::new(&kubernetes.cluster, "Orders_EU");
    (0..5).for_each(|_| tester.produce(6).unwrap());

    // A user's object is a topic, grows, goes, and comes back empty.
    for round in 0..2 {
        kubernetes.apply("clicks", &json!({ "partitions": 2 }));
        kubernetes.wait_for_topic("clicks", 2);
        let mut clicks = Tester::new(&kubernetes.cluster, "clicks");
        clicks.next = round * 100;
        (0..3).for_each(|_| clicks.produce(2).unwrap());
        kubernetes.apply("clicks", &json!({ "partitions": 4 }));
        kubernetes.wait_for_topic("clicks", 4);
        clicks.produce(4).unwrap();
        assert_eq!(clicks.read(0).unwrap(), (round * 100..round * 100 + 4).collect::<Vec<_>>(), "nothing older");
        kubernetes.delete("clicks");
        let gone = || Ok(!kubernetes.cluster.volume().join("clicks").exists());
        wait_until("its directory is gone", gone).unwrap();
    }
    // And a client deletes what is an object.
    kubernetes.client().delete_topic("Orders_EU").unwrap();
    assert_eq!(kubernetes.object(name)["missing"], true);
}

#[test]
fn the_lease_moves_with_the_controller() {
    let mut kubernetes = Kubernetes::start(api_server(), "kaas-lease");
    kubernetes.client().create_topic("t", 6, &[]).unwrap();
    let mut tester = Tester::new(&kubernetes.cluster, "t");
    (0..5).for_each(|_| tester.produce(6).unwrap());

    // Killed: the Lease has to expire.
    let (former, epoch) =
        (kubernetes.cluster.controller().unwrap(), kubernetes.cluster.assignment().unwrap().controller_epoch);
    kubernetes.cluster.kill(former).unwrap();
    (0..5).for_each(|_| tester.produce(6).unwrap());
    kubernetes.cluster.wait_until_even(2).unwrap();
    let assignment = kubernetes.cluster.assignment().unwrap();
    assert!(assignment.controller.0 != former && assignment.controller_epoch > epoch);
    assert_eq!(kubernetes.holder(), Some(assignment.controller.0));

    // Deleted: the epoch goes on all the same.
    let path = format!("/apis/coordination.k8s.io/v1/namespaces/{}/leases/kaas-controller", kubernetes.namespace);
    kubernetes.server.command(&format!("ask DELETE {path}")).unwrap();
    let epoch = assignment.controller_epoch;
    let higher = || Ok(kubernetes.cluster.assignment()?.controller_epoch > epoch);
    wait_until("a controller of a higher epoch", higher).unwrap();
    (0..5).for_each(|_| tester.produce(6).unwrap());

    // Told to stop: it is given back, and the last broker has it soon.
    let controller = kubernetes.cluster.controller().unwrap();
    let began = Instant::now();
    let mut broker = kubernetes.cluster.brokers.remove(&controller).unwrap();
    broker.signal("TERM").unwrap();
    assert!(broker.wait().unwrap().success(), "{}", broker.log_lines().join("\n"));
    let stopped = began.elapsed();
    let last = *kubernetes.cluster.brokers.keys().next().unwrap();
    wait_until("the last broker is the controller", || Ok(kubernetes.holder() == Some(last))).unwrap();
    let waited = began.elapsed() - stopped;
    assert!(waited < Duration::from_secs(3), "nothing has to expire: {waited:?}");
    (0..5).for_each(|_| tester.produce(6).unwrap());
    tester.check().unwrap();
}

#[test]
fn a_controller_that_stands_still_loses_the_lease_and_follows() {
    let kubernetes = Kubernetes::start(api_server(), "kaas-pause");
    kubernetes.client().create_topic("t", 6, &[]).unwrap();
    let cluster = &kubernetes.cluster;
    let mut tester = Tester::new(cluster, "t");
    (0..5).for_each(|_| tester.produce(6).unwrap());
    let (former, epoch) = (cluster.controller().unwrap(), cluster.assignment().unwrap().controller_epoch);
    let paused = &cluster.brokers[&former];
    paused.signal("STOP").unwrap();
    let replaced = || Ok(cluster.assignment()?.controller_epoch > epoch);
    wait_until("another one is the controller", replaced).unwrap();
    tester.bootstrap(cluster.brokers.iter().filter(|(id, _)| **id != former).map(|(_, broker)| broker));
    (0..5).for_each(|_| tester.produce(6).unwrap());
    paused.signal("CONT").unwrap();
    cluster.wait_until_even(3).unwrap();
    (0..5).for_each(|_| tester.produce(6).unwrap());
    tester.check().unwrap();
    assert_ne!(kubernetes.holder(), Some(former));
}

/// Once, with a load throughout, elected by a real Lease. `kaas-bench soak --kubernetes` does it again and again.
fn happens(scenario: Scenario, namespace: &str, pause: Duration) {
    let setting = Setting::Kubernetes { server: api_server(), namespace };
    let (binary, directory) = (Path::new(env!("CARGO_BIN_EXE_kaas")), Path::new(env!("CARGO_TARGET_TMPDIR")));
    let mut stage = Stage::start(scenario, setting, binary, directory, pause).unwrap();
    stage.repeat(1).unwrap();
    assert!(stage.finish().unwrap() > 0);
}

/// Longer than the Lease holds.
const PAUSE: Duration = Duration::from_secs(5);

#[test]
fn without_the_api_server_the_brokers_go_on() {
    // For three times as long.
    happens(Scenario::ApiServerAway, "kaas-away", Duration::from_secs(4));
}

#[test]
fn a_broker_is_killed() {
    happens(Scenario::KillBroker, "kaas-kill-broker", PAUSE);
}

#[test]
fn the_controller_is_killed() {
    happens(Scenario::KillController, "kaas-kill-controller", PAUSE);
}

#[test]
fn the_controller_stands_still_under_load() {
    happens(Scenario::PauseController, "kaas-pause-controller", PAUSE);
}

#[test]
fn all_brokers_are_restarted_one_after_the_other() {
    happens(Scenario::RollingRestart, "kaas-rolling", PAUSE);
}

#[test]
fn a_topic_is_deleted_and_made_anew_under_load() {
    happens(Scenario::RecreateTopic, "kaas-recreate", PAUSE);
}

/// Only the others can ask the Lease who the controller is; the assignment names it, too.
#[test]
fn a_broker_that_cannot_reach_the_api_server_follows_the_volume() {
    let server = api_server();
    let kubeconfig = server.make_namespace("kaas-blind").unwrap();
    let outside = Outside::Kubernetes { kubeconfig: kubeconfig.clone() };
    let (binary, directory) = (Path::new(env!("CARGO_BIN_EXE_kaas")), Path::new(env!("CARGO_TARGET_TMPDIR")));
    let mut cluster = Cluster::start_with(binary, directory, outside, &[], 2).unwrap();
    connect(cluster.brokers[&0].kafka()).unwrap().create_topic("t", 6, &[]).unwrap();
    // Each broker reads it once, at its start.
    let mut config: Value = serde_json::from_slice(&std::fs::read(&kubeconfig).unwrap()).unwrap();
    config["clusters"][0]["cluster"]["server"] = json!("https://127.0.0.1:1");
    std::fs::write(&kubeconfig, config.to_string()).unwrap();

    cluster.add(2).unwrap();
    cluster.wait_until_even(3).unwrap();
    let (_, health) = cluster.brokers[&2].get("/healthz").unwrap();
    let health: Value = serde_json::from_str(&health).unwrap();
    assert_eq!(health["cluster"]["election"]["role"], "unknown", "{health}");
    assert_eq!(health["cluster"]["connectedToController"], true, "{health}");
    let mut tester = Tester::new(&cluster, "t");
    (0..5).for_each(|_| tester.produce(6).unwrap());

    let former = cluster.controller().unwrap();
    cluster.kill(former).unwrap();
    cluster.wait_until_even(2).unwrap();
    (0..5).for_each(|_| tester.produce(6).unwrap());
    tester.check().unwrap();
    assert_eq!(cluster.controller().unwrap(), 1 - former);
}

/// Nobody fills in EndpointSlices, or no probe succeeds for a while: a new controller must not take all brokers for dead.
#[test]
fn endpoints_of_which_none_is_ready_take_nothing_from_the_living() {
    let mut kubernetes = Kubernetes::start(api_server(), "kaas-endpoints");
    let endpoint = |id: i32| {
        json!({
            "addresses": [format!("10.0.0.{}", id + 1)],
            "conditions": { "ready": false, "serving": false, "terminating": false },
            "targetRef": { "kind": "Pod", "name": format!("kaas-{id}") },
        })
    };
    let slice = json!({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
        "metadata": { "name": "kaas", "labels": { "kubernetes.io/service-name": "kaas-headless" } },
        "endpoints": (0..3).map(endpoint).collect::<Vec<_>>(),
    });
    let path = "/apis/discovery.k8s.io/v1/namespaces/kaas-endpoints/endpointslices/kaas";
    let command = format!("ask PATCH {path}?fieldManager=test application/apply-patch+yaml {slice}");
    kubernetes.server.command(&command).unwrap();
    kubernetes.client().create_topic("t", 6, &[]).unwrap();
    let cluster = &mut kubernetes.cluster;
    cluster.wait_until_even(3).unwrap();
    let mut tester = Tester::new(cluster, "t");
    (0..5).for_each(|_| tester.produce(6).unwrap());

    let before = cluster.assignment().unwrap();
    cluster.kill(before.controller.0).unwrap();
    let replaced = || Ok(cluster.assignment()?.controller_epoch > before.controller_epoch);
    wait_until("another one is the controller", replaced).unwrap();
    let kept = |after: &AssignedPartition| {
        let was = before.partitions.iter().find(|row| row.partition == after.partition).unwrap();
        was.leader == before.controller || (was.leader, was.epoch) == (after.leader, after.epoch)
    };
    let after = cluster.assignment().unwrap();
    assert!(after.partitions.iter().all(kept), "{before:?} became {after:?}");
    cluster.wait_until_even(2).unwrap();
    let after = cluster.assignment().unwrap();
    assert!(after.partitions.iter().all(kept), "{before:?} became {after:?}");
    (0..5).for_each(|_| tester.produce(6).unwrap());
    tester.check().unwrap();
}
