//! One durable broker over its whole life: stopped, killed, full, replaced by a second process.

#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

use std::path::Path;

use bytes::Bytes;
use kaas_bench::broker::{Broker, BrokerOptions, wait_until};
use kaas_bench::client::{Client, FETCH_VERSION, PRODUCE_VERSION, fetch_request, produce_request};
use kaas_bench::small_volume::SmallVolume;
use kaas_proto::kafka::ErrorCode;
use kaas_proto::kafka::messages::{FetchRequest, ProduceRequest};
use kaas_proto::record::{BatchBuilder, Batches, RecordSet};
use kaas_proto::types::{Offset, TimestampMs};

fn options(data_dir: &Path) -> BrokerOptions {
    BrokerOptions::new(Path::new(env!("CARGO_BIN_EXE_kaas")), data_dir)
}

fn start(data_dir: &Path) -> Broker {
    let broker = Broker::start(&options(data_dir)).unwrap();
    broker.wait_ready().unwrap();
    broker
}

/// Test data lives beside the build, on a file system that takes direct I/O.
fn data_dir() -> tempfile::TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

fn numbered(number: i64) -> Bytes {
    let time = TimestampMs(1_700_000_000_000 + number);
    BatchBuilder::new().record(time, Some(number.to_string().as_bytes()), Some(&[1; 100])).build()
}

/// Keys of all records of partition 0, in order.
fn read_all(client: &mut Client, topic: &str) -> Vec<i64> {
    let end = client.latest_offset(topic, 0).unwrap();
    let (mut keys, mut offset) = (Vec::new(), Offset(0));
    while offset < end {
        let response = client.fetch(topic, 0, offset, 0).unwrap();
        let row = &response.responses[0].partitions[0];
        assert_eq!(row.error_code, ErrorCode::None);
        let joined = row.records.parts().concat();
        for batch in Batches::new(&joined) {
            let records = RecordSet::read(batch.unwrap(), 1 << 20).unwrap();
            for record in records.iter() {
                let record = record.unwrap();
                assert_eq!(records.offset(&record), offset, "no gap");
                keys.push(std::str::from_utf8(record.key.unwrap()).unwrap().parse().unwrap());
                offset = offset.plus(1);
            }
        }
    }
    keys
}

#[test]
fn a_clean_stop_exits_0_and_loses_nothing() {
    let directory = data_dir();
    let broker = start(directory.path());
    let mut client = Client::connect(broker.kafka()).unwrap();
    client.create_topic("t", 1, &[]).unwrap();
    for number in 0..100 {
        client.produce("t", 0, numbered(number)).unwrap();
    }
    // What is in flight at the signal is answered.
    client.send(PRODUCE_VERSION, &produce_request("t", 0, numbered(100))).unwrap();
    wait_until("the last one is appended", || Ok(broker.metric("kaas_log_commits_total", "")? >= 101.0)).unwrap();
    broker.signal("TERM").unwrap();
    let answer = client.receive::<ProduceRequest>(PRODUCE_VERSION).unwrap();
    assert_eq!(answer.responses[0].partition_responses[0].error_code, ErrorCode::None);
    let mut broker = broker;
    assert!(broker.wait().unwrap().success(), "{:#?}", broker.log_lines());

    let broker = start(directory.path());
    let mut client = Client::connect(broker.kafka()).unwrap();
    client.wait_for_leaders("t", 1).unwrap();
    assert_eq!(read_all(&mut client, "t"), (0..=100).collect::<Vec<_>>());
    assert!(broker.stop().unwrap().success());
}

#[test]
fn sigint_stops_cleanly_too() {
    let directory = data_dir();
    let mut broker = start(directory.path());
    broker.signal("INT").unwrap();
    assert!(broker.wait().unwrap().success());
}

#[test]
fn a_parked_fetch_does_not_hold_up_the_stop() {
    let directory = data_dir();
    let broker = start(directory.path());
    let mut client = Client::connect(broker.kafka()).unwrap();
    client.create_topic("t", 1, &[]).unwrap();
    client.send::<FetchRequest>(FETCH_VERSION, &fetch_request("t", 0, Offset(0), 600_000)).unwrap();
    assert!(broker.stop().unwrap().success());
}

#[test]
fn kill_9_again_and_again_loses_nothing_acknowledged() {
    let directory = data_dir();
    let (mut acknowledged, mut next) = (Vec::new(), 0);
    for round in 0..5 {
        let broker = start(directory.path());
        let mut client = Client::connect(broker.kafka()).unwrap();
        if round == 0 {
            client.create_topic("t", 1, &[]).unwrap();
        }
        client.wait_for_leaders("t", 1).unwrap();
        let found = read_all(&mut client, "t");
        assert!(acknowledged.iter().all(|number| found.contains(number)), "round {round}");
        assert!(found.is_sorted(), "round {round}: in order, once: {found:?}");
        for _ in 0..20 {
            client.produce("t", 0, numbered(next)).unwrap();
            acknowledged.push(next);
            next += 1;
        }
        // Some more are on their way when it dies; each may survive or not.
        for _ in 0..5 {
            client.send(PRODUCE_VERSION, &produce_request("t", 0, numbered(next))).unwrap();
            next += 1;
        }
        broker.kill().unwrap();
    }
}

