//! The zombie: a broker that is stopped in the middle of its writes, replaced, and goes on as if nothing had happened.

#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use bytes::Bytes;
use kaas_bench::broker::{Broker, BrokerOptions, wait_until};
use kaas_bench::client::{Client, PRODUCE_VERSION, produce_request};
use kaas_proto::kafka::ErrorCode;
use kaas_proto::kafka::messages::ProduceRequest;
use kaas_proto::record::{BatchBuilder, Batches, RecordSet};
use kaas_proto::types::{Offset, ProducerEpoch, ProducerId, TimestampMs};

const TOPIC: &str = "t";
const PRODUCER: ProducerId = ProducerId(4711);
/// As many as an idempotent producer may have on their way.
const IN_FLIGHT: usize = 5;

fn start(data_dir: &Path, broker_id: &str) -> Broker {
    let options = BrokerOptions::new(Path::new(env!("CARGO_BIN_EXE_kaas")), data_dir);
    Broker::start(&options.with(&["--shards", "1", "--broker-id", broker_id])).unwrap()
}

/// A batch of one record whose key is its sequence number.
fn numbered(sequence: i32) -> Bytes {
    let time = TimestampMs(1_700_000_000_000 + i64::from(sequence));
    let value = vec![7; 100 + 97 * usize::try_from(sequence % 31).unwrap()];
    let batch = BatchBuilder::new().producer(PRODUCER, ProducerEpoch(0), sequence);
    batch.record(time, Some(sequence.to_string().as_bytes()), Some(&value)).build()
}

/// What a producer was told: offsets by sequence number, and what became of the others.
#[derive(Debug, Default)]
struct Told {
    acknowledged: BTreeMap<i32, Offset>,
    refused: Vec<(i32, ErrorCode)>,
}

/// Produces with `acks=all`, always five batches in flight, until something is refused or the connection ends.
fn produce_until_refused(client: &mut Client, acknowledged: &AtomicUsize) -> Told {
    let mut told = Told::default();
    let (mut sent, mut received) = (0, 0);
    loop {
        while told.refused.is_empty() && sent < received + i32::try_from(IN_FLIGHT).unwrap() {
            if client.send(PRODUCE_VERSION, &produce_request(TOPIC, 0, numbered(sent))).is_err() {
                return told;
            }
            sent += 1;
        }
        if received == sent {
            return told;
        }
        let Ok(response) = client.receive::<ProduceRequest>(PRODUCE_VERSION) else { return told };
        let row = &response.responses[0].partition_responses[0];
        match row.error_code {
            ErrorCode::None => {
                told.acknowledged.insert(received, row.base_offset);
                acknowledged.fetch_add(1, Ordering::Relaxed);
            }
            code => told.refused.push((received, code)),
        }
        received += 1;
    }
}

/// Sequence numbers of all records by offset.
fn read_all(client: &mut Client) -> BTreeMap<Offset, i32> {
    let end = client.latest_offset(TOPIC, 0).unwrap();
    let (mut found, mut offset) = (BTreeMap::new(), Offset(0));
    while offset < end {
        let response = client.fetch(TOPIC, 0, offset, 0).unwrap();
        let row = &response.responses[0].partitions[0];
        assert_eq!(row.error_code, ErrorCode::None);
        for batch in Batches::new(&row.records.parts().concat()) {
            let records = RecordSet::read(batch.unwrap(), 1 << 20).unwrap();
            for record in records.iter() {
                let record = record.unwrap();
                assert_eq!(records.offset(&record), offset, "no gap");
                found.insert(offset, std::str::from_utf8(record.key.unwrap()).unwrap().parse().unwrap());
                offset = offset.plus(1);
            }
        }
    }
    found
}

/// `moment`: after so many acknowledged batches the first broker is stopped. Returns how many were refused.
fn zombie(moment: usize) -> usize {
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let mut first = start(directory.path(), "1");
    first.wait_ready().unwrap();
    let mut client = Client::connect(first.kafka()).unwrap();
    client.create_topic(TOPIC, 1, &[("segment.bytes", "1048576")]).unwrap();

    let acknowledged = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&acknowledged);
    let load = thread::spawn(move || produce_until_refused(&mut client, &count));
    wait_until("the load is under way", || Ok(acknowledged.load(Ordering::Relaxed) >= moment)).unwrap();
    first.signal("STOP").unwrap();

    let second = start(directory.path(), "2");
    second.wait_ready().unwrap();
    let mut client = Client::connect(second.kafka()).unwrap();
    client.wait_for_leaders(TOPIC, 1).unwrap();
    let taken_over = read_all(&mut client);
    first.signal("CONT").unwrap();

    let told = load.join().unwrap();
    for (sequence, code) in &told.refused {
        assert_eq!(*code, ErrorCode::NotLeaderOrFollower, "moment {moment}, sequence {sequence}");
    }
    let status = first.wait().unwrap();
    let log = first.log_lines().join("\n");
    assert!(!status.success(), "moment {moment}: a broker that was replaced ends with an error");
    let said = log.lines().find(|line| line.contains("has taken over this data directory"));
    let said = said.unwrap_or_else(|| panic!("moment {moment}: it does not say what happened:\n{log}"));
    assert!(said.contains("broker 2 ") && said.contains("Z. Every record"), "who and when: {said}");

    // Nothing that was acknowledged is lost, and the zombie's return has changed nothing.
    let after = read_all(&mut client);
    assert_eq!(after, taken_over, "moment {moment}");
    for (sequence, offset) in &told.acknowledged {
        assert_eq!(after.get(offset), Some(sequence), "moment {moment}: acknowledged at {offset}");
    }
    // The producer goes on at the second broker with what it does not know the outcome of: each record once, in order.
    let next = told.acknowledged.keys().last().map_or(0, |last| last + 1);
    for sequence in next..next + 10 {
        client.produce(TOPIC, 0, numbered(sequence)).unwrap();
    }
    let all = read_all(&mut client);
    assert!(all.values().copied().eq(0..next + 10), "moment {moment}: {:?}", all.values());
    assert!(second.stop().unwrap().success());
    told.refused.len()
}

#[test]
fn a_stopped_broker_that_is_replaced_and_goes_on_changes_nothing() {
    // Seeded: the same moments in each run, as far apart as segments roll and checkpoints are written.
    let mut state: usize = 0x9e37_79b9;
    let mut refused = 0;
    for round in 0..6 {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        refused += zombie(1 + (state >> 33) % 50 + round * 40);
    }
    assert!(refused > 0, "not once did the zombie answer what was in flight");
}

#[test]
fn a_zombie_that_has_not_written_anything_yet_ends_too() {
    zombie(0);
}
