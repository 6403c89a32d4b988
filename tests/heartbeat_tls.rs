//! Three real brokers that show each other certificates, and others that try to join them.

#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

use std::path::Path;

use kaas_bench::cluster::{Cluster, Outside};
use kaas_bench::tester::{Tester, connect};
use tempfile::TempDir;

#[path = "../coord/tests/certificates/mod.rs"]
mod certificates;

use certificates::{Authority, Files};

fn arguments(files: &Files) -> Vec<String> {
    let options = ["--heartbeat-tls-certificate", "--heartbeat-tls-key", "--heartbeat-tls-ca"];
    options.iter().zip(files).flat_map(|(option, file)| [option.to_string(), file.display().to_string()]).collect()
}

fn start(arguments: &[String], brokers: i32) -> Result<Cluster, String> {
    let (binary, directory) = (Path::new(env!("CARGO_BIN_EXE_kaas")), Path::new(env!("CARGO_TARGET_TMPDIR")));
    let outside = Outside::StandIn(tempfile::tempdir_in(directory).unwrap());
    Cluster::start_with(binary, directory, outside, arguments, brokers).map_err(|error| format!("{error:#}"))
}

#[test]
fn brokers_with_certificates_are_a_cluster_and_others_do_not_get_in() {
    let (ours, theirs) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    let files = Authority::new().issue(ours.path(), "127.0.0.1");
    let foreign = Authority::new().issue(theirs.path(), "127.0.0.1");
    let mut cluster = start(&arguments(&files), 3).unwrap();
    let log = cluster.brokers[&0].log_lines().join("\n");
    assert!(log.contains("(mutual TLS)"), "{log}");
    connect(cluster.brokers[&0].kafka()).unwrap().create_topic("t", 6, &[]).unwrap();
    let mut tester = Tester::new(&cluster, "t");
    (0..5).for_each(|_| tester.produce(6).unwrap());

    for (id, arguments) in [(3, arguments(&foreign)), (4, Vec::new())] {
        cluster.add_with(id, &arguments).unwrap();
        cluster.brokers[&id].wait_for_log("the session with the controller has ended").unwrap();
        let (status, body) = cluster.brokers[&id].get("/readyz").unwrap();
        assert_eq!(status, 503, "{body}");
        assert!(cluster.assignment().unwrap().brokers.iter().all(|broker| broker.id.0 < 3));
        cluster.kill(id).unwrap();
    }

    // Reports and pushes go the same way.
    let former = cluster.controller().unwrap();
    cluster.kill(former).unwrap();
    (0..5).for_each(|_| tester.produce(6).unwrap());
    cluster.wait_until_even(2).unwrap();
    tester.check().unwrap();
}

#[test]
fn a_broker_says_which_file_is_wrong() {
    let directory = TempDir::new().unwrap();
    let [certificate, key, _] = Authority::new().issue(directory.path(), "127.0.0.1");
    let missing = directory.path().join("no-authority.crt");
    let error = start(&arguments(&[certificate, key, missing.clone()]), 1).unwrap_err();
    assert!(error.contains("--heartbeat-tls") && error.contains(missing.to_str().unwrap()), "{error}");
}
