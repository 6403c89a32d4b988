//! Three real brokers on one directory: they elect, share the partitions, survive each other.
//!
//! Election and topics come from files here (`--cluster-stand-in`); all else is what a cluster on Kubernetes runs.

#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use kaas_bench::broker::wait_until;
use kaas_bench::client::{Client, produce_request};
use kaas_bench::cluster::Cluster;
use kaas_bench::scenario::{Scenario, Setting, Stage};
use kaas_bench::tester::{Tester, connect};
use kaas_proto::format::assignment::BrokerHealth;
use kaas_proto::kafka::ErrorCode;
use kaas_proto::kafka::messages::create_partitions::CreatePartitionsTopic;
use kaas_proto::kafka::messages::incremental_alter_configs::{AlterConfigsResource, AlterableConfig};
use kaas_proto::kafka::messages::{CreatePartitionsRequest, DescribeClusterRequest, IncrementalAlterConfigsRequest};
use kaas_proto::record::BatchBuilder;
use kaas_proto::types::TimestampMs;
use serde_json::{Value, json};

fn start(brokers: i32) -> Cluster {
    Cluster::start(Path::new(env!("CARGO_BIN_EXE_kaas")), Path::new(env!("CARGO_TARGET_TMPDIR")), brokers).unwrap()
}

fn client(cluster: &Cluster) -> Client {
    connect(cluster.brokers.values().next().unwrap().kafka()).unwrap()
}

#[test]
fn three_brokers_are_one_cluster() {
    let cluster = start(3);
    client(&cluster).create_topic("t", 6, &[]).unwrap();
    cluster.wait_until_even(3).unwrap();
    let mut tester = Tester::new(&cluster, "t");
    (0..10).for_each(|_| tester.produce(6).unwrap());
    tester.check().unwrap();
    // Each broker says the same.
    let controller = cluster.controller().unwrap();
    for broker in cluster.brokers.values() {
        wait_until("the view is that of the assignment", || {
            let metadata = connect(broker.kafka())?.metadata("t")?;
            let led = |id| metadata.topics[0].partitions.iter().filter(|row| row.leader_id.0 == id).count();
            Ok(metadata.controller_id.0 == controller && metadata.brokers.len() == 3 && (0..3).all(|id| led(id) == 2))
        })
        .unwrap();
    }
    // And the controller knows it.
    wait_until("all are known to follow the newest assignment", || {
        let (epoch, version) = cluster.assignment()?.generation();
        let health: Value = serde_json::from_str(&cluster.brokers[&controller].get("/healthz")?.1)?;
        let follower = |id| json!({ "id": id, "controllerEpoch": epoch, "version": version, "behind": false });
        Ok(health["cluster"]["term"]["followers"] == json!([follower(0), follower(1), follower(2)]))
    })
    .unwrap();
    assert_eq!(cluster.brokers[&controller].metric("kaas_cluster_followers_behind", "").unwrap(), 0.0);
}

#[test]
fn topics_that_are_created_take_no_broker_out_of_service() {
    let cluster = start(3);
    let mut client = client(&cluster);
    client.create_topic("first", 3, &[]).unwrap();
    cluster.wait_until_even(3).unwrap();
    cluster.brokers.values().for_each(|broker| broker.wait_ready().unwrap());
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let probe = || {
            let (mut answers, mut unready) = (0, Vec::new());
            while !done.load(Ordering::SeqCst) {
                let probed = cluster.brokers.values().map(|broker| broker.get("/readyz").unwrap());
                unready.extend(probed.filter(|(status, _)| *status != 200));
                answers += cluster.brokers.len();
            }
            (answers, unready)
        };
        let probing = scope.spawn(probe);
        (0..10).for_each(|number| client.create_topic(&format!("new-{number}"), 12, &[]).unwrap());
        done.store(true, Ordering::SeqCst);
        let (answers, unready) = probing.join().unwrap();
        assert!(answers > 0 && unready.is_empty(), "{} of {answers} were not ready: {unready:?}", unready.len());
    });
}

