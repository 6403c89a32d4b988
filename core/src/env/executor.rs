//! The glommio executor of a shard: task queues, clocks, timers.

#![expect(unsafe_code, reason = "system calls that have no safe wrapper here")]

use std::future::Future;
use std::sync::LazyLock;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use glommio::{Latency, Shares, TaskQueueHandle};
use kaas_proto::types::TimestampMs;

use super::{MonotonicTime, TaskClass};

/// How long a latency task waits at most while another queue runs, if every task yields when asked to.
const LATENCY_GOAL: Duration = Duration::from_millis(1);

/// Of a thousand shares, what background work may take while clients wait.
const LATENCY_SHARES: usize = 1000;
const BACKGROUND_SHARES: usize = 50;

/// The task queues of one shard. Shard-local: create it inside the executor that it is used in.
#[derive(Clone, Copy, Debug)]
pub struct TaskQueues {
    latency: TaskQueueHandle,
    background: TaskQueueHandle,
}

impl TaskQueues {
    /// Adds the queues to the executor that runs the caller.
    ///
    /// # Panics
    /// Outside a glommio executor.
    #[must_use]
    pub fn create() -> Self {
        let executor = glommio::executor();
        let latency = Latency::Matters(LATENCY_GOAL);
        Self {
            latency: executor.create_task_queue(Shares::Static(LATENCY_SHARES), latency, "latency"),
            background: executor.create_task_queue(
                Shares::Static(BACKGROUND_SHARES),
                Latency::NotImportant,
                "background",
            ),
        }
    }

    pub fn spawn(&self, class: TaskClass, task: impl Future<Output = ()> + 'static) {
        let queue = match class {
            TaskClass::Latency => self.latency,
            TaskClass::Background => self.background,
        };
        glommio::spawn_local_into(task, queue).expect("queues are never removed").detach();
    }

    pub async fn sleep(&self, duration: Duration) {
        glommio::timer::sleep(duration).await;
    }

    pub async fn yield_now(&self) {
        glommio::executor().yield_if_needed().await;
    }
}

/// The monotonic clock, the same for all shards of the process.
#[must_use]
#[expect(clippy::disallowed_methods, reason = "this is the clock that the others are told to use")]
pub fn monotonic_now() -> MonotonicTime {
    static START: LazyLock<Instant> = LazyLock::new(Instant::now);
    let elapsed = Instant::now().duration_since(*START);
    MonotonicTime(u64::try_from(elapsed.as_nanos()).expect("the process runs for less than 584 years"))
}

/// The clock on the wall; 1970 if it stands before that.
#[must_use]
#[expect(clippy::disallowed_methods, reason = "this is the clock that the others are told to use")]
pub fn wall_clock() -> TimestampMs {
    let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    TimestampMs(i64::try_from(since_epoch.as_millis()).unwrap_or(i64::MAX))
}

/// A random number from the kernel: nobody can guess the next one.
#[must_use]
pub fn random_u64() -> u64 {
    let mut bytes = [0_u8; 8];
    // SAFETY: the pointer and the length describe `bytes`. Eight bytes are never cut short by a signal.
    let got = unsafe { libc::getrandom(bytes.as_mut_ptr().cast(), bytes.len(), 0) };
    assert_eq!(got, 8, "getrandom: {}", std::io::Error::last_os_error());
    u64::from_ne_bytes(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clocks_go_forward() {
        let first = monotonic_now();
        assert!(monotonic_now() >= first);
        assert!(wall_clock().0 > 1_700_000_000_000);
        assert_ne!(random_u64(), random_u64());
    }
}
