//! `__cluster/assignment.json`: which brokers there are, and which of them leads what. Written by the controller alone.
//!
//! [Sealed JSON](super::sealed_json), one object:
//!
//! | member | content |
//! |---|---|
//! | `controller_epoch` | of the controller that wrote it; a reader that knows a higher one ignores the file |
//! | `assignment_version` | rises with every assignment, across controllers too |
//! | `controller` | the broker that wrote it |
//! | `controller_heartbeat` | where that broker listens for heartbeats, `HOST:PORT`; may be missing |
//! | `brokers` | in order of id: `{id, incarnation, rack, listeners: [{name, host, port, protocol}], health}`; health is `alive`, `draining` or `dead`. A broker that was registered once stays |
//! | `partitions` | in order of topic and partition: `{topic, topic_id, partition, leader, epoch, previous}`; `previous` is the broker that hands it over, or null |
//! | `consumerGroups` | the 50 coordinator slots in order: `{slot, leader, epoch, previous}` |

use std::collections::BTreeSet;
use std::sync::Arc;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use thiserror::Error;

use super::sealed_json::{self, SealedJsonError};
use crate::control::PartitionKey;
use crate::types::{
    AssignmentVersion, BrokerId, COORDINATOR_SLOTS, ControllerEpoch, Incarnation, LeaderEpoch, PartitionIndex, SlotId,
    TopicId,
};

/// Room for some hundred thousand partitions.
pub const LIMIT_BYTES: usize = 64 << 20;

/// Who leads what.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Assignment {
    pub controller_epoch: ControllerEpoch,
    pub assignment_version: AssignmentVersion,
    pub controller: BrokerId,
    /// Where it listens for heartbeats, `HOST:PORT`; for brokers that can't ask the election.
    #[serde(default, with = "optional_text", skip_serializing_if = "Option::is_none")]
    pub controller_heartbeat: Option<Arc<str>>,
    /// In order of id.
    pub brokers: Vec<RegisteredBroker>,
    /// In order of topic and partition; of each topic all partitions from 0.
    pub partitions: Vec<AssignedPartition>,
    /// Indexed by slot.
    #[serde(rename = "consumerGroups")]
    pub consumer_groups: Vec<AssignedSlot>,
}

/// A broker that has been seen.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RegisteredBroker {
    pub id: BrokerId,
    /// The life that assignments to it are for.
    pub incarnation: Incarnation,
    #[serde(default, with = "optional_text", skip_serializing_if = "Option::is_none")]
    pub rack: Option<Arc<str>>,
    pub listeners: Vec<AdvertisedListener>,
    pub health: BrokerHealth,
}

/// Where clients reach a broker.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AdvertisedListener {
    #[serde(with = "text")]
    pub name: Arc<str>,
    #[serde(with = "text")]
    pub host: Arc<str>,
    pub port: u16,
    #[serde(with = "text")]
    pub protocol: Arc<str>,
}

/// What the controller makes of a broker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum BrokerHealth {
    Alive,
    /// It is about to leave, and hands over what it leads.
    Draining,
    /// Not connected, or not healthy.
    Dead,
}

/// A partition and its leader.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AssignedPartition {
    #[serde(with = "text")]
    pub topic: Arc<str>,
    pub topic_id: TopicId,
    pub partition: PartitionIndex,
    pub leader: BrokerId,
    pub epoch: LeaderEpoch,
    /// Leads until it has relinquished; `None` if there is nobody to wait for.
    pub previous: Option<BrokerId>,
}

/// A coordinator slot and its leader.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AssignedSlot {
    pub slot: SlotId,
    pub leader: BrokerId,
    pub epoch: LeaderEpoch,
    pub previous: Option<BrokerId>,
}