#[test]
fn all_tell_of_the_same_brokers_after_one_was_killed() {
    let mut cluster = start(3);
    client(&cluster).create_topic("t", 3, &[]).unwrap();
    cluster.wait_until_even(3).unwrap();
    let killed = cluster.follower().unwrap();
    cluster.kill(killed).unwrap();
    cluster.wait_until_even(2).unwrap();
    for broker in cluster.brokers.values() {
        wait_until("metadata and description are those of the assignment", || {
            let assignment = cluster.assignment()?;
            let all: Vec<(i32, bool)> =
                assignment.brokers.iter().map(|row| (row.id.0, row.health != BrokerHealth::Alive)).collect();
            let alive: Vec<i32> = all.iter().filter(|(_, is_fenced)| !is_fenced).map(|(id, _)| *id).collect();
            let mut client = connect(broker.kafka())?;
            let metadata = client.metadata("t")?;
            let mut told: Vec<i32> = metadata.brokers.iter().map(|row| row.node_id.0).collect();
            told.sort_unstable();
            let mut describe = |include_fenced_brokers| {
                let request = DescribeClusterRequest { include_fenced_brokers, ..DescribeClusterRequest::default() };
                let response = client.call(2, &request)?;
                let mut rows: Vec<_> = response.brokers.iter().map(|row| (row.broker_id.0, row.is_fenced)).collect();
                rows.sort_unstable();
                anyhow::Ok((response.controller_id, rows))
            };
            let (controller, rows) = describe(false)?;
            Ok(alive.len() == 2
                && all.len() == 3
                && told == alive
                && controller == metadata.controller_id
                && rows == alive.iter().map(|id| (*id, false)).collect::<Vec<_>>()
                && describe(true)?.1 == all)
        })
        .unwrap();
    }
}

#[test]
fn what_one_broker_is_asked_to_change_reaches_the_leaders() {
    let cluster = start(3);
    let mut client = client(&cluster);
    client.create_topic("t", 3, &[]).unwrap();
    let topic = CreatePartitionsTopic { name: "t".into(), count: 6, assignments: None };
    let request = CreatePartitionsRequest { topics: vec![topic], timeout_ms: 60_000, validate_only: false };
    let created = client.call(3, &request).unwrap();
    assert_eq!(created.results[0].error_code, ErrorCode::None, "{created:?}");
    cluster.wait_until_even(3).unwrap();
    let mut tester = Tester::new(&cluster, "t");
    tester.produce(6).unwrap();

    let limit = AlterableConfig { name: "max.message.bytes".into(), config_operation: 0, value: Some("1000".into()) };
    let resource = AlterConfigsResource { resource_type: 2, resource_name: "t".into(), configs: vec![limit] };
    let request = IncrementalAlterConfigsRequest { resources: vec![resource], validate_only: false };
    let altered = client.call(1, &request).unwrap();
    assert_eq!(altered.responses[0].error_code, ErrorCode::None, "{altered:?}");
    let too_large = BatchBuilder::new().record(TimestampMs(1_700_000_000_000), None, Some(&[b'x'; 2000])).build();
    for row in &cluster.assignment().unwrap().partitions {
        let leader = cluster.brokers[&row.leader.0].kafka();
        wait_until("the leader refuses what is too large now", || {
            let answer = connect(leader)?.call(9, &produce_request("t", row.partition.0, too_large.clone()))?;
            Ok(answer.responses[0].partition_responses[0].error_code == ErrorCode::MessageTooLarge)
        })
        .unwrap();
    }
}

/// Each with a producer and a consumer throughout; `kaas-bench soak` has them again and again.
fn happens(scenario: Scenario, seeds: &[u64]) {
    // Long enough for three heartbeats and the Lease to be missed.
    let pause = Duration::from_secs(5);
    let (binary, directory) = (Path::new(env!("CARGO_BIN_EXE_kaas")), Path::new(env!("CARGO_TARGET_TMPDIR")));
    let mut stage = Stage::start(scenario, Setting::StandIn, binary, directory, pause).unwrap();
    for &seed in seeds {
        stage.repeat(seed).unwrap();
    }
    assert!(stage.finish().unwrap() > 0);
}

#[test]
fn a_broker_is_killed() {
    happens(Scenario::KillBroker, &[1, 2]);
}

#[test]
fn the_controller_is_killed() {
    happens(Scenario::KillController, &[1]);
}

#[test]
fn a_broker_stands_still() {
    happens(Scenario::PauseBroker, &[1]);
}

#[test]
fn the_controller_stands_still() {
    happens(Scenario::PauseController, &[1]);
}

#[test]
fn all_are_restarted_one_after_the_other() {
    happens(Scenario::RollingRestart, &[1]);
}

#[test]
fn three_become_five_become_three() {
    happens(Scenario::Scale, &[1]);
}

#[test]
fn a_topic_is_recreated_under_load() {
    happens(Scenario::RecreateTopic, &[1, 2]);
}

#[test]
fn two_controllers_race() {
    // With this seed the former one does put its assignment into place.
    happens(Scenario::RacingControllers, &[2]);
}

#[test]
fn a_stream_is_cut() {
    // Held back, and silent.
    happens(Scenario::CutStream, &[2, 4]);
}

