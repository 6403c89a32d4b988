//! The records of a coordinator slot's log, inside ordinary record batches. Pure.
//!
//! | record | key | value |
//! |---|---|---|
//! | offsets committed | 1, version, group | topics: name, id, partitions: index, offset, epoch, times, metadata |
//! | offsets deleted | 2, version, group | topics: name, id, partition indexes |
//! | group stored | 3, version, group | protocol type, generation, protocol, leader, since, members |
//! | group deleted | 4, version, group | |
//! | snapshot begin | 5, version | |
//! | snapshot end | 6, version | offset of its begin |
//!
//! The first byte of a key says what the record is, the second one its version, the rest is the group's id. Numbers are
//! big-endian; texts and bytes follow their length (`u32`), an absent one has the length `u32::MAX`; lists follow their
//! count (`u32`). `FORMATS.md` has the layouts byte by byte.
//!
//! Every record says something absolute, so applying one twice changes nothing, and a snapshot is just the same records
//! over again. Readers accept all versions that ever were; a record that they don't know is an error: skipping it would
//! lose what it says.

use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use kaas_proto::types::{GenerationId, LeaderEpoch, Offset, PartitionIndex, TimestampMs, TopicId};
use thiserror::Error;

use super::ids::{GroupId, InstanceId, MemberId, ProtocolName};
use super::metadata::{GroupMetadata, MemberProfile};
use super::offsets::{CommittedOffset, TopicOffsets, TopicPartitions};
use super::protocol::Protocol;

/// The version that is written.
const VERSION: u8 = 1;

/// The first byte of a record's key.
mod kind {
    pub(super) const OFFSETS_COMMITTED: u8 = 1;
    pub(super) const OFFSETS_DELETED: u8 = 2;
    pub(super) const GROUP_STORED: u8 = 3;
    pub(super) const GROUP_DELETED: u8 = 4;
    pub(super) const SNAPSHOT_BEGIN: u8 = 5;
    pub(super) const SNAPSHOT_END: u8 = 6;
}

const ABSENT: u32 = u32::MAX;

/// One record of a slot's log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SlotRecord {
    OffsetsCommitted {
        group: GroupId,
        topics: Vec<TopicOffsets>,
    },
    /// A tombstone for offsets.
    OffsetsDeleted {
        group: GroupId,
        topics: Vec<TopicPartitions>,
    },
    GroupStored {
        group: GroupId,
        metadata: Rc<GroupMetadata>,
    },
    /// A tombstone for a group and all its offsets.
    GroupDeleted {
        group: GroupId,
    },
    /// From here to the end of the snapshot, every group is written once more.
    SnapshotBegin,
    /// Everything below the begin is superfluous.
    SnapshotEnd {
        begin: Offset,
    },
}

