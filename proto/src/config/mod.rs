//! Configurations with Kafka's names: what exists, what it means, what is accepted.
//!
//! Two tables are the only source: [`topic`] for topics, [`broker`] for the broker. Help, validation, defaults and
//! DescribeConfigs come from them.

pub mod broker;
mod change;
mod definition;
mod error;
pub mod topic;

pub use definition::{Accepts, ConfigDefinition, ConfigEntry, ConfigSource, ConfigSynonym, ConfigType, Effect};
pub use error::ConfigError;
