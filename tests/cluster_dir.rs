//! The cluster's own state on a volume of its own: a data volume that is full holds up no commit of offsets, and the wrong directory is
//! refused. Needs root.

#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use bytes::Bytes;
use kaas_bench::broker::{Broker, BrokerOptions, wait_until};
use kaas_bench::client::{Client, PRODUCE_VERSION, produce_request};
use kaas_bench::cluster::{Cluster, Outside};
use kaas_bench::small_volume::SmallVolume;
use kaas_bench::tester::{Tester, connect};
use kaas_proto::kafka::ErrorCode;
use kaas_proto::kafka::messages::offset_commit::{OffsetCommitRequestPartition, OffsetCommitRequestTopic};
use kaas_proto::kafka::messages::offset_fetch::OffsetFetchRequestGroup;
use kaas_proto::kafka::messages::{OffsetCommitRequest, OffsetFetchRequest, ProduceRequest};
use kaas_proto::record::BatchBuilder;
use kaas_proto::types::{GenerationId, Offset, PartitionIndex, TimestampMs};

const BINARY: &str = env!("CARGO_BIN_EXE_kaas");
const SCRATCH: &str = env!("CARGO_TARGET_TMPDIR");
const GROUP: &str = "group";
const COMMIT_VERSION: i16 = 8;
const FETCH_VERSION: i16 = 8;

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

fn start(data: &Path, cluster: &Path) -> (Broker, Client) {
    let options = BrokerOptions::new(Path::new(BINARY), data).with(&["--cluster-dir", text(cluster)]);
    let broker = Broker::start(&options).unwrap();
    broker.wait_ready().unwrap();
    let client = Client::connect(broker.kafka()).unwrap();
    (broker, client)
}

/// Starts a broker that must not start, and returns what it says.
fn refusal(arguments: &[&str]) -> String {
    let options = BrokerOptions::in_memory(Path::new(BINARY)).with(arguments);
    Broker::start(&options).unwrap_err().to_string()
}

fn record(bytes: usize) -> Bytes {
    BatchBuilder::new().record(TimestampMs(1_700_000_000_000), None, Some(&vec![1; bytes])).build()
}

fn produce(client: &mut Client, bytes: usize) -> ErrorCode {
    client.send(PRODUCE_VERSION, &produce_request("t", 0, record(bytes))).unwrap();
    let answer = client.receive::<ProduceRequest>(PRODUCE_VERSION).unwrap();
    answer.responses[0].partition_responses[0].error_code
}

fn commit(client: &mut Client, offset: i64) -> ErrorCode {
    let partition = OffsetCommitRequestPartition {
        partition_index: PartitionIndex(0),
        committed_offset: Offset(offset),
        ..OffsetCommitRequestPartition::default()
    };
    let topic = OffsetCommitRequestTopic {
        name: "t".into(),
        partitions: vec![partition],
        ..OffsetCommitRequestTopic::default()
    };
    let request = OffsetCommitRequest {
        group_id: GROUP.into(),
        generation_id_or_member_epoch: GenerationId(-1),
        topics: vec![topic],
        ..OffsetCommitRequest::default()
    };
    once_loaded(|| client.call(COMMIT_VERSION, &request).unwrap().topics[0].partitions[0].error_code)
}

/// What the coordinator answers when it has read what it knew: until then clients ask again.
fn once_loaded(mut ask: impl FnMut() -> ErrorCode) -> ErrorCode {
    let mut answer = ErrorCode::None;
    wait_until("the coordinator has loaded its groups", || {
        answer = ask();
        Ok(answer != ErrorCode::CoordinatorLoadInProgress)
    })
    .unwrap();
    answer
}

fn committed(client: &mut Client) -> Option<Offset> {
    let group = OffsetFetchRequestGroup { group_id: GROUP.into(), ..OffsetFetchRequestGroup::default() };
    let request = OffsetFetchRequest { groups: vec![group], ..OffsetFetchRequest::default() };
    let mut groups = Vec::new();
    let code = once_loaded(|| {
        groups = client.call(FETCH_VERSION, &request).unwrap().groups;
        groups[0].error_code
    });
    assert_eq!(code, ErrorCode::None);
    groups[0].topics.first().map(|topic| topic.partitions[0].committed_offset)
}

fn names(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<_> = entries.collect();
    names.sort();
    names
}

/// All files below a directory, with their content.
fn contents(directory: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let mut found = Vec::new();
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(contents(&path));
        } else {
            let content = fs::read(&path).unwrap();
            found.push((path, content));
        }
    }
    found.sort();
    found
}

