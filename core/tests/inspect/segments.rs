//! Segments of topics and of coordinator slots.

use std::collections::BTreeMap;
use std::io::Write;
use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use kaas_core::group::metadata::{GroupMetadata, MemberProfile};
use kaas_core::group::offsets::{CommittedOffset, TopicOffsets, TopicPartitions};
use kaas_core::group::protocol::Protocol;
use kaas_core::group::record::SlotRecord;
use kaas_core::inspect::{Format, Kind, Outcome};
use kaas_proto::record::batch::field;
use kaas_proto::record::patch::update_crc;
use kaas_proto::record::{BatchBuilder, ControlRecordType};
use kaas_proto::types::{
    GenerationId, LeaderEpoch, Offset, PartitionIndex, ProducerEpoch, ProducerId, TimestampMs, TopicId,
};

use crate::{Scratch, check, try_inspect};

pub(crate) const TIME: TimestampMs = TimestampMs(1_735_689_600_000);
pub(crate) const NAME: &str = "00000007-00000000000000001000.log";
const EPOCH: LeaderEpoch = LeaderEpoch(7);

fn at(offset: i64) -> BatchBuilder {
    BatchBuilder::new().base_offset(Offset(offset)).leader_epoch(EPOCH)
}

/// The same batch with its records compressed.
fn gzipped(batch: &Bytes) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::none());
    encoder.write_all(&batch[field::RECORDS..]).unwrap();
    let mut compressed = [&batch[..field::RECORDS], &encoder.finish().unwrap()].concat();
    let length = i32::try_from(compressed.len() - 12).unwrap();
    compressed[field::BATCH_LENGTH..][..4].copy_from_slice(&length.to_be_bytes());
    compressed[field::ATTRIBUTES + 1] |= 1;
    update_crc(&mut compressed);
    compressed
}

/// Batches of every sort from offset 1000 on.
pub(crate) fn batches() -> Vec<Vec<u8>> {
    let mut plain = at(1000);
    plain.push(TIME, Some(b"key"), Some("grün".as_bytes()), &[("name", Some(b"value")), ("name", None)]);
    plain.push(TimestampMs(TIME.0 + 1), None, None, &[]);
    let producer = at(1002).producer(ProducerId(4001), ProducerEpoch(2), 17);
    let producer = producer.record(TimestampMs(TIME.0 + 2), Some(&[0, 255]), Some(b"\x1b[2J"));
    let compressed = at(1003).record(TimestampMs(TIME.0 + 3), Some(b"k"), Some(b"compressed"));
    let transactional = at(1004).producer(ProducerId(4002), ProducerEpoch(0), 0).transactional();
    let mut marker = ControlRecordType::Abort.batch(ProducerId(4002), ProducerEpoch(0), 3, TIME).to_vec();
    marker[..8].copy_from_slice(&1005_i64.to_be_bytes());
    marker[field::PARTITION_LEADER_EPOCH..][..4].copy_from_slice(&EPOCH.0.to_be_bytes());
    vec![
        plain.build().to_vec(),
        producer.build().to_vec(),
        gzipped(&compressed.build()),
        transactional.record(TIME, None, Some(b"t")).build().to_vec(),
        marker,
    ]
}

/// As it lies on the volume: blocks of 4096 bytes.
pub(crate) fn padded(batches: &[Vec<u8>]) -> Vec<u8> {
    let mut content = batches.concat();
    content.resize(content.len().next_multiple_of(4096), 0);
    content
}

#[test]
fn batches_and_records_are_printed() {
    let scratch = Scratch::new();
    let path = scratch.file(NAME, &padded(&batches()));
    check("segment", Kind::Segment, &path, false, Outcome::Sound);
    check("segment.records", Kind::Segment, &path, true, Outcome::Sound);
    // Without padding, and under a name that says nothing.
    for content in [padded(&batches()), batches().concat()] {
        let path = scratch.file("some.log", &content);
        let printed = try_inspect(Kind::Segment, &path, false, Format::Json).unwrap();
        assert_eq!((printed.outcome, printed.text.lines().count()), (Outcome::Sound, 6), "{}", printed.text);
    }
    let empty = scratch.file("00000001-00000000000000000000.log", b"");
    check("segment.empty", Kind::Segment, &empty, false, Outcome::Sound);
}

