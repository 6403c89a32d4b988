//! Why a setting is refused, in words that name the key, the value and what is accepted.

/// Maps to INVALID_CONFIG for clients, and ends the process for `--set`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    #[error("unknown topic configuration {key}")]
    UnknownTopicKey { key: String },
    #[error("unknown broker configuration {key}; kaas --help lists those that exist")]
    UnknownBrokerKey { key: String },
    /// Kafka has it, kaas does not.
    #[error("broker configuration {key} is not supported: {hint}")]
    UnsupportedBrokerKey { key: String, hint: &'static str },
    /// Not for `--set`.
    #[error("{key} is set with the option {option}")]
    SetByOption { key: String, option: &'static str },
    #[error("invalid value '{value}' for {key}: accepted is {accepted}")]
    Invalid { key: String, value: String, accepted: String },
    /// The value means something in Kafka that kaas does not do.
    #[error("{key} can only be {only}, not '{value}': {reason}")]
    OnlyDefault { key: String, value: String, only: String, reason: &'static str },
    /// APPEND or SUBTRACT of IncrementalAlterConfigs.
    #[error("{key} is not a list, nothing can be appended to it or subtracted from it")]
    NotAList { key: String },
    #[error("{lower_key} ({lower}) is above {upper_key} ({upper}): lower the one or raise the other")]
    Conflict { lower_key: &'static str, lower: i64, upper_key: &'static str, upper: i64 },
}

impl ConfigError {
    /// The key that is to blame; of two that contradict each other, the lower one.
    #[must_use]
    pub fn key(&self) -> &str {
        match self {
            Self::UnknownTopicKey { key }
            | Self::UnknownBrokerKey { key }
            | Self::UnsupportedBrokerKey { key, .. }
            | Self::SetByOption { key, .. }
            | Self::Invalid { key, .. }
            | Self::OnlyDefault { key, .. }
            | Self::NotAList { key } => key,
            Self::Conflict { lower_key, .. } => lower_key,
        }
    }
}
