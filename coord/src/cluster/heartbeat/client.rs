//! This broker's side: keeps a session with whoever is the controller.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use kaas_proto::control::PartitionKey;
use kaas_proto::format::assignment::{Assignment, RegisteredBroker};
use kaas_proto::heartbeat::{BrokerMessage, ControllerMessage};
use kaas_proto::types::{AssignmentVersion, ControllerEpoch, LeaderEpoch};
use tokio::sync::{Notify, mpsc, watch};
use tokio::time::{Instant, MissedTickBehavior, interval, sleep, timeout};
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Endpoint;

use super::in_words;
use super::messages::{MAX_REPORTS, registration, report, wire_report};
use super::service::heartbeat_client::HeartbeatClient;
use super::tls::Tls;
use crate::cluster::follower::Report;
use crate::cluster::ports::Leadership;
use crate::cluster::registry::{HEARTBEAT_INTERVAL, SESSION_TIMEOUT};

const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
/// After a session that ended, before the next one.
const RECONNECT_PAUSE: Duration = Duration::from_millis(100);
/// The same with a controller that only the assignment names: if the election is down for all, there may be none.
const BLIND_RECONNECT_PAUSE: Duration = Duration::from_secs(1);
/// Messages that the transport has not taken yet.
const MESSAGE_QUEUE_LENGTH: usize = 16;

/// Control thread: what this broker has to tell the controller.
#[derive(Debug, Default)]
pub struct Status {
    /// `None` before the first look.
    healthy: Cell<Option<bool>>,
    draining: Cell<bool>,
    applied: Cell<(ControllerEpoch, AssignmentVersion)>,
    connected: Cell<bool>,
    heard_at: Cell<Option<Instant>>,
    reports: RefCell<Vec<Report>>,
    /// Messages of this session.
    sent: Cell<u64>,
    /// The number of the newest of them that reports something.
    reported: Cell<u64>,
    changed: Notify,
}

impl Status {
    /// Goes out at once if it is news.
    pub fn set_healthy(&self, healthy: bool) {
        if self.healthy.replace(Some(healthy)) != Some(healthy) {
            self.changed.notify_one();
        }
    }

    pub fn set_draining(&self) {
        self.draining.set(true);
        self.changed.notify_one();
    }

    pub fn set_applied(&self, generation: (ControllerEpoch, AssignmentVersion)) {
        self.applied.set(generation);
    }

    /// Goes out at once. Without a session it is dropped: the next one begins with all that is outstanding.
    pub fn report(&self, report: Report) {
        if self.connected.get() {
            self.reports.borrow_mut().push(report);
            self.changed.notify_one();
        }
    }

    #[must_use]
    pub fn is_healthy(&self) -> bool {
        self.healthy.get().unwrap_or(false)
    }

    /// Completes once this broker has looked at itself.
    async fn judged(&self) {
        while self.healthy.get().is_none() {
            self.changed.notified().await;
        }
    }

    #[must_use]
    pub fn is_draining(&self) -> bool {
        self.draining.get()
    }

    /// Whether there is a session with a controller.
    #[must_use]
    pub fn is_connected(&self) -> bool {
        self.connected.get()
    }

    /// How long ago a controller has last said something.
    #[must_use]
    pub fn controller_silent(&self) -> Option<Duration> {
        self.heard_at.get().map(|at| at.elapsed())
    }

    /// A controller says something: also that it has dealt with messages up to this one.
    pub fn note_heard(&self, number: u64) {
        self.heard_at.set(Some(Instant::now()));
        if number >= self.reported.get() {
            self.reported.set(0);
        }
    }

    /// Whether the controller knows all that was to be reported, or there is none to tell.
    #[must_use]
    pub fn all_reported(&self) -> bool {
        !self.connected.get() || (self.reports.borrow().is_empty() && self.reported.get() == 0)
    }

