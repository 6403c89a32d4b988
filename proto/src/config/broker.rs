//! Broker configurations: the table, and the values in force for this process.
//!
//! They are set once, at start (`--set name=value`), so clients see them as read-only.

use std::collections::BTreeMap;
use std::sync::LazyLock;
use std::time::Duration;

use super::topic::{BrokerSynonym, SynonymDefault, TOPIC_CONFIGS, TopicDefinition};
use super::{Accepts, ConfigDefinition, ConfigEntry, ConfigError, ConfigSource, ConfigSynonym, ConfigType, Effect};

/// A broker configuration.
#[derive(Clone, Copy, Debug)]
pub struct BrokerDefinition {
    pub definition: ConfigDefinition,
    pub origin: Origin,
}

/// What sets a broker configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// `--set`.
    Setting,
    /// `--set`; the default of this topic configuration.
    TopicDefault(&'static str),
    /// A command line option of its own.
    Option(&'static str),
}

const fn row(
    name: &'static str,
    kind: ConfigType,
    default: &'static str,
    accepts: Accepts,
    effect: Effect,
    documentation: &'static str,
) -> BrokerDefinition {
    let definition =
        ConfigDefinition { name, kind, default: Some(default), kafka_default: None, accepts, effect, documentation };
    BrokerDefinition { definition, origin: Origin::Setting }
}

const fn option(
    name: &'static str,
    kind: ConfigType,
    option: &'static str,
    documentation: &'static str,
) -> BrokerDefinition {
    let definition = ConfigDefinition {
        name,
        kind,
        default: None,
        kafka_default: None,
        accepts: Accepts::Any,
        effect: Effect::Acted,
        documentation,
    };
    BrokerDefinition { definition, origin: Origin::Option(option) }
}

/// The largest number of its type.
const NO_RATE_LIMIT: &str = "1.7976931348623157E308";

/// The rows that are no defaults of topic configurations.
#[rustfmt::skip] // One row is one paragraph.
const OWN_ROWS: &[BrokerDefinition] = {
    use Accepts::{Any, AtLeast};
    use ConfigType::{Boolean, Double, Int, List, Long};
    use Effect::{Acted, Shown};
    &[
        option("advertised.listeners", List, "--advertise", "What clients are told to connect to."),
        row("auto.create.topics.enable", Boolean, "true", Any, Acted,
            "Whether a client that asks for a topic which does not exist, and allows it, creates it."),
        option("broker.id", Int, "--broker-id", "The id of this broker."),
        row("connections.max.idle.ms", Long, "600000", AtLeast(-1), Acted,
            "A connection without requests is closed after this time. -1: never."),
        row("default.replication.factor", Int, "1", AtLeast(1),
            Shown("kaas has one copy of a partition, on the volume, and reports 1"),
            "Replicas of a topic that is created without saying how many."),
        row("delete.topic.enable", Boolean, "true", Any, Acted, "Whether clients may delete topics."),
        row("fetch.max.bytes", Int, "57671680", AtLeast(1024), Acted,
            "Most bytes of records in one fetch response, whatever the client asks for."),
        row("group.initial.rebalance.delay.ms", Int, "3000", AtLeast(0), Acted,
            "How long an empty group waits for more members before its first rebalance."),
        row("group.max.session.timeout.ms", Int, "1800000", AtLeast(0), Acted,
            "Longest session timeout that a member may ask for."),
        row("group.max.size", Int, "2147483647", AtLeast(1), Acted, "Most members of a group."),
        row("group.min.session.timeout.ms", Int, "6000", AtLeast(0), Acted,
            "Shortest session timeout that a member may ask for."),
        option("listeners", List, "--listen", "Where the broker listens for Kafka clients."),
        option("log.dirs", List, "--data-dir", "The data directory."),
        row("log.retention.check.interval.ms", Long, "300000", AtLeast(1), Acted,
            "How often partitions look for segments that are beyond retention."),
        row("log.cleaner.backoff.ms", Long, "15000", AtLeast(0), Acted,
            "How long a shard rests when nothing is to be compacted, and a partition after each pass."),
        row("log.cleaner.dedupe.buffer.size", Long, "134217728", AtLeast(0), Acted,
            "Memory for the last offsets of keys while compaction runs, over all shards. A pass takes no more than the \
             log needs, and ends where the memory does."),
        row("log.cleaner.enable", Boolean, "true", Any, Acted, "Whether topics with cleanup.policy=compact are compacted."),
        row("log.cleaner.io.buffer.load.factor", Double, "0.9", Any,
            Shown("three quarters of the map of offsets are filled"),
            "How full the map of offsets may be before a pass ends."),
        row("log.cleaner.io.buffer.size", Int, "524288", AtLeast(0),
            Shown("a shard reads and writes 1 MiB at a time"), "Memory for reads and writes of compaction."),
        row("log.cleaner.io.max.bytes.per.second", Double, NO_RATE_LIMIT, Any, Acted,
            "Most bytes that compaction reads and writes in a second on average, over all shards."),
        row("log.cleaner.threads", Int, "1", AtLeast(0),
            Shown("each shard compacts one of its partitions at a time"), "How many partitions are compacted at once."),
        row("max.connections", Int, "2147483647", AtLeast(0), Acted,
            "Most connections of clients, over all listeners. The limit of open files bounds them too: what they may not have is for partitions."),
        row("max.connections.per.ip", Int, "2147483647", AtLeast(0), Acted,
            "Most connections from one address."),
        row("max.incremental.fetch.session.cache.slots", Int, "1000", AtLeast(0), Acted,
            "Most fetch sessions that are remembered, over all shards."),
        row("max.request.partition.size.limit", Int, "2000", AtLeast(1), Acted,
            "Most partitions in one DescribeTopicPartitions response."),
        option("node.id", Int, "--broker-id", "The id of this broker."),
        row("num.partitions", Int, "1", AtLeast(1), Acted,
            "Partitions of a topic that is created without saying how many."),
        row("offset.metadata.max.bytes", Int, "4096", AtLeast(0), Acted,
            "Longest text that a client may store beside a committed offset."),
        row("offsets.retention.check.interval.ms", Long, "600000", AtLeast(1), Acted,
            "How often groups look for offsets that are beyond retention."),
        row("offsets.retention.minutes", Int, "10080", AtLeast(1), Acted,
            "How long the offsets of a group without members are kept."),
        row("producer.id.expiration.ms", Int, "86400000", AtLeast(1), Acted,
            "How long a partition remembers a producer that no longer writes."),
        row("queued.max.requests", Int, "500", AtLeast(1),
            Shown("the requests of each connection and the memory of all of them are bounded instead"),
            "Most requests that wait to be worked on."),
        row("socket.request.max.bytes", Int, "104857600", AtLeast(1), Acted,
            "Longest request; a connection that sends a longer one is closed."),
    ]
};

/// Every broker configuration, in order of name.
pub static BROKER_CONFIGS: LazyLock<Vec<BrokerDefinition>> = LazyLock::new(|| {
    let defaults =
        TOPIC_CONFIGS.iter().flat_map(|row| row.synonyms.iter().map(move |synonym| topic_default(row, *synonym)));
    let mut rows: Vec<BrokerDefinition> = OWN_ROWS.iter().copied().chain(defaults).collect();
    rows.sort_unstable_by_key(|row| row.definition.name);
    rows
});

fn topic_default(row: &TopicDefinition, synonym: BrokerSynonym) -> BrokerDefinition {
    let (default, kafka_default) = match synonym.default {
        SynonymDefault::OfTopic => (row.definition.default, row.definition.kafka_default),
        SynonymDefault::Unset => (None, None),
        SynonymDefault::Value(value) => (Some(value), None),
    };
    let kind = if synonym.factor == 1 { row.definition.kind } else { ConfigType::Int };
    let definition = ConfigDefinition { name: synonym.name, kind, default, kafka_default, ..row.definition };
    BrokerDefinition { definition, origin: Origin::TopicDefault(row.definition.name) }
}

/// Configurations of Kafka that kaas does not have, by the start of their names, and what to do instead.
const UNSUPPORTED: &[(&str, &str)] = &[
    ("authorizer.", "kaas has no access control yet"),
    ("broker.rack", "a standalone broker has no rack"),
    ("broker.session.", "kaas has no quorum"),
    ("broker.heartbeat.", "kaas has no quorum"),
    ("controller.", "kaas has no quorum, a standalone broker is its own controller"),
    ("delegation.token.", "kaas has no authentication yet"),
    ("inter.broker.", "kaas has no traffic between brokers yet"),
    ("listener.", "kaas has plain-text listeners only, named with --listen NAME=HOST:PORT"),
    ("log.cleaner.", "kaas compacts without it"),
    ("log.dir", "the data directory is set with --data-dir"),
    ("metadata.log.", "kaas has no metadata log"),
    ("num.io.threads", "the number of shards is set with --shards"),
    ("num.network.threads", "the number of shards is set with --shards"),
    ("num.replica.", "kaas has no replicas"),
    ("offsets.topic.", "kaas keeps offsets in its coordinator slots, not in a topic"),
    ("process.roles", "kaas has no quorum"),
    ("quota.", "kaas has no quotas yet"),
    ("remote.", "kaas has no tiered storage"),
    ("replica.", "kaas has no replicas"),
    ("sasl.", "kaas has no authentication yet"),
    ("security.", "kaas has plain-text listeners only"),
    ("ssl.", "kaas has no TLS yet"),
    ("transaction", "kaas has no transactions yet"),
    ("zookeeper.", "kaas needs no ZooKeeper"),
];

/// The row of this name.
#[must_use]
pub fn definition(name: &str) -> Option<&'static BrokerDefinition> {
    let rows: &'static [BrokerDefinition] = &BROKER_CONFIGS;
    rows.binary_search_by_key(&name, |row| row.definition.name).ok().map(|index| &rows[index])
}

