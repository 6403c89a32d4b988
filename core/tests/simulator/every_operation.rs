//! One fixed scenario, disrupted at every single operation: a crash before, in and after it, a power loss, an error, an
//! error that is none, a delay, a pause.
//!
//! Between any two operations of a takeover, group commit, roll, delete, checkpoint and relinquish a broker is killed, or
//! stopped while another takes over.

use std::io::ErrorKind;
use std::time::Duration;

use kaas_core::env::sim::{Disruption, Moment, Simulation};
use kaas_core::shard::operation::IsolationLevel;
use kaas_proto::types::LeaderEpoch;

use crate::play::broker::Subject;
use crate::play::clients::Clients;
use crate::play::cluster::{Cluster, Setup};
use crate::play::ending::end;
use crate::play::guard::guard;
use crate::play::producer::send_once;
use crate::play::run::run;
use crate::play::scenario::topic_config;

const SEED: u64 = 4;

/// Where the scenario begins and ends, in operations, and which of them change something.
struct Points {
    all: std::ops::Range<u64>,
    durable: Vec<u64>,
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
    let points = Points { all: begin..simulation.operations(), durable: simulation.durable_points() };
    end(&cluster, &clients, false).await?;
    Ok(points)
}

fn points(nfs: bool) -> Points {
    let simulation = Simulation::new(SEED);
    run(&simulation, scenario(&simulation, nfs)).unwrap()
}

/// Runs the scenario once for each of the operations.
fn disrupt_each(operations: impl Iterator<Item = u64>, nfs: bool, disruption: Disruption) {
    let mut count = 0;
    for operation in operations {
        let simulation = Simulation::new(SEED);
        simulation.disrupt(operation, disruption);
        if let Err(what) = run(&simulation, scenario(&simulation, nfs)) {
            panic!("{}\n{disruption:?} at operation {operation}: {what}", simulation.trace());
        }
        count += 1;
    }
    assert!(count > 50, "{count} operations: too few to show anything");
}

fn disrupt_durable_points(nfs: bool, disruption: Disruption) {
    let points = points(nfs);
    disrupt_each(points.durable.into_iter().filter(|at| points.all.contains(at)), nfs, disruption);
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
    disrupt_each(points(true).all, true, Disruption::Refuse(ErrorKind::Other));
}

#[test]
fn every_operation_seems_to_fail_and_happens_later() {
    let later = Disruption::FailAndLandLater(ErrorKind::TimedOut, Duration::from_millis(150));
    disrupt_durable_points(true, later);
}

#[test]
fn every_operation_takes_long_once() {
    disrupt_each(points(true).all, true, Disruption::Delay(Duration::from_millis(2600)));
}

#[test]
fn a_broker_stops_at_every_operation_and_goes_on_when_all_is_over() {
    disrupt_each(points(true).all, true, Disruption::Pause);
}
