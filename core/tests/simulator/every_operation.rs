//! Two fixed scenarios, disrupted at every single operation: a crash before, in and after it, a power loss, an error, an
//! error that is none, a delay, a pause.
//!
//! Between any two operations of a takeover, group commit, roll, delete, checkpoint and relinquish a broker is killed, or
//! stopped while another takes over; so between any two of a pass of compaction.

use std::io::ErrorKind;
use std::time::Duration;

use kaas_core::env::sim::{Disruption, Moment, Simulation};
use kaas_core::format::partition_file::PartitionFile;
use kaas_core::shard::operation::IsolationLevel;
use kaas_proto::types::LeaderEpoch;

use crate::play::broker::Subject;
use crate::play::clients::Clients;
use crate::play::cluster::{Cluster, Setup};
use crate::play::ending::end;
use crate::play::guard::guard;
use crate::play::lasting::Lasting;
use crate::play::payload::{KEYS, Shape};
use crate::play::producer::{send_batch, send_once};
use crate::play::run::run;
use crate::play::scenario::topic_config;

const SEED: u64 = 4;

/// Where the scenario begins and ends, in operations, and which of them change something.
struct Points {
    all: std::ops::Range<u64>,
    durable: Vec<u64>,
    /// A compacted segment is left.
    compacted: bool,
}

/// Both brokers write, roll, delete and lead; the second takes over from a first that is told nothing, the first gets the
/// partition back in good order.
async fn scenario(simulation: &Simulation, nfs: bool) -> Result<Points, String> {
    simulation.guard(guard());
    simulation.names_are_durable(nfs);
    let settings = [("segment.ms", "2000")];
    let cluster = Cluster::start(simulation, Setup::new(topic_config(&settings))).await;
    let clients = Clients::of(&cluster, Subject::Partition, false);
    let producers = &clients.producers;
    let begin = simulation.operations();
    let pause = |milliseconds| simulation.time().sleep(Duration::from_millis(milliseconds));
    for (id, epoch) in [(0, 1), (1, 2), (0, 3)] {
        (0..2).for_each(|id| cluster.start_broker(id));
        let broker = cluster.broker(id).expect("started");
        cluster.take_over(&broker, LeaderEpoch(epoch));
        pause(40).await;
        let former = cluster.broker(1 - id).expect("started");
        for round in 0..3 {
            producers[0].add(3000);
            producers[0].send(&broker);
            send_once(&cluster, &broker, usize::try_from(epoch * 10 + round).expect("small"), 10);
            pause(20).await;
            if round == 0 && cluster.brokers().len() == 2 {
                // Whoever led before has not heard of it yet.
                producers[1].add(10);
                producers[1].send(&former);
            }
            // The next write begins a segment.
            pause(if round == 1 { 2500 } else { 0 }).await;
        }
        let end = cluster.oracle(|oracle| oracle.end());
        cluster.oracle(|oracle| oracle.delete_up_to = oracle.delete_up_to.max(end - 2));
        drop(broker.delete_records((end - 2).max(0)));
        pause(30).await;
        let reader = (cluster.clone(), std::rc::Rc::clone(&broker));
        // A broker that is stopped answers when it goes on.
        cluster.spawn(async move { drop(reader.0.read(&reader.1, 0, IsolationLevel::ReadUncommitted).await) });
        pause(10).await;
        if epoch == 2 {
            broker.relinquish();
            pause(30).await;
        }
        cluster.check()?;
    }
    let points = Points { all: begin..simulation.operations(), durable: simulation.durable_points(), compacted: false };
    end(&cluster, &clients, false).await?;
    Ok(points)
}

