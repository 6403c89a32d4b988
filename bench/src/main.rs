//! `kaas-bench`: measures kaas beside the raw device in one run and prints ratios.
//!
//! Timings vary with the machine, so nothing here fails a build: the targets are printed beside the figures.

#![allow(clippy::print_stdout, reason = "printing figures is what this program does")]

use std::path::PathBuf;

use anyhow::Result;
use clap::{Parser, Subcommand};

mod assignment;
mod compare;
mod engine;
mod first_light;
mod raw;
mod ring;
mod soak;

/// The broker's: what runs in this process is measured as it runs there.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Measures kaas beside the raw device.
#[derive(Debug, Parser)]
struct Options {
    /// Where test files are made; use the file system that you want to know about.
    #[arg(long, global = true, default_value = ".")]
    dir: PathBuf,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Raw O_DIRECT|O_DSYNC writes: extending and overwriting, 4 KiB and 1 MiB.
    Raw,
    /// One broker: produce latency and throughput beside raw writes, tail reads, cost when idle.
    FirstLight {
        /// The broker; build it with `cargo build --release`.
        #[arg(long, default_value = "target/release/kaas")]
        binary: PathBuf,
    },
    /// Several builds of the broker in turn, round by round: produce latency and throughput beside raw writes.
    Compare {
        /// A broker; build it with `cargo build --release`. Repeatable.
        #[arg(long, required = true)]
        binary: Vec<PathBuf>,
        #[arg(long, default_value_t = 20)]
        rounds: usize,
    },
    /// Takeovers of 1,000 small partitions beside a plain loop of the same durable operations.
    Takeover,
    /// Appends to one partition and to 1,000, in commits of the same size.
    Appending,
    /// Produce latency while another partition of the same shard is compacted, and without that.
    BesideCompaction,
    /// What recovery reads of a segment of 1 GiB.
    Recovery,
    /// Resident memory per led idle partition. 10,000 of them need a limit of 16,000 open files.
    IdleMemory {
        #[arg(long, default_value_t = 10_000)]
        partitions: i32,
        /// The broker; build it with `cargo build --release`.
        #[arg(long, default_value = "target/release/kaas")]
        binary: PathBuf,
    },
    /// The same writes through the shard's ring, and the fence's read, as ratios.
    Ring,
    /// Three brokers under load, to which all kinds of things happen: nothing may be lost, and how long partitions wait.
    Soak(soak::SoakOptions),
    /// The controller's next assignment: computed and written, by number of partitions.
    Assignment,
}

fn main() -> Result<()> {
    let options = Options::parse();
    match options.command {
        Command::Raw => raw::print(&options.dir),
        Command::FirstLight { binary } => first_light::print(&options.dir, &binary),
        Command::Compare { binary, rounds } => compare::print(&options.dir, &binary, rounds),
        Command::Takeover => engine::print_takeover(&options.dir),
        Command::Appending => engine::print_appending(&options.dir),
        Command::BesideCompaction => engine::print_beside_compaction(&options.dir),
        Command::Recovery => engine::print_recovery(&options.dir),
        Command::IdleMemory { partitions, binary } => engine::print_idle_memory(&options.dir, &binary, partitions),
        Command::Assignment => assignment::print(&options.dir),
        Command::Soak(soak) => soak::print(&options.dir, &soak),
        Command::Ring => ring::print(&options.dir),
    }
}
