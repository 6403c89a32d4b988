//! The one way in which a small file is replaced.

use std::io;
use std::path::Path;

use super::{Env, Volume};
use crate::format::partition_file::temporary_name;

/// Replaces `directory/name` by a file with this content, so that readers find the old one or the new one, whole, and
/// the new one survives a crash once this returns `Ok`.
///
/// Temporary name, write, sync, rename, sync of the directory. After an error, or when dropped half-way, the old file or
/// the new one is there, and perhaps a temporary one, which a later leader removes. Two callers never share a temporary
/// name; the one that renames last wins, so a name has one writer: by its epoch, or by a controller epoch.
///
/// # Errors
/// The error of the step that failed.
pub async fn write_atomically(env: &impl Env, directory: &Path, name: &str, content: Vec<u8>) -> io::Result<()> {
    let volume = env.volume();
    let temporary = directory.join(temporary_name(name, env.random_u64()));
    let replaced = async {
        volume.write(&temporary, content).await?;
        volume.rename(&temporary, &directory.join(name)).await
    };
    if let Err(error) = replaced.await {
        if let Err(left_behind) = volume.unlink(&temporary).await
            && left_behind.kind() != io::ErrorKind::NotFound
        {
            tracing::debug!(file = %temporary.display(), error = %left_behind, "a temporary file stays behind");
        }
        return Err(error);
    }
    volume.sync_directory(directory).await
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]
    use super::*;
    use crate::env::memory::{MemoryEnv, Operation};

    #[test]
    fn the_old_content_stays_until_the_new_one_is_whole() {
        let env = MemoryEnv::virtual_time();
        let volume = env.volume().clone();
        let directory = Path::new("d");
        env.run(async {
            volume.create_directories(directory).await.unwrap();
            write_atomically(&env, directory, "f", b"old".to_vec()).await.unwrap();
            for step in [Operation::Write, Operation::Rename] {
                volume.fail_next(step, io::ErrorKind::StorageFull);
                let error = write_atomically(&env, directory, "f", b"new".to_vec()).await.unwrap_err();
                assert_eq!(error.kind(), io::ErrorKind::StorageFull);
                assert_eq!(volume.read(&directory.join("f"), 10).await.unwrap(), b"old");
                assert_eq!(volume.list(directory).await.unwrap().len(), 1, "the temporary file is gone");
            }
            write_atomically(&env, directory, "f", b"new".to_vec()).await.unwrap();
            assert_eq!(volume.read(&directory.join("f"), 10).await.unwrap(), b"new");
            assert_eq!(volume.count(Operation::SyncDirectory), 2);
        });
    }
}
