//! Which broker leads which partition: as it was, as far as that is even.
//!
//! 1. A partition whose leader may go on leading keeps it.
//! 2. Each of the others goes to the broker that has the fewest partitions of its topic.
//! 3. The cluster is evened out: in the end no broker leads more than one partition more than any other.
//! 4. Each topic is evened out in the same sense, by trades, one partition each way, so that step 3 stays done.
//!
//! A move of a partition that was placed just now costs nothing, one of an inherited partition costs a takeover: so the
//! former move first. Pure; time grows with the number of partitions times that of brokers, and never faster.
//!
//! Step 4 always gets there: if broker `a` has two partitions of a topic more than `b`, and at most one more in all,
//! then `b` has more of some other topic. Trading one for the other evens the first and does not strain the second.

use std::cmp::Reverse;
use std::collections::BTreeSet;

use kaas_proto::types::BrokerId;

/// Topics that are looked at for a better trade, once there is one that would do.
const TRADE_SEARCH: usize = 64;

/// A partition to be placed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Placement {
    /// Which topic it belongs to: a number below that of all topics.
    pub topic: usize,
    /// Who leads it now.
    pub leader: Option<BrokerId>,
}

/// The leader of each partition, all of them in `candidates`.
///
/// # Panics
/// If there is no candidate.
#[must_use]
pub fn balance(partitions: &[Placement], candidates: &BTreeSet<BrokerId>) -> Vec<BrokerId> {
    assert!(!candidates.is_empty(), "the controller itself is always one");
    let brokers: Vec<BrokerId> = candidates.iter().copied().collect();
    let mut table = Table::new(partitions, brokers.len());
    let mut homeless = Vec::new();
    for (partition, placement) in partitions.iter().enumerate() {
        match placement.leader.and_then(|leader| brokers.binary_search(&leader).ok()) {
            Some(broker) => table.add(partition, broker),
            None => homeless.push(partition),
        }
    }
    for partition in homeless {
        table.free[partition] = true;
        table.place(partition);
    }
    table.even_out_brokers();
    table.even_out_topics();
    table.leader.into_iter().map(|broker| brokers[broker]).collect()
}

/// Everything is indexed by numbers: partitions, topics, brokers.
struct Table {
    brokers: usize,
    topic: Vec<usize>,
    /// Partitions of each topic.
    size: Vec<usize>,
    leader: Vec<usize>,
    /// Moving the partition costs nothing: it was placed, or moved already.
    free: Vec<bool>,
    /// Partitions that each broker leads.
    total: Vec<usize>,
    /// What a broker leads of a topic, at `topic * brokers + broker`; free partitions behind the others.
    led: Vec<Vec<usize>>,
    /// Where the search for a trade with a broker goes on.
    cursor: Vec<usize>,
}

impl Table {
    fn new(partitions: &[Placement], brokers: usize) -> Self {
        let topics = partitions.iter().map(|placement| placement.topic + 1).max().unwrap_or(0);
        let mut size = vec![0; topics];
        for placement in partitions {
            size[placement.topic] += 1;
        }
        Self {
            brokers,
            topic: partitions.iter().map(|placement| placement.topic).collect(),
            size,
            leader: vec![0; partitions.len()],
            free: vec![false; partitions.len()],
            total: vec![0; brokers],
            led: vec![Vec::new(); topics * brokers],
            cursor: vec![0; brokers],
        }
    }

    fn led(&self, topic: usize, broker: usize) -> &Vec<usize> {
        &self.led[topic * self.brokers + broker]
    }

    fn count(&self, topic: usize, broker: usize) -> usize {
        self.led(topic, broker).len()
    }

    fn add(&mut self, partition: usize, broker: usize) {
        self.leader[partition] = broker;
        self.total[broker] += 1;
        self.led[self.topic[partition] * self.brokers + broker].push(partition);
    }

    /// Step 2, for one partition.
    fn place(&mut self, partition: usize) {
        let topic = self.topic[partition];
        let fewest = (0..self.brokers).min_by_key(|&broker| (self.count(topic, broker), self.total[broker]));
        self.add(partition, fewest.expect("there is a broker"));
    }

