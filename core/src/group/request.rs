//! From the wire to the state machine.
//!
//! Everything that outlives the request is copied here: strings and bytes of a message are slices of its frame, and
//! would keep all of it in memory.

use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use kaas_proto::kafka::messages::offset_commit::OffsetCommitRequestTopic;
use kaas_proto::kafka::messages::{
    HeartbeatRequest, JoinGroupRequest, LeaveGroupRequest, OffsetCommitRequest, SyncGroupRequest,
};
use kaas_proto::types::TimestampMs;

use super::ids::{InstanceId, MemberId};
use super::join::JoinRequest;
use super::leave::{Leaving, Sender};
use super::offsets::{CommittedOffset, TopicOffsets};
use super::operation::ClientIdentity;
use super::protocol::Protocol;
use super::sync::SyncRequest;

/// From here on JoinGroup wants an id that was given out before (KIP-394).
const FIRST_JOIN_WITH_HANDSHAKE: i16 = 4;
/// From here on JoinGroup can say that a leader need not assign (KIP-814).
const FIRST_JOIN_WITH_SKIP: i16 = 9;
/// From here on LeaveGroup has a list of members.
pub(super) const FIRST_LEAVE_WITH_LIST: i16 = 3;

impl JoinRequest {
    pub(super) fn read(request: &JoinGroupRequest, version: i16, client: &ClientIdentity, random: u128) -> Self {
        let session_timeout = milliseconds(request.session_timeout_ms);
        Self {
            member_id: member_id(&request.member_id),
            instance_id: instance_id(request.group_instance_id.as_deref()),
            client_id: client.client_id.as_str().into(),
            client_host: client.host.as_str().into(),
            session_timeout,
            // Version 0 has none, others may send none.
            rebalance_timeout: match request.rebalance_timeout_ms {
                ..=0 => session_timeout,
                timeout_ms => milliseconds(timeout_ms),
            },
            protocol_type: (&*request.protocol_type).into(),
            protocols: request
                .protocols
                .iter()
                .map(|protocol| Protocol {
                    name: (&*protocol.name).into(),
                    metadata: Bytes::copy_from_slice(&protocol.metadata),
                })
                .collect(),
            requires_member_id: version >= FIRST_JOIN_WITH_HANDSHAKE,
            can_skip_assignment: version >= FIRST_JOIN_WITH_SKIP,
            random,
        }
    }
}

impl SyncRequest {
    pub(super) fn read(request: &SyncGroupRequest) -> Self {
        Self {
            member_id: (&*request.member_id).into(),
            instance_id: instance_id(request.group_instance_id.as_deref()),
            generation: request.generation_id,
            protocol_type: request.protocol_type.as_deref().map(Into::into),
            protocol: request.protocol_name.as_deref().map(Into::into),
            assignments: request
                .assignments
                .iter()
                .map(|one| ((&*one.member_id).into(), Bytes::copy_from_slice(&one.assignment)))
                .collect::<BTreeMap<_, _>>(),
        }
    }
}

impl Sender {
    pub(super) fn of_heartbeat(request: &HeartbeatRequest) -> Self {
        Self {
            member_id: member_id(&request.member_id),
            instance_id: instance_id(request.group_instance_id.as_deref()),
            generation: request.generation_id,
        }
    }

    pub(super) fn of_commit(request: &OffsetCommitRequest) -> Self {
        Self {
            member_id: member_id(&request.member_id),
            instance_id: instance_id(request.group_instance_id.as_deref()),
            generation: request.generation_id_or_member_epoch,
        }
    }
}

/// The members of a LeaveGroup of any version.
pub(super) fn leaving(request: &LeaveGroupRequest, version: i16) -> Vec<Leaving> {
    if version < FIRST_LEAVE_WITH_LIST {
        return vec![Leaving { member_id: member_id(&request.member_id), instance_id: None }];
    }
    let members = request.members.iter().map(|member| Leaving {
        member_id: member_id(&member.member_id),
        instance_id: instance_id(member.group_instance_id.as_deref()),
    });
    members.collect()
}

/// The offsets of one topic of a commit, without those whose metadata is longer than allowed.
pub(super) fn topic_offsets(
    topic: &OffsetCommitRequestTopic,
    retention_time_ms: i64,
    metadata_limit_bytes: usize,
    now: TimestampMs,
) -> TopicOffsets {
    let expires_at = (retention_time_ms >= 0).then(|| TimestampMs(now.0.saturating_add(retention_time_ms)));
    let empty: Rc<str> = Rc::from("");
    let partitions = topic.partitions.iter().filter_map(|partition| {
        let metadata = partition.committed_metadata.as_deref().unwrap_or_default();
        let offset = CommittedOffset {
            offset: partition.committed_offset,
            leader_epoch: partition.committed_leader_epoch,
            metadata: if metadata.is_empty() { Rc::clone(&empty) } else { metadata.into() },
            committed_at: now,
            expires_at,
        };
        (metadata.len() <= metadata_limit_bytes).then_some((partition.partition_index, offset))
    });
    TopicOffsets { name: (&*topic.name).into(), id: topic.topic_id, partitions: partitions.collect() }
}

fn member_id(text: &str) -> Option<MemberId> {
    (!text.is_empty()).then(|| text.into())
}

fn instance_id(text: Option<&str>) -> Option<InstanceId> {
    text.map(Into::into)
}

/// A timeout below zero is one of zero, which no bound accepts.
fn milliseconds(milliseconds: i32) -> Duration {
    Duration::from_millis(u64::try_from(milliseconds).unwrap_or(0))
}
