//! What all partitions of a shard share.

use std::cell::OnceCell;
use std::fmt;
use std::rc::{Rc, Weak};
use std::time::Duration;

use kaas_proto::control::{PartitionChange, PartitionKey, ShardEvent};
use kaas_proto::types::{ShardId, TimestampMs};
use tokio::sync::{Semaphore, SemaphorePermit, mpsc};

use super::leader::Leader;
use super::watch::Watchers;
use crate::env::Env;
use crate::log::context::LogContext;
use crate::steady_clock::SteadyClock;

/// How many takeovers of a shard run at once, of topics' partitions and of coordinator slots; the others wait their turn.
pub const MAX_TAKEOVERS: usize = 16;

/// How many of them persist what they know at once before they are closed.
pub const MAX_FAREWELLS: usize = 16;

/// Who wants to know when partitions begin and cease to be led here. Called in the middle of the change: do little.
pub trait LeadershipObserver<E: Env> {
    fn leads(&self, leader: &Rc<Leader<E>>);
    /// Also when a leadership ends only to begin again at a higher epoch.
    fn lost(&self, partition: PartitionKey);
    /// Nothing is open or under way for the partition any more.
    fn closed(&self, partition: PartitionKey);
}

/// Turns of the partitions of topics, and of the coordinator slots: theirs may be a volume of their own, and the other one may hang.
pub(super) struct Turns {
    of_topics: Semaphore,
    of_slots: Semaphore,
}

impl Turns {
    fn new(at_once: usize) -> Self {
        Self { of_topics: Semaphore::new(at_once), of_slots: Semaphore::new(at_once) }
    }

    pub(super) async fn wait(&self, partition: PartitionKey) -> SemaphorePermit<'_> {
        let turns = if partition.slot().is_some() { &self.of_slots } else { &self.of_topics };
        turns.acquire().await.expect("it is never closed")
    }
}

/// Shard-local.
pub struct PartitionContext<E: Env> {
    pub log: Rc<LogContext<E>>,
    pub shard: ShardId,
    pub watchers: Watchers,
    /// Idempotent producers are forgotten when they were silent for so long.
    pub producer_id_expiration: Duration,
    /// A checkpoint is written whenever so much was appended.
    pub checkpoint_bytes: u64,
    /// Local-dev mode: nobody else makes and removes directories in this shard's own memory.
    pub owns_directories: bool,
    /// What decides how old something is that is to be deleted.
    pub clock: Rc<SteadyClock>,
    pub(super) takeovers: Turns,
    pub(super) farewells: Turns,
    events: mpsc::Sender<ShardEvent>,
    observer: OnceCell<Weak<dyn LeadershipObserver<E>>>,
}

impl<E: Env> PartitionContext<E> {
    #[must_use]
    pub fn new(
        log: Rc<LogContext<E>>,
        shard: ShardId,
        producer_id_expiration: Duration,
        checkpoint_bytes: u64,
        owns_directories: bool,
        events: mpsc::Sender<ShardEvent>,
    ) -> Rc<Self> {
        let watchers = Watchers::new(Rc::clone(&log.counters));
        Rc::new(Self {
            log,
            shard,
            watchers,
            producer_id_expiration,
            checkpoint_bytes,
            owns_directories,
            clock: Rc::default(),
            takeovers: Turns::new(MAX_TAKEOVERS),
            farewells: Turns::new(MAX_FAREWELLS),
            events,
            observer: OnceCell::new(),
        })
    }

    #[must_use]
    pub fn env(&self) -> &E {
        &self.log.env
    }

    /// The wall clock, as far as something may be deleted because of it.
    pub fn believed_now(&self) -> TimestampMs {
        self.clock.believe(self.env().now(), self.env().wall_clock())
    }

    /// Whom to tell. Once.
    pub fn observe(&self, observer: Weak<dyn LeadershipObserver<E>>) {
        let first = self.observer.set(observer).is_ok();
        assert!(first, "a shard has one observer");
    }

    pub(super) fn observer(&self) -> Option<Rc<dyn LeadershipObserver<E>>> {
        self.observer.get().and_then(Weak::upgrade)
    }

    /// Reports a fact to the control thread; waits while that is behind.
    pub(crate) async fn report(&self, partition: PartitionKey, change: PartitionChange) {
        // A control thread that is gone ends the process by itself.
        drop(self.events.send(ShardEvent { shard: self.shard, partition, change }).await);
    }
}

impl<E: Env> fmt::Debug for PartitionContext<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PartitionContext").field("shard", &self.shard).finish_non_exhaustive()
    }
}
