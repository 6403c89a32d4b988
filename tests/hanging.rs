//! A volume whose writes or reads hang: probes answer all the while, say what hangs, and nobody is moved or restarted for it.

#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

use std::path::Path;
use std::time::{Duration, Instant};

use bytes::Bytes;
use kaas_bench::broker::{Broker, BrokerOptions, wait_until};
use kaas_bench::client::{Client, FETCH_VERSION, PRODUCE_VERSION, fetch_request, produce_request};
use kaas_bench::cluster::{Cluster, Outside};
use kaas_bench::small_volume::SmallVolume;
use kaas_proto::kafka::messages::ProduceRequest;
use kaas_proto::record::BatchBuilder;
use kaas_proto::types::{Offset, TimestampMs};
use serde_json::Value;
use tempfile::TempDir;

/// A kubelet waits for so long.
const PROBE_PATIENCE: Duration = Duration::from_secs(2);
/// Below what Kubernetes waits for before it kills a pod.
const STOP_PATIENCE: Duration = Duration::from_secs(30);

fn binary() -> &'static Path {
    Path::new(env!("CARGO_BIN_EXE_kaas"))
}

fn directory() -> &'static Path {
    Path::new(env!("CARGO_TARGET_TMPDIR"))
}

fn batch() -> Bytes {
    BatchBuilder::new().record(TimestampMs(1_700_000_000_000), None, Some(&[7; 100])).build()
}

/// Sends a batch, and does not wait for the answer.
fn produce_into_the_ice(broker: &Broker, partition: i32) -> Client {
    let mut client = Client::connect(broker.kafka()).unwrap();
    client.send(PRODUCE_VERSION, &produce_request("t", partition, batch())).unwrap();
    client
}

/// What a probe says, at once.
fn probe(broker: &Broker, path: &str) -> (u16, Value) {
    let asked = Instant::now();
    let (status, body) = broker.get(path).unwrap();
    assert!(asked.elapsed() < PROBE_PATIENCE, "{path} took {:?}", asked.elapsed());
    (status, serde_json::from_str(&body).unwrap())
}

/// Waits until a partition is reported to hang. Both probes answer well throughout.
fn wait_until_it_is_reported(broker: &Broker) {
    wait_until("a partition is reported to hang", || {
        let (status, health) = probe(broker, "/healthz");
        let (ready, readiness) = probe(broker, "/readyz");
        assert_eq!((status, ready), (200, 200), "{health} {readiness}");
        Ok(readiness["stalled"] == 1)
    })
    .unwrap();
    let (_, health) = probe(broker, "/healthz");
    assert_eq!((&health["status"], &health["partitions"]["stalled"]), (&"degraded".into(), &1.into()), "{health}");
    let trouble = &health["troubles"][0];
    assert_eq!(
        (&trouble["topic"], &trouble["reason"]),
        (&"t".into(), &"a write to the volume hangs".into()),
        "{health}"
    );
}

fn wait_until_it_is_over(broker: &Broker) {
    let over = || Ok(probe(broker, "/readyz").1["stalled"] == 0 && probe(broker, "/healthz").1["status"] == "ok");
    wait_until("nothing hangs any more", over).unwrap();
}

#[test]
fn a_broker_says_which_partition_hangs_and_goes_on_when_it_does_not() {
    let volume = SmallVolume::new(directory(), 64).unwrap();
    let options = BrokerOptions::new(binary(), &volume.path().join("data")).with(&["--shards", "1"]);
    let broker = Broker::start(&options).unwrap();
    broker.wait_ready().unwrap();
    let mut client = Client::connect(broker.kafka()).unwrap();
    client.create_topic("t", 2, &[]).unwrap();
    client.produce("t", 0, batch()).unwrap();

    let frozen = volume.freeze().unwrap();
    let mut waiting = produce_into_the_ice(&broker, 0);
    wait_until_it_is_reported(&broker);
    drop(frozen);

    // The request's time was up; it is written all the same.
    waiting.receive::<ProduceRequest>(PRODUCE_VERSION).unwrap();
    wait_until_it_is_over(&broker);
    assert_eq!(client.produce("t", 0, batch()).unwrap(), Offset(2));
    assert!(broker.stop().unwrap().success());
}

