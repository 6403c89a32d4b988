//! One life of a broker: tasks that stop for a while when it is paused, and for ever when it is killed.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use super::super::virtual_time::VirtualTime;

/// Unique among all lives of all brokers of a simulation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ProcessId(pub u32);

/// A node, whose processes share one NFS client with its caches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClientId(pub u32);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Running,
    Paused,
    Dead,
}

type Task = Pin<Box<dyn Future<Output = ()>>>;
type Slot = Rc<RefCell<Option<Task>>>;

/// Clones are the same process.
#[derive(Clone)]
pub struct Process(Rc<State>);

struct State {
    id: ProcessId,
    client: ClientId,
    phase: Cell<Phase>,
    tasks: RefCell<BTreeMap<u64, Slot>>,
    next_task: Cell<u64>,
    /// Tasks that were woken while it was paused.
    held_up: RefCell<Vec<Waker>>,
    clock_error_ms: Cell<i64>,
}

impl Process {
    pub(super) fn new(id: ProcessId, client: ClientId) -> Self {
        Self(Rc::new(State {
            id,
            client,
            phase: Cell::new(Phase::Running),
            tasks: RefCell::default(),
            next_task: Cell::new(0),
            held_up: RefCell::default(),
            clock_error_ms: Cell::new(0),
        }))
    }

    #[must_use]
    pub fn id(&self) -> ProcessId {
        self.0.id
    }

    #[must_use]
    pub fn client(&self) -> ClientId {
        self.0.client
    }

    #[must_use]
    pub fn is_dead(&self) -> bool {
        self.0.phase.get() == Phase::Dead
    }

    #[must_use]
    pub fn is_paused(&self) -> bool {
        self.0.phase.get() == Phase::Paused
    }

    /// SIGSTOP: no task makes a step; what was sent to the volume goes on.
    pub fn pause(&self) {
        if self.0.phase.get() == Phase::Running {
            self.0.phase.set(Phase::Paused);
        }
    }

    /// SIGCONT.
    pub fn resume(&self) {
        if self.0.phase.get() == Phase::Paused {
            self.0.phase.set(Phase::Running);
            self.0.held_up.take().into_iter().for_each(Waker::wake);
        }
    }

    /// Somebody sets the clock of its node, so much fast or slow.
    pub fn set_wall_clock(&self, error_ms: i64) {
        self.0.clock_error_ms.set(error_ms);
    }

    pub(super) fn clock_error_ms(&self) -> i64 {
        self.0.clock_error_ms.get()
    }

    /// Drops every task. What was sent to the volume is somebody else's to decide.
    pub(super) fn kill(&self) {
        self.0.phase.set(Phase::Dead);
        self.0.held_up.take();
        // Dropping a task may touch the others, so nothing is borrowed meanwhile.
        loop {
            let next = self.0.tasks.borrow_mut().pop_first();
            let Some((_, slot)) = next else { break };
            drop(slot.take());
        }
    }

    pub(super) fn spawn(&self, time: &VirtualTime, task: impl Future<Output = ()> + 'static) {
        if self.is_dead() {
            return;
        }
        let id = self.0.next_task.replace(self.0.next_task.get() + 1);
        let slot: Slot = Rc::new(RefCell::new(Some(Box::pin(task))));
        self.0.tasks.borrow_mut().insert(id, Rc::clone(&slot));
        time.spawn(ProcessTask { process: self.clone(), id, slot });
    }
}

struct ProcessTask {
    process: Process,
    id: u64,
    slot: Slot,
}

impl Future for ProcessTask {
    type Output = ();

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let state = &self.process.0;
        match state.phase.get() {
            Phase::Dead => return Poll::Ready(()),
            Phase::Paused => {
                state.held_up.borrow_mut().push(context.waker().clone());
                return Poll::Pending;
            }
            Phase::Running => {}
        }
        let Some(mut task) = self.slot.take() else { return Poll::Ready(()) };
        let outcome = task.as_mut().poll(context);
        if outcome.is_ready() || self.process.is_dead() {
            drop(task);
            state.tasks.borrow_mut().remove(&self.id);
            return Poll::Ready(());
        }
        self.slot.replace(Some(task));
        Poll::Pending
    }
}

impl std::fmt::Debug for Process {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Process").field("id", &self.0.id).finish_non_exhaustive()
    }
}
