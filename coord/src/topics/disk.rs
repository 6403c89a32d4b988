//! The durable steps that the topic store is made of, so that a test can let each of them be the last.
//!
//! All of them block; they run on the blocking threads of the control thread's runtime.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::Path;

use kaas_proto::reserve::is_full;

/// What the store does to the volume. Nothing is durable before the directory that names it is synced.
pub trait Disk: Send + Sync + std::fmt::Debug {
    /// Makes a directory; it may exist.
    fn create_directory(&self, path: &Path) -> io::Result<()>;
    /// Writes a whole file, which may exist, and syncs its content.
    fn write(&self, path: &Path, content: &[u8]) -> io::Result<()>;
    /// Renames within one directory.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;
    /// Makes the names in a directory durable.
    fn sync_directory(&self, path: &Path) -> io::Result<()>;
    /// Writes a line into an existing fence, stable when it returns.
    fn revoke(&self, fence: &Path, line: &[u8]) -> io::Result<()>;
    /// Removes a directory and all in it; it may be gone already.
    fn remove_tree(&self, path: &Path) -> io::Result<()>;
}

/// The file system.
#[derive(Clone, Copy, Debug)]
pub struct FileSystem;

impl Disk for FileSystem {
    fn create_directory(&self, path: &Path) -> io::Result<()> {
        match fs::create_dir(path) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists && path.is_dir() => Ok(()),
            result => result,
        }
    }

    fn write(&self, path: &Path, content: &[u8]) -> io::Result<()> {
        let mut file = OpenOptions::new().write(true).create(true).truncate(true).open(path)?;
        file.write_all(content)?;
        file.sync_all()
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        fs::rename(from, to)
    }

    fn sync_directory(&self, path: &Path) -> io::Result<()> {
        File::open(path)?.sync_all()
    }

    fn revoke(&self, fence: &Path, line: &[u8]) -> io::Result<()> {
        let mut file = OpenOptions::new().write(true).open(fence)?;
        match file.write_all(line) {
            // A fence need not say who: it revokes as soon as it is not empty, and a hole takes no room.
            Err(error) if is_full(&error) => file.set_len(line.len() as u64)?,
            result => result?,
        }
        file.sync_all()
    }

    fn remove_tree(&self, path: &Path) -> io::Result<()> {
        match fs::remove_dir_all(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            result => result,
        }
    }
}
