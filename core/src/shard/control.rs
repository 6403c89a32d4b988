//! What the control thread tells a shard, and what a shard does by the clock.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use kaas_proto::control::{PartitionChange, PartitionKey, ShardCommand, TakeOver};
use kaas_proto::types::{LeaderEpoch, TopicId};
use tokio::sync::{mpsc, oneshot};

use super::Shard;
use crate::env::{Env, TaskClass};
use crate::group::operation::GroupOperation;
use crate::log_limit::tell;
use crate::partition::Partition;
use crate::partition::action::Wanted;

/// How often hanging writes and dropped long polls are looked for.
const HOUSEKEEPING_INTERVAL: Duration = Duration::from_secs(1);
/// How often silent producers are looked for.
const EXPIRY_INTERVAL: Duration = Duration::from_secs(600);

impl<E: Env> Shard<E> {
    /// Takes commands in order. Each partition carries its own out in a task of its own.
    pub(super) async fn carry_out_commands(self, mut commands: mpsc::Receiver<ShardCommand>) {
        while let Some(command) = commands.recv().await {
            match command {
                ShardCommand::TakeOver(command) => self.take_over(&command),
                ShardCommand::Relinquish { partition } => self.relinquish(partition).await,
                ShardCommand::Abandon { topic_id, done } => self.abandon(topic_id, done),
                ShardCommand::RetainTopics { topics } => {
                    self.0.groups.execute(GroupOperation::RetainTopics { topics });
                }
                // Whoever asked may have given up waiting.
                ShardCommand::Ping { reply } => drop(reply.send(())),
                ShardCommand::Metrics { reply } => drop(reply.send(Box::new(self.metrics()))),
                ShardCommand::Shutdown { done } => {
                    self.relinquish_all().await;
                    self.0.ended.send_replace(true);
                    // The control thread may have given up waiting.
                    let _ = done.send(());
                    return;
                }
            }
        }
    }

    fn take_over(&self, command: &TakeOver) {
        let mut partitions = self.0.partitions.borrow_mut();
        let partition =
            partitions.entry(command.partition).or_insert_with(|| Partition::new(Rc::clone(&self.0.context), command));
        let partition = Rc::clone(partition);
        drop(partitions);
        partition.set_config(Arc::clone(&command.config));
        partition.want_to_lead(command.epoch);
    }

    async fn relinquish(&self, key: PartitionKey) {
        match self.partition(key) {
            Some(partition) => partition.want(Wanted::Closed),
            // It was closed already: say so once more.
            None => self.0.context.report(key, PartitionChange::Relinquished { epoch: LeaderEpoch(0) }).await,
        }
    }

    fn abandon(&self, topic_id: TopicId, done: oneshot::Sender<()>) {
        let abandoned: Vec<_> =
            self.partitions().into_iter().filter(|partition| partition.key().topic_id == topic_id).collect();
        abandoned.iter().for_each(|partition| partition.want(Wanted::Abandoned));
        self.0.groups.execute(GroupOperation::ForgetTopics { topics: vec![topic_id] });
        self.env().spawn(TaskClass::Latency, async move {
            for partition in abandoned {
                partition.settled().await;
            }
            // The control thread may have given up waiting.
            let _ = done.send(());
        });
    }

    async fn relinquish_all(&self) {
        let partitions = self.partitions();
        partitions.iter().for_each(|partition| partition.want(Wanted::Closed));
        for partition in partitions {
            partition.settled().await;
        }
    }

    /// By the clock: hanging writes, dropped long polls, silent producers, retention.
    pub(super) async fn keep_house(self) {
        let env = self.env().clone();
        let (mut expiry_due, mut retention_due) = (EXPIRY_INTERVAL, self.0.config.retention_check_interval);
        let mut refused_records = false;
        loop {
            env.sleep(HOUSEKEEPING_INTERVAL).await;
            let log_limit = &self.0.context.log.log_limit;
            tell(log_limit.take_ended(env.now()));
            if *self.0.ended.borrow() {
                tell(log_limit.take_all());
                return;
            }
            for partition in self.partitions() {
                partition.check_stall();
            }
            // Often, so that a clock that is set is found out before anything is decided by it.
            self.0.context.believed_now();
            self.0.context.watchers.forget_dropped();
            expiry_due = expiry_due.saturating_sub(HOUSEKEEPING_INTERVAL);
            if expiry_due.is_zero() {
                expiry_due = EXPIRY_INTERVAL;
                for partition in self.partitions() {
                    partition.expire_producers();
                    env.yield_now().await;
                }
            }
            retention_due = retention_due.saturating_sub(HOUSEKEEPING_INTERVAL);
            let refuses_records = self.0.context.log.reserves.data.refuses_records();
            if !std::mem::replace(&mut refused_records, refuses_records) && refuses_records {
                // Retention may make the room that is missing.
                retention_due = Duration::ZERO;
            }
            if retention_due.is_zero() {
                retention_due = self.0.config.retention_check_interval;
                self.apply_retention();
            }
        }
    }

    /// One partition after the other, beside the housekeeping: a hanging volume must not keep that from seeing it.
    fn apply_retention(&self) {
        if self.0.retaining.replace(true) {
            return;
        }
        let shard = self.clone();
        self.env().spawn(TaskClass::Background, async move {
            for partition in shard.partitions() {
                partition.apply_retention().await;
                shard.env().yield_now().await;
            }
            shard.0.retaining.set(false);
        });
    }
}
