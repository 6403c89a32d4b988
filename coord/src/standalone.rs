//! One broker on its own: its own controller, with a volume (standalone) or without (local-dev).
//!
//! Before the shards start, [`prepare`] reads which topics there are, so that no client is told that one is unknown
//! which exists. Then [`run`] has the shards take everything over in the background, serves requests, and ends when it
//! is told to, or when another broker has taken over.

use std::cell::RefCell;
use std::convert::Infallible;
use std::future::pending;
use std::rc::Rc;
use std::sync::Arc;

use kaas_proto::config::broker::BrokerConfig;
use kaas_proto::control::{ControlLink, ShardEvent};
use kaas_proto::format::cluster_id::ClusterId;
use kaas_proto::roots::Roots;
use kaas_proto::types::{BrokerId, ShardId};
use kaas_proto::view::{BrokerView, ClusterView, ListenerAddress};
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio::task::spawn_local;

use crate::admin::{Admin, Facts};
use crate::cluster_id::{self, ClusterIdError};
use crate::cluster_state::{ClusterState, Superseded};
use crate::outbox::{Outbox, OutboxFull};
use crate::shard_pings::ShardsAnswer;
use crate::shards::{ShardHangs, first_ended, stop_shards};
use crate::signals::Signals;
use crate::successor::wait_for_successor;
use crate::topics::decide::{PartitionLimit, loaded_config};
use crate::topics::disk::FileSystem;
use crate::topics::service::{TopicService, topic_view};
use crate::topics::{StoreError, TopicDirectory, TopicStore};

/// What this broker is.
#[derive(Clone, Debug)]
pub struct StandaloneOptions {
    pub broker: BrokerId,
    pub listeners: Vec<ListenerAddress>,
    /// `None`: local-dev mode, in memory.
    pub roots: Option<Roots>,
    pub config: Arc<BrokerConfig>,
    /// How many files the process may have open for what it leads: one for each partition.
    pub open_files: u64,
}

/// What the volume says before anything runs.
#[derive(Debug)]
pub struct Prepared {
    store: TopicStore,
    view: Arc<ClusterView>,
    options: StandaloneOptions,
}

/// The volume can't be used as a data directory.
#[derive(Debug, thiserror::Error)]
pub enum PrepareError {
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    ClusterId(#[from] ClusterIdError),
}

/// Reads the volume: cluster id and topics. Blocks.
///
/// # Errors
/// The volume refused, or what is on it belongs to another cluster.
pub fn prepare(options: StandaloneOptions) -> Result<Prepared, PrepareError> {
    let broker = BrokerView { id: options.broker, rack: None, fenced: false, listeners: options.listeners.clone() };
    let Some(roots) = options.roots.clone() else {
        let view = Arc::new(ClusterView::empty(ClusterId::random().to_string().into(), broker));
        return Ok(Prepared { store: TopicStore::Memory, view, options });
    };
    let id = cluster_id::load_or_create(&roots)?;
    let directory = TopicDirectory::open(&roots, options.broker, Arc::new(FileSystem))?;
    let mut view = ClusterView::empty(id.to_string().into(), broker);
    directory.abandon_unfinished()?;
    for topic in directory.list()? {
        let config = loaded_config(&options.config, &topic);
        view.insert_topic(topic_view(&topic, Arc::new(config)));
    }
    Ok(Prepared { store: TopicStore::Directory(Arc::new(directory)), view: Arc::new(view), options })
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
pub enum StandaloneError {
    #[error(
        "another kaas has taken over this data directory: {} is led by {}. Every record that was \
         acknowledged is there. Stop one of the two, or give each its own --data-dir", .0.partition, .0.leader_in_words()
    )]
    Superseded(Superseded),
    #[error("shard {0} has ended")]
    ShardEnded(ShardId),
    #[error(transparent)]
    ShardHangs(#[from] ShardHangs),
    #[error(transparent)]
    OutboxFull(#[from] OutboxFull),
}

/// Drives the broker until it is told to stop. Within a `LocalSet` on the control thread.
///
/// # Errors
/// The broker can't go on; the shards were stopped as far as they could be.
pub(crate) async fn run(
    prepared: Prepared,
    link: ControlLink,
    admin_listener: TcpListener,
    mut signals: Signals,
    facts: Facts,
) -> Result<(), StandaloneError> {
    let Prepared { store, options, .. } = prepared;
    let ControlLink { commands, mut events, requests, view, stopping, reserves } = link;
    let state = Rc::new(RefCell::new(ClusterState::new(view)));
    let outbox = Rc::new(Outbox::start(&commands));
    let limit = PartitionLimit::of_open_files(options.open_files);
    let topics = Rc::new(TopicService::new(
        Rc::clone(&state),
        Rc::clone(&outbox),
        store,
        Arc::clone(&options.config),
        limit,
        reserves.data.clone(),
    ));
    let answers = Rc::new(ShardsAnswer::default());
    let (of_admin, stopped) = (Rc::clone(&answers), stopping.subscribe());
    let admin = Admin::new(Rc::clone(&state), commands.clone(), Rc::clone(&outbox), of_admin, stopped, facts)
        .with_reserves(reserves);

    spawn_local(Rc::new(admin).serve(admin_listener));
    let shards = commands.clone();
    spawn_local(async move { answers.watch(&shards).await });
    topics.take_over_all()?;
    let serving = Rc::clone(&topics);
    spawn_local(async move { serving.serve(requests).await });
    let retaining = Rc::clone(&topics);
    spawn_local(async move {
        if let Err(full) = retaining.forget_gone_topics().await {
            tracing::error!("offsets of topics that are gone stay for now: {full}");
        }
    });
    spawn_local(async move { topics.sweep().await });

    let ended = tokio::select! {
        name = signals.next() => {
            tracing::info!("{name}: stopping");
            Ok(())
        }
        superseded = follow(&state, &mut events) => Err(StandaloneError::Superseded(superseded)),
        superseded = wait_for_successor(&state, options.roots.as_ref()) => Err(StandaloneError::Superseded(superseded)),
        shard = first_ended(&commands) => Err(StandaloneError::ShardEnded(shard)),
    };
    spawn_local(signals.exit_at_next());
    outbox.stop();
    stopping.send_replace(true);
    let stopped = tokio::select! {
        stopped = stop_shards(&commands) => stopped,
        never = follow_on(&state, &mut events) => match never {},
    };
    ended.and(stopped.map_err(StandaloneError::from))
}

/// Takes note of what shards report, all that is there at a time, until this broker is superseded.
pub(crate) async fn follow(state: &RefCell<ClusterState>, events: &mut mpsc::Receiver<ShardEvent>) -> Superseded {
    loop {
        let Some(first) = events.recv().await else { return pending().await };
        let mut batch = vec![first];
        while let Ok(event) = events.try_recv() {
            batch.push(event);
        }
        let superseded = state.borrow_mut().apply(batch);
        if let Some(superseded) = superseded {
            return superseded;
        }
    }
}

/// Shards that report while they stop must not have to wait for the control thread.
async fn follow_on(state: &RefCell<ClusterState>, events: &mut mpsc::Receiver<ShardEvent>) -> Infallible {
    loop {
        follow(state, events).await;
    }
}
