//! A single-threaded executor whose clock moves only when every task waits.
//!
//! The same program run twice does the same steps at the same times: tasks run in the order in which they were woken,
//! timers fire in the order of their deadlines. A test that sleeps an hour takes no time.

#![expect(clippy::disallowed_types, reason = "wakers must be usable from any thread")]

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::future::Future;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use kaas_proto::types::TimestampMs;

use super::MonotonicTime;

/// Where the wall clock of every virtual run begins: 2025-01-01 00:00 UTC.
const START_OF_WALL_CLOCK: TimestampMs = TimestampMs(1_735_689_600_000);

type TaskId = u64;
type Task = Pin<Box<dyn Future<Output = ()>>>;

/// The task that [`VirtualTime::run`] was called with.
const MAIN_TASK: TaskId = 0;

/// Clones share the clock and the tasks. Belongs to one thread; wakers may be used from any.
#[derive(Clone)]
pub struct VirtualTime(Rc<State>);

struct State {
    now_ns: Cell<u64>,
    wall_clock_shift_ms: Cell<i64>,
    next_id: Cell<u64>,
    tasks: RefCell<BTreeMap<TaskId, Task>>,
    timers: RefCell<BTreeMap<(MonotonicTime, u64), Waker>>,
    ready: Arc<ReadyQueue>,
}

/// Tasks that were woken, in order. The one part that other threads may touch, through wakers.
#[derive(Default)]
struct ReadyQueue(Mutex<VecDeque<TaskId>>);

impl ReadyQueue {
    fn push(&self, task: TaskId) {
        let mut queue = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if !queue.contains(&task) {
            queue.push_back(task);
        }
    }

    fn pop(&self) -> Option<TaskId> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).pop_front()
    }
}

struct TaskWaker {
    task: TaskId,
    ready: Arc<ReadyQueue>,
}

impl Wake for TaskWaker {
    fn wake(self: Arc<Self>) {
        self.ready.push(self.task);
    }
}

impl Default for VirtualTime {
    fn default() -> Self {
        Self(Rc::new(State {
            now_ns: Cell::new(0),
            wall_clock_shift_ms: Cell::new(0),
            next_id: Cell::new(MAIN_TASK + 1),
            tasks: RefCell::default(),
            timers: RefCell::default(),
            ready: Arc::default(),
        }))
    }
}

impl VirtualTime {
    /// Drives `main` and every spawned task until `main` is done, then drops the tasks that are left.
    ///
    /// # Panics
    /// When all tasks wait and no timer is set: nothing could ever wake them.
    pub fn run<T>(&self, main: impl Future<Output = T>) -> T {
        let mut main = pin!(main);
        self.0.ready.push(MAIN_TASK);
        loop {
            let Some(task) = self.0.ready.pop() else {
                assert!(self.fire_next_timer(), "every task waits and no timer is set");
                continue;
            };
            let waker = Waker::from(Arc::new(TaskWaker { task, ready: Arc::clone(&self.0.ready) }));
            let mut context = Context::from_waker(&waker);
            if task == MAIN_TASK {
                if let Poll::Ready(value) = main.as_mut().poll(&mut context) {
                    self.drop_tasks();
                    return value;
                }
            } else if let Some(mut future) = self.take_task(task)
                && future.as_mut().poll(&mut context).is_pending()
            {
                self.0.tasks.borrow_mut().insert(task, future);
            }
        }
    }

    /// The task leaves the map while it runs, so that it may spawn others.
    fn take_task(&self, task: TaskId) -> Option<Task> {
        self.0.tasks.borrow_mut().remove(&task)
    }

    fn drop_tasks(&self) {
        // Dropping a task may spawn or wake another one, so no borrow is held meanwhile.
        loop {
            let next = self.0.tasks.borrow_mut().pop_first();
            if next.is_none() {
                break;
            }
        }
        while self.0.ready.pop().is_some() {}
    }

    /// Moves the clock to the earliest deadline. False if there is none.
    fn fire_next_timer(&self) -> bool {
        let next = self.0.timers.borrow_mut().pop_first();
        let Some(((deadline, _), waker)) = next else { return false };
        self.0.now_ns.set(self.0.now_ns.get().max(deadline.0));
        waker.wake();
        true
    }

