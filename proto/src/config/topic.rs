//! Topic configurations: the table, and the values in force for one topic.

use std::collections::BTreeMap;

use super::broker::BrokerConfig;
use super::definition::list_items;
use super::{Accepts, ConfigDefinition, ConfigEntry, ConfigError, ConfigSource, ConfigSynonym, ConfigType, Effect};

/// A topic configuration and the broker configurations that give its default.
#[derive(Clone, Copy, Debug)]
pub struct TopicDefinition {
    pub definition: ConfigDefinition,
    /// The first one that is set counts.
    pub synonyms: &'static [BrokerSynonym],
}

/// A broker configuration that gives the default of a topic configuration.
#[derive(Clone, Copy, Debug)]
pub struct BrokerSynonym {
    pub name: &'static str,
    /// How many of the topic configuration's units one of this is: `log.retention.hours` counts 3,600,000 ms.
    pub factor: i64,
    /// Its own default, where the topic configuration has several synonyms or another unit.
    pub default: SynonymDefault,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SynonymDefault {
    /// That of the topic configuration.
    OfTopic,
    /// Unset: one with a coarser unit has the default.
    Unset,
    Value(&'static str),
}

const fn same(name: &'static str) -> BrokerSynonym {
    BrokerSynonym { name, factor: 1, default: SynonymDefault::OfTopic }
}
const fn finer(name: &'static str, factor: i64) -> BrokerSynonym {
    BrokerSynonym { name, factor, default: SynonymDefault::Unset }
}
const fn hours(name: &'static str, default: &'static str) -> BrokerSynonym {
    BrokerSynonym { name, factor: 3_600_000, default: SynonymDefault::Value(default) }
}

const fn row(
    name: &'static str,
    kind: ConfigType,
    default: &'static str,
    accepts: Accepts,
    synonyms: &'static [BrokerSynonym],
    effect: Effect,
    documentation: &'static str,
) -> TopicDefinition {
    let definition =
        ConfigDefinition { name, kind, default: Some(default), kafka_default: None, accepts, effect, documentation };
    TopicDefinition { definition, synonyms }
}

const fn kafkas_default(mut row: TopicDefinition, value: &'static str) -> TopicDefinition {
    row.definition.kafka_default = Some(value);
    row
}

const NO_REPLICAS: Effect = Effect::Shown("kaas has one copy of a partition, on the volume");
const NO_RECOMPRESSION: Effect = Effect::Shown("batches are stored as the producer compressed them");
const NO_TIERED_STORAGE: Effect = Effect::OnlyDefault("kaas has no tiered storage, the volume holds everything");
const ALWAYS_SYNCED: Effect = Effect::Shown("every write is on stable storage before it is acknowledged");
const MAX_LONG: &str = "9223372036854775807";

/// Every topic configuration, in order of name. Names, types, defaults and bounds are those of Kafka 4.3.
#[rustfmt::skip] // One row is one paragraph.
pub const TOPIC_CONFIGS: &[TopicDefinition] = {
    use Accepts::{Any, AtLeast, Between, ExactlyOrBetween, Fraction, OneOf, ThrottledReplicas};
    use ConfigType::{Boolean, Double, Int, List, Long, String};
    use Effect::{Acted, Shown};
    &[
        row("cleanup.policy", List, "delete", OneOf(&["compact", "delete"]), &[same("log.cleanup.policy")], Acted,
            "What happens to old records: 'delete' removes segments beyond retention.ms or retention.bytes, 'compact' \
             keeps the last record of each key. Empty: all are kept."),
        row("compression.gzip.level", Int, "-1", ExactlyOrBetween(-1, 1, 9), &[same("compression.gzip.level")],
            NO_RECOMPRESSION, "How hard gzip tries when compression.type is gzip."),
        row("compression.lz4.level", Int, "9", Between(1, 17), &[same("compression.lz4.level")], NO_RECOMPRESSION,
            "How hard lz4 tries when compression.type is lz4."),
        row("compression.type", String, "producer",
            OneOf(&["uncompressed", "zstd", "lz4", "snappy", "gzip", "producer"]), &[same("compression.type")],
            NO_RECOMPRESSION, "How batches are stored. kaas keeps them as the producer sent them, whatever this says."),
        row("compression.zstd.level", Int, "3", Between(-131_072, 22), &[same("compression.zstd.level")],
            NO_RECOMPRESSION, "How hard zstd tries when compression.type is zstd."),
        row("delete.retention.ms", Long, "86400000", AtLeast(0), &[same("log.cleaner.delete.retention.ms")],
            Acted, "How long tombstones, and the ends of transactions, stay in a compacted topic once they are compacted."),
        row("file.delete.delay.ms", Long, "60000", AtLeast(0), &[same("log.segment.delete.delay.ms")],
            Shown("segments are removed at once, readers that have them open finish"),
            "How long a segment stays on the volume after it was dropped from the log."),
        kafkas_default(row("flush.messages", Long, "1", AtLeast(1), &[same("log.flush.interval.messages")], Acted,
            "Acknowledge after this many records went to stable storage together. 1: every record is stable and \
             fenced before it is acknowledged. Above 1 gives durability away."), MAX_LONG),
        row("flush.ms", Long, MAX_LONG, AtLeast(0),
            &[finer("log.flush.interval.ms", 1), same("log.flush.scheduler.interval.ms")], ALWAYS_SYNCED,
            "How long a record may wait until it goes to stable storage."),
        row("follower.replication.throttled.replicas", List, "", ThrottledReplicas, &[], NO_REPLICAS,
            "Replicas whose following is throttled."),
        row("index.interval.bytes", Int, "4096", AtLeast(0), &[same("log.index.interval.bytes")], Acted,
            "How many bytes of log lie between two entries of the offset and time index."),
        row("leader.replication.throttled.replicas", List, "", ThrottledReplicas, &[], NO_REPLICAS,
            "Replicas whose leading is throttled."),
        row("local.retention.bytes", Long, "-2", AtLeast(-2), &[same("log.local.retention.bytes")],
            NO_TIERED_STORAGE, "Local bytes kept of a topic with tiered storage. -2: retention.bytes."),
        row("local.retention.ms", Long, "-2", AtLeast(-2), &[same("log.local.retention.ms")], NO_TIERED_STORAGE,
            "How long records of a topic with tiered storage are kept locally. -2: retention.ms."),
        row("max.compaction.lag.ms", Long, MAX_LONG, AtLeast(1), &[same("log.cleaner.max.compaction.lag.ms")],
            Acted, "How long a record may stay uncompacted."),
        row("max.message.bytes", Int, "1048588", AtLeast(0), &[same("message.max.bytes")], Acted,
            "Largest record batch that is accepted, as compressed by the producer."),
        row("message.timestamp.after.max.ms", Long, "3600000", AtLeast(0),
            &[same("log.message.timestamp.after.max.ms")], Acted,
            "How far a record's timestamp may lie in the future, with message.timestamp.type=CreateTime."),
        row("message.timestamp.before.max.ms", Long, MAX_LONG, AtLeast(0),
            &[same("log.message.timestamp.before.max.ms")], Acted,
            "How far a record's timestamp may lie in the past, with message.timestamp.type=CreateTime."),
        row("message.timestamp.type", String, "CreateTime", OneOf(&["CreateTime", "LogAppendTime"]),
            &[same("log.message.timestamp.type")], Acted,
            "Whether a record carries the time of its producer or the time of its append."),
        row("min.cleanable.dirty.ratio", Double, "0.5", Fraction, &[same("log.cleaner.min.cleanable.ratio")],
            Acted, "Share of the log that must be uncompacted before it is compacted."),
        row("min.compaction.lag.ms", Long, "0", AtLeast(0), &[same("log.cleaner.min.compaction.lag.ms")],
            Acted, "How long a record stays uncompacted at least."),
        row("min.insync.replicas", Int, "1", AtLeast(1), &[same("min.insync.replicas")], NO_REPLICAS,
            "How many replicas acks=all needs. kaas acknowledges from stable storage, whatever this says."),
        row("preallocate", Boolean, "false", Any, &[same("log.preallocate")],
            Shown("segments grow as they are written"), "Whether a segment takes its full size when it is created."),
        row("remote.log.copy.disable", Boolean, "false", Any, &[], NO_TIERED_STORAGE,
            "Whether tiered storage stops copying segments."),
        row("remote.log.delete.on.disable", Boolean, "false", Any, &[], NO_TIERED_STORAGE,
            "Whether remote segments are deleted when tiered storage is switched off."),
        row("remote.storage.enable", Boolean, "false", Any, &[], NO_TIERED_STORAGE, "Whether the topic has tiered storage."),
        row("retention.bytes", Long, "-1", Any, &[same("log.retention.bytes")], Acted,
            "Bytes kept of each partition; older segments are deleted. Negative: no limit."),
        row("retention.ms", Long, "604800000", AtLeast(-1),
            &[finer("log.retention.ms", 1), finer("log.retention.minutes", 60_000), hours("log.retention.hours", "168")], Acted,
            "How long records are kept; older segments are deleted. -1: for ever."),
        row("segment.bytes", Int, "1073741824", AtLeast(1_048_576), &[same("log.segment.bytes")], Acted,
            "Size at which a new segment begins. Retention deletes whole segments."),
        row("segment.index.bytes", Int, "10485760", AtLeast(4), &[same("log.index.size.max.bytes")],
            Shown("an index is as large as its segment needs"), "Largest size of an index file."),
        row("segment.jitter.ms", Long, "0", AtLeast(0), &[finer("log.roll.jitter.ms", 1), hours("log.roll.jitter.hours", "0")], Acted,
            "Random time taken off segment.ms."),
        row("segment.ms", Long, "604800000", AtLeast(1), &[finer("log.roll.ms", 1), hours("log.roll.hours", "168")], Acted,
            "Age at which a new segment begins even if it is not full."),
        row("unclean.leader.election.enable", Boolean, "false", Any, &[same("unclean.leader.election.enable")],
            NO_REPLICAS, "Whether a replica that is behind may lead. A leader of kaas is never behind."),
    ]
};

/// The row of this name.
#[must_use]
pub fn definition(name: &str) -> Option<&'static TopicDefinition> {
    TOPIC_CONFIGS.iter().find(|row| row.definition.name == name)
}

/// `message.timestamp.type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TimestampType {
    CreateTime,
    LogAppendTime,
}

