//! Operations of request handlers: carried out as far as order matters before [`Shard::submit`] returns.

use std::rc::Rc;

use kaas_proto::control::PartitionKey;
use kaas_proto::types::{LeaderEpoch, Offset};
use tokio::sync::mpsc;
use tokio::sync::mpsc::error::TrySendError;

use super::Shard;
use super::gather::Gather;
use super::operation::{
    AllocateProducerId, DeleteRecords, DescribePartitions, DescribeProducers, DescribeVolume, ListOffsets,
    OffsetForLeaderEpoch, Produce, ShardOperation, Watch,
};
use crate::env::{Env, TaskClass};
use crate::log::append_queue::Ticket;
use crate::partition::append::Origin;
use crate::partition::error::{DeleteRecordsError, LookupError, ProducerIdError};
use crate::partition::leader::Leader;

/// After so many operations of other shards in a row, other tasks get their turn.
const OPERATIONS_PER_TURN: u32 = 64;

impl<E: Env> Shard<E> {
    /// Carries an operation out, or begins to. Replies come when they are ready.
    pub fn submit(&self, operation: ShardOperation) {
        match operation {
            ShardOperation::Produce(produce) => self.produce(produce),
            ShardOperation::Fetch(fetch) => self.fetch(fetch),
            ShardOperation::Watch(watch) => self.watch(watch),
            ShardOperation::ListOffsets(request) => self.list_offsets(request),
            ShardOperation::OffsetForLeaderEpoch(request) => self.offset_for_leader_epoch(request),
            ShardOperation::DeleteRecords(request) => self.delete_records(request),
            ShardOperation::DescribeProducers(request) => self.describe_producers(request),
            ShardOperation::DescribePartitions(request) => self.describe_partitions(request),
            ShardOperation::DescribeVolume(request) => self.describe_volume(request),
            ShardOperation::AllocateProducerId(request) => self.allocate_producer_id(request),
            ShardOperation::Group(operation) => self.0.groups.execute(*operation),
        }
    }

    /// Takes operations of other shards in order.
    pub(super) async fn carry_out_operations(self, mut operations: mpsc::Receiver<ShardOperation>) {
        let mut in_a_row = 0;
        while let Some(operation) = operations.recv().await {
            self.submit(operation);
            in_a_row += 1;
            if in_a_row == OPERATIONS_PER_TURN {
                in_a_row = 0;
                self.env().yield_now().await;
            }
        }
    }

    fn produce(&self, produce: Produce) {
        let Produce { acks, batches, reply } = produce;
        let gather = Gather::new(batches.len(), reply);
        for (row, batch) in batches.into_iter().enumerate() {
            let ticket = Ticket::new(Rc::clone(&gather), row);
            match self.leader(batch.partition) {
                Ok(leader) => leader.append(batch.batch, Origin::Client(batch.records), acks, ticket),
                Err(not_leading) => ticket.answer(Err(not_leading.into())),
            }
        }
    }

    fn watch(&self, watch: Watch) {
        let Watch { isolation, partitions, min_bytes, reply } = watch;
        let mut ends = Vec::with_capacity(partitions.len());
        for watched in partitions {
            let Ok(leader) = self.leader(watched.partition) else {
                // The client may be gone.
                let _ = reply.send(());
                return;
            };
            ends.push((watched.partition, watched.seen_end, leader.end()));
        }
        self.0.context.watchers.wait(isolation, min_bytes, ends, reply);
    }

    fn list_offsets(&self, request: ListOffsets) {
        let ListOffsets { isolation, partitions, reply } = request;
        let gather = Gather::new(partitions.len(), reply);
        for (row, (partition, query, believed)) in partitions.into_iter().enumerate() {
            let leader = match self.leader_of_epoch(partition, believed) {
                Ok(leader) => leader,
                Err(error) => {
                    gather.fill(row, Err(error));
                    continue;
                }
            };
            if let Some(known) = leader.known_offset(query, isolation) {
                gather.fill(row, Ok(known));
                continue;
            }
            let gather = Rc::clone(&gather);
            self.env().spawn(TaskClass::Latency, async move {
                gather.fill(row, leader.find_offset(query, isolation).await);
            });
        }
    }

    fn leader_of_epoch(&self, key: PartitionKey, believed: Option<LeaderEpoch>) -> Result<Rc<Leader<E>>, LookupError> {
        let leader = self.leader(key)?;
        leader.check_epoch(believed)?;
        Ok(leader)
    }

    fn offset_for_leader_epoch(&self, request: OffsetForLeaderEpoch) {
        let answer = |(partition, wanted, believed)| -> Result<(LeaderEpoch, Offset), LookupError> {
            Ok(self.leader_of_epoch(partition, believed)?.end_offset_for(wanted))
        };
        let rows = request.partitions.into_iter().map(answer).collect();
        drop(request.reply.send(rows));
    }

    fn delete_records(&self, request: DeleteRecords) {
        let gather = Gather::new(request.partitions.len(), request.reply);
        for (row, (partition, offset)) in request.partitions.into_iter().enumerate() {
            match self.leader(partition) {
                Ok(leader) => {
                    let gather = Rc::clone(&gather);
                    self.env().spawn(TaskClass::Latency, async move {
                        gather.fill(row, leader.delete_records(offset).await);
                    });
                }
                Err(not_leading) => gather.fill(row, Err(DeleteRecordsError::from(not_leading))),
            }
        }
    }

    fn describe_producers(&self, request: DescribeProducers) {
        let answer = |partition| Ok(self.leader(partition)?.describe_producers());
        let rows = request.partitions.into_iter().map(answer).collect();
        drop(request.reply.send(rows));
    }

    fn describe_partitions(&self, request: DescribePartitions) {
        let partitions = self.partitions();
        let of_topics = partitions.iter().filter(|partition| partition.key().slot().is_none());
        let sizes = of_topics.filter_map(|partition| Some(partition.leader().ok()?.size())).collect();
        drop(request.reply.send(sizes));
    }

    fn describe_volume(&self, request: DescribeVolume) {
        // The memory of one shard is no volume.
        if self.0.config.owns_directories {
            let _ = request.reply.send(None);
            return;
        }
        let (env, space) = (self.env().clone(), Rc::clone(&self.0.space));
        self.env().spawn(TaskClass::Latency, async move {
            let _ = request.reply.send(space.space(&env).await);
        });
    }

    fn allocate_producer_id(&self, request: AllocateProducerId) {
        if let Err(TrySendError::Full(request)) = self.0.producer_ids.try_send(request) {
            self.counters().producer_id_queue_full.add(1);
            let error = ProducerIdError::Storage("too many requests wait for a producer id".into());
            drop(request.reply.send(Err(error)));
        }
    }
}
