//! One group commit: what queued, packed behind the last partial block into aligned memory.
//!
//! Pure. A segment is written in whole blocks. Its last, partial block is kept in memory, written again in front of what
//! follows, and padded with zeros, which readers and recovery take for the end. Rewriting the same bytes is harmless under
//! tearing: whatever of the write lands, they are the same.
//!
//! A write that makes a file longer costs far more than one inside it: the file system has to make a new length durable as well. So
//! a small commit that comes to the end of the file carries zeros for some of those that follow:
//!
//! ```text
//!   commit 1 │batches│zeros ─────────────────▶│   makes the file longer
//!   commit 2         │batches│                │   stays inside
//!   commit 3                 │batches│        │
//! ```

use std::ops::RangeInclusive;

use bytes::Bytes;
use kaas_proto::record::patch;
use kaas_proto::types::{LeaderEpoch, Offset, TimestampMs};

use crate::env::{AlignedBuffer, BLOCK_BYTES};

/// A commit takes further batches up to this size: what an NFS server takes as one WRITE. A larger batch goes alone.
pub const MAX_COMMIT_BYTES: usize = 1 << 20;

/// A commit with more new bytes than this has its cost in them, and carries no zeros for others.
const MAX_SMALL_COMMIT_BYTES: usize = 16 << 10;

/// So many zeros go ahead: as many bytes as the file has, within these bounds. The first commit of a segment carries none: many
/// partitions never see a second one.
const BYTES_AHEAD: RangeInclusive<u64> = 64 << 10..=256 << 10;

/// While a commit of this size or more is written, the next one is packed: a smaller one is packed in no time.
const PACKED_AHEAD_BYTES: usize = 64 << 10;

/// No batch is larger: what recovery believes of a length that it reads.
pub const MAX_BATCH_BYTES: usize = 256 << 20;

/// A batch whose offset is assigned, waiting to be written.
#[derive(Clone, Debug)]
pub struct QueuedBatch {
    /// As the client sent it.
    pub bytes: Bytes,
    pub base_offset: Offset,
    /// The offset behind it.
    pub next_offset: Offset,
    pub max_timestamp: TimestampMs,
    pub stamp: Stamp,
}

/// What the broker changes in a batch under its CRC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stamp {
    Nothing,
    /// The client's is not that of the records.
    MaxTimestamp,
    LogAppendTime,
}

/// Where a batch came to lie, for the index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlacedBatch {
    pub base_offset: Offset,
    pub position: u64,
    pub max_timestamp: TimestampMs,
}

/// One write. Content and positions refer to the same segment.
#[derive(Clone, Debug)]
pub struct Commit {
    /// Whole blocks, to be written at [`Commit::block_position`]. Zeros behind the last batch.
    pub content: Bytes,
    /// What the content takes of memory.
    pub memory_bytes: usize,
    pub block_position: u64,
    /// Where the first new batch begins.
    pub first_position: u64,
    /// The logical end of the segment after the write.
    pub end_position: u64,
    /// The offset of the first new batch, and the one behind the last.
    pub first_offset: Offset,
    pub next_offset: Offset,
    pub batches: Vec<PlacedBatch>,
}

/// A commit in the making.
#[derive(Debug)]
pub struct Packing {
    buffer: AlignedBuffer,
    epoch: LeaderEpoch,
    first_position: u64,
    block_position: u64,
    batches: Vec<PlacedBatch>,
    /// Of the batches: from the first one to the one behind the last.
    offsets: Option<(Offset, Offset)>,
}

impl Packing {
    /// Begins behind `tail`, the bytes of the last partial block of a segment that ends at `end_position`, with room for `room` bytes of
    /// batches.
    ///
    /// # Panics
    /// When `tail` does not fit the position.
    #[must_use]
    pub fn begin(tail: &[u8], end_position: u64, epoch: LeaderEpoch, room: usize) -> Self {
        assert_eq!(tail.len() as u64, end_position % BLOCK_BYTES as u64, "the tail is the last partial block");
        let mut buffer = AlignedBuffer::with_capacity(tail.len() + room);
        buffer.extend_from_slice(tail);
        Self {
            buffer,
            epoch,
            first_position: end_position,
            block_position: end_position - tail.len() as u64,
            batches: Vec::new(),
            offsets: None,
        }
    }

    /// Bytes of batches that still fit.
    #[must_use]
    pub fn room(&self) -> usize {
        self.buffer.remaining()
    }

    /// How many batches it has.
    #[must_use]
    pub fn count(&self) -> usize {
        self.batches.len()
    }

