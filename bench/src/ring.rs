//! The write path below the log: `UringEnv` against a plain loop of `O_DIRECT|O_DSYNC` writes, in one run.
//!
//! Rounds of both alternate, so that a noisy neighbour meets both.

use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, Result};
use bytes::Bytes;
use hdrhistogram::Histogram;
use kaas_core::env::executor::spawn_shard;
use kaas_core::env::uring::UringEnv;
use kaas_core::env::{AlignedBuffer, BLOCK_BYTES, Env, OpenMode, Volume, VolumeFile};
use kaas_proto::roots::Roots;

use crate::raw::{RawFile, Target};

const ROUNDS: usize = 10;
const WRITES_PER_ROUND: usize = 300;

/// Latencies in nanoseconds of what one side did in one round.
#[derive(Debug)]
struct Round {
    extending: Histogram<u64>,
    overwriting: Histogram<u64>,
    asking: Histogram<u64>,
}

pub(crate) fn print(dir: &Path) -> Result<()> {
    let (mut raw, mut ring) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        let mut file = RawFile::create(dir)?;
        let extending = file.run(Target::Extending, BLOCK_BYTES, WRITES_PER_ROUND)?.latency_ns;
        let overwriting = file.run(Target::Overwriting, BLOCK_BYTES, WRITES_PER_ROUND)?.latency_ns;
        raw.push(Round { extending, overwriting, asking: file.ask(WRITES_PER_ROUND)? });
        ring.push(round_on_ring(dir)?);
    }
    for (name, pick) in [
        ("extending write", (|round: &Round| &round.extending) as fn(&Round) -> &Histogram<u64>),
        ("overwriting write", |round| &round.overwriting),
        ("read at the end", |round| &round.asking),
    ] {
        let quantiles = |rounds: &[Round]| -> Result<(f64, f64)> {
            let mut all = Histogram::<u64>::new(3)?;
            for round in rounds {
                all.add(pick(round))?;
            }
            Ok((all.value_at_quantile(0.5) as f64 / 1000.0, all.value_at_quantile(0.99) as f64 / 1000.0))
        };
        let ((raw_p50, raw_p99), (ring_p50, ring_p99)) = (quantiles(&raw)?, quantiles(&ring)?);
        println!(
            "{name:18} raw p50 {raw_p50:6.1} us p99 {raw_p99:7.1} us | ring p50 {ring_p50:6.1} us p99 {ring_p99:7.1} us | \
             ratio p50 {:.2} p99 {:.2}",
            ring_p50 / raw_p50,
            ring_p99 / raw_p99,
        );
    }
    Ok(())
}

fn round_on_ring(dir: &Path) -> Result<Round> {
    let directory = tempfile::tempdir_in(dir)?;
    let root: PathBuf = directory.path().to_owned();
    let cpu = 0;
    let shard = spawn_shard("bench", Some(cpu), move || async move {
        let env = UringEnv::start(&Roots::from(&root))?;
        measure(&env).await
    });
    let joined = shard.map_err(|error| anyhow::anyhow!("{error}"))?.join();
    joined.map_err(|error| anyhow::anyhow!("{error}"))?.context("measuring the ring")
}

async fn measure(env: &UringEnv) -> Result<Round> {
    let file = env.volume().open(Path::new("segment"), OpenMode::CreateNew).await?;
    let fence = env.volume().open(Path::new("fence"), OpenMode::CreateNew).await?;
    let mut block = AlignedBuffer::zeroed(BLOCK_BYTES);
    block.fill(0x5a);
    let block: Bytes = block.freeze();
    let mut histograms = Vec::new();
    for _ in [Target::Extending, Target::Overwriting] {
        let mut latency_ns = Histogram::new(3)?;
        for index in 0..WRITES_PER_ROUND {
            let start = Instant::now();
            file.write_at((index * BLOCK_BYTES) as u64, block.clone()).await?;
            latency_ns.record(u64::try_from(start.elapsed().as_nanos())?)?;
        }
        histograms.push(latency_ns);
    }
    let mut asking = Histogram::new(3)?;
    for _ in 0..WRITES_PER_ROUND {
        let start = Instant::now();
        anyhow::ensure!(fence.read_at(0, BLOCK_BYTES).await?.is_empty(), "the fence is empty");
        asking.record(u64::try_from(start.elapsed().as_nanos())?)?;
    }
    let overwriting = histograms.pop().context("two histograms")?;
    let extending = histograms.pop().context("two histograms")?;
    Ok(Round { extending, overwriting, asking })
}
