//! Appends to one partition and to a thousand: the same load, in group commits of the same size. Beside it, raw writes of that size to one
//! file and to a thousand: what of the difference is the file system's. Small commits mostly stay inside the file, so the raw ones beside
//! them do, too. (An ext4 without a journal then writes an inode whenever its time of change is another: for each write if there are a
//! thousand files, 250 times a second if there is one.)

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use super::shard::{BenchShard, make_directories, on_shard};
use crate::raw::{RawFile, Target};

const PARTITIONS: i32 = 1000;
const COMMIT_BYTES: [usize; 3] = [4 << 10, 64 << 10, 512 << 10];
/// The raw writes, in the same order.
const RAW_TARGETS: [Target; 3] = [Target::Overwriting, Target::Extending, Target::Extending];
/// What files have that are overwritten.
const OVERWRITTEN_BYTES: usize = 64 << 10;
const ROUNDS: usize = 7;
/// Appended per round, to one partition or over all: so much that a partition makes its file longer more than once, if commits are small.
const ROUND_BYTES: [usize; 3] = [16 << 20, 32 << 20, 96 << 20];

pub(super) fn print(dir: &Path) -> Result<()> {
    println!(
        "appends, one commit at a time     1 partition   {PARTITIONS} partitions   ratio (target 0.90)   raw ratio   kaas / raw"
    );
    for ((commit_bytes, round_bytes), raw_target) in COMMIT_BYTES.into_iter().zip(ROUND_BYTES).zip(RAW_TARGETS) {
        let root = tempfile::tempdir_in(dir)?;
        make_directories(root.path(), PARTITIONS + 1)?;
        let raw_root = root.path().to_owned();
        let [one, many, raw_one, raw_many] = on_shard(root.path(), move |shard| async move {
            shard.lead_all(0..PARTITIONS + 1, 1).await?;
            // The first commit of a partition makes its segment.
            for partition in 0..=PARTITIONS {
                shard.append(partition, shard.batch(1000)).await?;
            }
            let mut times = [const { Vec::new() }; 4];
            let create = || -> Result<RawFile> {
                let mut file = RawFile::create(&raw_root)?;
                file.run(Target::Extending, OVERWRITTEN_BYTES, 1)?;
                Ok(file)
            };
            let mut raw_one = [create()?];
            let mut raw_many = (0..PARTITIONS).map(|_| create()).collect::<Result<Vec<_>>>()?;
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
                times[2].push(RawFile::write_in_turn(&mut raw_one, raw_target, commit_bytes, count)?);
                times[3].push(RawFile::write_in_turn(&mut raw_many, raw_target, commit_bytes, count)?);
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
