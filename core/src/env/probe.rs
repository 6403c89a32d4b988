//! What a machine must offer, checked before a port opens. Runs on the main thread at start-up, where blocking is fine.

#![expect(unsafe_code, reason = "system calls that have no safe wrapper here")]
#![expect(clippy::disallowed_methods, reason = "runs before any shard does")]

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::fs::{self, File, OpenOptions};
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::{io, mem, ptr};

use io_uring::IoUring;
use thiserror::Error;

use super::BLOCK_BYTES;
use super::executor::MEMLOCK_BYTES_PER_EXECUTOR;

/// Why a broker can't run here, and what to change.
#[derive(Debug, Error)]
pub enum ProbeError {
    #[error(
        "io_uring is not allowed here ({source}): let the seccomp profile of the container pass io_uring_setup, \
         io_uring_enter and io_uring_register, and set the sysctl kernel.io_uring_disabled to 0"
    )]
    RingForbidden { source: io::Error },
    #[error("io_uring can't be used ({source}); kaas needs Linux 5.15 or newer")]
    NoRing { source: io::Error },
    #[error(
        "{limit} bytes may be locked in memory, {shards} shards need {needed}: raise the limit (ulimit -l, LimitMEMLOCK), \
         or start fewer shards with --shards"
    )]
    Memlock { limit: u64, needed: u64, shards: u16 },
    #[error("could not {action} {path}: {source}")]
    Directory { action: &'static str, path: PathBuf, source: io::Error },
    #[error(
        "{path} is on {file_system}, which refuses direct I/O (O_DIRECT) ({source}); put the data directory on ext4, xfs or \
         NFS 4.1 and newer, or run without --data-dir to keep everything in memory"
    )]
    NoDirectIo { path: PathBuf, file_system: String, source: io::Error },
    #[error(
        "{path} is mounted with NFS version {version}: a write of that protocol can be carried out a second time later, and an \
         acknowledged record can be lost. Mount it with vers=4.1 or newer, or accept the risk with --accept-nfs3"
    )]
    OldNfs { path: PathBuf, version: String },
}

/// Processors that this process may run on.
#[must_use]
pub fn allowed_cpus() -> Vec<usize> {
    // SAFETY: a set of processors is plain bits, for which zero is valid.
    let mut set: libc::cpu_set_t = unsafe { mem::zeroed() };
    // SAFETY: the set outlives the call, which is told its size.
    let result = unsafe { libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), &raw mut set) };
    let setsize = usize::try_from(libc::CPU_SETSIZE).expect("a small constant");
    // SAFETY: the index is below the size of the set.
    let is_set = |cpu: &usize| unsafe { libc::CPU_ISSET(*cpu, &set) };
    if result == 0 { (0..setsize).filter(is_set).collect() } else { Vec::new() }
}

/// Processors' worth of time that the cgroup grants, rounded up; `None` without a limit.
#[must_use]
pub fn cpu_quota() -> Option<usize> {
    let text = fs::read_to_string("/sys/fs/cgroup/cpu.max").ok()?;
    let (quota, period) = text.trim().split_once(' ')?;
    let (quota, period): (usize, usize) = (quota.parse().ok()?, period.parse().ok()?);
    Some(quota.div_ceil(period.max(1)).max(1))
}

/// Raises the soft limit of open files to the hard one and says what holds now.
#[must_use]
pub fn raise_open_files() -> u64 {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the limit outlives the call.
    if unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) } != 0 {
        return 1024;
    }
    let raised = libc::rlimit { rlim_cur: limit.rlim_max, rlim_max: limit.rlim_max };
    // SAFETY: the limit outlives the call.
    let result = unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const raised) };
    if result == 0 { raised.rlim_cur } else { limit.rlim_cur }
}

/// Checks io_uring and the memory that it locks.
///
/// # Errors
/// What is missing, and what to change.
pub fn check_io_uring(shards: u16) -> Result<(), ProbeError> {
    if let Err(source) = IoUring::new(8) {
        return Err(match source.kind() {
            io::ErrorKind::PermissionDenied => ProbeError::RingForbidden { source },
            _ => ProbeError::NoRing { source },
        });
    }
    let needed = u64::from(shards) * MEMLOCK_BYTES_PER_EXECUTOR;
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the limit outlives the call.
    let known = unsafe { libc::getrlimit(libc::RLIMIT_MEMLOCK, &raw mut limit) } == 0;
    // SAFETY: the call only reads the identity of the process.
    let is_root = unsafe { libc::geteuid() } == 0;
    if known && !is_root && limit.rlim_cur < needed {
        return Err(ProbeError::Memlock { limit: limit.rlim_cur, needed, shards });
    }
    Ok(())
}

/// Makes the data directory if it is not there, and checks that it takes what kaas does. Returns the file system's name.
///
/// # Errors
/// What the directory refuses, and what to change.
pub fn check_data_directory(path: &Path, accept_old_nfs: bool) -> Result<String, ProbeError> {
    let failed = |action| move |source| ProbeError::Directory { action, path: path.to_owned(), source };
    fs::create_dir_all(path).map_err(failed("make the data directory"))?;
    let mount = Mount::of(path).unwrap_or_default();
    if !accept_old_nfs && let Some(version) = mount.old_nfs() {
        return Err(ProbeError::OldNfs { path: path.to_owned(), version });
    }
    // A dot name: nobody takes it for a topic, also if a crash leaves it behind.
    let probe = path.join(format!(".probe-{}", std::process::id()));
    let written = write_directly(&probe);
    let renamed = probe.with_extension("renamed");
    let result = match written {
        Ok(()) => fs::rename(&probe, &renamed).map_err(failed("rename a file in the data directory")),
        Err(source) if matches!(source.raw_os_error(), Some(libc::EINVAL | libc::EOPNOTSUPP)) => {
            Err(ProbeError::NoDirectIo { path: path.to_owned(), file_system: mount.file_system.clone(), source })
        }
        Err(source) if source.kind() == io::ErrorKind::StorageFull => Ok(()),
        Err(source) => Err(failed("write to the data directory")(source)),
    };
    for leftover in [&probe, &renamed] {
        // One of the two is not there.
        fs::remove_file(leftover).ok();
    }
    result.map(|()| mount.file_system)
}

