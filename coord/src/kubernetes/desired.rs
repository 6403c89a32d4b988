//! Which topics there are to be, out of the KafkaTopic objects: decided without I/O, the same on every broker.

use std::collections::BTreeMap;
use std::sync::Arc;

use kaas_proto::config::broker::BrokerConfig;
use kaas_proto::config::topic::TopicConfig;
use kaas_proto::topic_name;
use kaas_proto::types::TopicId;

use super::kafka_topic::KafkaTopic;
use crate::cluster::ports::{DesiredTopic, DesiredTopics};
use crate::topics::decide::MAX_PARTITIONS_PER_TOPIC;

/// What becomes of one object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    Accepted,
    /// The topic is served, without the settings that are no settings.
    SettingsIgnored(String),
    InvalidName(String),
    InvalidPartitions(String),
    InvalidTopicId(String),
    /// An older object has the name.
    NameTaken(String),
    /// An older object has the id.
    TopicIdTaken(String),
}

impl Verdict {
    #[must_use]
    pub fn is_served(&self) -> bool {
        matches!(self, Self::Accepted | Self::SettingsIgnored(_))
    }

    /// For the condition `Accepted`: status, reason and message.
    #[must_use]
    pub fn condition(&self) -> (&'static str, &'static str, &str) {
        match self {
            Self::Accepted => ("True", "Accepted", "the brokers serve this topic"),
            Self::SettingsIgnored(message) => ("False", "InvalidConfig", message),
            Self::InvalidName(message) => ("False", "InvalidName", message),
            Self::InvalidPartitions(message) => ("False", "InvalidPartitions", message),
            Self::InvalidTopicId(message) => ("False", "InvalidTopicId", message),
            Self::TopicIdTaken(message) => ("False", "TopicIdTaken", message),
            Self::NameTaken(message) => ("False", "NameTaken", message),
        }
    }
}

/// The objects of a namespace, by their own names.
pub type Objects = BTreeMap<String, Arc<KafkaTopic>>;

/// The topics that there are to be, and what becomes of each object, in order of the objects' names.
#[must_use]
pub fn decide(objects: &Objects, broker: &BrokerConfig) -> (DesiredTopics, Vec<(Arc<KafkaTopic>, Verdict)>) {
    let mut oldest_first: Vec<&Arc<KafkaTopic>> = objects.values().filter(|object| !object.is_leaving()).collect();
    // Times of creation are in seconds. Within one, an object that has the topic's own name comes first.
    oldest_first.sort_by_key(|object| {
        let created = object.metadata.creation_timestamp.as_ref().map(|time| time.0);
        (created, object.spec.topic_name.is_some(), object.metadata.uid.clone())
    });
    let mut topics = DesiredTopics::new();
    let mut owners = Owners::default();
    let mut verdicts = Vec::with_capacity(oldest_first.len());
    for object in oldest_first {
        let owner = object.metadata.name.as_deref().unwrap_or_default();
        let verdict = judge(object, &owners, broker);
        if verdict.is_served()
            && let Some(topic) = desired(object)
        {
            owners.of_names.insert(Arc::clone(&topic.name), owner);
            owners.of_ids.insert(topic.id, owner);
            topics.insert(Arc::clone(&topic.name), topic);
        }
        verdicts.push((Arc::clone(object), verdict));
    }
    verdicts.sort_by(|(a, _), (b, _)| a.metadata.name.cmp(&b.metadata.name));
    (topics, verdicts)
}

/// The objects that topics are taken from.
#[derive(Default)]
struct Owners<'a> {
    of_names: BTreeMap<Arc<str>, &'a str>,
    of_ids: BTreeMap<TopicId, &'a str>,
}

fn judge(object: &KafkaTopic, owners: &Owners<'_>, broker: &BrokerConfig) -> Verdict {
    let name = object.topic_name();
    if let Err(error) = topic_name::check(name) {
        return Verdict::InvalidName(error.to_string());
    }
    if let Some(owner) = owners.of_names.get(name) {
        return Verdict::NameTaken(format!("the older object '{owner}' stands for topic '{name}' already"));
    }
    let Some(id) = object.topic_id() else {
        return Verdict::InvalidTopicId("spec.topicId is no topic id".to_owned());
    };
    if let Some(owner) = owners.of_ids.get(&id) {
        return Verdict::TopicIdTaken(format!(
            "the older object '{owner}' stands for the topic with the id {id} already"
        ));
    }
    let partitions = object.spec.partitions;
    if !(1..=MAX_PARTITIONS_PER_TOPIC).contains(&partitions) {
        let message = format!("a topic has 1 to {MAX_PARTITIONS_PER_TOPIC} partitions, not {partitions}");
        return Verdict::InvalidPartitions(message);
    }
    match TopicConfig::resolve(broker, &object.spec.config) {
        Ok(_) => Verdict::Accepted,
        Err(error) => Verdict::SettingsIgnored(error.to_string()),
    }
}