/// Why bytes are no assignment.
#[derive(Debug, Error)]
pub enum AssignmentError {
    #[error(transparent)]
    Json(#[from] SealedJsonError),
    #[error("it contradicts itself: {0}")]
    Inconsistent(&'static str),
}

impl Assignment {
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        sealed_json::encode(self)
    }

    /// # Errors
    /// See [`AssignmentError`].
    pub fn decode(bytes: &[u8]) -> Result<Self, AssignmentError> {
        let mut assignment: Self = sealed_json::decode(bytes)?;
        assignment.check().map_err(AssignmentError::Inconsistent)?;
        assignment.share_names();
        Ok(assignment)
    }

    /// Which of two assignments is the newer one.
    #[must_use]
    pub fn generation(&self) -> (ControllerEpoch, AssignmentVersion) {
        (self.controller_epoch, self.assignment_version)
    }

    #[must_use]
    pub fn broker(&self, id: BrokerId) -> Option<&RegisteredBroker> {
        let found = self.brokers.binary_search_by_key(&id, |broker| broker.id).ok()?;
        Some(&self.brokers[found])
    }

    fn check(&self) -> Result<(), &'static str> {
        if self.controller_epoch.0 < 1 || self.assignment_version.0 < 1 {
            return Err("controller epoch and assignment version count from 1");
        }
        if !self.brokers.is_sorted_by(|a, b| a.id < b.id) {
            return Err("brokers are not in order of id, each once");
        }
        let registered: BTreeSet<BrokerId> = self.brokers.iter().map(|broker| broker.id).collect();
        if !registered.contains(&self.controller) {
            return Err("the controller is not registered");
        }
        let slots = (0..COORDINATOR_SLOTS).map(SlotId);
        if !self.consumer_groups.iter().map(|group| group.slot).eq(slots) {
            return Err("the coordinator slots are not those from 0 to 49 in order");
        }
        let slots = self.consumer_groups.iter().map(|slot| (slot.leader, slot.epoch));
        let partitions = self.partitions.iter().map(|partition| (partition.leader, partition.epoch));
        for (leader, epoch) in slots.chain(partitions) {
            if !registered.contains(&leader) {
                return Err("a leader is not registered");
            }
            if epoch.0 < 1 {
                return Err("leader epochs count from 1");
            }
        }
        self.check_partitions()
    }

    fn check_partitions(&self) -> Result<(), &'static str> {
        let mut former: Option<&AssignedPartition> = None;
        let mut topic_ids = BTreeSet::new();
        for partition in &self.partitions {
            let begins = former.is_none_or(|former| former.topic != partition.topic);
            let expected = former.filter(|_| !begins).map_or(0, |former| former.partition.0 + 1);
            if partition.partition.0 != expected || former.is_some_and(|former| former.topic > partition.topic) {
                return Err("partitions are not in order of topic and partition, each once and from 0");
            }
            let other_id = !begins && former.is_some_and(|former| former.topic_id != partition.topic_id);
            if other_id || (begins && !topic_ids.insert(partition.topic_id)) {
                return Err("topics and topic ids do not belong together one to one");
            }
            if matches!(partition.topic_id, TopicId::ZERO | TopicId::COORDINATORS) {
                return Err("no topic has such an id");
            }
            former = Some(partition);
        }
        Ok(())
    }

    /// Partitions of a topic share one copy of its name.
    fn share_names(&mut self) {
        let mut name: Arc<str> = "".into();
        for partition in &mut self.partitions {
            if partition.topic == name {
                partition.topic = Arc::clone(&name);
            } else {
                name = Arc::clone(&partition.topic);
            }
        }
    }
}

impl AssignedPartition {
    #[must_use]
    pub fn key(&self) -> PartitionKey {
        PartitionKey { topic_id: self.topic_id, partition: self.partition }
    }
}

