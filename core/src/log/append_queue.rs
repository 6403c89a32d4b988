//! What waits to be written, and who waits for it to be acknowledged.
//!
//! Pure, shard-local. Batches leave in the order of their offsets, in commits; tickets are answered when the high
//! watermark passes what they wait for.

use std::collections::VecDeque;
use std::rc::Rc;

use kaas_proto::types::{Offset, TimestampMs};

use super::commit::{MAX_COMMIT_BYTES, Packing, QueuedBatch};
use crate::partition::error::AppendError;
use crate::shard::gather::Gather;
use crate::shard::operation::Appended;

/// Bytes that may wait for a write, per log. Beyond it producers are told to try again.
pub const MAX_QUEUED_BYTES: usize = 32 << 20;

/// Who is told how an append went: one row of a reply.
#[derive(Debug)]
pub struct Ticket {
    gather: Rc<Gather<Result<Appended, AppendError>>>,
    row: usize,
}

impl Ticket {
    #[must_use]
    pub fn new(gather: Rc<Gather<Result<Appended, AppendError>>>, row: usize) -> Self {
        Self { gather, row }
    }

    pub fn answer(self, result: Result<Appended, AppendError>) {
        self.gather.fill(self.row, result);
    }
}

/// A ticket, and what its answer will be once everything below `until` is acknowledged.
#[derive(Debug)]
pub struct Waiting {
    pub until: Offset,
    pub base_offset: Offset,
    /// -1 for CreateTime.
    pub log_append_time: TimestampMs,
    pub ticket: Ticket,
}

/// What the appender is to do next.
#[derive(Debug)]
pub enum NextStep {
    /// Nothing is queued.
    Rest,
    /// The next batch belongs into a new segment.
    Roll,
    /// These batches, and the commit of them if it was packed ahead.
    Write(Vec<QueuedBatch>, Option<Packing>),
}

#[derive(Debug)]
pub struct AppendQueue {
    batches: VecDeque<QueuedBatch>,
    bytes: usize,
    /// The next commit, packed while the one before it is written. It has the first of the batches.
    packing: Option<Packing>,
    /// The offset of the next batch.
    log_end: Offset,
    /// By rising `until`.
    waiting: VecDeque<Waiting>,
}

impl AppendQueue {
    #[must_use]
    pub fn new(log_end: Offset) -> Self {
        Self { batches: VecDeque::new(), bytes: 0, packing: None, log_end, waiting: VecDeque::new() }
    }

    /// The offset that the next batch gets.
    #[must_use]
    pub fn log_end(&self) -> Offset {
        self.log_end
    }

    /// Bytes that are queued and not being written.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Whether so many more bytes may be queued. One batch always may.
    #[must_use]
    pub fn has_room(&self, bytes: usize) -> bool {
        self.batches.is_empty() || self.bytes + bytes <= MAX_QUEUED_BYTES
    }

    /// # Panics
    /// If the batch does not begin at the log end.
    pub fn push(&mut self, batch: QueuedBatch) {
        assert_eq!(batch.base_offset, self.log_end, "offsets have no gaps");
        self.log_end = batch.next_offset;
        self.bytes += batch.bytes.len();
        self.batches.push_back(batch);
        self.pack_ahead();
    }

    /// From now on, what queues is packed at once, as far as there is room.
    pub fn pack_into(&mut self, packing: Option<Packing>) {
        self.packing = packing;
        self.pack_ahead();
    }

    fn pack_ahead(&mut self) {
        let Some(packing) = &mut self.packing else { return };
        for batch in self.batches.range(packing.count()..) {
            // What does not fit goes with a later commit, and so does all behind it.
            if batch.bytes.len() > packing.room() {
                return;
            }
            packing.add(batch);
        }
    }

    /// Answers the ticket once the high watermark has reached `until`. For a repeated batch that may be earlier than for
    /// tickets that came before.
    pub fn wait(&mut self, waiting: Waiting) {
        let place = self.waiting.partition_point(|other| other.until <= waiting.until);
        self.waiting.insert(place, waiting);
    }

