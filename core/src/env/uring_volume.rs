//! A directory of the real file system, through a ring. Shard-local.

#![expect(unsafe_code, reason = "system calls that have no safe wrapper here")]

use std::ffi::CString;
use std::fmt;
use std::io::{self, ErrorKind};
use std::os::fd::RawFd;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use bytes::Bytes;
use kaas_proto::reserve::is_full;
use kaas_proto::types::TimestampMs;

use super::executor::TaskQueues;
use super::helper::Helper;
use super::path::{check_rename, names};
use super::ring::Ring;
use super::ring_operations::{Descriptor, SizeOf};
use super::{
    AlignedBuffer, BLOCK_BYTES, DirectoryEntry, EntryKind, OpenMode, TaskClass, Volume, VolumeFile, VolumeSpace,
    check_aligned_offset, check_aligned_write,
};

/// How much of a small file is read in one go.
const READ_BYTES: usize = 64 << 10;

/// A directory and everything below it. Clones share the ring.
#[derive(Clone)]
pub struct UringVolume {
    root: Rc<Path>,
    ring: Ring,
    helper: Helper,
}

impl fmt::Debug for UringVolume {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("UringVolume").field("root", &self.root).finish_non_exhaustive()
    }
}

impl UringVolume {
    /// A volume with a ring of its own: what hangs on one volume takes no place from another.
    ///
    /// # Errors
    /// When the kernel gives no ring, or `root` can't be resolved.
    pub fn start(root: &Path, queues: TaskQueues) -> io::Result<Self> {
        let ring = Ring::new()?;
        queues.spawn(TaskClass::Latency, ring.drive()?);
        Ok(Self { root: std::path::absolute(root)?.into(), ring, helper: Helper::new(queues) })
    }

    /// How often an operation had to wait because [`QUEUE_DEPTH`](super::uring::QUEUE_DEPTH) were in flight.
    #[must_use]
    pub fn depth_reached(&self) -> u64 {
        self.ring.depth_reached()
    }

    /// Operations that the kernel works on now.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.ring.in_flight()
    }

    /// How often a call found all [helper threads](super::uring::HELPER_THREADS) busy.
    #[must_use]
    pub fn helpers_all_busy(&self) -> u64 {
        self.helper.all_busy()
    }

    fn absolute(&self, path: &Path) -> io::Result<PathBuf> {
        let mut absolute = self.root.to_path_buf();
        absolute.extend(names(path)?);
        Ok(absolute)
    }

    fn name(&self, path: &Path) -> io::Result<CString> {
        // A zero byte inside is InvalidInput.
        Ok(CString::new(self.absolute(path)?.into_os_string().into_vec())?)
    }

    async fn open_with(&self, path: &Path, flags: i32) -> io::Result<Rc<Descriptor>> {
        self.ring.open(self.name(path)?, flags).await
    }

    /// Closes a file whose content is what counts: an error of the content comes first.
    async fn close_after<T>(&self, file: Rc<Descriptor>, done: io::Result<T>) -> io::Result<T> {
        let closed = self.ring.close(file).await;
        done.and_then(|value| closed.map(|()| value))
    }

    async fn write_all(&self, file: &Rc<Descriptor>, mut offset: u64, mut content: Bytes) -> io::Result<()> {
        while !content.is_empty() {
            let written = self.ring.write(file, offset, content.clone()).await?;
            if written == 0 {
                return Err(ErrorKind::WriteZero.into());
            }
            offset += written as u64;
            content = content.split_off(written);
        }
        Ok(())
    }

    async fn read_all(&self, file: &Rc<Descriptor>, limit_bytes: usize) -> io::Result<Vec<u8>> {
        let mut content = Vec::new();
        let mut buffer = AlignedBuffer::with_capacity(READ_BYTES);
        loop {
            buffer.truncate(0);
            buffer = self.ring.read(file, content.len() as u64, buffer).await?;
            if buffer.is_empty() {
                return Ok(content);
            }
            if content.len() + buffer.len() > limit_bytes {
                return Err(ErrorKind::FileTooLarge.into());
            }
            content.extend_from_slice(&buffer);
        }
    }
}

impl UringVolume {
    async fn set_length(&self, file: &Rc<Descriptor>, length: u64) -> io::Result<()> {
        if self.ring.truncates() {
            return self.ring.truncate(file, length).await;
        }
        let number = file.number();
        self.helper.run(Rc::clone(file), move || truncate(number, length)).await
    }

