//! A led partition: its log, and what its batches mean. Shard-local; lives from the takeover to the end of the epoch.
//!
//! After a failed epoch it stays until the partition leads again: it accepts nothing, and what was acknowledged can still
//! be read.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::rc::{Rc, Weak};
use std::sync::Arc;

use bytes::Bytes;
use kaas_proto::config::topic::{TimestampType, TopicConfig};
use kaas_proto::control::{PartitionKey, PartitionSize};
use kaas_proto::record::{BatchError, RecordBatchView};
use kaas_proto::types::{LeaderEpoch, Offset, TimestampMs};
use tokio::sync::{Mutex, oneshot};

use super::Partition;
use super::append::{Decision, Origin, decide, note};
use super::checkpoint::Checkpointer;
use super::compaction::Compaction;
use super::context::PartitionContext;
use super::error::{AppendError, NotLeading};
use super::producer_state::ProducerTable;
use super::transactions::TransactionIndex;
use super::watch::PartitionEnd;
use crate::env::Env;
use crate::format::chain::Chain;
use crate::format::manifest::Manifest;
use crate::log::append_queue::{Ticket, Waiting};
use crate::log::appender::NewBatch;
use crate::log::led_log::{EndOfLog, LedLog, LogObserver, LogSettings};
use crate::shard::gather::Gather;
use crate::shard::operation::{AbortedTransaction, ActiveProducer, Appended, IsolationLevel, RequiredAcks};

/// What a takeover hands over.
#[derive(Debug)]
pub struct Established<E: Env> {
    pub log: Rc<LedLog<E>>,
    pub manifest: Manifest,
    pub producers: ProducerTable,
    pub transactions: TransactionIndex,
}

/// See the module.
pub struct Leader<E: Env> {
    key: PartitionKey,
    pub(crate) context: Rc<PartitionContext<E>>,
    log: Rc<LedLog<E>>,
    config: RefCell<Arc<TopicConfig>>,
    /// The last manifest that this leader wrote. One change at a time.
    pub(super) manifest: Mutex<Manifest>,
    chain: RefCell<Chain>,
    pub(crate) producers: RefCell<ProducerTable>,
    pub(crate) transactions: RefCell<TransactionIndex>,
    pub(super) checkpointer: Checkpointer,
    /// Held by whoever looks for the largest timestamp of a segment: one at a time.
    pub(super) learning: Mutex<()>,
    pub(crate) compaction: Compaction,
    /// False while it drains.
    accepting: Cell<bool>,
    partition: Weak<Partition<E>>,
    this: Weak<Self>,
}

impl<E: Env> Leader<E> {
    pub(super) fn new(partition: &Rc<Partition<E>>, established: Established<E>) -> Rc<Self> {
        let Established { log, manifest, producers, transactions } = established;
        let log_end = log.log_end();
        let leader = Rc::new_cyclic(|this| Self {
            key: partition.key(),
            context: Rc::clone(partition.context()),
            log,
            config: RefCell::new(partition.config()),
            chain: RefCell::new(manifest.chain.clone()),
            manifest: Mutex::new(manifest),
            producers: RefCell::new(producers),
            transactions: RefCell::new(transactions),
            checkpointer: Checkpointer::new(log_end),
            learning: Mutex::new(()),
            compaction: Compaction::default(),
            accepting: Cell::new(true),
            partition: Rc::downgrade(partition),
            this: Weak::clone(this),
        });
        let observer: Weak<Self> = Rc::downgrade(&leader);
        leader.log.observe(observer);
        leader
    }

    /// Itself, for tasks that outlive the caller.
    pub(super) fn this(&self) -> Rc<Self> {
        self.this.upgrade().expect("whoever calls holds it")
    }

    #[must_use]
    pub fn key(&self) -> PartitionKey {
        self.key
    }

    #[must_use]
    pub fn epoch(&self) -> LeaderEpoch {
        self.log.epoch()
    }

    #[must_use]
    pub fn log(&self) -> &Rc<LedLog<E>> {
        &self.log
    }

    #[must_use]
    pub fn config(&self) -> Arc<TopicConfig> {
        Arc::clone(&self.config.borrow())
    }

