//! Fetch 4–18: reads record batches; waits for them if there are too few.
//!
//! By topic name up to version 12, by id from 13 on. Sessions from version 7 on ([`crate::fetch_session`]); leader epochs
//! are checked from 9, records in zstd given from 10, a diverging epoch and who leads instead from 12, where that one is
//! from 16.
//!
//! A long poll reads, and if that gave less than `min_bytes` and no error it asks the shards to wake it when enough is
//! there or a partition moves, and reads again; at `max_wait_ms`, or when the broker stops, it answers with what there is.
//! `max_bytes` is shared out among the shards by what is wanted of each, and there in the order of the request; the first
//! partition with records returns one whole batch even above the limits (KIP-74), no other one does, and batches are never
//! cut. Within a session who got records goes behind, so all get their turn.
//!
//! Differences from Kafka: `replica_id` and `rack_id` are ignored, there being no replicas to fetch from. A partition that
//! is being taken over is answered NOT_LEADER_OR_FOLLOWER, which all consumers retry. INCONSISTENT_TOPIC_ID is never
//! needed: ids are looked up in each request, and an id that is gone is UNKNOWN_TOPIC_ID.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;
use futures_lite::future;
use kaas_core::env::executor::random_u64;
use kaas_core::partition::error::FetchError;
use kaas_core::shard::operation::{
    Fetch, FetchPartition, Fetched, IsolationLevel, ShardOperation, Watch, WatchPartition,
};
use kaas_proto::control::PartitionKey;
use kaas_proto::kafka::messages::fetch::{
    AbortedTransaction, EpochEndOffset, FetchRequest, FetchResponse, FetchableTopicResponse, LeaderIdAndEpoch,
    NodeEndpoint, PartitionData,
};
use kaas_proto::kafka::{ErrorCode, Records};
use kaas_proto::record::batch::{Batches, Compression};
use kaas_proto::types::{BrokerId, Offset, PartitionIndex};
use tokio::sync::oneshot;

use crate::cluster::{self, Elsewhere, TopicRef};
use crate::context::{Call, Handle, now};
use crate::deadline::Deadline;
use crate::error_map::ErrorCodeOf;
use crate::fetch_session::{Begun, Wanted};
use crate::limits::{FETCH_FLOOR_BYTES, FETCH_WAIT_MAX};
use crate::memory;
use crate::metrics::Bound;

/// The first version whose clients know zstd (KIP-110).
const ZSTD: i16 = 10;

impl Handle for FetchRequest {
    async fn handle(self, call: &Call) -> FetchResponse {
        let begun = {
            let mut sessions = call.shard.fetch_sessions.borrow_mut();
            let begun = sessions.begin(&self, call.version, now(), random_u64);
            call.shard.metrics.fetch_sessions.set(sessions.len());
            begun
        };
        let begun = match begun {
            Ok(begun) => begun,
            Err(error_code) => return FetchResponse { error_code, ..Default::default() },
        };
        if self.session_epoch == 0 && begun.session_id == 0 && !begun.partitions.is_empty() {
            call.shard.metrics.reached(Bound::FetchSessions);
        }
        let _in_use = InUse { call, session_id: begun.session_id };
        let poller = Poller::new(&self, call, &begun.partitions);
        // What is wanted was copied: the request must not take memory for as long as there is nothing to read.
        drop(self);
        call.shrink_working_memory(begun.partitions.len());
        call.release_request();
        let rows = poller.poll().await;
        response(call, &begun, rows)
    }
}

/// A fetch session while a request of it is under way. Who breaks off lets it go, too.
struct InUse<'a> {
    call: &'a Call,
    session_id: i32,
}

impl Drop for InUse<'_> {
    fn drop(&mut self) {
        self.call.shard.fetch_sessions.borrow_mut().release(self.session_id);
    }
}

/// One long poll.
struct Poller<'a> {
    call: &'a Call,
    partitions: &'a [Wanted],
    isolation: IsolationLevel,
    min_bytes: usize,
    max_bytes: usize,
    deadline: Deadline,
}

/// What one round of reading gave.
struct Round {
    /// In the order of the request.
    rows: Vec<PartitionData>,
    bytes: usize,
    /// Something must be told at once.
    urgent: bool,
    /// The partitions that could have more, with the end that was seen.
    watched: Vec<WatchPartition>,
}

