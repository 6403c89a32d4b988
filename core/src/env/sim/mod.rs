//! The simulator: a volume that lies as much as a real one may, brokers that stop at any point, and a seed that repeats
//! it all.
//!
//! A [`Simulation`] is the server with its files, virtual time, and everything that may go wrong. Each life of a broker is a
//! [`Process`] with a [`SimEnv`] of its own. Operations are carried out by the server, whatever becomes of who asked: a
//! process that is killed leaves what it sent, and that lands at once, later, in part, or not at all.
//!
//! What is modelled: writes torn by sectors of 512 bytes or landing in two parts; errors after which the operation happens
//! nevertheless; names that a power loss takes back; `.nfs…` ghosts; clients that believe old sizes and old names; handles
//! of removed files that go stale; a full volume; slow and hanging operations; clocks that are set. Directories are opened
//! anew for each listing, as [`super::Volume::list`] promises, and seen neither before nor after the call.
//!
//! Exists with the feature `simulator` only, which nothing but tests turns on.

mod disruption;
mod faults;
mod file;
mod flight;
mod process;
mod random;
#[cfg(test)]
mod tests;
mod trace;
mod tree;
mod volume;

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::future::Future;
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use kaas_proto::types::TimestampMs;

pub use self::disruption::{Disruption, Moment};
pub use self::faults::Faults;
pub use self::file::SimFile;
pub use self::process::{ClientId, Process, ProcessId};
pub use self::random::SimRandom;
pub use self::volume::SimVolume;
pub use super::memory_volume::Operation;

use self::faults::Landing;
use self::flight::Flight;
use self::trace::{Line, Trace};
use self::tree::Tree;
use super::virtual_time::VirtualTime;
use super::{Env, MonotonicTime, TaskClass};

/// What is about to happen to a file, for [`Simulation::guard`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change<'a> {
    Unlink { path: &'a str },
    Cut { path: &'a str, length: u64 },
}

/// Looks at a change before it happens; says what is wrong with it.
pub type Guard = dyn Fn(&View<'_>, Change<'_>) -> Option<String>;

/// Clones are the same simulation.
#[derive(Clone)]
pub struct Simulation(Rc<World>);

struct World {
    time: VirtualTime,
    random: SimRandom,
    tree: RefCell<Tree>,
    faults: Cell<Faults>,
    flights: RefCell<BTreeMap<u64, Rc<Flight>>>,
    processes: RefCell<Vec<Process>>,
    /// Operations begun so far, in all and by process.
    operations: Cell<u64>,
    durable_points: RefCell<Vec<u64>>,
    counts: RefCell<HashMap<(ProcessId, Operation), u64>>,
    disruptions: RefCell<BTreeMap<u64, Disruption>>,
    guard: RefCell<Option<Rc<Guard>>>,
    violations: RefCell<Vec<String>>,
    trace: RefCell<Trace>,
}

impl Simulation {
    #[must_use]
    pub fn new(seed: u64) -> Self {
        let (random, time) = (SimRandom::new(seed), VirtualTime::default());
        Self(Rc::new(World {
            tree: RefCell::new(Tree::new(random.fork(), time.clone())),
            time,
            random,
            faults: Cell::new(Faults::NONE),
            flights: RefCell::default(),
            processes: RefCell::default(),
            operations: Cell::default(),
            durable_points: RefCell::default(),
            counts: RefCell::default(),
            disruptions: RefCell::default(),
            guard: RefCell::default(),
            violations: RefCell::default(),
            trace: RefCell::default(),
        }))
    }

    /// Drives `main` until it is done, then kills every process.
    pub fn run<T>(&self, main: impl Future<Output = T>) -> T {
        let outcome = self.0.time.run(main);
        self.0.processes.take().iter().for_each(Process::kill);
        outcome
    }

    #[must_use]
    pub fn time(&self) -> &VirtualTime {
        &self.0.time
    }

    /// A new life of a broker, on the node of `client`.
    #[must_use]
    pub fn start_process(&self, client: ClientId) -> SimEnv {
        let id = u32::try_from(self.0.processes.borrow().len()).expect("a scenario has few processes");
        let process = Process::new(ProcessId(id), client);
        self.0.processes.borrow_mut().push(process.clone());
        SimEnv {
            volume: SimVolume::new(self.clone(), process.clone()),
            simulation: self.clone(),
            process,
            random: self.0.random.fork(),
        }
    }

    pub fn set_faults(&self, faults: Faults) {
        self.0.faults.set(faults);
    }

    /// From now on writes that would make the files larger than this together fail with `StorageFull`.
    pub fn set_capacity(&self, bytes: Option<u64>) {
        self.0.tree.borrow_mut().capacity_bytes = bytes;
    }

    /// From now on there is room for so many bytes more, and not for others.
    pub fn leave_room(&self, bytes: u64) {
        let mut tree = self.0.tree.borrow_mut();
        tree.capacity_bytes = Some(tree.used_bytes() + bytes);
    }

    /// As an NFS server: a name is durable when the call returns.
    pub fn names_are_durable(&self, durable: bool) {
        self.0.tree.borrow_mut().names_are_durable = durable;
    }

    /// Whether what another client has removed can't be used any more through handles that are open.
    pub fn removed_files_are_stale(&self, stale: bool) {
        self.0.tree.borrow_mut().removed_files_are_stale = stale;
    }

    /// Has every change looked at before it happens. What it finds wrong is in [`Simulation::violations`].
    pub fn guard(&self, guard: Rc<Guard>) {
        self.0.guard.replace(Some(guard));
    }

    /// What the guard, and the simulation itself, found wrong so far.
    #[must_use]
    pub fn violations(&self) -> Vec<String> {
        self.0.violations.borrow().clone()
    }

    /// How many operations were begun.
    #[must_use]
    pub fn operations(&self) -> u64 {
        self.0.operations.get()
    }

    /// The numbers of the operations that change something.
    #[must_use]
    pub fn durable_points(&self) -> Vec<u64> {
        self.0.durable_points.borrow().clone()
    }

    /// How often a process has begun an operation.
    #[must_use]
    pub fn count(&self, process: ProcessId, operation: Operation) -> u64 {
        self.0.counts.borrow().get(&(process, operation)).copied().unwrap_or(0)
    }

    /// Lets something happen at the `operation`th operation, counted from 0 over all processes.
    pub fn disrupt(&self, operation: u64, disruption: Disruption) {
        self.0.disruptions.borrow_mut().insert(operation, disruption);
    }

    /// `kill -9`. What the process sent to the volume lands, or not.
    pub fn crash(&self, process: &Process) {
        self.note(format!("process {} is killed", process.id().0));
        let faults = self.0.faults.get();
        for flight in self.0.flights.borrow().values().filter(|flight| flight.process == process.id()) {
            flight.decide(faults.landing(&self.0.random));
        }
        process.kill();
    }

    /// Everything stops; what is not durable is lost.
    pub fn lose_power(&self) {
        self.note("power is lost");
        for flight in self.0.flights.borrow().values() {
            flight.decide(if self.0.random.chance(500) { Landing::Torn } else { Landing::Lost });
        }
        let flights = self.0.flights.take();
        for (_, flight) in flights {
            flight.land_for_good(self);
        }
        let processes = self.0.processes.borrow().clone();
        processes.iter().for_each(Process::kill);
        self.0.tree.borrow_mut().lose_unsynced();
    }

    /// The files as they are.
    #[must_use]
    pub fn view<T>(&self, look: impl FnOnce(&View<'_>) -> T) -> T {
        look(&View(&self.0.tree))
    }

    /// Adds a line to the trace.
    pub fn note(&self, what: impl Into<String>) {
        self.0.trace.borrow_mut().push(Line { at: self.0.time.now(), what: what.into() });
    }

    /// The last lines of what happened.
    #[must_use]
    pub fn trace(&self) -> String {
        self.0.trace.borrow().to_string()
    }

    fn violated(&self, what: String) {
        self.note(format!("VIOLATION: {what}"));
        self.0.violations.borrow_mut().push(what);
    }

    fn check(&self, change: Change<'_>) {
        let guard = self.0.guard.borrow().clone();
        if let Some(wrong) = guard.and_then(|guard| guard(&View(&self.0.tree), change)) {
            self.violated(wrong);
        }
    }
}

impl fmt::Debug for Simulation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Simulation").field("time", &self.0.time.now()).finish_non_exhaustive()
    }
}

