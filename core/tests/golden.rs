//! Files as they were written by the first version, one for each format: they must be read for ever, and as long as the
//! version stays the same, be written to the byte. A new version adds a file; none is ever changed.

#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

use std::fmt::Debug;

use kaas_core::format::believed_time::BelievedTime;
use kaas_core::format::chain::{Chain, ChainEntry};
use kaas_core::format::checkpoint::Checkpoint;
use kaas_core::format::fence::{Fence, Revocation, RevokedBy};
use kaas_core::format::index::{BatchSpan, SegmentIndex};
use kaas_core::format::manifest::{Manifest, Replaced};
use kaas_core::format::producer_snapshot::{AbortedEntry, BatchEntry, ProducerEntry, ProducerSnapshot};
use kaas_core::format::segment_name::SegmentName;
use kaas_proto::format::assignment::{
    AdvertisedListener, AssignedPartition, AssignedSlot, Assignment, BrokerHealth, RegisteredBroker,
};
use kaas_proto::format::cluster_id::ClusterId;
use kaas_proto::format::topic_config::StoredTopicConfig;
use kaas_proto::format::topic_id::TopicIdentity;
use kaas_proto::record::patch::{patch_base_offset, patch_leader_epoch};
use kaas_proto::record::{BatchBuilder, Batches, ControlRecordType, Filter, Filtered, RecordBatchView, RecordSet};
use kaas_proto::types::{
    AssignmentVersion, BrokerId, ControllerEpoch, Incarnation, LeaderEpoch, Offset, PartitionIndex, ProducerEpoch,
    ProducerId, SlotId, TimestampMs,
};

macro_rules! golden {
    ($name:literal) => {
        ($name, include_bytes!(concat!("golden/", $name)).as_slice())
    };
}

fn check<T: PartialEq + Debug>((name, golden): (&str, &[u8]), value: &T, encoded: &[u8], decoded: &T) {
    assert_eq!(decoded, value, "{name} is read differently");
    assert_eq!(encoded, golden, "{name} is written differently");
}

const EPOCH: LeaderEpoch = LeaderEpoch(7);
const TIME: TimestampMs = TimestampMs(1_735_689_600_000);

fn segment() -> SegmentName {
    SegmentName::appended(EPOCH, Offset(1000))
}

#[test]
fn fence() {
    let golden = golden!("revoked.fence");
    let revocation = Revocation { epoch: LeaderEpoch(8), broker: BrokerId(2), time_ms: TIME };
    let value = Fence::Revoked(RevokedBy::Known(revocation));
    check(golden, &value, &revocation.encode(), &Fence::decode(golden.1));
}

#[test]
fn believed_time() {
    let golden = golden!("believed-time.json");
    let value = BelievedTime { believed_ms: TIME };
    check(golden, &value, &value.encode(), &BelievedTime::decode(golden.1).unwrap());
}

#[test]
fn manifest() {
    let golden = golden!("manifest.json");
    let entries =
        [(3, 0), (5, 400), (7, 1000)].map(|(epoch, start)| ChainEntry::from((LeaderEpoch(epoch), Offset(start))));
    let compacted = SegmentName { epoch: LeaderEpoch(5), base_offset: Offset(10), generation: 1 };
    let value = Manifest {
        epoch: EPOCH,
        high_watermark: Offset(1234),
        log_start_offset: Offset(10),
        chain: Chain::try_from(entries.to_vec()).unwrap(),
        replaced: vec![Replaced { from: Offset(10), to: Offset(400), segment: compacted, bytes: None }],
        relinquished: true,
    };
    check(golden, &value, &value.encode(), &Manifest::decode(EPOCH, golden.1).unwrap());
}

