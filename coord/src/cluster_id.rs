//! The cluster id: minted once per volume, by whoever comes first.
//!
//! Nothing depends on it but what clients are told. So a damaged one stops nobody: it is left as it is, and clients see
//! [`ClusterId::unreadable`] until somebody restores or removes it.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use kaas_proto::format::cluster_id::{ClusterId, LIMIT_BYTES};
use kaas_proto::layout::{CLUSTER_DIRECTORY, CLUSTER_ID_FILE};

/// The cluster id can't be read or written.
#[derive(Debug, thiserror::Error)]
pub enum ClusterIdError {
    #[error("could not {action} {path}: {source}")]
    Io { action: &'static str, path: PathBuf, source: io::Error },
}

/// The id of the volume, minted if it has none. `__cluster` exists. Blocks.
///
/// # Errors
/// The volume refused.
pub fn load_or_create(root: &Path) -> Result<ClusterId, ClusterIdError> {
    let directory = root.join(CLUSTER_DIRECTORY);
    let path = directory.join(CLUSTER_ID_FILE);
    let failed = |action| {
        let path = path.clone();
        move |source| ClusterIdError::Io { action, path, source }
    };
    match OpenOptions::new().write(true).create_new(true).open(&path) {
        Ok(file) => fill(file, &directory).map_err(failed("create"))?,
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            // Whoever created it ended before the id was in it.
            if path.is_file() && read(&path).map_err(failed("read"))?.is_empty() {
                let temporary = directory.join(format!("{CLUSTER_ID_FILE}.{}", ClusterId::random()));
                let file = File::create(&temporary).map_err(failed("create"))?;
                fill(file, &directory).map_err(failed("create"))?;
                fs::rename(&temporary, &path).map_err(failed("create"))?;
                sync(&directory).map_err(failed("create"))?;
            }
        }
        Err(error) => return Err(failed("create")(error)),
    }
    // Read by name whoever wrote it: of two that race, both use what stayed.
    if path.is_dir() {
        tracing::warn!(path = %path.display(), "a directory is in the place of the cluster id: remove it; clients are told another id");
        return Ok(ClusterId::unreadable());
    }
    let content = read(&path).map_err(failed("read"))?;
    Ok(ClusterId::decode(&content).unwrap_or_else(|error| {
        let content = String::from_utf8_lossy(&content);
        tracing::warn!(
            path = %path.display(), content = content.trim(),
            "{error}: restore it, or remove the file to let kaas mint another one; clients are told another id"
        );
        ClusterId::unreadable()
    }))
}

/// As much as an id has, and a little more to tell it from something else.
fn read(path: &Path) -> io::Result<Vec<u8>> {
    let mut content = Vec::new();
    File::open(path)?.take(LIMIT_BYTES as u64).read_to_end(&mut content)?;
    Ok(content)
}

fn fill(mut file: File, directory: &Path) -> io::Result<()> {
    file.write_all(&ClusterId::random().encode())?;
    file.sync_all()?;
    sync(directory)
}

fn sync(directory: &Path) -> io::Result<()> {
    File::open(directory)?.sync_all()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]
    use super::*;

    #[test]
    fn it_is_minted_once() {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir(root.path().join(CLUSTER_DIRECTORY)).unwrap();
        let id = load_or_create(root.path()).unwrap();
        assert_eq!(id.to_string().len(), 22);
        assert_eq!(load_or_create(root.path()).unwrap(), id);
    }

    #[test]
    fn an_empty_file_is_what_a_crash_left() {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir(root.path().join(CLUSTER_DIRECTORY)).unwrap();
        let path = root.path().join(CLUSTER_DIRECTORY).join(CLUSTER_ID_FILE);
        fs::write(&path, "").unwrap();
        let id = load_or_create(root.path()).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap().trim(), id.to_string());
        let names = fs::read_dir(path.parent().unwrap()).unwrap().count();
        assert_eq!(names, 1, "no temporary file stays");
    }

    #[test]
    fn something_else_is_left_alone_and_stops_nobody() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join(CLUSTER_DIRECTORY).join(CLUSTER_ID_FILE);
        fs::create_dir(path.parent().unwrap()).unwrap();
        for content in ["my-cluster".to_owned(), "x".repeat(100_000), "AAAA\n".to_owned()] {
            fs::write(&path, &content).unwrap();
            assert_eq!(load_or_create(root.path()).unwrap(), ClusterId::unreadable());
            assert_eq!(fs::read_to_string(&path).unwrap(), content);
        }
        fs::remove_file(&path).unwrap();
        fs::create_dir(&path).unwrap();
        assert_eq!(load_or_create(root.path()).unwrap(), ClusterId::unreadable());
        assert!(path.is_dir());
    }
}