/// Bytes that are no record of ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum SlotRecordError {
    #[error("the record has no {0}")]
    Missing(&'static str),
    #[error("a field needs {needed} bytes, {left} are left")]
    TooShort { needed: usize, left: usize },
    #[error("{0} bytes are left over")]
    LeftOver(usize),
    #[error("a text is not UTF-8")]
    NotUtf8,
    #[error("records of kind {0} are not known to this version of kaas")]
    UnknownKind(u8),
    #[error("version {version} of record kind {kind} is not known to this version of kaas")]
    UnknownVersion { kind: u8, version: u8 },
    #[error("the group's membership contradicts itself: {0}")]
    Inconsistent(&'static str),
}

impl SlotRecord {
    /// About how many bytes the record takes.
    #[must_use]
    pub fn size_hint(&self) -> usize {
        match self {
            Self::OffsetsCommitted { topics, .. } => {
                let of_topic = |topic: &TopicOffsets| {
                    let metadata: usize = topic.partitions.values().map(|offset| offset.metadata.len()).sum();
                    topic.name.len() + 24 + metadata + 36 * topic.partitions.len()
                };
                64 + topics.iter().map(of_topic).sum::<usize>()
            }
            Self::OffsetsDeleted { topics, .. } => {
                64 + topics.iter().map(|topic| topic.name.len() + 24 + 4 * topic.partitions.len()).sum::<usize>()
            }
            Self::GroupStored { metadata, .. } => {
                128 + metadata.members.iter().map(MemberProfile::bytes).sum::<usize>()
            }
            Self::GroupDeleted { .. } | Self::SnapshotBegin | Self::SnapshotEnd { .. } => 64,
        }
    }

    #[must_use]
    pub fn key(&self) -> Vec<u8> {
        let (kind, group) = match self {
            Self::OffsetsCommitted { group, .. } => (kind::OFFSETS_COMMITTED, group.as_str()),
            Self::OffsetsDeleted { group, .. } => (kind::OFFSETS_DELETED, group.as_str()),
            Self::GroupStored { group, .. } => (kind::GROUP_STORED, group.as_str()),
            Self::GroupDeleted { group } => (kind::GROUP_DELETED, group.as_str()),
            Self::SnapshotBegin => (kind::SNAPSHOT_BEGIN, ""),
            Self::SnapshotEnd { .. } => (kind::SNAPSHOT_END, ""),
        };
        [&[kind, VERSION], group.as_bytes()].concat()
    }

    #[must_use]
    pub fn value(&self) -> Vec<u8> {
        let mut writer = Writer(Vec::with_capacity(self.size_hint()));
        match self {
            Self::OffsetsCommitted { topics, .. } => writer.list(topics.iter(), |writer, topic| {
                writer.text(&topic.name);
                writer.raw(&topic.id.0);
                writer.list(topic.partitions.iter(), |writer, (partition, offset)| {
                    writer.raw(&partition.0.to_be_bytes());
                    writer.raw(&offset.offset.0.to_be_bytes());
                    writer.raw(&offset.leader_epoch.0.to_be_bytes());
                    writer.raw(&offset.committed_at.0.to_be_bytes());
                    writer.raw(&offset.expires_at.map_or(-1, |at| at.0).to_be_bytes());
                    writer.text(&offset.metadata);
                });
            }),
            Self::OffsetsDeleted { topics, .. } => writer.list(topics.iter(), |writer, topic| {
                writer.text(&topic.name);
                writer.raw(&topic.id.0);
                writer.list(topic.partitions.iter(), |writer, partition| writer.raw(&partition.0.to_be_bytes()));
            }),
            Self::GroupStored { metadata, .. } => writer.group(metadata),
            Self::GroupDeleted { .. } | Self::SnapshotBegin => {}
            Self::SnapshotEnd { begin } => writer.raw(&begin.0.to_be_bytes()),
        }
        writer.0
    }

    /// Reads a record. Nothing is allocated that the bytes could not fill.
    ///
    /// # Errors
    /// The bytes are not exactly one record of a known kind and version.
    pub fn decode(key: Option<&[u8]>, value: Option<&[u8]>) -> Result<Self, SlotRecordError> {
        let key = key.ok_or(SlotRecordError::Missing("key"))?;
        let mut reader = Reader(value.ok_or(SlotRecordError::Missing("value"))?);
        let ([kind, version], group) = key
            .split_first_chunk::<2>()
            .ok_or(SlotRecordError::TooShort { needed: 2, left: key.len() })
            .map(|(start, rest)| (*start, rest))?;
        if !(kind::OFFSETS_COMMITTED..=kind::SNAPSHOT_END).contains(&kind) {
            return Err(SlotRecordError::UnknownKind(kind));
        }
        if version != VERSION {
            return Err(SlotRecordError::UnknownVersion { kind, version });
        }
        let group = GroupId::from(std::str::from_utf8(group).map_err(|_| SlotRecordError::NotUtf8)?);
        let record = match kind {
            kind::OFFSETS_COMMITTED => Self::OffsetsCommitted { group, topics: reader.list(Reader::topic_offsets)? },
            kind::OFFSETS_DELETED => Self::OffsetsDeleted { group, topics: reader.list(Reader::topic_partitions)? },
            kind::GROUP_STORED => Self::GroupStored { group, metadata: Rc::new(reader.group()?) },
            kind::GROUP_DELETED => Self::GroupDeleted { group },
            kind::SNAPSHOT_BEGIN => Self::SnapshotBegin,
            _ => Self::SnapshotEnd { begin: Offset(i64::from_be_bytes(reader.array()?)) },
        };
        match reader.0.len() {
            0 => Ok(record),
            left => Err(SlotRecordError::LeftOver(left)),
        }
    }
}

struct Writer(Vec<u8>);

impl Writer {
    fn raw(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }

    fn length(&mut self, length: usize) {
        self.raw(&u32::try_from(length).expect("limited far below 4 GiB").to_be_bytes());
    }

    fn bytes(&mut self, bytes: &[u8]) {
        self.length(bytes.len());
        self.raw(bytes);
    }

    fn text(&mut self, text: &str) {
        self.bytes(text.as_bytes());
    }

    fn optional(&mut self, text: Option<&str>) {
        match text {
            Some(text) => self.text(text),
            None => self.raw(&ABSENT.to_be_bytes()),
        }
    }

    fn list<T>(&mut self, items: impl ExactSizeIterator<Item = T>, mut write: impl FnMut(&mut Self, T)) {
        self.length(items.len());
        for item in items {
            write(self, item);
        }
    }

    fn milliseconds(&mut self, duration: Duration) {
        self.raw(&u32::try_from(duration.as_millis()).unwrap_or(u32::MAX).to_be_bytes());
    }

    fn group(&mut self, group: &GroupMetadata) {
        self.optional(group.protocol_type.as_ref().map(ProtocolName::as_str));
        self.raw(&group.generation.0.to_be_bytes());
        self.optional(group.protocol.as_ref().map(ProtocolName::as_str));
        self.optional(group.leader.as_ref().map(MemberId::as_str));
        self.raw(&group.since.0.to_be_bytes());
        self.list(group.members.iter(), |writer, member| {
            writer.text(member.id.as_str());
            writer.optional(member.instance_id.as_ref().map(InstanceId::as_str));
            writer.text(&member.client_id);
            writer.text(&member.client_host);
            writer.milliseconds(member.session_timeout);
            writer.milliseconds(member.rebalance_timeout);
            writer.list(member.protocols.iter(), |writer, protocol| {
                writer.text(protocol.name.as_str());
                writer.bytes(&protocol.metadata);
            });
            writer.bytes(&member.assignment);
        });
    }
}

struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, length: usize) -> Result<&'a [u8], SlotRecordError> {
        let (taken, rest) =
            self.0.split_at_checked(length).ok_or(SlotRecordError::TooShort { needed: length, left: self.0.len() })?;
        self.0 = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], SlotRecordError> {
        Ok(self.take(N)?.try_into().expect("of that length"))
    }

    fn u32(&mut self) -> Result<u32, SlotRecordError> {
        Ok(u32::from_be_bytes(self.array()?))
    }

    fn optional(&mut self) -> Result<Option<&'a str>, SlotRecordError> {
        match self.u32()? {
            ABSENT => Ok(None),
            length => {
                let bytes = self.take(usize::try_from(length).expect("pointers have 64 bits"))?;
                std::str::from_utf8(bytes).map(Some).map_err(|_| SlotRecordError::NotUtf8)
            }
        }
    }

    fn text(&mut self) -> Result<&'a str, SlotRecordError> {
        self.optional()?.ok_or(SlotRecordError::Missing("text"))
    }

    fn bytes(&mut self) -> Result<Bytes, SlotRecordError> {
        let length = usize::try_from(self.u32()?).expect("pointers have 64 bits");
        Ok(Bytes::copy_from_slice(self.take(length)?))
    }

    /// The vector grows as items are read: a count that the bytes can't fill ends with an error, not with memory.
    fn list<T>(
        &mut self,
        mut read: impl FnMut(&mut Self) -> Result<T, SlotRecordError>,
    ) -> Result<Vec<T>, SlotRecordError> {
        let count = self.u32()?;
        let mut items = Vec::new();
        for _ in 0..count {
            items.push(read(self)?);
        }
        Ok(items)
    }

    fn milliseconds(&mut self) -> Result<Duration, SlotRecordError> {
        Ok(Duration::from_millis(self.u32()?.into()))
    }

    fn topic_offsets(&mut self) -> Result<TopicOffsets, SlotRecordError> {
        Ok(TopicOffsets {
            name: self.text()?.into(),
            id: TopicId(self.array()?),
            partitions: self.list(Self::committed_offset)?.into_iter().collect::<BTreeMap<_, _>>(),
        })
    }

    fn committed_offset(&mut self) -> Result<(PartitionIndex, CommittedOffset), SlotRecordError> {
        let partition = PartitionIndex(i32::from_be_bytes(self.array()?));
        let offset = CommittedOffset {
            offset: Offset(i64::from_be_bytes(self.array()?)),
            leader_epoch: LeaderEpoch(i32::from_be_bytes(self.array()?)),
            committed_at: TimestampMs(i64::from_be_bytes(self.array()?)),
            expires_at: Some(TimestampMs(i64::from_be_bytes(self.array()?))).filter(|at| at.0 >= 0),
            metadata: self.text()?.into(),
        };
        Ok((partition, offset))
    }

    fn topic_partitions(&mut self) -> Result<TopicPartitions, SlotRecordError> {
        Ok(TopicPartitions {
            name: self.text()?.into(),
            id: TopicId(self.array()?),
            partitions: self.list(|reader| Ok(PartitionIndex(i32::from_be_bytes(reader.array()?))))?,
        })
    }

    fn group(&mut self) -> Result<GroupMetadata, SlotRecordError> {
        let group = GroupMetadata {
            protocol_type: self.optional()?.map(Into::into),
            generation: GenerationId(i32::from_be_bytes(self.array()?)),
            protocol: self.optional()?.map(Into::into),
            leader: self.optional()?.map(Into::into),
            since: TimestampMs(i64::from_be_bytes(self.array()?)),
            members: self.list(Self::member)?,
        };
        group.check().map_err(SlotRecordError::Inconsistent)?;
        Ok(group)
    }

    fn member(&mut self) -> Result<MemberProfile, SlotRecordError> {
        Ok(MemberProfile {
            id: self.text()?.into(),
            instance_id: self.optional()?.map(Into::into),
            client_id: self.text()?.into(),
            client_host: self.text()?.into(),
            session_timeout: self.milliseconds()?,
            rebalance_timeout: self.milliseconds()?,
            protocols: self
                .list(|reader| Ok(Protocol { name: reader.text()?.into(), metadata: reader.bytes()? }))?
                .into(),
            assignment: self.bytes()?,
        })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]
    use proptest::prelude::*;

    use super::*;

    fn read(record: &SlotRecord) -> Result<SlotRecord, SlotRecordError> {
        SlotRecord::decode(Some(&record.key()), Some(&record.value()))
    }

    fn committed() -> SlotRecord {
        let offset = |metadata: &str, expires_at| CommittedOffset {
            offset: Offset(0x0102),
            leader_epoch: LeaderEpoch(3),
            metadata: metadata.into(),
            committed_at: TimestampMs(0x0405),
            expires_at,
        };
        let partitions =
            [(PartitionIndex(0), offset("m", None)), (PartitionIndex(7), offset("", Some(TimestampMs(9))))];
        let topic = TopicOffsets { name: "t".into(), id: TopicId(*b"0123456789abcdef"), partitions: partitions.into() };
        SlotRecord::OffsetsCommitted { group: "g".into(), topics: vec![topic] }
    }

    fn stored() -> SlotRecord {
        let member = MemberProfile {
            id: "m".into(),
            instance_id: Some("i".into()),
            client_id: "c".into(),
            client_host: "/h".into(),
            session_timeout: Duration::from_millis(0x0a0b),
            rebalance_timeout: Duration::from_millis(0x0c0d),
            protocols: [Protocol { name: "p".into(), metadata: Bytes::from_static(b"sub") }].into(),
            assignment: Bytes::from_static(b"work"),
        };
        let metadata = GroupMetadata {
            protocol_type: Some("consumer".into()),
            generation: GenerationId(4),
            protocol: Some("p".into()),
            leader: Some("m".into()),
            since: TimestampMs(0x0e0f),
            members: vec![member],
        };
        SlotRecord::GroupStored { group: "g".into(), metadata: Rc::new(metadata) }
    }

    fn deleted() -> SlotRecord {
        let partitions = vec![PartitionIndex(1), PartitionIndex(2)];
        let topic = TopicPartitions { name: "t".into(), id: TopicId(*b"0123456789abcdef"), partitions };
        SlotRecord::OffsetsDeleted { group: "g".into(), topics: vec![topic] }
    }

    fn empty_group() -> SlotRecord {
        let metadata = GroupMetadata {
            protocol_type: None,
            generation: GenerationId(0),
            protocol: None,
            leader: None,
            since: TimestampMs(-1),
            members: Vec::new(),
        };
        SlotRecord::GroupStored { group: "g".into(), metadata: Rc::new(metadata) }
    }

    fn all() -> Vec<SlotRecord> {
        let group_deleted = SlotRecord::GroupDeleted { group: "g".into() };
        let end = SlotRecord::SnapshotEnd { begin: Offset(0x0102) };
        vec![committed(), deleted(), stored(), empty_group(), group_deleted, SlotRecord::SnapshotBegin, end]
    }

    /// What version 1 looks like, for ever. A change here needs a new version.
    #[test]
    fn version_1_stays_readable() {
        #[rustfmt::skip]
        let golden: [(&[u8], Vec<&[u8]>); 7] = [
            (b"\x01\x01g", vec![
                b"\0\0\0\x01", b"\0\0\0\x01t", b"0123456789abcdef", b"\0\0\0\x02",
                b"\0\0\0\0", b"\0\0\0\0\0\0\x01\x02", b"\0\0\0\x03", b"\0\0\0\0\0\0\x04\x05",
                b"\xff\xff\xff\xff\xff\xff\xff\xff", b"\0\0\0\x01m",
                b"\0\0\0\x07", b"\0\0\0\0\0\0\x01\x02", b"\0\0\0\x03", b"\0\0\0\0\0\0\x04\x05",
                b"\0\0\0\0\0\0\0\x09", b"\0\0\0\0",
            ]),
            (b"\x02\x01g", vec![
                b"\0\0\0\x01", b"\0\0\0\x01t", b"0123456789abcdef", b"\0\0\0\x02", b"\0\0\0\x01", b"\0\0\0\x02",
            ]),
            (b"\x03\x01g", vec![
                b"\0\0\0\x08consumer", b"\0\0\0\x04", b"\0\0\0\x01p", b"\0\0\0\x01m", b"\0\0\0\0\0\0\x0e\x0f",
                b"\0\0\0\x01",
                b"\0\0\0\x01m", b"\0\0\0\x01i", b"\0\0\0\x01c", b"\0\0\0\x02/h", b"\0\0\x0a\x0b", b"\0\0\x0c\x0d",
                b"\0\0\0\x01", b"\0\0\0\x01p", b"\0\0\0\x03sub", b"\0\0\0\x04work",
            ]),
            (b"\x03\x01g", vec![
                b"\xff\xff\xff\xff", b"\0\0\0\0", b"\xff\xff\xff\xff", b"\xff\xff\xff\xff",
                b"\xff\xff\xff\xff\xff\xff\xff\xff", b"\0\0\0\0",
            ]),
            (b"\x04\x01g", vec![]),
            (b"\x05\x01", vec![]),
            (b"\x06\x01", vec![b"\0\0\0\0\0\0\x01\x02"]),
        ];
        for (record, (key, value)) in all().iter().zip(golden) {
            let value = value.concat();
            assert_eq!((record.key().as_slice(), record.value()), (key, value.clone()), "{record:?}");
            assert_eq!(SlotRecord::decode(Some(key), Some(&value)).as_ref(), Ok(record));
            assert!(record.size_hint() >= value.len(), "{record:?}");
        }
    }

    #[test]
    fn what_is_not_known_is_an_error() {
        let decode = |key: &[u8], value: &[u8]| SlotRecord::decode(Some(key), Some(value)).unwrap_err();
        assert_eq!(decode(b"\x07\x01g", b""), SlotRecordError::UnknownKind(7));
        assert_eq!(decode(b"\0\x01g", b""), SlotRecordError::UnknownKind(0));
        assert_eq!(decode(b"\x01\x02g", b""), SlotRecordError::UnknownVersion { kind: 1, version: 2 });
        assert_eq!(decode(b"\x01", b""), SlotRecordError::TooShort { needed: 2, left: 1 });
        assert_eq!(decode(b"\x04\x01\xff", b""), SlotRecordError::NotUtf8);
        assert_eq!(decode(b"\x04\x01g", b"x"), SlotRecordError::LeftOver(1));
        assert_eq!(SlotRecord::decode(None, Some(b"")), Err(SlotRecordError::Missing("key")));
        assert_eq!(SlotRecord::decode(Some(b"\x04\x01g"), None), Err(SlotRecordError::Missing("value")));
        // A count of four billion topics in four bytes.
        let greedy = decode(b"\x01\x01g", b"\xff\xff\xff\xff");
        assert_eq!(greedy, SlotRecordError::TooShort { needed: 4, left: 0 });
    }

    #[test]
    fn a_membership_must_make_sense() {
        let SlotRecord::GroupStored { metadata, .. } = stored() else { unreachable!() };
        let good = (*metadata).clone();
        let member = &good.members[0];
        let other = MemberProfile { id: "n".into(), ..member.clone() };
        let without_p = MemberProfile { protocols: [].into(), ..member.clone() };
        for bad in [
            GroupMetadata { leader: None, ..good.clone() },
            GroupMetadata { leader: Some("x".into()), ..good.clone() },
            GroupMetadata { protocol: None, ..good.clone() },
            GroupMetadata { protocol_type: None, ..good.clone() },
            GroupMetadata { members: vec![member.clone(), member.clone()], ..good.clone() },
            GroupMetadata { members: vec![member.clone(), other], ..good.clone() },
            GroupMetadata { members: vec![without_p], ..good.clone() },
        ] {
            let record = SlotRecord::GroupStored { group: "g".into(), metadata: Rc::new(bad) };
            assert!(matches!(read(&record), Err(SlotRecordError::Inconsistent(_))), "{record:?}");
        }
    }

    #[test]
    fn every_cut_is_an_error() {
        for record in all() {
            let (key, value) = (record.key(), record.value());
            for length in 0..value.len() {
                assert!(SlotRecord::decode(Some(&key), Some(&value[..length])).is_err(), "{record:?} cut at {length}");
            }
        }
    }

    proptest! {
        #[test]
        fn flipped_bits_never_panic(which in 0..7_usize, flips in prop::collection::vec((0..400_usize, 0..8_u8), 1..4)) {
            let record = &all()[which];
            let (mut key, mut value) = (record.key(), record.value());
            for (position, bit) in flips {
                let length = key.len() + value.len();
                let position = position % length;
                let byte = if position < key.len() { &mut key[position] } else { &mut value[position - record.key().len()] };
                *byte ^= 1 << bit;
            }
            // Whatever is still readable is readable again after it was written.
            if let Ok(read) = SlotRecord::decode(Some(&key), Some(&value)) {
                prop_assert_eq!(SlotRecord::decode(Some(&read.key()), Some(&read.value())), Ok(read));
            }
        }

        #[test]
        fn random_bytes_never_panic(key in prop::collection::vec(any::<u8>(), 0..8), value in prop::collection::vec(any::<u8>(), 0..64)) {
            let _ = SlotRecord::decode(Some(&key), Some(&value));
        }
    }
}
