//! Three real brokers on one directory: they elect, share the partitions, survive each other.
//!
//! Election and topics come from files here (`--cluster-stand-in`); all else is what a cluster on Kubernetes runs.

#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use kaas_bench::broker::{Broker, BrokerOptions, DEADLINE, wait_until};
use kaas_bench::client::Client;
use kaas_proto::format::assignment::{Assignment, BrokerHealth};
use kaas_proto::record::{BatchBuilder, Batches, RecordSet};
use kaas_proto::types::{Offset, TimestampMs};
use tempfile::TempDir;

/// A request that gets no answer for so long is sent to whoever leads by then.
const PATIENCE: Duration = Duration::from_secs(2);

struct Cluster {
    volume: TempDir,
    stand_in: TempDir,
    brokers: BTreeMap<i32, Broker>,
}

impl Cluster {
    fn start(brokers: i32) -> Self {
        let directory = || tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let mut cluster = Self { volume: directory(), stand_in: directory(), brokers: BTreeMap::new() };
        (0..brokers).for_each(|id| cluster.add(id));
        cluster.wait_until_even(brokers);
        cluster
    }

    fn add(&mut self, id: i32) {
        let options = BrokerOptions::new(Path::new(env!("CARGO_BIN_EXE_kaas")), self.volume.path());
        let id_text = id.to_string();
        let arguments = [
            "--cluster-stand-in",
            self.stand_in.path().to_str().unwrap(),
            "--broker-id",
            &id_text,
            "--heartbeat-listen",
            "127.0.0.1:0",
            "--shards",
            "1",
            "--log-level",
            "info,kaas_coord=debug",
        ];
        self.brokers.insert(id, Broker::start(&options.with(&arguments)).unwrap());
    }

    fn assignment(&self) -> Option<Assignment> {
        let bytes = std::fs::read(self.volume.path().join("__cluster/assignment.json")).ok()?;
        Assignment::decode(&bytes).ok()
    }

    /// Waits until so many brokers are alive and ready, and lead as many partitions each, give or take one.
    fn wait_until_even(&self, brokers: i32) {
        let even = || {
            let Some(assignment) = self.assignment() else { return Ok(false) };
            let alive = assignment.brokers.iter().filter(|broker| broker.health == BrokerHealth::Alive);
            let leads = |id| assignment.partitions.iter().filter(|partition| partition.leader == id).count();
            let counts: Vec<usize> = alive.map(|broker| leads(broker.id)).collect();
            let spread = counts.iter().max().unwrap_or(&0) - counts.iter().min().unwrap_or(&0);
            Ok(i32::try_from(counts.len())? == brokers && spread <= 1)
        };
        wait_until("the cluster is even", even).unwrap_or_else(|error| panic!("{error}\n{}", self.logs()));
        for broker in self.brokers.values() {
            broker.wait_ready().unwrap_or_else(|error| {
                panic!("{error}\n{:?}\n{}", broker.get("/healthz"), self.logs());
            });
        }
    }

    fn logs(&self) -> String {
        let log = |(id, broker): (&i32, &Broker)| format!("--- broker {id}\n{}", broker.log_lines().join("\n"));
        self.brokers.iter().map(log).collect::<Vec<_>>().join("\n")
    }

    fn controller(&self) -> i32 {
        self.assignment().unwrap().controller.0
    }

    fn follower(&self) -> i32 {
        let controller = self.controller();
        *self.brokers.keys().find(|&&id| id != controller).unwrap()
    }

    fn kill(&mut self, id: i32) {
        self.brokers.remove(&id).unwrap().kill().unwrap();
    }

    fn client(&self) -> Client {
        connect(self.brokers.values().next().unwrap().kafka()).unwrap()
    }
}

fn connect(address: SocketAddr) -> Result<Client> {
    let mut client = Client::connect(address)?;
    client.stream().set_read_timeout(Some(PATIENCE))?;
    Ok(client)
}

fn numbered(number: i64) -> Bytes {
    let time = TimestampMs(1_700_000_000_000 + number);
    BatchBuilder::new().record(time, Some(number.to_string().as_bytes()), Some(&[1; 100])).build()
}

/// A client that finds the leaders by itself, as all real ones do.
struct Tester {
    bootstrap: Vec<SocketAddr>,
    leaders: BTreeMap<i32, Client>,
    topic: String,
    acknowledged: BTreeMap<i32, Vec<i64>>,
    next: i64,
    /// The longest time that one record took.
    longest: Duration,
}

impl Tester {
    fn new(cluster: &Cluster, topic: &str) -> Self {
        Self {
            bootstrap: cluster.brokers.values().map(Broker::kafka).collect(),
            leaders: BTreeMap::new(),
            topic: topic.to_owned(),
            acknowledged: BTreeMap::new(),
            next: 0,
            longest: Duration::ZERO,
        }
    }

