//! Log lines of the control thread that clients, or a machine in need, cause at any rate.

use std::cell::Cell;
use std::time::Duration;

use kaas_proto::log_limit::{INTERVAL, LogLimit, Suppressed};
use kaas_proto::types::MonotonicTime;
use tokio::runtime::Handle;
use tokio::time::{Instant, sleep};

thread_local! {
    static LIMIT: LogLimit = LogLimit::default();
    static BEGAN: Instant = Instant::now();
    /// A task waits to tell what was not logged.
    static TELLING: Cell<bool> = const { Cell::new(false) };
}

/// Whether a line about this cause is to be logged; what is not is told as a number later. Control thread.
pub(crate) fn may_log(cause: &'static str) -> bool {
    let may = LIMIT.with(|limit| limit.admits(cause, now()));
    if !may
        && !TELLING.get()
        && let Ok(runtime) = Handle::try_current()
    {
        TELLING.set(true);
        runtime.spawn(tell_later());
    }
    may
}

async fn tell_later() {
    sleep(INTERVAL).await;
    TELLING.set(false);
    for Suppressed { cause, lines } in LIMIT.with(LogLimit::take_all) {
        tracing::warn!(cause, lines, "more of the same was not logged");
    }
}

fn now() -> MonotonicTime {
    let elapsed: Duration = BEGAN.with(Instant::elapsed);
    MonotonicTime(u64::try_from(elapsed.as_nanos()).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use kaas_proto::log_limit::LINES_PER_CAUSE;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_flood_is_a_few_lines_and_a_number() {
        let logged = || (0..1000).filter(|_| may_log("flood")).count();
        assert_eq!(logged(), LINES_PER_CAUSE as usize);
        assert!(TELLING.get());
        sleep(INTERVAL + Duration::from_millis(1)).await;
        assert!(!TELLING.get(), "it was told");
        assert_eq!(logged(), LINES_PER_CAUSE as usize, "and begins anew");
    }
}
