//! The custom resource KafkaTopic: what a user writes, and what the controller answers in its status.
//!
//! A topic's id is the uid of its object: every broker knows it as soon as it sees the object, nobody has to mint or to
//! stamp it first, and an object that was deleted and created anew is another incarnation by itself. Only who brings a topic
//! along that the volume holds already (from a standalone broker, from a backup) names its id, and so adopts it.

#![allow(clippy::duplicated_attributes, reason = "two columns may have the same type")]
#![allow(unreachable_pub, reason = "KubeSchema repeats the types inside of functions")]

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kaas_proto::types::TopicId;
use kube::{CustomResource, KubeSchema};
use serde::{Deserialize, Serialize};

/// A topic that there is to be. Deleting the object deletes the topic with all its records.
#[derive(CustomResource, Clone, Debug, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[kube(
    group = "kaas.io",
    version = "v1alpha1",
    kind = "KafkaTopic",
    plural = "kafkatopics",
    shortname = "kt",
    category = "kaas",
    namespaced,
    derive = "PartialEq",
    doc = "A topic of the kaas brokers in the same namespace. Deleting it deletes the topic with all its records.",
    status = "KafkaTopicStatus",
    printcolumn(name = "Partitions", type_ = "integer", json_path = ".spec.partitions"),
    printcolumn(name = "Accepted", type_ = "string", json_path = ".status.conditions[?(@.type==\"Accepted\")].status"),
    printcolumn(name = "Topic", type_ = "string", json_path = ".spec.topicName", priority = "1"),
    printcolumn(name = "Topic id", type_ = "string", json_path = ".status.topicId", priority = "1"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = ("has(self.topicName) == has(oldSelf.topicName) && (!has(self.topicName) || self.topicName == oldSelf.topicName)",
        "a topic can not be renamed"),
    validation = ("has(self.topicId) == has(oldSelf.topicId) && (!has(self.topicId) || self.topicId == oldSelf.topicId)",
        "a topic can not become another one")
)]
pub struct KafkaTopicSpec {
    /// How many partitions the topic has. The number can only rise.
    #[schemars(range(min = 1, max = 10000))]
    #[x_kube(validation = ("self >= oldSelf", "the number of partitions can only rise"))]
    pub partitions: i32,
    /// The topic's own settings, by Kafka's names and as Kafka writes them: texts, also where they are numbers.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("maxProperties" = 100))]
    pub config: BTreeMap<String, String>,
    /// The topic's name, if it is no name that a Kubernetes object can have (capitals, underscores); otherwise the object's
    /// own name is the topic's. It can not be changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 249), regex(pattern = r"^[a-zA-Z0-9._-]+$"))]
    pub topic_name: Option<String>,
    /// Only for a topic that the volume holds already, from a standalone broker or a backup: its id, as
    /// `kafka-topics --describe` shows it. It is adopted with its records. It can not be changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 22, max = 22), regex(pattern = r"^[a-zA-Z0-9_-]+$"))]
    pub topic_id: Option<String>,
}

/// What the controller made of it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct KafkaTopicStatus {
    /// The id that clients and the volume know this incarnation of the topic by.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub topic_id: Option<String>,
    /// The generation of the object that this status is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// `Accepted`: the brokers serve the topic as it stands here, or why they do not.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
}

impl KafkaTopic {
    /// The topic's name: the object's own unless it says otherwise.
    #[must_use]
    pub fn topic_name(&self) -> &str {
        match &self.spec.topic_name {
            Some(name) => name,
            None => self.metadata.name.as_deref().unwrap_or_default(),
        }
    }

    /// The incarnation. `None` for an object that no API server has seen, or that names an id that is none.
    #[must_use]
    pub fn topic_id(&self) -> Option<TopicId> {
        if let Some(id) = &self.spec.topic_id {
            return id.parse().ok().filter(|&id| id != TopicId::ZERO && id != TopicId::COORDINATORS);
        }
        topic_id_of_uid(self.metadata.uid.as_deref()?)
    }

    /// Its deletion was asked for.
    #[must_use]
    pub fn is_leaving(&self) -> bool {
        self.metadata.deletion_timestamp.is_some()
    }
}

/// The topic id that stands for an object's uid. Two uids never give one id.
///
/// Command lines take an id that begins with `-` for an option. For such a uid the id is another one, out of a space
/// that no uid lies in: uids are random UUIDs, of version 4.
#[must_use]
pub fn topic_id_of_uid(uid: &str) -> Option<TopicId> {
    let uuid = uuid::Uuid::try_parse(uid).ok()?;
    let mut id = TopicId(*uuid.as_bytes());
    if id.to_string().starts_with('-') {
        id.0[0] ^= 0x80;
        id.0[6] ^= 0x80;
    }
    (id != TopicId::ZERO && id != TopicId::COORDINATORS).then_some(id)
}