    fn begin_session(&self, outstanding: Vec<Report>) {
        self.reports.replace(outstanding);
        self.sent.set(0);
        self.reported.set(0);
        self.connected.set(true);
    }

    fn end_session(&self) {
        self.connected.set(false);
        self.reports.borrow_mut().clear();
    }

    fn message(&self) -> BrokerMessage {
        let (epoch, version) = self.applied.get();
        let mut reports = self.reports.borrow_mut();
        let sent = reports.len().min(MAX_REPORTS);
        let number = self.sent.get() + 1;
        self.sent.set(number);
        if sent > 0 {
            self.reported.set(number);
        }
        let message = BrokerMessage {
            registration: None,
            healthy: self.is_healthy(),
            draining: self.draining.get(),
            controller_epoch: epoch.0,
            assignment_version: version.0,
            reports: reports.drain(..sent).map(|report| wire_report(&report)).collect(),
            number,
        };
        if !reports.is_empty() {
            self.changed.notify_one();
        }
        message
    }
}

/// What the controller has told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Told {
    /// There is an assignment of this generation.
    Assignment(ControllerEpoch, AssignmentVersion),
    /// Whoever led the partition before, with this epoch, has let go of it.
    Released(PartitionKey, LeaderEpoch),
}

/// Control thread. What a session needs.
pub struct Client {
    pub broker: RegisteredBroker,
    pub cluster_id: Arc<str>,
    /// Where this broker itself listens for heartbeats, `HOST:PORT`.
    pub own_address: Arc<str>,
    pub tls: Option<ClientTls>,
    pub leadership: watch::Receiver<Leadership>,
    /// Told when the controller does not answer.
    pub missed: Arc<Notify>,
    /// The assignment that this broker follows.
    pub assignment: watch::Receiver<Option<Arc<Assignment>>>,
    pub status: Rc<Status>,
    /// What each session begins with.
    pub outstanding: Box<dyn Fn() -> Vec<Report>>,
    /// Takes note of what the controller tells, at once.
    pub hear: Box<dyn Fn(Told)>,
}

/// How the controller is told from others.
#[derive(Clone, Debug)]
pub struct ClientTls {
    pub current: watch::Receiver<Tls>,
    /// What the certificate of this broker itself calls it: it does not reach itself by the address that others use.
    pub own_name: Arc<str>,
}

impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Client").field("broker", &self.broker.id).finish_non_exhaustive()
    }
}

impl Client {
    /// Keeps a session for as long as somebody is the controller, for ever.
    pub async fn run(self) {
        let mut complaint = String::new();
        // A broker that came with nothing to say for itself would be given partitions, and lose them at once.
        self.status.judged().await;
        loop {
            let Some(address) = self.controller_address() else {
                self.moved(None).await;
                continue;
            };
            let ended = tokio::select! {
                ended = self.session(&address) => ended.err().map(|status| status.to_string()),
                () = self.moved(Some(&address)) => None,
            };
            self.status.end_session();
            if ended.is_some() {
                self.missed.notify_one();
            }
            if let Some(ended) = ended.filter(|ended| *ended != complaint) {
                tracing::warn!(controller = &*address, "the session with the controller has ended: {ended}");
                complaint = ended;
            }
            let is_blind = *self.leadership.borrow() == Leadership::Unknown;
            let pause = if is_blind { BLIND_RECONNECT_PAUSE } else { RECONNECT_PAUSE };
            tokio::select! {
                () = sleep(pause) => {}
                // Another controller is another matter: while it is not known who leaves what, moves take longer.
                () = self.moved(Some(&address)) => {}
            }
        }
    }

