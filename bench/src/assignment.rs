//! How long a controller takes for the next assignment: computing it, and writing it durably.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::Result;
use kaas_coord::cluster::assignment_file::AssignmentFile;
use kaas_coord::cluster::plan::{Inputs, ProvisionedTopic, TakenEpochs, next_assignment};
use kaas_proto::format::assignment::{AdvertisedListener, Assignment, BrokerHealth, RegisteredBroker};
use kaas_proto::layout::CLUSTER_DIRECTORY;
use kaas_proto::roots::Roots;
use kaas_proto::types::{BrokerId, ControllerEpoch, Incarnation, TopicId};

const BROKERS: i32 = 20;
const ROUNDS: u32 = 5;
const SIZES: [i32; 5] = [1_250, 2_500, 5_000, 10_000, 20_000];

/// Prints a row for each number of partitions, in topics of 10: a broker is lost, and comes back.
pub(crate) fn print(directory: &Path) -> Result<()> {
    let root = tempfile::tempdir_in(directory)?;
    fs::create_dir(root.path().join(CLUSTER_DIRECTORY))?;
    let file = AssignmentFile::new(&Roots::from(root.path()));
    println!("{BROKERS} brokers, one lost and one come back; target: 10000 partitions in 1 s, not faster than linear");
    println!("{:>10} {:>12} {:>12} {:>12} {:>16}", "partitions", "compute", "write", "bytes", "µs per partition");
    for partitions in SIZES {
        let (mut compute, mut write, mut bytes) = (Duration::ZERO, Duration::ZERO, 0);
        let topics: Vec<ProvisionedTopic> = (0..partitions / 10).map(topic).collect();
        let mut former = next(None, &topics, BROKERS);
        for round in 0..ROUNDS * 2 {
            let began = Instant::now();
            let newer = next(Some(&former), &topics, BROKERS - i32::from(round % 2 == 0));
            compute += began.elapsed();
            let began = Instant::now();
            file.stage(&newer, Some(&former))?.publish()?;
            write += began.elapsed();
            bytes = newer.encode().len();
            former = newer;
        }
        let (compute, write) = (compute / (ROUNDS * 2), write / (ROUNDS * 2));
        let each = (compute + write).as_secs_f64() * 1e6 / f64::from(partitions);
        println!("{partitions:>10} {compute:>12.1?} {write:>12.1?} {bytes:>12} {each:>16.2}");
    }
    Ok(())
}

fn topic(number: i32) -> ProvisionedTopic {
    let mut id = [7; 16];
    id[..4].copy_from_slice(&number.to_be_bytes());
    ProvisionedTopic { name: format!("topic-{number:06}").into(), id: TopicId(id), partitions: 10 }
}

/// The assignment after `former`, with the first `alive` of all brokers.
fn next(former: Option<&Assignment>, topics: &[ProvisionedTopic], alive: i32) -> Assignment {
    let candidates: BTreeSet<BrokerId> = (0..alive).map(BrokerId).collect();
    let broker = |id| RegisteredBroker {
        id: BrokerId(id),
        incarnation: Incarnation(1),
        rack: None,
        listeners: vec![AdvertisedListener {
            name: "PLAINTEXT".into(),
            host: format!("kaas-{id}.kaas.default.svc").into(),
            port: 9092,
            protocol: "PLAINTEXT".into(),
        }],
        health: if id < alive { BrokerHealth::Alive } else { BrokerHealth::Dead },
    };
    let inputs = Inputs {
        controller: BrokerId(0),
        controller_heartbeat: Some("kaas-0.kaas.default.svc:9094".into()),
        controller_epoch: ControllerEpoch(1),
        brokers: (0..BROKERS).map(broker).collect(),
        candidates: &candidates,
        topics,
        taken: &TakenEpochs::default(),
    };
    next_assignment(former, inputs)
}
