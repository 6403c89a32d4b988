//! The controller: for as long as this broker holds the Lease.
//!
//! ```text
//!   elected ──▶ load the assignment, claim an epoch, read which topics are on the volume
//!                    │
//!                    ▼
//!            ┌── compute ──▶ write (temporary name, sync) ── still elected? ──▶ rename ──▶ push
//!            │                                                    │ no
//!            └── a broker came, went, drains, reports an epoch;   ▼
//!                topics changed; a foreign file was found      withdraw, end
//! ```

use std::cell::{Cell, RefCell};
use std::collections::{BTreeSet, HashMap};
use std::future::pending;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use kaas_proto::control::PartitionKey;
use kaas_proto::format::assignment::{AssignedPartition, AssignedSlot, Assignment, RegisteredBroker};
use kaas_proto::heartbeat::{BrokerMessage, ControllerMessage};
use kaas_proto::reserve::Reserves;
use kaas_proto::roots::Roots;
use kaas_proto::types::{AssignmentVersion, BrokerId, ControllerEpoch, LeaderEpoch};
use tokio::sync::{Notify, mpsc, watch};
use tokio::time::{Instant, MissedTickBehavior, interval, sleep_until, timeout_at};

use super::assignment_file::{AssignmentFile, AssignmentFileError, Staged};
use super::follower::{Report, What};
use super::found_epochs::find_epochs;
use super::heartbeat::messages::{MAX_REPORTS, report, wire_report};
use super::heartbeat::server::{EVENT_QUEUE_LENGTH, EventSink, SessionEvent, ToBroker};
use super::lag::{Lag, Row};
use super::plan::{Inputs, TakenEpochs, next_assignment, says_the_same};
use super::ports::{DesiredTopics, Leadership};
use super::provision::{Provisioner, Turn};
use super::registry::{HEARTBEAT_INTERVAL, Registry, SessionId};
use super::releases::RecentReleases;
use super::watcher::Watcher;
use crate::topics::{StoreError, TopicDirectory, blocking};

/// After something on the volume did not work, before it is tried again.
const RETRY_PAUSE: Duration = Duration::from_secs(1);

/// A term could not begin, or go on.
#[derive(Debug, thiserror::Error)]
enum TermError {
    #[error(transparent)]
    File(#[from] AssignmentFileError),
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error("the epochs in the partitions' directories can't be read: {0}")]
    Epochs(std::io::Error),
    #[error("the controller of epoch {0} has written an assignment: this one's own epoch {1} is over")]
    Deposed(ControllerEpoch, ControllerEpoch),
    #[error("not elected any more")]
    NotElected,
}

impl TermError {
    fn is_full(&self) -> bool {
        match self {
            Self::File(error) => error.is_full(),
            Self::Store(error) => error.is_full(),
            Self::Epochs(_) | Self::Deposed(..) | Self::NotElected => false,
        }
    }
}

/// Control thread, of every broker.
pub(crate) struct Candidate {
    pub(crate) own: RegisteredBroker,
    /// Where the others reach this broker's heartbeat listener, `HOST:PORT`.
    pub(crate) heartbeat: Arc<str>,
    pub(crate) file: AssignmentFile,
    pub(crate) roots: Roots,
    pub(crate) topics: Arc<TopicDirectory>,
    pub(crate) leadership: watch::Receiver<Leadership>,
    pub(crate) desired: watch::Receiver<Option<Arc<DesiredTopics>>>,
    pub(crate) ready: watch::Receiver<Option<BTreeSet<BrokerId>>>,
    pub(crate) watcher: Rc<Watcher>,
    pub(crate) sink: watch::Sender<EventSink>,
    pub(crate) sweep: Rc<Notify>,
    pub(crate) reserves: Reserves,
    pub(crate) facts: Rc<ControllerFacts>,
}

