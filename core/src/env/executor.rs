//! The glommio executor of a shard: task queues, clocks, timers.

#![expect(unsafe_code, reason = "system calls that have no safe wrapper here")]

use std::future::{Future, poll_fn};
use std::rc::{Rc, Weak};
use std::sync::LazyLock;
use std::task::Poll;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use glommio::{ExecutorJoinHandle, Latency, LocalExecutorBuilder, Placement, PoolPlacement, Shares, TaskQueueHandle};
use kaas_proto::types::TimestampMs;

use super::alarm::{self, Alarm};
use super::helper::HELPER_THREADS;
use super::{MonotonicTime, TaskClass};

/// How long a task of either queue may run before others of its shard get their turn, if it yields when asked to.
const LATENCY_GOAL: Duration = Duration::from_millis(1);

/// Of a thousand shares, what background work may take while clients wait.
const LATENCY_SHARES: usize = 1000;
const BACKGROUND_SHARES: usize = 50;

/// The same for the queue that an executor begins with, where nothing runs but the start of a shard and
/// [`stay_awake`]: so long that the timer never fires before those got their turn.
const START_INTERVAL: Duration = Duration::from_secs(10);

/// How long an executor with work sleeps at most, and one without. A waking costs some 100 µs of a processor.
const SHORTEST_SLEEP: Duration = Duration::from_millis(4);
const LONGEST_SLEEP: Duration = Duration::from_millis(512);
/// How much longer each sleep of a shard without work is than the one before.
const SLEEP_GROWTH: u32 = 4;
/// A shard that ran more tasks than this is busy: some hundred requests a second.
const BUSY_TASKS_PER_MS: u128 = 1;

/// glommio's own buffers: only its sockets would use them. Its default is 10 MiB.
const IO_MEMORY_BYTES: usize = 64 << 10;

/// Locked memory that one executor needs for its rings.
pub const MEMLOCK_BYTES_PER_EXECUTOR: u64 = 512 << 10;

/// Starts a thread with an executor and runs `main` on it.
///
/// The thread is pinned to `cpu`; without one it runs where the scheduler likes. Joining the handle returns the errors of
/// the executor, such as too little locked memory.
///
/// # Errors
/// When no thread can be started, or the processor does not exist.
pub fn spawn_shard<F, T>(
    name: &str,
    cpu: Option<usize>,
    main: impl FnOnce() -> F + Send + 'static,
) -> glommio::Result<ExecutorJoinHandle<T>, ()>
where
    F: Future<Output = T> + 'static,
    T: Send + 'static,
{
    alarm::prepare();
    let main = async move || {
        let waker = poll_fn(|context| Poll::Ready(context.waker().clone())).await;
        // Until `main` returns. Before the first sleep of `stay_awake` it is soon.
        let alarm = Rc::new(Alarm::set(waker, monotonic_now()));
        glommio::spawn_local(stay_awake(Rc::downgrade(&alarm))).detach();
        main().await
    };
    LocalExecutorBuilder::new(cpu.map_or(Placement::Unbound, Placement::Fixed))
        .name(name)
        .preempt_timer(START_INTERVAL)
        .io_memory(IO_MEMORY_BYTES)
        .blocking_thread_pool_placement(PoolPlacement::Unbound(HELPER_THREADS))
        .spawn(main)
}

/// Wakes the executor now and then: glommio sometimes sleeps although tasks are ready, see [`alarm`](super::alarm). The next event
/// wakes it up again; this one is never far away, and the alarm is there for when this one is among what was overslept.
///
/// A shard with little work has little to oversleep, so the interval grows as long as hardly anything else runs.
async fn stay_awake(alarm: Weak<Alarm>) {
    let mut interval = SHORTEST_SLEEP;
    while let Some(alarm) = alarm.upgrade() {
        alarm.postpone(monotonic_now(), interval);
        drop(alarm);
        glommio::timer::sleep(interval).await;
        // Since the last look.
        let tasks = u128::from(glommio::executor().executor_stats().tasks_executed());
        let busy = tasks > BUSY_TASKS_PER_MS * interval.as_millis();
        interval = if busy { SHORTEST_SLEEP } else { LONGEST_SLEEP.min(interval * SLEEP_GROWTH) };
    }
}

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
            background: executor.create_task_queue(Shares::Static(BACKGROUND_SHARES), latency, "background"),
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
    use std::sync::{Arc, mpsc};
    use std::thread;

    use super::*;

    /// Threads that take the processors away, and a goal so short that whoever loses one has missed it: as on a busy machine, only
    /// more often.
    #[test]
    fn an_executor_that_is_interrupted_before_its_tasks_goes_on() {
        let busy = Arc::new(());
        for _ in 0..8 {
            let busy = Arc::downgrade(&busy);
            let spinning = thread::Builder::new().spawn(move || while busy.strong_count() > 0 {});
            spinning.expect("it started");
        }
        for _ in 0..100 {
            let (done, finished) = mpsc::channel();
            let shard = spawn_shard("test", None, move || async move {
                let goal = Latency::Matters(Duration::from_micros(100));
                let queue = glommio::executor().create_task_queue(Shares::Static(1000), goal, "interrupted");
                for _ in 0..30 {
                    let sleep = glommio::timer::sleep(Duration::from_micros(100));
                    glommio::spawn_local_into(sleep, queue).expect("the queue is there").await;
                }
                done.send(()).expect("the test waits");
            });
            finished.recv_timeout(Duration::from_secs(60)).expect("the tasks had their turns");
            shard.expect("it started").join().expect("it ended");
        }
        drop(busy);
    }

    #[test]
    fn clocks_go_forward() {
        let first = monotonic_now();
        assert!(monotonic_now() >= first);
        assert!(wall_clock().0 > 1_700_000_000_000);
        assert_ne!(random_u64(), random_u64());
    }
}
