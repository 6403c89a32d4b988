//! DeleteRecords and retention: record, ask, act.
//!
//! The new log start is durable in the manifest and the fence was asked before anybody is answered and before a segment is
//! unlinked. A leader that was deposed meanwhile has deleted nothing.

use std::io;
use std::rc::Rc;
use std::sync::Arc;

use kaas_proto::types::{Offset, TimestampMs};
use tracing::{debug, info, warn};

use super::error::{DeleteRecordsError, NotLeading};
use super::leader::Leader;
use super::retention::{RetentionLimits, SegmentSummary, log_start_after};
use crate::env::{Env, TaskClass, Volume};
use crate::log::context::FileOf;
use crate::log::last_append::LastAppend;
use crate::log::led_log::EndOfLog;
use crate::log::segment::Segment;
use crate::planted::{PlantedBug, is_planted};

/// "Up to the high watermark" in a DeleteRecords request.
const UP_TO_HIGH_WATERMARK: Offset = Offset(-1);

impl<E: Env> Leader<E> {
    /// Deletes the records below `offset` for a client; returns the log start.
    ///
    /// # Errors
    /// The offset is above the high watermark, the topic keeps its records, or the log start did not become durable.
    pub async fn delete_records(&self, offset: Offset) -> Result<Offset, DeleteRecordsError> {
        if !self.config().delete {
            return Err(DeleteRecordsError::Compacted);
        }
        self.raise_log_start(offset).await
    }

    /// Deletes the records below `offset`, whatever the topic's policy says.
    ///
    /// # Errors
    /// As [`Leader::delete_records`].
    pub async fn raise_log_start(&self, offset: Offset) -> Result<Offset, DeleteRecordsError> {
        let high_watermark = self.log().high_watermark();
        let offset = if offset == UP_TO_HIGH_WATERMARK { high_watermark } else { offset };
        if offset < Offset(0) || offset > high_watermark {
            return Err(DeleteRecordsError::OffsetOutOfRange { offset, high_watermark });
        }
        if is_planted(PlantedBug::UnlinkBeforeRecord) {
            self.log().raise_log_start(offset);
            self.unlink_deleted();
        }
        match self.record_log_start(offset).await {
            Ok(()) => {
                self.unlink_deleted();
                Ok(self.log().log_start())
            }
            Err(EndOfLog::Failed { reason }) => Err(DeleteRecordsError::Storage(reason)),
            Err(EndOfLog::VolumeFull) => Err(DeleteRecordsError::Storage(Arc::from("no space is left on the volume"))),
            Err(end @ (EndOfLog::Superseded { .. } | EndOfLog::Gone { .. } | EndOfLog::Closed)) => {
                Err(end.not_leading().unwrap_or(NotLeading::NotHere).into())
            }
        }
    }

    /// Unlinks the segments that lie wholly below the log start, which is recorded and asked for.
    fn unlink_deleted(&self) {
        let leader: Rc<Self> = self.this();
        self.context.env().spawn(TaskClass::Background, async move {
            let log = leader.log();
            if log.log_start() == log.log_end() {
                log.begin_empty_segment().await;
            }
            let (volume, directory) = (leader.context.env().volume(), log.directory());
            for segment in log.take_deleted_segments() {
                segment.close();
                // The index first: without its segment it is only litter.
                drop(volume.unlink(&directory.join(segment.name.index())).await);
                match volume.unlink(&directory.join(segment.name.log())).await {
                    Ok(()) => leader.context.log.counters.segments_deleted.add(1),
                    Err(error) => {
                        debug!(directory = %directory.display(), segment = %segment.name, %error, "a deleted segment stays for now");
                    }
                }
            }
        });
    }

    /// Deletes what the topic's limits ask for.
    pub(super) async fn apply_retention(&self) {
        let config = self.config();
        if !config.delete || self.log().has_ended() {
            return;
        }
        let limits = RetentionLimits { time_ms: config.retention_ms, bytes: config.retention_bytes };
        let now = self.context.believed_now();
        if let Some(limit_ms) = limits.time_ms
            && let Err(error) = self.learn_ages(limit_ms, now).await
        {
            if self.context.log.may_log("retention_failed") {
                warn!(directory = %self.log().directory().display(), %error, "retention can't read a segment");
            }
            return;
        }
        let (log_start, high_watermark) = (self.log().log_start(), self.log().high_watermark());
        let summaries: Vec<_> = self.log().segments().iter().map(|segment| self.summary(segment, now)).collect();
        let new_start = log_start_after(&summaries, limits, log_start, high_watermark, now);
        if new_start > log_start {
            match self.raise_log_start(new_start).await {
                Ok(_) => info!(directory = %self.log().directory().display(), %log_start, %new_start, "retention"),
                Err(error) if self.context.log.may_log("retention_failed") => {
                    warn!(directory = %self.log().directory().display(), %error, "retention has to wait");
                }
                Err(_) => {}
            }
        }
    }

    /// Finds out how old the oldest segments are, up to the first that is not too old.
    async fn learn_ages(&self, limit_ms: i64, now: TimestampMs) -> io::Result<()> {
        for segment in self.log().segments() {
            self.learn_timestamp(&segment).await?;
            let tells_age = self.summary(&segment, now).max_timestamp.is_some_and(|time| time <= now);
            // What this leader appended it knows. Of others, whose records do not tell, the file does.
            if !tells_age && segment.name.epoch < self.epoch() && !segment.asked_file_time.replace(true) {
                let path = self.log().directory().join(segment.name.log());
                let modified = self.context.env().volume().modified(&path).await?;
                // One of the two clocks is wrong if the file is from the future.
                if let Some(modified) = modified.filter(|&modified| modified <= now) {
                    segment.last_append.set(LastAppend::FileTime(modified));
                }
            }
            if !self.summary(&segment, now).is_expired(limit_ms, now) {
                break;
            }
        }
        Ok(())
    }

    fn summary(&self, segment: &Segment<FileOf<E>>, now: TimestampMs) -> SegmentSummary {
        SegmentSummary {
            end_offset: segment.end.get().unwrap_or_else(|| self.log().log_end()),
            bytes: segment.bytes.get(),
            max_timestamp: segment.max_timestamp.get().filter(|&timestamp| timestamp > TimestampMs(-1)),
            last_append: segment.last_append.get().by_wall_clock(self.context.env().now(), now),
        }
    }
}
