//! `kaas inspect`: what is in a file of the data directory, and its first bad byte if it has one.
//!
//! Opens files for reading only and changes nothing; a broker may lead the partition meanwhile. Runs in a process of its
//! own, not on a shard.

mod damage;
mod files;
mod flipped_bit;
mod partition;
mod printer;
mod records;
mod segment;
mod slot;
mod source;
mod window;

use std::fmt;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use thiserror::Error;

pub use self::printer::Format;
use self::printer::Printer;
use self::source::Source;
use crate::format::partition_file::{PartitionFile, TemporaryOf};

/// What a file is taken for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Segment,
    Index,
    Manifest,
    Producers,
    Fence,
    Checkpoint,
}

impl Kind {
    /// What a file of this name is.
    fn of(file: PartitionFile) -> Self {
        match file {
            PartitionFile::Log(_) | PartitionFile::Temporary { of: TemporaryOf::Log(_), .. } => Self::Segment,
            PartitionFile::Index(_) | PartitionFile::Temporary { of: TemporaryOf::Index(_), .. } => Self::Index,
            PartitionFile::Manifest(_) | PartitionFile::Temporary { of: TemporaryOf::Manifest, .. } => Self::Manifest,
            PartitionFile::Producers(_) | PartitionFile::Temporary { of: TemporaryOf::Producers, .. } => {
                Self::Producers
            }
            PartitionFile::Checkpoint(_) | PartitionFile::Temporary { of: TemporaryOf::Checkpoint, .. } => {
                Self::Checkpoint
            }
            PartitionFile::Fence(_) => Self::Fence,
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Segment => "segment",
            Self::Index => "index",
            Self::Manifest => "manifest",
            Self::Producers => "producers",
            Self::Fence => "fence",
            Self::Checkpoint => "checkpoint",
        })
    }
}

/// Whether a file is as it should be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    Sound,
    /// The first bad byte was printed.
    Damaged,
}

/// Why there is nothing to print.
#[derive(Debug, Error)]
pub enum InspectError {
    #[error("{} can't be read: {error}", .path.display())]
    Read { path: PathBuf, error: io::Error },
    #[error("{} is a directory; `kaas inspect partition` shows what is in a partition's", .0.display())]
    Directory(PathBuf),
    #[error("{} is no directory", .0.display())]
    NoDirectory(PathBuf),
    #[error("{} is no regular file", .0.display())]
    NoFile(PathBuf),
    #[error("{} is the name of another kind of file: try `kaas inspect {found}`", .path.display())]
    OtherKind { path: PathBuf, found: Kind },
    #[error("{} is not a file of kaas: neither its name nor its content is that of a {kind} file", .path.display())]
    Foreign { path: PathBuf, kind: Kind },
    #[error("{} is not the directory of a partition: it holds no file of one", .0.display())]
    NoPartition(PathBuf),
    #[error("the output can't be written: {0}")]
    Write(#[from] io::Error),
}

/// Prints a file.
///
/// # Errors
/// See [`InspectError`]. Damage is none, it is what one wants to see.
pub fn inspect_file(
    kind: Kind,
    path: &Path,
    records: bool,
    format: Format,
    out: &mut dyn Write,
) -> Result<Outcome, InspectError> {
    let source = Source::open(path)?;
    if let Some(found) = source.file.map(Kind::of).filter(|&found| found != kind) {
        return Err(InspectError::OtherKind { path: path.to_owned(), found });
    }
    let mut printer = Printer::new(out, format);
    match kind {
        Kind::Segment => segment::print(source, records, &mut printer)?,
        Kind::Index => files::print_index(source, &mut printer)?,
        Kind::Manifest => files::print_manifest(source, &mut printer)?,
        Kind::Producers => files::print_producers(source, &mut printer)?,
        Kind::Fence => files::print_fence(source, &mut printer)?,
        Kind::Checkpoint => files::print_checkpoint(source, &mut printer)?,
    }
    Ok(outcome(&printer))
}

/// Prints what is in the directory of a partition or of a coordinator slot, and which of it counts.
///
/// # Errors
/// See [`InspectError`].
pub fn inspect_partition(directory: &Path, format: Format, out: &mut dyn Write) -> Result<Outcome, InspectError> {
    let mut printer = Printer::new(out, format);
    partition::print(directory, &mut printer)?;
    Ok(outcome(&printer))
}

fn outcome(printer: &Printer<'_>) -> Outcome {
    if printer.is_damaged() { Outcome::Damaged } else { Outcome::Sound }
}