    pub fn spawn(&self, task: impl Future<Output = ()> + 'static) {
        let id = self.next_id();
        self.0.tasks.borrow_mut().insert(id, Box::pin(task));
        self.0.ready.push(id);
    }

    fn next_id(&self) -> u64 {
        let id = self.0.next_id.get();
        self.0.next_id.set(id + 1);
        id
    }

    #[must_use]
    pub fn now(&self) -> MonotonicTime {
        MonotonicTime(self.0.now_ns.get())
    }

    #[must_use]
    pub fn wall_clock(&self) -> TimestampMs {
        let elapsed_ms = i64::try_from(self.0.now_ns.get() / 1_000_000).expect("292 million years");
        TimestampMs(START_OF_WALL_CLOCK.0 + elapsed_ms + self.0.wall_clock_shift_ms.get())
    }

    /// Makes the wall clock jump, as somebody who sets it does. The monotonic clock goes on.
    pub fn shift_wall_clock(&self, milliseconds: i64) {
        self.0.wall_clock_shift_ms.set(self.0.wall_clock_shift_ms.get() + milliseconds);
    }

    pub fn sleep(&self, duration: Duration) -> impl Future<Output = ()> + use<> {
        let duration_ns = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        let deadline = MonotonicTime(self.0.now_ns.get().saturating_add(duration_ns));
        Sleep { time: self.clone(), key: (deadline, self.next_id()) }
    }
}

impl std::fmt::Debug for VirtualTime {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("VirtualTime").field("now", &self.now()).finish_non_exhaustive()
    }
}

struct Sleep {
    time: VirtualTime,
    key: (MonotonicTime, u64),
}

impl Future for Sleep {
    type Output = ();

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        if self.time.now() >= self.key.0 {
            return Poll::Ready(());
        }
        self.time.0.timers.borrow_mut().insert(self.key, context.waker().clone());
        Poll::Pending
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        self.time.0.timers.borrow_mut().remove(&self.key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_clock_moves_only_when_all_tasks_wait() {
        let time = VirtualTime::default();
        let log = Rc::new(RefCell::new(Vec::new()));
        time.run(async {
            for (name, seconds) in [("slow", 7200), ("quick", 1)] {
                let (time, log) = (time.clone(), Rc::clone(&log));
                time.clone().spawn(async move {
                    time.sleep(Duration::from_secs(seconds)).await;
                    log.borrow_mut().push((name, time.now().0 / 1_000_000_000));
                });
            }
            for _ in 0..1000 {
                futures_lite::future::yield_now().await;
            }
            assert_eq!(time.now(), MonotonicTime(0));
            time.sleep(Duration::from_secs(7201)).await;
        });
        assert_eq!(*log.borrow(), [("quick", 1), ("slow", 7200)]);
        assert_eq!(time.wall_clock().0, START_OF_WALL_CLOCK.0 + 7_201_000);
    }

    #[test]
    fn a_dropped_sleep_does_not_move_the_clock() {
        let time = VirtualTime::default();
        time.run(async {
            let quick = time.sleep(Duration::from_secs(1));
            let slow = time.sleep(Duration::from_secs(10));
            futures_lite::future::or(quick, slow).await;
            assert_eq!(time.now(), MonotonicTime(1_000_000_000));
            time.sleep(Duration::from_secs(1)).await;
            assert_eq!(time.now(), MonotonicTime(2_000_000_000));
        });
    }

    #[test]
    fn tasks_that_are_left_are_dropped() {
        struct Flag(Rc<Cell<bool>>);
        impl Drop for Flag {
            fn drop(&mut self) {
                self.0.set(true);
            }
        }
        let dropped = Rc::new(Cell::new(false));
        let time = VirtualTime::default();
        time.run(async {
            let flag = Flag(Rc::clone(&dropped));
            time.spawn(async move {
                std::future::pending::<()>().await;
                drop(flag);
            });
        });
        assert!(dropped.get());
    }

    #[test]
    #[should_panic(expected = "every task waits")]
    fn a_deadlock_is_a_panic() {
        VirtualTime::default().run(std::future::pending::<()>());
    }
}
