//! What is durable of all groups of a slot: the sum of its log's records. Pure, shard-local.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::rc::Rc;

use super::ids::GroupId;
use super::metadata::GroupMetadata;
use super::offsets::{GroupOffsets, TopicOffsets};
use super::record::SlotRecord;

/// Offsets are written in records of about this size, so that none outgrows a batch.
const OFFSETS_RECORD_BYTES: usize = 256 << 10;

/// The durable part of one group. Without either half it does not exist.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DurableGroup {
    /// The outcome of its last rebalance, if it ever had one.
    pub metadata: Option<Rc<GroupMetadata>>,
    metadata_bytes: usize,
    pub offsets: GroupOffsets,
}

impl DurableGroup {
    /// Bytes of its texts and blobs.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.metadata_bytes + self.offsets.bytes()
    }
}

/// The durable groups of a slot.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ledger {
    groups: BTreeMap<GroupId, DurableGroup>,
    offset_count: usize,
    bytes: usize,
}

impl Ledger {
    /// Takes over one record, in the order of the log.
    pub fn apply(&mut self, record: &SlotRecord) {
        match record {
            SlotRecord::OffsetsCommitted { group, topics } => self.change(group, |durable| {
                topics.iter().for_each(|topic| durable.offsets.commit(topic));
            }),
            SlotRecord::OffsetsDeleted { group, topics } => self.change(group, |durable| {
                topics.iter().for_each(|topic| durable.offsets.delete(topic));
            }),
            SlotRecord::GroupStored { group, metadata } => self.change(group, |durable| {
                durable.metadata_bytes = metadata.bytes();
                durable.metadata = Some(Rc::clone(metadata));
            }),
            SlotRecord::GroupDeleted { group } => self.change(group, |durable| *durable = DurableGroup::default()),
            SlotRecord::SnapshotBegin | SlotRecord::SnapshotEnd { .. } => {}
        }
    }

    fn change(&mut self, id: &GroupId, change: impl FnOnce(&mut DurableGroup)) {
        let bytes = &mut self.bytes;
        let group = self.groups.entry(id.clone()).or_insert_with(|| {
            *bytes += id.as_str().len();
            DurableGroup::default()
        });
        self.offset_count -= group.offsets.len();
        *bytes -= group.bytes();
        change(group);
        self.offset_count += group.offsets.len();
        *bytes += group.bytes();
        if group.metadata.is_none() && group.offsets.is_empty() {
            *bytes -= id.as_str().len();
            self.groups.remove(id);
        }
    }

    #[must_use]
    pub fn group(&self, id: &GroupId) -> Option<&DurableGroup> {
        self.groups.get(id)
    }

    /// In order of id.
    pub fn groups(&self) -> impl Iterator<Item = (&GroupId, &DurableGroup)> {
        self.groups.iter()
    }

    /// The groups whose ids lie behind a bound.
    pub fn groups_from(&self, start: Bound<GroupId>) -> impl Iterator<Item = (&GroupId, &DurableGroup)> {
        self.groups.range((start, Bound::Unbounded))
    }

    #[must_use]
    pub fn group_count(&self) -> usize {
        self.groups.len()
    }

    /// Committed offsets of all groups.
    #[must_use]
    pub fn offset_count(&self) -> usize {
        self.offset_count
    }

    /// Bytes of the texts and blobs of all groups.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// The group as a snapshot writes it; nothing for one that does not exist any more.
    #[must_use]
    pub fn records_of(&self, id: &GroupId) -> Vec<SlotRecord> {
        let Some(durable) = self.groups.get(id) else { return Vec::new() };
        let stored =
            durable.metadata.iter().map(|m| SlotRecord::GroupStored { group: id.clone(), metadata: Rc::clone(m) });
        stored.chain(commit_records(id, durable.offsets.topics().cloned())).collect()
    }
}

/// The records of a commit: one, unless it is very large.
#[must_use]
pub fn commit_records(group: &GroupId, topics: impl IntoIterator<Item = TopicOffsets>) -> Vec<SlotRecord> {
    let mut records = Vec::new();
    let mut current: Vec<TopicOffsets> = Vec::new();
    let mut bytes = 0;
    for topic in topics {
        let empty = || TopicOffsets { name: Rc::clone(&topic.name), id: topic.id, partitions: BTreeMap::new() };
        let mut part = empty();
        for (partition, offset) in &topic.partitions {
            bytes += 40 + offset.metadata.len();
            part.partitions.insert(*partition, offset.clone());
            if bytes >= OFFSETS_RECORD_BYTES {
                current.push(std::mem::replace(&mut part, empty()));
                records
                    .push(SlotRecord::OffsetsCommitted { group: group.clone(), topics: std::mem::take(&mut current) });
                bytes = 0;
            }
        }
        if !part.partitions.is_empty() {
            bytes += 40 + part.name.len();
            current.push(part);
        }
    }
    if !current.is_empty() {
        records.push(SlotRecord::OffsetsCommitted { group: group.clone(), topics: current });
    }
    records
}

