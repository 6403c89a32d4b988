//! A data directory in which much is damaged at once: the broker starts, says what it can't serve and why, and serves the
//! rest. (All files of a partition in all ways: core/tests/shard/every_file.rs.)

#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

use std::fs;
use std::path::{Path, PathBuf};

use kaas_bench::broker::{Broker, BrokerOptions, wait_until};
use kaas_bench::client::Client;
use kaas_bench::cluster::Cluster;
use kaas_proto::kafka::ErrorCode;
use kaas_proto::kafka::messages::InitProducerIdRequest;
use kaas_proto::record::{BatchBuilder, Batches, RecordSet};
use kaas_proto::types::{Offset, ProducerEpoch, ProducerId, TimestampMs};

const RECORDS: i32 = 12;

fn options(data_dir: &Path) -> BrokerOptions {
    BrokerOptions::new(Path::new(env!("CARGO_BIN_EXE_kaas")), data_dir).with(&["--shards", "1"])
}

#[derive(Clone, Copy, Debug)]
enum Damage {
    Empty,
    Flip,
    Foreign,
    Directory,
    Gone,
}

const FOREIGN: &[u8] = b"Dear diary, this is somebody else's file.\n";

impl Damage {
    fn apply(self, path: &Path) {
        match self {
            Self::Empty => fs::write(path, b"").unwrap(),
            Self::Flip => {
                let mut content = fs::read(path).unwrap();
                let middle = content.iter().rposition(|&byte| byte != 0).unwrap_or(0) / 2;
                content[middle] ^= 4;
                fs::write(path, content).unwrap();
            }
            Self::Foreign => fs::write(path, FOREIGN).unwrap(),
            Self::Gone => fs::remove_file(path).unwrap(),
            Self::Directory => {
                fs::remove_file(path).unwrap();
                self.make(path);
            }
        }
    }

    /// A directory with something in it.
    fn make(self, path: &Path) {
        fs::create_dir_all(path).unwrap();
        fs::write(path.join("inside"), FOREIGN).unwrap();
    }

    fn is_untouched(self, path: &Path) -> bool {
        match self {
            Self::Empty => fs::read(path).is_ok_and(|content| content.is_empty()),
            Self::Flip => path.is_file(),
            Self::Foreign => fs::read(path).is_ok_and(|content| content == FOREIGN),
            Self::Directory => fs::read(path.join("inside")).is_ok_and(|content| content == FOREIGN),
            Self::Gone => true,
        }
    }
}

/// What must become of a topic with one damaged file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Expected {
    /// It is served in full: the file was a hint, or has a default.
    Served,
    /// There is no such topic as far as clients can tell; its directory is left alone.
    Unknown,
    /// The partition has no leader.
    NotLed,
    /// Served, or refused with a storage error; never anything wrong.
    NothingWrong,
}

/// The file of a topic's directory with this ending, newest epoch first.
fn file(topic: &Path, ending: &str) -> PathBuf {
    let at_top = topic.join(ending);
    if at_top.exists() {
        return at_top;
    }
    let incarnation = fs::read_dir(topic).unwrap().flatten().find(|entry| entry.path().is_dir()).unwrap().path();
    let mut names: Vec<_> = fs::read_dir(incarnation.join("0")).unwrap().map(|entry| entry.unwrap().path()).collect();
    names.sort();
    names.into_iter().rfind(|path| path.to_str().unwrap().ends_with(ending)).unwrap()
}