    /// The topic's configuration has changed.
    pub fn set_config(&self, config: Arc<TopicConfig>) {
        self.log.set_settings(LogSettings::from(&*config));
        self.config.replace(config);
    }

    #[must_use]
    pub fn chain(&self) -> Chain {
        self.chain.borrow().clone()
    }

    pub(super) fn set_chain(&self, chain: Chain) {
        self.chain.replace(chain);
    }

    /// Compares a client's belief with the epoch that is led here (KIP-320).
    ///
    /// # Errors
    /// The client's epoch is another one.
    pub fn check_epoch(&self, believed: Option<LeaderEpoch>) -> Result<(), NotLeading> {
        let current = self.epoch();
        match believed {
            Some(client) if client < current => Err(NotLeading::FencedLeaderEpoch { client, current }),
            Some(client) if client > current => Err(NotLeading::UnknownLeaderEpoch { client, current }),
            Some(_) | None => Ok(()),
        }
    }

    /// No transaction is undecided below it.
    #[must_use]
    pub fn last_stable_offset(&self) -> Offset {
        self.transactions.borrow().last_stable_offset(self.log.high_watermark())
    }

    /// The end that readers of this isolation see.
    #[must_use]
    pub fn visible_end(&self, isolation: IsolationLevel) -> Offset {
        match isolation {
            IsolationLevel::ReadUncommitted => self.log.high_watermark(),
            IsolationLevel::ReadCommitted => self.last_stable_offset(),
        }
    }

    /// The aborted transactions with records in `from..end`, in order of their first offsets.
    #[must_use]
    pub fn aborted_between(&self, from: Offset, end: Offset) -> Vec<AbortedTransaction> {
        self.transactions.borrow().aborted_between(from, end)
    }

    /// What long polls compare with.
    #[must_use]
    pub fn end(&self) -> PartitionEnd {
        PartitionEnd {
            high_watermark: self.log.high_watermark(),
            last_stable_offset: self.last_stable_offset(),
            bytes: self.log.acknowledged_bytes(),
        }
    }

    /// Accepts nothing more; what is queued goes on.
    pub(super) fn stop_accepting(&self) {
        self.accepting.set(false);
    }

    /// The ordered stage of an append: decides, gives the batch its offset, queues it. The ticket is answered when the
    /// batch is acknowledged, or at once.
    pub fn append(&self, bytes: Bytes, origin: Origin, acks: RequiredAcks, ticket: Ticket) {
        match self.admit(bytes, origin) {
            Err(error) => ticket.answer(Err(error)),
            Ok(Admission::New(batch)) if acks == RequiredAcks::None => {
                let log_append_time = batch.log_append_time();
                let base_offset = self.log.append(batch, None);
                let log_start_offset = self.log.log_start();
                ticket.answer(Ok(Appended { base_offset, log_append_time, log_start_offset }));
            }
            Ok(Admission::New(batch)) => {
                self.log.append(batch, Some(ticket));
            }
            Ok(Admission::Repeated { until, base_offset, log_append_time }) => {
                self.context.log.counters.duplicates.add(1);
                self.log.answer_when_acknowledged(Waiting { until, base_offset, log_append_time, ticket });
            }
        }
    }

    /// Decides about a batch, and takes note of a new one. The caller appends it in the same turn.
    fn admit(&self, bytes: Bytes, origin: Origin) -> Result<Admission, AppendError> {
        if !self.accepting.get() {
            return Err(NotLeading::NotHere.into());
        }
        if let Some(end) = self.log.end() {
            return Err(end.append_error());
        }
        let invalid = |error: BatchError| AppendError::InvalidRecord(error.to_string().into());
        let batch = RecordBatchView::read(&bytes).map_err(invalid)?;
        let config = self.config.borrow();
        let now = self.context.env().wall_clock();
        let mut producers = self.producers.borrow_mut();
        let mut transactions = self.transactions.borrow_mut();
        match decide(batch, origin, &config, &producers, &transactions, now).inspect_err(|error| self.count(error))? {
            Decision::Append { stamp, max_timestamp } => {
                self.log.check_room(batch.size())?;
                let base_offset = self.log.log_end();
                let forgot = note(batch, base_offset, max_timestamp, now, &mut producers, &mut transactions);
                self.context.log.counters.producers_displaced.add(u64::from(forgot));
                let offsets = i64::from(batch.last_offset_delta()) + 1;
                Ok(Admission::New(NewBatch { bytes, offsets, max_timestamp, stamp }))
            }
            Decision::Repeat(original) => {
                let append_time = config.timestamp_type == TimestampType::LogAppendTime;
                Ok(Admission::Repeated {
                    until: original.last_offset.plus(1),
                    base_offset: original.base_offset,
                    log_append_time: if append_time { original.max_timestamp } else { TimestampMs(-1) },
                })
            }
        }
    }

