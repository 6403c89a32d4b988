//! The cluster as this broker sees it: one immutable snapshot, the only answer to "who leads what".
//!
//! Made by the control thread, published to all shards over a watch channel. Metadata, ownership checks, coordinator
//! look-ups and health all read it; nothing else holds leadership.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use crate::config::topic::TopicConfig;
use crate::topic_name;
use crate::types::{BrokerId, LeaderEpoch, PartitionIndex, SlotId, TopicId};

/// Crosses shards, immutable. Cheap to derive from its predecessor: topics are shared.
#[derive(Clone, Debug)]
pub struct ClusterView {
    /// 22 characters of base64url, minted once per volume.
    pub cluster_id: Arc<str>,
    /// The broker that this process is.
    pub self_id: BrokerId,
    pub controller: Option<BrokerId>,
    /// Registered brokers in order of id, fenced ones included.
    pub brokers: Vec<BrokerView>,
    pub topics: BTreeMap<Arc<str>, Arc<TopicView>>,
    pub topic_names: HashMap<TopicId, Arc<str>>,
    /// Indexed by slot.
    pub slots: Vec<PartitionView>,
}

/// One registered broker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BrokerView {
    pub id: BrokerId,
    pub rack: Option<Arc<str>>,
    pub fenced: bool,
    pub listeners: Vec<ListenerAddress>,
}

/// What clients of one listener are told to connect to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListenerAddress {
    /// The listener's name, upper case; the same name on every broker.
    pub name: Arc<str>,
    /// `None`: the address that the client itself connected to.
    pub advertised: Option<(Arc<str>, u16)>,
}

/// One topic.
#[derive(Clone, Debug)]
pub struct TopicView {
    pub name: Arc<str>,
    pub id: TopicId,
    pub config: Arc<TopicConfig>,
    /// Indexed by partition.
    pub partitions: Vec<PartitionView>,
}

/// Who leads one partition or coordinator slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PartitionView {
    /// `None`: nobody does, clients are told LEADER_NOT_AVAILABLE.
    pub leader: Option<BrokerId>,
    /// The last established epoch; 0 before the first.
    pub epoch: LeaderEpoch,
}

impl PartitionView {
    pub const LEADERLESS: Self = Self { leader: None, epoch: LeaderEpoch(0) };
}

/// What a look-up by name or id finds in the view.
#[derive(Clone, Debug)]
pub struct PartitionLookup {
    pub topic: Arc<TopicView>,
    pub index: PartitionIndex,
    pub partition: PartitionView,
}

impl ClusterView {
    /// A cluster of one broker without topics.
    #[must_use]
    pub fn empty(cluster_id: Arc<str>, broker: BrokerView) -> Self {
        Self {
            cluster_id,
            self_id: broker.id,
            controller: Some(broker.id),
            brokers: vec![broker],
            topics: BTreeMap::new(),
            topic_names: HashMap::new(),
            slots: vec![PartitionView::LEADERLESS; usize::from(crate::types::COORDINATOR_SLOTS)],
        }
    }

    #[must_use]
    pub fn topic(&self, name: &str) -> Option<&Arc<TopicView>> {
        self.topics.get(name)
    }

    #[must_use]
    pub fn topic_by_id(&self, id: TopicId) -> Option<&Arc<TopicView>> {
        self.topics.get(self.topic_names.get(&id)?)
    }

    /// Who leads the slot of a group or transactional id.
    #[must_use]
    pub fn slot(&self, slot: SlotId) -> PartitionView {
        self.slots[usize::from(slot.0)]
    }

    /// Adds a topic, or replaces it with a newer description of the same name.
    pub fn insert_topic(&mut self, topic: TopicView) {
        if let Some(former) = self.topics.get(&topic.name) {
            self.topic_names.remove(&former.id);
        }
        self.topic_names.insert(topic.id, Arc::clone(&topic.name));
        self.topics.insert(Arc::clone(&topic.name), Arc::new(topic));
    }

    pub fn remove_topic(&mut self, name: &str) {
        if let Some(former) = self.topics.remove(name) {
            self.topic_names.remove(&former.id);
        }
    }

    #[must_use]
    pub fn broker(&self, id: BrokerId) -> Option<&BrokerView> {
        self.brokers.iter().find(|broker| broker.id == id)
    }
}

impl TopicView {
    /// Whether its name is that of one of Kafka's own topics, see [`topic_name::is_internal`].
    #[must_use]
    pub fn is_internal(&self) -> bool {
        topic_name::is_internal(&self.name)
    }

    #[must_use]
    pub fn partition(&self, index: PartitionIndex) -> Option<PartitionView> {
        self.partitions.get(usize::try_from(index.0).ok()?).copied()
    }
}
