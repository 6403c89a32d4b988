//! Wakes executors that sleep for longer than they meant to.
//!
//! glommio 0.9 (and its fork, up to 0.12) goes to sleep although tasks are ready if its preemption timer fires before the first of
//! them got its turn, which takes no more than a thread that loses its processor for a millisecond. If timers are among what was
//! ready, none of them is set any more, and the executor would sleep until somebody else needs it. So each one says when it will be
//! awake at the latest, and one thread of the process looks whether that came true. It wakes from outside, which never gets lost:
//! what did not help is done again at the next look.

#![expect(clippy::disallowed_types, reason = "locked by the alarm's thread, and where an executor starts and ends")]

use std::cell::RefCell;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, Mutex, PoisonError, Weak};
use std::task::Waker;
use std::thread;
use std::time::Duration;

use super::MonotonicTime;
use super::executor::monotonic_now;

/// Between two looks.
const LOOK_INTERVAL: Duration = Duration::from_millis(100);
/// A shard that is this late may only have had to wait for its processor.
const TOLERANCE: Duration = Duration::from_millis(20);

/// A shard that does not come back after a minute of this hangs; then it is only looked at.
const MAX_WAKES_IN_A_ROW: u64 = 600;

/// What the thread looks after.
static SLEEPERS: LazyLock<Mutex<Vec<Arc<Sleeper>>>> = LazyLock::new(|| {
    let thread = thread::Builder::new().name("kaas-alarm".to_owned());
    thread.spawn(look_again_and_again).expect("a process that starts shards can start one thread more");
    Mutex::default()
});

thread_local! {
    /// Of the executor on this thread.
    static HERE: RefCell<Weak<Sleeper>> = RefCell::default();
}

/// Starts the thread, from one that is not pinned to a processor: the new one would be pinned with it.
pub(super) fn prepare() {
    LazyLock::force(&SLEEPERS);
}

/// How often the executor on this thread had to be woken.
#[must_use]
pub fn overslept() -> u64 {
    HERE.with_borrow(Weak::upgrade).map_or(0, |sleeper| sleeper.overslept.load(Ordering::Relaxed))
}

#[derive(Debug)]
struct Sleeper {
    awake_at_ns: AtomicU64,
    overslept: AtomicU64,
    wakes_in_a_row: AtomicU64,
    /// Of the executor's main task. Waking it from another thread wakes the executor, whatever the task waits for.
    waker: Waker,
}

/// An executor's place with the alarm, which looks after it until this is dropped. Shard-local.
#[derive(Debug)]
pub(super) struct Alarm(Arc<Sleeper>);

impl Alarm {
    /// `waker`: of a task that lives as long as this, and that is not harmed by being woken too early.
    pub(super) fn set(waker: Waker, awake_at: MonotonicTime) -> Self {
        let sleeper = Arc::new(Sleeper {
            awake_at_ns: AtomicU64::new(awake_at.0),
            overslept: AtomicU64::new(0),
            wakes_in_a_row: AtomicU64::new(0),
            waker,
        });
        HERE.set(Arc::downgrade(&sleeper));
        SLEEPERS.lock().unwrap_or_else(PoisonError::into_inner).push(Arc::clone(&sleeper));
        Self(sleeper)
    }

    /// The executor is awake now, and again after this time at the latest.
    pub(super) fn postpone(&self, now: MonotonicTime, longest_sleep: Duration) {
        self.0.wakes_in_a_row.store(0, Ordering::Relaxed);
        self.0.awake_at_ns.store(now.0.saturating_add(nanoseconds(longest_sleep)), Ordering::Relaxed);
    }
}

impl Drop for Alarm {
    fn drop(&mut self) {
        let mut sleepers = SLEEPERS.lock().unwrap_or_else(PoisonError::into_inner);
        sleepers.retain(|sleeper| !Arc::ptr_eq(sleeper, &self.0));
    }
}

#[expect(clippy::disallowed_methods, reason = "not on a shard's thread")]
fn look_again_and_again() {
    loop {
        thread::sleep(LOOK_INTERVAL);
        let late = monotonic_now().0.saturating_sub(nanoseconds(TOLERANCE));
        for sleeper in SLEEPERS.lock().unwrap_or_else(PoisonError::into_inner).iter() {
            if sleeper.awake_at_ns.load(Ordering::Relaxed) < late {
                sleeper.overslept.fetch_add(1, Ordering::Relaxed);
                // Each one takes room in the executor's queue until it is awake.
                if sleeper.wakes_in_a_row.fetch_add(1, Ordering::Relaxed) < MAX_WAKES_IN_A_ROW {
                    sleeper.waker.wake_by_ref();
                }
            }
        }
    }
}

fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}
