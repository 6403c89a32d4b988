//! `assignment.json` on the volume, its predecessor beside it, and the controller epochs. All calls block.
//!
//! A controller that was deposed without noticing may still write at any time. It can't be kept from that, but it can do no
//! harm: controller epochs are given out once, by creating a file exclusively; temporary names carry epoch and version, so
//! no two controllers share one; and whoever reads an assignment of a lower epoch than he knows ignores it, after which
//! the newer controller writes its own once more.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use kaas_proto::format::assignment::{Assignment, LIMIT_BYTES};
use kaas_proto::layout::{
    ASSIGNMENT_FILE, CONTROLLER_EPOCHS_DIRECTORY, FORMER_ASSIGNMENT_FILE, assignment_temporary, controller_epoch_file,
    parse_assignment_temporary, parse_controller_epoch_file,
};
use kaas_proto::reserve::is_full;
use kaas_proto::roots::Roots;
use kaas_proto::types::ControllerEpoch;

/// How often a controller epoch is tried to get before others are left to win.
const MAX_CLAIMS: u32 = 100;

/// The volume refused.
#[derive(Debug, thiserror::Error)]
#[error("could not {action} {path}: {source}")]
pub struct AssignmentFileError {
    action: &'static str,
    path: PathBuf,
    source: io::Error,
}

impl AssignmentFileError {
    /// No space, or no inode, is left.
    #[must_use]
    pub fn is_full(&self) -> bool {
        is_full(&self.source)
    }
}

/// What lies on the volume.
#[derive(Debug)]
pub struct Stored {
    /// The newest assignment that can be read.
    pub assignment: Option<Assignment>,
    /// What is wrong with the newest one, if this is not it: epochs in `assignment` may be out of date.
    pub lost: Option<String>,
}

/// The directory of the assignment.
#[derive(Clone, Debug)]
pub struct AssignmentFile {
    directory: PathBuf,
}

/// An assignment that lies on the volume under a temporary name.
#[derive(Debug)]
#[must_use = "it does not count before it is published"]
pub struct Staged {
    temporary: PathBuf,
    directory: PathBuf,
}

impl AssignmentFile {
    /// In a cluster directory that is there.
    #[must_use]
    pub fn new(roots: &Roots) -> Self {
        Self { directory: roots.cluster() }
    }

    /// The bytes of the newest assignment.
    ///
    /// # Errors
    /// The volume refused. That there is none is no error.
    pub fn read(&self) -> Result<Option<Vec<u8>>, AssignmentFileError> {
        self.read_file(ASSIGNMENT_FILE)
    }

