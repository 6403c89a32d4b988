//! A shard whose partitions are lists in memory, and whose groups agree to everything.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::{Bytes, BytesMut};
use futures_lite::future::Boxed;
use kaas_core::env::VolumeSpace;
use kaas_core::group::operation::GroupOperation;
use kaas_core::partition::error::{FetchError, NotLeading};
use kaas_core::shard::operation::{
    ActiveProducer, Appended, Fetch, FetchPartition, Fetched, FoundOffset, OffsetQuery, Produce, ShardOperation,
    ShardPort, Watch,
};
use kaas_proto::control::{PartitionKey, PartitionSize};
use kaas_proto::kafka::messages::describe_groups::DescribedGroup;
use kaas_proto::kafka::messages::list_groups::ListedGroup;
use kaas_proto::kafka::messages::offset_commit::{OffsetCommitResponsePartition, OffsetCommitResponseTopic};
use kaas_proto::kafka::messages::offset_fetch::{
    OffsetFetchResponseGroup, OffsetFetchResponsePartitions, OffsetFetchResponseTopics,
};
use kaas_proto::kafka::messages::*;
use kaas_proto::record::batch::RecordBatchView;
use kaas_proto::record::patch;
use kaas_proto::types::{LeaderEpoch, Offset, ProducerEpoch, ProducerId, TimestampMs};
use tokio::sync::oneshot;

use super::Switches;

/// The leader epoch of every partition.
const EPOCH: LeaderEpoch = LeaderEpoch(5);

#[derive(Default)]
struct Log {
    batches: Vec<Bytes>,
    start: i64,
    end: i64,
}

type HeldAppend = (oneshot::Sender<Vec<Result<Appended, kaas_core::partition::error::AppendError>>>, Vec<Appended>);

#[derive(Clone)]
pub(crate) struct PretendedShard {
    state: Rc<RefCell<State>>,
    switches: Arc<Switches>,
}

#[derive(Default)]
struct State {
    logs: HashMap<PartitionKey, Log>,
    watches: Vec<Watch>,
    held_appends: Vec<HeldAppend>,
    held_joins: Vec<GroupOperation>,
    next_producer_id: i64,
    committed: HashMap<String, OffsetCommitRequest>,
}

impl PretendedShard {
    pub(crate) fn new(switches: Arc<Switches>) -> Self {
        Self { state: Rc::default(), switches }
    }

    /// Answers held appends once the switch is off, and forgets watches that nobody waits for.
    pub(crate) fn tick(&self) {
        let mut state = self.state.borrow_mut();
        if !self.switches.hold_appends.load(Ordering::SeqCst) {
            for (reply, appended) in state.held_appends.drain(..) {
                let _ = reply.send(appended.into_iter().map(Ok).collect());
            }
        }
        let before = state.watches.len();
        state.watches.retain(|watch| !watch.reply.is_closed());
        let gone = i64::try_from(before - state.watches.len()).unwrap();
        self.switches.watching.fetch_sub(gone, Ordering::SeqCst);
    }

    pub(crate) fn handle(&self, operation: ShardOperation) {
        let mut state = self.state.borrow_mut();
        match operation {
            ShardOperation::Produce(produce) => {
                self.switches.produced.fetch_add(1, Ordering::SeqCst);
                let reply = state.append(produce);
                if self.switches.hold_appends.load(Ordering::SeqCst) {
                    state.held_appends.push(reply);
                } else {
                    let _ = reply.0.send(reply.1.into_iter().map(Ok).collect());
                }
                state.wake(&self.switches);
            }
            ShardOperation::Fetch(fetch) => {
                self.switches.fetched.fetch_add(1, Ordering::SeqCst);
                state.fetch(fetch);
            }
            ShardOperation::Watch(watch) => {
                self.switches.watching.fetch_add(1, Ordering::SeqCst);
                state.watches.push(watch);
                state.wake(&self.switches);
            }
            ShardOperation::ListOffsets(list) => {
                let found = list.partitions.iter().map(|(partition, query, believed)| {
                    check_epoch(*believed)?;
                    Ok(state.find(*partition, *query))
                });
                let _ = list.reply.send(found.collect());
            }
            ShardOperation::OffsetForLeaderEpoch(ask) => {
                let end = |(partition, _, believed): &(PartitionKey, _, _)| {
                    check_epoch(*believed)?;
                    Ok((EPOCH, Offset(state.end(*partition))))
                };
                let _ = ask.reply.send(ask.partitions.iter().map(end).collect());
            }
            ShardOperation::DeleteRecords(delete) => {
                let mut cut = |(partition, offset): &(PartitionKey, Offset)| {
                    let log = state.logs.entry(*partition).or_default();
                    log.start = if offset.0 == -1 { log.end } else { offset.0 };
                    Ok(Offset(log.start))
                };
                let _ = delete.reply.send(delete.partitions.iter().map(&mut cut).collect());
            }
            ShardOperation::DescribeProducers(describe) => {
                let producer = ActiveProducer {
                    producer_id: ProducerId(4),
                    producer_epoch: ProducerEpoch(1),
                    last_sequence: 9,
                    last_timestamp: TimestampMs(8),
                    coordinator_epoch: -1,
                    current_transaction_start_offset: Offset(-1),
                };
                let _ = describe.reply.send(describe.partitions.iter().map(|_| Ok(vec![producer])).collect());
            }
            ShardOperation::DescribePartitions(describe) => {
                let size = |(partition, log): (&PartitionKey, &Log)| PartitionSize {
                    partition: *partition,
                    log_start: Offset(log.start),
                    high_watermark: Offset(log.end),
                    bytes: log.batches.iter().map(|batch| batch.len() as u64).sum(),
                };
                let _ = describe.reply.send(state.logs.iter().map(size).collect());
            }
            ShardOperation::DescribeVolume(describe) => {
                let space = VolumeSpace { total_bytes: 1 << 40, available_bytes: 1 << 39 };
                let _ = describe.reply.send(Some(space));
            }
            ShardOperation::AllocateProducerId(allocate) => {
                state.next_producer_id += 1;
                let _ = allocate.reply.send(Ok(ProducerId(state.next_producer_id)));
            }
            ShardOperation::Group(operation) => {
                let joins = matches!(*operation, GroupOperation::Join { .. });
                if joins && self.switches.hold_joins.load(Ordering::SeqCst) {
                    state.held_joins.push(*operation);
                } else {
                    state.group(*operation);
                }
            }
        }
    }
}

