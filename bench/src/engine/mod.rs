//! The log engine below the network: a shard on real files, beside plain loops that do the same durable operations.

use std::path::Path;

use anyhow::Result;

mod appending;
mod beside_compaction;
mod idle_memory;
mod plain_takeover;
mod recovery;
mod shard;
mod takeover;

/// Takeovers beside a plain loop.
pub(crate) fn print_takeover(dir: &Path) -> Result<()> {
    takeover::print(dir)
}

/// Appends to one partition and to many.
pub(crate) fn print_appending(dir: &Path) -> Result<()> {
    appending::print(dir)
}

/// Produce latency beside a compaction.
pub(crate) fn print_beside_compaction(dir: &Path) -> Result<()> {
    beside_compaction::print(dir)
}

/// What recovery reads of a large segment.
pub(crate) fn print_recovery(dir: &Path) -> Result<()> {
    recovery::print(dir)
}

/// Memory of led partitions in the real process.
pub(crate) fn print_idle_memory(dir: &Path, binary: &Path, partitions: i32) -> Result<()> {
    idle_memory::print(dir, binary, partitions)
}
