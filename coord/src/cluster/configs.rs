//! The configuration of each topic that the assignment names.
//!
//! It comes from the desired topics. While those are not known, or are behind the assignment, from the volume, where the
//! controller keeps a copy. Without either a topic is not led: a retention that nobody knows can't be followed.

use std::collections::{BTreeSet, HashMap};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use kaas_proto::config::broker::BrokerConfig;
use kaas_proto::config::topic::TopicConfig;
use kaas_proto::format::assignment::Assignment;
use kaas_proto::format::topic_config::{LIMIT_BYTES, StoredTopicConfig};
use kaas_proto::layout::TOPIC_CONFIG_FILE;
use kaas_proto::types::TopicId;

use super::ports::{DesiredTopic, DesiredTopics};
use crate::topics::StoredTopic;
use crate::topics::decide::loaded_config;

/// Control thread.
#[derive(Debug)]
pub(crate) struct Configs {
    broker: Arc<BrokerConfig>,
    known: HashMap<TopicId, Arc<TopicConfig>>,
}

impl Configs {
    pub(crate) fn new(broker: Arc<BrokerConfig>) -> Self {
        Self { broker, known: HashMap::new() }
    }

    pub(crate) fn known(&self) -> &HashMap<TopicId, Arc<TopicConfig>> {
        &self.known
    }

    pub(crate) fn get(&self, topic: TopicId) -> Option<&Arc<TopicConfig>> {
        self.known.get(&topic)
    }

    /// Takes over what is desired. Returns the topics whose configuration was known, and is another one now.
    pub(crate) fn desire(&mut self, desired: &DesiredTopics) -> Vec<TopicId> {
        let mut changed = Vec::new();
        for topic in desired.values() {
            let known = self.known.get(&topic.id);
            if known.is_some_and(|known| known.own == topic.configs) {
                continue;
            }
            let was_known = known.is_some();
            let config = Arc::new(loaded_config(&self.broker, &stored(topic)));
            if was_known && self.known.get(&topic.id).is_some_and(|known| **known != *config) {
                changed.push(topic.id);
            }
            self.known.insert(topic.id, config);
        }
        changed
    }

    /// What a file on the volume says, for a topic of which nothing better is known.
    pub(crate) fn found(&mut self, topic: StoredTopic) {
        let broker = &self.broker;
        self.known.entry(topic.id).or_insert_with(|| Arc::new(loaded_config(broker, &topic)));
    }

    /// Topics of the assignment without a configuration, each once.
    pub(crate) fn missing(&self, assignment: &Assignment) -> Vec<(Arc<str>, TopicId)> {
        let first =
            |rows: &[kaas_proto::format::assignment::AssignedPartition]| (Arc::clone(&rows[0].topic), rows[0].topic_id);
        let topics = assignment.partitions.chunk_by(|a, b| a.topic_id == b.topic_id).map(first);
        topics.filter(|(_, id)| !self.known.contains_key(id)).collect()
    }

    /// Forgets topics that are neither assigned nor desired.
    pub(crate) fn keep(&mut self, assignment: Option<&Assignment>, desired: Option<&DesiredTopics>) {
        let assigned = assignment.iter().flat_map(|assignment| &assignment.partitions).map(|row| row.topic_id);
        let desired = desired.iter().flat_map(|desired| desired.values()).map(|topic| topic.id);
        let kept: BTreeSet<TopicId> = assigned.chain(desired).collect();
        self.known.retain(|id, _| kept.contains(id));
    }
}

pub(crate) fn stored(topic: &DesiredTopic) -> StoredTopic {
    StoredTopic {
        name: Arc::clone(&topic.name),
        id: topic.id,
        partitions: topic.partitions,
        own: topic.configs.clone(),
    }
}

/// Reads the configurations of topics from the volume. Those that can't be read are left out, and said in one line: it may be
/// the volume. Blocks.
pub(crate) fn read_configs(root: &Path, topics: Vec<(Arc<str>, TopicId)>) -> Vec<StoredTopic> {
    let mut unread = Vec::new();
    let read = |(name, id): (Arc<str>, TopicId)| {
        let path: PathBuf = root.join(&*name).join(TOPIC_CONFIG_FILE);
        let bytes = std::fs::read(&path).map_err(|error| error.to_string());
        let decoded = bytes.and_then(|bytes| match bytes.len() {
            0..=LIMIT_BYTES => StoredTopicConfig::decode(&bytes).map_err(|error| error.to_string()),
            _ => Err("it is too long".to_owned()),
        });
        match decoded {
            Ok(config) if config.topic_id == id => Some(StoredTopic { name, id, partitions: 0, own: config.configs }),
            Ok(_) => None,
            Err(error) => {
                unread.push(format!("{}: {error}", path.display()));
                None
            }
        }
    };
    let found = topics.into_iter().filter_map(read).collect();
    if let Some(first) = unread.first() {
        tracing::warn!(topics = unread.len(), "what can't be read is not led: {first}");
    }
    found
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]
    use super::*;

    fn desired(retention: &str) -> DesiredTopics {
        let configs = [("retention.ms".to_owned(), retention.to_owned())].into();
        let topic = DesiredTopic { name: "t".into(), id: TopicId([1; 16]), partitions: 1, configs };
        [(Arc::clone(&topic.name), topic)].into()
    }

    #[test]
    fn what_is_desired_counts_and_the_volume_stands_in() {
        let mut configs = Configs::new(Arc::new(BrokerConfig::default()));
        let id = TopicId([1; 16]);
        let own = [("retention.ms".to_owned(), "5".to_owned())].into();
        configs.found(StoredTopic { name: "t".into(), id, partitions: 1, own });
        assert_eq!(configs.get(id).unwrap().own["retention.ms"], "5");
        assert_eq!(configs.desire(&desired("5")), [], "the same");
        assert_eq!(configs.desire(&desired("7")), [id]);
        assert_eq!(configs.desire(&desired("nonsense")), [id], "what is not valid is left out");
        configs.keep(None, None);
        assert!(configs.get(id).is_none());
        assert_eq!(configs.desire(&desired("7")), [], "new, not changed");
    }

    #[test]
    fn configurations_on_the_volume_count_for_their_own_incarnation() {
        let root = tempfile::tempdir().unwrap();
        std::fs::create_dir(root.path().join("t")).unwrap();
        let topic_id = TopicId([1; 16]);
        let config = StoredTopicConfig { topic_id, configs: Default::default() };
        std::fs::write(root.path().join("t").join(TOPIC_CONFIG_FILE), config.encode()).unwrap();
        let read = |name: &str, id| read_configs(root.path(), vec![(name.into(), id)]).len();
        assert_eq!((read("t", topic_id), read("t", TopicId([2; 16])), read("u", topic_id)), (1, 0, 0));
    }
}
