//! A compacted segment that is written.
//!
//! It is stable when [`Output::finish`] returns, and counts only once a manifest names it. Its name was never used
//! before: a generation is given out once.

use std::path::{Path, PathBuf};

use kaas_proto::record::RecordBatchView;
use kaas_proto::types::TimestampMs;

use super::error::CompactionError;
use crate::env::{AlignedBuffer, BLOCK_BYTES, Env, OpenMode, Volume, VolumeFile};
use crate::format::index::{BatchSpan, SegmentIndex};
use crate::format::partition_file::PartitionFile;
use crate::format::segment_name::SegmentName;
use crate::log::context::FileOf;
use crate::log::persist;
use crate::log::reader::largest_timestamp;
use crate::shard::reserve::reserve_bytes;

/// What is written at a time: what an NFS server takes as one WRITE.
const CHUNK_BYTES: usize = 1 << 20;

/// See the module.
#[derive(Debug)]
pub struct Output<E: Env> {
    env: E,
    directory: PathBuf,
    name: SegmentName,
    file: FileOf<E>,
    buffer: AlignedBuffer,
    /// Bytes that went to the file.
    written: u64,
    index: SegmentIndex,
    index_interval_bytes: u32,
    first_timestamp: TimestampMs,
}

/// A compacted segment, stable on the volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Written {
    pub name: SegmentName,
    pub bytes: u64,
    /// -1 without records.
    pub max_timestamp: TimestampMs,
    /// Of the first batch, -1 without.
    pub first_timestamp: TimestampMs,
}

impl<E: Env> Output<E> {
    /// Begins a segment.
    ///
    /// # Errors
    /// Those of the volume.
    pub async fn create(
        env: &E,
        directory: &Path,
        name: SegmentName,
        index_interval_bytes: u32,
    ) -> Result<Self, CompactionError> {
        let path = directory.join(name.log());
        let file = env.volume().open(&path, OpenMode::CreateNew).await;
        let file = file.map_err(CompactionError::volume("can't create", &path))?;
        Ok(Self {
            env: env.clone(),
            directory: directory.to_path_buf(),
            name,
            file,
            buffer: AlignedBuffer::with_capacity(CHUNK_BYTES),
            written: 0,
            index: SegmentIndex::new(name.base_offset),
            index_interval_bytes,
            first_timestamp: TimestampMs(-1),
        })
    }

    /// Adds a batch. Says how many bytes went to the volume.
    ///
    /// # Errors
    /// Those of writing.
    pub async fn push(&mut self, batch: RecordBatchView<'_>) -> Result<u64, CompactionError> {
        if self.index.covered_bytes == 0 {
            self.first_timestamp = batch.max_timestamp();
        }
        let span = BatchSpan {
            base_offset: batch.base_offset(),
            next_offset: batch.next_offset(),
            bytes: batch.size() as u64,
            max_timestamp: largest_timestamp(batch),
        };
        self.index.push(span, self.index_interval_bytes);
        let before = self.written;
        let mut rest = batch.bytes();
        while !rest.is_empty() {
            let (part, behind) = rest.split_at(rest.len().min(self.buffer.remaining()));
            self.buffer.extend_from_slice(part);
            rest = behind;
            if self.buffer.remaining() == 0 {
                self.flush().await?;
            }
        }
        Ok(self.written - before)
    }

    /// Not at the expense of the last room, which producers and takeovers need before anything is compacted.
    async fn check_room(&self, bytes: u64) -> Result<(), CompactionError> {
        match self.env.volume().space(&self.directory).await {
            Ok(space) if space.available_bytes < bytes + reserve_bytes(space.total_bytes) => {
                Err(CompactionError::Refused("the volume is nearly full".into()))
            }
            // A volume that does not say is asked by trying.
            Ok(_) | Err(_) => Ok(()),
        }
    }

    async fn flush(&mut self) -> Result<(), CompactionError> {
        self.check_room(self.buffer.len() as u64).await?;
        let full = std::mem::replace(&mut self.buffer, AlignedBuffer::with_capacity(CHUNK_BYTES));
        let bytes = full.len() as u64;
        let outcome = self.file.write_at(self.written, full.freeze()).await;
        outcome.map_err(CompactionError::volume("can't write", self.directory.join(self.name.log())))?;
        self.written += bytes;
        Ok(())
    }

    /// Writes what is left, and the index, which is a hint.
    ///
    /// # Errors
    /// Those of writing.
    pub async fn finish(&mut self) -> Result<Written, CompactionError> {
        if !self.buffer.is_empty() {
            self.buffer.pad(self.buffer.len().next_multiple_of(BLOCK_BYTES));
            self.flush().await?;
        }
        let index = PartitionFile::Index(self.name);
        let written = persist::replace(&self.env, &self.directory, index, self.index.encode()).await;
        written.map_err(CompactionError::volume("can't write", self.directory.join(self.name.index())))?;
        Ok(Written {
            name: self.name,
            bytes: self.index.covered_bytes,
            max_timestamp: self.index.max_timestamp,
            first_timestamp: self.first_timestamp,
        })
    }

    /// Lets go of the file.
    pub async fn close(self) {
        drop(self.file.close().await);
    }
}

/// Removes a segment that no manifest names. What stays is tidied by the next leader.
pub async fn discard(volume: &impl Volume, directory: &Path, name: SegmentName) {
    drop(volume.unlink(&directory.join(name.index())).await);
    drop(volume.unlink(&directory.join(name.log())).await);
}
