//! Records of a coordinator slot as what they say: offset commits and the state of groups.

use kaas_proto::record::RecordBatchView;
use kaas_proto::types::{PartitionIndex, TopicId};
use serde_json::{Value, json};

use super::InspectError;
use super::damage::Damage;
use super::printer::{Field, Printer};
use super::records::{each, hex};
use super::segment::time;
use crate::group::metadata::{GroupMetadata, MemberProfile};
use crate::group::offsets::{CommittedOffset, TopicOffsets, TopicPartitions};
use crate::group::record::SlotRecord;

/// Prints the records of a batch that lie at `at` in the file. With `whole`, member subscriptions and assignments too.
pub(super) fn print(
    batch: RecordBatchView<'_>,
    at: u64,
    whole: bool,
    printer: &mut Printer<'_>,
) -> Result<Option<Damage>, InspectError> {
    each(batch, at, |set, record| {
        let offset = set.offset(record).0;
        let decoded = match SlotRecord::decode(record.key, record.value) {
            Ok(decoded) => decoded,
            Err(error) => {
                let found = format!("{error} (the batch's checksum is right: it was written like this)");
                return Ok(Some(Damage::new(at, format!("a record of a coordinator slot at offset {offset}"), found)));
            }
        };
        let timestamp = set.timestamp(record).0;
        let (kind, group, content) = members_of(&decoded, whole);
        let mut fields: Vec<Field> = vec![
            ("offset", offset.into()),
            ("timestamp", timestamp.into()),
            ("time", time(timestamp)),
            ("record", kind.into()),
            ("group", group.map_or(Value::Null, Value::from)),
        ];
        if printer.is_json() {
            fields.extend(content);
        } else {
            fields.push(("content", in_words(&decoded).into()));
        }
        printer.row("slotRecord", &fields)?;
        Ok(None)
    })
}

/// For a table: the gist.
fn in_words(record: &SlotRecord) -> String {
    let partition = |topic: &str, partition: PartitionIndex| format!("{topic}-{partition}");
    match record {
        SlotRecord::OffsetsCommitted { topics, .. } => {
            let of_topic = |topic: &TopicOffsets| {
                let one = |(&index, committed): (&PartitionIndex, &CommittedOffset)| {
                    format!("{}={}", partition(&topic.name, index), committed.offset)
                };
                topic.partitions.iter().map(one).collect::<Vec<_>>().join(" ")
            };
            topics.iter().map(of_topic).collect::<Vec<_>>().join(" ")
        }
        SlotRecord::OffsetsDeleted { topics, .. } => {
            let of_topic = |topic: &TopicPartitions| {
                topic.partitions.iter().map(|&index| partition(&topic.name, index)).collect::<Vec<_>>().join(" ")
            };
            topics.iter().map(of_topic).collect::<Vec<_>>().join(" ")
        }
        SlotRecord::GroupStored { metadata, .. } => {
            let protocol = metadata.protocol.as_ref().map_or("no protocol", |name| name.as_str());
            let members: Vec<_> = metadata.members.iter().map(|member| member.id.as_str()).collect();
            format!("generation {}, {protocol}, members: {}", metadata.generation, members.join(" "))
        }
        SlotRecord::GroupDeleted { .. } | SlotRecord::SnapshotBegin => String::new(),
        SlotRecord::SnapshotEnd { begin } => format!("begun at {begin}"),
    }
}

fn members_of(record: &SlotRecord, whole: bool) -> (&'static str, Option<&str>, Vec<Field>) {
    match record {
        SlotRecord::OffsetsCommitted { group, topics } => {
            ("offsetsCommitted", Some(group.as_str()), vec![("topics", topics.iter().map(offsets).collect())])
        }
        SlotRecord::OffsetsDeleted { group, topics } => {
            ("offsetsDeleted", Some(group.as_str()), vec![("topics", topics.iter().map(partitions).collect())])
        }
        SlotRecord::GroupStored { group, metadata } => ("groupStored", Some(group.as_str()), state(metadata, whole)),
        SlotRecord::GroupDeleted { group } => ("groupDeleted", Some(group.as_str()), Vec::new()),
        SlotRecord::SnapshotBegin => ("snapshotBegin", None, Vec::new()),
        SlotRecord::SnapshotEnd { begin } => ("snapshotEnd", None, vec![("begin", begin.0.into())]),
    }
}

fn topic_id(id: TopicId) -> Value {
    if id == TopicId::ZERO { Value::Null } else { id.to_string().into() }
}

fn offsets(topic: &TopicOffsets) -> Value {
    let partitions = topic.partitions.iter().map(|(partition, committed)| {
        json!({
            "partition": partition.0,
            "offset": committed.offset.0,
            "leaderEpoch": committed.leader_epoch.0,
            "metadata": &*committed.metadata,
            "committedAt": time(committed.committed_at.0),
            "expiresAt": committed.expires_at.map(|at| time(at.0)),
        })
    });
    json!({ "topic": &*topic.name, "id": topic_id(topic.id), "partitions": partitions.collect::<Value>() })
}

fn partitions(topic: &TopicPartitions) -> Value {
    let partitions: Value = topic.partitions.iter().map(|partition| partition.0).collect();
    json!({ "topic": &*topic.name, "id": topic_id(topic.id), "partitions": partitions })
}

fn state(group: &GroupMetadata, whole: bool) -> Vec<Field> {
    let text = |text: Option<&str>| text.map_or(Value::Null, Value::from);
    vec![
        ("protocolType", text(group.protocol_type.as_ref().map(|name| name.as_str()))),
        ("generation", group.generation.0.into()),
        ("protocol", text(group.protocol.as_ref().map(|name| name.as_str()))),
        ("leader", text(group.leader.as_ref().map(|id| id.as_str()))),
        ("since", time(group.since.0)),
        ("members", group.members.iter().map(|profile| member(profile, whole)).collect()),
    ]
}

fn member(member: &MemberProfile, whole: bool) -> Value {
    let milliseconds = |duration: std::time::Duration| u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
    let names: Value = member.protocols.iter().map(|protocol| protocol.name.as_str()).collect();
    let mut object = json!({
        "id": member.id.as_str(),
        "instanceId": member.instance_id.as_ref().map(|id| id.as_str()),
        "clientId": &*member.client_id,
        "clientHost": &*member.client_host,
        "sessionTimeoutMs": milliseconds(member.session_timeout),
        "rebalanceTimeoutMs": milliseconds(member.rebalance_timeout),
        "protocols": names,
    });
    if whole {
        object["subscriptionsHex"] = member.protocols.iter().map(|protocol| hex(&protocol.metadata)).collect();
        object["assignmentHex"] = hex(&member.assignment).into();
    }
    object
}
