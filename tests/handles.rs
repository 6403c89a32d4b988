//! Which files a real broker holds open: log and fence of what it leads, none of what it does not lead any more.

#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use kaas_bench::broker::{Broker, BrokerOptions, wait_until};
use kaas_bench::client::{Client, PRODUCE_VERSION, produce_request};
use kaas_bench::cluster::Cluster;
use kaas_bench::tester::Tester;
use kaas_proto::control::PartitionKey;
use kaas_proto::kafka::ErrorCode;
use kaas_proto::kafka::messages::DeleteTopicsRequest;
use kaas_proto::kafka::messages::produce::PartitionProduceData;
use kaas_proto::layout::{partition_directory, slot_directory};
use kaas_proto::record::{BatchBuilder, Batches};
use kaas_proto::types::{Offset, PartitionIndex, TimestampMs};

const PARTITIONS: i32 = 40;

fn start(data_dir: &Path) -> Broker {
    let options = BrokerOptions::new(Path::new(env!("CARGO_BIN_EXE_kaas")), data_dir);
    let broker = Broker::start(&options.with(&["--shards", "1"])).unwrap();
    broker.wait_ready().unwrap();
    broker
}

/// How many descriptors a process has on files below a directory, by the ending of their names. Unlinked ones end in
/// ` (deleted)`.
fn open_files(process: u32, directory: &Path) -> BTreeMap<String, usize> {
    let mut found = BTreeMap::new();
    for entry in fs::read_dir(format!("/proc/{process}/fd")).unwrap() {
        let Ok(target) = fs::read_link(entry.unwrap().path()) else { continue };
        if target.starts_with(directory) && !target.is_dir() {
            let name = target.file_name().unwrap().to_string_lossy().into_owned();
            *found.entry(name.rsplit('.').next().unwrap().to_owned()).or_default() += 1;
        }
    }
    found
}

/// Waits until exactly these are open: handles that are let go are closed in the background.
fn wait_for_open(broker: &Broker, directory: &Path, expected: &[(&str, usize)]) {
    let expected: BTreeMap<_, _> = expected.iter().map(|&(ending, count)| (ending.to_owned(), count)).collect();
    let mut open = BTreeMap::new();
    let waited = wait_until("only what is led is open", || {
        open = open_files(broker.process_id(), directory);
        Ok(open == expected)
    });
    assert!(waited.is_ok(), "open below {}: {open:?}, expected: {expected:?}", directory.display());
}

fn batch() -> Bytes {
    BatchBuilder::new().record(TimestampMs(1_700_000_000_000), None, Some(b"value")).build()
}

fn produce(client: &mut Client, topic: &str, partition: i32) {
    client.produce(topic, partition, batch()).unwrap();
}