    /// Makes a file at least so long, durably, with a hole, which takes no room.
    async fn lengthen(&self, file: &Rc<Descriptor>, length: u64) -> io::Result<()> {
        if self.ring.size(SizeOf::File(file)).await? < length {
            self.set_length(file, length).await?;
        }
        self.ring.sync(file).await
    }
}

impl Volume for UringVolume {
    type File = UringFile;

    async fn open(&self, path: &Path, mode: OpenMode) -> io::Result<UringFile> {
        let flags = match mode {
            OpenMode::Read => libc::O_RDONLY,
            OpenMode::ReadWrite => libc::O_RDWR | libc::O_DSYNC,
            OpenMode::CreateNew => libc::O_RDWR | libc::O_DSYNC | libc::O_CREAT | libc::O_EXCL,
        };
        let file = self.open_with(path, flags | libc::O_DIRECT).await?;
        Ok(UringFile { volume: self.clone(), file })
    }

    async fn list(&self, directory: &Path) -> io::Result<Vec<DirectoryEntry>> {
        let path = self.absolute(directory)?;
        self.helper.run((), move || list(&path)).await
    }

    async fn size(&self, path: &Path) -> io::Result<u64> {
        self.ring.size(SizeOf::Path(self.name(path)?)).await
    }

    async fn modified(&self, path: &Path) -> io::Result<Option<TimestampMs>> {
        let path = self.absolute(path)?;
        self.helper.run((), move || modified(&path)).await.map(Some)
    }

    async fn read(&self, path: &Path, limit_bytes: usize) -> io::Result<Vec<u8>> {
        let file = self.open_with(path, libc::O_RDONLY).await?;
        let content = self.read_all(&file, limit_bytes).await;
        self.close_after(file, content).await
    }

    async fn write(&self, path: &Path, content: Vec<u8>) -> io::Result<()> {
        let file = self.open_with(path, libc::O_WRONLY | libc::O_CREAT | libc::O_TRUNC).await?;
        let written = async {
            self.write_all(&file, 0, content.into()).await?;
            self.ring.sync(&file).await
        }
        .await;
        self.close_after(file, written).await
    }

    async fn overwrite(&self, path: &Path, content: Vec<u8>) -> io::Result<()> {
        let file = self.open_with(path, libc::O_WRONLY | libc::O_SYNC).await?;
        let length = content.len() as u64;
        let written = match self.write_all(&file, 0, content.into()).await {
            Err(error) if is_full(&error) => self.lengthen(&file, length).await,
            written => written,
        };
        self.close_after(file, written).await
    }

    async fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        check_rename(from, to)?;
        self.ring.rename(self.name(from)?, self.name(to)?).await
    }

    async fn unlink(&self, path: &Path) -> io::Result<()> {
        self.ring.unlink(self.name(path)?, 0).await
    }

    async fn create_directories(&self, path: &Path) -> io::Result<()> {
        let names = names(path)?;
        let ancestors: Vec<PathBuf> = (1..=names.len()).map(|depth| names[..depth].iter().collect()).collect();
        // Mostly all but the last few are there: find the deepest one that is not missing its parent.
        let mut missing = ancestors.len();
        while missing > 0 {
            match self.ring.create_directory(self.name(&ancestors[missing - 1])?).await {
                Err(error) if error.kind() == ErrorKind::NotFound => missing -= 1,
                created => {
                    self.made_durable(&ancestors[missing - 1], created).await?;
                    break;
                }
            }
        }
        if missing == 0 && !ancestors.is_empty() {
            return Err(io::Error::new(ErrorKind::NotFound, format!("{} is gone", self.root.display())));
        }
        for directory in &ancestors[missing..] {
            let created = self.ring.create_directory(self.name(directory)?).await;
            self.made_durable(directory, created).await?;
        }
        Ok(())
    }

    async fn remove_directory(&self, path: &Path) -> io::Result<()> {
        self.ring.unlink(self.name(path)?, libc::AT_REMOVEDIR).await
    }

    async fn sync_directory(&self, path: &Path) -> io::Result<()> {
        let directory = self.open_with(path, libc::O_RDONLY | libc::O_DIRECTORY).await?;
        let synced = self.ring.sync(&directory).await;
        self.close_after(directory, synced).await
    }

    async fn space(&self, path: &Path) -> io::Result<VolumeSpace> {
        let path = self.name(path)?;
        self.helper.run((), move || space(&path)).await
    }
}

