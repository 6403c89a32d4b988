//! The durable operations of a takeover, in a plain loop: what a takeover costs at least.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicI32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use super::shard::directory;

/// The concurrency of a shard's takeovers.
pub(super) const THREADS_PER_SHARD: usize = 16;

const BLOCK_BYTES: usize = 4096;

/// Takes partitions `0..count` over at an epoch, on as many threads as so many shards have takeovers under way; returns the time of all.
pub(super) fn run(root: &Path, shards: i32, count: i32, epoch: i32) -> Result<Duration> {
    let next = AtomicI32::new(0);
    let begin = Instant::now();
    thread::scope(|scope| {
        let work = || -> Result<()> {
            loop {
                let partition = next.fetch_add(1, Ordering::Relaxed);
                if partition >= count {
                    return Ok(());
                }
                take_over(&root.join(directory(partition)), epoch)?;
            }
        };
        let threads: Vec<_> = (0..THREADS_PER_SHARD * usize::try_from(shards)?).map(|_| scope.spawn(work)).collect();
        threads.into_iter().try_for_each(|thread| thread.join().expect("the loop does not panic"))
    })?;
    Ok(begin.elapsed())
}

/// Create, list, revoke, list again, read, write the manifest, ask.
fn take_over(directory: &Path, epoch: i32) -> Result<()> {
    let fence = directory.join(format!("{epoch:08x}.fence"));
    let mut options = OpenOptions::new();
    options.read(true).write(true).create_new(true).custom_flags(libc::O_DIRECT | libc::O_DSYNC);
    let fence = options.open(fence)?;
    let names = list(directory)?;
    let own = format!("{epoch:08x}");
    for lower in names.iter().filter(|name| name.ends_with(".fence") && !name.starts_with(&own)) {
        let file = OpenOptions::new().write(true).custom_flags(libc::O_SYNC).open(directory.join(lower))?;
        file.write_all_at(b"{\"epoch\":1,\"broker\":1,\"timeMs\":1735689600000}\n", 0)?;
    }
    let names = list(directory)?;
    let newest = |end: &str| names.iter().filter(|name| name.ends_with(end)).max().cloned();
    let manifest = fs::read(directory.join(newest(".manifest.json").context("a manifest")?))?;
    let segment = OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_DIRECT)
        .open(directory.join(newest(".log").context("a segment")?))?;
    let mut buffer = vec![0; 3 * BLOCK_BYTES];
    let start = buffer.as_ptr().align_offset(BLOCK_BYTES);
    ensure!(segment.read_at(&mut buffer[start..][..BLOCK_BYTES], 0)? > 0, "the segment has a record");
    let temporary = directory.join(format!("{own}.manifest.json.tmp"));
    let mut file = File::create(&temporary)?;
    file.write_all(&manifest)?;
    file.sync_all()?;
    drop(file);
    fs::rename(&temporary, directory.join(format!("{own}.manifest.json")))?;
    File::open(directory)?.sync_all()?;
    ensure!(fence.read_at(&mut buffer[start..][..BLOCK_BYTES], 0)? == 0, "the fence is empty");
    Ok(())
}

fn list(directory: &Path) -> io::Result<Vec<String>> {
    fs::read_dir(directory)?.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned())).collect()
}

/// A copy of the directories, so that the loop finds what the shard finds.
pub(super) fn copy(from: &Path, to: &Path, partitions: i32) -> Result<()> {
    for partition in 0..partitions {
        let (from, to): (PathBuf, PathBuf) = (from.join(directory(partition)), to.join(directory(partition)));
        fs::create_dir_all(&to)?;
        for name in list(&from)? {
            fs::copy(from.join(&name), to.join(&name))?;
        }
    }
    Ok(())
}
