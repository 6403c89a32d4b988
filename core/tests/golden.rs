//! Files as they were written by the first version, one for each format: they must be read for ever, and as long as the
//! version stays the same, be written to the byte. A new version adds a file; none is ever changed.

#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

use std::fmt::Debug;

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
