//! Whether bytes that a segment gave are what its leader wrote there: batches follow each other without a gap, are of the
//! segment's epoch, and have the right checksum. Pure.

use kaas_proto::record::RecordBatchView;
use kaas_proto::types::Offset;

use crate::format::segment_name::SegmentName;

/// Checks the batches of one segment, one after the other.
#[derive(Clone, Copy, Debug)]
pub struct BatchCheck {
    segment: SegmentName,
    /// The base offset of the next batch; `None`: not known, the first one tells.
    expected: Option<Offset>,
}

impl BatchCheck {
    #[must_use]
    pub fn new(segment: SegmentName, expected: Option<Offset>) -> Self {
        Self { segment, expected }
    }

    /// Whether the next batch is one of the segment's. What begins at `end` or behind is nobody's business where gaps
    /// are allowed; elsewhere it is in the wrong place.
    #[must_use]
    pub fn admits(&mut self, batch: RecordBatchView<'_>, end: Offset) -> bool {
        let base = batch.base_offset();
        // Compaction leaves gaps and the epochs of before.
        let belongs = if self.segment.generation > 0 {
            if base >= end {
                return true;
            }
            self.expected.is_none_or(|expected| base >= expected)
        } else {
            self.expected.is_none_or(|expected| base == expected)
                && batch.partition_leader_epoch() == self.segment.epoch
        };
        let good = belongs && batch.last_offset_delta() >= 0 && batch.check_crc().is_ok();
        if good {
            self.expected = Some(batch.next_offset());
        }
        good
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]
    use kaas_proto::record::BatchBuilder;
    use kaas_proto::types::{LeaderEpoch, TimestampMs};

    use super::*;

    const APPENDED: SegmentName = SegmentName { epoch: LeaderEpoch(4), base_offset: Offset(10), generation: 0 };
    const COMPACTED: SegmentName = SegmentName { generation: 1, ..APPENDED };

    fn batch(offset: i64, epoch: i32) -> Vec<u8> {
        let batch = BatchBuilder::new().base_offset(Offset(offset)).leader_epoch(LeaderEpoch(epoch));
        batch.record(TimestampMs(1), None, Some(b"value")).build().to_vec()
    }

    fn admits(check: &mut BatchCheck, batch: &[u8]) -> bool {
        check.admits(RecordBatchView::read(batch).unwrap(), Offset(20))
    }

    #[test]
    fn appended_batches_follow_each_other() {
        let mut check = BatchCheck::new(APPENDED, Some(Offset(10)));
        assert!(admits(&mut check, &batch(10, 4)));
        assert!(!admits(&mut check, &batch(10, 4)), "again");
        assert!(!admits(&mut check, &batch(12, 4)), "a gap");
        assert!(!admits(&mut check, &batch(25, 4)), "behind the end, although more is expected in front of it");
        assert!(!admits(&mut check, &batch(11, 3)), "another epoch");
        assert!(admits(&mut check, &batch(11, 4)));
        let mut unknown = BatchCheck::new(APPENDED, None);
        assert!(admits(&mut unknown, &batch(15, 4)));
        assert!(!admits(&mut unknown, &batch(15, 4)));
    }

    #[test]
    fn compacted_batches_rise() {
        let mut check = BatchCheck::new(COMPACTED, Some(Offset(10)));
        assert!(admits(&mut check, &batch(12, 2)));
        assert!(!admits(&mut check, &batch(11, 2)));
        assert!(admits(&mut check, &batch(25, 9)), "the caller stops there");
        assert!(admits(&mut check, &batch(13, 3)));
    }

    #[test]
    fn every_flipped_bit_behind_the_length_is_found() {
        let good = batch(10, 4);
        for bit in (0..good.len() * 8).filter(|bit| !(64..96).contains(bit) && bit / 8 != 16) {
            let mut flipped = good.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert!(!admits(&mut BatchCheck::new(APPENDED, Some(Offset(10))), &flipped), "bit {bit}");
        }
    }
}
