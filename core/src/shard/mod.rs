//! One core and all that it owns: partitions, coordinator slots, caches.
//!
//! [`Shard`] carries out operations of request handlers ([`dispatch`]) and commands of the control thread ([`control`]).
//! Nothing of it leaves its thread; others reach it through [`port`].

mod clock;
mod compaction;
mod control;
mod dispatch;
mod fetch;
pub mod gather;
pub mod operation;
pub mod port;
pub mod producer_ids;
pub mod reserve;
mod slot_log;
pub mod volume_space;

use std::cell::{Cell, RefCell};
use std::fmt;
use std::rc::{Rc, Weak};
use std::time::Duration;

use ahash::AHashMap;
use kaas_proto::config::broker::BrokerConfig;
use kaas_proto::control::{PartitionKey, ShardCommand, ShardEvent};
use kaas_proto::metrics::ShardMetrics;
use kaas_proto::reserve::Reserves;
use kaas_proto::types::{BrokerId, ShardId};
use tokio::sync::{mpsc, watch};

use self::operation::{AllocateProducerId, ShardOperation};
use self::port::LocalPort;
use self::producer_ids::ALLOCATION_QUEUE_LENGTH;
use self::slot_log::LeaderLog;
use self::volume_space::SpaceCache;
use crate::compaction::config::CompactionConfig;
use crate::env::{Env, TaskClass, alarm};
use crate::group::config::GroupConfig;
use crate::group::coordinator::GroupCoordinator;
use crate::log::context::{LogContext, Share};
use crate::metrics::Counters;
use crate::partition::Partition;
use crate::partition::action::Wanted;
use crate::partition::checkpoint::CHECKPOINT_BYTES;
use crate::partition::context::{LeadershipObserver, PartitionContext};
use crate::partition::error::NotLeading;
use crate::partition::leader::Leader;
use crate::partition::lifecycle::State;

/// Memory of the tail cache of a shard unless somebody says otherwise.
pub const DEFAULT_TAIL_CACHE_BYTES: usize = 64 << 20;

/// What a shard is told when it starts.
#[derive(Clone, Copy, Debug)]
pub struct ShardConfig {
    pub shard: ShardId,
    /// Who we say we are when we revoke a fence.
    pub broker: BrokerId,
    pub tail_cache_bytes: usize,
    /// How many segments may be open, for appends and reads together.
    pub open_segments: usize,
    /// `producer.id.expiration.ms`
    pub producer_id_expiration: Duration,
    /// A checkpoint of a log is written whenever so much was appended to it.
    pub checkpoint_bytes: u64,
    /// `log.retention.check.interval.ms`
    pub retention_check_interval: Duration,
    pub groups: GroupConfig,
    pub compaction: CompactionConfig,
    /// Local-dev mode: the volume is this shard's own memory, nobody else makes and removes directories there.
    pub owns_directories: bool,
    /// Keeps the broker's reserves: one shard does, where there is a volume.
    pub keeps_reserve: bool,
    /// The volume outlives the process: what it says of the time counts.
    pub asks_volume_for_time: bool,
}

impl ShardConfig {
    /// With the broker's settings, for one of `shards` shards.
    #[must_use]
    pub fn new(shard: ShardId, broker: BrokerId, settings: &BrokerConfig, shards: u16) -> Self {
        Self {
            shard,
            broker,
            tail_cache_bytes: DEFAULT_TAIL_CACHE_BYTES,
            open_segments: usize::MAX,
            checkpoint_bytes: CHECKPOINT_BYTES,
            producer_id_expiration: settings.producer_id_expiration,
            retention_check_interval: settings.retention_check_interval,
            groups: GroupConfig::from(settings),
            compaction: CompactionConfig::share_of(settings, shards),
            owns_directories: false,
            keeps_reserve: false,
            asks_volume_for_time: false,
        }
    }
}