    fn read_file(&self, name: &str) -> Result<Option<Vec<u8>>, AssignmentFileError> {
        let path = self.directory.join(name);
        // Opened anew each time: a client of a shared volume looks for newer content when it opens.
        let read = File::open(&path).and_then(|file| {
            let mut bytes = Vec::new();
            let limit = u64::try_from(LIMIT_BYTES).unwrap_or(u64::MAX);
            file.take(limit).read_to_end(&mut bytes)?;
            Ok(bytes)
        });
        match read {
            Ok(bytes) => Ok(Some(bytes)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(source) => Err(AssignmentFileError { action: "read", path, source }),
        }
    }

    /// What a new controller starts from.
    ///
    /// # Errors
    /// The volume refused.
    pub fn load(&self) -> Result<Stored, AssignmentFileError> {
        let understand = |bytes: Option<Vec<u8>>, name: &str| match bytes.map(|bytes| Assignment::decode(&bytes)) {
            Some(Ok(assignment)) => (Some(assignment), None),
            Some(Err(error)) => (None, Some(format!("{name} can't be read: {error}"))),
            None => (None, None),
        };
        let (newest, wrong) = understand(self.read()?, ASSIGNMENT_FILE);
        if newest.is_some() {
            return Ok(Stored { assignment: newest, lost: None });
        }
        let (former, former_wrong) = understand(self.read_file(FORMER_ASSIGNMENT_FILE)?, FORMER_ASSIGNMENT_FILE);
        let is_missing = former.is_some().then(|| format!("{ASSIGNMENT_FILE} is missing"));
        let lost = match (wrong.or(is_missing), former_wrong) {
            (Some(newest), Some(former)) => Some(format!("{newest}; {former}")),
            (newest, former) => newest.or(former),
        };
        Ok(Stored { assignment: former, lost })
    }

    /// Takes a controller epoch that nobody ever had, at least `lowest` and above all others.
    ///
    /// # Errors
    /// The volume refused, or others were always faster.
    pub fn claim_epoch(&self, lowest: ControllerEpoch) -> Result<ControllerEpoch, AssignmentFileError> {
        let directory = self.directory.join(CONTROLLER_EPOCHS_DIRECTORY);
        let failed = |action| {
            let path = directory.clone();
            move |source| AssignmentFileError { action, path, source }
        };
        fs::create_dir_all(&directory).map_err(failed("create"))?;
        for _ in 0..MAX_CLAIMS {
            let highest = controller_epochs(&directory).map_err(failed("list"))?.into_iter().max();
            let epoch = highest.map_or(lowest, |highest| lowest.max(ControllerEpoch(highest.0.saturating_add(1))));
            let file = directory.join(controller_epoch_file(epoch));
            match OpenOptions::new().write(true).create_new(true).open(file) {
                Ok(_) => sync(&directory).map_err(failed("sync"))?,
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => continue,
                Err(error) => return Err(failed("create a file in")(error)),
            }
            // Whoever listed before this file was there may have removed it as too low, and given it out again.
            let epochs = controller_epochs(&directory).map_err(failed("list"))?;
            if epochs.iter().max() == Some(&epoch) {
                self.tidy(&directory, epoch, &epochs);
                return Ok(epoch);
            }
        }
        Err(failed("claim a controller epoch in")(io::Error::other("others were always faster")))
    }

    /// Removes what controllers before `epoch` have left. What can't be removed does no harm.
    fn tidy(&self, epochs_directory: &Path, epoch: ControllerEpoch, epochs: &[ControllerEpoch]) {
        for lower in epochs.iter().filter(|other| **other < epoch) {
            let _ = fs::remove_file(epochs_directory.join(controller_epoch_file(*lower)));
        }
        for name in names(&self.directory).unwrap_or_default() {
            if parse_assignment_temporary(&name).is_some_and(|other| other < epoch) {
                let _ = fs::remove_file(self.directory.join(name));
            }
        }
    }

    /// Writes an assignment, durably, under a name of its own, and keeps `former` as the one before it.
    ///
    /// # Errors
    /// The volume refused; what counts is what counted before.
    pub fn stage(&self, assignment: &Assignment, former: Option<&Assignment>) -> Result<Staged, AssignmentFileError> {
        if let Some(former) = former {
            let temporary = self.write_temporary(former)?;
            rename(&temporary, &self.directory.join(FORMER_ASSIGNMENT_FILE))?;
        }
        Ok(Staged { temporary: self.write_temporary(assignment)?, directory: self.directory.clone() })
    }

    fn write_temporary(&self, assignment: &Assignment) -> Result<PathBuf, AssignmentFileError> {
        let (epoch, version) = assignment.generation();
        let path = self.directory.join(assignment_temporary(epoch, version));
        let content = assignment.encode();
        if content.len() > LIMIT_BYTES {
            // No broker would read it: the former one goes on to count.
            return Err(AssignmentFileError { action: "write", path, source: io::ErrorKind::FileTooLarge.into() });
        }
        let written = File::create(&path).and_then(|mut file| {
            file.write_all(&content)?;
            file.sync_all()
        });
        match written {
            Ok(()) => Ok(path),
            Err(source) => {
                let _ = fs::remove_file(&path);
                Err(AssignmentFileError { action: "write", path, source })
            }
        }
    }
}

impl Staged {
    /// From now on this assignment counts.
    ///
    /// # Errors
    /// The volume refused; it may count all the same.
    pub fn publish(self) -> Result<(), AssignmentFileError> {
        rename(&self.temporary, &self.directory.join(ASSIGNMENT_FILE))?;
        sync(&self.directory).map_err(|source| AssignmentFileError { action: "sync", path: self.directory, source })
    }

    /// It is not to count after all.
    pub fn withdraw(self) {
        let _ = fs::remove_file(self.temporary);
    }
}

fn rename(from: &Path, to: &Path) -> Result<(), AssignmentFileError> {
    fs::rename(from, to).map_err(|source| AssignmentFileError { action: "rename to", path: to.to_owned(), source })
}

fn sync(directory: &Path) -> io::Result<()> {
    File::open(directory)?.sync_all()
}

fn names(directory: &Path) -> io::Result<Vec<String>> {
    let entries: io::Result<Vec<_>> = fs::read_dir(directory)?.collect();
    Ok(entries?.into_iter().filter_map(|entry| entry.file_name().into_string().ok()).collect())
}

fn controller_epochs(directory: &Path) -> io::Result<Vec<ControllerEpoch>> {
    Ok(names(directory)?.iter().filter_map(|name| parse_controller_epoch_file(name)).collect())
}

#[cfg(test)]
#[path = "assignment_file_tests.rs"]
mod tests;
