//! A file that is looked at: opened for reading, never through [`crate::env::Volume`], which belongs to a shard.

#![expect(clippy::disallowed_methods, reason = "a process of its own looks at files that a broker may have open")]

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use kaas_proto::layout::COORDINATORS_DIRECTORY;

use super::InspectError;
use crate::format::manifest;
use crate::format::partition_file::PartitionFile;

/// The largest of what the formats that are read whole allow.
const LIMIT_BYTES: u64 = manifest::LIMIT_BYTES as u64;

/// An open file.
#[derive(Debug)]
pub(super) struct Source {
    pub(super) path: PathBuf,
    handle: File,
    /// What its name says; `None` for a foreign name.
    pub(super) file: Option<PartitionFile>,
}

/// What tells whether somebody wrote a file meanwhile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Version {
    bytes: u64,
    modified: Option<SystemTime>,
}

impl Source {
    pub(super) fn open(path: &Path) -> Result<Self, InspectError> {
        let failed = |error| InspectError::Read { path: path.to_owned(), error };
        // Looked at first: opening a pipe would wait for somebody to write.
        let metadata = fs::metadata(path).map_err(failed)?;
        if metadata.is_dir() {
            return Err(InspectError::Directory(path.to_owned()));
        }
        if !metadata.is_file() {
            return Err(InspectError::NoFile(path.to_owned()));
        }
        let handle = File::open(path).map_err(failed)?;
        let name = path.file_name().and_then(|name| name.to_str());
        Ok(Self { path: path.to_owned(), handle, file: name.and_then(PartitionFile::parse) })
    }

    pub(super) fn failed(&self, error: io::Error) -> InspectError {
        InspectError::Read { path: self.path.clone(), error }
    }

    pub(super) fn handle(&self) -> &File {
        &self.handle
    }

    pub(super) fn version(&self) -> io::Result<Version> {
        let metadata = self.handle.metadata()?;
        Ok(Version { bytes: metadata.len(), modified: metadata.modified().ok() })
    }

    /// The whole of a small file; one byte more than the limit if it is larger.
    pub(super) fn read(&self) -> Result<Vec<u8>, InspectError> {
        let mut bytes = Vec::new();
        let mut limited = (&self.handle).take(LIMIT_BYTES + 1);
        limited.read_to_end(&mut bytes).map_err(|error| self.failed(error))?;
        Ok(bytes)
    }

    /// Whether the file lies in the directory of a coordinator slot: its records are ours then.
    pub(super) fn is_in_a_slot(&self) -> bool {
        is_slot_directory(self.path.parent().unwrap_or(Path::new("")))
    }
}

/// Whether a directory is `…/coordinators/{slot}`. No partition of a topic is: these lie below a topic id.
pub(super) fn is_slot_directory(directory: &Path) -> bool {
    let given = if directory.as_os_str().is_empty() { Path::new(".") } else { directory };
    let Ok(directory) = given.canonicalize() else { return false };
    let name = |depth: usize| directory.ancestors().nth(depth).and_then(Path::file_name).and_then(|name| name.to_str());
    name(0).is_some_and(|slot| slot.len() == 2 && slot.bytes().all(|byte| byte.is_ascii_digit()))
        && name(1) == Some(COORDINATORS_DIRECTORY)
}