    fn leader(&self, partition: i32) -> Result<Client> {
        let mut last = Err(anyhow::anyhow!("no broker answers"));
        for &address in &self.bootstrap {
            last = (|| {
                let metadata = connect(address)?.metadata(&self.topic)?;
                let topic = metadata.topics.first().context("a row for the topic")?;
                let row = topic.partitions.iter().find(|row| row.partition_index.0 == partition);
                let leader = row.context("a row for the partition")?.leader_id;
                let broker = metadata.brokers.iter().find(|broker| broker.node_id == leader);
                let broker = broker.with_context(|| format!("leader {leader} is one of the brokers"))?;
                connect(format!("{}:{}", &*broker.host, broker.port).parse()?)
            })();
            if last.is_ok() {
                break;
            }
        }
        last
    }

    fn with_leader<T>(&mut self, partition: i32, act: impl Fn(&mut Client) -> Result<T>) -> T {
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
                    return done;
                }
                Err(error) => {
                    assert!(began.elapsed() < DEADLINE, "partition {partition}: {error:#}");
                    std::thread::sleep(Duration::from_millis(5));
                }
            }
        }
    }

    /// One record to each partition, again and again until it is acknowledged.
    fn produce(&mut self, partitions: i32) {
        for partition in 0..partitions {
            let (topic, number) = (self.topic.clone(), self.next);
            self.with_leader(partition, |client| client.produce(&topic, partition, numbered(number)));
            self.acknowledged.entry(partition).or_default().push(number);
        }
        self.next += 1;
    }

    fn read(&mut self, partition: i32) -> Vec<i64> {
        let topic = self.topic.clone();
        self.with_leader(partition, |client| read_all(client, &topic, partition))
    }

    /// Everything acknowledged is there, in order. A record that was sent again may be there twice.
    fn check(&mut self) {
        for (partition, acknowledged) in self.acknowledged.clone() {
            let mut found = self.read(partition);
            assert!(found.is_sorted(), "partition {partition} is in order: {found:?}");
            found.dedup();
            let missing: Vec<_> = acknowledged.iter().filter(|number| found.binary_search(number).is_err()).collect();
            assert!(missing.is_empty(), "partition {partition} has lost {missing:?}");
        }
    }
}

