//! The wall clock, as far as it may decide what is old enough to be deleted.
//!
//! A wall clock can be set to any year by mistake, and back; what was deleted meanwhile does not come back. So its steps are
//! compared with the monotonic clock. A step back is believed at once: it only makes things younger. A step ahead is believed
//! when it has lasted for [`PROBATION`]; until then time goes on from where it was. When the process starts, the wall clock is compared
//! with what was believed last on this volume: what is [`TOLERATED_ABSENCE`] ahead of that is a wrong clock, or nobody was there for
//! a while, and is a step ahead either way.
//!
//! Pure, shard-local.

use std::cell::Cell;
use std::time::Duration;

use kaas_proto::types::TimestampMs;
use tracing::warn;

use crate::env::MonotonicTime;

/// How far the clocks may drift apart between two looks: more than any clock is slewed.
pub const TOLERANCE: Duration = Duration::from_secs(60);

/// How long a step ahead has to last before anything is deleted because of it: time to notice a mistake.
pub const PROBATION: Duration = Duration::from_secs(6 * 3600);

/// How often a broker writes to the volume until when it has believed its clock.
pub const WITNESS_INTERVAL: Duration = Duration::from_secs(300);

/// How far ahead of what was written last a clock may be at a start: what is not written yet, and a restart.
pub const TOLERATED_ABSENCE: Duration = Duration::from_secs(1200);

/// What is told while it is not known what the volume says: nothing is older than that.
const LONG_AGO: TimestampMs = TimestampMs(0);

/// One moment on both clocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Moment {
    monotonic: MonotonicTime,
    wall: TimestampMs,
}

impl Moment {
    /// What the wall clock should say at a later point if nobody touches it.
    fn wall_at(self, later: MonotonicTime) -> TimestampMs {
        TimestampMs(self.wall.0.saturating_add(milliseconds(later.since(self.monotonic))))
    }
}

fn milliseconds(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)
}

/// See the module.
#[derive(Debug, Default)]
pub struct SteadyClock {
    /// When the clocks agreed last.
    agreed: Cell<Option<Moment>>,
    /// Since when the wall clock has been ahead.
    ahead: Cell<Option<Moment>>,
}

impl SteadyClock {
    /// The first look at both clocks, and what was believed last on the volume, if that is known.
    pub fn begin(&self, monotonic: MonotonicTime, wall: TimestampMs, latest: Option<TimestampMs>) {
        let now = Moment { monotonic, wall };
        self.agreed.set(Some(now));
        if let Some(latest) = latest
            && wall.0.saturating_sub(latest.0) > milliseconds(TOLERATED_ABSENCE)
        {
            warn!(
                wall_clock_ms = wall.0, believed_last_ms = latest.0, believed_after = ?PROBATION,
                "the wall clock is far ahead of all that was written to the volume: nothing is deleted because of it until it has stayed there"
            );
            self.agreed.set(Some(Moment { monotonic, wall: latest }));
            self.ahead.set(Some(now));
        }
    }

    /// Whether there is a time that may be acted upon.
    #[must_use]
    pub fn has_begun(&self) -> bool {
        self.agreed.get().is_some()
    }

    /// Looks at both clocks; returns the time that may be acted upon: never later than the wall clock.
    pub fn believe(&self, monotonic: MonotonicTime, wall: TimestampMs) -> TimestampMs {
        let now = Moment { monotonic, wall };
        let Some(agreed) = self.agreed.get() else { return LONG_AGO.min(wall) };
        let expected = agreed.wall_at(monotonic);
        if wall.0.saturating_sub(expected.0) <= milliseconds(TOLERANCE) {
            self.ahead.set(None);
            self.agreed.set(Some(now));
            return wall;
        }
        match self.ahead.get() {
            Some(since) if wall.0.abs_diff(since.wall_at(monotonic).0) <= milliseconds(TOLERANCE).unsigned_abs() => {
                if monotonic.since(since.monotonic) < PROBATION {
                    return expected;
                }
                warn!(wall_clock_ms = wall.0, "the wall clock has stayed ahead and is believed from now on");
                self.ahead.set(None);
                self.agreed.set(Some(now));
                wall
            }
            Some(_) | None => {
                warn!(
                    wall_clock_ms = wall.0, expected_ms = expected.0, believed_after = ?PROBATION,
                    "the wall clock was set ahead; nothing is deleted because of it until it has stayed there"
                );
                self.ahead.set(Some(now));
                expected
            }
        }
    }

