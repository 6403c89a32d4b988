//! Takeovers of many small partitions, beside a plain loop that does the same durable operations at the same concurrency.

use std::path::Path;
use std::time::Instant;

use anyhow::Result;

use super::plain_takeover;
use super::shard::{make_directories, on_shard};

const PARTITIONS: i32 = 1000;
/// Of both in turn, so that a noisy machine disturbs both alike.
const ROUNDS: i32 = 5;

pub(super) fn print(dir: &Path) -> Result<()> {
    let (ours, plain) = (tempfile::tempdir_in(dir)?, tempfile::tempdir_in(dir)?);
    make_directories(ours.path(), PARTITIONS)?;
    on_shard(ours.path(), |shard| async move {
        shard.lead_all(PARTITIONS, 1).await?;
        for partition in 0..PARTITIONS {
            shard.append(partition, shard.batch(1000)).await?;
        }
        Ok(())
    })?;
    plain_takeover::copy(ours.path(), plain.path(), PARTITIONS)?;
    println!("takeover of {PARTITIONS} partitions, {} at a time   kaas s   plain s   ratio", plain_takeover::THREADS);
    let mut ratios = Vec::new();
    for round in 0..ROUNDS {
        let epoch = round + 2;
        let kaas = on_shard(ours.path(), move |shard| async move {
            let begin = Instant::now();
            shard.lead_all(PARTITIONS, epoch).await?;
            Ok(begin.elapsed())
        })?;
        let loops = plain_takeover::run(plain.path(), PARTITIONS, epoch)?;
        let ratio = kaas.as_secs_f64() / loops.as_secs_f64();
        println!("  round {round}{:>41.2}{:>10.2}{ratio:>8.2}", kaas.as_secs_f64(), loops.as_secs_f64());
        ratios.push(ratio);
    }
    ratios.sort_by(f64::total_cmp);
    println!("  median ratio {:.2} (target 2.00)", ratios[ratios.len() / 2]);
    Ok(())
}
