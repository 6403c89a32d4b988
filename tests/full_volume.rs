//! A volume that is full to the last block: partitions are led and read, records refused, topics deleted, and then it heals.
//! Needs root.

#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

use std::path::Path;

use bytes::Bytes;
use kaas_bench::broker::{Broker, BrokerOptions, wait_until};
use kaas_bench::client::{Client, PRODUCE_VERSION, produce_request};
use kaas_bench::cluster::{Cluster, Outside};
use kaas_bench::small_volume::SmallVolume;
use kaas_bench::tester::{Tester, connect};
use kaas_proto::kafka::ErrorCode;
use kaas_proto::kafka::messages::ProduceRequest;
use kaas_proto::record::{BatchBuilder, Batches};
use kaas_proto::types::{Offset, TimestampMs};

const RESERVE: &str = "data/__cluster/reserve/1";
const KEPT: i64 = 50;

struct Scene {
    volume: SmallVolume,
}

impl Scene {
    fn new() -> Self {
        Self { volume: SmallVolume::new(Path::new(env!("CARGO_TARGET_TMPDIR")), 48).unwrap() }
    }

    fn start(&self) -> Broker {
        let options = BrokerOptions::new(Path::new(env!("CARGO_BIN_EXE_kaas")), &self.volume.path().join("data"));
        Broker::start(&options).unwrap()
    }

    fn start_ready(&self) -> Broker {
        let broker = self.start();
        broker.wait_ready().unwrap();
        broker
    }

    fn reserve_bytes(&self) -> Option<u64> {
        std::fs::metadata(self.volume.path().join(RESERVE)).ok().map(|reserve| reserve.len())
    }

    /// A broker with its reserve in place, and the topics `kept`, with records, and `doomed`, with 8 MB.
    fn begin(&self) -> (Broker, Client) {
        let broker = self.start_ready();
        let mut client = Client::connect(broker.kafka()).unwrap();
        for topic in ["kept", "doomed"] {
            // The records are old: retention would make room with them.
            client.create_topic(topic, 1, &[("retention.ms", "-1")]).unwrap();
        }
        for number in 0..KEPT {
            client.produce("kept", 0, record(number, 100)).unwrap();
        }
        for number in 0..16 {
            client.produce("doomed", 0, record(number, 500_000)).unwrap();
        }
        wait_until("the reserve is there", || Ok(broker.metric("kaas_reserve_bytes", "")? >= 1e6)).unwrap();
        assert_eq!(self.reserve_bytes(), Some(1 << 20));
        (broker, client)
    }
}

fn record(number: i64, bytes: usize) -> Bytes {
    let time = TimestampMs(1_700_000_000_000 + number);
    BatchBuilder::new().record(time, Some(number.to_string().as_bytes()), Some(&vec![1; bytes])).build()
}

fn produce(client: &mut Client, topic: &str) -> ErrorCode {
    client.send(PRODUCE_VERSION, &produce_request(topic, 0, record(-1, 100))).unwrap();
    let answer = client.receive::<ProduceRequest>(PRODUCE_VERSION).unwrap();
    let row = &answer.responses[0].partition_responses[0];
    if row.error_code == ErrorCode::KafkaStorageError {
        let message = row.error_message.clone().expect("the error says what is wrong");
        assert!(message.contains("space"), "{message}");
    }
    row.error_code
}

/// Everything that was acknowledged in `kept` by [`Scene::begin`] can be read.
fn assert_kept(client: &mut Client) {
    let mut offset = Offset(0);
    while offset < Offset(KEPT) {
        let response = client.fetch("kept", 0, offset, 0).unwrap();
        let row = &response.responses[0].partitions[0];
        assert_eq!(row.error_code, ErrorCode::None);
        let records = row.records.parts().concat();
        for batch in Batches::new(&records) {
            let batch = batch.unwrap();
            assert_eq!(batch.base_offset(), offset, "no gap");
            assert_eq!(batch.max_timestamp().0, 1_700_000_000_000 + offset.0);
            offset = offset.plus(1);
            if offset == Offset(KEPT) {
                return;
            }
        }
    }
}