    /// Moves a partition of the topic, a free one if there is any.
    fn move_one(&mut self, topic: usize, from: usize, to: usize) {
        let partition = self.led[topic * self.brokers + from].pop().expect("only what is there is moved");
        self.total[from] -= 1;
        self.free[partition] = true;
        self.add(partition, to);
    }

    /// Step 3.
    fn even_out_brokers(&mut self) {
        let target = self.targets();
        for from in 0..self.brokers {
            let surplus = self.total[from].saturating_sub(target[from]);
            if surplus == 0 {
                continue;
            }
            for topic in self.most_dispensable(from, surplus) {
                let lacking = (0..self.brokers).filter(|&broker| self.total[broker] < target[broker]);
                let to = lacking.min_by_key(|&broker| (self.count(topic, broker), self.total[broker]));
                self.move_one(topic, from, to.expect("what one has too much, another lacks"));
            }
        }
    }

    /// How many partitions each broker is to lead. The odd ones stay with those who have most.
    fn targets(&self) -> Vec<usize> {
        let (each, odd) = (self.leader.len() / self.brokers, self.leader.len() % self.brokers);
        let mut order: Vec<usize> = (0..self.brokers).collect();
        order.sort_by_key(|&broker| Reverse(self.total[broker]));
        let mut target = vec![each; self.brokers];
        for &broker in &order[..odd] {
            target[broker] += 1;
        }
        target
    }

    /// The topics of which a broker gives partitions away, one entry for each: free ones first, then those of the topics of
    /// which it has most above its fair share.
    fn most_dispensable(&self, broker: usize, wanted: usize) -> Vec<usize> {
        let mut offers = Vec::with_capacity(self.total[broker]);
        for topic in 0..self.size.len() {
            let led = self.led(topic, broker);
            for (left, &partition) in led.iter().enumerate() {
                // With this one there are `left + 1`. Scaled by the number of brokers, to stay with whole numbers.
                let excess = ((left + 1) * self.brokers).cast_signed() - self.size[topic].cast_signed();
                offers.push((!self.free[partition], Reverse(excess), topic));
            }
        }
        offers.sort_unstable();
        offers.into_iter().take(wanted).map(|(_, _, topic)| topic).collect()
    }

    /// Step 4.
    fn even_out_topics(&mut self) {
        for topic in 0..self.size.len() {
            loop {
                let by_count = |&broker: &usize| self.count(topic, broker);
                let rich = (0..self.brokers).max_by_key(by_count).expect("there is a broker");
                let poor = (0..self.brokers).min_by_key(by_count).expect("there is a broker");
                if self.count(topic, rich) <= self.count(topic, poor) + 1 {
                    break;
                }
                let other = self.trade(rich, poor);
                self.move_one(topic, rich, poor);
                self.move_one(other, poor, rich);
            }
        }
    }

    /// A topic of which `poor` has more than `rich`. Best is one whose partition moves for free, and which is evened, too.
    fn trade(&mut self, rich: usize, poor: usize) -> usize {
        let topics = self.size.len();
        let mut best: Option<((bool, bool), usize)> = None;
        for step in 0..topics {
            let topic = (self.cursor[poor] + step) % topics;
            let (has, lacks) = (self.count(topic, poor), self.count(topic, rich));
            if has > lacks {
                let last = *self.led(topic, poor).last().expect("it has more than none");
                let cost = (!self.free[last], has < lacks + 2);
                if best.is_none_or(|(least, _)| cost < least) {
                    best = Some((cost, topic));
                }
            }
            if best.is_some_and(|(cost, _)| cost == (false, false) || step >= TRADE_SEARCH) {
                break;
            }
        }
        let (_, topic) = best.expect("see the head of this file");
        self.cursor[poor] = topic;
        topic
    }
}

#[cfg(test)]
#[path = "balancer_tests.rs"]
mod tests;