/// One stable block, as the log writes it.
fn write_directly(path: &Path) -> io::Result<()> {
    let file =
        OpenOptions::new().write(true).create_new(true).custom_flags(libc::O_DIRECT | libc::O_DSYNC).open(path)?;
    write_block(&file)
}

fn write_block(file: &File) -> io::Result<()> {
    let layout = Layout::from_size_align(BLOCK_BYTES, BLOCK_BYTES).expect("a power of two");
    // SAFETY: the layout is not empty.
    let block = unsafe { alloc_zeroed(layout) };
    assert_ne!(block, ptr::null_mut(), "memory for one block");
    // SAFETY: the block is as long as the write says, and lives until it is done.
    let written = unsafe { libc::pwrite(file.as_raw_fd(), block.cast(), BLOCK_BYTES, 0) };
    let result = if written < 0 { Err(io::Error::last_os_error()) } else { Ok(()) };
    // SAFETY: allocated above with the same layout, and nobody has it any more.
    unsafe { dealloc(block, layout) };
    result
}

/// A line of `/proc/self/mountinfo`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Mount {
    file_system: String,
    options: String,
}

impl Mount {
    fn of(path: &Path) -> Option<Self> {
        let path = path.canonicalize().ok()?;
        Self::find(&fs::read_to_string("/proc/self/mountinfo").ok()?, &path)
    }

    /// The mount with the longest mount point above the path; of several on one point the last one counts.
    fn find(mountinfo: &str, path: &Path) -> Option<Self> {
        let mounts = mountinfo.lines().filter_map(|line| {
            let (place, device) = line.split_once(" - ")?;
            let point = place.split(' ').nth(4)?.replace("\\040", " ");
            let mut device = device.split(' ');
            let (file_system, options) = (device.next()?.to_owned(), device.nth(1).unwrap_or_default().to_owned());
            path.starts_with(&point).then_some((point.len(), Self { file_system, options }))
        });
        mounts.max_by_key(|(length, _)| *length).map(|(_, mount)| mount)
    }

    /// The version, if this is NFS without sessions: below 4.1.
    fn old_nfs(&self) -> Option<String> {
        if !self.file_system.starts_with("nfs") {
            return None;
        }
        let version = self.options.split(',').find_map(|option| option.strip_prefix("vers=")).unwrap_or("3");
        let has_sessions =
            version.strip_prefix("4.").and_then(|minor| minor.parse::<u32>().ok()).is_some_and(|m| m >= 1);
        (!has_sessions).then(|| version.to_owned())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]
    use super::*;

    const MOUNTS: &str = "\
22 1 254:0 / / rw,relatime - ext4 /dev/vda rw
40 22 0:35 / /mnt/three rw,relatime shared:7 - nfs filer:/a rw,vers=3,rsize=1048576,hard,proto=tcp
41 22 0:36 / /mnt/four rw,relatime - nfs4 filer:/b rw,vers=4.2,hard
42 22 0:37 / /mnt/four/zero rw,relatime - nfs4 filer:/c rw,vers=4.0,hard
43 22 0:38 / /mnt/two\\040words rw - tmpfs tmpfs rw
";

    fn mount(path: &str) -> Mount {
        Mount::find(MOUNTS, Path::new(path)).unwrap()
    }

    #[test]
    fn the_nearest_mount_counts() {
        assert_eq!(mount("/data").file_system, "ext4");
        assert_eq!(mount("/mnt/three/x").file_system, "nfs");
        assert_eq!(mount("/mnt/threes").file_system, "ext4");
        assert_eq!(mount("/mnt/two words/x").file_system, "tmpfs");
    }

    #[test]
    fn only_nfs_with_sessions_is_accepted() {
        assert_eq!(mount("/mnt/three").old_nfs().as_deref(), Some("3"));
        assert_eq!(mount("/mnt/four").old_nfs(), None);
        assert_eq!(mount("/mnt/four/zero").old_nfs().as_deref(), Some("4.0"));
        assert_eq!(mount("/data").old_nfs(), None);
    }

    #[test]
    fn a_directory_without_direct_io_is_refused_in_words() {
        // The kernel's own memory file system takes no files of ours at all.
        let error = check_data_directory(Path::new("/proc/kaas"), false).unwrap_err();
        assert!(error.to_string().contains("/proc/kaas"), "{error}");
    }

    #[test]
    fn this_machine_will_do() {
        check_io_uring(1).unwrap();
        assert!(!allowed_cpus().is_empty());
        assert!(raise_open_files() >= 1024);
        let directory = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let file_system = check_data_directory(&directory.path().join("new"), false).unwrap();
        assert!(!file_system.is_empty());
        let names: Vec<_> = fs::read_dir(directory.path().join("new")).unwrap().collect();
        assert!(names.is_empty(), "the probe leaves nothing behind: {names:?}");
    }
}