fn read_all(client: &mut Client, topic: &str, partition: i32) -> Result<Vec<i64>> {
    let end = client.latest_offset(topic, partition)?;
    let (mut keys, mut offset) = (Vec::new(), Offset(0));
    while offset < end {
        let response = client.fetch(topic, partition, offset, 0)?;
        let row = &response.responses[0].partitions[0];
        ensure!(row.error_code == kaas_proto::kafka::ErrorCode::None, "fetch: {:?}", row.error_code);
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

#[test]
fn three_brokers_are_one_cluster() {
    let cluster = Cluster::start(3);
    cluster.client().create_topic("t", 6, &[]).unwrap();
    cluster.wait_until_even(3);
    let mut tester = Tester::new(&cluster, "t");
    (0..10).for_each(|_| tester.produce(6));
    tester.check();
    // Each broker says the same.
    let controller = cluster.controller();
    for broker in cluster.brokers.values() {
        wait_until("the view is that of the assignment", || {
            let metadata = connect(broker.kafka())?.metadata("t")?;
            let led = |id| metadata.topics[0].partitions.iter().filter(|row| row.leader_id.0 == id).count();
            Ok(metadata.controller_id.0 == controller && metadata.brokers.len() == 3 && (0..3).all(|id| led(id) == 2))
        })
        .unwrap();
    }
}

#[test]
fn a_killed_broker_is_replaced_and_nothing_is_lost() {
    let mut cluster = Cluster::start(3);
    cluster.client().create_topic("t", 6, &[]).unwrap();
    let mut tester = Tester::new(&cluster, "t");
    (0..10).for_each(|_| tester.produce(6));
    let follower = cluster.follower();
    cluster.kill(follower);
    (0..10).for_each(|_| tester.produce(6));
    cluster.wait_until_even(2);
    cluster.add(follower);
    tester.bootstrap = cluster.brokers.values().map(Broker::kafka).collect();
    cluster.wait_until_even(3);
    (0..10).for_each(|_| tester.produce(6));
    tester.check();
}

#[test]
fn a_killed_controller_is_replaced_and_nothing_is_lost() {
    let mut cluster = Cluster::start(3);
    cluster.client().create_topic("t", 6, &[]).unwrap();
    let mut tester = Tester::new(&cluster, "t");
    (0..10).for_each(|_| tester.produce(6));
    let (former, epoch) = (cluster.controller(), cluster.assignment().unwrap().controller_epoch);
    cluster.kill(former);
    (0..10).for_each(|_| tester.produce(6));
    cluster.wait_until_even(2);
    let assignment = cluster.assignment().unwrap();
    assert!(assignment.controller.0 != former && assignment.controller_epoch > epoch);
    cluster.client().create_topic("u", 2, &[]).unwrap();
    tester.check();
}

#[test]
fn a_broker_that_is_told_to_stop_hands_over_first() {
    let mut cluster = Cluster::start(3);
    cluster.client().create_topic("t", 6, &[]).unwrap();
    let mut tester = Tester::new(&cluster, "t");
    // Also the controller, and the last one of all.
    while let Some(id) = cluster.assignment().map(|assignment| assignment.controller.0) {
        (0..5).for_each(|_| tester.produce(6));
        let mut broker = cluster.brokers.remove(&id).unwrap();
        broker.signal("TERM").unwrap();
        if !cluster.brokers.is_empty() {
            (0..10).for_each(|_| tester.produce(6));
        }
        assert!(broker.wait().unwrap().success(), "{}", broker.log_lines().join("\n"));
        let log = broker.log_lines().join("\n");
        assert!(log.contains("drained"), "{log}");
        if cluster.brokers.is_empty() {
            break;
        }
        cluster.wait_until_even(i32::try_from(cluster.brokers.len()).unwrap());
    }
    cluster.add(0);
    tester.bootstrap = cluster.brokers.values().map(Broker::kafka).collect();
    cluster.wait_until_even(1);
    tester.check();
}

#[test]
fn a_controller_that_stood_still_rolls_nothing_back() {
    let cluster = Cluster::start(3);
    cluster.client().create_topic("t", 6, &[]).unwrap();
    let mut tester = Tester::new(&cluster, "t");
    (0..5).for_each(|_| tester.produce(6));
    let (former, epoch) = (cluster.controller(), cluster.assignment().unwrap().controller_epoch);
    let paused = &cluster.brokers[&former];
    paused.signal("STOP").unwrap();
    wait_until("another one is the controller", || {
        Ok(cluster.assignment().is_some_and(|assignment| assignment.controller_epoch > epoch))
    })
    .unwrap();
    tester.bootstrap = cluster.brokers.iter().filter(|(id, _)| **id != former).map(|(_, b)| b.kafka()).collect();
    (0..5).for_each(|_| tester.produce(6));
    paused.signal("CONT").unwrap();
    cluster.wait_until_even(3);
    (0..5).for_each(|_| tester.produce(6));
    tester.check();
    assert!(cluster.assignment().unwrap().controller_epoch > epoch);
    assert_ne!(cluster.controller(), former);
}

#[test]
fn a_topic_is_deleted_and_made_anew_everywhere() {
    let cluster = Cluster::start(3);
    let mut client = cluster.client();
    for round in 0..3 {
        client.create_topic("t", 3, &[]).unwrap();
        let mut tester = Tester::new(&cluster, "t");
        tester.next = round * 100;
        (0..3).for_each(|_| tester.produce(3));
        for partition in 0..3 {
            assert_eq!(tester.read(partition), (round * 100..round * 100 + 3).collect::<Vec<_>>(), "nothing older");
        }
        client.delete_topic("t").unwrap();
    }
    wait_until("what was deleted is removed", || {
        let names =
            std::fs::read_dir(cluster.volume.path())?.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
        Ok(names.filter(|name| name == "t" || name.starts_with(".deleting")).count() == 0)
    })
    .unwrap();
}

#[test]
fn a_lost_assignment_is_written_again_and_epochs_go_on() {
    let mut cluster = Cluster::start(2);
    cluster.client().create_topic("t", 2, &[]).unwrap();
    let mut tester = Tester::new(&cluster, "t");
    tester.produce(2);
    let path = cluster.volume.path().join("__cluster/assignment.json");
    std::fs::remove_file(&path).unwrap();
    wait_until("the controller writes it again", || Ok(path.exists())).unwrap();
    tester.produce(2);

    let before = cluster.assignment().unwrap();
    (0..2).for_each(|id| cluster.kill(id));
    std::fs::write(&path, "torn").unwrap();
    std::fs::remove_file(path.with_file_name("assignment.former.json")).unwrap();
    (0..2).for_each(|id| cluster.add(id));
    cluster.wait_until_even(2);
    let after = cluster.assignment().unwrap();
    for (before, after) in before.partitions.iter().zip(&after.partitions) {
        assert!(after.epoch > before.epoch && after.topic_id == before.topic_id);
    }
    assert!(cluster.logs().contains("THE ASSIGNMENT IS LOST"));
    tester.bootstrap = cluster.brokers.values().map(Broker::kafka).collect();
    tester.leaders.clear();
    tester.produce(2);
    tester.check();
}
