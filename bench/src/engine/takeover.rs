//! Takeovers of many small partitions, by a shard for each processor as in the broker, beside a plain loop that does the same durable
//! operations at the same concurrency.

use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use kaas_core::env::probe::allowed_cpus;

use super::plain_takeover::{self, THREADS_PER_SHARD};
use super::shard::{make_directories, on_shard};

const PARTITIONS: i32 = 1000;
/// Of both in turn, so that a noisy machine disturbs both alike.
const ROUNDS: i32 = 5;

pub(super) fn print(dir: &Path) -> Result<()> {
    let (ours, plain) = (tempfile::tempdir_in(dir)?, tempfile::tempdir_in(dir)?);
    make_directories(ours.path(), PARTITIONS)?;
    on_shard(ours.path(), |shard| async move {
        shard.lead_all(0..PARTITIONS, 1).await?;
        for partition in 0..PARTITIONS {
            shard.append(partition, shard.batch(1000)).await?;
        }
        Ok(())
    })?;
    plain_takeover::copy(ours.path(), plain.path(), PARTITIONS)?;
    let shards = i32::try_from(allowed_cpus().len())?;
    println!(
        "takeover of {PARTITIONS} partitions, {shards} x {THREADS_PER_SHARD} at a time   kaas s   plain s   ratio"
    );
    let mut ratios = Vec::new();
    for round in 0..ROUNDS {
        let epoch = round + 2;
        let kaas = take_over(ours.path(), shards, epoch)?;
        let loops = plain_takeover::run(plain.path(), shards, PARTITIONS, epoch)?;
        let ratio = kaas.as_secs_f64() / loops.as_secs_f64();
        println!("  round {round}{:>41.2}{:>10.2}{ratio:>8.2}", kaas.as_secs_f64(), loops.as_secs_f64());
        ratios.push(ratio);
    }
    ratios.sort_by(f64::total_cmp);
    println!("  median ratio {:.2} (target 2.00)", ratios[ratios.len() / 2]);
    Ok(())
}

/// The time of the slowest shard; each has its share of the partitions.
fn take_over(root: &Path, shards: i32, epoch: i32) -> Result<Duration> {
    let share = |shard: i32| PARTITIONS * shard / shards..PARTITIONS * (shard + 1) / shards;
    let lead = |partitions| {
        on_shard(root, move |shard| async move {
            let begin = Instant::now();
            shard.lead_all(partitions, epoch).await?;
            Ok(begin.elapsed())
        })
    };
    let times = thread::scope(|scope| {
        let threads: Vec<_> = (0..shards).map(|shard| scope.spawn(move || lead(share(shard)))).collect();
        let join = |thread: thread::ScopedJoinHandle<'_, _>| thread.join().expect("a takeover does not panic");
        threads.into_iter().map(join).collect::<Result<Vec<_>>>()
    })?;
    times.into_iter().max().context("a shard")
}
