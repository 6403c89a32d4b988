//! Who works with the partition in a scenario.

use super::broker::Subject;
use super::cluster::Cluster;
use super::committer::Committer;
use super::producer::Producer;
use super::transaction::TransactionalProducer;

const PRODUCERS: i64 = 2;
const TRANSACTIONAL_PRODUCERS: std::ops::Range<i64> = 10..12;
const GROUPS: usize = 3;

#[derive(Default)]
pub struct Clients {
    pub producers: Vec<Producer>,
    pub transactional: Vec<TransactionalProducer>,
    pub committers: Vec<Committer>,
}

impl Clients {
    pub fn of(cluster: &Cluster, subject: Subject, have_transactions: bool) -> Self {
        if subject == Subject::Slot {
            return Self { committers: Committer::some(cluster, GROUPS), ..Self::default() };
        }
        let ids = if have_transactions { TRANSACTIONAL_PRODUCERS } else { 0..0 };
        Self {
            producers: (1..=PRODUCERS).map(|id| Producer::new(cluster, id)).collect(),
            transactional: ids.map(|id| TransactionalProducer::new(cluster, id)).collect(),
            committers: Vec::new(),
        }
    }
}