/// What the admin endpoint shows of the controller.
#[derive(Debug, Default)]
pub(crate) struct ControllerFacts {
    /// The epoch of the term that this broker is in.
    pub(crate) epoch: Cell<Option<ControllerEpoch>>,
    pub(crate) connected: Cell<usize>,
    /// What those follow that have a session.
    pub(crate) followers: RefCell<Vec<Row>>,
    pub(crate) written: Cell<u64>,
    /// How long the last assignment took from the cause to the rename.
    pub(crate) last_write: RefCell<Duration>,
}

impl Candidate {
    /// Governs whenever it is elected, for ever.
    pub(crate) async fn run(self) {
        let mut leadership = self.leadership.clone();
        loop {
            let elected = |leadership: &Leadership| deadline_in(leadership).is_some_and(|until| until > Instant::now());
            if leadership.wait_for(elected).await.is_err() {
                pending::<()>().await;
            }
            let ended = self.govern().await;
            self.sink.send_replace(None);
            self.facts.epoch.set(None);
            self.facts.followers.take();
            match ended {
                TermError::NotElected => tracing::info!("not the controller any more"),
                error => {
                    if error.is_full() {
                        self.reserves.cluster.ask_for_room();
                    }
                    tracing::error!("the controller begins anew: {error}");
                }
            }
            let _ = timeout_at(Instant::now() + RETRY_PAUSE, leadership.changed()).await;
        }
    }

    /// Returns when this term is over, and why.
    async fn govern(&self) -> TermError {
        match self.begin().await {
            Ok(mut term) => match term.run().await {
                Ok(never) => match never {},
                Err(error) => error,
            },
            Err(error) => error,
        }
    }

    async fn begin(&self) -> Result<Term<'_>, TermError> {
        let lease_transitions = match &*self.leadership.borrow() {
            Leadership::Controller { lease_transitions, .. } => *lease_transitions,
            Leadership::Unknown | Leadership::Follower { .. } => return Err(TermError::NotElected),
        };
        let (file, directory, roots) = (self.file.clone(), Arc::clone(&self.topics), self.roots.clone());
        let reserve = self.reserves.data.clone();
        let load = blocking(move || {
            let stored = file.load()?;
            let written = stored.assignment.as_ref().map_or(0, |assignment| assignment.controller_epoch.0);
            let epoch = file.claim_epoch(ControllerEpoch(lease_transitions.max(written).saturating_add(1)))?;
            let assigned = stored.assignment.iter().flat_map(|assignment| &assignment.partitions);
            let provisioner = Provisioner::load(directory, reserve, assigned.map(|partition| partition.topic_id))?;
            let taken = if stored.assignment.is_none() || stored.lost.is_some() {
                find_epochs(&roots, &provisioner.on_volume()).map_err(TermError::Epochs)?
            } else {
                TakenEpochs::default()
            };
            Ok::<_, TermError>((stored, epoch, provisioner, taken))
        });
        let (stored, epoch, provisioner, taken) = self.while_elected(load).await??;
        if let Some(lost) = &stored.lost {
            tracing::error!(
                "THE ASSIGNMENT IS LOST: {lost}. Going on from {}, above the epochs that lie in the partitions' directories",
                if stored.assignment.is_some() { "the one before it" } else { "nothing" }
            );
        }
        tracing::info!(%epoch, lease_transitions, "this broker is the controller");
        self.facts.epoch.set(Some(epoch));
        let now = Instant::now();
        let former = stored.assignment.as_ref().map_or(&[][..], |assignment| &assignment.brokers);
        let former_controller = stored.assignment.as_ref().map(|assignment| assignment.controller);
        let registry = Registry::new(self.own.clone(), former, former_controller, self.ready.borrow().as_ref(), now);
        let (sender, events) = mpsc::channel(EVENT_QUEUE_LENGTH);
        self.sink.send_replace(Some(sender));
        Ok(Term {
            candidate: self,
            epoch,
            registry,
            taken,
            provisioner,
            working: None,
            provisioning: Provisioning::default(),
            events,
            sessions: HashMap::new(),
            releases: RecentReleases::default(),
            lag: Lag::default(),
            led: stored.assignment.as_ref().map(leaders).unwrap_or_default(),
            former: stored.assignment,
            written: false,
        })
    }

    /// Waits for something, but no longer than this broker may act.
    async fn while_elected<T>(&self, work: impl Future<Output = T>) -> Result<T, TermError> {
        tokio::select! {
            done = work => Ok(done),
            () = self.term_over() => Err(TermError::NotElected),
        }
    }

    /// Completes when this broker must not act any more.
    async fn term_over(&self) {
        let mut leadership = self.leadership.clone();
        loop {
            let Some(until) = deadline_in(&leadership.borrow_and_update()) else { return };
            tokio::select! {
                () = sleep_until(until) => return,
                changed = leadership.changed() => {
                    if changed.is_err() {
                        sleep_until(until).await;
                        return;
                    }
                }
            }
        }
    }

    /// The last look before an assignment counts: to write it may have taken long.
    async fn if_still_elected(&self, staged: Staged) -> Result<Staged, TermError> {
        if deadline_in(&self.leadership.borrow()).is_some_and(|until| Instant::now() < until) {
            return Ok(staged);
        }
        blocking(move || staged.withdraw()).await;
        Err(TermError::NotElected)
    }
}