    /// The next commit for a segment that ends at `position`, or a roll in front of it. Empties the queue as far as one
    /// commit goes.
    pub fn next_step(&mut self, position: u64, segment_bytes: u64, segment_is_old: bool) -> NextStep {
        let packing = self.packing.take();
        let Some(first) = self.batches.front() else { return NextStep::Rest };
        if position > 0 && (segment_is_old || position + first.bytes.len() as u64 > segment_bytes) {
            return NextStep::Roll;
        }
        let continues = |packing: &Packing| packing.first_position() == position && packing.is_filled();
        let packing =
            packing.filter(|packing| continues(packing) && position + packing.bytes() as u64 <= segment_bytes);
        let (mut count, mut bytes) = (0, 0);
        for batch in &self.batches {
            let with_it = bytes + batch.bytes.len();
            let fits = with_it <= MAX_COMMIT_BYTES && position + with_it as u64 <= segment_bytes;
            let goes = packing.as_ref().map_or(count == 0 || fits, |packing| count < packing.count());
            if !goes {
                break;
            }
            (count, bytes) = (count + 1, with_it);
        }
        self.bytes -= bytes;
        NextStep::Write(self.batches.drain(..count).collect(), packing)
    }

    /// The tickets that the high watermark has passed, in the order of what they wait for.
    pub fn acknowledged(&mut self, high_watermark: Offset) -> impl Iterator<Item = Waiting> {
        let count = self.waiting.partition_point(|waiting| waiting.until <= high_watermark);
        self.waiting.drain(..count)
    }

    /// Drops all batches; gives the tickets back.
    pub fn close(&mut self) -> VecDeque<Waiting> {
        self.batches.clear();
        self.packing = None;
        self.bytes = 0;
        std::mem::take(&mut self.waiting)
    }

    /// What [`crate::planted::PlantedBug::GoOnAfterFailedWrite`] does: fails what waits, gives its offsets out again.
    pub(super) fn forget_queued(&mut self, log_end: Offset) {
        for waiting in self.close() {
            waiting.ticket.answer(Err(AppendError::Storage("a write failed".into())));
        }
        self.log_end = log_end;
    }

    /// Whether something waits to be written.
    #[must_use]
    pub fn has_batches(&self) -> bool {
        !self.batches.is_empty()
    }

    /// Whether everything is written and answered.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.batches.is_empty() && self.waiting.is_empty()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]
    use bytes::Bytes;
    use kaas_proto::record::BatchBuilder;
    use kaas_proto::types::LeaderEpoch;
    use tokio::sync::oneshot;

    use super::*;
    use crate::log::commit::{Commit, Stamp};

    fn batch(base_offset: i64, bytes: usize) -> QueuedBatch {
        QueuedBatch {
            bytes: Bytes::from(vec![0; bytes]),
            base_offset: Offset(base_offset),
            next_offset: Offset(base_offset + 1),
            max_timestamp: TimestampMs(0),
            stamp: Stamp::Nothing,
        }
    }

    fn offsets(step: NextStep) -> Vec<i64> {
        match step {
            NextStep::Write(batches, _) => batches.iter().map(|batch| batch.base_offset.0).collect(),
            other => panic!("no write: {other:?}"),
        }
    }

    #[test]
    fn a_commit_takes_what_queued_up_to_its_bound() {
        let mut queue = AppendQueue::new(Offset(0));
        for offset in 0..3 {
            queue.push(batch(offset, MAX_COMMIT_BYTES / 2));
        }
        queue.push(batch(3, MAX_COMMIT_BYTES * 2));
        assert_eq!(queue.log_end(), Offset(4));
        assert_eq!(offsets(queue.next_step(0, u64::MAX, false)), [0, 1]);
        assert_eq!(offsets(queue.next_step(1, u64::MAX, false)), [2]);
        assert_eq!(offsets(queue.next_step(1, u64::MAX, false)), [3], "larger than the bound, it goes alone");
        assert!(matches!(queue.next_step(1, u64::MAX, false), NextStep::Rest));
        assert_eq!(queue.bytes(), 0);
    }

