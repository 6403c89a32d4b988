//! What recovery reads of a segment of 1 GiB: after a crash, and after a clean stop.

use std::collections::VecDeque;
use std::path::Path;
use std::time::Instant;

use anyhow::{Context, Result};

use super::shard::{make_directories, on_shard};

const LOG_BYTES: usize = (1 << 30) - (32 << 20);
const BATCH_BYTES: usize = 1_000_000;
/// Batches on their way: a producer that does not wait.
const IN_FLIGHT: usize = 8;
/// The bound of the design: 64 MiB and a block.
const TARGET_BYTES: f64 = ((64 << 20) + 4096) as f64;

pub(super) fn print(dir: &Path) -> Result<()> {
    let root = tempfile::tempdir_in(dir)?;
    make_directories(root.path(), 1)?;
    on_shard(root.path(), |shard| async move {
        shard.lead_all(0..1, 1).await?;
        let batch = shard.batch(BATCH_BYTES);
        let mut answers = VecDeque::new();
        for _ in 0..LOG_BYTES / BATCH_BYTES {
            answers.push_back(shard.begin_append(0, batch.clone()));
            if answers.len() == IN_FLIGHT {
                answers.pop_front().context("an append under way")?.await?.pop().context("a row")??;
            }
        }
        for answer in answers {
            answer.await?.pop().context("a row")??;
        }
        Ok(())
    })?;
    for (epoch, what) in [(2, "after a crash"), (3, "after a crash that lost nothing new")] {
        let (bytes, seconds) = take_over(root.path(), epoch, false)?;
        println!(
            "recovery of a segment of {} MiB {what}: {:.1} MiB read in {seconds:.2} s (target {:.0} MiB)",
            LOG_BYTES >> 20,
            bytes / f64::from(1 << 20),
            TARGET_BYTES / f64::from(1 << 20)
        );
    }
    take_over(root.path(), 4, true)?;
    let (bytes, seconds) = take_over(root.path(), 5, false)?;
    println!("recovery after a clean stop: {bytes:.0} bytes read in {seconds:.2} s (target 4096)");
    Ok(())
}

/// Bytes that recovery read, and how long the takeover took. A clean one appends something and stops in good order.
fn take_over(root: &Path, epoch: i32, clean: bool) -> Result<(f64, f64)> {
    on_shard(root, move |shard| async move {
        let begin = Instant::now();
        shard.lead_all(0..1, epoch).await?;
        let taken = begin.elapsed().as_secs_f64();
        if clean {
            shard.append(0, shard.batch(BATCH_BYTES)).await?;
            shard.shut_down().await?;
        }
        Ok((shard.metric("kaas_partition_recovered_bytes_total")?, taken))
    })
}
