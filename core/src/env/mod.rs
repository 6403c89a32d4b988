//! What a shard needs from outside: a volume, a clock, tasks, randomness.
//!
//! Shard-local: none of these types leaves the thread that made it. Production is `uring`; local-dev mode and fast
//! tests run on [`memory`].

use std::fmt;
use std::future::Future;
use std::io;
use std::path::Path;
use std::time::Duration;

use bytes::Bytes;
use kaas_proto::types::TimestampMs;

pub mod alarm;
mod buffer;
#[cfg(test)]
mod conformance;
pub mod executor;
mod helper;
pub mod memory;
mod memory_volume;
pub mod open_files;
mod path;
pub mod probe;
mod ring;
mod ring_operations;
mod ring_slots;
#[cfg(feature = "simulator")]
pub mod sim;
mod split_volume;
pub mod uring;
mod uring_volume;
pub mod virtual_time;

pub use buffer::AlignedBuffer;
pub use kaas_proto::types::MonotonicTime;

/// Every direct write and read starts and ends at a multiple of this, in the file and in memory: enough for every disk,
/// and what NFS clients take without splitting.
pub const BLOCK_BYTES: usize = 4096;

/// How urgent a task is to the executor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TaskClass {
    /// A client waits for it: requests, appends, control commands.
    Latency,
    /// Recovery, retention, clean-up: runs in what is left, yields every 200 µs.
    Background,
}

/// What a shard needs from outside. Cheap to clone; clones share everything.
pub trait Env: Clone + fmt::Debug + 'static {
    type Volume: Volume;

    fn volume(&self) -> &Self::Volume;

    fn now(&self) -> MonotonicTime;

    /// Wall-clock time, as written into records and metadata. May jump.
    fn wall_clock(&self) -> TimestampMs;

    fn random_u64(&self) -> u64;

    /// Runs a task on this shard until it ends or the shard does.
    fn spawn(&self, class: TaskClass, task: impl Future<Output = ()> + 'static);

    fn sleep(&self, duration: Duration) -> impl Future<Output = ()>;

    /// Lets other tasks run if this one has used up its turn.
    fn yield_now(&self) -> impl Future<Output = ()>;
}

/// How [`Volume::open`] opens a file. All files are opened for direct access; writes are stable when they return.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpenMode {
    /// Must exist; reads only.
    Read,
    /// Must exist; reads and writes.
    ReadWrite,
    /// `O_CREAT | O_EXCL`: exactly one of several candidates gets it, the others `AlreadyExists`.
    CreateNew,
}

/// What a name in a directory stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EntryKind {
    File,
    Directory,
    Other,
}

/// One name of a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DirectoryEntry {
    pub name: String,
    pub kind: EntryKind,
}

/// Bytes of the file system, as `statvfs` says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VolumeSpace {
    pub total_bytes: u64,
    pub available_bytes: u64,
}

/// The shared volume, seen from one shard. Paths are relative to its root; no call follows `..`.
///
/// Only rename within a directory, `CreateNew` and close-to-open visibility are atomic (DESIGN section 5).
/// No call blocks the shard's thread.
pub trait Volume: Clone + 'static {
    type File: VolumeFile;

    /// The name of a file that is made is durable only after [`Volume::sync_directory`]. Dropped half-way, a file may
    /// have been made; it does not stay open.
    fn open(&self, path: &Path, mode: OpenMode) -> impl Future<Output = io::Result<Self::File>>;

    /// The names in a directory, opened anew. Names that are not UTF-8 are left out: none of ours are.
    fn list(&self, directory: &Path) -> impl Future<Output = io::Result<Vec<DirectoryEntry>>>;

    /// The size of a file in bytes, by name.
    fn size(&self, path: &Path) -> impl Future<Output = io::Result<u64>>;

    /// When a file was written last, by the clock of whoever keeps it; `None` if the volume does not know.
    fn modified(&self, _path: &Path) -> impl Future<Output = io::Result<Option<TimestampMs>>> {
        std::future::ready(Ok(None))
    }

    /// The whole of a small file through the page cache, opened anew. `FileTooLarge` above `limit_bytes`.
    fn read(&self, path: &Path, limit_bytes: usize) -> impl Future<Output = io::Result<Vec<u8>>>;

    /// Writes a file and syncs it; it may exist. Not atomic: call it for a temporary name, then [`Volume::rename`].
    fn write(&self, path: &Path, content: Vec<u8>) -> impl Future<Output = io::Result<()>>;

    /// Writes `content` at offset 0 of an existing file with `O_SYNC`, cutting nothing: how a fence is revoked. Where it finds no room
    /// on the volume, it may leave zeros in its place, which take none: the fence is not empty any more all the same.
    fn overwrite(&self, path: &Path, content: Vec<u8>) -> impl Future<Output = io::Result<()>>;

    /// Atomic within one directory. Call [`Volume::sync_directory`] to make it durable.
    fn rename(&self, from: &Path, to: &Path) -> impl Future<Output = io::Result<()>>;

    fn unlink(&self, path: &Path) -> impl Future<Output = io::Result<()>>;

    /// Creates what is missing of a path, durably: each directory is synced into its parent.
    fn create_directories(&self, path: &Path) -> impl Future<Output = io::Result<()>>;

    fn remove_directory(&self, path: &Path) -> impl Future<Output = io::Result<()>>;

    fn sync_directory(&self, path: &Path) -> impl Future<Output = io::Result<()>>;

    /// Of the file system that `path` is on, which is a directory.
    fn space(&self, path: &Path) -> impl Future<Output = io::Result<VolumeSpace>>;
}

/// An open file with direct access. Closed when dropped, in the background, or by [`VolumeFile::close`].
pub trait VolumeFile: fmt::Debug + 'static {
    /// Writes whole blocks; they are on stable storage when this returns `Ok`. After an error nothing is known: the
    /// bytes may still land later.
    ///
    /// `content` lies in an [`AlignedBuffer`], starts at a block boundary there and is a multiple of [`BLOCK_BYTES`] long.
    fn write_at(&self, offset: u64, content: Bytes) -> impl Future<Output = io::Result<()>>;

    /// Reads up to `length` bytes from a block boundary; shorter only at the end of the file.
    fn read_at(&self, offset: u64, length: usize) -> impl Future<Output = io::Result<Bytes>>;

    fn truncate(&self, length: u64) -> impl Future<Output = io::Result<()>>;

    fn size(&self) -> impl Future<Output = io::Result<u64>>;

    fn close(self) -> impl Future<Output = io::Result<()>>;
}

/// Whether a name or a handle leads nowhere any more: somebody has removed what was there, on whichever client.
#[must_use]
pub fn is_gone(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::StaleNetworkFileHandle)
}

/// # Errors
/// `InvalidInput` unless direct I/O takes this offset.
fn check_aligned_offset(offset: u64) -> io::Result<()> {
    if offset.is_multiple_of(BLOCK_BYTES as u64) {
        return Ok(());
    }
    Err(io::Error::new(io::ErrorKind::InvalidInput, format!("offset {offset} is not at a block boundary")))
}

/// # Errors
/// `InvalidInput` unless direct I/O takes this write.
fn check_aligned_write(offset: u64, content: &Bytes) -> io::Result<()> {
    check_aligned_offset(offset)?;
    let aligned = content.len().is_multiple_of(BLOCK_BYTES) && content.as_ptr().addr().is_multiple_of(BLOCK_BYTES);
    if aligned && !content.is_empty() {
        return Ok(());
    }
    Err(io::Error::new(io::ErrorKind::InvalidInput, format!("{} bytes that are no aligned blocks", content.len())))
}
