//! What AlterConfigs and IncrementalAlterConfigs make of a topic's own settings.

use std::collections::BTreeMap;

use super::broker::BrokerConfig;
use super::definition::list_items;
use super::topic::{TopicConfig, definition};
use super::{ConfigError, ConfigType};
use crate::control::{ConfigChange, ConfigOperation};

impl TopicConfig {
    /// The configuration after `change`; this one stays as it is.
    ///
    /// # Errors
    /// As [`TopicConfig::resolve`], and for appending to what is no list.
    pub fn changed(&self, broker: &BrokerConfig, change: &ConfigChange) -> Result<Self, ConfigError> {
        match change {
            ConfigChange::Replace(settings) => Self::resolve(broker, settings),
            ConfigChange::Incremental(operations) => {
                let mut own = self.own.clone();
                for (key, operation) in operations {
                    apply(&mut own, broker, key, operation)?;
                }
                Self::resolve(broker, &own)
            }
        }
    }
}

fn apply(
    own: &mut BTreeMap<String, String>,
    broker: &BrokerConfig,
    key: &str,
    operation: &ConfigOperation,
) -> Result<(), ConfigError> {
    let row = definition(key).ok_or_else(|| ConfigError::UnknownTopicKey { key: key.to_owned() })?;
    // Appending starts from what is in force, as in Kafka, not from an empty list.
    let list = |own: &BTreeMap<String, String>| {
        if row.definition.kind != ConfigType::List {
            return Err(ConfigError::NotAList { key: key.to_owned() });
        }
        Ok(own.get(key).cloned().or_else(|| broker.topic_default(row).0).unwrap_or_default())
    };
    let value = match operation {
        ConfigOperation::Delete => {
            own.remove(key);
            return Ok(());
        }
        ConfigOperation::Set(value) => value.clone(),
        ConfigOperation::Append(items) => format!("{},{items}", list(own)?),
        ConfigOperation::Subtract(items) => {
            let gone: Vec<&str> = list_items(items).collect();
            list_items(&list(own)?).filter(|item| !gone.contains(item)).collect::<Vec<_>>().join(",")
        }
    };
    own.insert(key.to_owned(), row.definition.check(&value)?);
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]
    use super::*;

    fn topic(settings: &[(&str, &str)]) -> TopicConfig {
        let own = settings.iter().map(|&(key, value)| (key.to_owned(), value.to_owned())).collect();
        TopicConfig::resolve(&BrokerConfig::default(), &own).unwrap()
    }

    fn incremental(topic: &TopicConfig, operations: &[(&str, ConfigOperation)]) -> Result<TopicConfig, ConfigError> {
        let operations = operations.iter().map(|(key, operation)| ((*key).to_owned(), operation.clone())).collect();
        topic.changed(&BrokerConfig::default(), &ConfigChange::Incremental(operations))
    }

    #[test]
    fn replacing_drops_what_is_not_named() {
        let settings = BTreeMap::from([("retention.ms".to_owned(), "7".to_owned())]);
        let change = ConfigChange::Replace(settings.clone());
        let changed = topic(&[("segment.bytes", "2097152")]).changed(&BrokerConfig::default(), &change).unwrap();
        assert_eq!(changed.own, settings);
    }

    #[test]
    fn increments_keep_what_is_not_named() {
        let before = topic(&[("segment.bytes", "2097152"), ("retention.ms", "7")]);
        let delete = ("retention.ms", ConfigOperation::Delete);
        let set = ("max.message.bytes", ConfigOperation::Set("100".to_owned()));
        let after = incremental(&before, &[delete, set]).unwrap();
        assert_eq!(after, topic(&[("segment.bytes", "2097152"), ("max.message.bytes", "100")]));
    }

    #[test]
    fn lists_grow_and_shrink_from_what_is_in_force() {
        let append = |items: &str| ("cleanup.policy", ConfigOperation::Append(items.to_owned()));
        let subtract = |items: &str| ("cleanup.policy", ConfigOperation::Subtract(items.to_owned()));
        let policy = |config: &TopicConfig| config.own["cleanup.policy"].clone();
        let both = incremental(&topic(&[]), &[append("compact")]).unwrap();
        assert_eq!(policy(&both), "delete,compact", "the default counts as present");
        assert_eq!(policy(&incremental(&both, &[append("compact,delete")]).unwrap()), "delete,compact");
        assert_eq!(policy(&incremental(&both, &[subtract("delete, other")]).unwrap()), "compact");
        let number = incremental(&both, &[("retention.ms", ConfigOperation::Append("1".to_owned()))]);
        assert_eq!(number, Err(ConfigError::NotAList { key: "retention.ms".to_owned() }));
        assert!(incremental(&both, &[append("foo")]).is_err());
        let unknown = incremental(&both, &[("foo", ConfigOperation::Delete)]);
        assert_eq!(unknown, Err(ConfigError::UnknownTopicKey { key: "foo".to_owned() }));
    }
}
