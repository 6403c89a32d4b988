//! A compacted topic on a real volume: small segments, a cleaner that does not wait, a restart, a second process.

#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

use std::collections::BTreeMap;
use std::path::Path;

use bytes::Bytes;
use kaas_bench::broker::{Broker, BrokerOptions, wait_until};
use kaas_bench::client::{Client, PRODUCE_VERSION, produce_request};
use kaas_proto::kafka::ErrorCode;
use kaas_proto::kafka::messages::ProduceRequest;
use kaas_proto::record::{BatchBuilder, Batches, Compression, RecordSet};
use kaas_proto::types::{Offset, TimestampMs};

const KEYS: usize = 10;
const ROUNDS: usize = 20;
const CONFIGS: &[(&str, &str)] = &[
    ("cleanup.policy", "compact"),
    ("segment.bytes", "1048576"),
    ("min.cleanable.dirty.ratio", "0.01"),
    ("delete.retention.ms", "0"),
];

fn start(data_dir: &Path) -> Broker {
    let options = BrokerOptions::new(Path::new(env!("CARGO_BIN_EXE_kaas")), data_dir);
    let options = options.with(&["--set", "log.cleaner.backoff.ms=100"]);
    let broker = Broker::start(&options).unwrap();
    broker.wait_ready().unwrap();
    broker
}

fn now() -> TimestampMs {
    let since = std::time::UNIX_EPOCH.elapsed().unwrap();
    TimestampMs(i64::try_from(since.as_millis()).unwrap())
}

/// Two keys, values that do not compress away.
fn batch(round: usize, key: usize, compression: Compression) -> Bytes {
    let mut builder = BatchBuilder::new().compression(compression);
    for key in [key, key + 1] {
        let mut state = round as u64 * 1000 + key as u64;
        let noise = std::iter::repeat_with(|| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            state.to_be_bytes()
        });
        let mut value = format!("{round}.{key} ").into_bytes();
        value.extend(noise.take(5000).flatten());
        builder.push(now(), Some(format!("key {key}").as_bytes()), Some(&value), &[]);
    }
    builder.build()
}

/// How many records there are, and the last of each key: offset, and the value up to its noise.
fn read_all(client: &mut Client) -> (usize, BTreeMap<String, (i64, String)>) {
    let end = client.latest_offset("t", 0).unwrap();
    let (mut table, mut count, mut next) = (BTreeMap::new(), 0, Offset(0));
    while next < end {
        let response = client.fetch("t", 0, next, 0).unwrap();
        let row = &response.responses[0].partitions[0];
        assert_eq!(row.error_code, ErrorCode::None);
        let joined = row.records.parts().concat();
        assert!(!joined.is_empty(), "something is at or behind {next}, the log ends at {end}");
        for batch in Batches::new(&joined) {
            let batch = batch.unwrap();
            batch.check_crc().unwrap();
            let records = RecordSet::read(batch, 1 << 20).unwrap();
            for record in records.iter() {
                let record = record.unwrap();
                let key = String::from_utf8(record.key.unwrap().to_vec()).unwrap();
                count += 1;
                match record.value {
                    Some(value) => {
                        let text =
                            String::from_utf8_lossy(value.split(|&byte| byte == b' ').next().unwrap()).into_owned();
                        table.insert(key, (records.offset(&record).0, text));
                    }
                    None => drop(table.remove(&key)),
                }
            }
            next = batch.next_offset();
        }
    }
    (count, table)
}

fn log_bytes(data_dir: &Path) -> u64 {
    let partition = std::fs::read_dir(data_dir.join("t")).unwrap().map(|entry| entry.unwrap().path().join("0"));
    let partition = partition.into_iter().find(|path| path.is_dir()).unwrap();
    let logs = std::fs::read_dir(partition).unwrap().filter_map(|entry| {
        let entry = entry.unwrap();
        // It may be unlinked meanwhile.
        entry.file_name().to_string_lossy().ends_with(".log").then(|| entry.metadata().map_or(0, |data| data.len()))
    });
    logs.sum()
}

#[test]
fn a_compacted_topic_keeps_the_last_value_of_each_key() {
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let broker = start(directory.path());
    let mut client = Client::connect(broker.kafka()).unwrap();
    client.create_topic("t", 1, CONFIGS).unwrap();

    let keyless = BatchBuilder::new().record(now(), None, Some(b"v")).build();
    client.send(PRODUCE_VERSION, &produce_request("t", 0, keyless)).unwrap();
    let refused = client.receive::<ProduceRequest>(PRODUCE_VERSION).unwrap();
    assert_eq!(refused.responses[0].partition_responses[0].error_code, ErrorCode::InvalidRecord);

    // Some 8 MB, with every compression; key 0 is deleted in the end.
    let compressions = [Compression::None, Compression::Gzip, Compression::Snappy, Compression::Lz4, Compression::Zstd];
    for round in 0..ROUNDS {
        for key in (0..KEYS).step_by(2) {
            client.produce("t", 0, batch(round, key, compressions[(round + key / 2) % compressions.len()])).unwrap();
        }
    }
    client.produce("t", 0, BatchBuilder::new().record(now(), Some(b"key 0"), None).build()).unwrap();
    let written = client.latest_offset("t", 0).unwrap();
    let (_, expected) = read_all(&mut client);
    assert_eq!(expected.len(), KEYS - 1);

    let is_compacted = |client: &mut Client| {
        let (count, table) = read_all(client);
        assert_eq!(table, expected, "what a consumer knows never changes");
        // The newest segment has up to 13 batches of two records, and one more has those that it replaces.
        Ok(count <= 2 * (KEYS + 2 * 13))
    };
    wait_until("old values are gone", || is_compacted(&mut client)).unwrap();
    wait_until("their segments too", || Ok(log_bytes(directory.path()) < 3 << 20)).unwrap();
    assert!(broker.metric("kaas_compaction_passes_total", "").unwrap() >= 1.0);
    assert!(broker.metric("kaas_compaction_failures_total", "").unwrap() < 1.0);
    assert_eq!(client.latest_offset("t", 0).unwrap(), written, "offsets do not change");

    // Killed: the next process finds the same, and goes on.
    broker.kill().unwrap();
    let broker = start(directory.path());
    let mut client = Client::connect(broker.kafka()).unwrap();
    client.wait_for_leaders("t", 1).unwrap();
    assert_eq!(read_all(&mut client).1, expected);
    // What was newest becomes old, and its tombstone gets a horizon; another segment's worth of other keys brings the pass
    // that drops it.
    client.produce("t", 0, batch(ROUNDS, 100, Compression::None)).unwrap();
    wait_until("a pass", || Ok(broker.metric("kaas_compaction_passes_total", "")? >= 1.0)).unwrap();
    for key in (102..140).step_by(2) {
        client.produce("t", 0, batch(ROUNDS, key, Compression::None)).unwrap();
    }
    wait_until("the tombstone is gone, and all but one record of each key", || {
        let (count, table) = read_all(&mut client);
        assert!(expected.iter().all(|(key, row)| table.get(key) == Some(row)));
        Ok(count == KEYS - 1 + 40)
    })
    .unwrap();
    assert!(broker.stop().unwrap().success());

    let broker = start(directory.path());
    let mut client = Client::connect(broker.kafka()).unwrap();
    client.wait_for_leaders("t", 1).unwrap();
    let (count, table) = read_all(&mut client);
    assert_eq!((count, table.len()), (KEYS - 1 + 40, KEYS - 1 + 40));
    assert!(broker.stop().unwrap().success());
}
