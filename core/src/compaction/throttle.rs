//! How long to pause so that a rate is not exceeded on average. Pure.

use std::time::Duration;

use crate::env::MonotonicTime;

/// Shorter pauses add up first.
const SHORTEST_PAUSE: Duration = Duration::from_millis(5);

/// Shard-local.
#[derive(Clone, Copy, Debug)]
pub struct Throttle {
    bytes_per_second: f64,
    /// When everything so far would be done at that rate.
    due: MonotonicTime,
}

impl Throttle {
    #[must_use]
    pub fn new(bytes_per_second: f64) -> Self {
        Self { bytes_per_second, due: MonotonicTime(0) }
    }

    /// Notes bytes that were read or written; says how long to pause.
    pub fn moved(&mut self, bytes: u64, now: MonotonicTime) -> Option<Duration> {
        #[expect(clippy::cast_precision_loss, reason = "a rate need not be exact")]
        let seconds = bytes as f64 / self.bytes_per_second.max(1.0);
        let cost = Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX);
        let cost_ns = u64::try_from(cost.as_nanos()).unwrap_or(u64::MAX);
        self.due = MonotonicTime(self.due.0.max(now.0).saturating_add(cost_ns));
        let pause = Duration::from_nanos(self.due.0 - now.0);
        (pause >= SHORTEST_PAUSE).then_some(pause)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_holds_on_average() {
        let mut throttle = Throttle::new(1_000_000.0);
        let mut now = MonotonicTime(7_000_000_000);
        let began = now;
        for _ in 0..1000 {
            if let Some(pause) = throttle.moved(10_000, now) {
                now.0 += u64::try_from(pause.as_nanos()).expect("short");
            }
        }
        let seconds = Duration::from_nanos(now.0 - began.0).as_secs_f64();
        assert!((9.9..10.1).contains(&seconds), "{seconds}");
    }

    #[test]
    fn without_a_limit_there_is_no_pause() {
        let mut throttle = Throttle::new(f64::MAX);
        assert_eq!(throttle.moved(1 << 30, MonotonicTime(1)), None);
        let mut slow = Throttle::new(0.0);
        assert!(slow.moved(1 << 30, MonotonicTime(1)).is_some(), "nothing divides by zero");
    }
}
