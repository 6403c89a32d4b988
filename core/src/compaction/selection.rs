//! Which segments are compacted, when, and which of them together. Pure.

use std::ops::Range;

use kaas_proto::types::{Offset, TimestampMs};

use crate::planted::{PlantedBug, is_planted};

/// Relative offsets of a segment fit 31 bits, as Kafka wants it.
const MAX_SEGMENT_OFFSETS: i64 = i32::MAX as i64;

/// One segment that ends, oldest first in every list. The newest of the log, which is appended to, is not among them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentSummary {
    pub start: Offset,
    pub end: Offset,
    pub bytes: u64,
    pub is_compacted: bool,
    /// The largest timestamp of its records.
    pub max_timestamp: TimestampMs,
    /// That of its first batch.
    pub first_timestamp: TimestampMs,
}

/// What the topic asks for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Limits {
    pub min_dirty_ratio: f64,
    pub min_lag_ms: i64,
    pub max_lag_ms: i64,
}

/// What there is to compact in a log.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Backlog {
    /// So many segments from the oldest on may be compacted.
    pub segments: usize,
    /// Those in front of this one are clean.
    pub first_dirty: usize,
    /// Bytes that were not compacted, of all that may be.
    pub dirty_ratio: f64,
    /// Records have waited for longer than they may.
    pub is_overdue: bool,
}

/// What there is to compact; `None` if nothing may be, or too little is dirty.
///
/// Nothing at or above `last_stable` is touched, and nothing that the topic wants left alone for a while. What was
/// compacted goes again through every pass, as a newer record may have replaced any of it.
#[must_use]
pub fn backlog(segments: &[SegmentSummary], last_stable: Offset, limits: Limits, now: TimestampMs) -> Option<Backlog> {
    let first_dirty = segments.iter().position(|segment| !segment.is_compacted)?;
    let may_be = |segment: &SegmentSummary| {
        let is_young = limits.min_lag_ms > 0 && segment.max_timestamp.0 > now.0.saturating_sub(limits.min_lag_ms);
        let is_stable = segment.end <= last_stable || is_planted(PlantedBug::CompactionAboveLastStable);
        is_stable && !is_young
    };
    let count = first_dirty + segments[first_dirty..].iter().take_while(|segment| may_be(segment)).count();
    let dirty = &segments[first_dirty..count];
    let bytes = |segments: &[SegmentSummary]| -> u64 { segments.iter().map(|segment| segment.bytes).sum() };
    let (clean_bytes, dirty_bytes) = (bytes(&segments[..first_dirty]), bytes(dirty));
    if dirty_bytes == 0 {
        return None;
    }
    #[expect(clippy::cast_precision_loss, reason = "a ratio need not be exact")]
    let dirty_ratio = dirty_bytes as f64 / (clean_bytes + dirty_bytes) as f64;
    let oldest = dirty.iter().map(|segment| segment.first_timestamp).filter(|time| time.0 >= 0).min();
    let is_overdue = oldest.is_some_and(|oldest| now.0.saturating_sub(oldest.0) > limits.max_lag_ms);
    let is_due = is_overdue || dirty_ratio > limits.min_dirty_ratio;
    is_due.then_some(Backlog { segments: count, first_dirty, dirty_ratio, is_overdue })
}

/// Segments that are compacted into one, so that small ones do not stay many. Each group stays below `max_bytes` if its
/// segments do.
#[must_use]
pub fn groups(segments: &[SegmentSummary], max_bytes: u64) -> Vec<Range<usize>> {
    let mut groups: Vec<Range<usize>> = Vec::new();
    let mut bytes = 0;
    for (index, segment) in segments.iter().enumerate() {
        let fits = groups.last().is_some_and(|group| {
            bytes + segment.bytes <= max_bytes && segment.end.0 - segments[group.start].start.0 <= MAX_SEGMENT_OFFSETS
        });
        match groups.last_mut() {
            Some(group) if fits => group.end = index + 1,
            _ => {
                groups.push(index..index + 1);
                bytes = 0;
            }
        }
        bytes += segment.bytes;
    }
    groups
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]
    use super::*;

    const LIMITS: Limits = Limits { min_dirty_ratio: 0.5, min_lag_ms: 0, max_lag_ms: i64::MAX };
    const NOW: TimestampMs = TimestampMs(100_000);

    fn segment(number: i64, bytes: u64, is_compacted: bool) -> SegmentSummary {
        SegmentSummary {
            start: Offset(number * 10),
            end: Offset(number * 10 + 10),
            bytes,
            is_compacted,
            max_timestamp: TimestampMs(number * 10_000 + 9_000),
            first_timestamp: TimestampMs(number * 10_000),
        }
    }

    fn found(segments: &[SegmentSummary], last_stable: i64, limits: Limits) -> Option<(usize, usize)> {
        backlog(segments, Offset(last_stable), limits, NOW).map(|backlog| (backlog.first_dirty, backlog.segments))
    }

    #[test]
    fn enough_must_be_dirty() {
        let log = [segment(0, 100, true), segment(1, 50, false), segment(2, 50, false)];
        assert_eq!(found(&log, 30, LIMITS), None, "half is not more than half");
        assert_eq!(found(&log, 30, Limits { min_dirty_ratio: 0.49, ..LIMITS }), Some((1, 3)));
        assert_eq!(found(&log[1..], 30, LIMITS), Some((0, 2)), "all of it is dirty");
        assert_eq!(found(&log[..1], 30, LIMITS), None);
        assert_eq!(found(&[], 30, LIMITS), None);
        let all = Limits { min_dirty_ratio: 0.0, ..LIMITS };
        assert_eq!(found(&log, 29, all), Some((1, 2)), "the last stable offset lies inside");
        assert_eq!(found(&log, 19, all), None);
    }

    #[test]
    fn young_records_are_left_alone_and_old_ones_are_not() {
        let log = [segment(0, 100, true), segment(7, 1, false), segment(8, 1, false)];
        let all = Limits { min_dirty_ratio: 0.0, ..LIMITS };
        assert_eq!(found(&log, 90, Limits { min_lag_ms: 15_000, ..all }), Some((1, 2)));
        assert_eq!(found(&log, 90, Limits { min_lag_ms: 30_000, ..all }), None);
        assert_eq!(found(&log, 90, LIMITS), None);
        assert_eq!(found(&log, 90, Limits { max_lag_ms: 29_999, ..LIMITS }), Some((1, 3)));
        assert_eq!(found(&log, 90, Limits { max_lag_ms: 30_000, ..LIMITS }), None);
    }

    #[test]
    fn small_segments_go_together() {
        let log: Vec<_> = [60, 30, 20, 90, 200, 1, 1].into_iter().zip(0..).map(|(b, n)| segment(n, b, false)).collect();
        assert_eq!(groups(&log, 100), [0..2, 2..3, 3..4, 4..5, 5..7]);
        let mut far = [segment(0, 1, true), segment(1, 1, true)];
        far[1].end = Offset(MAX_SEGMENT_OFFSETS + 1);
        assert_eq!(groups(&far, 100), [0..1, 1..2]);
        assert!(groups(&[], 100).is_empty());
    }
}
