//! How every scenario ends: calm, a last leader, one more crash, and another last leader. Both show all that was promised.

use std::rc::Rc;
use std::time::Duration;

use kaas_core::env::sim::Faults;
use kaas_core::shard::operation::IsolationLevel;

use super::broker::Broker;
use super::clients::Clients;
use super::cluster::Cluster;
use super::oracle::Record;
use super::run::Summary;

/// Longer than any late write, any attribute cache, and the time that a revoked fence stays.
const CALM_DOWN: Duration = Duration::from_secs(150);
/// How long an answer may take when nothing is wrong any more.
const ANSWER_LIMIT: Duration = Duration::from_secs(60);

/// # Errors
/// What did not hold.
pub async fn end(cluster: &Cluster, clients: &Clients, loses_power: bool) -> Result<Summary, String> {
    let simulation = cluster.simulation();
    simulation.note("the end begins");
    simulation.set_faults(Faults::NONE);
    simulation.set_capacity(cluster.setup().capacity);
    for broker in cluster.brokers() {
        broker.env.process().resume();
        broker.env.process().set_wall_clock(0);
    }
    simulation.time().sleep(CALM_DOWN).await;
    cluster.check()?;
    let leader = last_leader(cluster, 0).await?;
    read_all(cluster, &leader).await?;
    finish(cluster, clients, &leader).await?;
    read_all(cluster, &leader).await?;
    if loses_power {
        cluster.lose_power()
    } else {
        cluster.crash(0)
    }
    simulation.time().sleep(Duration::from_secs(1)).await;
    let leader = last_leader(cluster, 1).await?;
    let records = read_all(cluster, &leader).await?;
    cluster.ask_ends_of_epochs(&leader).await;
    finish(cluster, clients, &leader).await?;
    cluster.check()?;
    let (acknowledged, reads) = cluster.oracle(|oracle| (oracle.acknowledged, oracle.reads));
    Ok(Summary { acknowledged, reads, records: records.len(), operations: simulation.operations() })
}

async fn last_leader(cluster: &Cluster, id: usize) -> Result<Rc<Broker>, String> {
    let leader = cluster.lead(id).await;
    cluster.check()?;
    Ok(leader.expect("checked"))
}

async fn read_all(cluster: &Cluster, leader: &Broker) -> Result<Vec<Record>, String> {
    let mut all = Vec::new();
    for isolation in [IsolationLevel::ReadCommitted, IsolationLevel::ReadUncommitted] {
        let records = cluster.read(leader, 0, isolation).await;
        all = records.map_err(|error| format!("the last leader can't read: {error}"))?;
        cluster.oracle(|oracle| oracle.check_order(&all));
        cluster.check()?;
    }
    Ok(all)
}

/// Every producer gets its acknowledgements, and the right ones for what it repeats; every transaction ends; every group
/// commits and finds what it has committed.
async fn finish(cluster: &Cluster, clients: &Clients, leader: &Broker) -> Result<(), String> {
    for producer in &clients.producers {
        for _ in 0..50 {
            producer.send(leader);
            wait_while(cluster, "a producer gets no answer", || producer.is_sending()).await?;
            if producer.is_done() {
                break;
            }
        }
        cluster.check()?;
        if !producer.is_done() {
            return Err("a producer can't finish".to_owned());
        }
    }
    for producer in &clients.transactional {
        wait_while(cluster, "a transaction does not end", || producer.is_busy()).await?;
    }
    for committer in &clients.committers {
        wait_while(cluster, "a group gets no answer", || committer.is_sending()).await?;
        for _ in 0..100 {
            committer.commit(leader, 100);
            wait_while(cluster, "a group gets no answer", || committer.is_sending()).await?;
            if committer.is_done() && committer.look(leader).await {
                break;
            }
            // The groups of the slot may not be loaded yet.
            cluster.simulation().time().sleep(Duration::from_millis(100)).await;
        }
        cluster.check()?;
        if !committer.is_done() {
            return Err("a group can't commit".to_owned());
        }
    }
    Ok(())
}

async fn wait_while(cluster: &Cluster, what: &str, holds: impl Fn() -> bool) -> Result<(), String> {
    let time = cluster.simulation().time();
    let since = time.now();
    while holds() {
        time.sleep(Duration::from_millis(5)).await;
        if Duration::from_nanos(time.now().0 - since.0) > ANSWER_LIMIT {
            return Err(what.to_owned());
        }
    }
    Ok(())
}
