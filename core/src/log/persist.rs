//! Durable changes of small files: a temporary name, synced, renamed over the old one.

use std::io;
use std::path::Path;

use thiserror::Error;

use crate::env::{Env, Volume};
use crate::format::partition_file::temporary_name;

/// Why a file was not replaced.
#[derive(Debug, Error)]
pub enum ReplaceError {
    /// It has its old content.
    #[error("{0}")]
    NotReplaced(io::Error),
    /// It may have its new content by now, or get it later.
    #[error("{0}")]
    Unknown(io::Error),
}

impl From<ReplaceError> for io::Error {
    fn from(error: ReplaceError) -> Self {
        match error {
            ReplaceError::NotReplaced(error) | ReplaceError::Unknown(error) => error,
        }
    }
}

/// Puts `content` under a name of the directory, whole or not at all. After an error either may be the case.
///
/// The name is durable after [`Volume::sync_directory`] only; hints do without.
///
/// # Errors
/// Those of the volume. What is left of the temporary file is tidied by a later leader.
pub async fn replace<E: Env>(env: &E, directory: &Path, name: &str, content: Vec<u8>) -> io::Result<()> {
    Ok(try_replace(env, directory, name, content).await?)
}

/// As [`replace`], for files of which an old version must not come back: says whether that can happen after an error.
///
/// # Errors
/// Those of the volume.
pub async fn try_replace<E: Env>(env: &E, directory: &Path, name: &str, content: Vec<u8>) -> Result<(), ReplaceError> {
    let temporary = directory.join(temporary_name(name, env.random_u64()));
    let volume = env.volume();
    if let Err(error) = volume.write(&temporary, content).await {
        // Best effort: a full volume should not keep the remains.
        drop(volume.unlink(&temporary).await);
        return Err(ReplaceError::NotReplaced(error));
    }
    volume.rename(&temporary, &directory.join(name)).await.map_err(ReplaceError::Unknown)
}
