//! What one row of a configuration table says, and how a value is checked against it.

use std::fmt;

use super::ConfigError;

/// The type of a value, numbered as in DescribeConfigs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i8)]
pub enum ConfigType {
    Boolean = 1,
    String = 2,
    Int = 3,
    Long = 5,
    Double = 6,
    List = 7,
}

impl fmt::Display for ConfigType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Boolean => "true or false",
            Self::String => "a text",
            Self::Int => "a whole number of 32 bits",
            Self::Long => "a whole number of 64 bits",
            Self::Double => "a number",
            Self::List => "a list separated by commas",
        })
    }
}

/// What is accepted beyond the type.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Accepts {
    Any,
    AtLeast(i64),
    Between(i64, i64),
    /// One exceptional number, or a range.
    ExactlyOrBetween(i64, i64, i64),
    Fraction,
    /// For a list: each item.
    OneOf(&'static [&'static str]),
    /// `*`, or a list of `partition:broker`.
    ThrottledReplicas,
}

impl Accepts {
    fn number(self, value: i64) -> bool {
        match self {
            Self::AtLeast(least) => value >= least,
            Self::Between(least, most) => (least..=most).contains(&value),
            Self::ExactlyOrBetween(exactly, least, most) => value == exactly || (least..=most).contains(&value),
            Self::Any | Self::Fraction | Self::OneOf(_) | Self::ThrottledReplicas => true,
        }
    }

    fn items(self, items: &[&str]) -> bool {
        match self {
            Self::OneOf(choices) => items.iter().all(|item| choices.contains(item)),
            Self::ThrottledReplicas => items == ["*"] || items.iter().all(|item| is_replica(item)),
            _ => true,
        }
    }
}

fn is_replica(text: &str) -> bool {
    text.split_once(':')
        .is_some_and(|(partition, broker)| partition.parse::<u32>().is_ok() && broker.parse::<u32>().is_ok())
}

impl fmt::Display for Accepts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Any => Ok(()),
            Self::AtLeast(least) => write!(f, ", {least} or more"),
            Self::Between(least, most) => write!(f, ", {least} to {most}"),
            Self::ExactlyOrBetween(exactly, least, most) => write!(f, ", {exactly} or {least} to {most}"),
            Self::Fraction => f.write_str(" from 0 to 1"),
            Self::OneOf(choices) => write!(f, " of {}", choices.join(", ")),
            Self::ThrottledReplicas => f.write_str(" of partition:broker, or *"),
        }
    }
}

/// What a setting does in kaas.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// As in Kafka.
    Acted,
    /// Accepted and shown, so that tools work, but nothing comes of it; says why.
    Shown(&'static str),
    /// Refused except at its default; says why.
    OnlyDefault(&'static str),
}

/// One row of a table.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ConfigDefinition {
    pub name: &'static str,
    pub kind: ConfigType,
    /// Ours. `None`: unset, another setting or the code decides.
    pub default: Option<&'static str>,
    /// Kafka's, where it differs.
    pub kafka_default: Option<&'static str>,
    pub accepts: Accepts,
    pub effect: Effect,
    pub documentation: &'static str,
}

impl ConfigDefinition {
    /// Checks a value and returns it in its normal form: no blanks around it or its items, no item twice.
    ///
    /// # Errors
    /// Names the key, the value and what is accepted.
    pub fn check(&self, value: &str) -> Result<String, ConfigError> {
        let normal = self.normalize(value).ok_or_else(|| ConfigError::Invalid {
            key: self.name.to_owned(),
            value: value.to_owned(),
            accepted: self.accepted(),
        })?;
        match self.effect {
            Effect::OnlyDefault(reason) if Some(normal.as_str()) != self.default => Err(ConfigError::OnlyDefault {
                key: self.name.to_owned(),
                value: value.to_owned(),
                only: self.default.unwrap_or("unset").to_owned(),
                reason,
            }),
            _ => Ok(normal),
        }
    }

    /// What is accepted, in words.
    #[must_use]
    pub fn accepted(&self) -> String {
        match (self.kind, self.accepts) {
            (ConfigType::String, Accepts::OneOf(choices)) => format!("one of {}", choices.join(", ")),
            (kind, accepts) => format!("{kind}{accepts}"),
        }
    }

    fn normalize(&self, value: &str) -> Option<String> {
        let value = value.trim();
        match self.kind {
            ConfigType::Boolean => {
                let flag = value.to_ascii_lowercase();
                matches!(flag.as_str(), "true" | "false").then_some(flag)
            }
            ConfigType::Int => {
                value.parse::<i32>().ok().filter(|&n| self.accepts.number(n.into())).map(|n| n.to_string())
            }
            ConfigType::Long => value.parse::<i64>().ok().filter(|&n| self.accepts.number(n)).map(|n| n.to_string()),
            ConfigType::Double => {
                let within = |n: &f64| n.is_finite() && (self.accepts != Accepts::Fraction || (0.0..=1.0).contains(n));
                value.parse::<f64>().ok().filter(within).map(|n| match n {
                    // As Java writes it: the largest number would have 309 digits.
                    large if large >= 1e7 => format!("{large:E}"),
                    n => n.to_string(),
                })
            }
            ConfigType::String => self.accepts.items(&[value]).then(|| value.to_owned()),
            ConfigType::List => {
                let mut items: Vec<&str> = Vec::new();
                for item in list_items(value) {
                    if !items.contains(&item) {
                        items.push(item);
                    }
                }
                self.accepts.items(&items).then(|| items.join(","))
            }
        }
    }
}

/// The items of a list value; an empty text is an empty list.
pub(super) fn list_items(value: &str) -> impl Iterator<Item = &str> {
    value.split(',').map(str::trim).filter(|item| !item.is_empty())
}

/// Where a value comes from, numbered as in DescribeConfigs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i8)]
pub enum ConfigSource {
    /// Set on the topic itself.
    DynamicTopic = 1,
    /// Set when the broker was started.
    StaticBroker = 4,
    Default = 5,
}

/// One configuration as DescribeConfigs shows it.
#[derive(Clone, Debug, PartialEq)]
pub struct ConfigEntry {
    pub definition: &'static ConfigDefinition,
    pub value: Option<String>,
    pub source: ConfigSource,
    pub read_only: bool,
    /// Where the value could come from, the one in force first.
    pub synonyms: Vec<ConfigSynonym>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigSynonym {
    pub name: &'static str,
    pub value: Option<String>,
    pub source: ConfigSource,
}
