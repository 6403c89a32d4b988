//! Several builds of the broker in turn, round by round, each beside raw writes of that moment: what one build is worth beside
//! another on a machine whose speed changes by the minute.

use std::path::{Path, PathBuf};

use anyhow::Result;
use kaas_bench::broker::{Broker, BrokerOptions};
use tempfile::TempDir;

use crate::first_light::{BATCH_RECORDS, LatencyRound, ThroughputRound, batch};
use crate::raw::RawFile;

/// Connections of one round: which shard gets one is up to the kernel.
const CONNECTIONS: usize = 4;
const REQUESTS_PER_CONNECTION: usize = 100;

/// One build, its broker, and what was measured of it as ratios to raw writes.
struct Build {
    name: String,
    broker: Broker,
    _data_dir: TempDir,
    latencies: Vec<f64>,
    throughputs: Vec<f64>,
}

/// Runs the rounds and prints each build's ratios: smallest, quartiles, largest.
pub(crate) fn print(dir: &Path, binaries: &[PathBuf], rounds: usize) -> Result<()> {
    let mut builds = binaries.iter().map(|binary| start(dir, binary)).collect::<Result<Vec<_>>>()?;
    let (record, records) = (batch(1)?, batch(BATCH_RECORDS)?);
    let mut raw = RawFile::create(dir)?;
    for _ in 0..rounds {
        for build in &mut builds {
            for _ in 0..CONNECTIONS {
                let round = LatencyRound::run(&build.broker, &mut raw, &record, REQUESTS_PER_CONNECTION)?;
                build.latencies.push(round.ratio());
            }
            ThroughputRound::prepare(&build.broker)?;
            build.throughputs.push(ThroughputRound::run(dir, &build.broker, &records)?.ratio());
            ThroughputRound::clear(&build.broker)?;
        }
    }
    for (what, of) in [("low load p50", 0), ("sustained", 1)] {
        println!("{what} / raw extending: smallest, quartiles, largest of {rounds} rounds");
        for build in &mut builds {
            let ratios = if of == 0 { &mut build.latencies } else { &mut build.throughputs };
            ratios.sort_by(f64::total_cmp);
            let at = |quarter: usize| ratios[quarter * (ratios.len() - 1) / 4];
            println!("  {:<24}{:>6.2}{:>8.2}{:>6.2}{:>6.2}{:>8.2}", build.name, at(0), at(1), at(2), at(3), at(4));
        }
    }
    Ok(())
}

fn start(dir: &Path, binary: &Path) -> Result<Build> {
    let data_dir = tempfile::Builder::new().prefix("bench-").tempdir_in(dir)?;
    let broker = Broker::start(&BrokerOptions::new(binary, data_dir.path()))?;
    broker.wait_ready()?;
    LatencyRound::prepare(&broker)?;
    let name = binary.file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned());
    Ok(Build { name, broker, _data_dir: data_dir, latencies: Vec::new(), throughputs: Vec::new() })
}