/// The values in force for this broker. Immutable; crosses shards in an `Arc`.
#[derive(Clone, Debug, PartialEq)]
pub struct BrokerConfig {
    /// What was set, in normal form.
    settings: BTreeMap<&'static str, String>,
    pub auto_create_topics: bool,
    pub compaction_backoff: Duration,
    pub compaction_bytes_per_second: f64,
    pub compaction_enabled: bool,
    pub compaction_map_bytes: usize,
    /// `None`: never.
    pub connections_max_idle: Option<Duration>,
    pub delete_topics: bool,
    pub fetch_max_bytes: usize,
    pub group_initial_rebalance_delay: Duration,
    pub group_min_session_timeout: Duration,
    pub group_max_session_timeout: Duration,
    pub group_max_size: usize,
    pub retention_check_interval: Duration,
    pub max_connections: usize,
    pub max_connections_per_ip: usize,
    pub max_fetch_sessions: usize,
    pub max_described_partitions: usize,
    pub num_partitions: i32,
    pub offset_metadata_max_bytes: usize,
    pub offsets_retention: Duration,
    pub offsets_retention_check_interval: Duration,
    pub producer_id_expiration: Duration,
    pub socket_request_max_bytes: usize,
}

impl Default for BrokerConfig {
    fn default() -> Self {
        Self::resolve([]).expect("the defaults are accepted")
    }
}

