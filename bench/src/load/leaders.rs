//! Who leads what, as metadata tells it.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, Result};
use kaas_proto::kafka::messages::MetadataResponse;
use kaas_proto::types::{BrokerId, LeaderEpoch, TopicId};

use super::{Shared, lock};
use crate::client::Client;

/// Between two questions.
const INTERVAL: Duration = Duration::from_millis(20);
/// A broker that does not answer in this time is not asked any more.
const PATIENCE: Duration = Duration::from_millis(500);
/// Brokers that are remembered.
const MAX_BROKERS: usize = 16;

/// The leader of a partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Leader {
    pub(super) topic: TopicId,
    pub(super) address: SocketAddr,
    pub(super) epoch: LeaderEpoch,
}

/// What is known.
#[derive(Debug)]
pub(super) struct Leaders {
    /// The one that is asked is the first.
    brokers: Vec<SocketAddr>,
    topic: Option<TopicId>,
    /// Topics that had the name before. A broker that is behind may still tell of them.
    former: BTreeSet<TopicId>,
    partitions: BTreeMap<i32, Leader>,
}

impl Leaders {
    pub(super) fn new(brokers: Vec<SocketAddr>) -> Self {
        Self { brokers, topic: None, former: BTreeSet::new(), partitions: BTreeMap::new() }
    }

    pub(super) fn topic(&self) -> Option<TopicId> {
        self.topic
    }

    pub(super) fn of(&self, partition: i32) -> Option<Leader> {
        self.partitions.get(&partition).copied()
    }

    pub(super) fn all(&self) -> BTreeMap<i32, Leader> {
        self.partitions.clone()
    }

    fn try_another(&mut self) {
        if !self.brokers.is_empty() {
            self.brokers.rotate_left(1);
        }
    }

    fn learn(&mut self, metadata: &MetadataResponse) -> Result<()> {
        let mut known: BTreeMap<BrokerId, SocketAddr> = BTreeMap::new();
        for broker in &metadata.brokers {
            known.insert(broker.node_id, format!("{}:{}", broker.host, broker.port).parse()?);
        }
        let others = known.values().copied().filter(|address| !self.brokers.contains(address));
        let others: Vec<_> = others.collect();
        // Behind the one that has just answered: those that were given at the start may be gone one day.
        self.brokers.splice(self.brokers.len().min(1)..self.brokers.len().min(1), others);
        self.brokers.truncate(MAX_BROKERS);
        let topic = metadata.topics.first().context("a row for the topic")?;
        if topic.topic_id == TopicId::default() || self.former.contains(&topic.topic_id) {
            return Ok(());
        }
        if self.topic != Some(topic.topic_id) {
            self.former.extend(self.topic.replace(topic.topic_id));
            self.partitions.clear();
        }
        for row in &topic.partitions {
            let Some(&address) = known.get(&row.leader_id) else { continue };
            let leader = Leader { topic: topic.topic_id, address, epoch: row.leader_epoch };
            let held = self.partitions.entry(row.partition_index.0).or_insert(leader);
            if leader.epoch > held.epoch {
                *held = leader;
            }
        }
        Ok(())
    }
}

/// Asks whichever broker answers, until the load stops.
pub(super) fn keep_up_to_date(shared: &Shared, topic: &str) {
    let mut asked: Option<(SocketAddr, Client)> = None;
    while !shared.stopping() {
        let first = lock(&shared.leaders).brokers.first().copied();
        let Some(address) = first else { return };
        let client = match asked.take() {
            Some((same, client)) if same == address => Ok(client),
            _ => Client::connect(address),
        };
        let answer = client.and_then(|mut client| {
            client.stream().set_read_timeout(Some(PATIENCE))?;
            Ok((client.metadata(topic)?, client))
        });
        match answer {
            Ok((metadata, client)) => {
                // What makes no sense is asked for again.
                if lock(&shared.leaders).learn(&metadata).is_err() {
                    lock(&shared.leaders).try_another();
                }
                asked = Some((address, client));
            }
            Err(_) => lock(&shared.leaders).try_another(),
        }
        std::thread::sleep(INTERVAL);
    }
}