fn deadline_in(leadership: &Leadership) -> Option<Instant> {
    match leadership {
        Leadership::Controller { act_until, .. } => Some(*act_until),
        Leadership::Unknown | Leadership::Follower { .. } => None,
    }
}

/// Never, if there is none.
async fn end_of<T>(work: &mut Option<Pin<Box<dyn Future<Output = T>>>>) -> T {
    match work {
        Some(work) => work.await,
        None => pending().await,
    }
}

fn leaders(assignment: &Assignment) -> HashMap<PartitionKey, (BrokerId, LeaderEpoch)> {
    let slot = |row: &AssignedSlot| (PartitionKey::of_slot(row.slot), (row.leader, row.epoch));
    let partition = |row: &AssignedPartition| (row.key(), (row.leader, row.epoch));
    assignment.consumer_groups.iter().map(slot).chain(assignment.partitions.iter().map(partition)).collect()
}

struct Session {
    id: SessionId,
    to_broker: ToBroker,
    /// The number of its newest message.
    heard: u64,
}

/// One term of office.
struct Term<'a> {
    candidate: &'a Candidate,
    epoch: ControllerEpoch,
    registry: Registry,
    taken: TakenEpochs,
    provisioner: Provisioner,
    /// A turn of provisioning on another thread. Nothing waits for it.
    working: Option<Pin<Box<dyn Future<Output = Turn>>>>,
    provisioning: Provisioning,
    events: mpsc::Receiver<SessionEvent>,
    sessions: HashMap<BrokerId, Session>,
    /// The last assignment, also that of another controller.
    former: Option<Assignment>,
    /// For new leaders that come after the word of it.
    releases: RecentReleases,
    lag: Lag,
    /// Who leads what in it.
    led: HashMap<PartitionKey, (BrokerId, LeaderEpoch)>,
    /// Something was written in this term.
    written: bool,
}

/// How far the volume is from what is desired.
#[derive(Clone, Copy, Debug, Default)]
struct Provisioning {
    /// Other topics are desired than those that the work is about.
    outdated: bool,
    /// Something did not work.
    failed: bool,
}

enum Never {}

