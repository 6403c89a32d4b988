//! Appends to one partition and to a thousand: the same load, in group commits of the same size. Beside it, raw writes of that size to one
//! file and to a thousand: what of the difference is the file system's.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use super::shard::{BenchShard, make_directories, on_shard};
use crate::raw::RawFile;

const PARTITIONS: i32 = 1000;
const COMMIT_BYTES: [usize; 3] = [4 << 10, 64 << 10, 512 << 10];
const ROUNDS: usize = 7;
/// Appended per round, to one partition or over all.
const ROUND_BYTES: [usize; 3] = [4 << 20, 32 << 20, 96 << 20];

pub(super) fn print(dir: &Path) -> Result<()> {
    println!(
        "appends, one commit at a time     1 partition   {PARTITIONS} partitions   ratio (target 0.90)   raw ratio   kaas / raw"
    );
    for (commit_bytes, round_bytes) in COMMIT_BYTES.into_iter().zip(ROUND_BYTES) {
        let root = tempfile::tempdir_in(dir)?;
        make_directories(root.path(), PARTITIONS + 1)?;
        let raw_root = root.path().to_owned();
        let [one, many, raw_one, raw_many] = on_shard(root.path(), move |shard| async move {
            shard.lead_all(PARTITIONS + 1, 1).await?;
            // The first commit of a partition makes its segment.
            for partition in 0..=PARTITIONS {
                shard.append(partition, shard.batch(1000)).await?;
            }
            let mut times = [const { Vec::new() }; 4];
            let mut raw_one = [RawFile::create(&raw_root)?];
            let mut raw_many = (0..PARTITIONS).map(|_| RawFile::create(&raw_root)).collect::<Result<Vec<_>>>()?;
            let mut next = 0;
            for _ in 0..ROUNDS {
                let count = round_bytes / commit_bytes;
                times[0].push(round(&shard, commit_bytes, count, || PARTITIONS).await?);
                let in_turn = || {
                    next = (next + 1) % PARTITIONS;
                    next
                };
                times[1].push(round(&shard, commit_bytes, count, in_turn).await?);
                // On the shard's own thread, which has nothing to do meanwhile.
                times[2].push(RawFile::append_in_turn(&mut raw_one, commit_bytes, count)?);
                times[3].push(RawFile::append_in_turn(&mut raw_many, commit_bytes, count)?);
            }
            Ok(times)
        })?;
        let rate = |times: &[Duration]| -> Result<f64> {
            let mut times: Vec<_> = times.iter().map(Duration::as_secs_f64).collect();
            times.sort_by(f64::total_cmp);
            Ok(round_bytes as f64 / times.get(times.len() / 2).context("rounds")? / 1e6)
        };
        let (one, many) = (rate(&one)?, rate(&many)?);
        let (ratio, raw_ratio) = (many / one, rate(&raw_many)? / rate(&raw_one)?);
        println!(
            "  {:>4} KiB{one:>27.1} MB/s{many:>14.1} MB/s{ratio:>15.2}{raw_ratio:>18.2}{:>13.2}",
            commit_bytes >> 10,
            ratio / raw_ratio,
        );
    }
    Ok(())
}

/// Appends so often, each time after the last was acknowledged; returns the time of all.
async fn round(
    shard: &BenchShard,
    commit_bytes: usize,
    count: usize,
    mut partition: impl FnMut() -> i32,
) -> Result<Duration> {
    let batch = shard.batch(commit_bytes - 512);
    let begin = Instant::now();
    for _ in 0..count {
        shard.append(partition(), batch.clone()).await?;
    }
    Ok(begin.elapsed())
}