/// All keys of partition 0 in order, or why there are none.
fn read_all(client: &mut Client, topic: &str) -> Result<Vec<i32>, ErrorCode> {
    let (mut keys, mut offset) = (Vec::new(), Offset(0));
    loop {
        let response = client.fetch(topic, 0, offset, 0).unwrap();
        let row = &response.responses[0].partitions[0];
        if row.error_code != ErrorCode::None {
            return Err(row.error_code);
        }
        let joined = row.records.parts().concat();
        if joined.is_empty() {
            return Ok(keys);
        }
        for batch in Batches::new(&joined) {
            let batch = batch.unwrap();
            batch.check_crc().unwrap();
            let records = RecordSet::read(batch, 1 << 20).unwrap();
            for record in records.iter() {
                let record = record.unwrap();
                assert_eq!(records.offset(&record), offset, "no gap");
                keys.push(std::str::from_utf8(record.key.unwrap()).unwrap().parse().unwrap());
                offset = offset.plus(1);
            }
        }
    }
}

#[test]
fn a_directory_with_damage_everywhere_is_served_as_far_as_it_can_be() {
    use Damage::{Directory, Empty, Flip, Foreign, Gone};
    use Expected::{NotLed, NothingWrong, Served, Unknown};
    let cases = [
        (".topic-id.json", Empty, Unknown),
        (".topic-id.json", Flip, Unknown),
        (".topic-id.json", Foreign, Unknown),
        (".topic-id.json", Directory, Unknown),
        (".topic-id.json", Gone, Unknown),
        (".config.json", Empty, Unknown),
        (".config.json", Flip, Unknown),
        (".config.json", Foreign, Unknown),
        (".config.json", Directory, Unknown),
        (".manifest.json", Empty, NotLed),
        (".manifest.json", Flip, NotLed),
        (".manifest.json", Directory, NotLed),
        (".manifest.json", Gone, NotLed),
        (".log", Empty, NotLed),
        (".log", Flip, NothingWrong),
        (".log", Foreign, NotLed),
        (".log", Directory, NotLed),
        (".log", Gone, NotLed),
        (".index", Flip, Served),
        (".index", Directory, Served),
        (".checkpoint.json", Flip, Served),
        (".checkpoint.json", Directory, Served),
        (".producers", Flip, Served),
        (".fence", Foreign, Served),
    ];
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let root = directory.path();
    let topics: Vec<_> = (0..cases.len()).map(|number| format!("t{number:02}")).chain(["healthy".into()]).collect();

    let broker = Broker::start(&options(root)).unwrap();
    broker.wait_ready().unwrap();
    let mut client = Client::connect(broker.kafka()).unwrap();
    for topic in &topics {
        client.create_topic(topic, 1, &[("retention.ms", "-1")]).unwrap();
        for number in 0..RECORDS {
            let batch = BatchBuilder::new().producer(ProducerId(4), ProducerEpoch(0), number);
            let key = number.to_string();
            let batch = batch.record(TimestampMs(1_700_000_000_000), Some(key.as_bytes()), Some(&[3; 200])).build();
            assert_eq!(client.produce(topic, 0, batch).unwrap(), Offset(number.into()));
        }
    }
    assert!(broker.stop().unwrap().success());

    let mut damaged = Vec::new();
    for (topic, (ending, damage, _)) in topics.iter().zip(cases) {
        let path = file(&root.join(topic), ending);
        damage.apply(&path);
        damaged.push(path);
    }
    // Coordinator slots, and what is nobody's.
    let slots = root.join("__cluster/coordinators");
    let of_slot = |slot: &str, ending: &str| {
        let paths = fs::read_dir(slots.join(slot)).unwrap().map(|entry| entry.unwrap().path());
        paths.filter(|path| path.to_str().unwrap().ends_with(ending)).max().unwrap()
    };
    Flip.apply(&of_slot("03", ".manifest.json"));
    Directory.apply(&of_slot("04", ".fence"));
    Directory.apply(&of_slot("05", ".manifest.json"));
    Foreign.apply(&root.join("__cluster/cluster-id"));
    fs::write(root.join("notes.txt"), FOREIGN).unwrap();
    fs::create_dir(root.join("lost+found")).unwrap();
    fs::create_dir(root.join("no-topic")).unwrap();
    fs::write(root.join("no-topic/file"), FOREIGN).unwrap();
    fs::write(root.join("__cluster/producer-ids/notes.txt"), FOREIGN).unwrap();

    let broker = Broker::start(&options(root)).unwrap();
    let mut client = Client::connect(broker.kafka()).unwrap();
    client.wait_for_leaders("healthy", 1).unwrap();
    assert_eq!(read_all(&mut client, "healthy"), Ok((0..RECORDS).collect()));
    let all: Vec<_> = (0..RECORDS).collect();
    for ((topic, (ending, damage, expected)), path) in topics.iter().zip(cases).zip(&damaged) {
        let what = format!("{topic}: {damage:?} of {ending}");
        let says =
            |words: &str| broker.log_lines().iter().any(|line| line.contains(topic.as_str()) && line.contains(words));
        match expected {
            Served => {
                client.wait_for_leaders(topic, 1).unwrap();
                assert_eq!(read_all(&mut client, topic), Ok(all.clone()), "{what}");
            }
            Unknown => {
                let metadata = client.metadata(topic).unwrap();
                assert_eq!(metadata.topics[0].error_code, ErrorCode::UnknownTopicOrPartition, "{what}");
                assert!(says(ending), "{what}: it does not say why:\n{}", broker.log_lines().join("\n"));
                assert!(damage.is_untouched(path), "{what}");
            }
            NotLed => {
                wait_until("the broker says why", || Ok(says("the takeover failed"))).unwrap();
                let refused = read_all(&mut client, topic);
                assert!(refused.is_err(), "{what}: {refused:?}");
                assert!(damage.is_untouched(path), "{what}");
            }
            NothingWrong => match read_all(&mut client, topic) {
                Ok(found) => assert_eq!(found, all, "{what}"),
                Err(code) => {
                    let refused =
                        [ErrorCode::KafkaStorageError, ErrorCode::LeaderNotAvailable, ErrorCode::NotLeaderOrFollower];
                    assert!(refused.contains(&code), "{what}: {code:?}");
                }
            },
        }
    }
    for slot in ["03", "05"] {
        let says =
            |line: &String| line.contains(&format!("coordinators/{slot}")) && line.contains("the takeover failed");
        wait_until("the broker says why", || Ok(broker.log_lines().iter().any(says))).unwrap();
    }
    let (status, ready) = broker.get("/readyz").unwrap();
    assert!(status == 200 || status == 503, "{ready}");
    assert!(broker.stop().unwrap().success());

    for path in ["notes.txt", "no-topic/file", "__cluster/producer-ids/notes.txt", "__cluster/cluster-id"] {
        assert_eq!(fs::read(root.join(path)).unwrap(), FOREIGN, "{path}");
    }
    assert!(root.join("lost+found").is_dir());
}

