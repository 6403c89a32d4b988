//! A producer with transactions, and the coordinator that ends them: one at a time, sent in parts, then committed or
//! aborted.
//!
//! What is not acknowledged may be in the log or not, so such a transaction is aborted, under a new epoch of the producer
//! that begins its sequence numbers anew. The marker is sent until it is acknowledged.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use kaas_proto::record::{BatchBuilder, ControlRecordType};
use kaas_proto::types::{ProducerEpoch, ProducerId};

use super::cluster::Cluster;
use super::payload::{Payload, Shape};

/// Between two attempts to write a marker.
const MARKER_PAUSE: Duration = Duration::from_millis(300);

/// Clones are the same producer.
#[derive(Clone)]
pub struct TransactionalProducer(Rc<State>);

struct State {
    id: i64,
    cluster: Cluster,
    epoch: Cell<i16>,
    sequence: Cell<i32>,
    /// How many it has begun.
    transactions: Cell<u64>,
    is_busy: Cell<bool>,
}

impl TransactionalProducer {
    pub fn new(cluster: &Cluster, id: i64) -> Self {
        Self(Rc::new(State {
            id,
            cluster: cluster.clone(),
            epoch: Cell::new(0),
            sequence: Cell::new(0),
            transactions: Cell::new(0),
            is_busy: Cell::new(false),
        }))
    }

    /// Whether a transaction has not ended yet.
    pub fn is_busy(&self) -> bool {
        self.0.is_busy.get()
    }

    /// Begins a transaction of these records, one batch for each with a pause behind it, and sees it to its end.
    pub fn begin(&self, parts: Vec<(Shape, Duration)>, is_to_commit: bool) {
        if self.0.is_busy.replace(true) {
            return;
        }
        let number = self.0.transactions.replace(self.0.transactions.get() + 1);
        let transaction = self.0.id.unsigned_abs() << 32 | number;
        let this = self.clone();
        self.0.cluster.spawn(async move {
            let all_are_stored = this.send(transaction, parts).await;
            this.end(transaction, is_to_commit && all_are_stored, all_are_stored).await;
            this.0.is_busy.set(false);
        });
    }

    /// Whether all of it was acknowledged.
    async fn send(&self, transaction: u64, parts: Vec<(Shape, Duration)>) -> bool {
        let Self(state) = self;
        let time = state.cluster.simulation().time().clone();
        for (shape, pause) in parts {
            let sequence = state.sequence.replace(state.sequence.get() + 1);
            let (id, epoch) = (ProducerId(state.id), ProducerEpoch(state.epoch.get()));
            let payload = Payload::new(&format!("t{}:{}:{sequence}", state.id, epoch.0), shape);
            let mut builder = BatchBuilder::new().producer(id, epoch, sequence).transactional();
            payload.push_to(&mut builder, time.wall_clock());
            state.cluster.oracle(|oracle| oracle.sends(&payload, Some(transaction), time.now()));
            let Some(leader) = state.cluster.newest_leader() else { return false };
            match leader.produce(builder.build()).await.map(|mut rows| rows.remove(0)) {
                Ok(Ok(appended)) => state.cluster.acknowledged(&payload.name, appended.base_offset.0),
                _ => return false,
            }
            time.sleep(pause).await;
        }
        true
    }

    async fn end(&self, transaction: u64, commits: bool, keeps_epoch: bool) {
        let Self(state) = self;
        let (simulation, oracle) = (state.cluster.simulation(), |counts| {
            state.cluster.oracle(|oracle| oracle.decided(transaction, counts));
        });
        if !keeps_epoch {
            state.epoch.set(state.epoch.get() + 1);
            state.sequence.set(0);
        }
        oracle(commits);
        let kind = if commits { ControlRecordType::Commit } else { ControlRecordType::Abort };
        simulation.note(format!("the transaction of producer {} ends: {kind:?}", state.id));
        loop {
            let now = simulation.time().wall_clock();
            let marker = kind.batch(ProducerId(state.id), ProducerEpoch(state.epoch.get()), 1, now);
            if let Some(leader) = state.cluster.newest_leader()
                && let Ok(Ok(appended)) = leader.append_own(marker).await
            {
                simulation.note(format!("producer {}: the marker is at {}", state.id, appended.base_offset));
                return;
            }
            simulation.time().sleep(MARKER_PAUSE).await;
        }
    }
}