/// As `Leader::check_epoch`.
fn check_epoch(believed: Option<LeaderEpoch>) -> Result<(), NotLeading> {
    match believed {
        Some(client) if client < EPOCH => Err(NotLeading::FencedLeaderEpoch { client, current: EPOCH }),
        Some(client) if client > EPOCH => Err(NotLeading::UnknownLeaderEpoch { client, current: EPOCH }),
        Some(_) | None => Ok(()),
    }
}

impl State {
    fn end(&self, partition: PartitionKey) -> i64 {
        self.logs.get(&partition).map_or(0, |log| log.end)
    }

    fn append(&mut self, produce: Produce) -> HeldAppend {
        let append = |batch: kaas_core::shard::operation::ProduceBatch| {
            let log = self.logs.entry(batch.partition).or_default();
            let base_offset = Offset(log.end);
            log.end += i64::from(RecordBatchView::read(&batch.batch).unwrap().record_count());
            let mut bytes = BytesMut::from(&*batch.batch);
            patch::patch_base_offset(&mut bytes, base_offset);
            log.batches.push(bytes.freeze());
            Appended { base_offset, log_append_time: TimestampMs(-1), log_start_offset: Offset(log.start) }
        };
        (produce.reply, produce.batches.into_iter().map(append).collect())
    }

    fn fetch(&self, fetch: Fetch) {
        let (mut left, mut any) = (fetch.max_bytes, false);
        let empty = Log::default();
        let read = |partition: &FetchPartition| {
            check_epoch(partition.current_leader_epoch)?;
            let log = self.logs.get(&partition.partition).unwrap_or(&empty);
            if partition.offset.0 < log.start || partition.offset.0 > log.end {
                let (log_start, end) = (Offset(log.start), Offset(log.end));
                return Err(FetchError::OffsetOutOfRange { offset: partition.offset, log_start, end });
            }
            let mut records = Vec::new();
            let mut own = partition.max_bytes.min(left);
            for batch in &log.batches {
                if RecordBatchView::read(batch).unwrap().last_offset() < partition.offset {
                    continue;
                }
                if batch.len() > own && (any || !fetch.at_least_one_batch) {
                    break;
                }
                any = true;
                own = own.saturating_sub(batch.len());
                left = left.saturating_sub(batch.len());
                records.push(batch.clone());
            }
            Ok(Fetched {
                high_watermark: Offset(log.end),
                last_stable_offset: Offset(log.end),
                log_start_offset: Offset(log.start),
                aborted: vec![],
                records,
                diverging: None,
            })
        };
        let _ = fetch.reply.send(fetch.partitions.iter().map(read).collect());
    }

    fn wake(&mut self, switches: &Switches) {
        let mut waiting = Vec::new();
        for watch in self.watches.drain(..) {
            let behind = |batch: &&Bytes, seen: Offset| RecordBatchView::read(batch).unwrap().base_offset() >= seen;
            let added: usize = watch
                .partitions
                .iter()
                .filter_map(|one| Some((self.logs.get(&one.partition)?, one.seen_end)))
                .map(|(log, seen)| {
                    log.batches.iter().filter(|batch| behind(batch, seen)).map(Bytes::len).sum::<usize>()
                })
                .sum();
            if added >= watch.min_bytes {
                switches.watching.fetch_sub(1, Ordering::SeqCst);
                let _ = watch.reply.send(());
            } else {
                waiting.push(watch);
            }
        }
        self.watches = waiting;
    }