/// A partition that is led here, and where it stands in the request.
struct Led {
    position: usize,
    key: PartitionKey,
}

impl<'a> Poller<'a> {
    fn new(request: &FetchRequest, call: &'a Call, partitions: &'a [Wanted]) -> Self {
        let bytes = |bytes: i32| usize::try_from(bytes).unwrap_or(0);
        let wait = Duration::from_millis(u64::try_from(request.max_wait_ms).unwrap_or(0)).min(FETCH_WAIT_MAX);
        let committed = request.isolation_level == 1;
        Self {
            call,
            partitions,
            isolation: if committed { IsolationLevel::ReadCommitted } else { IsolationLevel::ReadUncommitted },
            min_bytes: bytes(request.min_bytes),
            max_bytes: bytes(request.max_bytes).min(call.shard.config.fetch_max_bytes),
            deadline: Deadline::after(wait),
        }
    }

    async fn poll(&self) -> Vec<PartitionData> {
        let (mut last, mut former) = (false, None);
        loop {
            let Round { rows, bytes, urgent, watched } = self.read().await;
            let enough = urgent || bytes >= self.min_bytes || watched.is_empty();
            // Woken for nothing new: the shard has too many waiters, or the client wants more than it takes.
            let in_vain = former.is_some_and(|former| bytes <= former);
            if last || enough || in_vain || self.deadline.left().is_zero() {
                return rows;
            }
            // What was read is not kept while waiting: it may be much, and it is there again in no time.
            drop(rows);
            self.call.hold(None);
            former = Some(bytes);
            last = !self.wait(watched, self.min_bytes - bytes).await;
        }
    }

    /// Reads all partitions once, without waiting.
    async fn read(&self) -> Round {
        let view = self.call.view();
        let mut rows: Vec<PartitionData> = Vec::with_capacity(self.partitions.len());
        let mut led = Vec::with_capacity(self.partitions.len());
        for (position, wanted) in self.partitions.iter().enumerate() {
            let found = wanted.topic.find(&view).map_err(Elsewhere::from);
            match found.and_then(|topic| cluster::led_here(&view, topic, wanted.index)) {
                Ok(key) => {
                    led.push(Led { position, key });
                    rows.push(error_row(wanted.index, ErrorCode::NotLeaderOrFollower));
                }
                Err(elsewhere) => rows.push(elsewhere_row(wanted.index, elsewhere)),
            }
        }
        let all_led = led.len() == self.partitions.len();

        let most: usize = led.iter().map(|led| self.partitions[led.position].max_bytes).sum();
        let (budget, mut lease) = self.call.shard.response_memory.grant(most.min(self.max_bytes), FETCH_FLOOR_BYTES);
        if budget < most.min(self.max_bytes) {
            self.call.shard.metrics.reached(Bound::ShardResponseBytes);
        }
        let mut watched = Vec::with_capacity(led.len());
        let mut urgent = !all_led;
        for (Led { position, key }, fetched) in self.ask(led, budget).await {
            let wanted = &self.partitions[position];
            match fetched {
                Some(Ok(fetched)) => {
                    let seen_end = match self.isolation {
                        IsolationLevel::ReadUncommitted => fetched.high_watermark,
                        IsolationLevel::ReadCommitted => fetched.last_stable_offset,
                    };
                    watched.push(WatchPartition { partition: key, seen_end });
                    urgent |= fetched.diverging.is_some();
                    rows[position] = self.row(wanted.index, fetched);
                }
                Some(Err(error)) => {
                    urgent = true;
                    rows[position] = error_row(wanted.index, retriable(error.code()));
                }
                None => urgent = true,
            }
        }
        let bytes = self.fit(&mut rows, budget);
        memory::shrink(&mut lease, bytes);
        self.call.hold(lease);
        urgent |= rows.iter().any(|row| row.error_code != ErrorCode::None);
        Round { rows, bytes, urgent, watched }
    }

