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
use super::payload::{Payload, Shape};
use super::run::short;

/// Kafka's bound for batches of an idempotent producer that are on their way.
const MAX_IN_FLIGHT: usize = 5;

#[derive(Clone)]
struct Batch {
    payload: Payload,
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
    pub fn add(&self, shape: impl Into<Shape>) {
        let state = &self.0;
        let waiting = state.batches.borrow().iter().filter(|batch| batch.acknowledged.is_none()).count();
        if waiting >= MAX_IN_FLIGHT {
            return;
        }
        let sequence = state.sequence.replace(state.sequence.get() + 1);
        let payload = Payload::new(&format!("p{}:{sequence}", state.id), shape.into());
        let mut builder = BatchBuilder::new().producer(ProducerId(state.id), ProducerEpoch(0), sequence);
        let time = state.cluster.simulation().time();
        payload.push_to(&mut builder, time.wall_clock());
        state.cluster.oracle(|oracle| oracle.sends(&payload, None, time.now()));
        state.batches.borrow_mut().push_back(Batch { payload, bytes: builder.build(), acknowledged: None });
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
        let name = &batch.payload.name;
        match outcome {
            Ok(offset) => {
                cluster.acknowledged(name, offset);
                let mut batches = self.0.batches.borrow_mut();
                batches.iter_mut().filter(|known| known.payload.name == *name).for_each(|known| {
                    known.acknowledged = Some(offset);
                });
                // The last acknowledged one stays, to be repeated.
                while batches.len() > 1 && batches[0].acknowledged.is_some() && batches[1].acknowledged.is_some() {
                    batches.pop_front();
                }
            }
            Err(error) => cluster.simulation().note(format!("{}: {error}", short(name))),
        }
    }

    pub fn is_done(&self) -> bool {
        !self.0.sending.get() && self.0.batches.borrow().iter().all(|batch| batch.acknowledged.is_some())
    }

    pub fn is_sending(&self) -> bool {
        self.0.sending.get()
    }
}

/// Sends a batch of one record, once.
pub fn send_once(cluster: &Cluster, broker: &Broker, number: usize, shape: impl Into<Shape>) {
    send_batch(cluster, broker, number, &[shape.into()]);
}

/// Sends one batch, once.
pub fn send_batch(cluster: &Cluster, broker: &Broker, number: usize, shapes: &[Shape]) {
    let time = cluster.simulation().time();
    let mut builder = BatchBuilder::new();
    let named = shapes.iter().zip(0..).map(|(&shape, index)| Payload::new(&format!("s{number}.{index}"), shape));
    let payloads: Vec<_> = named.collect();
    for payload in &payloads {
        payload.push_to(&mut builder, time.wall_clock());
        cluster.oracle(|oracle| oracle.sends(payload, None, time.now()));
    }
    let answer = broker.produce(builder.build());
    let watcher = cluster.clone();
    cluster.spawn(async move {
        if let Ok(rows) = answer.await
            && let Ok(appended) = &rows[0]
        {
            let offsets = appended.base_offset.0..;
            payloads.iter().zip(offsets).for_each(|(payload, offset)| watcher.acknowledged(&payload.name, offset));
        }
    });
}
