//! What a machine must offer, checked before a port opens. Runs on the main thread at start-up, where blocking is fine.

#![expect(unsafe_code, reason = "system calls that have no safe wrapper here")]
#![expect(clippy::disallowed_methods, reason = "runs before any shard does")]

use std::fs::{self, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::{fmt, io, mem};

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
        "{limit} bytes may be locked in memory, {shards} shards need {needed}: raise the limit (ulimit -l, LimitMEMLOCK, \
         for root too), or start fewer shards with --shards"
    )]
    Memlock { limit: u64, needed: u64, shards: u16 },
    #[error("{path} is not a directory: the {purpose} ({}) is one that exists, or one that kaas makes", .purpose.option())]
    NotADirectory { purpose: Purpose, path: PathBuf },
    #[error("could not {action} the {purpose} {path} ({}): {source}", .purpose.option())]
    Directory { purpose: Purpose, action: &'static str, path: PathBuf, source: io::Error },
    #[error(
        "the cluster directory {cluster} (--cluster-dir) and the data directory {data} (--data-dir) lie one in the other: put the \
         cluster directory beside it, or leave out --cluster-dir"
    )]
    Nested { data: PathBuf, cluster: PathBuf },
    #[error(
        "{path} is on {file_system}, which refuses direct I/O (O_DIRECT) ({source}); put the {purpose} ({}) on ext4, xfs or \
         NFS 4.1 and newer, or {}", .purpose.option(), .purpose.alternative()
    )]
    NoDirectIo { purpose: Purpose, path: PathBuf, file_system: String, source: io::Error },
    #[error(
        "{path} ({}) is mounted with NFS version {version}: a write of that protocol can be carried out a second time later, and an \
         acknowledged record can be lost. Mount it with vers=4.1 or newer, or accept the risk with --accept-nfs3",
        .purpose.option()
    )]
    OldNfs { purpose: Purpose, path: PathBuf, version: String },
    #[error(
        "{path} is on {file_system}, which does not give back what was written to it with direct I/O (O_DIRECT): {found}; put the \
         {purpose} ({}) on another file system", .purpose.option()
    )]
    NotWhatWasWritten { purpose: Purpose, path: PathBuf, file_system: String, found: String },
}

/// What a directory is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    Data,
    /// The cluster's own state, where it does not lie in the data directory.
    Cluster,
}

impl Purpose {
    /// What gives it.
    fn option(self) -> &'static str {
        match self {
            Self::Data => "--data-dir",
            Self::Cluster => "--cluster-dir",
        }
    }

    /// What else can be done than putting it on another file system.
    fn alternative(self) -> &'static str {
        match self {
            Self::Data => "run without --data-dir to keep everything in memory",
            Self::Cluster => "leave out --cluster-dir to keep it in the data directory",
        }
    }
}

impl fmt::Display for Purpose {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Data => "data directory",
            Self::Cluster => "cluster directory",
        })
    }
}

/// What a directory is like.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Directory {
    pub file_system: String,
    /// There is no room for one block: whether direct writes work could not be tried. The broker serves what is there, and
    /// accepts records when there is room again.
    pub is_full: bool,
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
    // SAFETY: the call only reads the identity of the process.
    let is_root = unsafe { libc::geteuid() } == 0;
    check_memlock(raise_memlock(), shards, is_root)
}

/// Raises the soft limit of locked memory to the hard one, and says what holds now.
fn raise_memlock() -> u64 {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the limit outlives the call.
    if unsafe { libc::getrlimit(libc::RLIMIT_MEMLOCK, &raw mut limit) } != 0 {
        return u64::MAX; // The executor tells.
    }
    let raised = libc::rlimit { rlim_cur: limit.rlim_max, rlim_max: limit.rlim_max };
    // SAFETY: the limit outlives the call.
    let result = unsafe { libc::setrlimit(libc::RLIMIT_MEMLOCK, &raw const raised) };
    if result == 0 { raised.rlim_cur } else { limit.rlim_cur }
}

/// The kernel counts what the processes of root lock against no limit, but an executor compares the limit all the same.
fn check_memlock(limit: u64, shards: u16, is_root: bool) -> Result<(), ProbeError> {
    let counted = if is_root { 1 } else { u64::from(shards) };
    let needed = counted * MEMLOCK_BYTES_PER_EXECUTOR;
    if limit < needed { Err(ProbeError::Memlock { limit, needed, shards }) } else { Ok(()) }
}

/// Checks that neither directory lies in the other one, before they are made.
///
/// # Errors
/// One does, or where they lie can't be found out.
pub fn check_apart(data: &Path, cluster: &Path) -> Result<(), ProbeError> {
    let resolved = |purpose, path: &Path| {
        resolve(path).map_err(|source| ProbeError::Directory {
            purpose,
            action: "resolve",
            path: path.to_owned(),
            source,
        })
    };
    let (data, cluster) = (resolved(Purpose::Data, data)?, resolved(Purpose::Cluster, cluster)?);
    if data.starts_with(&cluster) || cluster.starts_with(&data) {
        return Err(ProbeError::Nested { data, cluster });
    }
    Ok(())
}