#[test]
fn a_broker_starts_on_a_volume_without_a_free_block_and_a_deletion_heals_it() {
    let scene = Scene::new();
    let (broker, _) = scene.begin();
    broker.kill().unwrap();
    scene.volume.fill("ballast").unwrap();

    // It leads and reads, at the expense of the reserve.
    let broker = scene.start_ready();
    let mut client = Client::connect(broker.kafka()).unwrap();
    client.wait_for_leaders("kept", 1).unwrap();
    client.wait_for_leaders("doomed", 1).unwrap();
    assert_kept(&mut client);
    assert!(broker.metric("kaas_reserve_given_up_total", "").unwrap() >= 1.0);
    assert_eq!(scene.reserve_bytes(), None);
    broker.wait_for_log("the reserve is given up").unwrap();

    // There is room now, but not for records.
    assert_eq!(produce(&mut client, "kept"), ErrorCode::KafkaStorageError);
    assert_eq!(produce(&mut client, "doomed"), ErrorCode::KafkaStorageError);
    assert_eq!(client.latest_offset("kept", 0).unwrap(), Offset(KEPT));
    let refused = client.create_topic("another", 1, &[]).unwrap_err().to_string();
    assert!(refused.contains("KafkaStorageError"), "{refused}");
    assert!(broker.get("/healthz").unwrap().1.contains(r#""acceptsRecords":false"#));
    assert!(broker.metric("kaas_reserve_refused_appends_total", "").unwrap() >= 2.0);

    client.delete_topic("doomed").unwrap();
    wait_until("records are accepted again", || Ok(produce(&mut client, "kept") == ErrorCode::None)).unwrap();
    assert_eq!(scene.reserve_bytes(), Some(1 << 20), "it is there again");
    assert_kept(&mut client);
    assert!(broker.stop().unwrap().success());

    let broker = scene.start_ready();
    let mut client = Client::connect(broker.kafka()).unwrap();
    client.wait_for_leaders("kept", 1).unwrap();
    assert_kept(&mut client);
    assert_eq!(client.latest_offset("kept", 0).unwrap(), Offset(KEPT + 1), "what was refused was not appended");
}

#[test]
fn a_broker_that_starts_again_and_again_on_a_full_volume_always_leads() {
    const STARTS: usize = 10;
    const PARTITIONS: i32 = 100;
    let scene = Scene::new();
    let (broker, mut client) = scene.begin();
    client.create_topic("many", PARTITIONS, &[]).unwrap();
    client.wait_for_leaders("many", PARTITIONS).unwrap();
    broker.kill().unwrap();
    scene.volume.fill("ballast").unwrap();
    // Each start makes a fence, revokes another one and writes a manifest per partition: more than the reserve, all in all.
    for start in 0..STARTS {
        let broker = scene.start_ready();
        let led = broker.metric("kaas_partitions_led", "").unwrap();
        assert!(led >= f64::from(PARTITIONS + 2), "start {start}: {led} are led\n{}", broker.log_lines().join("\n"));
        assert_kept(&mut Client::connect(broker.kafka()).unwrap());
        broker.kill().unwrap();
    }
    let broker = scene.start_ready();
    let mut client = Client::connect(broker.kafka()).unwrap();
    assert_eq!(produce(&mut client, "kept"), ErrorCode::KafkaStorageError);
    client.delete_topic("doomed").unwrap();
    wait_until("records are accepted again", || Ok(produce(&mut client, "kept") == ErrorCode::None)).unwrap();
}

#[test]
fn producers_fill_a_volume_and_do_not_get_at_the_reserve() {
    let scene = Scene::new();
    let (broker, mut client) = scene.begin();
    let mut refused = false;
    for number in 0..200 {
        if client.produce("doomed", 0, record(number, 500_000)).is_err() {
            refused = true;
            break;
        }
    }
    assert!(refused, "48 MiB hold no 100 MB");
    // Small ones, until these find no room either: then the reserve is what the partition is taken over with.
    wait_until("small records are refused", || Ok(produce(&mut client, "doomed") == ErrorCode::KafkaStorageError))
        .unwrap();
    scene.volume.fill("ballast").unwrap();
    wait_until("others notice", || Ok(produce(&mut client, "kept") == ErrorCode::KafkaStorageError)).unwrap();
    client.wait_for_leaders("kept", 1).unwrap();
    assert_kept(&mut client);
    broker.kill().unwrap();

    // Somebody else has taken what the reserve had left, and now there is none: what deletes goes on all the same.
    scene.volume.fill("more ballast").unwrap();
    let broker = scene.start();
    let mut client = Client::connect(broker.kafka()).unwrap();
    wait_until("the topic can be deleted", || Ok(client.delete_topic("doomed").is_ok())).unwrap();
    client.wait_for_leaders("kept", 1).unwrap();
    assert_kept(&mut client);
    wait_until("records are accepted again", || Ok(produce(&mut client, "kept") == ErrorCode::None)).unwrap();
    broker.wait_ready().unwrap();
    assert_eq!(scene.reserve_bytes(), Some(1 << 20));
}

/// The assignment is a file too: without room for it nobody would be told to take over.
#[test]
fn the_others_take_over_what_a_broker_led_that_dies_on_a_full_volume() {
    let scratch = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let volume = SmallVolume::new(scratch, 64).unwrap();
    let stand_in = Outside::StandIn(tempfile::tempdir_in(scratch).unwrap());
    let binary = Path::new(env!("CARGO_BIN_EXE_kaas"));
    let mut cluster = Cluster::start_with(binary, &volume.path(), stand_in, &[], 3).unwrap();
    let mut client = connect(cluster.brokers.values().next().unwrap().kafka()).unwrap();
    client.create_topic("t", 6, &[("retention.ms", "-1")]).unwrap();
    cluster.wait_until_even(3).unwrap();
    let mut tester = Tester::new(&cluster, "t");
    (0..10).for_each(|_| tester.produce(6).unwrap());
    for broker in cluster.brokers.values() {
        wait_until("the reserve is there", || Ok(broker.metric("kaas_reserve_bytes", "")? >= 1e6)).unwrap();
    }
    let ballast = volume.fill("ballast").unwrap();
    let controller = cluster.controller().unwrap();
    cluster.kill(controller).unwrap();
    tester.check().unwrap_or_else(|error| panic!("{error:?}\n{}", cluster.logs()));
    let given_up = |cluster: &Cluster| {
        let counts = cluster.brokers.values().map(|broker| broker.metric("kaas_reserve_given_up_total", ""));
        counts.sum::<anyhow::Result<f64>>()
    };
    assert!(given_up(&cluster).unwrap() >= 1.0);
    std::fs::remove_file(ballast).unwrap();
    wait_until("records are accepted again", || Ok(tester.produce(6).is_ok())).unwrap();
    tester.check().unwrap();
}
