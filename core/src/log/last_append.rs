//! When the last record of a segment was appended: what its age is reckoned from if its records do not tell.
//!
//! Pure. A wall clock that was wrong for a moment must not make records old, so what this process saw is timed by the clock
//! that nobody can set.

use kaas_proto::types::TimestampMs;

use crate::env::MonotonicTime;

/// See the module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LastAppend {
    /// Not later: this process has appended it then, or found it.
    Before(MonotonicTime),
    /// What the file says.
    FileTime(TimestampMs),
}

impl LastAppend {
    /// By the wall clock, given what both clocks say now.
    #[must_use]
    pub fn by_wall_clock(self, monotonic: MonotonicTime, wall: TimestampMs) -> TimestampMs {
        match self {
            Self::Before(then) => {
                let age = i64::try_from(monotonic.since(then).as_millis()).unwrap_or(i64::MAX);
                TimestampMs(wall.0.saturating_sub(age))
            }
            Self::FileTime(time) => time,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_monotonic_clock_makes_an_append_older() {
        let second = |number: u64| MonotonicTime(number * 1_000_000_000);
        let appended = LastAppend::Before(second(10));
        assert_eq!(appended.by_wall_clock(second(15), TimestampMs(1_000_000)), TimestampMs(995_000));
        assert_eq!(appended.by_wall_clock(second(15), TimestampMs(-7)), TimestampMs(-5_007), "the clock was set back");
        let file = LastAppend::FileTime(TimestampMs(30));
        assert_eq!(file.by_wall_clock(second(15), TimestampMs(1_000_000)), TimestampMs(30));
    }
}
