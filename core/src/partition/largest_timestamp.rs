//! The largest timestamp of a segment: retention goes by it, and look-ups by time pass over a segment because of it.
//!
//! Appending keeps it up. For older segments it comes from the index, and where that is missing from the segment itself: once,
//! behind everything urgent, however many wait for it. Records below the log start do not count.

use std::io;
use std::ops::ControlFlow;
use std::rc::Rc;

use kaas_proto::record::{RecordBatchView, lookup};
use kaas_proto::types::{Offset, TimestampMs};
use tokio::sync::oneshot;

use super::leader::Leader;
use crate::env::{Env, TaskClass};
use crate::log::context::FileOf;
use crate::log::reader::largest_timestamp;
use crate::log::segment::Segment;

/// No record has one.
pub(super) const NO_TIMESTAMP: TimestampMs = TimestampMs(-1);

impl<E: Env> Leader<E> {
    /// Makes sure that a segment knows the largest timestamp of its records that are not deleted.
    ///
    /// # Errors
    /// Those of reading the segment.
    pub(super) async fn learn_timestamp(&self, segment: &Rc<Segment<FileOf<E>>>) -> io::Result<()> {
        if segment.knows_timestamp_from(self.first_offset_of(segment)) {
            return Ok(());
        }
        let (sender, learned) = oneshot::channel();
        let (leader, segment) = (self.this(), Rc::clone(segment));
        self.context.env().spawn(TaskClass::Background, async move {
            let _turn = leader.learning.lock().await;
            // Whoever asked may be gone.
            let _ = sender.send(leader.learn_in_turn(&segment).await);
        });
        learned.await.unwrap_or_else(|_| Err(io::Error::other("the shard ends")))
    }

    /// The first record of a segment that counts.
    fn first_offset_of(&self, segment: &Segment<FileOf<E>>) -> Offset {
        segment.start.max(self.log().log_start())
    }

    async fn learn_in_turn(&self, segment: &Rc<Segment<FileOf<E>>>) -> io::Result<()> {
        let from = self.first_offset_of(segment);
        if segment.knows_timestamp_from(from) {
            return Ok(());
        }
        let before = (segment.end.get(), segment.bytes.get());
        let limit = segment.end.get().unwrap_or_else(|| self.log().written());
        let largest = self.largest_between(segment, from, limit).await?;
        // What was appended meanwhile is not in it: then what was known goes on being an upper bound.
        if before == (segment.end.get(), segment.bytes.get()) {
            segment.max_timestamp.set(Some(largest));
            segment.timestamp_from.set(from);
        }
        if let (Some(end), Some(open)) = (segment.end.get(), segment.opened())
            && open.index.borrow().next_offset == end
        {
            segment.bytes.set(open.index.borrow().covered_bytes);
        }
        Ok(())
    }

    /// The largest timestamp of the records in `from..limit` of a segment; -1 if none has one.
    ///
    /// # Errors
    /// Those of reading the segment.
    pub(super) async fn largest_between(
        &self,
        segment: &Rc<Segment<FileOf<E>>>,
        from: Offset,
        limit: Offset,
    ) -> io::Result<TimestampMs> {
        let open = self.log().open(segment).await?;
        let (position, in_front) = {
            let index = open.index.borrow();
            if from > index.base_offset {
                (index.position_of(from), NO_TIMESTAMP)
            } else if index.next_offset == limit {
                return Ok(index.max_timestamp);
            } else {
                // It may cover less, or what was written behind the end of its epoch.
                index.last_in_front_of(limit)
            }
        };
        let mut largest = in_front;
        let visit = |batch: RecordBatchView<'_>| {
            let of_batch = largest_timestamp(batch);
            if batch.next_offset() > from && of_batch > largest {
                largest = largest.max(if batch.base_offset() < from {
                    lookup::largest_timestamp_from(batch, from).unwrap_or(of_batch)
                } else {
                    of_batch
                });
            }
            ControlFlow::Continue(())
        };
        self.log().visit_batches(segment, &open, position, limit, visit).await?;
        Ok(largest)
    }
}