    /// Bytes of the batches.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let before = usize::try_from(self.first_position - self.block_position).expect("less than a block");
        self.buffer.len() - before
    }

    /// Where the first batch begins.
    #[must_use]
    pub fn first_position(&self) -> u64 {
        self.first_position
    }

    /// Whether the batches take a fair part of the memory, which a cache keeps as a whole.
    #[must_use]
    pub fn is_filled(&self) -> bool {
        self.buffer.len() >= self.buffer.capacity() / 4
    }

    /// # Panics
    /// If there is no [`Packing::room`] for it.
    pub fn add(&mut self, batch: &QueuedBatch) {
        let start = self.buffer.len();
        self.buffer.extend_from_slice(&batch.bytes);
        assign(&mut self.buffer[start..], batch, self.epoch);
        self.batches.push(PlacedBatch {
            base_offset: batch.base_offset,
            position: self.block_position + start as u64,
            max_timestamp: batch.max_timestamp,
        });
        let first = self.offsets.map_or(batch.base_offset, |(first, _)| first);
        self.offsets = Some((first, batch.next_offset));
    }

    /// Pads it with zeros for a file that has `file_bytes` now.
    ///
    /// # Panics
    /// Without batches.
    #[must_use]
    pub fn finish(mut self, file_bytes: u64) -> Commit {
        let (first_offset, next_offset) = self.offsets.expect("a commit has at least one batch");
        let (used, new_bytes) = (self.buffer.len(), self.bytes());
        let end_position = self.first_position + new_bytes as u64;
        let length = used.next_multiple_of(BLOCK_BYTES) + zeros_ahead(end_position, file_bytes, new_bytes);
        self.buffer.pad(length.min(self.buffer.capacity()));
        Commit {
            memory_bytes: self.buffer.capacity(),
            content: self.buffer.freeze(),
            block_position: self.block_position,
            first_position: self.first_position,
            end_position,
            first_offset,
            next_offset,
            batches: self.batches,
        }
    }
}

impl Commit {
    /// Packs `batches` behind `tail`, the bytes of the last partial block of a segment that ends at `end_position` and whose file has
    /// `file_bytes`.
    ///
    /// # Panics
    /// Without batches, or when `tail` does not fit the position.
    #[must_use]
    pub fn pack(tail: &[u8], end_position: u64, file_bytes: u64, epoch: LeaderEpoch, batches: &[QueuedBatch]) -> Self {
        let new_bytes: usize = batches.iter().map(|batch| batch.bytes.len()).sum();
        let zeros = zeros_ahead(end_position + new_bytes as u64, file_bytes, new_bytes);
        let mut packing = Packing::begin(tail, end_position, epoch, new_bytes + zeros);
        batches.iter().for_each(|batch| packing.add(batch));
        packing.finish(file_bytes)
    }

    /// Whether more than the last block was filled with zeros.
    #[must_use]
    pub fn has_zeros_ahead(&self) -> bool {
        self.file_bytes() - self.end_position >= BLOCK_BYTES as u64
    }

    /// The beginning of the commit that follows this one in a segment of at most `segment_bytes`, if it is worth packing while this one is
    /// written: room for twice as much.
    #[must_use]
    pub fn pack_next(&self, epoch: LeaderEpoch, segment_bytes: u64) -> Option<Packing> {
        let left = usize::try_from(segment_bytes.saturating_sub(self.end_position)).unwrap_or(usize::MAX);
        let room = (2 * self.content.len()).min(MAX_COMMIT_BYTES).min(left);
        (self.content.len() >= PACKED_AHEAD_BYTES && room >= PACKED_AHEAD_BYTES)
            .then(|| Packing::begin(self.tail(), self.end_position, epoch, room))
    }

    /// How long the file is at least after the write.
    #[must_use]
    pub fn file_bytes(&self) -> u64 {
        self.block_position + self.content.len() as u64
    }

    /// The bytes between two positions of the segment, which must lie in this commit.
    #[must_use]
    pub fn slice(&self, from: u64, to: u64) -> Bytes {
        let within = |position: u64| usize::try_from(position - self.block_position).expect("a commit fits memory");
        self.content.slice(within(from)..within(to))
    }

    /// The last partial block after the write.
    #[must_use]
    pub fn tail(&self) -> &[u8] {
        let end = usize::try_from(self.end_position - self.block_position).expect("a commit fits memory");
        &self.content[end - end % BLOCK_BYTES..end]
    }
}

/// Zeros, in whole blocks, that a commit which ends at `end_position` carries for those that follow.
fn zeros_ahead(end_position: u64, file_bytes: u64, new_bytes: usize) -> usize {
    if file_bytes == 0 || end_position <= file_bytes || new_bytes > MAX_SMALL_COMMIT_BYTES {
        return 0;
    }
    let ahead = file_bytes.clamp(*BYTES_AHEAD.start(), *BYTES_AHEAD.end());
    usize::try_from(ahead).expect("a bounded number").next_multiple_of(BLOCK_BYTES)
}