mod text {
    use super::{Arc, Deserialize, Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(text: &Arc<str>, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(text)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Arc<str>, D::Error> {
        Ok(String::deserialize(deserializer)?.into())
    }
}

mod optional_text {
    use super::{Arc, Deserialize, Deserializer, Serializer};

    #[expect(clippy::ref_option, reason = "serde's signature")]
    pub(super) fn serialize<S: Serializer>(text: &Option<Arc<str>>, serializer: S) -> Result<S::Ok, S::Error> {
        match text {
            Some(text) => serializer.serialize_some(&**text),
            None => serializer.serialize_none(),
        }
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Arc<str>>, D::Error> {
        Ok(Option::<String>::deserialize(deserializer)?.map(Into::into))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]
    use super::super::robustness::assert_damage_is_found;
    use super::*;

    fn assignment() -> Assignment {
        let listener =
            AdvertisedListener { name: "A".into(), host: "h".into(), port: 9092, protocol: "PLAINTEXT".into() };
        let broker = |id, health| RegisteredBroker {
            id: BrokerId(id),
            incarnation: Incarnation(0xab),
            rack: None,
            listeners: vec![listener.clone()],
            health,
        };
        let partition = |topic: &str, byte, partition| AssignedPartition {
            topic: topic.into(),
            topic_id: TopicId([byte; 16]),
            partition: PartitionIndex(partition),
            leader: BrokerId(2),
            epoch: LeaderEpoch(3),
            previous: (partition == 1).then_some(BrokerId(0)),
        };
        let slot =
            |slot| AssignedSlot { slot: SlotId(slot), leader: BrokerId(0), epoch: LeaderEpoch(1), previous: None };
        Assignment {
            controller_epoch: ControllerEpoch(4),
            assignment_version: AssignmentVersion(17),
            controller: BrokerId(0),
            controller_heartbeat: Some("h:9094".into()),
            brokers: vec![broker(0, BrokerHealth::Alive), broker(2, BrokerHealth::Draining)],
            partitions: vec![partition("a", 1, 0), partition("a", 1, 1), partition("b", 2, 0)],
            consumer_groups: (0..COORDINATOR_SLOTS).map(slot).collect(),
        }
    }

    #[test]
    fn it_comes_back_and_reads_as_documented() {
        let encoded = assignment().encode();
        let decoded = Assignment::decode(&encoded).unwrap();
        assert_eq!(decoded, assignment());
        assert!(Arc::ptr_eq(&decoded.partitions[0].topic, &decoded.partitions[1].topic));
        let text = String::from_utf8(encoded).unwrap();
        let begin = concat!(
            r#"{"controller_epoch":4,"assignment_version":17,"controller":0,"controller_heartbeat":"h:9094","#,
            r#""brokers":[{"id":0,"#,
            r#""incarnation":"00000000000000ab","listeners":[{"name":"A","host":"h","port":9092,"protocol":"PLAINTEXT"}],"#,
            r#""health":"alive"},"#
        );
        assert!(text.starts_with(begin), "{text}");
        let partition =
            r#"{"topic":"a","topic_id":"AQEBAQEBAQEBAQEBAQEBAQ","partition":1,"leader":2,"epoch":3,"previous":0}"#;
        assert!(text.contains(partition), "{text}");
        assert!(text.contains(r#""consumerGroups":[{"slot":0,"leader":0,"epoch":1,"previous":null},"#), "{text}");
    }

    #[test]
    fn damage_is_found() {
        let mut small = assignment();
        small.partitions.truncate(1);
        assert_damage_is_found(&small.encode(), Assignment::decode);
    }

    #[test]
    fn contradictions_are_refused() {
        type Spoil = fn(&mut Assignment);
        let spoiled: [(&str, Spoil); 12] = [
            ("count from 1", |a| a.controller_epoch.0 = 0),
            ("in order of id", |a| a.brokers.reverse()),
            ("controller is not registered", |a| a.controller.0 = 9),
            ("coordinator slots", |a| a.consumer_groups.truncate(49)),
            ("leader is not registered", |a| a.partitions[2].leader.0 = 9),
            ("leader is not registered", |a| a.consumer_groups[49].leader.0 = 9),
            ("epochs count from 1", |a| a.partitions[0].epoch.0 = 0),
            ("in order of topic", |a| a.partitions.reverse()),
            ("from 0", |a| a.partitions.rotate_left(1)),
            ("one to one", |a| a.partitions[1].topic_id = TopicId([9; 16])),
            ("one to one", |a| a.partitions[2].topic_id = TopicId([1; 16])),
            ("such an id", |a| a.partitions[2].topic_id = TopicId::COORDINATORS),
        ];
        for (reason, spoil) in spoiled {
            let mut assignment = assignment();
            spoil(&mut assignment);
            let error = Assignment::decode(&assignment.encode()).unwrap_err().to_string();
            assert!(error.contains(reason), "{reason}: {error}");
        }
    }
}