/// The values in force for one topic: its own, else the broker's, else the default. Immutable; crosses shards in an `Arc`.
#[derive(Clone, Debug, PartialEq)]
pub struct TopicConfig {
    /// What was set on the topic itself, in normal form.
    pub own: BTreeMap<String, String>,
    /// `cleanup.policy` has `delete`.
    pub delete: bool,
    /// `cleanup.policy` has `compact`: records must have keys.
    pub compact: bool,
    pub max_message_bytes: usize,
    pub timestamp_type: TimestampType,
    pub timestamp_before_max_ms: i64,
    pub timestamp_after_max_ms: i64,
    /// `None`: for ever.
    pub retention_ms: Option<i64>,
    /// `None`: no limit.
    pub retention_bytes: Option<u64>,
    pub segment_bytes: u64,
    pub segment_ms: i64,
    /// Up to so much earlier than `segment_ms`, so that partitions do not all roll at once.
    pub segment_jitter_ms: i64,
    pub index_interval_bytes: u64,
    /// The durability dial; 1 is honest.
    pub flush_messages: u64,
    pub min_compaction_lag_ms: i64,
    pub max_compaction_lag_ms: i64,
    pub delete_retention_ms: i64,
    pub min_cleanable_dirty_ratio: f64,
}

impl TopicConfig {
    /// The values in force where the topic itself has `own`, which may come from a client or from the volume.
    ///
    /// # Errors
    /// An unknown key, a value that is not accepted, or two that contradict each other.
    pub fn resolve(broker: &BrokerConfig, own: &BTreeMap<String, String>) -> Result<Self, ConfigError> {
        let own = own
            .iter()
            .map(|(key, value)| {
                let row = definition(key).ok_or_else(|| ConfigError::UnknownTopicKey { key: key.clone() })?;
                Ok((key.clone(), row.definition.check(value)?))
            })
            .collect::<Result<BTreeMap<_, _>, ConfigError>>()?;
        let values = Values { broker, own: &own };
        let policy = values.text("cleanup.policy");
        let has_policy = |wanted| list_items(&policy).any(|item| item == wanted);
        let config = Self {
            delete: has_policy("delete"),
            compact: has_policy("compact"),
            max_message_bytes: usize::try_from(values.number("max.message.bytes")).expect("never negative"),
            timestamp_type: match values.text("message.timestamp.type").as_str() {
                "LogAppendTime" => TimestampType::LogAppendTime,
                _ => TimestampType::CreateTime,
            },
            timestamp_before_max_ms: values.number("message.timestamp.before.max.ms"),
            timestamp_after_max_ms: values.number("message.timestamp.after.max.ms"),
            retention_ms: Some(values.number("retention.ms")).filter(|&ms| ms >= 0),
            retention_bytes: u64::try_from(values.number("retention.bytes")).ok(),
            segment_bytes: values.unsigned("segment.bytes"),
            segment_ms: values.number("segment.ms"),
            segment_jitter_ms: values.number("segment.jitter.ms"),
            index_interval_bytes: values.unsigned("index.interval.bytes"),
            flush_messages: values.unsigned("flush.messages"),
            min_compaction_lag_ms: values.number("min.compaction.lag.ms"),
            max_compaction_lag_ms: values.number("max.compaction.lag.ms"),
            delete_retention_ms: values.number("delete.retention.ms"),
            min_cleanable_dirty_ratio: values.text("min.cleanable.dirty.ratio").parse().expect("checked by its row"),
            own,
        };
        if config.min_compaction_lag_ms > config.max_compaction_lag_ms {
            return Err(ConfigError::Conflict {
                lower_key: "min.compaction.lag.ms",
                lower: config.min_compaction_lag_ms,
                upper_key: "max.compaction.lag.ms",
                upper: config.max_compaction_lag_ms,
            });
        }
        Ok(config)
    }