/// The topic that an object stands for, whatever becomes of it.
#[must_use]
pub fn desired(object: &KafkaTopic) -> Option<DesiredTopic> {
    Some(DesiredTopic {
        name: object.topic_name().into(),
        id: object.topic_id()?,
        partitions: object.spec.partitions,
        configs: object.spec.config.clone(),
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
    use k8s_openapi::jiff::Timestamp;

    use super::super::kafka_topic::KafkaTopicSpec;
    use super::*;

    fn object(name: &str, topic: Option<&str>, second: i64, change: impl FnOnce(&mut KafkaTopic)) -> KafkaTopic {
        let topic_name = topic.map(str::to_owned);
        let spec = KafkaTopicSpec { partitions: 3, config: BTreeMap::new(), topic_name, topic_id: None };
        let mut object = KafkaTopic::new(name, spec);
        object.metadata.uid = Some(uuid::Uuid::new_v4().to_string());
        object.metadata.creation_timestamp = Some(Time(Timestamp::from_second(second).unwrap()));
        change(&mut object);
        object
    }

    fn verdicts(objects: Vec<KafkaTopic>) -> (Vec<String>, Vec<(&'static str, String)>) {
        let objects: Objects =
            objects.into_iter().map(|object| (object.metadata.name.clone().unwrap(), Arc::new(object))).collect();
        let (topics, verdicts) = decide(&objects, &BrokerConfig::default());
        let rows = verdicts.iter().map(|(_, verdict)| {
            let (_, reason, message) = verdict.condition();
            (reason, message.to_owned())
        });
        (topics.keys().map(|name| name.to_string()).collect(), rows.collect())
    }

    #[test]
    fn an_object_is_a_topic() {
        let plain = object("orders", None, 1, |object| {
            object.spec.config.insert("retention.ms".to_owned(), "5".to_owned());
        });
        let (id, objects) = (plain.topic_id().unwrap(), Objects::from([("orders".to_owned(), Arc::new(plain))]));
        let (topics, verdicts) = decide(&objects, &BrokerConfig::default());
        assert_eq!(verdicts[0].1, Verdict::Accepted);
        let expected = DesiredTopic {
            name: "orders".into(),
            id,
            partitions: 3,
            configs: [("retention.ms".to_owned(), "5".to_owned())].into(),
        };
        assert_eq!(topics["orders"], expected);
    }

    #[test]
    fn of_two_with_one_name_the_older_has_it() {
        let younger = object("a", Some("Orders"), 2, |_| ());
        let older = object("b", Some("Orders"), 1, |_| ());
        let (topics, rows) = verdicts(vec![younger, older]);
        assert_eq!(topics, ["Orders"]);
        assert_eq!((rows[0].0, rows[1].0), ("NameTaken", "Accepted"));
        assert!(rows[0].1.contains("'b'"), "{}", rows[0].1);
    }

    #[test]
    fn within_one_second_the_object_of_that_name_has_it() {
        for _ in 0..8 {
            let (_, rows) = verdicts(vec![object("a", Some("orders"), 1, |_| ()), object("orders", None, 1, |_| ())]);
            assert_eq!((rows[0].0, rows[1].0), ("NameTaken", "Accepted"));
        }
    }

    #[test]
    fn two_never_are_one_incarnation() {
        let id = TopicId::random().to_string();
        let adopting = |name, second| object(name, None, second, |object| object.spec.topic_id = Some(id.clone()));
        let (topics, rows) = verdicts(vec![adopting("a", 2), adopting("b", 1)]);
        assert_eq!(topics, ["b"]);
        assert_eq!((rows[0].0, rows[1].0), ("TopicIdTaken", "Accepted"));
    }

    #[test]
    fn what_is_wrong_is_said() {
        let wrong = |change: fn(&mut KafkaTopic)| verdicts(vec![object("orders", None, 1, change)]);
        let (topics, rows) = wrong(|object| object.spec.topic_name = Some("a b".to_owned()));
        assert_eq!((topics.len(), rows[0].0), (0, "InvalidName"));
        let (topics, rows) = wrong(|object| object.spec.topic_id = Some("x".to_owned()));
        assert_eq!((topics.len(), rows[0].0), (0, "InvalidTopicId"));
        let (topics, rows) = wrong(|object| object.spec.partitions = 0);
        assert_eq!((topics.len(), rows[0].0), (0, "InvalidPartitions"));
        let (topics, rows) = wrong(|object| {
            object.spec.config.insert("retention.mss".to_owned(), "5".to_owned());
        });
        assert_eq!((topics.len(), rows[0].0), (1, "InvalidConfig"), "its records are served all the same");
        assert!(rows[0].1.contains("retention.mss"), "{}", rows[0].1);
    }

    #[test]
    fn what_is_being_deleted_is_gone() {
        let leaving = object("orders", None, 1, |object| {
            object.metadata.deletion_timestamp = object.metadata.creation_timestamp.clone();
        });
        assert_eq!(verdicts(vec![leaving]), (vec![], vec![]));
    }
}