/// The directories of the broker's own, each replaced by a file, and then holding directories where files should be.
#[test]
fn own_directories_that_are_something_else_cost_what_would_be_in_them() {
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let root = directory.path();
    let cluster = root.join("__cluster");
    let names = ["producer-ids", "reserve", "clocks", "controller-epochs"];
    let broker = Broker::start(&options(root)).unwrap();
    broker.wait_ready().unwrap();
    let mut client = Client::connect(broker.kafka()).unwrap();
    client.create_topic("t", 1, &[("retention.ms", "-1")]).unwrap();
    assert!(broker.stop().unwrap().success());
    let record = |value: &[u8]| BatchBuilder::new().record(TimestampMs(1_700_000_000_000), None, Some(value)).build();

    for name in names {
        let path = cluster.join(name);
        let _ = fs::remove_dir_all(&path);
        fs::write(&path, FOREIGN).unwrap();
    }
    fs::remove_dir_all(cluster.join("coordinators/07")).unwrap();
    fs::write(cluster.join("coordinators/07"), FOREIGN).unwrap();
    let broker = Broker::start(&options(root)).unwrap();
    let mut client = Client::connect(broker.kafka()).unwrap();
    client.wait_for_leaders("t", 1).unwrap();
    assert_eq!(client.produce("t", 0, record(b"first")).unwrap(), Offset(0));
    let says = |name: &str| broker.log_lines().iter().any(|line| line.contains(name));
    for name in ["producer-ids", "reserve", "coordinators/07"] {
        wait_until("the broker says what is wrong", || Ok(says(name))).unwrap();
    }
    let init = InitProducerIdRequest { transaction_timeout_ms: 1000, ..InitProducerIdRequest::default() };
    assert_eq!(client.call(2, &init).unwrap().error_code, ErrorCode::CoordinatorNotAvailable);
    assert!(broker.stop().unwrap().success());
    for name in names.into_iter().chain(["coordinators/07"]) {
        assert_eq!(fs::read(cluster.join(name)).unwrap(), FOREIGN, "{name}");
        fs::remove_file(cluster.join(name)).unwrap();
    }

    let inside =
        ["producer-ids/0000000000000000", "producer-ids/other", "reserve/1", "clocks/1", "controller-epochs/00000001"];
    for name in inside {
        Damage::Directory.make(&cluster.join(name));
    }
    let broker = Broker::start(&options(root)).unwrap();
    broker.wait_ready().unwrap();
    let mut client = Client::connect(broker.kafka()).unwrap();
    client.wait_for_leaders("t", 1).unwrap();
    assert_eq!(client.produce("t", 0, record(b"second")).unwrap(), Offset(1));
    // A name that is taken is passed over.
    let answer = client.call(2, &init).unwrap();
    assert_eq!((answer.error_code, answer.producer_id), (ErrorCode::None, ProducerId(1000)));
    for name in ["reserve/1", "clocks/1"] {
        wait_until("the broker says what is wrong", || Ok(broker.log_lines().iter().any(|line| line.contains(name))))
            .unwrap();
    }
    assert!(broker.stop().unwrap().success());
    for name in inside {
        assert!(Damage::Directory.is_untouched(&cluster.join(name)), "{name}");
    }
}