#[test]
fn offsets_are_committed_while_the_data_volume_is_full() {
    let volume = SmallVolume::new(Path::new(SCRATCH), 48).unwrap();
    let other = tempfile::tempdir_in(SCRATCH).unwrap();
    let (data, cluster) = (volume.path().join("data"), other.path().join("cluster"));
    let (broker, mut client) = start(&data, &cluster);
    let started = broker.wait_for_log("kaas starts").unwrap();
    assert!(started.contains(text(&data)) && started.contains(text(&cluster)), "{started}");
    client.create_topic("t", 1, &[("retention.ms", "-1")]).unwrap();
    assert_eq!(produce(&mut client, 100), ErrorCode::None);
    assert_eq!(commit(&mut client, 1), ErrorCode::None);
    for reserve in ["kaas_reserve_bytes", "kaas_cluster_reserve_bytes"] {
        wait_until("the reserve is there", || Ok(broker.metric(reserve, "")? >= 1e6)).unwrap();
    }
    assert_eq!(names(&data), [".cluster-id", ".reserve", "t"], "the cluster's state is elsewhere");

    let ballast = volume.fill("ballast").unwrap();
    wait_until("records are refused", || Ok(produce(&mut client, 100_000) == ErrorCode::KafkaStorageError)).unwrap();
    assert!(broker.wait_for_log("volume of the data directory is full").unwrap().contains("records are refused"));
    for offset in 2..100 {
        assert_eq!(commit(&mut client, offset), ErrorCode::None);
    }
    let health = broker.get("/healthz").unwrap().1;
    assert!(health.contains(r#""acceptsRecords":false"#) && health.contains(r#""acceptsOffsets":true"#), "{health}");
    assert_eq!(broker.metric("kaas_reserve_bytes", "").unwrap(), 0.0);
    assert!(broker.metric("kaas_cluster_reserve_bytes", "").unwrap() >= 1e6);
    broker.kill().unwrap();

    // Also a start leads and commits, and heals without another one.
    let (broker, mut client) = start(&data, &cluster);
    assert_eq!(committed(&mut client), Some(Offset(99)));
    wait_until("records are refused", || Ok(produce(&mut client, 100_000) == ErrorCode::KafkaStorageError)).unwrap();
    assert_eq!(commit(&mut client, 100), ErrorCode::None);
    fs::remove_file(ballast).unwrap();
    wait_until("records are accepted again", || Ok(produce(&mut client, 100) == ErrorCode::None)).unwrap();
    assert!(broker.stop().unwrap().success());

    let (broker, mut client) = start(&data, &cluster);
    assert_eq!(committed(&mut client), Some(Offset(100)));
    assert!(broker.stop().unwrap().success());
    // What is inspected there is a coordinator slot, without `__cluster` in its path.
    let written =
        |(path, content): &(PathBuf, Vec<u8>)| path.extension().is_some_and(|e| e == "log") && !content.is_empty();
    let logs = contents(&cluster.join("coordinators")).into_iter().filter(written);
    let printed = logs.map(|(log, _)| {
        let output = Command::new(BINARY).args(["inspect", "segment", "--records", text(&log)]).output().unwrap();
        String::from_utf8(output.stdout).unwrap()
    });
    assert!(printed.into_iter().any(|printed| printed.contains(GROUP) && printed.contains("100")));
}

#[test]
fn records_are_accepted_while_the_cluster_volume_is_full() {
    let volume = SmallVolume::new(Path::new(SCRATCH), 32).unwrap();
    let other = tempfile::tempdir_in(SCRATCH).unwrap();
    // The root of a volume, with what a file system has of its own.
    let (data, cluster) = (other.path().join("data"), volume.path());
    let (broker, mut client) = start(&data, &cluster);
    client.create_topic("t", 1, &[]).unwrap();
    assert_eq!(commit(&mut client, 1), ErrorCode::None);
    wait_until("the reserve is there", || Ok(broker.metric("kaas_cluster_reserve_bytes", "")? >= 1e6)).unwrap();
    let ballast = volume.fill("ballast").unwrap();
    let mut offset = 1;
    wait_until("offsets are refused", || {
        offset += 1;
        Ok(commit(&mut client, offset) != ErrorCode::None)
    })
    .unwrap();
    broker.wait_for_log("volume of the cluster directory is full").unwrap();
    assert_eq!(produce(&mut client, 100_000), ErrorCode::None);
    assert_eq!(committed(&mut client), Some(Offset(offset - 1)));
    fs::remove_file(ballast).unwrap();
    wait_until("offsets are accepted again", || Ok(commit(&mut client, offset) == ErrorCode::None)).unwrap();
    assert!(broker.stop().unwrap().success());
    let (_broker, mut client) = start(&data, &cluster);
    assert_eq!(committed(&mut client), Some(Offset(offset)));
}

#[test]
fn the_wrong_directory_is_refused_and_nothing_is_lost() {
    let root = tempfile::tempdir_in(SCRATCH).unwrap();
    let path = |name: &str| root.path().join(name);
    let (data, cluster, empty) = (path("data"), path("cluster"), path("empty"));
    let of_data = ["--data-dir", text(&data)];
    let with = |cluster: &Path| refusal(&[&of_data[..], &["--cluster-dir", text(cluster)]].concat());

    // State that lies in the data directory is moved first.
    let broker = Broker::start(&BrokerOptions::new(Path::new(BINARY), &data)).unwrap();
    broker.wait_ready().unwrap();
    let mut client = Client::connect(broker.kafka()).unwrap();
    client.create_topic("t", 1, &[]).unwrap();
    assert_eq!((produce(&mut client, 100), commit(&mut client, 1)), (ErrorCode::None, ErrorCode::None));
    assert!(broker.stop().unwrap().success());
    let said = with(&cluster);
    assert!(said.contains("move what is in") && said.contains("leave out --cluster-dir"), "{said}");
    fs::remove_dir_all(&cluster).unwrap();
    fs::rename(data.join("__cluster"), &cluster).unwrap();
    let (broker, mut client) = start(&data, &cluster);
    assert_eq!(committed(&mut client), Some(Offset(1)));
    assert_eq!(client.latest_offset("t", 0).unwrap(), Offset(1));
    assert!(broker.stop().unwrap().success());

    let other = (path("other data"), path("other cluster"));
    assert!(start(&other.0, &other.1).0.stop().unwrap().success());
    let before = (contents(&data), contents(&cluster), contents(&other.1));
    let said = refusal(&of_data);
    assert!(said.contains("moved to with --cluster-dir"), "{said}");
    let said = with(&empty);
    assert!(said.contains("holds no cluster state") && said.contains("KAAS_CLUSTER_DIR"), "{said}");
    assert_eq!(names(&empty).len(), 0);
    let said = with(&other.1);
    assert!(said.contains("holds the state of cluster"), "{said}");
    let said = with(&data.join("inside"));
    assert!(said.contains("lie one in the other"), "{said}");
    assert!(!data.join("inside").exists(), "nothing is made");
    let said = with(Path::new("/etc/passwd"));
    assert!(said.contains("the cluster directory (--cluster-dir)"), "{said}");
    assert!((contents(&data), contents(&cluster), contents(&other.1)) == before, "nothing has changed");

    let (_broker, mut client) = start(&data, &cluster);
    assert_eq!(committed(&mut client), Some(Offset(1)));
    assert_eq!(client.latest_offset("t", 0).unwrap(), Offset(1));
}

#[test]
fn three_brokers_share_both_directories() {
    let scratch = Path::new(SCRATCH);
    let directory = tempfile::tempdir_in(scratch).unwrap();
    let stand_in = Outside::StandIn(tempfile::tempdir_in(scratch).unwrap());
    let arguments = ["--cluster-dir", text(directory.path())].map(str::to_owned);
    let mut cluster = Cluster::start_with(Path::new(BINARY), scratch, stand_in, &arguments, 3).unwrap();
    let mut client = connect(cluster.brokers.values().next().unwrap().kafka()).unwrap();
    client.create_topic("t", 6, &[]).unwrap();
    cluster.wait_until_even(3).unwrap();
    let mut tester = Tester::new(&cluster, "t");
    (0..10).for_each(|_| tester.produce(6).unwrap());
    cluster.kill(cluster.controller().unwrap()).unwrap();
    tester.check().unwrap_or_else(|error| panic!("{error:?}\n{}", cluster.logs()));
    cluster.wait_until_even(2).unwrap();
    assert!(!cluster.volume().join("__cluster").exists());
    let written = names(directory.path());
    for name in ["assignment.json", "cluster-id", "controller-epochs", "coordinators", "reserve"] {
        assert!(written.iter().any(|written| written == name), "{name} is missing in {written:?}");
    }
}