    /// Every topic configuration as DescribeConfigs and CreateTopics show it, in order of name.
    #[must_use]
    pub fn entries(&self, broker: &BrokerConfig) -> Vec<ConfigEntry> {
        TOPIC_CONFIGS
            .iter()
            .map(|row| {
                let mut synonyms = broker.synonyms_of(row);
                if let Some(value) = self.own.get(row.definition.name) {
                    let source = ConfigSource::DynamicTopic;
                    synonyms.insert(0, ConfigSynonym { name: row.definition.name, value: Some(value.clone()), source });
                }
                let (value, source) = match synonyms.first() {
                    Some(first) if first.source == ConfigSource::DynamicTopic => (first.value.clone(), first.source),
                    _ => broker.topic_default(row),
                };
                ConfigEntry { definition: &row.definition, value, source, read_only: false, synonyms }
            })
            .collect()
    }
}

/// Looks a value up: the topic's own, else the broker's. All were checked before.
struct Values<'a> {
    broker: &'a BrokerConfig,
    own: &'a BTreeMap<String, String>,
}

impl Values<'_> {
    fn text(&self, name: &str) -> String {
        if let Some(value) = self.own.get(name) {
            return value.clone();
        }
        let row = definition(name).expect("the name stands in the table");
        self.broker.topic_default(row).0.expect("every row has a default")
    }

    fn number(&self, name: &str) -> i64 {
        self.text(name).parse().expect("checked by its row")
    }

    fn unsigned(&self, name: &str) -> u64 {
        u64::try_from(self.number(name)).expect("its row accepts no negative number")
    }
}