#[test]
fn a_broker_holds_handles_of_what_it_leads_only() {
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let root = directory.path().canonicalize().unwrap();
    let slots = root.join("__cluster");
    let [kept, deleted] = ["kept", "deleted"].map(|topic| root.join(topic));
    let led = usize::try_from(PARTITIONS).unwrap();

    let broker = start(&root);
    let mut client = Client::connect(broker.kafka()).unwrap();
    for topic in ["kept", "deleted"] {
        client.create_topic(topic, PARTITIONS, &[]).unwrap();
    }
    // One fence each; a log only where something was written.
    for topic in [&kept, &deleted] {
        wait_for_open(&broker, topic, &[("fence", led)]);
    }
    wait_for_open(&broker, &slots, &[("fence", 50)]);
    for partition in 0..3 {
        produce(&mut client, "kept", partition);
        produce(&mut client, "deleted", partition);
    }
    for topic in [&kept, &deleted] {
        wait_for_open(&broker, topic, &[("fence", led), ("log", 3)]);
    }
    // A topic that is deleted: nothing, neither below its name nor where it was moved to.
    let request = DeleteTopicsRequest {
        topic_names: vec!["deleted".into()],
        timeout_ms: 60_000,
        ..DeleteTopicsRequest::default()
    };
    client.call(5, &request).unwrap();
    wait_until("the directory is gone", || Ok(!deleted.exists())).unwrap();
    wait_for_open(&broker, &root, &[("fence", led + 50), ("log", 3)]);
    wait_until("what was renamed aside is removed", || {
        Ok(fs::read_dir(&root)?.flatten().all(|entry| !entry.file_name().to_string_lossy().starts_with(".deleting")))
    })
    .unwrap();
    assert!(broker.stop().unwrap().success());

    // A start opens no log: what was written is read by the end of its segment only, and closed again.
    let broker = start(&root);
    wait_for_open(&broker, &kept, &[("fence", led)]);
    let mut client = Client::connect(broker.kafka()).unwrap();
    client.wait_for_leaders("kept", PARTITIONS).unwrap();
    // An older segment is opened when somebody reads it.
    let read = client.fetch("kept", 1, Offset(0), 0).unwrap();
    assert!(!read.responses[0].partitions[0].records.is_empty());
    wait_for_open(&broker, &kept, &[("fence", led), ("log", 1)]);
    // A second broker takes over: the first has to let go of everything before it ends.
    let second = start(&root);
    let mut first = broker;
    assert!(!first.wait().unwrap().success());
    wait_for_open(&second, &kept, &[("fence", led)]);
    assert!(second.stop().unwrap().success());
}

#[test]
fn of_many_partitions_few_have_their_log_open() {
    // Of 1,024 files 408 are for what is led: 306 fences, 51 segments, half of them active ones.
    const PARTITIONS: i32 = 100;
    const ACTIVE: usize = 26;
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let root = directory.path().canonicalize().unwrap();
    let script = root.join("kaas-limited");
    fs::write(&script, format!("#!/bin/sh\nulimit -n 1024\nexec {} \"$@\"\n", env!("CARGO_BIN_EXE_kaas"))).unwrap();
    fs::set_permissions(&script, Permissions::from_mode(0o755)).unwrap();
    let (data, many) = (root.join("data"), root.join("data/many"));
    let led = usize::try_from(PARTITIONS).unwrap();
    let start = || {
        let broker = Broker::start(&BrokerOptions::new(&script, &data).with(&["--shards", "1"])).unwrap();
        broker.wait_ready().unwrap();
        broker
    };

    let broker = start();
    let mut client = Client::connect(broker.kafka()).unwrap();
    client.create_topic("many", PARTITIONS, &[]).unwrap();
    for _ in 0..3 {
        (0..PARTITIONS).for_each(|partition| produce(&mut client, "many", partition));
    }
    wait_for_open(&broker, &many, &[("fence", led), ("log", ACTIVE)]);
    let metric = |name: &str| broker.metric(name, "").unwrap();
    assert_eq!(metric("kaas_open_active_segments"), 26.0);
    assert_eq!(metric("kaas_log_active_segments_displaced_total"), 274.0, "all but the open ones, each time");
    assert_eq!(metric("kaas_log_active_segments_reopened_total"), 200.0, "for each append but the first");
    // All at once: they wait for each other.
    let mut all = produce_request("many", 0, batch());
    let row = all.topic_data[0].partition_data[0].clone();
    let rows =
        (0..PARTITIONS).map(|partition| PartitionProduceData { index: PartitionIndex(partition), ..row.clone() });
    all.topic_data[0].partition_data = rows.collect();
    for offset in (3..10).map(Offset) {
        let answer = client.call(PRODUCE_VERSION, &all).unwrap();
        let rows = &answer.responses[0].partition_responses;
        assert!(rows.iter().all(|row| (row.error_code, row.base_offset) == (ErrorCode::None, offset)), "{rows:?}");
    }
    assert!(metric("kaas_log_segment_waits_total") > 0.0);
    wait_for_open(&broker, &many, &[("fence", led), ("log", ACTIVE)]);
    let refused = client.create_topic("more", 207, &[]).unwrap_err().to_string();
    assert!(refused.contains("limit of 306") && refused.contains("ulimit -n"), "{refused}");
    client.create_topic("more", 206, &[]).unwrap();
    broker.kill().unwrap();

    let broker = start();
    wait_for_open(&broker, &many, &[("fence", led)]);
    let mut client = Client::connect(broker.kafka()).unwrap();
    client.wait_for_leaders("many", PARTITIONS).unwrap();
    for partition in 0..PARTITIONS {
        let read = client.fetch("many", partition, Offset(0), 0).unwrap();
        let records = read.responses[0].partitions[0].records.clone().into_bytes();
        assert_eq!(Batches::new(&records).count(), 10, "of partition {partition}");
    }
}

