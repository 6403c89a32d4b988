//! A small file system in a file, mounted for one test: it can fill up, and hang. Needs root.

use std::fs;
use std::io::{ErrorKind, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use tempfile::TempDir;

/// Unmounted when it is dropped.
#[derive(Debug)]
pub struct SmallVolume {
    directory: TempDir,
}

impl SmallVolume {
    /// Makes and mounts it; its image lies below `directory`.
    ///
    /// # Errors
    /// Not root, or there are no loop devices.
    pub fn new(directory: &Path, mebibytes: u64) -> Result<Self> {
        let directory = tempfile::tempdir_in(directory)?;
        let image = directory.path().join("image");
        fs::File::create(&image)?.set_len(mebibytes << 20)?;
        let volume = Self { directory };
        fs::create_dir(volume.path())?;
        run(Command::new("mkfs.ext4").args(["-q", "-m", "0"]).arg(&image))?;
        run(Command::new("mount").args(["-o", "loop"]).arg(&image).arg(volume.path()))?;
        Ok(volume)
    }

    #[must_use]
    pub fn path(&self) -> PathBuf {
        self.directory.path().join("volume")
    }

    /// Writes a file beside everything else until not a single block is free, and says where it is.
    ///
    /// # Errors
    /// Something else than room is missing.
    pub fn fill(&self, name: &str) -> Result<PathBuf> {
        let path = self.path().join(name);
        let mut file = fs::File::create(&path)?;
        for chunk_bytes in [1 << 20, 64 << 10, 4 << 10, 1 << 10] {
            let chunk = vec![1; chunk_bytes];
            loop {
                match file.write_all(&chunk).and_then(|()| file.sync_all()) {
                    Ok(()) => {}
                    Err(error) if error.kind() == ErrorKind::StorageFull => break,
                    Err(error) => return Err(error.into()),
                }
            }
        }
        Ok(path)
    }

    /// From now on all that writes hangs, until what this returns is dropped. Reads go on.
    ///
    /// # Errors
    /// It can't be frozen.
    pub fn freeze(&self) -> Result<Frozen> {
        run(Command::new("fsfreeze").arg("--freeze").arg(self.path()))?;
        Ok(Frozen(self.path()))
    }

    /// From now on all that this process reads from the disk hangs, until what this returns is dropped. What it writes goes on, as far
    /// as nothing must be read for that.
    ///
    /// # Errors
    /// The kernel has no `blkio` or `io` control groups that throttle.
    pub fn hang_reads(&self, process: u32) -> Result<Hanging> {
        let device = fs::metadata(self.path())?.dev();
        let (major, minor) = ((device >> 8) & 0xfff, (device & 0xff) | ((device >> 12) & 0xfff_ff00));
        let root = Path::new("/sys/fs/cgroup");
        let has_own_hierarchy = root.join("blkio").is_dir();
        let root = if has_own_hierarchy { root.join("blkio") } else { root.to_owned() };
        let (file, none, all) = if has_own_hierarchy {
            ("blkio.throttle.read_bps_device", "1", "0")
        } else {
            fs::write(root.join("cgroup.subtree_control"), "+io").context("turn the io controller on")?;
            ("io.max", "rbps=1", "rbps=max")
        };
        let group = root.join(format!("kaas-{process}"));
        fs::create_dir(&group).with_context(|| format!("make {}", group.display()))?;
        let hanging = Hanging { limit: group.join(file), lifted: format!("{major}:{minor} {all}"), root, group };
        // A byte in a second: a block takes an hour.
        fs::write(&hanging.limit, format!("{major}:{minor} {none}")).context("limit what is read")?;
        fs::write(hanging.group.join("cgroup.procs"), process.to_string()).context("move the process")?;
        Ok(hanging)
    }
}

/// Reads of a process that hang. To be dropped before the process is waited for.
#[derive(Debug)]
pub struct Hanging {
    root: PathBuf,
    group: PathBuf,
    limit: PathBuf,
    lifted: String,
}

impl Drop for Hanging {
    fn drop(&mut self) {
        fs::write(&self.limit, &self.lifted).ok();
        let processes = fs::read_to_string(self.group.join("cgroup.procs")).unwrap_or_default();
        for process in processes.lines() {
            fs::write(self.root.join("cgroup.procs"), process).ok();
        }
        fs::remove_dir(&self.group).ok();
    }
}

impl Drop for SmallVolume {
    fn drop(&mut self) {
        // Lazily: the broker may still be on its way out.
        Command::new("umount").arg("-l").arg(self.path()).status().ok();
    }
}

/// To be dropped before any process that writes there is waited for: until then not even SIGKILL ends it.
#[derive(Debug)]
pub struct Frozen(PathBuf);

impl Drop for Frozen {
    fn drop(&mut self) {
        Command::new("fsfreeze").arg("--unfreeze").arg(&self.0).status().ok();
    }
}

fn run(command: &mut Command) -> Result<()> {
    let status = command.status().with_context(|| format!("start {command:?}"))?;
    ensure!(status.success(), "{command:?} (needs root): {status}");
    Ok(())
}