    fn count(&self, refused: &AppendError) {
        let counters = &self.context.log.counters;
        counters.transactions_refused.add(u64::from(matches!(refused, AppendError::TooManyTransactions)));
    }

    /// Appends a batch of the broker's own. The future completes when it is acknowledged.
    pub fn append_local(&self, batch: Bytes) -> impl Future<Output = Result<Appended, AppendError>> + use<E> {
        let (sender, receiver) = oneshot::channel();
        let gather = Gather::new(1, sender);
        self.append(batch, Origin::Broker, RequiredAcks::All, Ticket::new(gather, 0));
        async {
            let mut rows = receiver.await.unwrap_or_default();
            rows.pop().unwrap_or(Err(NotLeading::NotHere.into()))
        }
    }

    /// The producers that are remembered, in order of their ids.
    #[must_use]
    pub fn describe_producers(&self) -> Vec<ActiveProducer> {
        let transactions = self.transactions.borrow();
        let producers = self.producers.borrow();
        let describe = |(producer_id, producer): (_, &super::producer_state::Producer)| ActiveProducer {
            producer_id,
            producer_epoch: producer.epoch,
            coordinator_epoch: producer.coordinator_epoch,
            last_sequence: producer.batches.back().map_or(-1, |batch| batch.last_sequence),
            last_timestamp: producer.batches.back().map_or(producer.last_seen, |batch| batch.max_timestamp),
            current_transaction_start_offset: transactions.first_offset_of(producer_id).unwrap_or(Offset(-1)),
        };
        producers.sorted().into_iter().map(describe).collect()
    }

    #[must_use]
    pub fn size(&self) -> PartitionSize {
        PartitionSize {
            partition: self.key,
            log_start: self.log.log_start(),
            high_watermark: self.log.high_watermark(),
            bytes: self.log.segments().iter().map(|segment| segment.bytes.get()).sum(),
        }
    }

    /// Forgets producers that were silent for too long.
    pub(super) fn expire_producers(&self, now: TimestampMs) {
        let silence = i64::try_from(self.context.producer_id_expiration.as_millis()).unwrap_or(i64::MAX);
        let transactions = self.transactions.borrow();
        let limit = TimestampMs(now.0.saturating_sub(silence));
        self.producers.borrow_mut().expire(limit, |id| transactions.first_offset_of(id).is_some());
    }
}

enum Admission {
    New(NewBatch),
    /// Answer as for the original, once that is acknowledged.
    Repeated {
        until: Offset,
        base_offset: Offset,
        log_append_time: TimestampMs,
    },
}

impl<E: Env> LogObserver for Leader<E> {
    fn acknowledged(&self, high_watermark: Offset) {
        self.transactions.borrow_mut().acknowledged(high_watermark);
        self.context.watchers.moved(self.key, self.end());
        self.checkpoint_if_due(high_watermark);
    }

    fn stalled(&self, stalled: bool) {
        if let Some(partition) = self.partition.upgrade() {
            partition.stalled(stalled);
        }
    }

    fn ended(&self, end: &EndOfLog) {
        if let Some(partition) = self.partition.upgrade() {
            partition.log_ended(self, end);
        }
    }
}

impl<E: Env> fmt::Debug for Leader<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Leader").field("key", &self.key).field("log", &self.log).finish_non_exhaustive()
    }
}