#[test]
fn what_compaction_wrote_has_gaps_and_older_epochs() {
    let scratch = Scratch::new();
    let older = at(1000).leader_epoch(LeaderEpoch(3)).record(TIME, Some(b"a"), Some(b"1")).build();
    let content = [older.to_vec(), batches().remove(1)].concat();
    let compacted = scratch.file("00000007-00000000000000001000-00000001.log", &content);
    assert_eq!(crate::damage(Kind::Segment, &compacted, true), None);
    let appended = scratch.file(NAME, &content);
    let (position, expected, found) = crate::damage(Kind::Segment, &appended, true).unwrap();
    assert_eq!((position, &*expected, &*found), (15, "leader epoch 7", "3"));
}

fn committed(offset: i64, metadata: &str, expires_at: Option<TimestampMs>) -> CommittedOffset {
    CommittedOffset {
        offset: Offset(offset),
        leader_epoch: LeaderEpoch(-1),
        metadata: metadata.into(),
        committed_at: TIME,
        expires_at,
    }
}

#[test]
fn a_coordinator_slot_is_printed_as_what_it_says() {
    let topic_id = TopicId(*b"an id of a topic");
    let partitions = BTreeMap::from([
        (PartitionIndex(0), committed(5, "", None)),
        (PartitionIndex(3), committed(9, "note", Some(TIME))),
    ]);
    let member = MemberProfile {
        id: "consumer-1-uuid".into(),
        instance_id: Some("static".into()),
        client_id: "consumer-1".into(),
        client_host: "/10.0.0.1".into(),
        session_timeout: Duration::from_secs(45),
        rebalance_timeout: Duration::from_secs(300),
        protocols: Rc::new([Protocol { name: "range".into(), metadata: Bytes::from_static(&[0, 1]) }]),
        assignment: Bytes::from_static(&[9]),
    };
    let metadata = GroupMetadata {
        protocol_type: Some("consumer".into()),
        generation: GenerationId(4),
        protocol: Some("range".into()),
        leader: Some("consumer-1-uuid".into()),
        since: TIME,
        members: vec![member],
    };
    let group = || "orders".into();
    let records = [
        SlotRecord::OffsetsCommitted {
            group: group(),
            topics: vec![TopicOffsets { name: "t".into(), id: topic_id, partitions }],
        },
        SlotRecord::GroupStored { group: group(), metadata: Rc::new(metadata) },
        SlotRecord::SnapshotBegin,
        SlotRecord::SnapshotEnd { begin: Offset(2) },
        SlotRecord::OffsetsDeleted {
            group: group(),
            topics: vec![TopicPartitions { name: "t".into(), id: TopicId::ZERO, partitions: vec![PartitionIndex(3)] }],
        },
        SlotRecord::GroupDeleted { group: group() },
    ];
    let batches: Vec<_> = (0..)
        .zip(&records)
        .map(|(offset, record)| {
            let batch = BatchBuilder::new().base_offset(Offset(offset)).leader_epoch(LeaderEpoch(1));
            batch.record(TIME, Some(&record.key()), Some(&record.value())).build().to_vec()
        })
        .collect();
    let scratch = Scratch::new();
    let in_slot = "__cluster/coordinators/07/00000001-00000000000000000000.log";
    let path = scratch.file(in_slot, &padded(&batches));
    check("slot", Kind::Segment, &path, false, Outcome::Sound);
    check("slot.records", Kind::Segment, &path, true, Outcome::Sound);

    // A record that can't be understood.
    let unknown = BatchBuilder::new().base_offset(Offset(1)).leader_epoch(LeaderEpoch(1));
    let unknown = unknown.record(TIME, Some(&[99, 1]), Some(b"")).build().to_vec();
    let path = scratch.file(in_slot, &padded(&[batches[0].clone(), unknown]));
    let (position, expected, found) = crate::damage(Kind::Segment, &path, false).unwrap();
    assert_eq!(position, batches[0].len() as u64 + 61);
    assert!(expected.contains("offset 1") && found.contains("kind 99"), "{expected}; {found}");
    // Elsewhere they are bytes.
    let path = scratch.file("00000001-00000000000000000000.log", &padded(&batches));
    assert_eq!(try_inspect(Kind::Segment, &path, false, Format::Json).unwrap().text.lines().count(), 7);
}