/// The directories of partitions and slots in which a process has files open.
fn open_directories(process: u32, root: &Path) -> BTreeSet<PathBuf> {
    let entries = fs::read_dir(format!("/proc/{process}/fd")).unwrap();
    let targets = entries.filter_map(|entry| fs::read_link(entry.unwrap().path()).ok());
    // Of a directory that was synced nothing is kept.
    let files = targets.filter(|target| target.starts_with(root) && !target.is_dir());
    files.filter_map(|file| Some(file.parent()?.strip_prefix(root).ok()?.to_owned())).collect()
}

/// What the assignment gives to a broker.
fn led_directories(cluster: &Cluster, broker: i32) -> BTreeSet<PathBuf> {
    let assignment = cluster.assignment().unwrap();
    let partitions = assignment.partitions.iter().filter(|row| row.leader.0 == broker);
    let slots = assignment.consumer_groups.iter().filter(|row| row.leader.0 == broker);
    let directory = |topic: &str, topic_id, partition| partition_directory(topic, PartitionKey { topic_id, partition });
    let led = partitions.map(|row| directory(&row.topic, row.topic_id, row.partition));
    led.chain(slots.map(|row| slot_directory(row.slot))).collect()
}

#[test]
fn brokers_of_a_cluster_hold_handles_of_what_each_leads_only() {
    const PARTITIONS: i32 = 60;
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let mut cluster = Cluster::start(Path::new(env!("CARGO_BIN_EXE_kaas")), directory, 3).unwrap();
    let root = cluster.volume().canonicalize().unwrap();
    let mut client = Client::connect(cluster.brokers[&0].kafka()).unwrap();
    client.create_topic("t", PARTITIONS, &[]).unwrap();
    cluster.wait_until_even(3).unwrap();
    let mut tester = Tester::new(&cluster, "t");
    (0..PARTITIONS).for_each(|partition| tester.produce_to(partition).unwrap());
    let hold_what_they_lead = |cluster: &Cluster| {
        for (&id, broker) in &cluster.brokers {
            let (mut open, mut led) = (BTreeSet::new(), BTreeSet::new());
            let waited = wait_until("what is open is what is led", || {
                (open, led) = (open_directories(broker.process_id(), &root), led_directories(cluster, id));
                Ok(open == led && !led.is_empty())
            });
            let differ: Vec<_> = open.symmetric_difference(&led).collect();
            assert!(waited.is_ok(), "broker {id} leads {}, has open {}: {differ:?}", led.len(), open.len());
        }
    };
    hold_what_they_lead(&cluster);
    let before: usize = (0..3).map(|id| led_directories(&cluster, id).len()).sum();
    assert_eq!(before, usize::try_from(PARTITIONS).unwrap() + 50, "a part of it each");
    // One goes and comes back: the others take its part, and give it back.
    let follower = cluster.follower().unwrap();
    cluster.stop(follower).unwrap();
    cluster.wait_until_even(2).unwrap();
    hold_what_they_lead(&cluster);
    cluster.add(follower).unwrap();
    cluster.wait_until_even(3).unwrap();
    hold_what_they_lead(&cluster);
}