/// A broker compacts segments of its own and of the one that led before, more than once, tombstones, markers and aborted
/// records among them; then the other compacts what the first has left.
async fn compaction(simulation: &Simulation, nfs: bool) -> Result<Points, String> {
    simulation.guard(guard());
    simulation.names_are_durable(nfs);
    let settings = [
        ("cleanup.policy", "compact"),
        ("segment.ms", "300"),
        ("min.cleanable.dirty.ratio", "0.01"),
        ("delete.retention.ms", "1500"),
    ];
    let cluster = Cluster::start(simulation, Setup::new(topic_config(&settings))).await;
    cluster.oracle(|oracle| oracle.lasting = Some(Lasting { tombstones: Duration::from_millis(1500) }));
    let clients = Clients::of(&cluster, Subject::Partition, true);
    let begin = simulation.operations();
    let pause = |milliseconds| simulation.time().sleep(Duration::from_millis(milliseconds));
    for (id, epoch) in [(0, 1), (1, 2)] {
        (0..2).for_each(|id| cluster.start_broker(id));
        let broker = cluster.broker(id).expect("started");
        cluster.take_over(&broker, LeaderEpoch(epoch));
        pause(40).await;
        for round in 0..4 {
            let shape = |number: usize| Shape { key: KEYS[number % 3], is_tombstone: number % 4 == 3, padding: 300 };
            let number = usize::try_from(epoch).expect("small") * 10 + round;
            send_batch(&cluster, &broker, number, &[shape(number), shape(number + 1)]);
            clients.transactional[0].begin(vec![(shape(number + 2), Duration::from_millis(10))], round % 2 == 0);
            pause(450).await;
        }
        // What was written last is in a segment that is never compacted.
        pause(1500).await;
        cluster.check()?;
    }
    let compacted = simulation.view(|view| {
        let names = view.names(&Subject::Partition.directory().display().to_string());
        let is_compacted = |file| matches!(file, PartitionFile::Log(segment) if segment.generation > 0);
        names.iter().filter_map(|name| PartitionFile::parse(name)).any(is_compacted)
    });
    let points = Points { all: begin..simulation.operations(), durable: simulation.durable_points(), compacted };
    end(&cluster, &clients, false).await?;
    Ok(points)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Appending,
    Compaction,
}

async fn play(kind: Kind, simulation: &Simulation, nfs: bool) -> Result<Points, String> {
    match kind {
        Kind::Appending => scenario(simulation, nfs).await,
        Kind::Compaction => compaction(simulation, nfs).await,
    }
}

fn points(kind: Kind, nfs: bool) -> Points {
    let simulation = Simulation::new(SEED);
    let points = run(&simulation, play(kind, &simulation, nfs)).unwrap();
    assert_eq!(points.compacted, kind == Kind::Compaction);
    points
}

/// Runs the scenario once for each of the operations.
fn disrupt_each(kind: Kind, operations: impl Iterator<Item = u64>, nfs: bool, disruption: Disruption) {
    let mut count = 0;
    for operation in operations {
        let simulation = Simulation::new(SEED);
        simulation.disrupt(operation, disruption);
        if let Err(what) = run(&simulation, play(kind, &simulation, nfs)) {
            panic!("{}\n{disruption:?} at operation {operation}: {what}", simulation.trace());
        }
        count += 1;
    }
    assert!(count > 50, "{count} operations: too few to show anything");
}

fn disrupt_durable_points(nfs: bool, disruption: Disruption) {
    for kind in [Kind::Appending, Kind::Compaction] {
        let points = points(kind, nfs);
        disrupt_each(kind, points.durable.into_iter().filter(|at| points.all.contains(at)), nfs, disruption);
    }
}

fn disrupt_all(disruption: Disruption) {
    for kind in [Kind::Appending, Kind::Compaction] {
        disrupt_each(kind, points(kind, true).all, true, disruption);
    }
}

#[test]
fn a_crash_in_front_of_every_durable_point() {
    disrupt_durable_points(true, Disruption::Crash(Moment::Before));
}

#[test]
fn a_crash_in_the_middle_of_every_durable_point() {
    disrupt_durable_points(true, Disruption::Crash(Moment::Torn));
}

#[test]
fn a_crash_behind_every_durable_point() {
    disrupt_durable_points(true, Disruption::Crash(Moment::After));
}

#[test]
fn a_power_loss_in_the_middle_of_every_durable_point() {
    disrupt_durable_points(false, Disruption::LosePower(Moment::Torn));
}

#[test]
fn a_power_loss_behind_every_durable_point() {
    disrupt_durable_points(false, Disruption::LosePower(Moment::After));
}

#[test]
fn every_operation_fails_once() {
    disrupt_all(Disruption::Refuse(ErrorKind::Other));
}

#[test]
fn every_operation_seems_to_fail_and_happens_later() {
    let later = Disruption::FailAndLandLater(ErrorKind::TimedOut, Duration::from_millis(150));
    disrupt_durable_points(true, later);
}

#[test]
fn every_operation_takes_long_once() {
    disrupt_all(Disruption::Delay(Duration::from_millis(2600)));
}

#[test]
fn a_broker_stops_at_every_operation_and_goes_on_when_all_is_over() {
    disrupt_all(Disruption::Pause);
}