/// Where a shard's work comes from and where its reports go.
#[derive(Debug)]
pub struct ShardChannels {
    pub commands: mpsc::Receiver<ShardCommand>,
    pub events: mpsc::Sender<ShardEvent>,
    /// Of the other shards' connections: [`port::queue`].
    pub operations: mpsc::Receiver<ShardOperation>,
}

/// Shard-local; clones are the same shard.
pub struct Shard<E: Env>(Rc<Inner<E>>);

struct Inner<E: Env> {
    config: ShardConfig,
    context: Rc<PartitionContext<E>>,
    partitions: RefCell<AHashMap<PartitionKey, Rc<Partition<E>>>>,
    groups: GroupCoordinator<E>,
    producer_ids: mpsc::Sender<AllocateProducerId>,
    ended: watch::Sender<bool>,
    space: Rc<SpaceCache>,
    /// Retention is under way.
    retaining: Cell<bool>,
}

impl<E: Env> Clone for Shard<E> {
    fn clone(&self) -> Self {
        Self(Rc::clone(&self.0))
    }
}

impl<E: Env> Shard<E> {
    /// A shard that leads nothing yet, and its tasks. Call it on the shard's thread.
    #[must_use]
    pub fn start(env: E, config: ShardConfig, channels: ShardChannels) -> Self {
        Self::start_with(env, config, channels, Reserves::default())
    }

    /// As [`Shard::start`], with the reserves of the broker.
    #[must_use]
    pub fn start_with(env: E, config: ShardConfig, channels: ShardChannels, reserves: Reserves) -> Self {
        let ShardChannels { commands, events, operations } = channels;
        let counters = Rc::new(Counters::default());
        let log = LogContext::new(
            env.clone(),
            config.broker,
            config.tail_cache_bytes,
            config.open_segments,
            counters,
            reserves,
        );
        let context = PartitionContext::new(
            log,
            config.shard,
            config.producer_id_expiration,
            config.checkpoint_bytes,
            config.owns_directories,
            events,
        );
        let (producer_ids, requests) = mpsc::channel(ALLOCATION_QUEUE_LENGTH);
        env.spawn(TaskClass::Latency, producer_ids::serve(env.clone(), requests));
        let shard = Self(Rc::new(Inner {
            config,
            groups: GroupCoordinator::new(env.clone(), config.groups, Rc::clone(&context.clock)),
            context,
            partitions: RefCell::default(),
            producer_ids,
            ended: watch::channel(false).0,
            space: Rc::default(),
            retaining: Cell::new(false),
        }));
        if config.asks_volume_for_time {
            env.spawn(TaskClass::Background, shard.clone().keep_clock());
        } else {
            shard.0.context.clock.begin(env.now(), env.wall_clock(), None);
        }
        let observer: Weak<Inner<E>> = Rc::downgrade(&shard.0);
        shard.0.context.observe(observer);
        env.spawn(TaskClass::Latency, shard.clone().carry_out_commands(commands));
        env.spawn(TaskClass::Latency, shard.clone().carry_out_operations(operations));
        env.spawn(TaskClass::Background, shard.clone().keep_house());
        if config.keeps_reserve {
            for keeper in reserve::keepers(&shard.0.context.log) {
                env.spawn(TaskClass::Background, keeper.keep());
            }
        }
        env.spawn(TaskClass::Background, shard.clone().keep_compact());
        shard
    }

    /// The way in for connections of this very shard.
    #[must_use]
    pub fn port(&self) -> LocalPort {
        let shard = self.clone();
        LocalPort::new(move |operation| shard.submit(operation))
    }

    /// Completes when the shard has carried out [`ShardCommand::Shutdown`].
    pub async fn ended(&self) {
        let mut ended = self.0.ended.subscribe();
        // The sender lives as long as the shard.
        let _ = ended.wait_for(|ended| *ended).await;
    }

