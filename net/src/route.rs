//! Requests for several partitions, split by the shard that owns each, asked at once, and put together again.

use std::fmt;
use std::rc::Rc;

use kaas_core::shard::operation::{ShardOperation, ShardPort};
use kaas_proto::control::PartitionKey;
use kaas_proto::types::{ShardId, SlotId};
use tokio::sync::oneshot;

use crate::deadline::Deadline;
use crate::metrics::{Bound, NetMetrics};

/// The shards of this broker, seen from one of them. Shard-local.
pub(crate) struct Router {
    /// Indexed by shard.
    ports: Vec<Rc<dyn ShardPort>>,
    metrics: Rc<NetMetrics>,
}

impl fmt::Debug for Router {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Router").field("shards", &self.ports.len()).finish_non_exhaustive()
    }
}

impl Router {
    pub(crate) fn new(ports: Vec<Rc<dyn ShardPort>>, metrics: Rc<NetMetrics>) -> Self {
        assert!(!ports.is_empty(), "a broker has at least one shard");
        Self { ports, metrics }
    }

    pub(crate) fn shards(&self) -> u16 {
        u16::try_from(self.ports.len()).expect("fewer shards than CPUs can exist")
    }

    /// All shards, in order.
    pub(crate) fn all(&self) -> impl Iterator<Item = ShardId> + use<> {
        (0..self.shards()).map(ShardId)
    }

    /// Who owns a partition.
    pub(crate) fn owner(&self, partition: PartitionKey) -> ShardId {
        partition.shard(self.shards())
    }

    /// Who owns a coordinator slot.
    pub(crate) fn slot_owner(&self, slot: SlotId) -> ShardId {
        self.owner(PartitionKey::of_slot(slot))
    }

    /// Hands an operation to a shard; waits while its queue is full.
    pub(crate) async fn submit(&self, shard: ShardId, operation: ShardOperation) {
        let port = &self.ports[usize::from(shard.0)];
        let mut operation = operation;
        while let Err(refused) = port.submit(operation) {
            self.metrics.reached(Bound::ShardQueue);
            operation = refused;
            port.has_room().await;
        }
    }

    /// The same, but gives up at some time.
    pub(crate) async fn submit_within(
        &self,
        deadline: Deadline,
        shard: ShardId,
        operation: ShardOperation,
    ) -> Result<(), QueueFull> {
        let port = &self.ports[usize::from(shard.0)];
        let Err(mut operation) = port.submit(operation) else { return Ok(()) };
        loop {
            self.metrics.reached(Bound::ShardQueue);
            if deadline.cut(port.has_room()).await.is_none() {
                self.metrics.reached(Bound::ShardQueueWait);
                return Err(QueueFull);
            }
            match port.submit(operation) {
                Ok(()) => return Ok(()),
                Err(refused) => operation = refused,
            }
        }
    }

    /// Asks a shard and waits for its reply; `None`: the shard is ending.
    pub(crate) async fn ask<R>(
        &self,
        shard: ShardId,
        operation: impl FnOnce(oneshot::Sender<R>) -> ShardOperation,
    ) -> Option<R> {
        let (reply, answer) = oneshot::channel();
        self.submit(shard, operation(reply)).await;
        answer.await.ok()
    }

    /// Asks every shard at once. The replies are in order of shards; those of ending shards are missing.
    pub(crate) async fn ask_all<R>(&self, operation: impl Fn(oneshot::Sender<R>) -> ShardOperation) -> Vec<R> {
        let mut answers = Vec::with_capacity(self.ports.len());
        for shard in self.all() {
            let (reply, answer) = oneshot::channel();
            self.submit(shard, operation(reply)).await;
            answers.push(answer);
        }
        let mut replies = Vec::with_capacity(answers.len());
        for answer in answers {
            replies.extend(answer.await.ok());
        }
        replies
    }

    /// Asks the owner of each item about it, all owners at once. The replies are in order of the items; `None`: the
    /// owner is ending.
    pub(crate) async fn scatter<T, R>(
        &self,
        items: impl IntoIterator<Item = T>,
        partition: impl Fn(&T) -> PartitionKey,
        operation: impl Fn(Vec<T>, oneshot::Sender<Vec<R>>) -> ShardOperation,
    ) -> Vec<Option<R>> {
        let split = self.split(items, partition);
        let count = split.iter().map(|share| share.items.len()).sum();
        let mut replies: Vec<Option<R>> = Vec::new();
        replies.resize_with(count, || None);
        let mut answers = Vec::new();
        for Share { shard, positions, items } in split {
            let (reply, answer) = oneshot::channel();
            self.submit(shard, operation(items, reply)).await;
            answers.push((positions, answer));
        }
        for (positions, answer) in answers {
            if let Ok(rows) = answer.await {
                assert_eq!(rows.len(), positions.len(), "a shard answers with one row per item");
                for (position, row) in positions.into_iter().zip(rows) {
                    replies[position] = Some(row);
                }
            }
        }
        replies
    }

    /// Splits items by the owner of their partitions, keeping their order.
    pub(crate) fn split<T>(
        &self,
        items: impl IntoIterator<Item = T>,
        partition: impl Fn(&T) -> PartitionKey,
    ) -> Vec<Share<T>> {
        let mut shares: Vec<Share<T>> = Vec::new();
        for (position, item) in items.into_iter().enumerate() {
            let shard = self.owner(partition(&item));
            let index = shares.iter().position(|share| share.shard == shard).unwrap_or_else(|| {
                shares.push(Share { shard, positions: Vec::new(), items: Vec::new() });
                shares.len() - 1
            });
            shares[index].positions.push(position);
            shares[index].items.push(item);
        }
        shares
    }
}

/// What of a request one shard owns.
#[derive(Debug)]
pub(crate) struct Share<T> {
    pub(crate) shard: ShardId,
    /// Where the items stood in the request.
    pub(crate) positions: Vec<usize>,
    pub(crate) items: Vec<T>,
}

/// A shard's queue had no room for too long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct QueueFull;
