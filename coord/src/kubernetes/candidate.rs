//! Takes part in the election: carries out what [`election`](super::election) says, and tells the broker who the
//! controller is.

use std::sync::Arc;

use kaas_proto::types::BrokerId;
use tokio::sync::{Notify, oneshot, watch};
use tokio::time::{Instant, sleep_until};

use super::api_error::ApiError;
use super::election::{Action, Answer, Election, Holder, Standing, Timings};
use super::lease::LeaseStore;
use crate::cluster::ports::{self, Controller, Leadership};

/// The highest controller epoch that `assignment.json` has shown.
pub type EpochFloor = watch::Receiver<i32>;

/// Of so many requests in a row that failed, one is mentioned in the log.
const FAILURES_PER_WARNING: u32 = 16;

/// Starts to take part. Within a tokio runtime only.
#[must_use]
pub fn start(store: LeaseStore, me: Holder, timings: Timings, floor: EpochFloor) -> ports::Election {
    let (leadership, receiver) = watch::channel(Leadership::Unknown);
    let (resign, resigning) = oneshot::channel();
    let (seed, _) = uuid::Uuid::new_v4().as_u64_pair();
    let election = Election::new(me, timings, seed, Instant::now());
    let missed = Arc::new(Notify::new());
    let candidate = Candidate { election, store, floor, leadership, timings, missed: Arc::clone(&missed) };
    tokio::spawn(candidate.run(resigning));
    ports::Election { leadership: receiver, resign, missed }
}

/// `kaas-3` is broker 3: a pod of a StatefulSet is named for its ordinal.
#[must_use]
pub fn broker_of_pod(pod: &str) -> Option<BrokerId> {
    let (_, ordinal) = pod.rsplit_once('-')?;
    let id: i32 = ordinal.parse().ok()?;
    (id >= 0 && id.to_string() == ordinal).then_some(BrokerId(id))
}

struct Candidate {
    election: Election,
    store: LeaseStore,
    floor: EpochFloor,
    leadership: watch::Sender<Leadership>,
    timings: Timings,
    missed: Arc<Notify>,
}

impl Candidate {
    async fn run(mut self, mut resigning: oneshot::Receiver<oneshot::Sender<()>>) {
        let mut resigned: Option<(oneshot::Sender<()>, Instant)> = None;
        loop {
            self.publish();
            let now = Instant::now();
            if resigned.as_ref().is_some_and(|&(_, give_up)| give_up <= now) {
                tracing::warn!("the Lease could not be given back; others wait until it expires");
                self.election.abandon();
            }
            let floor = *self.floor.borrow();
            let Some((at, _)) = self.election.next(now, floor) else { break };
            tokio::select! {
                () = sleep_until(at) => self.step().await,
                () = until(self.election.changes_at(now)) => {}
                () = self.missed.notified() => self.election.hurry(Instant::now()),
                asked = &mut resigning, if resigned.is_none() => match asked {
                    Ok(done) => {
                        self.election.resign();
                        resigned = Some((done, now + self.timings.renew_deadline));
                    }
                    // Whoever could have acted is gone.
                    Err(_) => return,
                },
            }
        }
        if let Some((done, _)) = resigned {
            let _ = done.send(());
        }
    }

    /// One request, and what follows from it. What is published stays true meanwhile.
    async fn step(&mut self) {
        let sent = Instant::now();
        let floor = *self.floor.borrow();
        let Some((_, action)) = self.election.next(sent, floor) else { return };
        let answer = {
            let request = self.store.carry_out(&action);
            tokio::pin!(request);
            loop {
                tokio::select! {
                    answer = &mut request => break answer,
                    () = until(self.election.changes_at(Instant::now())) => {
                        publish(&self.leadership, &self.election);
                    }
                }
            }
        };
        let answer = self.noted(&action, answer);
        self.election.answered(&action, answer, sent, Instant::now());
    }

    fn noted(&self, action: &Action, answer: Result<Answer, ApiError>) -> Answer {
        let failures = self.election.failures();
        match answer {
            Ok(answer) => {
                if failures > 0 {
                    tracing::info!("the API server answers again, after {failures} failures");
                }
                answer
            }
            Err(error) => {
                if failures.is_multiple_of(FAILURES_PER_WARNING) {
                    tracing::warn!(failures = failures + 1, ?action, "election of the controller: {error}");
                }
                Answer::Failed
            }
        }
    }

    fn publish(&self) {
        publish(&self.leadership, &self.election);
    }
}

fn publish(leadership: &watch::Sender<Leadership>, election: &Election) {
    let known = leadership_of(election.standing(Instant::now()));
    leadership.send_if_modified(|published| {
        let changed = *published != known;
        if changed {
            report(published, &known);
            *published = known;
        }
        changed
    });
}

fn report(before: &Leadership, now: &Leadership) {
    match (before, now) {
        (Leadership::Controller { .. }, Leadership::Controller { .. }) => {}
        (_, Leadership::Controller { lease_transitions, .. }) => {
            tracing::info!(lease_transitions, "elected: this broker is the controller");
        }
        (Leadership::Controller { lease_transitions, .. }, _) => {
            tracing::warn!(lease_transitions, "this broker is no longer the controller");
        }
        (_, Leadership::Follower { lease_transitions, controller }) => {
            tracing::info!(lease_transitions, controller = controller.broker.0, "the controller is another broker");
        }
        (_, Leadership::Unknown) => tracing::info!("no controller is known"),
    }
}

fn leadership_of(standing: Standing) -> Leadership {
    match standing {
        Standing::Unknown | Standing::Resigned => Leadership::Unknown,
        Standing::Holding { transitions, act_until } => {
            Leadership::Controller { lease_transitions: transitions, act_until }
        }
        // A holder that is no broker of ours (somebody edited the Lease) is nobody to follow; it expires all the same.
        Standing::Follower { transitions, holder } => match broker_of_pod(&holder.name) {
            Some(broker) => Leadership::Follower {
                lease_transitions: transitions,
                controller: Controller { broker, heartbeat: holder.heartbeat.into() },
            },
            None => Leadership::Unknown,
        },
    }
}

async fn until(at: Option<Instant>) {
    match at {
        Some(at) => sleep_until(at).await,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pod_is_named_for_its_broker() {
        assert_eq!(broker_of_pod("kaas-0"), Some(BrokerId(0)));
        assert_eq!(broker_of_pod("my-kaas-12"), Some(BrokerId(12)));
        for foreign in ["kaas", "kaas-", "kaas-01", "kaas-x", "kaas--1x", ""] {
            assert_eq!(broker_of_pod(foreign), None, "{foreign}");
        }
    }
}