/// Writes what the broker assigns into a batch.
fn assign(bytes: &mut [u8], batch: &QueuedBatch, epoch: LeaderEpoch) {
    patch::patch_base_offset(bytes, batch.base_offset);
    patch::patch_leader_epoch(bytes, epoch);
    match batch.stamp {
        Stamp::Nothing => {}
        Stamp::MaxTimestamp => patch::set_max_timestamp(bytes, batch.max_timestamp),
        Stamp::LogAppendTime => patch::set_log_append_time(bytes, batch.max_timestamp),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]
    use kaas_proto::record::{BatchBuilder, Batches};

    use super::*;

    fn batch(base_offset: i64, value_bytes: usize, stamp: Stamp) -> QueuedBatch {
        let value = vec![7; value_bytes];
        let bytes = BatchBuilder::new().record(TimestampMs(5), None, Some(&value)).build();
        QueuedBatch {
            bytes,
            base_offset: Offset(base_offset),
            next_offset: Offset(base_offset + 1),
            max_timestamp: TimestampMs(if stamp == Stamp::LogAppendTime { 99 } else { 5 }),
            stamp,
        }
    }

    #[test]
    fn a_commit_begins_with_the_last_partial_block() {
        let batches = [batch(10, 100, Stamp::Nothing), batch(11, 5000, Stamp::LogAppendTime)];
        let commit = Commit::pack(&[9; 96], 2 * 4096 + 96, 3 * 4096, LeaderEpoch(3), &batches);
        assert_eq!((commit.block_position, commit.first_position), (8192, 8288));
        assert_eq!(commit.content.len() % BLOCK_BYTES, 0);
        assert_eq!(commit.content[..96], [9; 96]);
        assert_eq!((commit.first_offset, commit.next_offset), (Offset(10), Offset(12)));
        let written = commit.slice(commit.first_position, commit.end_position);
        let views: Vec<_> = Batches::new(&written).map(Result::unwrap).collect();
        assert_eq!(views.iter().map(|view| view.base_offset().0).collect::<Vec<_>>(), [10, 11]);
        for view in &views {
            view.check_crc().unwrap();
            assert_eq!(view.partition_leader_epoch(), LeaderEpoch(3));
        }
        assert!(views[1].is_log_append_time());
        assert_eq!(views[1].max_timestamp(), TimestampMs(99));
        let end = usize::try_from(commit.end_position - commit.block_position).unwrap();
        assert!(commit.content[end..].iter().all(|&byte| byte == 0));
        assert_eq!(commit.tail(), &commit.content[end - end % BLOCK_BYTES..end]);
        assert_eq!(commit.batches[1].position, commit.first_position + batches[0].bytes.len() as u64);
    }

    #[test]
    fn a_commit_that_ends_on_a_block_leaves_no_tail() {
        let small = batch(0, 100, Stamp::Nothing).bytes.len();
        let fill = batch(1, BLOCK_BYTES - 2 * small + 100 - 1, Stamp::Nothing);
        let batches = [batch(0, 100, Stamp::Nothing), fill];
        let commit = Commit::pack(&[], 0, 0, LeaderEpoch(0), &batches);
        let left = usize::try_from(commit.end_position).unwrap() % BLOCK_BYTES;
        assert_eq!(commit.tail().len(), left);
    }

    #[test]
    fn small_commits_at_the_end_of_a_file_make_room_for_others() {
        let (mut tail, mut position, mut file_bytes, mut longer) = (Vec::new(), 0, 0, 0);
        for offset in 0..2000 {
            let batches = [batch(offset, 1000, Stamp::Nothing)];
            let commit = Commit::pack(&tail, position, file_bytes, LeaderEpoch(1), &batches);
            let used = usize::try_from(commit.end_position - commit.block_position).unwrap();
            assert!(commit.content[used..].iter().all(|&byte| byte == 0));
            if commit.file_bytes() > file_bytes {
                longer += 1;
                assert_eq!(commit.has_zeros_ahead(), file_bytes > 0);
                assert!(commit.file_bytes() - commit.end_position < BYTES_AHEAD.end() + 4096);
            } else {
                assert_eq!(commit.content.len(), used.next_multiple_of(4096), "nothing but what has to be written");
            }
            file_bytes = file_bytes.max(commit.file_bytes());
            (tail, position) = (commit.tail().to_vec(), commit.end_position);
        }
        assert!(longer < 15, "{longer} of 2000 commits made the file longer");
        let large = [batch(0, MAX_SMALL_COMMIT_BYTES, Stamp::Nothing)];
        let commit = Commit::pack(&[], 1 << 20, 1 << 20, LeaderEpoch(1), &large);
        assert_eq!(commit.file_bytes(), commit.end_position.next_multiple_of(4096));
    }
}