#[test]
fn reads_that_hang_keep_nothing_else_and_not_the_stop() {
    let volume = SmallVolume::new(directory(), 128).unwrap();
    let options = BrokerOptions::new(binary(), &volume.path().join("data")).with(&["--shards", "1"]);
    let broker = Broker::start(&options).unwrap();
    broker.wait_ready().unwrap();
    let mut client = Client::connect(broker.kafka()).unwrap();
    client.create_topic("t", 2, &[]).unwrap();
    let large = || BatchBuilder::new().record(TimestampMs(1_700_000_000_000), None, Some(&[7; 60_000])).build();
    for offset in 0..100 {
        assert_eq!(client.produce("t", 0, large()).unwrap(), Offset(offset));
    }
    client.produce("t", 1, batch()).unwrap();
    assert!(broker.stop().unwrap().success());

    // Now nothing but the ends of the logs is in memory.
    let mut broker = Broker::start(&options).unwrap();
    broker.wait_ready().unwrap();
    let mut client = Client::connect(broker.kafka()).unwrap();
    client.produce("t", 0, batch()).unwrap();
    client.produce("t", 1, batch()).unwrap();
    let hanging = volume.hang_reads(broker.process_id()).unwrap();
    let mut readers: Vec<Client> = (0..20).map(|_| Client::connect(broker.kafka()).unwrap()).collect();
    for reader in &mut readers {
        reader.send(FETCH_VERSION, &fetch_request("t", 0, Offset(3), 500)).unwrap();
    }
    let hangs = |reader: &mut Client| !reader.wait_for_answer(Duration::from_millis(100)).unwrap();
    assert!(readers.iter_mut().all(hangs), "it is read from the disk");

    // Neither the partition itself nor another one of its shard waits for that.
    for (partition, offset) in [(0, 101), (1, 2)] {
        assert_eq!(client.produce("t", partition, batch()).unwrap(), Offset(offset));
        let fetched = client.fetch("t", partition, Offset(offset), 500).unwrap();
        assert!(!fetched.responses[0].partitions[0].records.is_empty(), "the end of {partition} is in memory");
    }
    client.create_topic("new", 2, &[]).unwrap();
    assert_eq!(client.produce("new", 1, batch()).unwrap(), Offset(0));
    assert_eq!((probe(&broker, "/healthz").0, probe(&broker, "/readyz").0), (200, 200));
    assert_eq!(broker.get("/metrics").unwrap().0, 200);

    let asked = Instant::now();
    broker.signal("TERM").unwrap();
    assert!(broker.wait().unwrap().success(), "{}", broker.log_lines().join("\n"));
    assert!(asked.elapsed() < STOP_PATIENCE, "it took {:?}", asked.elapsed());
    drop(hanging);

    let broker = Broker::start(&options).unwrap();
    broker.wait_ready().unwrap();
    let mut client = Client::connect(broker.kafka()).unwrap();
    assert_eq!(client.latest_offset("t", 0).unwrap(), Offset(102));
    let fetched = client.fetch("t", 0, Offset(3), 500).unwrap();
    assert!(!fetched.responses[0].partitions[0].records.is_empty());
}

#[test]
fn brokers_of_a_cluster_say_so_too_and_keep_what_they_lead() {
    let volume = SmallVolume::new(directory(), 128).unwrap();
    let outside = Outside::StandIn(TempDir::new_in(directory()).unwrap());
    let cluster = Cluster::start_with(binary(), &volume.path(), outside, &[], 3).unwrap();
    Client::connect(cluster.brokers[&0].kafka()).unwrap().create_topic("t", 3, &[]).unwrap();
    cluster.wait_until_even(3).unwrap();
    let before = cluster.assignment().unwrap();

    let frozen = volume.freeze().unwrap();
    let leaders = before.partitions.iter().map(|row| &cluster.brokers[&row.leader.0]);
    let mut waiting: Vec<Client> =
        (0..).zip(leaders).map(|(partition, broker)| produce_into_the_ice(broker, partition)).collect();
    cluster.brokers.values().for_each(wait_until_it_is_reported);
    drop(frozen);

    cluster.brokers.values().for_each(wait_until_it_is_over);
    for (partition, client) in (0..).zip(&mut waiting) {
        client.receive::<ProduceRequest>(PRODUCE_VERSION).unwrap();
        assert_eq!(client.produce("t", partition, batch()).unwrap(), Offset(1));
    }
    let after = cluster.assignment().unwrap();
    assert_eq!(after.partitions, before.partitions, "a volume that hangs for all is no reason to move anything");
}