/// Kubernetes bounds the names of objects.
const LONGEST_OBJECT_NAME: usize = 253;

/// The name of the object that stands for a topic, and `spec.topicName` if they differ.
///
/// The name of a topic that no object can have is made one that can, and told apart from others by a hash.
#[must_use]
pub fn object_name(topic: &str) -> (String, Option<Arc<str>>) {
    if is_object_name(topic) {
        return (topic.to_owned(), None);
    }
    let hash = topic
        .bytes()
        .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3));
    let plain: String = topic
        .chars()
        .map(|c| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '-' })
        .take(LONGEST_OBJECT_NAME - 17)
        .collect();
    let plain = plain.trim_matches('-');
    let separator = if plain.is_empty() { "" } else { "-" };
    (format!("{plain}{separator}{hash:016x}"), Some(topic.into()))
}

/// RFC 1123: labels of lower-case letters, digits and hyphens, joined by dots.
fn is_object_name(name: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let label = |label: &str| {
        label.bytes().all(|byte| plain(byte) || byte == b'-')
            && label.bytes().next().is_some_and(plain)
            && label.bytes().next_back().is_some_and(plain)
    };
    name.len() <= LONGEST_OBJECT_NAME && name.split('.').all(label)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]
    use kube::CustomResourceExt;
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_manifest_is_generated_from_this_type() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../deploy/crd.yaml");
        let generated = serde_json::to_value(KafkaTopic::crd()).unwrap();
        let text = crd_manifest();
        if std::env::var_os("UPDATE").is_some() {
            std::fs::write(path, &text).unwrap();
        }
        let committed = std::fs::read_to_string(path).unwrap();
        let parsed: serde_json::Value = serde_json::from_str(&json_part(&committed)).unwrap();
        assert_eq!(parsed, generated, "run this test with UPDATE=1 to write deploy/crd.yaml anew");
        assert_eq!(committed, text, "run this test with UPDATE=1 to write deploy/crd.yaml anew");
    }

    /// JSON is YAML, and reads well enough when it is indented.
    fn crd_manifest() -> String {
        let json = serde_json::to_string_pretty(&KafkaTopic::crd()).unwrap();
        format!(
            "# Generated from coord/src/kubernetes/kafka_topic.rs, where a test compares it. JSON is YAML.\n{json}\n"
        )
    }

    fn json_part(manifest: &str) -> String {
        manifest.lines().filter(|line| !line.starts_with('#')).collect::<Vec<_>>().join("\n")
    }

    #[test]
    fn names_that_objects_can_have_stay() {
        for name in ["orders", "orders.v2", "a-b.c-9", "0"] {
            assert_eq!(object_name(name), (name.to_owned(), None), "{name}");
        }
        let (name, topic) = object_name("Orders_EU");
        assert!(name.starts_with("orders-eu-") && topic.as_deref() == Some("Orders_EU"), "{name}");
        assert_ne!(object_name("orders_EU").0, name);
        assert!(is_object_name(&object_name("___").0));
    }

    #[test]
    fn another_object_is_another_incarnation() {
        let id = topic_id_of_uid("3f2504e0-4f89-41d3-9a0c-0305e82c3301").unwrap();
        assert_eq!(id.to_string(), "PyUE4E-JQdOaDAMF6CwzAQ");
        assert_ne!(topic_id_of_uid("3f2504e0-4f89-41d3-9a0c-0305e82c3302"), Some(id));
        let option_like = topic_id_of_uid("f92504e0-4f89-41d3-9a0c-0305e82c3301").unwrap();
        assert!(!option_like.to_string().starts_with('-'));
        assert_eq!(topic_id_of_uid("nonsense"), None);
    }

    #[test]
    fn a_topic_that_exists_is_adopted_by_its_id() {
        let id = TopicId::random();
        let named = |id: &str| KafkaTopicSpec {
            partitions: 1,
            config: BTreeMap::new(),
            topic_name: None,
            topic_id: Some(id.to_owned()),
        };
        let mut object = KafkaTopic::new("orders", named(&id.to_string()));
        object.metadata.uid = Some("3f2504e0-4f89-41d3-9a0c-0305e82c3301".to_owned());
        assert_eq!(object.topic_id(), Some(id));
        for wrong in ["nonsense", "AAAAAAAAAAAAAAAAAAAAAA"] {
            object.spec = named(wrong);
            assert_eq!(object.topic_id(), None, "{wrong}");
        }
    }

    proptest! {
        #[test]
        fn every_topic_has_an_object(name in "[a-zA-Z0-9._-]{1,249}") {
            let (object, topic) = object_name(&name);
            prop_assert!(is_object_name(&object), "{}", object);
            prop_assert_eq!(topic.as_deref().unwrap_or(&object), name.as_str());
        }
    }
}
