//! Resident memory of the real process for partitions that it leads and that nothing happens to.

use std::path::Path;
use std::thread;
use std::time::Duration;

use anyhow::Result;
use kaas_bench::broker::{Broker, BrokerOptions};
use kaas_bench::client::Client;

const PARTITIONS_PER_TOPIC: i32 = 500;
/// Until tasks of the takeovers are over.
const SETTLE: Duration = Duration::from_secs(5);

pub(super) fn print(dir: &Path, binary: &Path, partitions: i32) -> Result<()> {
    let topics = partitions / PARTITIONS_PER_TOPIC;
    let root = tempfile::tempdir_in(dir)?;
    // What clients may not have open is for partitions.
    let options = BrokerOptions::new(binary, root.path()).with(&["--set", "max.connections=1000"]);
    let broker = Broker::start(&options)?;
    broker.wait_ready()?;
    let mut client = Client::connect(broker.kafka())?;
    client.create_topic("first", 10, &[])?;
    thread::sleep(SETTLE);
    let before = broker.resident_bytes()?;
    for topic in 0..topics {
        client.create_topic(&format!("idle-{topic}"), PARTITIONS_PER_TOPIC, &[])?;
    }
    thread::sleep(SETTLE);
    let partitions = f64::from(topics * PARTITIONS_PER_TOPIC);
    let created = broker.resident_bytes()?.saturating_sub(before) as f64 / partitions / 1024.0;
    broker.stop()?;
    // What creation left behind is not counted.
    let broker = Broker::start(&options)?;
    broker.wait_ready()?;
    thread::sleep(SETTLE);
    let restarted = broker.resident_bytes()?.saturating_sub(before) as f64 / partitions / 1024.0;
    println!(
        "resident memory per led idle partition ({partitions} of them): {created:.1} KiB after creation, {restarted:.1} KiB after \
         a restart (target 16)"
    );
    Ok(())
}
