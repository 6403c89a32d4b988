//! A segment that is read from end to end, batch by batch, every checksum verified.

use std::path::{Path, PathBuf};

use bytes::Bytes;
use kaas_proto::record::{BatchError, RecordBatchView};
use kaas_proto::types::Offset;

use super::error::CompactionError;
use crate::env::{BLOCK_BYTES, OpenMode, Volume, VolumeFile};
use crate::format::segment_name::SegmentName;
use crate::log::commit::MAX_BATCH_BYTES;

/// What is read at a time, unless one batch is larger.
const WINDOW_BYTES: usize = 1 << 20;

/// Which part of a segment counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SourceRange {
    pub segment: SegmentName,
    /// Batches below are dead.
    pub start: Offset,
    /// Batches at or above are not wanted.
    pub end: Offset,
    /// Bytes of a compacted segment, which may end with a gap; 0 if not known.
    pub bytes: u64,
}

/// See the module. A handle of its own: readers and their handles are left alone.
#[derive(Debug)]
pub struct Source<F> {
    path: PathBuf,
    file: F,
    range: SourceRange,
    position: u64,
    next_offset: Offset,
}

impl<F> Source<F> {
    /// Something near the present position can't be trusted.
    #[must_use]
    pub fn damaged(&self, reason: String) -> CompactionError {
        CompactionError::Damaged { path: self.path.clone(), position: self.position, reason }
    }
}

impl<F: VolumeFile> Source<F> {
    /// # Errors
    /// Those of opening the file.
    pub async fn open<V: Volume<File = F>>(
        volume: &V,
        directory: &Path,
        range: SourceRange,
    ) -> Result<Self, CompactionError> {
        let path = directory.join(range.segment.log());
        let file = volume.open(&path, OpenMode::Read).await.map_err(CompactionError::volume("can't open", &path))?;
        Ok(Self { path, file, range, position: 0, next_offset: range.segment.base_offset })
    }

    /// The next whole batches; `None` at the end.
    ///
    /// # Errors
    /// Those of reading, and anything that is not as it should be.
    pub async fn next(&mut self) -> Result<Option<Bytes>, CompactionError> {
        let mut wanted = WINDOW_BYTES;
        while self.next_offset < self.range.end {
            let skipped = usize::try_from(self.position % BLOCK_BYTES as u64).expect("less than a block");
            let length = (skipped + wanted).next_multiple_of(BLOCK_BYTES);
            let window = self.file.read_at(self.position - skipped as u64, length).await;
            let window = window.map_err(|error| CompactionError::volume("can't read", &self.path)(error))?;
            let is_last = window.len() < length;
            let window = window.slice(skipped.min(window.len())..);
            let (mut begin, mut end) = (0, 0);
            let stop = loop {
                let batch = match RecordBatchView::read(&window[end..]) {
                    Ok(batch) => batch,
                    Err(error) => break Some(error),
                };
                if batch.base_offset() >= self.range.end {
                    break None;
                }
                self.check(batch, self.position + end as u64)?;
                self.next_offset = batch.next_offset();
                end += batch.size();
                if batch.base_offset() < self.range.start {
                    begin = end;
                }
            };
            self.position += end as u64;
            if begin < end {
                return Ok(Some(window.slice(begin..end)));
            }
            match stop {
                Some(BatchError::Empty) if !is_last => wanted = WINDOW_BYTES,
                Some(BatchError::TooShort { needed, .. }) if !is_last && needed <= MAX_BATCH_BYTES => {
                    // A length that is damaged would have us take memory for nothing.
                    if needed > WINDOW_BYTES && self.position + needed as u64 > self.size().await? {
                        return self.ended();
                    }
                    wanted = needed.max(WINDOW_BYTES);
                }
                Some(_) | None => return self.ended(),
            }
        }
        Ok(None)
    }

    /// Lets go of the file.
    pub async fn close(self) {
        drop(self.file.close().await);
    }

    async fn size(&self) -> Result<u64, CompactionError> {
        self.file.size().await.map_err(|error| CompactionError::volume("can't look at", &self.path)(error))
    }

    fn check(&self, batch: RecordBatchView<'_>, position: u64) -> Result<(), CompactionError> {
        let SegmentName { epoch, generation, .. } = self.range.segment;
        let belongs = if generation > 0 {
            batch.base_offset() >= self.next_offset
        } else {
            batch.base_offset() == self.next_offset && batch.partition_leader_epoch() == epoch
        };
        let reason = match batch.check_crc() {
            Err(error) => error.to_string(),
            Ok(()) if belongs && batch.last_offset_delta() >= 0 => return Ok(()),
            Ok(()) => format!("a batch of offset {} and epoch {epoch} should follow", self.next_offset),
        };
        Err(CompactionError::Damaged { path: self.path.clone(), position, reason })
    }

    /// No batch follows: whether all were there.
    fn ended(&self) -> Result<Option<Bytes>, CompactionError> {
        let is_complete = if self.range.segment.generation > 0 {
            self.position >= self.range.bytes
        } else {
            self.next_offset >= self.range.end
        };
        if is_complete {
            return Ok(None);
        }
        Err(self.damaged(format!("it should hold records up to offset {}", self.range.end)))
    }
}