#[cfg(test)]
pub(super) mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]
    use kaas_proto::types::{GenerationId, LeaderEpoch, Offset, PartitionIndex, TimestampMs, TopicId};
    use proptest::prelude::*;

    use super::*;
    use crate::group::offsets::{CommittedOffset, TopicPartitions};

    fn topic(name: u8, id: u8, partitions: &[(i32, i64)]) -> TopicOffsets {
        let offset = |offset| CommittedOffset {
            offset: Offset(offset),
            leader_epoch: LeaderEpoch(1),
            metadata: "note".into(),
            committed_at: TimestampMs(offset),
            expires_at: None,
        };
        TopicOffsets {
            name: format!("t{name}").into(),
            id: TopicId([id; 16]),
            partitions: partitions
                .iter()
                .map(|(partition, value)| (PartitionIndex(*partition), offset(*value)))
                .collect(),
        }
    }

    /// Any record of a few groups and topics.
    pub(in crate::group) fn any_record() -> impl Strategy<Value = SlotRecord> {
        let group = (0..4_u8).prop_map(|group| GroupId::from(format!("g{group}")));
        let committed = (0..3_u8, 0..3_u8, prop::collection::vec((0..4_i32, 0..100_i64), 1..4))
            .prop_map(|(name, id, partitions)| topic(name, id, &partitions));
        let deleted = (0..3_u8, 0..3_u8, prop::collection::vec((0..4_i32).prop_map(PartitionIndex), 0..4)).prop_map(
            |(name, id, partitions)| TopicPartitions {
                name: format!("t{name}").into(),
                id: TopicId([id; 16]),
                partitions,
            },
        );
        prop_oneof![
            6 => (group.clone(), prop::collection::vec(committed, 1..3))
                .prop_map(|(group, topics)| SlotRecord::OffsetsCommitted { group, topics }),
            2 => (group.clone(), prop::collection::vec(deleted, 1..3))
                .prop_map(|(group, topics)| SlotRecord::OffsetsDeleted { group, topics }),
            2 => (group.clone(), 0..9_i32).prop_map(|(group, generation)| {
                let metadata = GroupMetadata {
                    protocol_type: Some("consumer".into()),
                    generation: GenerationId(generation),
                    protocol: None,
                    leader: None,
                    since: TimestampMs(generation.into()),
                    members: Vec::new(),
                };
                SlotRecord::GroupStored { group, metadata: Rc::new(metadata) }
            }),
            1 => group.prop_map(|group| SlotRecord::GroupDeleted { group }),
        ]
    }

    fn snapshot(ledger: &Ledger) -> Vec<SlotRecord> {
        ledger.groups().flat_map(|(id, _)| ledger.records_of(id)).collect()
    }

    #[test]
    fn a_group_without_anything_does_not_exist() {
        let mut ledger = Ledger::default();
        let group = GroupId::from("g");
        ledger.apply(&SlotRecord::OffsetsCommitted { group: group.clone(), topics: vec![topic(0, 1, &[(0, 1)])] });
        assert_eq!((ledger.group_count(), ledger.offset_count()), (1, 1));
        let all = TopicPartitions { name: "t0".into(), id: TopicId([1; 16]), partitions: vec![PartitionIndex(0)] };
        ledger.apply(&SlotRecord::OffsetsDeleted { group, topics: vec![all] });
        assert_eq!(ledger, Ledger::default());
    }

    #[test]
    fn a_large_commit_is_split() {
        let partitions: Vec<(i32, i64)> = (0..20_000).map(|partition| (partition, 1)).collect();
        let topics = [topic(0, 1, &partitions), topic(1, 1, &[(0, 1)])];
        let records = commit_records(&"g".into(), topics.clone());
        assert!(records.len() > 2);
        assert!(records.iter().all(|record| record.value().len() <= OFFSETS_RECORD_BYTES + 1024));
        let (mut whole, mut split) = (Ledger::default(), Ledger::default());
        whole.apply(&SlotRecord::OffsetsCommitted { group: "g".into(), topics: topics.to_vec() });
        records.iter().for_each(|record| split.apply(record));
        assert_eq!(whole, split);
        assert_eq!(commit_records(&"g".into(), [topic(0, 1, &[])]), []);
    }

    proptest! {
        #[test]
        fn a_snapshot_says_all_that_the_records_said(records in prop::collection::vec(any_record(), 0..60), again in 0..60_usize) {
            let mut ledger = Ledger::default();
            records.iter().for_each(|record| ledger.apply(record));
            let mut restored = Ledger::default();
            snapshot(&ledger).iter().for_each(|record| restored.apply(record));
            prop_assert_eq!(&restored, &ledger);

            // A snapshot in the midst of the log changes nothing for those who read it all.
            let (before, after) = records.split_at(again.min(records.len()));
            let mut reread = Ledger::default();
            before.iter().for_each(|record| reread.apply(record));
            snapshot(&reread).iter().for_each(|record| reread.apply(record));
            after.iter().for_each(|record| reread.apply(record));
            prop_assert_eq!(&reread, &ledger);
        }
    }
}