#[test]
fn a_broker_that_is_told_to_stop_hands_over_first() {
    let mut cluster = start(3);
    client(&cluster).create_topic("t", 6, &[]).unwrap();
    let mut tester = Tester::new(&cluster, "t");
    // Also the controller, and the last one of all.
    while let Ok(id) = cluster.controller() {
        (0..5).for_each(|_| tester.produce(6).unwrap());
        let mut broker = cluster.brokers.remove(&id).unwrap();
        broker.signal("TERM").unwrap();
        if !cluster.brokers.is_empty() {
            (0..10).for_each(|_| tester.produce(6).unwrap());
        }
        assert!(broker.wait().unwrap().success(), "{}", broker.log_lines().join("\n"));
        let log = broker.log_lines().join("\n");
        assert!(log.contains("drained"), "{log}");
        if cluster.brokers.is_empty() {
            break;
        }
        cluster.wait_until_even(i32::try_from(cluster.brokers.len()).unwrap()).unwrap();
    }
    cluster.add(0).unwrap();
    tester.bootstrap(cluster.brokers.values());
    cluster.wait_until_even(1).unwrap();
    tester.check().unwrap();
}

#[test]
fn a_topic_is_deleted_and_made_anew_everywhere() {
    let cluster = start(3);
    let mut client = client(&cluster);
    for round in 0..3 {
        client.create_topic("t", 3, &[]).unwrap();
        let mut tester = Tester::new(&cluster, "t");
        tester.next = round * 100;
        (0..3).for_each(|_| tester.produce(3).unwrap());
        for partition in 0..3 {
            assert_eq!(
                tester.read(partition).unwrap(),
                (round * 100..round * 100 + 3).collect::<Vec<_>>(),
                "nothing older"
            );
        }
        client.delete_topic("t").unwrap();
    }
    wait_until("what was deleted is removed", || {
        let names = std::fs::read_dir(cluster.volume())?.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
        Ok(names.filter(|name| name == "t" || name.starts_with(".deleting")).count() == 0)
    })
    .unwrap();
}

#[test]
fn a_lost_assignment_is_written_again_and_epochs_go_on() {
    let mut cluster = start(2);
    client(&cluster).create_topic("t", 2, &[]).unwrap();
    let mut tester = Tester::new(&cluster, "t");
    tester.produce(2).unwrap();
    let path = cluster.volume().join("__cluster/assignment.json");
    std::fs::remove_file(&path).unwrap();
    wait_until("the controller writes it again", || Ok(path.exists())).unwrap();
    tester.produce(2).unwrap();

    let before = cluster.assignment().unwrap();
    (0..2).for_each(|id| cluster.kill(id).unwrap());
    std::fs::write(&path, "torn").unwrap();
    std::fs::remove_file(path.with_file_name("assignment.former.json")).unwrap();
    (0..2).for_each(|id| cluster.add(id).unwrap());
    cluster.wait_until_even(2).unwrap();
    let after = cluster.assignment().unwrap();
    for (before, after) in before.partitions.iter().zip(&after.partitions) {
        assert!(after.epoch > before.epoch && after.topic_id == before.topic_id);
    }
    assert!(cluster.logs().contains("THE ASSIGNMENT IS LOST"));
    tester.bootstrap(cluster.brokers.values());
    tester.produce(2).unwrap();
    tester.check().unwrap();
}

/// Somebody who is no part of the cluster takes a partition over, as a controller that was deposed may have told a broker to.
#[test]
fn a_leader_that_is_superseded_leads_again_above_whoever_did_it() {
    let cluster = start(2);
    client(&cluster).create_topic("t", 2, &[]).unwrap();
    let mut tester = Tester::new(&cluster, "t");
    (0..3).for_each(|_| tester.produce(2).unwrap());
    let row = cluster.assignment().unwrap().partitions.remove(0);
    let partition = cluster.volume().join("t").join(row.topic_id.to_string()).join(row.partition.0.to_string());
    let fence = |epoch: i32| partition.join(format!("{epoch:08x}.fence"));
    assert!(fence(row.epoch.0).exists(), "{}", fence(row.epoch.0).display());
    let higher = row.epoch.0 + 5;
    std::fs::write(fence(higher), "").unwrap();
    let line = format!("{{\"epoch\":{higher},\"broker\":77,\"timeMs\":1735689600000}}\n");
    std::fs::write(fence(row.epoch.0), line).unwrap();

    // It finds out when it writes.
    (0..3).for_each(|_| tester.produce(2).unwrap());
    let after = cluster.assignment().unwrap().partitions.remove(0);
    assert_eq!(after.leader, row.leader, "it is alive and may lead");
    assert!(after.epoch.0 > higher, "{after:?}");
    cluster.brokers[&row.leader.0].wait_for_log("another broker leads what this one led").unwrap();
    tester.check().unwrap();
}
