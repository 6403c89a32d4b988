//! How far a read has come, and what it may still take. Pure.

use bytes::Bytes;
use kaas_proto::record::{BatchError, RecordBatchView};
use kaas_proto::types::Offset;

use super::batch_check::BatchCheck;

/// Where a read stands.
#[derive(Debug)]
pub struct ReadProgress {
    /// The next batch to read contains this offset or begins behind it.
    pub offset: Offset,
    /// Batches that begin here or behind are out of bounds.
    pub end: Offset,
    /// Bytes that may still be taken.
    pub budget: usize,
    /// The first batch is taken even above the budget (KIP-74).
    pub at_least_one: bool,
    /// Whole batches, in order.
    pub parts: Vec<Bytes>,
    /// The next batch does not fit the budget.
    full: bool,
}

/// Why [`ReadProgress::take`] came to an end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// The bytes end with a batch.
    Exhausted,
    /// The next batch lies behind the end, or does not fit the budget.
    Bounds,
    /// The bytes end within a batch that needs so many.
    CutOff { needed: usize },
    /// What follows is no batch: the end of what was written, or garbage.
    NoBatch,
    /// What follows is not the batch that was written there.
    Damaged,
}

/// What [`ReadProgress::take`] did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Taken {
    /// Bytes of batches that were taken or passed over.
    pub passed: usize,
    pub stop: Stop,
}

impl ReadProgress {
    #[must_use]
    pub fn new(offset: Offset, end: Offset, budget: usize, at_least_one: bool) -> Self {
        Self { offset, end, budget, at_least_one, parts: Vec::new(), full: false }
    }

    /// Takes whole batches from `bytes`, which begin with a batch, passing over those in front of the wanted offset.
    /// They are in memory as they were appended.
    pub fn take(&mut self, bytes: &Bytes) -> Taken {
        self.take_while(bytes, |_, _| true)
    }

    /// The same for bytes that come from the volume.
    pub fn take_checked(&mut self, bytes: &Bytes, check: &mut BatchCheck) -> Taken {
        self.take_while(bytes, |batch, end| check.admits(batch, end))
    }

    fn take_while(&mut self, bytes: &Bytes, mut admits: impl FnMut(RecordBatchView<'_>, Offset) -> bool) -> Taken {
        let (mut start, mut passed) = (None, 0);
        let stop = loop {
            let batch = match RecordBatchView::read(&bytes[passed..]) {
                Ok(batch) => batch,
                Err(BatchError::Empty) => break Stop::Exhausted,
                Err(BatchError::TooShort { needed, .. }) => break Stop::CutOff { needed },
                Err(_) => break Stop::NoBatch,
            };
            // Behind the end there may be anything.
            if self.offset >= self.end {
                break Stop::Bounds;
            }
            if !admits(batch, self.end) {
                break Stop::Damaged;
            }
            if batch.base_offset() >= self.end {
                break Stop::Bounds;
            }
            if batch.next_offset() > self.offset {
                if !self.fits(batch.size()) {
                    break Stop::Bounds;
                }
                start.get_or_insert(passed);
                self.at_least_one = false;
                self.budget = self.budget.saturating_sub(batch.size());
                self.offset = batch.next_offset();
            }
            passed += batch.size();
        };
        if let Some(start) = start {
            self.parts.push(bytes.slice(start..passed));
        }
        Taken { passed, stop }
    }

    /// Whether a batch of this size may be taken; if not, the read is complete.
    pub fn fits(&mut self, bytes: usize) -> bool {
        let fits = bytes <= self.budget || self.at_least_one;
        self.full |= !fits;
        fits
    }

    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.full || self.offset >= self.end || (self.budget == 0 && !self.at_least_one)
    }
}

#[cfg(test)]
mod tests {
    use kaas_proto::record::BatchBuilder;
    use kaas_proto::types::TimestampMs;

    use super::*;

    /// Batches of two records each, from offset 0.
    fn batches(count: i64) -> Bytes {
        let batch = |index: i64| {
            let builder = BatchBuilder::new().base_offset(Offset(index * 2));
            builder.record(TimestampMs(0), None, None).record(TimestampMs(0), None, None).build()
        };
        (0..count).map(batch).collect::<Vec<_>>().concat().into()
    }

    #[test]
    fn an_offset_inside_a_batch_gives_the_whole_batch() {
        let bytes = batches(3);
        let mut progress = ReadProgress::new(Offset(3), Offset(6), usize::MAX, false);
        assert_eq!(progress.take(&bytes), Taken { passed: bytes.len(), stop: Stop::Exhausted });
        assert_eq!(progress.parts, [bytes.slice(bytes.len() / 3..)]);
        assert!(progress.is_complete());
    }

    #[test]
    fn the_end_of_the_bytes_is_told_apart() {
        let bytes = batches(2);
        let one = bytes.len() / 2;
        let stop = |bytes: Bytes| ReadProgress::new(Offset(0), Offset(9), usize::MAX, false).take(&bytes);
        assert_eq!(stop(bytes.slice(..bytes.len() - 1)), Taken { passed: one, stop: Stop::CutOff { needed: one } });
        assert_eq!(stop([&bytes[..one], &[0; 100]].concat().into()), Taken { passed: one, stop: Stop::NoBatch });
        let mut bounded = ReadProgress::new(Offset(0), Offset(2), usize::MAX, false);
        assert_eq!(bounded.take(&bytes), Taken { passed: one, stop: Stop::Bounds });
    }

    #[test]
    fn the_first_batch_may_exceed_the_budget() {
        let bytes = batches(2);
        let mut progress = ReadProgress::new(Offset(0), Offset(4), 1, true);
        progress.take(&bytes);
        assert_eq!(progress.offset, Offset(2));
        assert!(progress.is_complete());
        let mut strict = ReadProgress::new(Offset(0), Offset(4), 1, false);
        strict.take(&bytes);
        assert!(strict.is_complete() && strict.parts.is_empty());
    }
}
