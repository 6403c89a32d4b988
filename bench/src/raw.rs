//! The raw device: a plain loop of `O_DIRECT|O_DSYNC` writes, the yardstick for everything else.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use hdrhistogram::Histogram;

const ALIGNMENT: usize = 4096;

/// Whether a write lands behind the end of the file or on bytes that are there already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Target {
    Extending,
    Overwriting,
}

/// Write latencies in nanoseconds and the time of all of them.
#[derive(Debug)]
pub(crate) struct RawRun {
    pub(crate) latency_ns: Histogram<u64>,
    pub(crate) elapsed: Duration,
    pub(crate) bytes: u64,
}

impl RawRun {
    pub(crate) fn bytes_per_second(&self) -> f64 {
        self.bytes as f64 / self.elapsed.as_secs_f64()
    }
}

/// A file in `dir` that a loop of raw writes goes to; removed when dropped.
#[derive(Debug)]
pub(crate) struct RawFile {
    file: File,
    path: tempfile::TempPath,
    end: u64,
}

impl RawFile {
    pub(crate) fn create(dir: &Path) -> Result<Self> {
        let path = tempfile::Builder::new().prefix("raw-").tempfile_in(dir)?.into_temp_path();
        let file = OpenOptions::new()
            .write(true)
            .custom_flags(libc::O_DIRECT | libc::O_DSYNC)
            .open(&path)
            .with_context(|| format!("{} does not take O_DIRECT", dir.display()))?;
        Ok(Self { file, path, end: 0 })
    }

    /// `count` writes of `size` bytes, one after another. Overwriting starts at offset 0 of what was extended before.
    pub(crate) fn run(&mut self, target: Target, size: usize, count: usize) -> Result<RawRun> {
        let buffer = aligned(size);
        let content = aligned_part(&buffer, size);
        let mut latency_ns = Histogram::new(3)?;
        let begin = Instant::now();
        for index in 0..count {
            let offset = match target {
                Target::Extending => self.end,
                Target::Overwriting => (index * size) as u64,
            };
            let start = Instant::now();
            self.file.write_all_at(content, offset).with_context(|| format!("write to {}", self.path.display()))?;
            latency_ns.record(u64::try_from(start.elapsed().as_nanos())?)?;
            self.end = self.end.max(offset + size as u64);
        }
        Ok(RawRun { latency_ns, elapsed: begin.elapsed(), bytes: (count * size) as u64 })
    }

    /// So many writes of `size` bytes, each to the next of these files. Overwriting goes round in what the file has.
    pub(crate) fn write_in_turn(files: &mut [Self], target: Target, size: usize, count: usize) -> Result<Duration> {
        let buffer = aligned(size);
        let content = aligned_part(&buffer, size);
        let files_in_turn = files.len();
        let begin = Instant::now();
        for index in 0..count {
            let file = &mut files[index % files_in_turn];
            let offset = match target {
                Target::Extending => file.end,
                Target::Overwriting => ((index / files_in_turn * size) as u64) % file.end,
            };
            file.file.write_all_at(content, offset).with_context(|| format!("write to {}", file.path.display()))?;
            file.end = file.end.max(offset + size as u64);
        }
        Ok(begin.elapsed())
    }

    /// Reads of one block at the end of an empty file: how a fence is asked.
    pub(crate) fn ask(&self, count: usize) -> Result<Histogram<u64>> {
        let empty = tempfile::Builder::new().prefix("raw-").tempfile_in(self.path.parent().context("a parent")?)?;
        let file = OpenOptions::new().read(true).custom_flags(libc::O_DIRECT).open(empty.path())?;
        let mut buffer = aligned(ALIGNMENT);
        let start = buffer.as_ptr().align_offset(ALIGNMENT);
        let mut latency_ns = Histogram::new(3)?;
        for _ in 0..count {
            let begin = Instant::now();
            anyhow::ensure!(file.read_at(&mut buffer[start..][..ALIGNMENT], 0)? == 0, "the file is empty");
            latency_ns.record(u64::try_from(begin.elapsed().as_nanos())?)?;
        }
        Ok(latency_ns)
    }
}

/// At least `size` bytes behind some aligned position.
fn aligned(size: usize) -> Vec<u8> {
    vec![0x5a; size + ALIGNMENT]
}

fn aligned_part(buffer: &[u8], size: usize) -> &[u8] {
    &buffer[buffer.as_ptr().align_offset(ALIGNMENT)..][..size]
}

pub(crate) fn print(dir: &Path) -> Result<()> {
    for (size, count) in [(4096, 1000), (1 << 20, 200)] {
        let mut file = RawFile::create(dir)?;
        for target in [Target::Extending, Target::Overwriting] {
            let run = file.run(target, size, count)?;
            println!(
                "raw {target:?} {size} bytes: p50 {} us, p99 {} us, {:.1} MB/s",
                run.latency_ns.value_at_quantile(0.5) / 1000,
                run.latency_ns.value_at_quantile(0.99) / 1000,
                run.bytes_per_second() / 1e6,
            );
        }
    }
    Ok(())
}
