//! Durable changes of small files: a temporary name, synced, renamed over the old one.

use std::io;
use std::path::Path;

use thiserror::Error;

use crate::env::{Env, Volume};
use crate::format::partition_file::{PartitionFile, temporary_name};

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

/// Puts `content` under a name of the directory, whole or not at all. After an error either may be the case. What no reader
/// would take is not written.
///
/// The name is durable after [`Volume::sync_directory`] only; hints do without.
///
/// # Errors
/// Those of the volume. What is left of the temporary file is tidied by a later leader.
pub async fn replace<E: Env>(env: &E, directory: &Path, file: PartitionFile, content: Vec<u8>) -> io::Result<()> {
    Ok(try_replace(env, directory, file, content).await?)
}

/// As [`replace`], for files of which an old version must not come back: says whether that can happen after an error.
///
/// # Errors
/// Those of the volume.
pub async fn try_replace<E: Env>(
    env: &E,
    directory: &Path,
    file: PartitionFile,
    content: Vec<u8>,
) -> Result<(), ReplaceError> {
    let name = file.to_string();
    if content.len() > file.limit_bytes() {
        let text =
            format!("{name} would have {} bytes, and nobody reads more than {}", content.len(), file.limit_bytes());
        return Err(ReplaceError::NotReplaced(io::Error::new(io::ErrorKind::FileTooLarge, text)));
    }
    let temporary = directory.join(temporary_name(&name, env.random_u64()));
    let volume = env.volume();
    if let Err(error) = volume.write(&temporary, content).await {
        // Best effort: a full volume should not keep the remains.
        drop(volume.unlink(&temporary).await);
        return Err(ReplaceError::NotReplaced(error));
    }
    volume.rename(&temporary, &directory.join(name)).await.map_err(ReplaceError::Unknown)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]
    use kaas_proto::types::LeaderEpoch;

    use super::*;
    use crate::env::memory::MemoryEnv;

    #[test]
    fn what_no_reader_would_take_is_not_written() {
        let env = MemoryEnv::virtual_time();
        let (directory, file) = (Path::new("p"), PartitionFile::Checkpoint(LeaderEpoch(1)));
        env.run(async {
            env.volume().create_directories(directory).await.unwrap();
            let largest = vec![b'x'; file.limit_bytes()];
            replace(&env, directory, file, largest.clone()).await.unwrap();
            let larger = [&largest[..], b"y"].concat();
            let refused = try_replace(&env, directory, file, larger).await;
            let Err(ReplaceError::NotReplaced(error)) = refused else { panic!("{refused:?}") };
            assert_eq!(error.kind(), io::ErrorKind::FileTooLarge);
            let read = env.volume().read(&directory.join(file.to_string()), file.limit_bytes()).await;
            assert_eq!(read.unwrap(), largest, "what was there is still there");
            assert_eq!(env.volume().list(directory).await.unwrap().len(), 1, "and nothing beside it");
        });
    }

    #[test]
    fn every_file_that_is_read_whole_has_a_limit() {
        let epoch = LeaderEpoch(1);
        for file in [PartitionFile::Manifest(epoch), PartitionFile::Producers(epoch), PartitionFile::Fence(epoch)] {
            assert!(file.limit_bytes() <= 64 << 20, "{file}");
        }
    }
}
