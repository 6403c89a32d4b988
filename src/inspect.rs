//! `kaas inspect`: options, output, exit code. What it prints is made in [`kaas_core::inspect`].

use std::io::{self, BufWriter, ErrorKind, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Subcommand, ValueEnum};
use kaas_core::inspect::{Format, InspectError, Kind, Outcome, inspect_file, inspect_partition};

/// The file has a bad byte.
const DAMAGED: u8 = 1;
/// There is nothing to print: no such file, another kind of file. Wrong options end with the same code.
const NOT_INSPECTED: u8 = 2;

/// What to look at.
#[derive(Clone, Debug, Subcommand)]
#[command(after_help = EXIT_CODES)]
pub(crate) enum Inspect {
    /// A segment's batches, and with --records the records in them. Those of a coordinator slot (below
    /// __cluster/coordinators) are printed as offset commits and states of groups
    #[command(after_help = EXIT_CODES)]
    Segment {
        #[command(flatten)]
        file: File,
        /// Print the records too: keys, values and headers as text, or as hexadecimal digits where they are none
        #[arg(long)]
        records: bool,
    },
    /// A manifest: epoch, high watermark, log start, which epoch holds which offsets, what compaction replaced
    #[command(after_help = EXIT_CODES)]
    Manifest(File),
    /// A producer snapshot: idempotent producers with their last batches, open and aborted transactions
    #[command(after_help = EXIT_CODES)]
    Producers(File),
    /// A fence: held, or revoked by whom and when
    #[command(after_help = EXIT_CODES)]
    Fence(File),
    /// An index of a segment by offset and by time
    #[command(after_help = EXIT_CODES)]
    Index(File),
    /// A checkpoint: where recovery of a segment may begin
    #[command(after_help = EXIT_CODES)]
    Checkpoint(File),
    /// The directory of a partition or a coordinator slot: its files, and which of them count
    #[command(after_help = EXIT_CODES)]
    Partition(File),
}

const EXIT_CODES: &str = "Files are opened for reading only, also while a broker leads the partition.\n\
    Exit code: 0 sound, 1 damaged (the first bad byte is printed), 2 nothing to print (no such file, another kind of file).";

/// A file and how to print it.
#[derive(Clone, Debug, Args)]
pub(crate) struct File {
    /// The file (or the directory of a partition)
    path: PathBuf,
    /// As tables for people, or as JSON, one object per line
    #[arg(long, value_enum, default_value_t = Shape::Table)]
    format: Shape,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Shape {
    Table,
    Json,
}

impl From<Shape> for Format {
    fn from(shape: Shape) -> Self {
        match shape {
            Shape::Table => Self::Table,
            Shape::Json => Self::Json,
        }
    }
}

/// Prints on standard output; says on standard error why it can't.
pub(crate) fn run(command: &Inspect) -> ExitCode {
    let mut out = BufWriter::new(io::stdout().lock());
    let outcome = print(command, &mut out).and_then(|outcome| {
        out.flush()?;
        Ok(outcome)
    });
    match outcome {
        Ok(Outcome::Sound) => ExitCode::SUCCESS,
        Ok(Outcome::Damaged) => ExitCode::from(DAMAGED),
        // Whoever reads has seen enough: kaas inspect … | head
        Err(InspectError::Write(error)) if error.kind() == ErrorKind::BrokenPipe => {
            drop(out.into_parts());
            ExitCode::SUCCESS
        }
        Err(error) => {
            // Standard error may be closed too.
            drop(writeln!(io::stderr(), "kaas inspect: {error}"));
            ExitCode::from(NOT_INSPECTED)
        }
    }
}

fn print(command: &Inspect, out: &mut dyn Write) -> Result<Outcome, InspectError> {
    let (kind, file, records) = match command {
        Inspect::Partition(file) => return inspect_partition(&file.path, file.format.into(), out),
        Inspect::Segment { file, records } => (Kind::Segment, file, *records),
        Inspect::Manifest(file) => (Kind::Manifest, file, false),
        Inspect::Producers(file) => (Kind::Producers, file, false),
        Inspect::Fence(file) => (Kind::Fence, file, false),
        Inspect::Index(file) => (Kind::Index, file, false),
        Inspect::Checkpoint(file) => (Kind::Checkpoint, file, false),
    };
    inspect_file(kind, &file.path, records, file.format.into(), out)
}
