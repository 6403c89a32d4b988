//! Where a segment really ends: every batch is read and verified, up to the first byte that is none.
//!
//! Memory is bounded by one window, or one batch where that is larger. Yields between windows.

use std::io;

use kaas_proto::record::{BatchError, RecordBatchView};
use kaas_proto::types::Offset;

use super::batch_check::BatchCheck;
use super::commit::{MAX_BATCH_BYTES, MAX_COMMIT_BYTES};
use crate::env::{BLOCK_BYTES, Env, VolumeFile};
use crate::format::segment_name::SegmentName;

const WINDOW_BYTES: usize = 1 << 20;

/// The first window: what a small partition has. The kernel pins the whole of it for a direct read.
const FIRST_WINDOW_BYTES: usize = 16 << 10;

/// The first window behind a checkpoint: after a clean stop there are only zeros.
const FIRST_WINDOW_BEHIND_CHECKPOINT_BYTES: usize = 1;

/// How far behind the end of a segment a batch is looked for: more than one write has.
const SEARCH_BYTES: usize = 2 * MAX_COMMIT_BYTES;
/// Bytes that are looked at between two yields.
const SEARCH_STEP_BYTES: usize = 64 << 10;

/// Where a scan begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScanStart {
    pub segment: SegmentName,
    /// A batch boundary, and the offset of the batch there.
    pub position: u64,
    pub offset: Offset,
    /// Batches that begin here or behind are dead.
    pub limit: Option<Offset>,
}

/// Where a scan ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScanEnd {
    pub position: u64,
    pub offset: Offset,
    /// Bytes were read and verified.
    pub bytes: u64,
    pub stop: ScanStop,
}

/// What stands behind the last good batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScanStop {
    /// Nothing, or the zeros that fill a block.
    End,
    /// The limit.
    Limit,
    /// Something that is no batch of this segment: a torn write, or damage.
    Garbage,
    /// The caller lost interest.
    Interrupted,
}