    /// Appends a batch of the broker's own, such as the marker of a transaction, which clients may not write.
    ///
    /// # Errors
    /// It was not acknowledged.
    #[cfg(feature = "simulator")]
    pub async fn append_own(
        &self,
        partition: PartitionKey,
        batch: bytes::Bytes,
    ) -> Result<operation::Appended, crate::partition::error::AppendError> {
        let appended = self.leader(partition)?.append_local(batch);
        appended.await
    }

    fn env(&self) -> &E {
        self.0.context.env()
    }

    fn counters(&self) -> &Counters {
        &self.0.context.log.counters
    }

    fn partition(&self, key: PartitionKey) -> Option<Rc<Partition<E>>> {
        self.0.partitions.borrow().get(&key).cloned()
    }

    /// Who leads the partition here.
    fn leader(&self, key: PartitionKey) -> Result<Rc<Leader<E>>, NotLeading> {
        self.0.partitions.borrow().get(&key).ok_or(NotLeading::NotHere)?.leader()
    }

    fn partitions(&self) -> Vec<Rc<Partition<E>>> {
        let mut partitions: Vec<_> = self.0.partitions.borrow().values().cloned().collect();
        // Hash maps have an order of their own: what is done to all partitions should be the same each time.
        partitions.sort_unstable_by_key(|partition| partition.key());
        partitions
    }

    /// Puts everything that is counted here together.
    #[must_use]
    pub fn metrics(&self) -> ShardMetrics {
        let mut metrics = ShardMetrics::default();
        let counters = self.counters();
        let partitions = self.0.partitions.borrow();
        let count =
            |is: fn(&Partition<E>) -> bool| partitions.values().filter(|partition| is(partition)).count() as u64;
        counters.partitions_led.set(count(|partition| partition.state().is_leading()));
        counters.partitions_wanted.set(count(|partition| matches!(partition.wanted(), Wanted::Lead(_))));
        counters.partitions_stalled.set(count(|partition| partition.state() == State::Stalled));
        counters.clock_doubted.set(u64::from(self.0.context.clock.is_doubted()));
        counters.watchers.set(self.0.context.watchers.len() as u64);
        counters.tail_cache_bytes.set(self.0.context.log.tail_cache.bytes() as u64);
        counters.read_ahead_bytes.set(self.0.context.log.read_ahead.bytes() as u64);
        let LogContext { of_topics, of_slots, .. } = &*self.0.context.log;
        let of_both = |count: fn(&Share<E>) -> u64| count(of_topics) + count(of_slots);
        counters.open_active_segments.set(of_both(|share| share.active_segments.len() as u64));
        counters.active_segments_displaced.set(of_both(|share| share.active_segments.displaced()));
        counters.open_segments.set(of_both(|share| share.older_segments.len() as u64));
        counters.segments_displaced.set(of_both(|share| share.older_segments.displaced()));
        counters.segment_waits.set(of_both(|share| share.active_segments.waits() + share.older_segments.waits()));
        counters.overslept.set(alarm::overslept());
        counters.collect(&mut metrics);
        self.0.groups.report(&mut metrics);
        metrics
    }
}

impl<E: Env> LeadershipObserver<E> for Inner<E> {
    fn leads(&self, leader: &Rc<Leader<E>>) {
        if let Some(slot) = leader.key().slot() {
            self.groups.take_over(slot, LeaderLog::new(Rc::clone(leader)));
        }
    }

    fn lost(&self, partition: PartitionKey) {
        if let Some(slot) = partition.slot() {
            self.groups.give_up(slot);
        }
    }

    fn closed(&self, partition: PartitionKey) {
        let mut partitions = self.partitions.borrow_mut();
        let is_done = |partition: &Rc<Partition<E>>| matches!(partition.wanted(), Wanted::Closed | Wanted::Abandoned);
        if partitions.get(&partition).is_some_and(is_done) {
            partitions.remove(&partition);
        }
    }
}

impl<E: Env> fmt::Debug for Shard<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shard").field("config", &self.0.config).finish_non_exhaustive()
    }
}