    /// By election; a broker that can't ask it goes by the volume, which names whoever wrote the assignment. That costs nothing
    /// if it is wrong: who is not the controller takes no sessions, and fences decide about all else.
    fn controller_address(&self) -> Option<Arc<str>> {
        match &*self.leadership.borrow() {
            Leadership::Follower { controller, .. } => Some(Arc::clone(&controller.heartbeat)),
            Leadership::Controller { .. } => Some(Arc::clone(&self.own_address)),
            Leadership::Unknown => {
                let assignment = self.assignment.borrow();
                let assignment = assignment.as_ref().filter(|assignment| assignment.controller != self.broker.id)?;
                assignment.controller_heartbeat.clone()
            }
        }
    }

    /// Completes when the controller is elsewhere.
    async fn moved(&self, from: Option<&Arc<str>>) {
        let (mut leadership, mut assignment) = (self.leadership.clone(), self.assignment.clone());
        while self.controller_address().as_ref() == from {
            tokio::select! {
                Ok(()) = leadership.changed() => {}
                Ok(()) = assignment.changed() => {}
                // Nothing is left to go by.
                else => std::future::pending().await,
            }
        }
    }

    fn endpoint(&self, address: &str) -> Result<Endpoint, tonic::transport::Error> {
        let scheme = if self.tls.is_some() { "https" } else { "http" };
        let endpoint = Endpoint::from_shared(format!("{scheme}://{address}"))?;
        let endpoint = endpoint.connect_timeout(CONNECT_TIMEOUT).tcp_nodelay(true);
        let Some(tls) = &self.tls else { return Ok(endpoint) };
        let name = (*address == *self.own_address).then_some(&*tls.own_name);
        endpoint.tls_config(tls.current.borrow().client(name))
    }

    pub(super) async fn session(&self, address: &str) -> Result<(), tonic::Status> {
        let unusable = |error: tonic::transport::Error| tonic::Status::unavailable(in_words(&error));
        let channel = self.endpoint(address).map_err(unusable)?.connect().await.map_err(unusable)?;
        let (messages, outbound) = mpsc::channel(MESSAGE_QUEUE_LENGTH);
        self.status.begin_session((self.outstanding)());
        let registration = Some(registration(&self.broker, &self.cluster_id));
        let first = BrokerMessage { registration, ..self.status.message() };
        let full = |_| tonic::Status::unavailable("the transport takes no messages");
        messages.try_send(first).map_err(full)?;
        // A connection may carry nothing although it was made.
        let opening =
            timeout(SESSION_TIMEOUT, HeartbeatClient::new(channel).session(ReceiverStream::new(outbound))).await;
        let silent = |_| tonic::Status::deadline_exceeded("the controller does not answer");
        let mut inbound = opening.map_err(silent)??.into_inner();
        let mut beat = interval(HEARTBEAT_INTERVAL);
        beat.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let talk = async {
            loop {
                tokio::select! {
                    _ = beat.tick() => {}
                    () = self.status.changed.notified() => {}
                }
                let sent = timeout(SESSION_TIMEOUT, messages.send(self.status.message())).await;
                if !matches!(sent, Ok(Ok(()))) {
                    return Err(tonic::Status::unavailable("the controller takes no messages"));
                }
            }
        };
        let listen = async {
            loop {
                match timeout(SESSION_TIMEOUT, inbound.message()).await {
                    Ok(Ok(Some(message))) => self.hear(&message),
                    Ok(Ok(None)) => return Err(tonic::Status::unavailable("the controller has closed it")),
                    Ok(Err(status)) => return Err(status),
                    Err(_) => return Err(tonic::Status::deadline_exceeded("the controller is silent")),
                }
            }
        };
        tokio::select! {
            ended = talk => ended,
            ended = listen => ended,
        }
    }

    fn hear(&self, message: &ControllerMessage) {
        self.status.note_heard(message.heard);
        if message.assignment_version > 0 {
            let epoch = ControllerEpoch(message.controller_epoch);
            (self.hear)(Told::Assignment(epoch, AssignmentVersion(message.assignment_version)));
        }
        for released in message.relinquished.iter().filter_map(report) {
            (self.hear)(Told::Released(released.partition, released.epoch));
        }
    }
}
