//! A small file system in a file, mounted for one test: it can fill up, and hang. Needs root.

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
        std::fs::File::create(&image)?.set_len(mebibytes << 20)?;
        let volume = Self { directory };
        std::fs::create_dir(volume.path())?;
        run(Command::new("mkfs.ext4").args(["-q", "-m", "0"]).arg(&image))?;
        run(Command::new("mount").args(["-o", "loop"]).arg(&image).arg(volume.path()))?;
        Ok(volume)
    }

    #[must_use]
    pub fn path(&self) -> PathBuf {
        self.directory.path().join("volume")
    }

    /// From now on all that writes hangs, until what this returns is dropped. Reads go on.
    ///
    /// # Errors
    /// It can't be frozen.
    pub fn freeze(&self) -> Result<Frozen> {
        run(Command::new("fsfreeze").arg("--freeze").arg(self.path()))?;
        Ok(Frozen(self.path()))
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