impl BrokerConfig {
    /// The values in force after these settings; a later one of the same name counts.
    ///
    /// # Errors
    /// An unknown or unsupported key, a value that is not accepted, or two that contradict each other.
    pub fn resolve<'a>(settings: impl IntoIterator<Item = (&'a str, &'a str)>) -> Result<Self, ConfigError> {
        let mut checked = BTreeMap::new();
        for (key, value) in settings {
            let row = settable(key)?;
            checked.insert(row.definition.name, row.definition.check(value)?);
        }
        let values = Values(&checked);
        let config = Self {
            auto_create_topics: values.flag("auto.create.topics.enable"),
            compaction_backoff: values.millis("log.cleaner.backoff.ms"),
            compaction_bytes_per_second: values
                .text("log.cleaner.io.max.bytes.per.second")
                .parse()
                .expect("checked by its row"),
            compaction_enabled: values.flag("log.cleaner.enable"),
            compaction_map_bytes: values.count("log.cleaner.dedupe.buffer.size"),
            connections_max_idle: u64::try_from(values.number("connections.max.idle.ms"))
                .ok()
                .map(Duration::from_millis),
            delete_topics: values.flag("delete.topic.enable"),
            fetch_max_bytes: values.count("fetch.max.bytes"),
            group_initial_rebalance_delay: values.millis("group.initial.rebalance.delay.ms"),
            group_min_session_timeout: values.millis("group.min.session.timeout.ms"),
            group_max_session_timeout: values.millis("group.max.session.timeout.ms"),
            group_max_size: values.count("group.max.size"),
            retention_check_interval: values.millis("log.retention.check.interval.ms"),
            max_connections: values.count("max.connections"),
            max_connections_per_ip: values.count("max.connections.per.ip"),
            max_fetch_sessions: values.count("max.incremental.fetch.session.cache.slots"),
            max_described_partitions: values.count("max.request.partition.size.limit"),
            num_partitions: i32::try_from(values.number("num.partitions")).expect("an Int"),
            offset_metadata_max_bytes: values.count("offset.metadata.max.bytes"),
            offsets_retention: values.millis("offsets.retention.minutes") * 60_000,
            offsets_retention_check_interval: values.millis("offsets.retention.check.interval.ms"),
            producer_id_expiration: values.millis("producer.id.expiration.ms"),
            socket_request_max_bytes: values.count("socket.request.max.bytes"),
            settings: BTreeMap::new(),
        };
        values.ordered("group.min.session.timeout.ms", "group.max.session.timeout.ms")?;
        values.ordered("log.cleaner.min.compaction.lag.ms", "log.cleaner.max.compaction.lag.ms")?;
        Ok(Self { settings: checked, ..config })
    }

    /// Notes what command line options said, for DescribeConfigs.
    ///
    /// # Panics
    /// If the table has no such row.
    #[must_use]
    pub fn with_option(mut self, name: &str, value: String) -> Self {
        let row = definition(name).expect("the option has a row");
        self.settings.insert(row.definition.name, value);
        self
    }

    /// Every broker configuration as DescribeConfigs shows it, in order of name.
    #[must_use]
    pub fn entries(&self) -> Vec<ConfigEntry> {
        BROKER_CONFIGS
            .iter()
            .map(|row| {
                let synonyms = self.synonyms(&row.definition);
                let (value, source) = synonyms
                    .first()
                    .map_or((None, ConfigSource::Default), |synonym| (synonym.value.clone(), synonym.source));
                ConfigEntry { definition: definition_of(row), value, source, read_only: true, synonyms }
            })
            .collect()
    }

    /// What a topic has that sets nothing itself.
    #[must_use]
    pub fn topic_default(&self, row: &TopicDefinition) -> (Option<String>, ConfigSource) {
        for synonym in row.synonyms {
            if let Some(value) = self.settings.get(synonym.name) {
                let value = match value.parse::<i64>() {
                    // A negative number stands for "no limit" in every unit.
                    Ok(number) if synonym.factor != 1 => number.saturating_mul(synonym.factor).max(-1).to_string(),
                    _ => value.clone(),
                };
                return (Some(value), ConfigSource::StaticBroker);
            }
        }
        (row.definition.default.map(str::to_owned), ConfigSource::Default)
    }

    /// The broker configurations that a topic configuration falls back to, the one in force first.
    #[must_use]
    pub fn synonyms_of(&self, row: &TopicDefinition) -> Vec<ConfigSynonym> {
        let rows = row.synonyms.iter().filter_map(|synonym| definition(synonym.name));
        let mut synonyms: Vec<ConfigSynonym> = rows.flat_map(|row| self.synonyms(&row.definition)).collect();
        synonyms.sort_by_key(|synonym| synonym.source == ConfigSource::Default);
        synonyms
    }

    fn synonyms(&self, definition: &ConfigDefinition) -> Vec<ConfigSynonym> {
        let name = definition.name;
        let set = self.settings.get(name).map(|value| (value.clone(), ConfigSource::StaticBroker));
        let default = definition.default.map(|value| (value.to_owned(), ConfigSource::Default));
        set.into_iter()
            .chain(default)
            .map(|(value, source)| ConfigSynonym { name, value: Some(value), source })
            .collect()
    }
}