    /// Asks every shard about its partitions, each with its part of the budget. `None`: the shard is ending.
    async fn ask(&self, led: Vec<Led>, budget: usize) -> Vec<(Led, Option<Result<Fetched, FetchError>>)> {
        let wanted_by = |led: &[Led]| led.iter().map(|led| self.partitions[led.position].max_bytes).sum::<usize>();
        let wanted = wanted_by(&led);
        let mut answers = Vec::new();
        for share in self.call.shard.router.split(led, |led| led.key) {
            let partitions = share.items.iter().map(|led| {
                let wanted = &self.partitions[led.position];
                FetchPartition {
                    partition: led.key,
                    offset: wanted.offset,
                    max_bytes: wanted.max_bytes,
                    current_leader_epoch: wanted.current_leader_epoch,
                    last_fetched_epoch: wanted.last_fetched_epoch,
                }
            });
            let (reply, answer) = oneshot::channel();
            let operation = ShardOperation::Fetch(Fetch {
                isolation: self.isolation,
                max_bytes: part_of(budget, wanted_by(&share.items), wanted),
                // Whose batch goes out above the limits is known only when all shards have answered.
                at_least_one_batch: true,
                partitions: partitions.collect(),
                reply,
            });
            self.call.shard.router.submit(share.shard, operation).await;
            answers.push((share.items, answer));
        }
        let mut fetched = Vec::with_capacity(self.partitions.len());
        for (items, answer) in answers {
            let mut answer = answer.await.ok().map(Vec::into_iter);
            let rows = items.into_iter().map(|led| (led, answer.as_mut().and_then(Iterator::next)));
            fetched.extend(rows);
        }
        fetched
    }

    fn row(&self, index: PartitionIndex, fetched: Fetched) -> PartitionData {
        let aborted = fetched.aborted.into_iter().map(|transaction| AbortedTransaction {
            producer_id: transaction.producer_id,
            first_offset: transaction.first_offset,
        });
        let diverging = |(epoch, end_offset)| EpochEndOffset { epoch, end_offset };
        let row = PartitionData {
            partition_index: index,
            high_watermark: fetched.high_watermark,
            last_stable_offset: fetched.last_stable_offset,
            log_start_offset: fetched.log_start_offset,
            aborted_transactions: (self.isolation == IsolationLevel::ReadCommitted).then(|| aborted.collect()),
            diverging_epoch: fetched.diverging.map(diverging).unwrap_or_default(),
            records: Records::from(fetched.records),
            ..Default::default()
        };
        if self.call.version < ZSTD && has_zstd(&row.records) {
            return error_row(index, ErrorCode::UnsupportedCompressionType);
        }
        row
    }

    /// Takes off what exceeds the budget in the order of the request, and returns the bytes that stay.
    fn fit(&self, rows: &mut [PartitionData], budget: usize) -> usize {
        let mut total = 0;
        for (row, wanted) in rows.iter_mut().zip(self.partitions) {
            let limit = wanted.max_bytes.min(budget.saturating_sub(total));
            if total > 0 && row.records.len() > limit {
                row.records = whole_batches(&row.records, limit);
            }
            total += row.records.len();
        }
        total
    }

    /// Waits for so many bytes, for a partition to move, for the deadline, or for the broker to stop. Whether there may be
    /// time to wait again.
    async fn wait(&self, watched: Vec<WatchPartition>, bytes: usize) -> bool {
        let shares = self.call.shard.router.split(watched, |watch| watch.partition);
        // If all shards together have enough, at least one of them has its part.
        let min_bytes = bytes.div_ceil(shares.len());
        let mut answers = Vec::with_capacity(shares.len());
        for share in shares {
            let (reply, answer) = oneshot::channel();
            let watch = Watch { isolation: self.isolation, partitions: share.items, min_bytes, reply };
            self.call.shard.router.submit(share.shard, ShardOperation::Watch(watch)).await;
            answers.push(answer);
        }
        let woken = async { first(answers).await };
        let stopping = async {
            self.call.shard.stopping().await;
            false
        };
        self.deadline.cut(future::or(woken, stopping)).await.unwrap_or(false)
    }
}

/// The part of a budget that goes to who wants so much of all that is wanted.
fn part_of(budget: usize, wanted: usize, of_all: usize) -> usize {
    if of_all <= budget {
        return wanted;
    }
    let part = budget as u128 * wanted as u128 / of_all as u128;
    usize::try_from(part).expect("a part is not above the whole")
}

/// Completes with the first of the answers: whether it was given, not dropped.
async fn first(mut answers: Vec<oneshot::Receiver<()>>) -> bool {
    poll_fn(|cx| {
        let ready = answers.iter_mut().find_map(|answer| match Pin::new(answer).poll(cx) {
            Poll::Ready(answer) => Some(answer.is_ok()),
            Poll::Pending => None,
        });
        ready.map_or(Poll::Pending, Poll::Ready)
    })
    .await
}

