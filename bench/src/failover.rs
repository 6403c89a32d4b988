//! How long a partition is without service when a broker leaves: measured by producers, one for each partition.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
use kaas_bench::broker::wait_until;
use kaas_bench::cluster::Cluster;
use kaas_bench::tester::{Tester, connect};

const BROKERS: i32 = 3;
const PARTITIONS: i32 = 12;
const TOPIC: &str = "failover";
/// How long a paused broker stands still: longer than three missed heartbeats.
const PAUSE: Duration = Duration::from_secs(6);

/// What happens to a broker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Scenario {
    /// SIGTERM of one that is not the controller, then a new start.
    Handover,
    KillBroker,
    KillController,
    /// SIGSTOP of one that is not the controller, and SIGCONT.
    PauseBroker,
}

/// Produces to one partition, and remembers the longest time between two acknowledgements.
struct Producer {
    longest_us: Arc<AtomicU64>,
    acknowledged: Arc<AtomicU64>,
    thread: JoinHandle<Result<Tester>>,
}

/// Runs each scenario so many times and prints what the partitions of the broker, and the others, had to wait.
pub(crate) fn print(directory: &Path, binary: &Path, rounds: u32) -> Result<()> {
    let mut cluster = Cluster::start(binary, directory, BROKERS)?;
    let first = cluster.brokers.values().next().context("there are brokers")?;
    connect(first.kafka())?.create_topic(TOPIC, PARTITIONS, &[])?;
    cluster.wait_until_even(BROKERS)?;
    let stop = Arc::new(AtomicBool::new(false));
    let producers: Vec<Producer> = (0..PARTITIONS).map(|partition| produce(&cluster, partition, &stop)).collect();
    println!("time without an acknowledgement, {PARTITIONS} partitions on {BROKERS} brokers, {rounds} rounds each");
    println!("{:<16} {:<26} {:>9} {:>9} {:>9}", "scenario", "partitions", "p50", "p99", "max");
    for scenario in [Scenario::Handover, Scenario::KillBroker, Scenario::KillController, Scenario::PauseBroker] {
        let (mut touched, mut others) = (Vec::new(), Vec::new());
        for _ in 0..rounds {
            let id = match scenario {
                Scenario::KillController => cluster.controller()?,
                Scenario::Handover | Scenario::KillBroker | Scenario::PauseBroker => cluster.follower()?,
            };
            let assignment = cluster.assignment()?;
            producers.iter().for_each(|producer| producer.longest_us.store(0, Ordering::Relaxed));
            act(&mut cluster, scenario, id)?;
            // A wait that has begun is known once it is over.
            for producer in &producers {
                let seen = producer.acknowledged.load(Ordering::Relaxed);
                let goes_on = || Ok(producer.acknowledged.load(Ordering::Relaxed) > seen + 1);
                wait_until("the partition is served", goes_on).with_context(|| cluster.logs())?;
            }
            for (row, producer) in assignment.partitions.iter().zip(&producers) {
                let waited = Duration::from_micros(producer.longest_us.load(Ordering::Relaxed));
                if row.leader.0 == id { touched.push(waited) } else { others.push(waited) }
            }
            if !cluster.brokers.contains_key(&id) {
                cluster.add(id)?;
            }
            cluster.wait_until_even(BROKERS)?;
        }
        print_row(scenario, "led by the broker", touched);
        print_row(scenario, "led by others", others);
    }
    stop.store(true, Ordering::Relaxed);
    let mut records = 0;
    for producer in producers {
        let mut tester = producer.thread.join().map_err(|_| anyhow!("a producer has panicked"))??;
        tester.bootstrap(cluster.brokers.values());
        tester.check()?;
        records += tester.next;
    }
    println!("{records} records were acknowledged, and all are there, in order");
    Ok(())
}

fn act(cluster: &mut Cluster, scenario: Scenario, id: i32) -> Result<()> {
    match scenario {
        Scenario::Handover => {
            let broker = cluster.brokers.remove(&id).context("it runs")?;
            ensure!(broker.stop()?.success(), "a broker that is told to stop exits with 0");
        }
        Scenario::KillBroker | Scenario::KillController => cluster.kill(id)?,
        Scenario::PauseBroker => {
            cluster.brokers[&id].signal("STOP")?;
            std::thread::sleep(PAUSE);
            cluster.brokers[&id].signal("CONT")?;
            return Ok(());
        }
    }
    cluster.wait_until_even(BROKERS - 1)
}

fn produce(cluster: &Cluster, partition: i32, stop: &Arc<AtomicBool>) -> Producer {
    let (longest_us, acknowledged) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let mut tester = Tester::new(cluster, TOPIC);
    let (longest, count, stop) = (Arc::clone(&longest_us), Arc::clone(&acknowledged), Arc::clone(stop));
    let thread = std::thread::spawn(move || {
        let mut last = Instant::now();
        while !stop.load(Ordering::Relaxed) {
            tester.produce_to(partition)?;
            let waited = u64::try_from(last.elapsed().as_micros())?;
            longest.fetch_max(waited, Ordering::Relaxed);
            count.fetch_add(1, Ordering::Relaxed);
            last = Instant::now();
        }
        Ok(tester)
    });
    Producer { longest_us, acknowledged, thread }
}

fn print_row(scenario: Scenario, whose: &str, mut waits: Vec<Duration>) {
    waits.sort_unstable();
    let at = |share: usize| waits.get((waits.len() * share / 100).min(waits.len().saturating_sub(1)));
    let [p50, p99, max] = [50, 99, 100].map(|share| at(share).copied().unwrap_or_default());
    println!("{:<16} {whose:<26} {p50:>9.1?} {p99:>9.1?} {max:>9.1?}", format!("{scenario:?}"));
}