impl UringVolume {
    /// After an attempt to create a directory: syncs the parent if it is new, and is content if it was there.
    async fn made_durable(&self, directory: &Path, created: io::Result<()>) -> io::Result<()> {
        match created {
            Ok(()) => self.sync_directory(directory.parent().expect("a name inside the volume has a parent")).await,
            Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(()),
            Err(error) => Err(error),
        }
    }
}

#[expect(clippy::disallowed_methods, reason = "runs on a helper thread, io_uring has no readdir")]
fn list(path: &Path) -> io::Result<Vec<DirectoryEntry>> {
    let mut entries = Vec::new();
    for entry in std::fs::read_dir(path)? {
        let entry = entry?;
        let Ok(name) = entry.file_name().into_string() else { continue };
        let kind = match entry.file_type() {
            Ok(kind) if kind.is_file() => EntryKind::File,
            Ok(kind) if kind.is_dir() => EntryKind::Directory,
            Ok(_) => EntryKind::Other,
            // Asked for by name where the directory does not say; gone meanwhile.
            Err(error) if error.kind() == ErrorKind::NotFound => continue,
            Err(error) => return Err(error),
        };
        entries.push(DirectoryEntry { name, kind });
    }
    Ok(entries)
}

#[expect(clippy::disallowed_methods, reason = "runs on a helper thread")]
fn modified(path: &Path) -> io::Result<TimestampMs> {
    let modified = std::fs::metadata(path)?.modified()?;
    let since_epoch = modified.duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    Ok(TimestampMs(i64::try_from(since_epoch.as_millis()).unwrap_or(i64::MAX)))
}

fn space(path: &CString) -> io::Result<VolumeSpace> {
    // SAFETY: plain numbers, for which zero is a value.
    let mut answer: libc::statvfs = unsafe { std::mem::zeroed() };
    // SAFETY: both pointers lead to what their types say.
    if unsafe { libc::statvfs(path.as_ptr(), &raw mut answer) } != 0 {
        return Err(io::Error::last_os_error());
    }
    let bytes = |blocks: u64| blocks.saturating_mul(answer.f_frsize);
    Ok(VolumeSpace { total_bytes: bytes(answer.f_blocks), available_bytes: bytes(answer.f_bavail) })
}

fn truncate(descriptor: RawFd, length: u64) -> io::Result<()> {
    let length = libc::off_t::try_from(length).map_err(|_| ErrorKind::FileTooLarge)?;
    // SAFETY: no pointers; the caller keeps the descriptor open.
    if unsafe { libc::ftruncate(descriptor, length) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// An open file with direct access. Closes in the background when dropped.
pub struct UringFile {
    volume: UringVolume,
    file: Rc<Descriptor>,
}

impl fmt::Debug for UringFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("UringFile").field("descriptor", &self.file.number()).finish_non_exhaustive()
    }
}

impl VolumeFile for UringFile {
    async fn write_at(&self, offset: u64, content: Bytes) -> io::Result<()> {
        check_aligned_write(offset, &content)?;
        self.volume.write_all(&self.file, offset, content).await
    }

    async fn read_at(&self, offset: u64, length: usize) -> io::Result<Bytes> {
        check_aligned_offset(offset)?;
        let mut buffer = AlignedBuffer::with_capacity(length);
        while buffer.len() < length {
            let before = buffer.len();
            buffer = self.volume.ring.read(&self.file, offset + before as u64, buffer).await?;
            // A call may end early. The file ends where nothing comes, or within a block.
            if buffer.len() == before || !buffer.len().is_multiple_of(BLOCK_BYTES) {
                break;
            }
        }
        buffer.truncate(length);
        Ok(buffer.freeze())
    }

    async fn truncate(&self, length: u64) -> io::Result<()> {
        self.volume.set_length(&self.file, length).await
    }

    async fn size(&self) -> io::Result<u64> {
        self.volume.ring.size(SizeOf::File(&self.file)).await
    }

    async fn close(self) -> io::Result<()> {
        self.volume.ring.close(self.file).await
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]
    use std::future::poll_fn;
    use std::pin::pin;
    use std::task::Poll;
    use std::time::Duration;

    use super::super::conformance::{blocks, on_uring, path};
    use super::super::ring::QUEUE_DEPTH;
    use super::super::{Env, MonotonicTime};
    use super::*;

    /// Polls a future once and drops it if it is not ready.
    async fn give_up_on(future: impl Future) -> bool {
        let mut future = pin!(future);
        poll_fn(|context| Poll::Ready(future.as_mut().poll(context).is_pending())).await
    }