/// Where a directory lies, or will lie once it is made.
fn resolve(path: &Path) -> io::Result<PathBuf> {
    match path.canonicalize() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        resolved => return resolved,
    }
    let path = std::path::absolute(path)?;
    match (path.parent(), path.file_name()) {
        (Some(parent), Some(name)) => Ok(resolve(parent)?.join(name)),
        // It ends with `..`, after something that is not there.
        (Some(parent), None) => Ok(resolve(parent)?.parent().unwrap_or(Path::new("/")).to_owned()),
        (None, _) => Ok(path),
    }
}

/// Makes a directory if it is not there, and checks that it takes what kaas does.
///
/// # Errors
/// What the directory refuses, and what to change.
pub fn check_directory(purpose: Purpose, path: &Path, accept_old_nfs: bool) -> Result<Directory, ProbeError> {
    let failed = |action| move |source| ProbeError::Directory { purpose, action, path: path.to_owned(), source };
    if path.exists() && !path.is_dir() {
        return Err(ProbeError::NotADirectory { purpose, path: path.to_owned() });
    }
    fs::create_dir_all(path).map_err(failed("make"))?;
    let mount = Mount::of(path).unwrap_or_default();
    if !accept_old_nfs && let Some(version) = mount.old_nfs() {
        return Err(ProbeError::OldNfs { purpose, path: path.to_owned(), version });
    }
    // A dot name: nobody takes it for a topic, also if a crash leaves it behind.
    let probe = path.join(format!(".probe-{}", std::process::id()));
    let tried = try_directly(&probe);
    let renamed = probe.with_extension("renamed");
    let has_file = tried.is_ok() || probe.exists();
    let moved = if has_file { fs::rename(&probe, &renamed) } else { Ok(()) };
    for leftover in [&probe, &renamed] {
        // One of the two is not there.
        fs::remove_file(leftover).ok();
    }
    let is_full = judge(tried, purpose, path, &mount.file_system)?;
    moved.map_err(failed("rename a file in"))?;
    Ok(Directory { file_system: mount.file_system, is_full })
}

/// Why a try of direct I/O did not succeed.
#[derive(Debug)]
enum TryError {
    Call { action: &'static str, source: io::Error },
    Content(String),
}

/// What the outcome of a try means: whether the volume is full, or what is wrong with it.
fn judge(tried: Result<(), TryError>, purpose: Purpose, path: &Path, file_system: &str) -> Result<bool, ProbeError> {
    let (path, file_system) = (path.to_owned(), file_system.to_owned());
    match tried {
        Ok(()) => Ok(false),
        Err(TryError::Content(found)) => Err(ProbeError::NotWhatWasWritten { purpose, path, file_system, found }),
        Err(TryError::Call { source, .. })
            if matches!(source.raw_os_error(), Some(libc::EINVAL | libc::EOPNOTSUPP)) =>
        {
            Err(ProbeError::NoDirectIo { purpose, path, file_system, source })
        }
        Err(TryError::Call { source, .. }) if kaas_proto::reserve::is_full(&source) => Ok(true),
        Err(TryError::Call { action, source }) => Err(ProbeError::Directory { purpose, action, path, source }),
    }
}

/// What a log and a fence do: a file is made, read while it is empty, and given one stable block, which is read back.
fn try_directly(path: &Path) -> Result<(), TryError> {
    let failed = |action| move |source| TryError::Call { action, source };
    let mut options = OpenOptions::new();
    options.read(true).write(true).create_new(true).custom_flags(libc::O_DIRECT | libc::O_DSYNC);
    let file = options.open(path).map_err(failed("make a file for direct I/O in"))?;
    let mut block = Block::new();
    let read = file.read_at(block.bytes(), 0).map_err(failed("read an empty file in"))?;
    if read != 0 {
        return Err(TryError::Content(format!("an empty file has {read} bytes")));
    }
    block.bytes().copy_from_slice(&pattern());
    let written = file.write_at(block.bytes(), 0).map_err(failed("write to"))?;
    if written != BLOCK_BYTES {
        return Err(TryError::Content(format!("a write of {BLOCK_BYTES} bytes ended after {written}")));
    }
    block.bytes().fill(0);
    let read = file.read_at(block.bytes(), 0).map_err(failed("read from"))?;
    compare(&block.bytes()[..read])
}

fn compare(found: &[u8]) -> Result<(), TryError> {
    if found == pattern() {
        return Ok(());
    }
    let same = found.iter().zip(pattern()).take_while(|(found, written)| *found == written).count();
    Err(TryError::Content(format!("of {BLOCK_BYTES} bytes {} came back, the first {same} as they were", found.len())))
}

/// Bytes that are neither all the same nor repeat within a sector.
fn pattern() -> [u8; BLOCK_BYTES] {
    let mut pattern = [0; BLOCK_BYTES];
    for (index, pair) in pattern.chunks_exact_mut(2).enumerate() {
        pair.copy_from_slice(&u16::try_from(index).expect("a block has fewer pairs").to_be_bytes());
    }
    pattern
}

/// One block of memory at a block boundary.
struct Block(Vec<u8>);

impl Block {
    fn new() -> Self {
        Self(vec![0; 2 * BLOCK_BYTES])
    }

