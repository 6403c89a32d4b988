//! Log lines that clients or a broken volume cause at any rate: some per cause and interval, then only how many more there
//! were.
//!
//! Pure, and of one thread. Nothing is lost but lines: counters count every case.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::time::Duration;

use crate::types::MonotonicTime;

/// Lines that are logged about one cause, such as connections that end for one reason, per thread and interval.
pub const LINES_PER_CAUSE: u32 = 10;
/// After this time what was not logged of a cause is told in one line, and the cause has its lines again.
pub const INTERVAL: Duration = Duration::from_secs(10);

/// What was logged lately. Causes are few and known, so this is bounded by itself.
#[derive(Debug, Default)]
pub struct LogLimit {
    windows: RefCell<BTreeMap<&'static str, Window>>,
}

/// One interval of one cause; it begins with the first line.
#[derive(Clone, Copy, Debug)]
struct Window {
    began: MonotonicTime,
    lines: u32,
    suppressed: u64,
}

/// Lines of one cause that were not logged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Suppressed {
    pub cause: &'static str,
    pub lines: u64,
}

impl LogLimit {
    /// Whether a line about this cause is to be logged.
    #[must_use]
    pub fn admits(&self, cause: &'static str, now: MonotonicTime) -> bool {
        let mut windows = self.windows.borrow_mut();
        let window = windows.entry(cause).or_insert(Window { began: now, lines: 0, suppressed: 0 });
        // What an interval that is over has suppressed is told by `take_ended`; until then it goes on to count.
        if window.suppressed == 0 && is_over(window.began, now) {
            *window = Window { began: now, lines: 0, suppressed: 0 };
        }
        if window.lines < LINES_PER_CAUSE {
            window.lines += 1;
            return true;
        }
        window.suppressed += 1;
        false
    }

    /// What was suppressed in intervals that are over. They begin anew.
    #[must_use]
    pub fn take_ended(&self, now: MonotonicTime) -> Vec<Suppressed> {
        self.take(|window| is_over(window.began, now))
    }

    /// What was suppressed and not told yet.
    #[must_use]
    pub fn take_all(&self) -> Vec<Suppressed> {
        self.take(|_| true)
    }

    fn take(&self, ends: impl Fn(&Window) -> bool) -> Vec<Suppressed> {
        let mut taken = Vec::new();
        self.windows.borrow_mut().retain(|cause, window| {
            let ends = ends(window);
            if ends && window.suppressed > 0 {
                taken.push(Suppressed { cause, lines: window.suppressed });
            }
            !ends
        });
        taken
    }
}

fn is_over(began: MonotonicTime, now: MonotonicTime) -> bool {
    Duration::from_nanos(now.0.saturating_sub(began.0)) >= INTERVAL
}

#[cfg(test)]
mod tests {
    use super::*;

    fn second(n: u64) -> MonotonicTime {
        MonotonicTime(n * 1_000_000_000)
    }

    #[test]
    fn each_cause_has_its_lines_per_interval_and_the_rest_is_counted() {
        let limit = LogLimit::default();
        let logged = |cause, at, times: u32| (0..times).filter(|_| limit.admits(cause, second(at))).count();
        let most = LINES_PER_CAUSE as usize;
        assert_eq!(logged("idle", 0, LINES_PER_CAUSE), most);
        assert_eq!(logged("idle", 1, 1000), 0);
        assert_eq!(logged("sasl", 1, 1), 1, "another cause has its own");
        assert_eq!(limit.take_ended(second(9)), [], "the interval is not over");
        assert_eq!(logged("idle", 11, 1), 0, "not before it is told how many there were");
        assert_eq!(limit.take_ended(second(12)), [Suppressed { cause: "idle", lines: 1001 }]);
        assert_eq!(limit.take_ended(second(12)), [], "told once");
        assert_eq!(logged("idle", 12, 1), 1);
    }

    #[test]
    fn who_stays_below_the_limit_is_never_suppressed() {
        let limit = LogLimit::default();
        for at in 0..1000 {
            assert!(limit.admits("idle", second(at * 2)));
        }
        assert_eq!(limit.take_all(), []);
    }
}
