//! How every scenario ends: calm, a last leader, one more crash, and another last leader. Both show all that was promised.

use std::rc::Rc;
use std::time::Duration;

use kaas_core::env::sim::Faults;

use super::broker::Broker;
use super::cluster::Cluster;
use super::oracle::Record;
use super::producer::Producer;
use super::run::Summary;

/// Longer than any late write, any attribute cache, and the time that a revoked fence stays.
const CALM_DOWN: Duration = Duration::from_secs(150);
/// How long an answer may take when nothing is wrong any more.
const ANSWER_LIMIT: Duration = Duration::from_secs(60);

/// # Errors
/// What did not hold.
pub async fn end(cluster: &Cluster, producers: &[Producer], loses_power: bool) -> Result<Summary, String> {
    let simulation = cluster.simulation();
    simulation.note("the end begins");
    simulation.set_faults(Faults::NONE);
    simulation.set_capacity(None);
    for broker in cluster.brokers() {
        broker.env.process().resume();
        broker.env.process().set_wall_clock(0);
    }
    simulation.time().sleep(CALM_DOWN).await;
    cluster.check()?;
    let leader = last_leader(cluster, 0).await?;
    read_all(cluster, &leader).await?;
    finish(cluster, producers, &leader).await?;
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
    finish(cluster, producers, &leader).await?;
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
    let records = cluster.read(leader, 0).await.map_err(|error| format!("the last leader can't read: {error}"))?;
    cluster.oracle(|oracle| oracle.check_order(&records));
    cluster.check()?;
    Ok(records)
}

/// Every producer gets its acknowledgements, and the right ones for what it repeats.
async fn finish(cluster: &Cluster, producers: &[Producer], leader: &Broker) -> Result<(), String> {
    let time = cluster.simulation().time();
    for producer in producers {
        for _ in 0..50 {
            producer.send(leader);
            let since = time.now();
            while producer.is_sending() {
                time.sleep(Duration::from_millis(5)).await;
                if Duration::from_nanos(time.now().0 - since.0) > ANSWER_LIMIT {
                    return Err("a producer gets no answer".to_owned());
                }
            }
            if producer.is_done() {
                break;
            }
        }
        cluster.check()?;
        if !producer.is_done() {
            return Err("a producer can't finish".to_owned());
        }
    }
    Ok(())
}
