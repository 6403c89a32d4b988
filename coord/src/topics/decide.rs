//! What a request of a client comes to: Kafka's rules for topics, without I/O.

use std::sync::Arc;

use kaas_proto::config::ConfigError;
use kaas_proto::config::broker::BrokerConfig;
use kaas_proto::config::topic::TopicConfig;
use kaas_proto::control::{ConfigChange, NewTopic, TopicName, TopicRefusal};
use kaas_proto::kafka::error_code::ErrorCode;
use kaas_proto::topic_name::{self, CLUSTER_METADATA};
use kaas_proto::types::TopicId;
use kaas_proto::view::{BrokerView, ClusterView, TopicView};

use super::{StoredTopic, names};

/// Partitions of one topic. Beyond this, metadata responses and takeovers take seconds.
pub const MAX_PARTITIONS_PER_TOPIC: i32 = 10_000;

/// Partitions that one broker leads, whatever its limit of open files.
pub const MAX_PARTITIONS_PER_BROKER: usize = 100_000;

/// What bounds the number of partitions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PartitionLimit {
    pub partitions: usize,
    /// The limit of open files does.
    pub is_of_open_files: bool,
}

impl PartitionLimit {
    /// From how many files the process may have open for what it leads: a partition keeps its fence open.
    #[must_use]
    pub fn of_open_files(open_files: u64) -> Self {
        match usize::try_from(open_files) {
            Ok(partitions) if partitions < MAX_PARTITIONS_PER_BROKER => Self { partitions, is_of_open_files: true },
            _ => Self { partitions: MAX_PARTITIONS_PER_BROKER, is_of_open_files: false },
        }
    }

    /// What the brokers that are there can lead together, also if one of all is missing: the others take its part over.
    #[must_use]
    pub fn of_cluster(self, brokers: &[BrokerView]) -> Self {
        let there = brokers.iter().filter(|broker| !broker.fenced).count();
        let brokers = there.min(brokers.len().saturating_sub(1)).max(1);
        Self { partitions: self.partitions.saturating_mul(brokers), ..self }
    }

    fn check(&self, view: &ClusterView, more: i32) -> Result<(), TopicRefusal> {
        let now: usize = view.topics.values().map(|topic| topic.partitions.len()).sum();
        if now.saturating_add(usize::try_from(more).unwrap_or(0)) <= self.partitions {
            return Ok(());
        }
        let cause = if self.is_of_open_files {
            "each keeps a file open; for more, raise the limit of open files (ulimit -n) or lower max.connections"
        } else {
            "more than that is not supported"
        };
        let limit = self.partitions;
        let message = format!("there are {now} partitions, {more} more would exceed the limit of {limit}: {cause}");
        Err(refusal(ErrorCode::PolicyViolation, message))
    }
}

pub(crate) fn refusal(code: ErrorCode, message: impl Into<String>) -> TopicRefusal {
    TopicRefusal { code, message: message.into() }
}

fn invalid_config(error: &ConfigError) -> TopicRefusal {
    refusal(ErrorCode::InvalidConfig, error.to_string())
}

/// CreateTopics and topics that are created by asking for them.
///
/// # Errors
/// Kafka's code, and words that say what to change.
pub fn creation(
    view: &ClusterView,
    broker: &BrokerConfig,
    limit: PartitionLimit,
    new: &NewTopic,
) -> Result<(StoredTopic, TopicConfig), TopicRefusal> {
    topic_name::check(&new.name).map_err(|error| refusal(ErrorCode::InvalidTopicException, error.to_string()))?;
    if &*new.name == CLUSTER_METADATA {
        let message = format!("Creation of internal topic {CLUSTER_METADATA} is prohibited.");
        return Err(refusal(ErrorCode::InvalidRequest, message));
    }
    if view.topic(&new.name).is_some() {
        return Err(refusal(ErrorCode::TopicAlreadyExists, format!("topic '{}' already exists", new.name)));
    }
    names::check_collision(&new.name, view.topics.keys().map(|name| &**name))
        .map_err(|collision| refusal(ErrorCode::InvalidTopicException, collision.to_string()))?;
    let partitions = if new.partitions == -1 { broker.num_partitions } else { new.partitions };
    check_count(partitions)?;
    let config = TopicConfig::resolve(broker, &new.configs).map_err(|error| invalid_config(&error))?;
    limit.check(view, partitions)?;
    let topic = StoredTopic { name: Arc::clone(&new.name), id: TopicId::random(), partitions, own: config.own.clone() };
    Ok((topic, config))
}