/// The files on the server, without any of the lies.
pub struct View<'a>(&'a RefCell<Tree>);

impl View<'_> {
    #[must_use]
    pub fn names(&self, directory: &str) -> Vec<String> {
        let listed = self.0.borrow_mut().list(Path::new(directory));
        listed.unwrap_or_default().into_iter().map(|entry| entry.name).collect()
    }

    #[must_use]
    pub fn content(&self, path: &str) -> Option<Vec<u8>> {
        // No client has this number, so nothing old is taken for the file.
        self.0.borrow_mut().read(ClientId(u32::MAX), Path::new(path), usize::MAX).ok()
    }
}

impl fmt::Debug for View<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("View")
    }
}

/// What one process sees of a simulation.
#[derive(Clone)]
pub struct SimEnv {
    simulation: Simulation,
    process: Process,
    volume: SimVolume,
    random: SimRandom,
}

impl SimEnv {
    #[must_use]
    pub fn process(&self) -> &Process {
        &self.process
    }

    #[must_use]
    pub fn simulation(&self) -> &Simulation {
        &self.simulation
    }
}

impl Env for SimEnv {
    type Volume = SimVolume;

    fn volume(&self) -> &SimVolume {
        &self.volume
    }

    fn now(&self) -> MonotonicTime {
        self.simulation.0.time.now()
    }

    fn wall_clock(&self) -> TimestampMs {
        TimestampMs(self.simulation.0.time.wall_clock().0 + self.process.clock_error_ms())
    }

    fn random_u64(&self) -> u64 {
        self.random.next()
    }

    fn spawn(&self, _class: TaskClass, task: impl Future<Output = ()> + 'static) {
        self.process.spawn(&self.simulation.0.time, task);
    }

    fn sleep(&self, duration: Duration) -> impl Future<Output = ()> {
        self.simulation.0.time.sleep(duration)
    }

    fn yield_now(&self) -> impl Future<Output = ()> {
        futures_lite::future::yield_now()
    }
}

impl fmt::Debug for SimEnv {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SimEnv").field("process", &self.process.id()).finish_non_exhaustive()
    }
}
