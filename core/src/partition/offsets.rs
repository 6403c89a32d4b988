//! Offsets by time and by epoch.

use std::io;
use std::ops::ControlFlow;
use std::rc::Rc;

use kaas_proto::record::{RecordBatchView, lookup};
use kaas_proto::types::{LeaderEpoch, Offset, TimestampMs};

use super::error::LookupError;
use super::largest_timestamp::NO_TIMESTAMP;
use super::leader::Leader;
use crate::env::Env;
use crate::log::context::FileOf;
use crate::log::segment::Segment;
use crate::shard::operation::{FoundOffset, IsolationLevel, OffsetQuery};

const NOTHING: FoundOffset = FoundOffset { offset: Offset(-1), timestamp: NO_TIMESTAMP, leader_epoch: LeaderEpoch(-1) };

impl<E: Env> Leader<E> {
    /// The answer to one row of ListOffsets, if no segment is needed for it.
    #[must_use]
    pub fn known_offset(&self, query: OffsetQuery, isolation: IsolationLevel) -> Option<FoundOffset> {
        let at = |offset, leader_epoch| Some(FoundOffset { offset, timestamp: NO_TIMESTAMP, leader_epoch });
        match query {
            OffsetQuery::Latest => at(self.visible_end(isolation), self.epoch()),
            OffsetQuery::Earliest => {
                let log_start = self.log().log_start();
                at(log_start, self.chain().epoch_of(log_start).unwrap_or(self.epoch()))
            }
            OffsetQuery::AtOrAfter(_) | OffsetQuery::MaxTimestamp => None,
        }
    }

    /// Answers one row of ListOffsets.
    ///
    /// # Errors
    /// A segment can't be read.
    pub async fn find_offset(&self, query: OffsetQuery, isolation: IsolationLevel) -> Result<FoundOffset, LookupError> {
        if let Some(known) = self.known_offset(query, isolation) {
            return Ok(known);
        }
        let end = self.visible_end(isolation);
        loop {
            let replacements = self.log().replacements();
            let found = match query {
                OffsetQuery::AtOrAfter(time) => self.first_at_or_after(time, end).await,
                _ => self.largest_timestamp(end).await,
            };
            match found {
                // A segment that was looked at is replaced by another meanwhile.
                Err(_) if self.log().replacements() != replacements => {}
                Err(error) => {
                    let not_leading = self.log().not_leading_after(&error).await;
                    return Err(
                        not_leading.map_or_else(|| LookupError::Storage(error.to_string().into()), LookupError::from)
                    );
                }
                Ok(found) => return Ok(found),
            }
        }
    }

    /// The largest known epoch not above `wanted` and where it ends; epoch -1 and offset -1 if there is none.
    #[must_use]
    pub fn end_offset_for(&self, wanted: LeaderEpoch) -> (LeaderEpoch, Offset) {
        // Up to the high watermark, as a client can have read no further.
        self.chain().end_offset_for(wanted, self.log().high_watermark()).unwrap_or((LeaderEpoch(-1), Offset(-1)))
    }

    /// The first record below `end` with this timestamp or a later one.
    async fn first_at_or_after(&self, time: TimestampMs, end: Offset) -> io::Result<FoundOffset> {
        let log_start = self.log().log_start();
        for segment in self.log().segments() {
            let limit = segment.end.get().map_or(end, |segment_end| segment_end.min(end));
            if limit <= log_start {
                continue;
            }
            if segment.end.get().is_some() {
                self.learn_timestamp(&segment).await?;
            }
            if segment.max_timestamp.get().is_some_and(|largest| largest < time) {
                continue;
            }
            let open = self.log().open(&segment).await?;
            let position = {
                let index = open.index.borrow();
                // Behind what the index covers there may be a later one.
                index.position_at(time).unwrap_or(index.covered_bytes)
            };
            let mut found = Ok(None);
            let visit = |batch: RecordBatchView<'_>| {
                if batch.max_timestamp() >= time && batch.next_offset() > log_start {
                    found = first_record(batch, time, log_start);
                    if !matches!(found, Ok(None)) {
                        return ControlFlow::Break(());
                    }
                }
                ControlFlow::Continue(())
            };
            self.log().visit_batches(&segment, &open, position, limit, visit).await?;
            match found? {
                Some(found) if found.offset < end => return Ok(found),
                Some(_) => return Ok(NOTHING),
                None => {}
            }
        }
        Ok(NOTHING)
    }

    /// The first of the records below `end` with the largest timestamp (KIP-734).
    async fn largest_timestamp(&self, end: Offset) -> io::Result<FoundOffset> {
        let mut largest = NO_TIMESTAMP;
        let log_start = self.log().log_start();
        for segment in self.log().segments() {
            let limit = segment.end.get().map_or(end, |segment_end| segment_end.min(end));
            if limit <= log_start || segment.max_timestamp.get().is_some_and(|of_segment| of_segment <= largest) {
                continue;
            }
            let is_whole = limit == segment.end.get().unwrap_or_else(|| self.log().written());
            let of_segment = if is_whole {
                self.learn_timestamp(&segment).await?;
                segment.max_timestamp.get().unwrap_or(NO_TIMESTAMP)
            } else {
                self.largest_between(&segment, segment.start.max(log_start), limit).await?
            };
            largest = largest.max(of_segment);
        }
        if largest == NO_TIMESTAMP { Ok(NOTHING) } else { self.first_at_or_after(largest, end).await }
    }

    /// Finds out the timestamp of the first batch of a segment.
    pub(super) async fn learn_first_timestamp(&self, segment: &Rc<Segment<FileOf<E>>>) -> io::Result<()> {
        let Some(end) = segment.end.get() else { return Ok(()) };
        let open = self.log().open(segment).await?;
        let position = open.index.borrow().position_of(segment.start);
        let mut first = TimestampMs(-1);
        let visit = |batch: RecordBatchView<'_>| {
            first = batch.max_timestamp();
            ControlFlow::Break(())
        };
        self.log().visit_batches(segment, &open, position, end, visit).await?;
        segment.first_timestamp.set(Some(first));
        Ok(())
    }
}

fn first_record(batch: RecordBatchView<'_>, time: TimestampMs, from: Offset) -> io::Result<Option<FoundOffset>> {
    let found = lookup::first_at_or_after(batch, time, from).map_err(|error| {
        io::Error::new(io::ErrorKind::InvalidData, format!("batch at {}: {error}", batch.base_offset()))
    })?;
    let leader_epoch = batch.partition_leader_epoch();
    Ok(found.map(|(offset, timestamp)| FoundOffset { offset, timestamp, leader_epoch }))
}
