//! The membership of a finished rebalance: what is durable of a group besides its offsets.

use std::collections::BTreeSet;
use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use kaas_proto::types::{GenerationId, TimestampMs};

use super::ids::{InstanceId, MemberId, ProtocolName};
use super::protocol::Protocol;

/// A group as a record holds it. Members keep their ids, subscriptions and assignments through a change of the
/// coordinator, so nobody has to join again because of one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupMetadata {
    /// `None` for a group that only ever committed offsets.
    pub protocol_type: Option<ProtocolName>,
    pub generation: GenerationId,
    /// The protocol of this generation; `None` without members.
    pub protocol: Option<ProtocolName>,
    pub leader: Option<MemberId>,
    /// When the group came into this state. Offsets of an empty group expire counted from here.
    pub since: TimestampMs,
    pub members: Vec<MemberProfile>,
}

impl GroupMetadata {
    /// Bytes of its texts and blobs.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let names = [&self.protocol_type, &self.protocol];
        let names: usize = names.into_iter().flatten().map(|name| name.as_str().len()).sum();
        names + self.members.iter().map(MemberProfile::bytes).sum::<usize>()
    }

    /// Whether the state machine can go on from here.
    ///
    /// # Errors
    /// What contradicts what.
    pub fn check(&self) -> Result<(), &'static str> {
        if self.members.is_empty() {
            return Ok(());
        }
        let ids: BTreeSet<&MemberId> = self.members.iter().map(|member| &member.id).collect();
        let instances: Vec<&InstanceId> =
            self.members.iter().filter_map(|member| member.instance_id.as_ref()).collect();
        if ids.len() < self.members.len() {
            return Err("two members have one id");
        }
        if instances.iter().collect::<BTreeSet<_>>().len() < instances.len() {
            return Err("two members have one instance id");
        }
        if self.leader.as_ref().is_none_or(|leader| !ids.contains(leader)) {
            return Err("the leader is not a member");
        }
        if self.protocol_type.is_none() {
            return Err("there are members but no protocol type");
        }
        let Some(protocol) = &self.protocol else { return Err("there are members but no protocol") };
        let offers = |member: &MemberProfile| member.protocols.iter().any(|offer| offer.name == *protocol);
        if self.members.iter().all(offers) { Ok(()) } else { Err("a member does not offer the protocol") }
    }
}

/// What is durable of a member.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemberProfile {
    pub id: MemberId,
    /// Set for a static member.
    pub instance_id: Option<InstanceId>,
    pub client_id: Rc<str>,
    pub client_host: Rc<str>,
    pub session_timeout: Duration,
    pub rebalance_timeout: Duration,
    /// In order of preference. All of them, not only the selected one: a member that joins again with the same list
    /// is recognised as unchanged also by the next coordinator.
    pub protocols: Rc<[Protocol]>,
    pub assignment: Bytes,
}

impl MemberProfile {
    /// The metadata that the member offered for a protocol; empty if it did not offer it.
    #[must_use]
    pub fn metadata_of(&self, protocol: &ProtocolName) -> Bytes {
        self.protocols
            .iter()
            .find(|offer| offer.name == *protocol)
            .map(|offer| offer.metadata.clone())
            .unwrap_or_default()
    }

    /// Bytes that the member adds to the group's record, its assignment included.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let names = [
            self.id.as_str(),
            self.instance_id.as_ref().map_or("", InstanceId::as_str),
            &self.client_id,
            &self.client_host,
        ];
        let protocols: usize = self.protocols.iter().map(|p| 8 + p.name.as_str().len() + p.metadata.len()).sum();
        names.iter().map(|name| 8 + name.len()).sum::<usize>() + protocols + self.assignment.len() + 16
    }
}