/// Consumers of the Java client know no LEADER_NOT_AVAILABLE here, and give up on it.
fn retriable(code: ErrorCode) -> ErrorCode {
    if code == ErrorCode::LeaderNotAvailable { ErrorCode::NotLeaderOrFollower } else { code }
}

fn error_row(index: PartitionIndex, error_code: ErrorCode) -> PartitionData {
    PartitionData { partition_index: index, error_code, high_watermark: Offset(-1), ..Default::default() }
}

fn elsewhere_row(index: PartitionIndex, Elsewhere { code, leader }: Elsewhere) -> PartitionData {
    let current_leader =
        leader.map(|leader| LeaderIdAndEpoch { leader_id: leader.id, leader_epoch: leader.epoch }).unwrap_or_default();
    PartitionData { current_leader, ..error_row(index, retriable(code)) }
}

/// The batches from the start that fit, as slices.
fn whole_batches(records: &Records, limit: usize) -> Records {
    let mut kept = Records::default();
    let mut left = limit;
    for part in records.parts() {
        let sizes = Batches::new(part).map_while(Result::ok).map(|batch| batch.size());
        let mut end = 0;
        for size in sizes {
            if end + size > left {
                break;
            }
            end += size;
        }
        if end > 0 {
            kept.push(part.slice(..end));
        }
        if end < part.len() {
            break;
        }
        left -= end;
    }
    kept
}

fn has_zstd(records: &Records) -> bool {
    let zstd = |part: &Bytes| {
        let mut batches = Batches::new(part).map_while(Result::ok);
        batches.any(|batch| batch.compression() == Ok(Compression::Zstd))
    };
    records.parts().iter().any(zstd)
}

fn response(call: &Call, begun: &Begun, rows: Vec<PartitionData>) -> FetchResponse {
    let leaders: Vec<BrokerId> =
        rows.iter().map(|row| row.current_leader.leader_id).filter(|leader| leader.0 >= 0).collect();
    let mut responses: Vec<FetchableTopicResponse> = Vec::new();
    let mut last = None;
    for (topic, row) in call.shard.fetch_sessions.borrow_mut().finish(begun, rows) {
        if last.as_ref() != Some(&topic) {
            responses.push(match &topic {
                TopicRef::Name(name) => FetchableTopicResponse { topic: name.clone(), ..Default::default() },
                TopicRef::Id(id) => FetchableTopicResponse { topic_id: *id, ..Default::default() },
            });
            last = Some(topic);
        }
        responses.last_mut().expect("a topic was pushed").partitions.push(row);
    }
    let node_endpoints = cluster::endpoints_of(&call.view(), leaders, &call.client).into_iter();
    let node_endpoints =
        node_endpoints.map(|at| NodeEndpoint { node_id: at.id, host: at.host, port: at.port, rack: at.rack }).collect();
    FetchResponse { session_id: begun.session_id, responses, node_endpoints, ..Default::default() }
}

#[cfg(test)]
mod tests {
    use kaas_proto::record::builder::BatchBuilder;
    use kaas_proto::types::TimestampMs;

    use super::*;

    fn batch() -> Bytes {
        BatchBuilder::new().record(TimestampMs(1), None, Some(b"value")).build()
    }

    #[test]
    fn a_budget_is_shared_by_what_is_wanted() {
        assert_eq!(part_of(100, 30, 60), 30, "there is enough for all");
        assert_eq!(part_of(100, 150, 200), 75);
        assert_eq!(part_of(usize::MAX - 1, usize::MAX, usize::MAX), usize::MAX - 1);
    }

    #[test]
    fn batches_are_never_cut() {
        let size = batch().len();
        let two: Bytes = [batch(), batch()].concat().into();
        let records = Records::from(vec![two, batch()]);
        let kept = |limit| whole_batches(&records, limit).len();
        assert_eq!(kept(0), 0);
        assert_eq!(kept(size - 1), 0);
        assert_eq!(kept(size), size);
        assert_eq!(kept(2 * size + 1), 2 * size);
        assert_eq!(kept(3 * size), 3 * size);
    }
}
