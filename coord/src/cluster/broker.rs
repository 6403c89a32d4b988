//! One broker of a cluster put together: member, candidate, both ends of the heartbeat, admin endpoint, drain.

use std::cell::RefCell;
use std::convert::Infallible;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use kaas_proto::config::broker::BrokerConfig;
use kaas_proto::control::ControlLink;
use kaas_proto::format::assignment::{Assignment, RegisteredBroker};
use kaas_proto::reserve::Reserve;
use kaas_proto::roots::Roots;
use kaas_proto::types::ShardId;
use kaas_proto::view::{BrokerView, ClusterView, ListenerAddress};
use tokio::net::TcpListener;
use tokio::sync::{Notify, oneshot, watch};
use tokio::task::spawn_local;
use tokio::time::{Instant, sleep, timeout};

use super::assignment_file::AssignmentFile;
use super::controller::{Candidate, ControllerFacts};
use super::health;
use super::heartbeat::client::{Client, ClientTls, Status, Told};
use super::heartbeat::server;
use super::heartbeat::tls::{self, Tls, TlsFiles};
use super::member::Member;
use super::ports::{OpenPorts, Ports, PortsError};
use super::shown::ClusterHealth;
use super::topic_requests::TopicRequests;
use super::watcher::Watcher;
use crate::admin::{Admin, Facts};
use crate::cluster_id;
use crate::cluster_state::ClusterState;
use crate::outbox::{Outbox, OutboxFull};
use crate::shard_pings::ShardsAnswer;
use crate::shards::{ShardHangs, first_ended, stop_shards};
use crate::signals::Signals;
use crate::standalone::PrepareError;
use crate::topics::decide::PartitionLimit;
use crate::topics::disk::FileSystem;
use crate::topics::{TopicDirectory, TopicStore, blocking};

/// How long a broker that is told to stop may take to hand over what it leads. Then it closes it without.
const DRAIN_WAIT: Duration = Duration::from_secs(10);
/// How long it waits then for the controller to have passed on what it has let go of. That one may be old, or hang.
const REPORT_WAIT: Duration = Duration::from_secs(1);
/// How often it looks whether it has.
const DRAIN_LOOK: Duration = Duration::from_millis(20);
/// How long giving the Lease back may take.
const RESIGN_WAIT: Duration = Duration::from_secs(2);

/// What this broker is.
#[derive(Clone, Debug)]
pub struct ClusterOptions {
    /// As the others are to know it; its `health` does not matter.
    pub own: RegisteredBroker,
    pub roots: Roots,
    pub config: Arc<BrokerConfig>,
    /// How many files the process may have open for what it leads: one for each partition.
    pub open_files: u64,
    /// Where this broker itself reaches its own heartbeat listener, `HOST:PORT`.
    pub heartbeat_address: Arc<str>,
    /// Where the others reach it, `HOST:PORT`.
    pub heartbeat_told: Arc<str>,
    pub heartbeat_tls: Option<HeartbeatTls>,
}

/// Brokers show each other certificates.
#[derive(Clone, Debug)]
pub struct HeartbeatTls {
    pub files: TlsFiles,
    /// What is in the files.
    pub loaded: Tls,
}

/// What the volume says before anything runs.
#[derive(Debug)]
pub struct Prepared {
    options: ClusterOptions,
    topics: Arc<TopicDirectory>,
    view: Arc<ClusterView>,
}

/// Opens the volume: cluster id, directories. Blocks.
///
/// # Errors
/// The volume refused, or what is on it belongs to another cluster.
pub fn prepare(options: ClusterOptions) -> Result<Prepared, PrepareError> {
    let cluster_id = cluster_id::load_or_create(&options.roots)?.to_string().into();
    let topics = TopicDirectory::open(&options.roots, options.own.id, Arc::new(FileSystem))?;
    let listener = |listener: &kaas_proto::format::assignment::AdvertisedListener| ListenerAddress {
        name: Arc::clone(&listener.name),
        advertised: Some((Arc::clone(&listener.host), listener.port)),
    };
    let own = BrokerView {
        id: options.own.id,
        rack: options.own.rack.clone(),
        // Until an assignment says that it is not.
        fenced: true,
        listeners: options.own.listeners.iter().map(listener).collect(),
    };
    let view = ClusterView { controller: None, ..ClusterView::empty(cluster_id, own) };
    Ok(Prepared { options, topics: Arc::new(topics), view: Arc::new(view) })
}