    #[test]
    fn a_segment_rolls_in_front_of_the_batch_that_does_not_fit() {
        let mut queue = AppendQueue::new(Offset(0));
        (0..3).for_each(|offset| queue.push(batch(offset, 100)));
        assert_eq!(offsets(queue.next_step(0, 250, false)), [0, 1]);
        assert!(matches!(queue.next_step(200, 250, false), NextStep::Roll));
        assert_eq!(offsets(queue.next_step(0, 50, false)), [2], "an empty segment takes any batch");
        queue.push(batch(3, 1));
        assert!(matches!(queue.next_step(1, 1000, true), NextStep::Roll));
        assert_eq!(offsets(queue.next_step(0, 1000, true)), [3]);
    }

    #[test]
    fn what_was_packed_ahead_is_the_next_commit() {
        let mut queue = AppendQueue::new(Offset(0));
        let large = 100 << 10;
        let begin = |position| Packing::begin(&[], position, LeaderEpoch(1), 4 * large);
        let real = |offset: i64, bytes: usize| {
            let value = vec![7; bytes - 100];
            let content = BatchBuilder::new().record(TimestampMs(1), None, Some(&value)).build();
            QueuedBatch { bytes: content, ..batch(offset, 0) }
        };
        let write = |step: NextStep| match step {
            NextStep::Write(batches, packing) => (batches.len(), packing.map(|packing| packing.finish(0))),
            other => panic!("no write: {other:?}"),
        };
        // What waits already is packed, and what comes; what has no room goes later, and so does all behind it.
        queue.push(real(0, large));
        queue.pack_into(Some(begin(4096)));
        (1..4).for_each(|offset| queue.push(real(offset, large)));
        queue.push(real(4, 2 * large));
        queue.push(real(5, 200));
        let waiting: Vec<_> = queue.batches.iter().take(4).cloned().collect();
        let (count, commit) = write(queue.next_step(4096, u64::MAX, false));
        let commit = commit.expect("it was packed");
        assert_eq!((count, commit.next_offset), (4, Offset(4)));
        assert_eq!(commit.content, Commit::pack(&[], 4096, 0, LeaderEpoch(1), &waiting).content);
        let (count, commit) = write(queue.next_step(4096, u64::MAX, false));
        assert!(count == 2 && commit.is_none(), "nothing was packed for it");
        // Elsewhere, or beyond the segment, it is packed anew; a commit that is small for its memory as well.
        for (position, segment_bytes, bytes) in
            [(8192, u64::MAX, large), (4096, 4096 + large as u64 / 2, large), (4096, u64::MAX, 200)]
        {
            queue.pack_into(Some(begin(4096)));
            let offset = queue.log_end().0;
            queue.push(real(offset, bytes));
            let step = match queue.next_step(position, segment_bytes, false) {
                NextStep::Roll => queue.next_step(0, segment_bytes, false),
                step => step,
            };
            assert!(matches!(write(step), (1, None)), "{position} {segment_bytes} {bytes}");
        }
        assert!(matches!(queue.next_step(0, u64::MAX, false), NextStep::Rest));
        assert_eq!(queue.bytes(), 0);
    }

    #[test]
    fn tickets_are_answered_in_the_order_of_what_they_wait_for() {
        let mut queue = AppendQueue::new(Offset(0));
        let (sender, _receiver) = oneshot::channel();
        let gather = Gather::new(3, sender);
        for (row, until) in [5, 7, 6].into_iter().enumerate() {
            queue.wait(Waiting {
                until: Offset(until),
                base_offset: Offset(until - 1),
                log_append_time: TimestampMs(-1),
                ticket: Ticket::new(Rc::clone(&gather), row),
            });
        }
        let answered = |queue: &mut AppendQueue, high_watermark| -> Vec<i64> {
            queue.acknowledged(Offset(high_watermark)).map(|waiting| waiting.until.0).collect()
        };
        assert!(answered(&mut queue, 4).is_empty());
        assert_eq!(answered(&mut queue, 6), [5, 6]);
        assert_eq!(queue.close().len(), 1);
        assert!(queue.is_empty());
    }
}
