//! How much of a log may go: by time, by size. Decides only; the partition records the new log start, asks its fence, and
//! then unlinks.

use kaas_proto::types::{Offset, TimestampMs};

/// One segment, oldest first in every list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentSummary {
    /// One past its last offset.
    pub end_offset: Offset,
    pub bytes: u64,
    /// The largest timestamp of its records; `None` if it has none.
    pub max_timestamp: Option<TimestampMs>,
    /// When its last record was appended, by the clock that is believed or the file's.
    pub last_append: TimestampMs,
}

impl SegmentSummary {
    /// When its newest record was written. One that claims to be from the future counts as of the time it was appended, or it
    /// would keep its segment for ever.
    #[must_use]
    pub fn newest_record(&self) -> TimestampMs {
        self.max_timestamp.map_or(self.last_append, |time| time.min(self.last_append))
    }

    /// Whether its newest record is older than `limit_ms`.
    #[must_use]
    pub fn is_expired(&self, limit_ms: i64, now: TimestampMs) -> bool {
        now.0.saturating_sub(self.newest_record().0) > limit_ms
    }
}

/// `retention.ms` and `retention.bytes`; `None` is Kafka's -1, no limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RetentionLimits {
    pub time_ms: Option<i64>,
    pub bytes: Option<u64>,
}

/// The log start offset that the limits ask for; `log_start` itself if nothing is to go.
///
/// Whole segments go, oldest first, never above the high watermark. The newest goes by time alone: by size it is what the
/// limit is for.
#[must_use]
pub fn log_start_after(
    segments: &[SegmentSummary],
    limits: RetentionLimits,
    log_start: Offset,
    high_watermark: Offset,
    now: TimestampMs,
) -> Offset {
    let mut bytes_left: u64 = segments.iter().map(|segment| segment.bytes).sum();
    let mut start = log_start;
    for (index, segment) in segments.iter().enumerate() {
        let is_newest = index + 1 == segments.len();
        let expired = limits.time_ms.is_some_and(|limit_ms| segment.is_expired(limit_ms, now));
        let excess = !is_newest && limits.bytes.is_some_and(|limit| bytes_left.saturating_sub(segment.bytes) >= limit);
        let empty = segment.end_offset <= start;
        if segment.end_offset > high_watermark || !(expired || excess || empty) {
            break;
        }
        bytes_left -= segment.bytes;
        start = start.max(segment.end_offset);
    }
    start
}

#[cfg(test)]
mod tests {
    use super::*;

    const UNLIMITED: RetentionLimits = RetentionLimits { time_ms: None, bytes: None };

    fn segment(end_offset: i64, bytes: u64, time: i64) -> SegmentSummary {
        let time = TimestampMs(time);
        SegmentSummary { end_offset: Offset(end_offset), bytes, max_timestamp: Some(time), last_append: time }
    }

    fn three() -> [SegmentSummary; 3] {
        [segment(10, 100, 1_000), segment(20, 100, 2_000), segment(30, 100, 3_000)]
    }

    fn start(segments: &[SegmentSummary], limits: RetentionLimits, high_watermark: i64, now: i64) -> i64 {
        log_start_after(segments, limits, Offset(0), Offset(high_watermark), TimestampMs(now)).0
    }

    #[test]
    fn time_takes_segments_whose_newest_record_is_too_old() {
        let limits = RetentionLimits { time_ms: Some(1_000), ..UNLIMITED };
        assert_eq!(start(&three(), limits, 30, 2_000), 0, "exactly as old as allowed");
        assert_eq!(start(&three(), limits, 30, 2_001), 10);
        assert_eq!(start(&three(), limits, 30, 9_000), 30, "the newest too");
        assert_eq!(start(&three(), limits, 25, 9_000), 20, "never above the high watermark");
        assert_eq!(start(&three(), UNLIMITED, 30, i64::MAX), 0);
    }

    #[test]
    fn size_takes_the_oldest_while_enough_is_left() {
        let limit = |bytes| RetentionLimits { bytes: Some(bytes), ..UNLIMITED };
        assert_eq!(start(&three(), limit(201), 30, 0), 0);
        assert_eq!(start(&three(), limit(200), 30, 0), 10);
        assert_eq!(start(&three(), limit(0), 30, 0), 20, "the newest stays");
    }

    #[test]
    fn a_timestamp_from_the_future_pins_nothing() {
        let mut segments = three();
        segments[0].max_timestamp = Some(TimestampMs(i64::MAX));
        assert_eq!(start(&segments, RetentionLimits { time_ms: Some(1_000), ..UNLIMITED }, 30, 2_500), 10);
    }

    #[test]
    fn a_clock_that_jumps_back_deletes_nothing() {
        assert_eq!(start(&three(), RetentionLimits { time_ms: Some(1_000), ..UNLIMITED }, 30, -5), 0);
    }
}