    fn bytes(&mut self) -> &mut [u8] {
        let start = self.0.as_ptr().align_offset(BLOCK_BYTES);
        &mut self.0[start..][..BLOCK_BYTES]
    }
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
        let error = check_directory(Purpose::Data, Path::new("/proc/kaas"), false).unwrap_err();
        assert!(error.to_string().contains("/proc/kaas"), "{error}");
        let error = check_directory(Purpose::Data, Path::new("/etc/passwd"), false).unwrap_err();
        assert!(error.to_string().starts_with("/etc/passwd is not a directory"), "{error}");
    }

    #[test]
    fn this_machine_will_do() {
        check_io_uring(1).unwrap();
        assert!(!allowed_cpus().is_empty());
        assert!(raise_open_files() >= 1024);
        let directory = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let found = check_directory(Purpose::Data, &directory.path().join("new"), false).unwrap();
        assert!(!found.file_system.is_empty() && !found.is_full);
        let names: Vec<_> = fs::read_dir(directory.path().join("new")).unwrap().collect();
        assert!(names.is_empty(), "the probe leaves nothing behind: {names:?}");
    }

    #[test]
    fn locked_memory_is_limited_for_root_too() {
        let needed = |limit, shards, is_root| match check_memlock(limit, shards, is_root) {
            Ok(()) => None,
            Err(error @ ProbeError::Memlock { needed, .. }) => {
                assert!(error.to_string().contains("--shards"), "{error}");
                Some(needed)
            }
            Err(other) => panic!("{other}"),
        };
        assert_eq!(needed(64 << 10, 4, true), Some(512 << 10));
        assert_eq!(needed(512 << 10, 4, true), None);
        assert_eq!(needed(512 << 10, 4, false), Some(2 << 20));
        assert_eq!(needed(2 << 20, 4, false), None);
    }

    #[test]
    fn a_full_volume_is_told_from_one_that_does_not_work() {
        let judged = |error: i32| {
            let source = io::Error::from_raw_os_error(error);
            judge(Err(TryError::Call { action: "write to", source }), Purpose::Data, Path::new("/data"), "ext4")
        };
        assert!(judged(libc::ENOSPC).unwrap());
        assert!(judged(libc::EDQUOT).unwrap());
        assert!(matches!(judged(libc::EINVAL), Err(ProbeError::NoDirectIo { .. })));
        let refused = judged(libc::EROFS).unwrap_err().to_string();
        assert!(refused.contains("write to the data directory") && refused.contains("/data"), "{refused}");
        assert!(!judge(Ok(()), Purpose::Data, Path::new("/data"), "ext4").unwrap());
    }

    #[test]
    fn what_comes_back_is_compared() {
        assert!(compare(&pattern()).is_ok());
        let mut changed = pattern();
        changed[700] ^= 1;
        for found in [&changed[..], &changed[..512], &[]] {
            let error = judge(compare(found), Purpose::Data, Path::new("/data"), "odd").unwrap_err().to_string();
            assert!(error.contains(&format!("{} came back", found.len())) && error.contains("odd"), "{error}");
        }
    }

    #[test]
    fn what_is_wrong_with_a_cluster_directory_names_its_option() {
        let error = check_directory(Purpose::Cluster, Path::new("/etc/passwd"), false).unwrap_err().to_string();
        assert!(error.contains("the cluster directory (--cluster-dir)"), "{error}");
        let directory = tempfile::tempdir().unwrap();
        let (data, inside) = (directory.path().join("data"), directory.path().join("data/inside"));
        let beside = directory.path().join("data beside");
        let around = directory.path().join("elsewhere/../data/inside");
        for are_made in [false, true] {
            check_apart(&data, &beside).unwrap();
            for (data, cluster) in [(&data, &inside), (&inside, &data), (&data, &data), (&data, &around)] {
                let error = check_apart(data, cluster).unwrap_err().to_string();
                assert!(error.contains("--cluster-dir") && error.contains("--data-dir"), "{error}");
            }
            for path in [&inside, &beside, &directory.path().join("elsewhere")] {
                assert_eq!(path.exists(), are_made);
                fs::create_dir_all(path).unwrap();
            }
        }
    }
}