impl Prepared {
    /// What the shards see first. Nothing is led yet.
    #[must_use]
    pub fn view(&self) -> &Arc<ClusterView> {
        &self.view
    }
}

/// Why the broker ended, other than by being told to.
#[derive(Debug, thiserror::Error)]
pub enum ClusterError {
    #[error(transparent)]
    Ports(#[from] PortsError),
    #[error("shard {0} has ended")]
    ShardEnded(ShardId),
    #[error(transparent)]
    ShardHangs(#[from] ShardHangs),
    #[error(transparent)]
    OutboxFull(#[from] OutboxFull),
    #[error("the heartbeat listener has failed: {0}")]
    Heartbeat(#[from] tonic::transport::Error),
}

/// Drives the broker until it is told to stop. Within a `LocalSet` on the control thread.
///
/// # Errors
/// The broker can't go on; the shards were stopped as far as they could be.
pub(crate) async fn run(
    prepared: Prepared,
    open_ports: OpenPorts,
    link: ControlLink,
    heartbeat_listener: TcpListener,
    admin_listener: TcpListener,
    mut signals: Signals,
    facts: Facts,
) -> Result<(), ClusterError> {
    let Prepared { options, topics, view: first_view } = prepared;
    let (floor, epoch_floor) = watch::channel(0);
    let Ports { election, topics: topic_ports, ready_endpoints } = open_ports(epoch_floor).await?;
    let ControlLink { commands, mut events, requests, view, stopping, reserves } = link;
    let state = Rc::new(RefCell::new(ClusterState::of_cluster(view)));
    let outbox = Rc::new(Outbox::start(&commands));
    let status = Rc::new(Status::default());
    let leadership = election.leadership;
    let watcher = Watcher::new(AssignmentFile::new(&options.roots), leadership.clone());
    let answers = Rc::new(ShardsAnswer::default());
    let controller_facts = Rc::new(ControllerFacts::default());
    let member = Member::new(
        options.roots.data().to_owned(),
        options.own.incarnation,
        Rc::clone(&state),
        Rc::clone(&outbox),
        Rc::clone(&status),
        Arc::clone(&options.config),
    );
    let health = ClusterHealth {
        leadership: leadership.clone(),
        assignment: watcher.accepted(),
        own: options.own.clone(),
        watcher: Rc::clone(&watcher),
        status: Rc::clone(&status),
        member: Rc::clone(&member),
        controller: Rc::clone(&controller_facts),
    };
    let (of_admin, stopped) = (Rc::clone(&answers), stopping.subscribe());
    let admin = Admin::new(Rc::clone(&state), commands.clone(), Rc::clone(&outbox), of_admin, stopped, facts);
    spawn_local(Rc::new(admin.with_reserves(reserves.clone()).in_cluster(health)).serve(admin_listener));

    spawn_local(lift(floor, watcher.accepted()));
    let looking = Rc::clone(&watcher);
    spawn_local(async move { looking.run().await });
    spawn_local(health::watch(commands.clone(), answers, Rc::clone(&watcher), Rc::clone(&status)));
    let sweep = Rc::new(Notify::new());
    spawn_local(sweep_volume(
        Arc::clone(&topics),
        Rc::clone(&sweep),
        Rc::clone(&controller_facts),
        reserves.data.clone(),
    ));
    let (sink, sink_receiver) = watch::channel(None);
    let candidate = Candidate {
        own: options.own.clone(),
        heartbeat: Arc::clone(&options.heartbeat_told),
        file: AssignmentFile::new(&options.roots),
        roots: options.roots.clone(),
        topics,
        leadership: leadership.clone(),
        desired: topic_ports.desired.clone(),
        ready: ready_endpoints,
        watcher: Rc::clone(&watcher),
        sink,
        sweep,
        reserves,
        facts: controller_facts,
    };
    spawn_local(candidate.run());
    let client_tls = options.heartbeat_tls.map(|HeartbeatTls { files, loaded }| {
        let (current, followed) = watch::channel(loaded);
        spawn_local(tls::follow(files, current));
        ClientTls { current: followed, own_name: host_of(&options.heartbeat_told) }
    });
    let server_tls = client_tls.as_ref().map(|tls| tls.current.clone());
    let (outstanding, hearing, seen) = (Rc::clone(&member), Rc::clone(&member), Rc::clone(&watcher));
    let client = Client {
        broker: options.own.clone(),
        cluster_id: Arc::clone(&first_view.cluster_id),
        own_address: Arc::clone(&options.heartbeat_address),
        tls: client_tls,
        leadership,
        missed: election.missed,
        assignment: watcher.accepted(),
        status: Rc::clone(&status),
        outstanding: Box::new(move || outstanding.outstanding()),
        hear: Box::new(move |told| match told {
            Told::Assignment(epoch, version) => {
                let accepted = seen.accepted().borrow().as_ref().map(|assignment| assignment.generation());
                if accepted.is_none_or(|accepted| accepted < (epoch, version)) {
                    seen.look();
                }
            }
            Told::Released(partition, epoch) => hearing.released(partition, epoch),
        }),
    };
    spawn_local(client.run());
    let limit = PartitionLimit::of_open_files(options.open_files);
    let service = TopicRequests::new(Rc::clone(&state), options.config, limit, topic_ports.requests);
    spawn_local(service.serve(requests));

    let (accepted, desired) = (watcher.accepted(), topic_ports.desired);
    let mut following = Box::pin(member.run(accepted, desired, &mut events));
    let serving = server::serve(heartbeat_listener, Arc::clone(&first_view.cluster_id), sink_receiver, server_tls);
    let mut serving = Box::pin(serving);
    let ended = tokio::select! {
        name = signals.next() => {
            tracing::info!("{name}: handing over what this broker leads");
            Ok(())
        }
        full = &mut following => full.map_err(ClusterError::from),
        failed = &mut serving => failed.map_err(ClusterError::from),
        shard = first_ended(&commands) => Err(ClusterError::ShardEnded(shard)),
    };
    spawn_local(signals.exit_at_next());
    if ended.is_ok() {
        // Followers go on while this broker drains: it is told whom to hand over to.
        tokio::select! {
            () = drain(&status, &member) => {}
            _ = &mut following => {}
            _ = &mut serving => {}
        }
    }
    let (resigned, answer) = oneshot::channel();
    if election.resign.send(resigned).is_ok() {
        let _ = timeout(RESIGN_WAIT, answer).await;
    }
    outbox.stop();
    stopping.send_replace(true);
    drop(following);
    // What shards report while they stop must not make them wait.
    let listening = async {
        while events.recv().await.is_some() {}
        std::future::pending::<Infallible>().await
    };
    let stopped = tokio::select! {
        stopped = stop_shards(&commands) => stopped,
        never = listening => match never {},
    };
    ended.and(stopped.map_err(ClusterError::from))
}

/// The host of `HOST:PORT`, as certificates write it.
fn host_of(address: &str) -> Arc<str> {
    let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
    host.trim_start_matches('[').trim_end_matches(']').into()
}

/// Follows the controller epoch of what is accepted, for ever.
async fn lift(floor: watch::Sender<i32>, mut accepted: watch::Receiver<Option<Arc<Assignment>>>) {
    while accepted.changed().await.is_ok() {
        let epoch = accepted.borrow_and_update().as_ref().map_or(0, |assignment| assignment.controller_epoch.0);
        floor.send_if_modified(|floor| std::mem::replace(floor, epoch.max(*floor)) < epoch);
    }
}

/// Says that this broker is about to leave, and waits until it leads nothing any more and the controller has passed that on, or nobody
/// is there to take over. The controller may be this broker: what it has not passed on then, nobody does.
async fn drain(status: &Status, member: &Member) {
    status.set_draining();
    let deadline = Instant::now() + DRAIN_WAIT;
    while !member.may_leave() {
        if Instant::now() >= deadline {
            tracing::warn!("not everything was handed over in time: the others find out by themselves");
            return;
        }
        sleep(DRAIN_LOOK).await;
    }
    let deadline = Instant::now() + REPORT_WAIT;
    while !status.all_reported() && Instant::now() < deadline {
        sleep(DRAIN_LOOK).await;
    }
    tracing::info!("drained");
}

/// Removes what deletions leave behind, while this broker is the controller. For ever.
async fn sweep_volume(topics: Arc<TopicDirectory>, due: Rc<Notify>, controller: Rc<ControllerFacts>, reserve: Reserve) {
    let store = TopicStore::Directory(topics);
    loop {
        let store = store.clone();
        let pause = match controller.epoch.get() {
            Some(_) => blocking(move || store.sweep()).await.pause(&reserve),
            None => None,
        };
        match pause {
            None => due.notified().await,
            Some(pause) => drop(timeout(pause, due.notified()).await),
        }
    }
}
