//! Produce latency while another partition of the same shard is compacted, beside the same without: both in turn, in one run. Compaction
//! runs in what the shard's other work leaves; what it takes from the device all the same, a throttle bounds.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use kaas_core::env::Env;
use kaas_core::shard::ShardConfig;
use kaas_proto::record::BatchBuilder;

use super::shard::{BenchShard, make_directories, on_shard_with};

/// The partition whose latency is measured, and the one that is compacted.
const MEASURED: i32 = 0;
const COMPACTED: i32 = 1;

const COMMIT_BYTES: usize = 4 << 10;
const ROUNDS: usize = 3;
/// What a pass has to read, twice.
const DIRTY_BYTES: usize = 256 << 20;
const BATCH_RECORDS: usize = 64;
const RECORD_BYTES: usize = 1 << 10;
const KEYS: usize = 20_000;
/// Without compaction as many samples are taken as with, and at least so many.
const LEAST_SAMPLES: usize = 500;
/// Compaction does not start, or does not end.
const PATIENCE: Duration = Duration::from_secs(300);

const READ_BYTES: &str = "kaas_compaction_read_bytes_total";
const PASSES: &str = "kaas_compaction_passes_total";

/// What compaction may read and write per second.
const RATES: [(&str, f64); 2] = [("no limit", f64::MAX), ("50 MB/s", 50e6)];

#[derive(Default)]
struct Samples {
    without: Vec<Duration>,
    with: Vec<Duration>,
    compacted_bytes: f64,
    compacting: Duration,
}

pub(super) fn print(dir: &Path) -> Result<()> {
    println!(
        "produce of 4 KiB, acks=all, one at a time: alone, and beside the compaction of another partition of the shard"
    );
    for (name, bytes_per_second) in RATES {
        let root = tempfile::tempdir_in(dir)?;
        make_directories(root.path(), 2)?;
        let configure = move |config: &mut ShardConfig| {
            config.compaction.backoff = Duration::from_millis(100);
            config.compaction.bytes_per_second = bytes_per_second;
        };
        let mut samples = on_shard_with(root.path(), configure, |shard| async move { measure(&shard).await })?;
        samples.without.sort_unstable();
        samples.with.sort_unstable();
        println!(
            "compaction with {name}: {:.0} MB read in {:.1} s, {} and {} samples",
            samples.compacted_bytes / 1e6,
            samples.compacting.as_secs_f64(),
            samples.without.len(),
            samples.with.len()
        );
        for (percent, of_thousand) in [("p50", 500), ("p99", 990)] {
            let at = |sorted: &[Duration]| -> Result<f64> {
                let index = (sorted.len() * of_thousand / 1000).min(sorted.len().saturating_sub(1));
                Ok(sorted.get(index).context("no sample")?.as_secs_f64() * 1e6)
            };
            let (without, with) = (at(&samples.without)?, at(&samples.with)?);
            println!("  {percent}{without:>14.0} us alone{with:>14.0} us beside{:>12.2} x", with / without);
        }
    }
    Ok(())
}

async fn measure(shard: &BenchShard) -> Result<Samples> {
    let config = |policy| {
        let settings =
            [("cleanup.policy", policy), ("segment.bytes", "33554432"), ("min.cleanable.dirty.ratio", "0.01")];
        BenchShard::config(&settings)
    };
    let (deleted, compacted) = (config("delete")?, config("compact")?);
    shard.lead(MEASURED, 1, &deleted).await?;
    shard.lead(COMPACTED, 1, &deleted).await?;
    let batch = shard.batch(COMMIT_BYTES - 512);
    let mut samples = Samples::default();
    let mut record = 0;
    for _ in 0..ROUNDS {
        for _ in 0..DIRTY_BYTES / (BATCH_RECORDS * RECORD_BYTES) {
            shard.append(COMPACTED, keyed(shard, &mut record)).await?;
        }
        let (read, passes) = (shard.metric(READ_BYTES)?, shard.metric(PASSES)?);
        shard.lead(COMPACTED, 1, &compacted).await?;
        let told = Instant::now();
        while shard.metric(READ_BYTES)? <= read {
            ensure!(told.elapsed() < PATIENCE, "compaction does not start");
            shard.env.sleep(Duration::from_millis(1)).await;
        }
        let (began, before) = (Instant::now(), samples.with.len());
        while shard.metric(PASSES)? <= passes {
            ensure!(began.elapsed() < PATIENCE, "compaction does not come to its end");
            samples.with.push(append(shard, &batch).await?);
        }
        samples.compacting += began.elapsed();
        samples.compacted_bytes += shard.metric(READ_BYTES)? - read;
        shard.lead(COMPACTED, 1, &deleted).await?;
        for _ in 0..LEAST_SAMPLES.max(samples.with.len() - before) {
            samples.without.push(append(shard, &batch).await?);
        }
    }
    Ok(samples)
}

async fn append(shard: &BenchShard, batch: &Bytes) -> Result<Duration> {
    let begin = Instant::now();
    shard.append(MEASURED, batch.clone()).await?;
    Ok(begin.elapsed())
}

/// A batch of the next records; their keys come again and again.
fn keyed(shard: &BenchShard, record: &mut usize) -> Bytes {
    let (time, value) = (shard.env.wall_clock(), [0x6b; RECORD_BYTES]);
    let mut builder = BatchBuilder::new();
    for _ in 0..BATCH_RECORDS {
        *record += 1;
        builder.push(time, Some(format!("key-{}", *record % KEYS).as_bytes()), Some(&value), &[]);
    }
    builder.build()
}