#[test]
fn a_topic_that_is_made_anew_at_once_has_nothing_of_the_one_before() {
    let directory = data_dir();
    let mut broker = start(directory.path());
    for round in 0..4 {
        let mut client = Client::connect(broker.kafka()).unwrap();
        if round > 0 {
            client.delete_topic("t").unwrap();
        }
        client.create_topic("t", 1, &[]).unwrap();
        assert!(read_all(&mut client, "t").is_empty(), "round {round}");
        let numbers: Vec<i64> = (round * 10..round * 10 + 5 + round).collect();
        for &number in &numbers {
            client.produce("t", 0, numbered(number)).unwrap();
        }
        // What was before it may not have been removed yet.
        broker.kill().unwrap();
        broker = start(directory.path());
        let mut client = Client::connect(broker.kafka()).unwrap();
        client.wait_for_leaders("t", 1).unwrap();
        assert_eq!(read_all(&mut client, "t"), numbers, "round {round}");
    }
    wait_until("what was deleted is removed", || {
        let mut names =
            std::fs::read_dir(directory.path())?.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
        Ok(!names.any(|name| name.starts_with(".deleting")))
    })
    .unwrap();
    assert!(broker.stop().unwrap().success());
}

#[test]
fn a_second_process_takes_over_and_the_first_says_who_fenced_it() {
    let directory = data_dir();
    let mut first = start(directory.path());
    let mut client = Client::connect(first.kafka()).unwrap();
    client.create_topic("t", 1, &[]).unwrap();
    for number in 0..50 {
        client.produce("t", 0, numbered(number)).unwrap();
    }
    let second = start(directory.path());
    // The first notices when it next asks its fence: at the next append.
    let refused = client.produce("t", 0, numbered(999));
    assert!(refused.is_err(), "a deposed leader acknowledges nothing");
    assert!(!first.wait().unwrap().success(), "a broker that was replaced ends with an error");
    let log = first.log_lines().join("\n");
    assert!(log.contains("has taken over this data directory"), "says what happened: {log}");

    let mut client = Client::connect(second.kafka()).unwrap();
    client.wait_for_leaders("t", 1).unwrap();
    let found = read_all(&mut client, "t");
    assert_eq!(found[..50], (0..50).collect::<Vec<_>>());
    client.produce("t", 0, numbered(1000)).unwrap();
    assert!(second.stop().unwrap().success());
}

#[test]
fn a_full_disk_refuses_producers_serves_consumers_and_heals() {
    let volume = SmallVolume::new(Path::new(env!("CARGO_TARGET_TMPDIR")), 48).unwrap();
    let data_dir = volume.path().join("data");
    let broker = start(&data_dir);
    let mut client = Client::connect(broker.kafka()).unwrap();
    client.create_topic("t", 1, &[]).unwrap();
    let ballast = volume.path().join("ballast");
    std::fs::write(&ballast, vec![1; 24 << 20]).unwrap();

    let large = BatchBuilder::new().record(TimestampMs(1_700_000_000_000), None, Some(&vec![2; 500_000])).build();
    let mut appended = 0;
    let refusal = loop {
        client.send(PRODUCE_VERSION, &produce_request("t", 0, large.clone())).unwrap();
        let answer = client.receive::<ProduceRequest>(PRODUCE_VERSION).unwrap();
        let row = &answer.responses[0].partition_responses[0];
        match row.error_code {
            ErrorCode::None => appended += 1,
            code => break (code, row.error_message.clone()),
        }
        assert!(appended < 100, "24 MiB hold no 100 batches of 500 kB");
    };
    assert_eq!(refusal.0, ErrorCode::KafkaStorageError);
    let message = refusal.1.expect("the error says what is wrong");
    assert!(message.contains("space"), "{message}");

    // Reads go on.
    let end = client.latest_offset("t", 0).unwrap();
    assert_eq!(end, Offset(appended));
    let response = client.fetch("t", 0, Offset(0), 0).unwrap();
    assert!(!response.responses[0].partitions[0].records.is_empty());

    // And it heals by itself when space returns.
    std::fs::remove_file(&ballast).unwrap();
    wait_until("the partition takes records again", || Ok(client.produce("t", 0, large.clone()).is_ok())).unwrap();
    let end = client.latest_offset("t", 0).unwrap();
    assert!(end >= Offset(appended + 1));
    assert!(broker.stop().unwrap().success());

    let broker = start(&data_dir);
    let mut client = Client::connect(broker.kafka()).unwrap();
    client.wait_for_leaders("t", 1).unwrap();
    assert_eq!(client.latest_offset("t", 0).unwrap(), end, "nothing acknowledged is gone");
}