/// Verifies a segment batch by batch, and shows each good one to `visit` with its position.
///
/// # Errors
/// Those of reading. A bad batch is no error, it is the end.
pub async fn scan<E: Env>(
    env: &E,
    file: &impl VolumeFile,
    start: ScanStart,
    interrupted: impl Fn() -> bool,
    mut visit: impl FnMut(RecordBatchView<'_>, u64),
) -> io::Result<ScanEnd> {
    let mut end = ScanEnd { position: start.position, offset: start.offset, bytes: 0, stop: ScanStop::End };
    let mut wanted = if start.position > 0 { FIRST_WINDOW_BEHIND_CHECKPOINT_BYTES } else { FIRST_WINDOW_BYTES };
    loop {
        if interrupted() {
            return Ok(ScanEnd { stop: ScanStop::Interrupted, ..end });
        }
        let skipped = usize::try_from(end.position % BLOCK_BYTES as u64).expect("less than a block");
        let length = (skipped + wanted).next_multiple_of(BLOCK_BYTES);
        let bytes = file.read_at(end.position - skipped as u64, length).await?;
        end.bytes += bytes.len() as u64;
        let is_last = bytes.len() < length;
        let mut rest = bytes.get(skipped..).unwrap_or_default();
        let stop = loop {
            let batch = match RecordBatchView::read(rest) {
                Ok(batch) => batch,
                Err(error) => break error,
            };
            match judge(batch, start, end.offset) {
                Judgement::Good => {}
                Judgement::Limit => return Ok(ScanEnd { stop: ScanStop::Limit, ..end }),
                Judgement::Bad => return Ok(ScanEnd { stop: ScanStop::Garbage, ..end }),
            }
            visit(batch, end.position);
            end.position += batch.size() as u64;
            end.offset = batch.next_offset();
            rest = &rest[batch.size()..];
        };
        match stop {
            BatchError::Empty if !is_last => wanted = WINDOW_BYTES,
            BatchError::TooShort { needed, .. } if !is_last && needed <= MAX_BATCH_BYTES => {
                wanted = needed.max(WINDOW_BYTES);
                if needed > WINDOW_BYTES && end.position + needed as u64 > file.size().await? {
                    return Ok(ScanEnd { stop: ScanStop::Garbage, ..end });
                }
            }
            _ if rest.iter().all(|&byte| byte == 0) => return Ok(end),
            _ => return Ok(ScanEnd { stop: ScanStop::Garbage, ..end }),
        }
        env.yield_now().await;
    }
}

/// Whether whole batches of a segment stand behind the garbage that a scan ended at. A torn write can leave that, if it
/// had several batches; mostly it is damage, and records that were acknowledged.
///
/// # Errors
/// Those of reading.
pub async fn has_batch_behind<E: Env>(
    env: &E,
    file: &impl VolumeFile,
    segment: SegmentName,
    end: ScanEnd,
) -> io::Result<bool> {
    let skipped = usize::try_from(end.position % BLOCK_BYTES as u64).expect("less than a block");
    let bytes = file.read_at(end.position - skipped as u64, SEARCH_BYTES).await?;
    let bytes = bytes.get(skipped..).unwrap_or_default();
    for from in (1..bytes.len()).step_by(SEARCH_STEP_BYTES) {
        let until = (from + SEARCH_STEP_BYTES).min(bytes.len());
        let is_found = (from..until).any(|position| {
            let batch = RecordBatchView::read(&bytes[position..]);
            batch.is_ok_and(|batch| {
                batch.base_offset() > end.offset && BatchCheck::new(segment, None).admits(batch, Offset(i64::MAX))
            })
        });
        if is_found {
            return Ok(true);
        }
        env.yield_now().await;
    }
    Ok(false)
}

enum Judgement {
    Good,
    Limit,
    Bad,
}

fn judge(batch: RecordBatchView<'_>, start: ScanStart, expected: Offset) -> Judgement {
    if start.limit.is_some_and(|limit| batch.base_offset() >= limit) {
        return Judgement::Limit;
    }
    let good = BatchCheck::new(start.segment, Some(expected)).admits(batch, Offset(i64::MAX));
    if good { Judgement::Good } else { Judgement::Bad }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]
    use std::path::Path;

    use kaas_proto::record::BatchBuilder;
    use kaas_proto::types::{LeaderEpoch, TimestampMs};

    use super::*;
    use crate::env::memory::MemoryEnv;
    use crate::env::{OpenMode, Volume};

    const EPOCH: LeaderEpoch = LeaderEpoch(4);

    fn batch(base_offset: i64, epoch: LeaderEpoch, value_bytes: usize) -> Vec<u8> {
        let builder = BatchBuilder::new().base_offset(Offset(base_offset)).leader_epoch(epoch);
        builder.record(TimestampMs(1), None, Some(&vec![3; value_bytes])).build().to_vec()
    }

    fn start() -> ScanStart {
        let segment = SegmentName::appended(EPOCH, Offset(0));
        ScanStart { segment, position: 0, offset: Offset(0), limit: None }
    }

    /// Scans a file with this content; returns the end and the offsets that were visited.
    fn scan_bytes(content: &[u8], start: ScanStart) -> (ScanEnd, Vec<i64>) {
        let env = MemoryEnv::virtual_time();
        env.run(async {
            env.volume().write(Path::new("s"), content.to_vec()).await.unwrap();
            let file = env.volume().open(Path::new("s"), OpenMode::Read).await.unwrap();
            let mut visited = Vec::new();
            let end = scan(&env, &file, start, || false, |batch, _| visited.push(batch.base_offset().0)).await.unwrap();
            (end, visited)
        })
    }

    #[test]
    fn a_torn_tail_is_found_at_every_byte() {
        let first = batch(0, EPOCH, 30);
        let whole = [first.clone(), batch(1, EPOCH, 30)].concat();
        for length in first.len()..whole.len() {
            for fill in [0, 0xff] {
                let mut torn = whole[..length].to_vec();
                torn.resize(4096, fill);
                let (end, visited) = scan_bytes(&torn, start());
                if torn.starts_with(&whole) {
                    assert_eq!(end.offset, Offset(2), "what was cut off is what fills the block");
                    continue;
                }
                assert_eq!((end.position, end.offset), (first.len() as u64, Offset(1)), "cut at {length}");
                assert_eq!(visited, [0]);
                let clean = fill == 0 && whole[first.len()..length].iter().all(|&byte| byte == 0);
                assert_eq!(end.stop == ScanStop::End, clean, "cut at {length}, filled with {fill}");
            }
            let (end, _) = scan_bytes(&whole[..length], start());
            assert_eq!(end.offset, Offset(1));
        }
        let (end, _) = scan_bytes(&whole, start());
        assert_eq!((end.offset, end.stop), (Offset(2), ScanStop::End));
    }

    #[test]
    fn every_flipped_bit_is_the_end() {
        let first = batch(0, EPOCH, 30);
        let whole = [first.clone(), batch(1, EPOCH, 30)].concat();
        for bit in first.len() * 8..whole.len() * 8 {
            let mut flipped = whole.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            let (end, _) = scan_bytes(&flipped, start());
            assert_eq!((end.offset, end.stop), (Offset(1), ScanStop::Garbage), "bit {bit}");
        }
    }

    #[test]
    fn batches_of_another_epoch_or_offset_do_not_count() {
        let foreign = [batch(0, EPOCH, 10), batch(1, LeaderEpoch(3), 10)].concat();
        assert_eq!(scan_bytes(&foreign, start()).0.offset, Offset(1));
        let gap = [batch(0, EPOCH, 10), batch(2, EPOCH, 10)].concat();
        assert_eq!(scan_bytes(&gap, start()).0.offset, Offset(1));
        let compacted = ScanStart { segment: SegmentName { generation: 1, ..start().segment }, ..start() };
        assert_eq!(scan_bytes(&gap, compacted).0.offset, Offset(3));
    }

    #[test]
    fn the_limit_and_the_window_are_respected() {
        let batches: Vec<_> = (0..40).map(|offset| batch(offset, EPOCH, 100_000)).collect();
        let (end, visited) = scan_bytes(&batches.concat(), start());
        assert_eq!((end.offset, visited.len(), end.stop), (Offset(40), 40, ScanStop::End));
        let limited = ScanStart { limit: Some(Offset(3)), ..start() };
        let (end, _) = scan_bytes(&batches.concat(), limited);
        assert_eq!((end.offset, end.stop), (Offset(3), ScanStop::Limit));
        let later = ScanStart { position: batches[0].len() as u64, offset: Offset(1), ..start() };
        assert_eq!(scan_bytes(&batches.concat(), later).1[0], 1);
        let large = [batch(0, EPOCH, 3_000_000), batch(1, EPOCH, 10)].concat();
        assert_eq!(scan_bytes(&large, start()).0.offset, Offset(2));
    }
}
