//! Producers: an idempotent one that sends each batch until it is acknowledged, to whichever broker, and one that does not
//! try again.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;

use bytes::Bytes;
use kaas_core::partition::error::AppendError;
use kaas_proto::record::BatchBuilder;
use kaas_proto::types::{ProducerEpoch, ProducerId};

use super::broker::Broker;
use super::cluster::Cluster;

/// Kafka's bound for batches of an idempotent producer that are on their way.
const MAX_IN_FLIGHT: usize = 5;

#[derive(Clone)]
struct Batch {
    value: Rc<str>,
    bytes: Bytes,
    acknowledged: Option<i64>,
}

/// Clones are the same producer.
#[derive(Clone)]
pub struct Producer(Rc<State>);

struct State {
    id: i64,
    cluster: Cluster,
    sequence: Cell<i32>,
    /// What was not acknowledged yet, behind the last that was.
    batches: RefCell<VecDeque<Batch>>,
    sending: Cell<bool>,
}

impl Producer {
    pub fn new(cluster: &Cluster, id: i64) -> Self {
        Self(Rc::new(State {
            id,
            cluster: cluster.clone(),
            sequence: Cell::new(0),
            batches: RefCell::default(),
            sending: Cell::new(false),
        }))
    }

    /// Another batch; it is sent with the next [`Producer::send`].
    pub fn add(&self, padding: usize) {
        let state = &self.0;
        let waiting = state.batches.borrow().iter().filter(|batch| batch.acknowledged.is_none()).count();
        if waiting >= MAX_IN_FLIGHT {
            return;
        }
        let sequence = state.sequence.replace(state.sequence.get() + 1);
        let value: Rc<str> = format!("p{}:{sequence}:{}", state.id, "x".repeat(padding)).into();
        let builder = BatchBuilder::new().producer(ProducerId(state.id), ProducerEpoch(0), sequence);
        let time = state.cluster.simulation().time();
        let bytes = builder.record(time.wall_clock(), Some(b"k"), Some(value.as_bytes())).build();
        state.cluster.oracle(|oracle| oracle.sends(&value, time.now()));
        state.batches.borrow_mut().push_back(Batch { value, bytes, acknowledged: None });
    }

    /// Sends everything that is not acknowledged, in order, and the last that was once more, for good measure.
    pub fn send(&self, broker: &Broker) {
        if self.0.sending.replace(true) {
            return;
        }
        let batches: Vec<_> = self.0.batches.borrow().iter().cloned().collect();
        let answers: Vec<_> = batches.iter().map(|batch| broker.produce(batch.bytes.clone())).collect();
        let this = self.clone();
        self.0.cluster.spawn(async move {
            for (batch, answer) in batches.into_iter().zip(answers) {
                if let Ok(mut rows) = answer.await {
                    this.answered(&batch, rows.remove(0).map(|appended| appended.base_offset.0));
                }
            }
            this.0.sending.set(false);
        });
    }

    /// A client that has lost patience: the same once more, while the first is under way.
    pub fn send_again(&self, broker: &Broker) {
        let batches: Vec<_> = self.0.batches.borrow().iter().cloned().collect();
        for batch in batches {
            let (this, answer) = (self.clone(), broker.produce(batch.bytes.clone()));
            self.0.cluster.spawn(async move {
                if let Ok(mut rows) = answer.await {
                    this.answered(&batch, rows.remove(0).map(|appended| appended.base_offset.0));
                }
            });
        }
    }

    fn answered(&self, batch: &Batch, outcome: Result<i64, AppendError>) {
        let cluster = &self.0.cluster;
        cluster.hear();
        match outcome {
            Ok(offset) => {
                cluster.simulation().note(format!("{} is acknowledged at {offset}", super::run::short(&batch.value)));
                cluster.oracle(|oracle| oracle.acknowledged(offset, &batch.value));
                let mut batches = self.0.batches.borrow_mut();
                batches.iter_mut().filter(|known| known.value == batch.value).for_each(|known| {
                    known.acknowledged = Some(offset);
                });
                // The last acknowledged one stays, to be repeated.
                while batches.len() > 1 && batches[0].acknowledged.is_some() && batches[1].acknowledged.is_some() {
                    batches.pop_front();
                }
            }
            Err(error) => cluster.simulation().note(format!("{}: {error}", super::run::short(&batch.value))),
        }
    }

    pub fn is_done(&self) -> bool {
        !self.0.sending.get() && self.0.batches.borrow().iter().all(|batch| batch.acknowledged.is_some())
    }

    pub fn is_sending(&self) -> bool {
        self.0.sending.get()
    }
}

/// Sends one batch, once.
pub fn send_once(cluster: &Cluster, broker: &Broker, number: usize, padding: usize) {
    let value: Rc<str> = format!("s{number}:{}", "x".repeat(padding)).into();
    let time = cluster.simulation().time();
    let bytes = BatchBuilder::new().record(time.wall_clock(), Some(b"k"), Some(value.as_bytes())).build();
    cluster.oracle(|oracle| oracle.sends(&value, time.now()));
    let answer = broker.produce(bytes);
    let watcher = cluster.clone();
    cluster.spawn(async move {
        if let Ok(rows) = answer.await
            && let Ok(appended) = &rows[0]
        {
            watcher.hear();
            let offset = appended.base_offset.0;
            watcher.simulation().note(format!("{} is acknowledged at {offset}", super::run::short(&value)));
            watcher.oracle(|oracle| oracle.acknowledged(offset, &value));
        }
    });
}
