//! Durable changes of small files: a temporary name, synced, renamed over the old one.

use std::io;
use std::path::Path;

use crate::env::{Env, Volume};
use crate::format::partition_file::temporary_name;

/// Puts `content` under a name of the directory, whole or not at all. After an error either may be the case.
///
/// The name is durable after [`Volume::sync_directory`] only; hints do without.
///
/// # Errors
/// Those of the volume. What is left of the temporary file is tidied by a later leader.
pub async fn replace<E: Env>(env: &E, directory: &Path, name: &str, content: Vec<u8>) -> io::Result<()> {
    let temporary = directory.join(temporary_name(name, env.random_u64()));
    let volume = env.volume();
    if let Err(error) = volume.write(&temporary, content).await {
        // Best effort: a full volume should not keep the remains.
        drop(volume.unlink(&temporary).await);
        return Err(error);
    }
    volume.rename(&temporary, &directory.join(name)).await
}
