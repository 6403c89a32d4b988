//! An operation between the moment in which it was sent and the one in which the server carries it out.

use std::cell::{Cell, RefCell};
use std::io;
use std::rc::Rc;
use std::time::Duration;

use tokio::sync::oneshot;

use super::disruption::{Disruption, Moment};
use super::faults::Landing;
use super::process::{Process, ProcessId};
use super::tree::Tree;
use super::{Change, Simulation};

/// Carries out a part of a write.
pub(super) type Tear = Box<dyn FnOnce(&mut Tree)>;
/// Carries out an operation.
pub(super) type Effect<T> = Box<dyn FnOnce(&mut Tree) -> io::Result<T>>;

/// One operation, for those who decide what becomes of it.
pub(super) struct Flight {
    pub process: ProcessId,
    landing: Cell<Landing>,
    /// What of it lands when it is torn; taken by whoever tears it.
    tear: RefCell<Option<Tear>>,
}

impl Flight {
    /// Its process is gone: this becomes of it.
    pub(super) fn decide(&self, landing: Landing) {
        self.landing.set(landing);
    }

    /// The server stops: it is torn now, or lost.
    pub(super) fn land_for_good(&self, simulation: &Simulation) {
        if self.landing.replace(Landing::Lost) == Landing::Torn {
            self.tear(simulation);
        }
    }

    fn tear(&self, simulation: &Simulation) {
        if let Some(tear) = self.tear.take() {
            tear(&mut simulation.0.tree.borrow_mut());
        }
    }
}

/// What is sent to the server.
pub(super) struct Sent<T> {
    pub effect: Effect<T>,
    pub tear: Option<Tear>,
    /// What the guard is to look at.
    pub change: Option<OwnedChange>,
    pub before: Duration,
    /// It lands in two parts with so much time between them.
    pub split: Option<Duration>,
    pub disruption: Option<Disruption>,
}

pub(super) enum OwnedChange {
    Unlink(String),
    Cut(String, u64),
}

impl OwnedChange {
    fn borrowed(&self) -> Change<'_> {
        match self {
            Self::Unlink(path) => Change::Unlink { path },
            Self::Cut(path, length) => Change::Cut { path, length: *length },
        }
    }
}

impl Simulation {
    /// Sends an operation of `process` on its way. The answer comes when it was carried out; never, if it is not.
    pub(super) fn send<T: 'static>(
        &self,
        process: &Process,
        number: u64,
        landing: Landing,
        sent: Sent<T>,
    ) -> oneshot::Receiver<io::Result<T>> {
        let Sent { effect, tear, change, before, split, disruption } = sent;
        let flight = Rc::new(Flight { process: process.id(), landing: Cell::new(landing), tear: RefCell::new(tear) });
        self.0.flights.borrow_mut().insert(number, Rc::clone(&flight));
        let (answer, answered) = oneshot::channel();
        let (simulation, process) = (self.clone(), process.clone());
        self.0.time.spawn(async move {
            let time = simulation.0.time.clone();
            time.sleep(before).await;
            if let Some(gap) = split
                && flight.landing.get() != Landing::Lost
            {
                flight.tear(&simulation);
                time.sleep(gap).await;
            }
            if let Landing::Later(late) = flight.landing.get() {
                time.sleep(late).await;
            }
            let moment = match disruption {
                Some(Disruption::Crash(moment) | Disruption::LosePower(moment)) => Some(moment),
                _ => None,
            };
            let is_there = simulation.0.flights.borrow_mut().remove(&number).is_some();
            match (flight.landing.get(), moment) {
                _ if !is_there => {}
                (Landing::Lost, _) | (_, Some(Moment::Before)) => {}
                (Landing::Torn, _) | (_, Some(Moment::Torn)) => flight.tear(&simulation),
                (Landing::Lands | Landing::Later(_), _) => {
                    if let Some(change) = &change {
                        simulation.check(change.borrowed());
                    }
                    let outcome = effect(&mut simulation.0.tree.borrow_mut());
                    // Whoever asked may be gone.
                    drop(answer.send(outcome));
                }
            }
            match disruption {
                Some(Disruption::Crash(_)) => simulation.crash(&process),
                Some(Disruption::LosePower(_)) => simulation.lose_power(),
                _ => {}
            }
        });
        answered
    }
}