#[cfg(test)]
pub(super) mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]
    use std::collections::HashMap;

    use super::*;

    /// Type, default and accepted values of Kafka's own configurations of one scope.
    pub(in super::super) fn kafka_configs(scope: &str) -> HashMap<&'static str, (String, Option<String>, String)> {
        let text = include_str!("../../tests/golden/kafka-4.3-configs.txt");
        let rows = text.lines().map(|line| line.splitn(5, '|').collect::<Vec<_>>()).filter(|row| row[0] == scope);
        rows.map(|row| {
            let list = row[2] == "LIST";
            let default = if list { row[3].trim_matches(['[', ']']).replace(", ", ",") } else { row[3].to_owned() };
            (row[1], (row[2].to_owned(), Some(default).filter(|default| default != "null"), row[4].to_owned()))
        })
        .collect()
    }

    fn own(settings: &[(&str, &str)]) -> BTreeMap<String, String> {
        settings.iter().map(|&(key, value)| (key.to_owned(), value.to_owned())).collect()
    }

    fn resolve(settings: &[(&str, &str)]) -> Result<TopicConfig, ConfigError> {
        TopicConfig::resolve(&BrokerConfig::default(), &own(settings))
    }

    #[test]
    fn the_table_is_kafkas() {
        let kafka = kafka_configs("T");
        assert!(TOPIC_CONFIGS.is_sorted_by_key(|row| row.definition.name));
        assert_eq!(TOPIC_CONFIGS.len(), kafka.len());
        for TopicDefinition { definition, .. } in TOPIC_CONFIGS {
            let (kind, default, accepted) = &kafka[definition.name];
            assert_eq!(format!("{:?}", definition.kind).to_uppercase(), *kind, "{}", definition.name);
            assert_eq!(definition.kafka_default.or(definition.default), default.as_deref(), "{}", definition.name);
            let ours = match definition.accepts {
                Accepts::Any => "null".to_owned(),
                Accepts::AtLeast(least) => format!("[{least},...]"),
                Accepts::Between(least, most) => format!("[{least},...,{most}]"),
                Accepts::ExactlyOrBetween(exactly, least, most) => format!("[{least},...,{most}] or {exactly}"),
                Accepts::Fraction => "[0,...,1]".to_owned(),
                Accepts::OneOf(choices) => format!("[{}]", choices.join(", ")),
                Accepts::ThrottledReplicas => "[partitionId]:[brokerId],[partitionId]:[brokerId],...".to_owned(),
            };
            assert_eq!(ours, *accepted, "{}", definition.name);
        }
    }

    #[test]
    fn what_kafka_accepts_and_refuses() {
        // Each row was tried against LogConfig.validate of Kafka 4.3.1.
        for (key, value) in [
            ("cleanup.policy", ""),
            ("cleanup.policy", " compact , delete "),
            ("cleanup.policy", "compact,compact"),
            ("retention.ms", " 5 "),
            ("retention.ms", "+5"),
            ("preallocate", "TRUE"),
            ("retention.bytes", "-5"),
            ("leader.replication.throttled.replicas", "*"),
            ("leader.replication.throttled.replicas", "0:1,1:2"),
            ("min.compaction.lag.ms", "9223372036854775807"),
        ] {
            assert!(resolve(&[(key, value)]).is_ok(), "{key}={value}");
        }
        for (key, value) in [
            ("retention.ms", "abc"),
            ("retention.ms", "-2"),
            ("retention.ms", ""),
            ("retention.ms", "1_000"),
            ("retention.ms", "1e3"),
            ("cleanup.policy", "delete,foo"),
            ("cleanup.policy", "none"),
            ("segment.bytes", "10"),
            ("foo", "1"),
            ("compression.type", "none"),
            ("compression.gzip.level", "0"),
            ("preallocate", "yes"),
            ("min.cleanable.dirty.ratio", "2"),
            ("max.message.bytes", "99999999999"),
            ("message.timestamp.type", "logappendtime"),
            ("leader.replication.throttled.replicas", "x"),
            ("flush.messages", "0"),
        ] {
            assert!(resolve(&[(key, value)]).is_err(), "{key}={value}");
        }
    }

    #[test]
    fn refusals_name_key_value_and_what_is_accepted() {
        let refused = |settings: &[(&str, &str)]| resolve(settings).unwrap_err().to_string();
        assert_eq!(
            refused(&[("cleanup.policy", "delete,foo")]),
            "invalid value 'delete,foo' for cleanup.policy: accepted is a list separated by commas of compact, delete"
        );
        assert_eq!(
            refused(&[("compression.type", "none")]),
            "invalid value 'none' for compression.type: accepted is one of uncompressed, zstd, lz4, snappy, gzip, producer"
        );
        assert_eq!(
            refused(&[("remote.storage.enable", "true")]),
            "remote.storage.enable can only be false, not 'true': kaas has no tiered storage, the volume holds everything"
        );
        assert_eq!(refused(&[("foo", "1")]), "unknown topic configuration foo");
        assert_eq!(
            refused(&[("min.compaction.lag.ms", "10"), ("max.compaction.lag.ms", "5")]),
            "min.compaction.lag.ms (10) is above max.compaction.lag.ms (5): lower the one or raise the other"
        );
    }

    #[test]
    fn own_settings_go_before_the_brokers_and_those_before_defaults() {
        let broker = BrokerConfig::resolve([
            ("log.retention.hours", "2"),
            ("log.retention.minutes", "1"),
            ("log.segment.bytes", "2097152"),
            ("log.cleanup.policy", "compact, delete"),
            ("log.message.timestamp.type", "LogAppendTime"),
        ])
        .unwrap();
        let config = TopicConfig::resolve(&broker, &own(&[("segment.bytes", "1048576")])).unwrap();
        assert_eq!(config.retention_ms, Some(60_000), "the finer unit counts");
        assert_eq!(config.segment_bytes, 1_048_576);
        assert!(config.delete && config.compact);
        assert_eq!(config.timestamp_type, TimestampType::LogAppendTime);
        assert_eq!(config.max_message_bytes, 1_048_588);
        assert_eq!(config.flush_messages, 1, "durable by default");
        let forever = BrokerConfig::resolve([("log.retention.hours", "-1")]).unwrap();
        assert_eq!(TopicConfig::resolve(&forever, &own(&[])).unwrap().retention_ms, None);
    }

    #[test]
    fn entries_say_where_values_come_from() {
        let broker = BrokerConfig::resolve([("log.segment.bytes", "2097152"), ("log.retention.hours", "24")]).unwrap();
        let config = TopicConfig::resolve(&broker, &own(&[("segment.bytes", "1048576")])).unwrap();
        let entries = config.entries(&broker);
        let entry = |name: &str| entries.iter().find(|entry| entry.definition.name == name).unwrap();
        let synonyms = |name: &str| {
            let shown = |synonym: &ConfigSynonym| {
                format!("{:?}:{}={}", synonym.source, synonym.name, synonym.value.as_deref().unwrap_or("null"))
            };
            entry(name).synonyms.iter().map(shown).collect::<Vec<_>>().join(", ")
        };
        assert_eq!(entries.len(), TOPIC_CONFIGS.len());
        // As kafka-configs --describe --all prints them against Kafka 4.3.1.
        assert_eq!(
            synonyms("segment.bytes"),
            "DynamicTopic:segment.bytes=1048576, StaticBroker:log.segment.bytes=2097152, \
             Default:log.segment.bytes=1073741824"
        );
        assert_eq!(synonyms("cleanup.policy"), "Default:log.cleanup.policy=delete");
        assert_eq!(synonyms("remote.storage.enable"), "");
        assert_eq!(entry("remote.storage.enable").source, ConfigSource::Default);
        assert_eq!(entry("retention.ms").value.as_deref(), Some("86400000"));
        assert_eq!(entry("retention.ms").source, ConfigSource::StaticBroker);
        assert_eq!(entry("segment.ms").value.as_deref(), Some("604800000"));
    }
}