fn check_count(partitions: i32) -> Result<(), TopicRefusal> {
    if (1..=MAX_PARTITIONS_PER_TOPIC).contains(&partitions) {
        return Ok(());
    }
    let message = format!("a topic has 1 to {MAX_PARTITIONS_PER_TOPIC} partitions, not {partitions}");
    Err(refusal(ErrorCode::InvalidPartitions, message))
}

/// CreatePartitions.
///
/// # Errors
/// Kafka's code, and words that say what to change.
pub fn growth(
    view: &ClusterView,
    limit: PartitionLimit,
    name: &str,
    partitions: i32,
) -> Result<Arc<TopicView>, TopicRefusal> {
    let topic = existing(view, &TopicName::Name(name.into()))?;
    let now = i32::try_from(topic.partitions.len()).expect("bounded by MAX_PARTITIONS_PER_TOPIC");
    if partitions <= now {
        let message =
            format!("topic '{name}' has {now} partitions already; their number can only rise, not to {partitions}");
        return Err(refusal(ErrorCode::InvalidPartitions, message));
    }
    check_count(partitions)?;
    limit.check(view, partitions - now)?;
    Ok(topic)
}

/// DeleteTopics.
///
/// # Errors
/// Kafka's code, and words that say what to change.
pub fn deletion(view: &ClusterView, broker: &BrokerConfig, name: &TopicName) -> Result<Arc<TopicView>, TopicRefusal> {
    if !broker.delete_topics {
        return Err(refusal(ErrorCode::TopicDeletionDisabled, "the broker runs with delete.topic.enable=false"));
    }
    existing(view, name)
}

/// AlterConfigs and IncrementalAlterConfigs.
///
/// # Errors
/// Kafka's code, and words that say what to change.
pub fn alteration(
    view: &ClusterView,
    broker: &BrokerConfig,
    name: &str,
    change: &ConfigChange,
) -> Result<(Arc<TopicView>, TopicConfig), TopicRefusal> {
    let topic = existing(view, &TopicName::Name(name.into()))?;
    let config = topic.config.changed(broker, change).map_err(|error| invalid_config(&error))?;
    Ok((topic, config))
}

fn existing(view: &ClusterView, name: &TopicName) -> Result<Arc<TopicView>, TopicRefusal> {
    match name {
        TopicName::Name(name) => view
            .topic(name)
            .cloned()
            .ok_or_else(|| refusal(ErrorCode::UnknownTopicOrPartition, format!("there is no topic '{name}'"))),
        TopicName::Id(id) => view
            .topic_by_id(*id)
            .cloned()
            .ok_or_else(|| refusal(ErrorCode::UnknownTopicId, format!("there is no topic with the id {id}"))),
    }
}

/// The configuration of a topic that was found on the volume. What this version does not accept (a newer one wrote it,
/// or the broker's own settings changed) is left out, and said.
#[must_use]
pub fn loaded_config(broker: &BrokerConfig, topic: &StoredTopic) -> TopicConfig {
    let mut own = topic.own.clone();
    loop {
        let error = match TopicConfig::resolve(broker, &own) {
            Ok(config) => return config,
            Err(error) => error,
        };
        let offender = error.key().to_owned();
        tracing::warn!(topic = &*topic.name, "a stored setting is not in force: {error}");
        if own.remove(&offender).is_none() {
            // Two settings contradict each other, and one of them is the broker's: the topic's own all give way.
            own.clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use kaas_proto::types::BrokerId;

    use super::*;

    #[test]
    fn a_cluster_can_do_without_one_of_its_brokers() {
        let limit = |fenced: &[bool]| {
            let broker = |&fenced| BrokerView { id: BrokerId(1), rack: None, fenced, listeners: Vec::new() };
            let brokers: Vec<_> = fenced.iter().map(broker).collect();
            PartitionLimit::of_open_files(100).of_cluster(&brokers).partitions
        };
        assert_eq!([limit(&[]), limit(&[false]), limit(&[false; 2]), limit(&[false; 3])], [100, 100, 100, 200]);
        assert_eq!(limit(&[false, true, false]), 200, "the one that is missing is missing already");
        assert_eq!(limit(&[false, true, true]), 100);
    }
}