#[test]
fn manifest_of_a_compacted_partition() {
    let golden = golden!("manifest.replaced.json");
    let entries =
        [(3, 0), (5, 400), (7, 1000)].map(|(epoch, start)| ChainEntry::from((LeaderEpoch(epoch), Offset(start))));
    let replaced = |(from, to, generation, bytes)| {
        let segment = SegmentName { epoch: EPOCH, base_offset: Offset(from), generation };
        Replaced { from: Offset(from), to: Offset(to), segment, bytes: Some(bytes) }
    };
    let value = Manifest {
        epoch: EPOCH,
        high_watermark: Offset(1234),
        log_start_offset: Offset(10),
        chain: Chain::try_from(entries.to_vec()).unwrap(),
        replaced: [(10, 400, 1, 61), (400, 1000, 3, 5_000_000_000), (1000, 1100, 2, 0)].map(replaced).to_vec(),
        relinquished: false,
    };
    check(golden, &value, &value.encode(), &Manifest::decode(EPOCH, golden.1).unwrap());
}

/// Batches of every sort, as the leader of [`EPOCH`] stores them.
fn batches() -> [Vec<u8>; 4] {
    let mut data = BatchBuilder::new();
    data.push(TIME, Some(b"a"), Some(b"first"), &[("name", Some(b"value")), ("none", None)]);
    data.push(TimestampMs(TIME.0 + 1), Some(b"b"), None, &[]);
    data.push(TimestampMs(TIME.0 + 5), None, Some(b"no key"), &[]);
    let idempotent = BatchBuilder::new().producer(ProducerId(1001), ProducerEpoch(0), 7);
    let idempotent = idempotent.record(TIME, Some(b"a"), Some(b"second")).record(TIME, Some(b"c"), Some(b"third"));
    let transactional = BatchBuilder::new().producer(ProducerId(2002), ProducerEpoch(3), 0).transactional();
    let transactional = transactional.record(TIME, Some(b"d"), Some(b"aborted"));
    let marker = ControlRecordType::Abort.batch(ProducerId(2002), ProducerEpoch(3), 4, TIME);
    let mut next = segment().base_offset;
    [data.build(), idempotent.build(), transactional.build(), marker].map(|batch| {
        let mut batch = batch.to_vec();
        patch_base_offset(&mut batch, next);
        patch_leader_epoch(&mut batch, EPOCH);
        next = RecordBatchView::read(&batch).unwrap().next_offset();
        batch
    })
}

/// Blocks of 4096 bytes, zeros behind the last batch.
fn padded(batches: &[Vec<u8>]) -> Vec<u8> {
    let mut content = batches.concat();
    content.resize(content.len().next_multiple_of(4096), 0);
    content
}

/// What a consumer is shown of one record: its offset, its time less [`TIME`], key and value.
type Row<'a> = (i64, i64, Option<&'a str>, Option<&'a str>);

