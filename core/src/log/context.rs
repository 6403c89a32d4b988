//! What all logs of a shard share.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use futures_lite::future;
use kaas_proto::control::PartitionKey;
use kaas_proto::reserve::Reserves;
use kaas_proto::types::{BrokerId, COORDINATOR_SLOTS};

use super::open_segments::{MAX_OLDER_SEGMENTS, OpenSegments};
use super::read_ahead::ReadAhead;
use super::segment::Segment;
use super::tail_cache::{LogId, TailCache};
use crate::env::{Env, Volume};
use crate::log_limit::LogLimit;
use crate::metrics::Counters;

/// Bytes that may wait for writes, in all logs of a shard that share it.
pub const MAX_QUEUED_BYTES_OF_SHARD: usize = 128 << 20;

/// Older segments of coordinator slots that are open at most: those that are read when a slot is taken over, and compacted.
const MAX_OLDER_SEGMENTS_OF_SLOTS: usize = 8;

/// How long whoever finds the volume full waits for the reserve to go.
pub const ROOM_WAIT: Duration = Duration::from_secs(2);

/// The files of an environment.
pub type FileOf<E> = <<E as Env>::Volume as Volume>::File;

/// What the logs of one kind share, those of topics and those of coordinator slots: their volumes may be two, of which one hangs.
#[derive(Debug)]
pub struct Share<E: Env> {
    /// Those that are appended to.
    pub active_segments: OpenSegments<FileOf<E>>,
    pub older_segments: OpenSegments<FileOf<E>>,
    /// Bytes that wait for writes, in all logs of the kind.
    pub queued_bytes: Cell<usize>,
}

impl<E: Env> Share<E> {
    fn new(active_segments: usize, older_segments: usize) -> Rc<Self> {
        Rc::new(Self {
            active_segments: OpenSegments::new(active_segments),
            older_segments: OpenSegments::new(older_segments),
            queued_bytes: Cell::new(0),
        })
    }

    /// Those that a segment shares a bound with.
    #[must_use]
    pub fn open_segments(&self, segment: &Segment<FileOf<E>>) -> &OpenSegments<FileOf<E>> {
        if segment.end.get().is_none() { &self.active_segments } else { &self.older_segments }
    }
}

/// Shard-local; every log and partition of the shard holds it.
#[derive(Debug)]
pub struct LogContext<E: Env> {
    pub env: E,
    /// Who we say we are when we revoke a fence.
    pub broker: BrokerId,
    pub tail_cache: TailCache,
    pub read_ahead: ReadAhead,
    pub of_topics: Rc<Share<E>>,
    pub of_slots: Rc<Share<E>>,
    pub counters: Rc<Counters>,
    pub log_limit: LogLimit,
    /// While one is missing, its volume accepts no records.
    pub reserves: Reserves,
    next_log: Cell<u64>,
}

impl<E: Env> LogContext<E> {
    /// At most `open_segments` segments of topics are open at a time, but at least two.
    #[must_use]
    pub fn new(
        env: E,
        broker: BrokerId,
        tail_cache_bytes: usize,
        open_segments: usize,
        counters: Rc<Counters>,
        reserves: Reserves,
    ) -> Rc<Self> {
        let older = (open_segments / 2).clamp(1, MAX_OLDER_SEGMENTS);
        Rc::new(Self {
            env,
            broker,
            tail_cache: TailCache::new(tail_cache_bytes),
            read_ahead: ReadAhead::default(),
            of_topics: Share::new(open_segments.saturating_sub(older).max(1), older),
            of_slots: Share::new(usize::from(COORDINATOR_SLOTS), MAX_OLDER_SEGMENTS_OF_SLOTS),
            counters,
            log_limit: LogLimit::default(),
            reserves,
            next_log: Cell::new(0),
        })
    }

    #[must_use]
    pub fn share_of(&self, partition: PartitionKey) -> &Rc<Share<E>> {
        if partition.slot().is_some() { &self.of_slots } else { &self.of_topics }
    }

    /// Whether a line about this cause is to be logged, and not only counted.
    #[must_use]
    pub fn may_log(&self, cause: &'static str) -> bool {
        let may = self.log_limit.admits(cause, self.env.now());
        self.counters.suppressed_log_lines.add(u64::from(!may));
        may
    }

    /// The volume of a partition is full: has the reserve given up. True if there is room now, and what needs it may be tried again.
    pub async fn make_room(&self, partition: PartitionKey) -> bool {
        let patience = async {
            self.env.sleep(ROOM_WAIT).await;
            false
        };
        future::or(self.reserves.of(partition).make_room(), patience).await
    }

    pub(super) fn next_log_id(&self) -> LogId {
        let id = self.next_log.get();
        self.next_log.set(id + 1);
        LogId(id)
    }
}