    async fn until(env: &impl Env, condition: impl Fn() -> bool) {
        let deadline = MonotonicTime(env.now().0 + 10_000_000_000);
        while !condition() {
            assert!(env.now() < deadline, "the condition does not come true");
            env.sleep(Duration::from_millis(1)).await;
        }
    }

    /// What this process has open below a directory.
    #[expect(clippy::disallowed_methods, reason = "looks at the process from outside")]
    fn open_below(root: &Path) -> usize {
        let descriptors = std::fs::read_dir("/proc/self/fd").unwrap();
        descriptors
            .filter_map(|entry| entry.ok()?.path().read_link().ok())
            .filter(|target| target.starts_with(root))
            .count()
    }

    #[test]
    fn a_write_that_is_given_up_lands_from_memory_that_is_still_there() {
        on_uring(|env, root| async move {
            let volume = env.volume().data();
            let file = volume.open(path("f"), OpenMode::CreateNew).await.unwrap();
            for index in 0..50 {
                give_up_on(file.write_at(index * 4096, blocks(1, 0x11))).await;
                // Were the buffer freed, this would take its place.
                drop(blocks(1, 0x22));
            }
            until(&env, || volume.in_flight() == 0).await;
            let content = file.read_at(0, 50 * 4096).await.unwrap();
            assert_eq!(content.len(), 50 * 4096);
            assert!(content.iter().all(|&byte| byte == 0x11));
            give_up_on(file.read_at(0, 4096)).await;
            drop(file);
            until(&env, || open_below(&root) == 0).await;
        });
    }

    #[test]
    fn an_open_that_is_given_up_leaves_no_descriptor() {
        on_uring(|env, root| async move {
            let volume = env.volume().data();
            let mut given_up = 0;
            for index in 0..100 {
                let name = format!("f{index}");
                given_up += usize::from(give_up_on(volume.open(path(&name), OpenMode::CreateNew)).await);
            }
            assert!(given_up > 0, "creating a file takes a moment");
            until(&env, || volume.in_flight() == 0 && open_below(&root) == 0).await;
        });
    }

    #[test]
    fn more_operations_than_places_wait_and_are_counted() {
        on_uring(|env, _| async move {
            let volume = env.volume().data();
            let file = Rc::new(volume.open(path("f"), OpenMode::CreateNew).await.unwrap());
            let done = Rc::new(std::cell::Cell::new(0));
            let writes = 3 * QUEUE_DEPTH;
            for index in 0..writes {
                let (file, done) = (Rc::clone(&file), Rc::clone(&done));
                env.spawn(TaskClass::Latency, async move {
                    file.write_at(u64::from(index) * 4096, blocks(1, 0x33)).await.unwrap();
                    done.set(done.get() + 1);
                });
            }
            until(&env, || done.get() == writes).await;
            assert!(volume.depth_reached() > 0);
            assert_eq!(volume.in_flight(), 0);
            assert_eq!(file.size().await.unwrap(), u64::from(writes) * 4096);
        });
    }

    #[test]
    fn a_file_whose_name_goes_away_while_it_opens_is_an_error_or_a_file() {
        on_uring(|env, _| async move {
            let volume = env.volume().data();
            for _ in 0..200 {
                volume.write(path("f"), vec![1]).await.unwrap();
                let opened = volume.open(path("f"), OpenMode::Read);
                let (opened, unlinked) = futures_lite::future::zip(opened, volume.unlink(path("f"))).await;
                unlinked.unwrap();
                match opened {
                    Ok(file) => assert_eq!(file.read_at(0, 10).await.unwrap(), [1][..]),
                    Err(error) => assert_eq!(error.kind(), ErrorKind::NotFound),
                }
            }
        });
    }

    #[test]
    fn more_calls_than_helpers_wait_and_are_counted() {
        on_uring(|env, _| async move {
            let volume = env.volume().data();
            let done = Rc::new(std::cell::Cell::new(0));
            for _ in 0..50 {
                let (volume, done) = (volume.clone(), Rc::clone(&done));
                env.spawn(TaskClass::Background, async move {
                    volume.list(path("")).await.unwrap();
                    done.set(done.get() + 1);
                });
            }
            until(&env, || done.get() == 50).await;
            assert!(volume.helpers_all_busy() > 0);
            give_up_on(volume.list(path(""))).await;
        });
    }
}