/// Without a place for controller epochs nobody can become the controller; whoever leads goes on.
#[test]
fn a_cluster_without_a_place_for_controller_epochs_serves_what_it_led() {
    let binary = Path::new(env!("CARGO_BIN_EXE_kaas"));
    let mut cluster = Cluster::start(binary, Path::new(env!("CARGO_TARGET_TMPDIR")), 2).unwrap();
    let path = cluster.volume().join("__cluster/controller-epochs");
    let mut client = Client::connect(cluster.brokers[&0].kafka()).unwrap();
    client.create_topic("t", 2, &[]).unwrap();
    cluster.wait_until_even(2).unwrap();
    fs::remove_dir_all(&path).unwrap();
    fs::write(&path, FOREIGN).unwrap();
    let (controller, follower) = (cluster.controller().unwrap(), cluster.follower().unwrap());
    let assignment = cluster.assignment().unwrap();
    let led = assignment.partitions.iter().find(|row| row.leader.0 == follower).unwrap().partition.0;
    cluster.kill(controller).unwrap();
    let says = |cluster: &Cluster| {
        let lines = cluster.brokers[&follower].log_lines();
        Ok(lines.iter().any(|line| line.contains("controller-epochs")))
    };
    wait_until("the other one says why it can't be the controller", || says(&cluster)).unwrap();
    let batch = || BatchBuilder::new().record(TimestampMs(1_700_000_000_000), None, Some(b"value")).build();
    let mut client = Client::connect(cluster.brokers[&follower].kafka()).unwrap();
    assert_eq!(client.produce("t", led, batch()).unwrap(), Offset(0));
    assert_eq!(fs::read(&path).unwrap(), FOREIGN);
    // With the place back, it leads everything.
    fs::remove_file(&path).unwrap();
    cluster.wait_until_even(1).unwrap();
    assert_eq!(client.produce("t", led, batch()).unwrap(), Offset(1));
}