/// The headers of the batches up to the zeros, and their records.
fn read(segment: &[u8], records: &[&[Row<'_>]]) -> Vec<(i64, i64, Option<TimestampMs>, i32)> {
    let text = |bytes: Option<&[u8]>| bytes.map(|bytes| String::from_utf8_lossy(bytes).into_owned());
    // A batch length of 0 ends the segment.
    let batches: Vec<_> = Batches::new(segment).map_while(Result::ok).collect();
    assert_eq!(batches.len(), records.len());
    let mut headers = Vec::new();
    for (batch, expected) in batches.iter().zip(records) {
        batch.check_crc().unwrap();
        assert_eq!(batch.partition_leader_epoch(), EPOCH);
        let set = RecordSet::read(*batch, 1 << 20).unwrap();
        let found: Vec<_> = set
            .iter()
            .map(Result::unwrap)
            .map(|record| {
                (set.offset(&record).0, set.timestamp(&record).0 - TIME.0, text(record.key), text(record.value))
            })
            .collect();
        let owned = |text: Option<&str>| text.map(str::to_owned);
        let expected: Vec<_> =
            expected.iter().map(|&(at, time, key, value)| (at, time, owned(key), owned(value))).collect();
        assert_eq!(found, expected);
        headers.push((batch.base_offset().0, batch.next_offset().0, batch.delete_horizon(), batch.base_sequence()));
    }
    headers
}

const DATA: [Row<'_>; 3] =
    [(1000, 0, Some("a"), Some("first")), (1001, 1, Some("b"), None), (1002, 5, None, Some("no key"))];
const MARKER: [Row<'_>; 1] = [(1006, 0, Some("\0\0\0\0"), Some("\0\0\0\0\0\x04"))];

#[test]
fn a_segment() {
    let (name, golden) = golden!("segment.log");
    assert_eq!(padded(&batches()), golden, "{name} is written differently");
    let records: [&[Row<'_>]; 4] = [
        &DATA,
        &[(1003, 0, Some("a"), Some("second")), (1004, 0, Some("c"), Some("third"))],
        &[(1005, 0, Some("d"), Some("aborted"))],
        &MARKER,
    ];
    let headers = [(1000, 1003, None, -1), (1003, 1005, None, 7), (1005, 1006, None, 0), (1006, 1007, None, -1)];
    assert_eq!(read(golden, &records), headers, "{name} is read differently");
}

/// The tombstone and the marker have a horizon, the last batch of the producer is a header of 61 bytes, the aborted one is gone.
#[test]
fn a_compacted_segment() {
    let (name, golden) = golden!("segment.compacted.log");
    let horizon = TimestampMs(TIME.0 + 86_400_000);
    let filter =
        Filter { max_decompressed_bytes: 1 << 20, keep_empty: false, new_horizon: horizon, gets_horizon: false };
    let [data, idempotent, transactional, marker] = batches();
    let apply = |filter: Filter, batch: &[u8], kept: &[i64]| {
        let batch = RecordBatchView::read(batch).unwrap();
        filter.apply(batch, |offset, _| kept.contains(&offset.0)).unwrap()
    };
    let changed = |filtered| match filtered {
        Filtered::Changed(bytes) => bytes.to_vec(),
        other => panic!("{other:?}"),
    };
    assert_eq!(apply(filter, &transactional, &[]), Filtered::Dropped);
    let emptied = changed(apply(Filter { keep_empty: true, ..filter }, &idempotent, &[]));
    assert_eq!(emptied.len(), 61);
    let written = [
        changed(apply(filter, &data, &[1000, 1001])),
        emptied,
        changed(apply(Filter { gets_horizon: true, ..filter }, &marker, &[1006])),
    ];
    assert_eq!(padded(&written), golden, "{name} is written differently");
    let headers = [(1000, 1003, Some(horizon), -1), (1003, 1005, None, 7), (1006, 1007, Some(horizon), -1)];
    assert_eq!(read(golden, &[&DATA[..2], &[], &MARKER]), headers, "{name} is read differently");
}

#[test]
fn producers() {
    let golden = golden!("producers.v1");
    let batch = |sequence: i32| BatchEntry {
        first_sequence: sequence,
        last_sequence: sequence + 9,
        base_offset: Offset(1000 + i64::from(sequence)),
        timestamp: TIME,
    };
    let idempotent = ProducerEntry {
        producer_id: ProducerId(1001),
        producer_epoch: ProducerEpoch(0),
        coordinator_epoch: -1,
        last_timestamp: TIME,
        open_transaction: None,
        batches: [0, 10, 20, 30, 40].map(batch).to_vec(),
    };
    let transactional = ProducerEntry {
        producer_id: ProducerId(2002),
        producer_epoch: ProducerEpoch(3),
        coordinator_epoch: 4,
        last_timestamp: TIME,
        open_transaction: Some(Offset(1100)),
        batches: vec![batch(100)],
    };
    let aborted = AbortedEntry { producer_id: ProducerId(2002), first_offset: Offset(20), marker_offset: Offset(33) };
    let value =
        ProducerSnapshot { offset: Offset(1234), producers: vec![idempotent, transactional], aborted: vec![aborted] };
    check(golden, &value, &value.encode(), &ProducerSnapshot::decode(golden.1).unwrap());
}

#[test]
fn checkpoint() {
    let golden = golden!("checkpoint.json");
    let value =
        Checkpoint { segment: segment(), position: 33_554_432, offset: Offset(1200), high_watermark: Offset(1199) };
    check(golden, &value, &value.encode(), &Checkpoint::decode(EPOCH, golden.1).unwrap());
}

#[test]
fn index() {
    let golden = golden!("segment.v1.index");
    let mut value = SegmentIndex::new(Offset(1000));
    for number in 0..20 {
        value.push(
            BatchSpan {
                base_offset: Offset(1000 + number * 10),
                next_offset: Offset(1010 + number * 10),
                bytes: 1500,
                max_timestamp: TimestampMs(TIME.0 + number % 7),
            },
            4096,
        );
    }
    check(golden, &value, &value.encode(), &SegmentIndex::decode(golden.1).unwrap());
}

#[test]
fn topic_id() {
    let golden = golden!("topic-id.json");
    let value = TopicIdentity { topic_id: "ASNFZ4mrze_-3LqYdlQyEA".parse().unwrap(), partitions: 12 };
    check(golden, &value, &value.encode(), &TopicIdentity::decode(golden.1).unwrap());
}

#[test]
fn topic_config() {
    let golden = golden!("config.json");
    let value = StoredTopicConfig {
        topic_id: "ASNFZ4mrze_-3LqYdlQyEA".parse().unwrap(),
        configs: [("cleanup.policy", "compact,delete"), ("retention.ms", "604800000")]
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .into(),
    };
    check(golden, &value, &value.encode(), &StoredTopicConfig::decode(golden.1).unwrap());
}

#[test]
fn assignment() {
    let golden = golden!("assignment.json");
    let broker = |id: i32, incarnation, rack: Option<&str>, health| RegisteredBroker {
        id: BrokerId(id),
        incarnation: Incarnation(incarnation),
        rack: rack.map(Into::into),
        listeners: vec![AdvertisedListener {
            name: "PLAINTEXT".into(),
            host: format!("kaas-{id}.kaas").into(),
            port: 9092,
            protocol: "PLAINTEXT".into(),
        }],
        health,
    };
    let partition = |partition| AssignedPartition {
        topic: "orders".into(),
        topic_id: "ASNFZ4mrze_-3LqYdlQyEA".parse().unwrap(),
        partition: PartitionIndex(partition),
        leader: BrokerId(0),
        epoch: LeaderEpoch(3 + partition),
        previous: (partition > 0).then_some(BrokerId(1)),
    };
    let slot = |slot| AssignedSlot {
        slot: SlotId(slot),
        leader: BrokerId(0),
        epoch: LeaderEpoch(1 + i32::from(slot % 3)),
        previous: (slot == 49).then_some(BrokerId(2)),
    };
    let value = Assignment {
        controller_epoch: ControllerEpoch(7),
        assignment_version: AssignmentVersion(42),
        controller: BrokerId(0),
        controller_heartbeat: None,
        brokers: vec![
            broker(0, 0xaa, Some("zone-a"), BrokerHealth::Alive),
            broker(1, 0xbb, None, BrokerHealth::Draining),
            broker(2, 0xcc, None, BrokerHealth::Dead),
        ],
        partitions: (0..2).map(partition).collect(),
        consumer_groups: (0..50).map(slot).collect(),
    };
    check(golden, &value, &value.encode(), &Assignment::decode(golden.1).unwrap());
}

#[test]
fn cluster_id() {
    let golden = golden!("cluster-id");
    let value = ClusterId::decode(b"ASNFZ4mrze_-3LqYdlQyEA").unwrap();
    check(golden, &value, &value.encode(), &ClusterId::decode(golden.1).unwrap());
}

#[test]
#[allow(clippy::disallowed_methods, reason = "it looks at the sources")]
fn every_golden_file_is_named_in_formats_and_read_here() {
    let formats = include_str!("../FORMATS.md");
    let tests = include_str!("golden.rs");
    for entry in std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden")).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        assert!(formats.contains(&format!("`{name}`")), "FORMATS.md does not name {name}");
        assert!(tests.contains(&format!("golden!(\"{name}\")")), "nothing reads {name}");
    }
}
