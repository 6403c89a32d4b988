//! Why a pass of compaction did not come to its end. Nothing is lost by any of them.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use kaas_proto::types::Offset;
use thiserror::Error;

#[derive(Debug, Error)]
pub enum CompactionError {
    #[error("{what} {}: {error}", path.display())]
    Volume { what: &'static str, path: PathBuf, error: io::Error },
    /// Nothing is dropped on the word of records that can't be trusted.
    #[error("{} is damaged at byte {position}: {reason}", path.display())]
    Damaged { path: PathBuf, position: u64, reason: String },
    #[error(
        "the batch at offset {offset} has more keys than the map of offsets holds ({map_bytes} bytes): raise log.cleaner.dedupe.buffer.size"
    )]
    MapTooSmall { offset: Offset, map_bytes: usize },
    #[error("{0}")]
    Refused(Arc<str>),
    /// Not a failure: the epoch is over, or retention was quicker.
    #[error("interrupted: {0}")]
    Interrupted(&'static str),
}

impl CompactionError {
    pub(crate) fn volume(what: &'static str, path: impl AsRef<Path>) -> impl FnOnce(io::Error) -> Self {
        let path = path.as_ref().to_path_buf();
        move |error| Self::Volume { what, path, error }
    }

    /// Whether the partition itself is fine.
    #[must_use]
    pub fn is_interruption(&self) -> bool {
        matches!(self, Self::Interrupted(_))
    }
}