impl Term<'_> {
    async fn run(&mut self) -> Result<Never, TermError> {
        let mut desired = self.candidate.desired.clone();
        desired.mark_changed();
        let mut tick = interval(HEARTBEAT_INTERVAL);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut batch = Vec::new();
        loop {
            tokio::select! {
                () = self.candidate.term_over() => return Err(TermError::NotElected),
                Ok(()) = desired.changed() => {
                    self.provisioning.outdated = true;
                    self.follow_topics().await?;
                }
                turn = end_of(&mut self.working) => {
                    self.working = None;
                    self.worked(turn).await?;
                }
                count = self.events.recv_many(&mut batch, EVENT_QUEUE_LENGTH) => {
                    if count == 0 {
                        return Err(TermError::NotElected);
                    }
                    let reported = batch.drain(..).filter_map(|event| self.note(event)).collect::<Vec<_>>();
                    self.pass_on(&reported);
                    // A broker that is about to leave waits for this.
                    let reporters: BTreeSet<BrokerId> = reported.into_iter().map(|(broker, _)| broker).collect();
                    reporters.into_iter().for_each(|broker| self.send(broker, &[]));
                    self.recompute().await?;
                }
                _ = tick.tick() => {
                    for broker in self.registry.expire(Instant::now()) {
                        tracing::info!(%broker, "nothing was heard of a broker");
                        self.sessions.remove(&broker);
                        self.lag.gone(broker);
                    }
                    self.look_for_lag();
                    self.look_after_the_file().await?;
                    self.provisioning.outdated |= std::mem::take(&mut self.provisioning.failed);
                    self.follow_topics().await?;
                    self.recompute().await?;
                    self.send_to_all();
                }
            }
        }
    }

    /// Makes assignment and volume follow the topics that are desired: first the assignment, which names nothing of what
    /// is gone, then the volume, then the assignment with what is new.
    async fn follow_topics(&mut self) -> Result<(), TermError> {
        if !self.provisioning.outdated || self.working.is_some() {
            return Ok(());
        }
        self.provisioning = Provisioning::default();
        self.recompute().await?;
        let topics = self.candidate.desired.borrow().clone();
        if let Some(topics) = topics {
            let work = self.provisioner.work(&topics);
            self.working = Some(Box::pin(blocking(move || work.turn())));
        }
        Ok(())
    }

    /// A turn of provisioning has ended.
    async fn worked(&mut self, turn: Turn) -> Result<(), TermError> {
        self.provisioner.note(turn.done);
        self.provisioning.failed |= turn.failed;
        self.candidate.sweep.notify_one();
        self.recompute().await?;
        match turn.left {
            // What is desired now may be something else.
            Some(work) if !self.provisioning.outdated => {
                self.working = Some(Box::pin(blocking(move || work.turn())));
                Ok(())
            }
            _ => self.follow_topics().await,
        }
    }

    /// Takes note of what a session says. Returns what the broker has let go of, if it reports anything.
    fn note(&mut self, event: SessionEvent) -> Option<(BrokerId, Vec<Report>)> {
        let now = Instant::now();
        match event {
            SessionEvent::Began { session, broker, to_broker } => {
                tracing::info!(broker = %broker.id, incarnation = %broker.incarnation, "a broker has come");
                // Dropping a former session's sender ends it.
                self.lag.gone(broker.id);
                self.sessions.insert(broker.id, Session { id: session, to_broker, heard: 0 });
                self.send(broker.id, &self.releases_for(broker.id, now));
                self.registry.connect(session, broker, now);
                None
            }
            SessionEvent::Heard { session, broker, message } => {
                if !self.registry.heard(broker, session, message.healthy, message.draining, now) {
                    return None;
                }
                if let Some(session) = self.sessions.get_mut(&broker) {
                    session.heard = message.number;
                }
                let follows =
                    (ControllerEpoch(message.controller_epoch), AssignmentVersion(message.assignment_version));
                self.lag.heard(broker, follows, now);
                let relinquished = self.note_reports(broker, &message);
                (!message.reports.is_empty()).then_some((broker, relinquished))
            }
            SessionEvent::Ended { session, broker } => {
                self.registry.disconnect(broker, session);
                if self.sessions.get(&broker).is_some_and(|current| current.id == session) {
                    tracing::info!(%broker, "the session of a broker has ended");
                    self.sessions.remove(&broker);
                    self.lag.gone(broker);
                }
                None
            }
        }
    }

    fn note_reports(&mut self, broker: BrokerId, message: &BrokerMessage) -> Vec<Report> {
        let mut relinquished = Vec::new();
        for report in message.reports.iter().filter_map(report) {
            match (report.what, self.registry.incarnation(broker)) {
                (What::Leads, Some(incarnation)) => {
                    self.taken.led(report.partition, report.epoch, (broker, incarnation));
                }
                (What::Superseded, _) if self.is_known(broker, &report) => {}
                (What::Leads | What::Superseded, _) => self.taken.found(report.partition, report.epoch),
                (What::Relinquished, _) => relinquished.push(report),
            }
        }
        relinquished
    }

    /// Tells new leaders that those before them have let go: each as much as there is at a time, because only so many messages may
    /// wait for it.
    fn pass_on(&mut self, reported: &[(BrokerId, Vec<Report>)]) {
        let mut by_leader: HashMap<BrokerId, Vec<Report>> = HashMap::new();
        let now = Instant::now();
        for (from, report) in
            reported.iter().flat_map(|(from, reports)| reports.iter().map(move |report| (from, report)))
        {
            self.releases.note(report.partition, report.epoch, now);
            if let Some(&(leader, _)) = self.led.get(&report.partition).filter(|(leader, _)| leader != from) {
                by_leader.entry(leader).or_default().push(*report);
            }
        }
        for (leader, reports) in by_leader {
            self.send(leader, &reports);
        }
    }

    /// What others have let go of for a broker, as far as it may not have heard of it.
    fn releases_for(&self, broker: BrokerId, now: Instant) -> Vec<Report> {
        let is_next = |partition, released| {
            self.led.get(&partition).is_some_and(|&(leader, epoch)| leader == broker && released < epoch)
        };
        let released = self.releases.at(now).into_iter().filter(|&(partition, epoch)| is_next(partition, epoch));
        released.map(|(partition, epoch)| Report { partition, epoch, what: What::Relinquished }).collect()
    }

    /// Whether it is the broker that is to lead the partition that superseded the reporter.
    fn is_known(&self, reporter: BrokerId, report: &Report) -> bool {
        let led = self.led.get(&report.partition);
        led.is_some_and(|&(leader, epoch)| leader != reporter && report.epoch <= epoch)
    }

    fn send(&self, broker: BrokerId, relinquished: &[Report]) {
        let Some(session) = self.sessions.get(&broker) else { return };
        let generation = self.former.as_ref().filter(|_| self.written).map(Assignment::generation);
        let message = |relinquished: &[Report]| ControllerMessage {
            controller_epoch: generation.map_or(0, |(epoch, _)| epoch.0),
            assignment_version: generation.map_or(0, |(_, version)| version.0),
            relinquished: relinquished.iter().map(wire_report).collect(),
            heard: session.heard,
        };
        // A broker that takes nothing is about to be found silent; a report that it misses costs it a short wait.
        if relinquished.is_empty() {
            let _ = session.to_broker.try_send(Ok(message(&[])));
        }
        for some in relinquished.chunks(MAX_REPORTS) {
            let _ = session.to_broker.try_send(Ok(message(some)));
        }
    }

    /// All are told of the newest assignment with each heartbeat; one that does not follow is shown and said.
    fn look_for_lag(&mut self) {
        for Row { broker, generation: (epoch, version), .. } in self.lag.look(Instant::now()) {
            tracing::warn!(
                %broker, %epoch, %version,
                "a broker follows an older assignment than the one on the volume: does it see the same volume, does that hang?"
            );
        }
        *self.candidate.facts.followers.borrow_mut() = self.lag.rows();
    }

    fn send_to_all(&self) {
        self.sessions.keys().for_each(|&broker| self.send(broker, &[]));
    }

    /// Writes an assignment if what it says has changed.
    async fn recompute(&mut self) -> Result<(), TermError> {
        let began = Instant::now();
        let next = self.next();
        let unchanged =
            self.former.as_ref().filter(|_| self.written).is_some_and(|former| says_the_same(former, &next));
        if unchanged {
            return Ok(());
        }
        match self.write(next).await {
            Ok(()) => {}
            Err(TermError::File(error)) => {
                // The next tick tries it again. Without an assignment nobody takes anything over.
                if error.is_full() {
                    self.candidate.reserves.cluster.ask_for_room();
                }
                tracing::error!("{error}; the cluster goes on as assigned before");
                return Ok(());
            }
            Err(error) => return Err(error),
        }
        let facts = &self.candidate.facts;
        facts.connected.set(self.registry.connected());
        facts.written.set(facts.written.get() + 1);
        *facts.last_write.borrow_mut() = began.elapsed();
        self.candidate.watcher.look();
        self.send_to_all();
        Ok(())
    }

    fn next(&self) -> Assignment {
        let desired = self.candidate.desired.borrow().clone();
        let topics = self.provisioner.assignable(desired.as_deref());
        let candidates = self.registry.candidates();
        self.candidate.facts.connected.set(self.registry.connected());
        let inputs = Inputs {
            controller: self.candidate.own.id,
            controller_heartbeat: Some(Arc::clone(&self.candidate.heartbeat)),
            controller_epoch: self.epoch,
            brokers: self.registry.brokers(&candidates),
            candidates: &candidates,
            topics: &topics,
            taken: &self.taken,
        };
        next_assignment(self.former.as_ref(), inputs)
    }

    async fn write(&mut self, next: Assignment) -> Result<(), TermError> {
        let (file, former) = (self.candidate.file.clone(), self.former.take());
        let staging = blocking(move || {
            let staged = file.stage(&next, former.as_ref());
            (staged, next, former)
        });
        let (staged, next, former) = self.candidate.while_elected(staging).await?;
        self.former = former;
        let staged = self.candidate.if_still_elected(staged?).await?;
        let publishing = blocking(move || staged.publish());
        // Also when publishing fails it may count: so this one is the last.
        let version = next.assignment_version;
        let (brokers, partitions) = (next.brokers.len(), next.partitions.len());
        self.taken.forget_older_than(&next);
        self.led = leaders(&next);
        self.former = Some(next);
        self.written = false;
        self.candidate.while_elected(publishing).await??;
        self.written = true;
        self.lag.written((self.epoch, version), Instant::now());
        tracing::info!(epoch = %self.epoch, %version, brokers, partitions, "assignment written");
        Ok(())
    }

    /// Makes sure that the file is the own one: a controller that was deposed may have put another in its place.
    async fn look_after_the_file(&mut self) -> Result<(), TermError> {
        let Some(own) = self.former.as_ref().filter(|_| self.written).map(Assignment::generation) else {
            return Ok(());
        };
        let file = self.candidate.file.clone();
        let reading = blocking(move || {
            let bytes = file.read()?;
            Ok::<_, AssignmentFileError>(bytes.map(|bytes| Assignment::decode(&bytes).map(|found| found.generation())))
        });
        let what = match self.candidate.while_elected(reading).await? {
            Ok(Some(Ok(found))) if found == own => return Ok(()),
            Ok(Some(Ok((epoch, _)))) if epoch > self.epoch => return Err(TermError::Deposed(epoch, self.epoch)),
            Ok(Some(Ok((epoch, version)))) => format!("it is of controller epoch {epoch}, version {version}"),
            Ok(Some(Err(error))) => error.to_string(),
            Ok(None) => "it is missing".to_owned(),
            // What can't be read can't be judged.
            Err(_) => return Ok(()),
        };
        tracing::warn!("assignment.json is not the one that this controller wrote ({what}): it is written again");
        self.written = false;
        Ok(())
    }
}

#[cfg(test)]
#[path = "controller_tests.rs"]
mod tests;