    /// Whether the wall clock is ahead and not believed.
    #[must_use]
    pub fn is_doubted(&self) -> bool {
        self.ahead.get().is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const YEAR_MS: i64 = 365 * 24 * 3_600_000;
    const START_MS: i64 = 50 * YEAR_MS;

    /// Looks at a clock that is off by so much after so many seconds; returns how far off the answer is.
    fn off(clock: &SteadyClock, seconds: u64, off_ms: i64) -> i64 {
        let honest = START_MS + i64::try_from(seconds).unwrap_or_default() * 1000;
        clock.believe(MonotonicTime(seconds * 1_000_000_000), TimestampMs(honest + off_ms)).0 - honest
    }

    fn begun() -> SteadyClock {
        let clock = SteadyClock::default();
        clock.begin(MonotonicTime(0), TimestampMs(START_MS), None);
        clock
    }

    #[test]
    fn a_clock_that_is_wrong_at_the_start_is_not_believed_until_it_has_lasted() {
        let clock = SteadyClock::default();
        assert_eq!(clock.believe(MonotonicTime(0), TimestampMs(START_MS + YEAR_MS)), LONG_AGO, "nothing is known yet");
        clock.begin(MonotonicTime(0), TimestampMs(START_MS + YEAR_MS), Some(TimestampMs(START_MS)));
        assert!(clock.is_doubted());
        assert_eq!(off(&clock, 100, YEAR_MS), 0);
        assert_eq!(off(&clock, PROBATION.as_secs() + 1, YEAR_MS), YEAR_MS);
        assert!(!clock.is_doubted());
    }

    #[test]
    fn a_clock_that_is_corrected_after_the_start_is_believed_at_once() {
        let clock = SteadyClock::default();
        clock.begin(MonotonicTime(0), TimestampMs(START_MS + YEAR_MS), Some(TimestampMs(START_MS)));
        assert_eq!(off(&clock, 100, 0), 0);
        assert!(!clock.is_doubted());
    }

    #[test]
    fn a_restart_and_a_clock_that_is_behind_are_believed() {
        let restart_ms = milliseconds(TOLERATED_ABSENCE);
        for ahead_ms in [restart_ms, 0, -YEAR_MS] {
            let clock = SteadyClock::default();
            clock.begin(MonotonicTime(0), TimestampMs(START_MS), Some(TimestampMs(START_MS - ahead_ms)));
            assert_eq!(off(&clock, 100, 0), 0);
            assert!(!clock.is_doubted());
        }
    }

    #[test]
    fn a_clock_that_goes_is_believed() {
        let clock = begun();
        for (seconds, off_ms) in [(0, 0), (300, 40), (600, -70), (90_000, 200)] {
            assert_eq!(off(&clock, seconds, off_ms), off_ms);
        }
        assert!(!clock.is_doubted());
    }

    #[test]
    fn a_jump_ahead_and_back_is_never_believed() {
        let clock = begun();
        off(&clock, 0, 0);
        assert_eq!(off(&clock, 300, 10 * YEAR_MS), 0);
        assert_eq!(off(&clock, PROBATION.as_secs(), 10 * YEAR_MS), 0);
        assert!(clock.is_doubted());
        assert_eq!(off(&clock, PROBATION.as_secs() + 200, 5), 5);
        assert!(!clock.is_doubted());
    }

    #[test]
    fn a_step_ahead_that_lasts_is_believed_and_each_new_one_waits_anew() {
        let clock = begun();
        off(&clock, 0, 0);
        assert_eq!(off(&clock, 100, YEAR_MS), 0);
        assert_eq!(off(&clock, 200, 2 * YEAR_MS), 0, "another step");
        let passed = PROBATION.as_secs();
        assert_eq!(off(&clock, 199 + passed, 2 * YEAR_MS), 0);
        assert_eq!(off(&clock, 200 + passed, 2 * YEAR_MS), 2 * YEAR_MS);
        assert_eq!(off(&clock, 300 + passed, 2 * YEAR_MS), 2 * YEAR_MS);
    }

    #[test]
    fn a_step_back_is_believed_at_once() {
        let clock = begun();
        off(&clock, 0, 0);
        assert_eq!(off(&clock, 100, -YEAR_MS), -YEAR_MS);
        assert_eq!(off(&clock, 200, 0), -YEAR_MS, "and forth again is a step ahead");
    }

    #[test]
    fn the_ends_of_time_do_not_overflow() {
        let clock = begun();
        clock.believe(MonotonicTime(u64::MAX), TimestampMs(i64::MAX));
        clock.believe(MonotonicTime(0), TimestampMs(i64::MIN));
        clock.believe(MonotonicTime(u64::MAX), TimestampMs(i64::MAX));
    }
}