fn definition_of(row: &'static BrokerDefinition) -> &'static ConfigDefinition {
    &row.definition
}

/// The row of a key that `--set` may name.
fn settable(key: &str) -> Result<&'static BrokerDefinition, ConfigError> {
    match definition(key) {
        Some(BrokerDefinition { origin: Origin::Option(option), .. }) => {
            Err(ConfigError::SetByOption { key: key.to_owned(), option })
        }
        Some(row) => Ok(row),
        None => Err(match UNSUPPORTED.iter().find(|(start, _)| key.starts_with(start)) {
            Some((_, hint)) => ConfigError::UnsupportedBrokerKey { key: key.to_owned(), hint },
            None => ConfigError::UnknownBrokerKey { key: key.to_owned() },
        }),
    }
}

/// Looks a value up: what was set, else the default. All were checked before.
struct Values<'a>(&'a BTreeMap<&'static str, String>);

impl Values<'_> {
    fn text(&self, name: &str) -> &str {
        let row = definition(name).expect("the name stands in the table");
        self.0.get(name).map(String::as_str).or(row.definition.default).expect("the row has a default")
    }

    fn flag(&self, name: &str) -> bool {
        self.text(name) == "true"
    }

    fn number(&self, name: &str) -> i64 {
        self.text(name).parse().expect("checked by its row")
    }

    fn count(&self, name: &str) -> usize {
        usize::try_from(self.number(name)).expect("its row accepts no negative number")
    }

    fn millis(&self, name: &str) -> Duration {
        Duration::from_millis(u64::try_from(self.number(name)).expect("its row accepts no negative number"))
    }

    fn ordered(&self, lower_key: &'static str, upper_key: &'static str) -> Result<(), ConfigError> {
        let (lower, upper) = (self.number(lower_key), self.number(upper_key));
        if lower > upper { Err(ConfigError::Conflict { lower_key, lower, upper_key, upper }) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]
    use super::super::topic::tests::kafka_configs;
    use super::*;

    fn refused(key: &str, value: &str) -> String {
        BrokerConfig::resolve([(key, value)]).unwrap_err().to_string()
    }

    #[test]
    fn the_table_is_kafkas_where_it_does_not_say_otherwise() {
        let kafka = kafka_configs("B");
        assert!(BROKER_CONFIGS.is_sorted_by_key(|row| row.definition.name));
        for BrokerDefinition { definition, origin } in BROKER_CONFIGS.iter() {
            let (kind, default, _) = &kafka[definition.name];
            assert_eq!(format!("{:?}", definition.kind).to_uppercase(), *kind, "{}", definition.name);
            if !matches!(origin, Origin::Option(_)) {
                assert_eq!(definition.kafka_default.or(definition.default), default.as_deref(), "{}", definition.name);
            }
        }
    }

    #[test]
    fn every_default_is_accepted_by_its_own_row() {
        for row in BROKER_CONFIGS.iter() {
            if let Some(default) = row.definition.default {
                assert_eq!(row.definition.check(default).unwrap(), default, "{}", row.definition.name);
            }
        }
    }

    #[test]
    fn refusals_name_key_value_and_what_is_accepted() {
        let cases = [
            (
                "num.partitions",
                "0",
                "invalid value '0' for num.partitions: accepted is a whole number of 32 bits, 1 or more",
            ),
            ("num.partition", "4", "unknown broker configuration num.partition; kaas --help lists those that exist"),
            ("log.dirs", "/data", "log.dirs is set with the option --data-dir"),
            (
                "log.dir",
                "/data",
                "broker configuration log.dir is not supported: the data directory is set with --data-dir",
            ),
            (
                "ssl.keystore.type",
                "PEM",
                "broker configuration ssl.keystore.type is not supported: kaas has no TLS yet",
            ),
            (
                "log.local.retention.ms",
                "5",
                "log.local.retention.ms can only be -2, not '5': kaas has no tiered storage, \
              the volume holds everything",
            ),
            (
                "group.min.session.timeout.ms",
                "3600000",
                "group.min.session.timeout.ms (3600000) is above \
              group.max.session.timeout.ms (1800000): lower the one or raise the other",
            ),
        ];
        for (key, value, message) in cases {
            assert_eq!(refused(key, value), message);
        }
    }

    #[test]
    fn settings_become_typed_values() {
        let broker = BrokerConfig::resolve([
            ("num.partitions", "4"),
            ("num.partitions", " 6 "),
            ("connections.max.idle.ms", "-1"),
            ("auto.create.topics.enable", "False"),
            ("offsets.retention.minutes", "2"),
        ])
        .unwrap();
        assert_eq!(broker.num_partitions, 6, "the later one counts");
        assert_eq!(broker.connections_max_idle, None);
        assert!(!broker.auto_create_topics);
        assert_eq!(broker.offsets_retention, Duration::from_secs(120));
        assert_eq!(BrokerConfig::default().connections_max_idle, Some(Duration::from_secs(600)));
    }

    #[test]
    fn entries_say_where_values_come_from() {
        let broker =
            BrokerConfig::resolve([("num.partitions", "4")]).unwrap().with_option("log.dirs", "/data".to_owned());
        let entries = broker.entries();
        let entry = |name: &str| entries.iter().find(|entry| entry.definition.name == name).unwrap();
        let partitions = entry("num.partitions");
        assert_eq!((partitions.value.as_deref(), partitions.source), (Some("4"), ConfigSource::StaticBroker));
        assert_eq!(partitions.synonyms.len(), 2, "the setting and the default behind it");
        assert_eq!(entry("log.dirs").value.as_deref(), Some("/data"));
        assert_eq!(
            (&entry("log.retention.ms").value, entry("log.retention.ms").source),
            (&None, ConfigSource::Default)
        );
        assert_eq!(entry("log.retention.hours").value.as_deref(), Some("168"));
        assert!(entries.iter().all(|entry| entry.read_only));
    }
}