    fn find(&self, partition: PartitionKey, query: OffsetQuery) -> FoundOffset {
        let (offset, timestamp) = match query {
            OffsetQuery::Latest => (self.end(partition), -1),
            OffsetQuery::Earliest => (self.logs.get(&partition).map_or(0, |log| log.start), -1),
            OffsetQuery::MaxTimestamp => (self.end(partition) - 1, 1000),
            OffsetQuery::AtOrAfter(time) if time.0 <= 1000 => (0, 1000),
            OffsetQuery::AtOrAfter(_) => (-1, -1),
        };
        FoundOffset { offset: Offset(offset), timestamp: TimestampMs(timestamp), leader_epoch: EPOCH }
    }

    fn group(&mut self, operation: GroupOperation) {
        match operation {
            GroupOperation::Join { request, client, reply, .. } => {
                let member_id = format!("{}-{}", client.client_id, client.host).into();
                let response = JoinGroupResponse { member_id, leader: request.group_id, ..Default::default() };
                let _ = reply.send(response);
            }
            GroupOperation::Sync { request, reply } => {
                let response = SyncGroupResponse { protocol_type: request.protocol_type, ..Default::default() };
                let _ = reply.send(response);
            }
            GroupOperation::Heartbeat { reply, .. } => drop(reply.send(HeartbeatResponse::default())),
            GroupOperation::Leave { reply, .. } => drop(reply.send(LeaveGroupResponse::default())),
            GroupOperation::Commit { request, reply } => {
                let topics = request.topics.iter().map(|topic| OffsetCommitResponseTopic {
                    name: topic.name.clone(),
                    topic_id: topic.topic_id,
                    partitions: topic
                        .partitions
                        .iter()
                        .map(|one| OffsetCommitResponsePartition {
                            partition_index: one.partition_index,
                            ..Default::default()
                        })
                        .collect(),
                });
                let response = OffsetCommitResponse { topics: topics.collect(), ..Default::default() };
                self.committed.insert(request.group_id.to_string(), request);
                let _ = reply.send(response);
            }
            GroupOperation::FetchOffsets { group, reply, .. } => {
                let _ = reply.send(self.fetch_offsets(&group));
            }
            GroupOperation::DeleteOffsets { request, reply } => {
                self.committed.remove(&*request.group_id);
                let _ = reply.send(OffsetDeleteResponse::default());
            }
            GroupOperation::List { reply, .. } => {
                let listed = |group: &String| ListedGroup { group_id: group.as_str().into(), ..Default::default() };
                let _ = reply.send(Ok(self.committed.keys().map(listed).collect()));
            }
            GroupOperation::Describe { group_id, reply, .. } => {
                let described =
                    DescribedGroup { group_id: group_id.into(), group_state: "Stable".into(), ..Default::default() };
                let _ = reply.send(described);
            }
            GroupOperation::Delete { group_id, reply } => {
                self.committed.remove(&group_id);
                let result = delete_groups::DeletableGroupResult { group_id: group_id.into(), ..Default::default() };
                let _ = reply.send(result);
            }
            GroupOperation::ForgetTopics { .. } | GroupOperation::RetainTopics { .. } => {}
        }
    }

    fn fetch_offsets(&self, group: &offset_fetch::OffsetFetchRequestGroup) -> OffsetFetchResponseGroup {
        let committed = self.committed.get(&*group.group_id);
        let all = committed.into_iter().flat_map(|request| &request.topics);
        let wanted = |id| group.topics.as_ref().is_none_or(|topics| topics.iter().any(|topic| topic.topic_id == id));
        let topics = all.filter(|topic| wanted(topic.topic_id)).map(|topic| OffsetFetchResponseTopics {
            name: topic.name.clone(),
            topic_id: topic.topic_id,
            partitions: topic
                .partitions
                .iter()
                .map(|one| OffsetFetchResponsePartitions {
                    partition_index: one.partition_index,
                    committed_offset: one.committed_offset,
                    committed_leader_epoch: one.committed_leader_epoch,
                    metadata: one.committed_metadata.clone(),
                    ..Default::default()
                })
                .collect(),
        });
        OffsetFetchResponseGroup { group_id: group.group_id.clone(), topics: topics.collect(), ..Default::default() }
    }
}

/// A port whose queue can be declared full.
pub(crate) struct GatedPort {
    pub(crate) inner: Rc<dyn ShardPort>,
    pub(crate) switches: Arc<Switches>,
}

impl ShardPort for GatedPort {
    fn submit(&self, operation: ShardOperation) -> Result<(), ShardOperation> {
        if self.switches.queues_full.load(Ordering::SeqCst) {
            return Err(operation);
        }
        self.inner.submit(operation)
    }

    fn has_room(&self) -> Boxed<()> {
        let switches = Arc::clone(&self.switches);
        Box::pin(async move {
            while switches.queues_full.load(Ordering::SeqCst) {
                futures_lite::future::yield_now().await;
            }
        })
    }
}
