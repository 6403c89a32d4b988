//! Why a connection ends: one log line and one counter for each.

use std::io;

use kaas_proto::kafka::{Api, DecodeError};
use thiserror::Error;

use crate::frame_buffer::FrameRefusal;

/// Why a connection ends. The text follows "closed the connection:".
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub(crate) enum CloseReason {
    #[error("the client closed it")]
    Client,
    #[error("the client is gone ({0})")]
    Lost(io::ErrorKind),
    #[error("idle for connections.max.idle.ms")]
    Idle,
    #[error("the client stopped in the middle of a request")]
    HalfRequest,
    #[error("the client does not read its responses")]
    SlowReader,
    #[error("{0}")]
    Frame(FrameRefusal),
    #[error("its request has no readable header: {0}")]
    Header(DecodeError),
    #[error("{} version {version} can't be read: {error}", api.name)]
    Request { api: &'static Api, version: i16, error: DecodeError },
    #[error("it asks for API key {key} (version {version}), which kaas does not serve")]
    UnknownApi { key: i16, version: i16 },
    #[error(
        "it asks for {} version {version}, kaas serves {} to {}",
        api.name, api.min_version, api.max_version
    )]
    UnsupportedVersion { api: &'static Api, version: i16 },
    #[error(
        "it wants to authenticate with SASL, but this listener does not; set the client's security.protocol to \
         PLAINTEXT (kaas has no SASL yet)"
    )]
    Sasl,
    /// The only way to tell a producer with acks=0 of an error.
    #[error("a Produce request with acks=0 failed: {0}")]
    UnacknowledgedFailure(String),
    /// Batches that follow one that was refused must not overtake it.
    #[error("a shard's queue was full for too long, later batches of the connection must not overtake refused ones")]
    QueueFull,
    #[error("the broker is stopping")]
    Stopping,
}

impl CloseReason {
    /// For the counter of closed connections.
    pub(crate) fn label(&self) -> &'static str {
        match self {
            Self::Client => "client",
            Self::Lost(_) => "lost",
            Self::Idle => "idle",
            Self::HalfRequest => "half_request",
            Self::SlowReader => "slow_reader",
            Self::Frame(FrameRefusal::Foreign(_)) => "other_protocol",
            Self::Frame(_) => "request_length",
            Self::Header(_) | Self::Request { .. } => "unreadable_request",
            Self::UnknownApi { .. } => "unknown_api",
            Self::UnsupportedVersion { .. } => "unsupported_version",
            Self::Sasl => "sasl",
            Self::UnacknowledgedFailure(_) => "unacknowledged_failure",
            Self::QueueFull => "queue_full",
            Self::Stopping => "stopping",
        }
    }

    /// Whether connections end like this every day.
    pub(crate) fn is_ordinary(&self) -> bool {
        matches!(self, Self::Client | Self::Lost(_) | Self::Idle | Self::Stopping)
    }
}
