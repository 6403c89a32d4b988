//! A client that finds the leaders by itself, as all real ones do, and remembers what was acknowledged.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use kaas_proto::kafka::ErrorCode;
use kaas_proto::record::{BatchBuilder, Batches, RecordSet};
use kaas_proto::types::{BrokerId, Offset, TimestampMs};

use crate::broker::{Broker, DEADLINE};
use crate::client::Client;
use crate::cluster::Cluster;

/// A request that gets no answer for so long is sent to whoever leads by then.
const PATIENCE: Duration = Duration::from_secs(2);
/// After an answer that was none, before the next question.
const PAUSE: Duration = Duration::from_millis(5);

/// Brokers that are remembered.
const MAX_BOOTSTRAP: usize = 8;

/// Produces to one topic, one record at a time.
#[derive(Debug)]
pub struct Tester {
    bootstrap: Vec<SocketAddr>,
    leaders: BTreeMap<i32, Client>,
    topic: String,
    acknowledged: BTreeMap<i32, Vec<i64>>,
    /// The number of the next record.
    pub next: i64,
    /// The longest time that a record took since this was last reset.
    pub longest: Duration,
}

/// Connects, with some patience and no more.
///
/// # Errors
/// Nobody listens.
pub fn connect(address: SocketAddr) -> Result<Client> {
    let mut client = Client::connect(address)?;
    client.stream().set_read_timeout(Some(PATIENCE))?;
    Ok(client)
}

fn endpoint(host: &str, port: i32) -> Result<SocketAddr> {
    Ok(format!("{host}:{port}").parse()?)
}

fn numbered(number: i64) -> Bytes {
    let time = TimestampMs(1_700_000_000_000 + number);
    BatchBuilder::new().record(time, Some(number.to_string().as_bytes()), Some(&[1; 100])).build()
}

impl Tester {
    #[must_use]
    pub fn new(cluster: &Cluster, topic: &str) -> Self {
        Self {
            bootstrap: cluster.brokers.values().map(Broker::kafka).collect(),
            leaders: BTreeMap::new(),
            topic: topic.to_owned(),
            acknowledged: BTreeMap::new(),
            next: 0,
            longest: Duration::ZERO,
        }
    }

    /// The brokers to ask from now on.
    pub fn bootstrap<'a>(&mut self, brokers: impl IntoIterator<Item = &'a Broker>) {
        self.bootstrap = brokers.into_iter().map(Broker::kafka).collect();
    }

    fn leader(&mut self, partition: i32) -> Result<Client> {
        let mut last = Err(anyhow::anyhow!("no broker answers"));
        for address in self.bootstrap.clone() {
            last = self.leader_according_to(address, partition);
            if last.is_ok() {
                break;
            }
        }
        last
    }

    fn leader_according_to(&mut self, address: SocketAddr, partition: i32) -> Result<Client> {
        let metadata = connect(address)?.metadata(&self.topic)?;
        let brokers = metadata.brokers.iter();
        let known = brokers.filter_map(|broker| Some((broker.node_id, endpoint(&broker.host, broker.port).ok()?)));
        let known: BTreeMap<BrokerId, SocketAddr> = known.collect();
        let topic = metadata.topics.first().context("a row for the topic")?;
        let row = topic.partitions.iter().find(|row| row.partition_index.0 == partition);
        let leader = row.context("a row for the partition")?.leader_id;
        let found = *known.get(&leader).with_context(|| format!("leader {leader} is one of the brokers"))?;
        // As real clients do: those that were given at the start may be gone one day.
        let others = self.bootstrap.iter().copied().filter(|other| !known.values().any(|address| address == other));
        self.bootstrap = known.values().copied().chain(others).take(MAX_BOOTSTRAP).collect();
        connect(found)
    }

    fn with_leader<T>(&mut self, partition: i32, act: impl Fn(&mut Client) -> Result<T>) -> Result<T> {
        let began = Instant::now();
        loop {
            let client = match self.leaders.remove(&partition) {
                Some(client) => Ok(client),
                None => self.leader(partition),
            };
            let done = client.and_then(|mut client| Ok((act(&mut client)?, client)));
            match done {
                Ok((done, client)) => {
                    self.leaders.insert(partition, client);
                    self.longest = self.longest.max(began.elapsed());
                    return Ok(done);
                }
                Err(error) if began.elapsed() < DEADLINE => {
                    drop(error);
                    std::thread::sleep(PAUSE);
                }
                Err(error) => return Err(error.context(format!("partition {partition}"))),
            }
        }
    }

    fn append(&mut self, partition: i32) -> Result<()> {
        let (topic, number) = (self.topic.clone(), self.next);
        self.with_leader(partition, |client| client.produce(&topic, partition, numbered(number)))?;
        self.acknowledged.entry(partition).or_default().push(number);
        Ok(())
    }

    /// One record to one partition, again and again until it is acknowledged.
    ///
    /// # Errors
    /// It never was.
    pub fn produce_to(&mut self, partition: i32) -> Result<()> {
        self.append(partition)?;
        self.next += 1;
        Ok(())
    }

    /// The same record to each partition.
    ///
    /// # Errors
    /// One was never acknowledged.
    pub fn produce(&mut self, partitions: i32) -> Result<()> {
        (0..partitions).try_for_each(|partition| self.append(partition))?;
        self.next += 1;
        Ok(())
    }

    /// The numbers of all records of a partition, in order.
    ///
    /// # Errors
    /// They can't be read.
    pub fn read(&mut self, partition: i32) -> Result<Vec<i64>> {
        let topic = self.topic.clone();
        self.with_leader(partition, |client| read_all(client, &topic, partition))
    }

    /// Everything acknowledged is there, in order. A record that was sent again may be there twice.
    ///
    /// # Errors
    /// What is missing.
    pub fn check(&mut self) -> Result<()> {
        for (partition, acknowledged) in self.acknowledged.clone() {
            let mut found = self.read(partition)?;
            ensure!(found.is_sorted(), "partition {partition} is not in order: {found:?}");
            found.dedup();
            let missing: Vec<_> = acknowledged.iter().filter(|number| found.binary_search(number).is_err()).collect();
            ensure!(missing.is_empty(), "partition {partition} has lost {missing:?}");
        }
        Ok(())
    }
}

fn read_all(client: &mut Client, topic: &str, partition: i32) -> Result<Vec<i64>> {
    let end = client.latest_offset(topic, partition)?;
    let (mut keys, mut offset) = (Vec::new(), Offset(0));
    while offset < end {
        let response = client.fetch(topic, partition, offset, 0)?;
        let row = &response.responses[0].partitions[0];
        ensure!(row.error_code == ErrorCode::None, "fetch: {:?}", row.error_code);
        let joined = row.records.parts().concat();
        for batch in Batches::new(&joined) {
            let records = RecordSet::read(batch?, 1 << 20)?;
            for record in records.iter() {
                let record = record?;
                ensure!(records.offset(&record) == offset, "no gap");
                keys.push(std::str::from_utf8(record.key.unwrap_or_default())?.parse()?);
                offset = offset.plus(1);
            }
        }
    }
    Ok(keys)
}
