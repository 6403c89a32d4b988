//! A tree of directories and files in memory, with the semantics of [`Volume`] and a few planned faults.
//!
//! It is honest: what a call returns has happened at once and for everybody. The volume that lies on purpose is the
//! simulator's.

#![expect(clippy::disallowed_types, reason = "local-dev mode shares one volume between shards and the control thread")]

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::future::poll_fn;
use std::io::{self, ErrorKind};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};

use bytes::Bytes;

use super::path::{check_rename, names};
use super::{
    AlignedBuffer, DirectoryEntry, EntryKind, OpenMode, Volume, VolumeFile, VolumeSpace, check_aligned_offset,
    check_aligned_write,
};

/// What a volume without a limit says that it holds.
const UNLIMITED_TOTAL_BYTES: u64 = 1 << 40;

macro_rules! operations {
    ($($name:ident,)*) => {
        /// The calls of [`Volume`] and [`VolumeFile`], to count them, fail them and hold them up.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum Operation {
            $($name,)*
        }

        impl Operation {
            pub const ALL: [Self; [$(Self::$name),*].len()] = [$(Self::$name),*];
        }
    };
}

operations! {
    Open,
    List,
    Size,
    Read,
    Write,
    Overwrite,
    Rename,
    Unlink,
    CreateDirectories,
    RemoveDirectory,
    SyncDirectory,
    Space,
    WriteAt,
    ReadAt,
    Truncate,
    Close,
}

/// Clones share the files. May be used by several threads: local-dev mode runs several shards.
#[derive(Clone, Debug, Default)]
pub struct MemoryVolume(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    root: Directory,
    /// None: no limit.
    capacity_bytes: Option<u64>,
    counts: HashMap<Operation, u64>,
    failures: HashMap<Operation, VecDeque<ErrorKind>>,
    held: HashMap<Operation, Vec<Waker>>,
    /// So many operations from now, and what happens to that one.
    doom: Option<(u64, Doom)>,
    revivals: u64,
    hanging: Vec<Waker>,
    /// Names that listings lack.
    overlooked: HashSet<String>,
}

/// What happens to one operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Doom {
    /// It hangs until [`MemoryVolume::revive`]; others go on.
    Hang,
    Fail(ErrorKind),
}

type Directory = BTreeMap<String, Node>;
type Content = Arc<Mutex<Vec<u8>>>;

#[derive(Debug)]
enum Node {
    File(Content),
    Directory(Directory),
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn used_bytes(directory: &Directory) -> u64 {
    let of = |node: &Node| match node {
        Node::File(content) => lock(content).len() as u64,
        Node::Directory(directory) => used_bytes(directory),
    };
    directory.values().map(of).sum()
}

impl State {
    fn directory(&mut self, path: &[&str]) -> io::Result<&mut Directory> {
        let mut directory = &mut self.root;
        for &name in path {
            directory = match directory.get_mut(name) {
                Some(Node::Directory(next)) => next,
                Some(Node::File(_)) => return Err(ErrorKind::NotADirectory.into()),
                None => return Err(ErrorKind::NotFound.into()),
            };
        }
        Ok(directory)
    }

    /// The directory that a path ends in, and the last name.
    fn parent<'path>(&mut self, path: &'path Path) -> io::Result<(&mut Directory, &'path str)> {
        let names = names(path)?;
        let Some((name, parents)) = names.split_last() else { return Err(ErrorKind::IsADirectory.into()) };
        Ok((self.directory(parents)?, name))
    }

    fn file(&mut self, path: &Path) -> io::Result<Content> {
        let (directory, name) = self.parent(path)?;
        match directory.get(name) {
            Some(Node::File(content)) => Ok(Arc::clone(content)),
            Some(Node::Directory(_)) => Err(ErrorKind::IsADirectory.into()),
            None => Err(ErrorKind::NotFound.into()),
        }
    }

    fn open(&mut self, path: &Path, mode: OpenMode) -> io::Result<Content> {
        if mode != OpenMode::CreateNew {
            return self.file(path);
        }
        let (directory, name) = self.parent(path)?;
        if directory.contains_key(name) {
            return Err(ErrorKind::AlreadyExists.into());
        }
        let content = Content::default();
        directory.insert(name.to_owned(), Node::File(Arc::clone(&content)));
        Ok(content)
    }

    fn rename(&mut self, from: &Path, to: &Path) -> io::Result<()> {
        check_rename(from, to)?;
        let (directory, from) = self.parent(from)?;
        let to = names(to)?.last().copied().expect("checked to name an entry").to_owned();
        let node = directory.get(from).ok_or(ErrorKind::NotFound)?;
        match (node, directory.get(&to)) {
            (_, None) | (Node::File(_), Some(Node::File(_))) => {}
            (Node::Directory(_), Some(Node::Directory(target))) if target.is_empty() => {}
            (Node::Directory(_), Some(Node::Directory(_))) => return Err(ErrorKind::DirectoryNotEmpty.into()),
            (Node::File(_), Some(Node::Directory(_))) => return Err(ErrorKind::IsADirectory.into()),
            (Node::Directory(_), Some(Node::File(_))) => return Err(ErrorKind::NotADirectory.into()),
        }
        let node = directory.remove(from).expect("found above");
        directory.insert(to, node);
        Ok(())
    }

    /// Puts `bytes` at `offset`, with zeros between the old end and there.
    fn put(&mut self, content: &Content, offset: usize, bytes: &[u8]) -> io::Result<()> {
        let end = offset + bytes.len();
        let growth = end.saturating_sub(lock(content).len()) as u64;
        if let Some(capacity) = self.capacity_bytes
            && growth > 0
            && used_bytes(&self.root) + growth > capacity
        {
            return Err(ErrorKind::StorageFull.into());
        }
        let mut content = lock(content);
        if content.len() < end {
            content.resize(end, 0);
        }
        content[offset..end].copy_from_slice(bytes);
        Ok(())
    }
}

impl MemoryVolume {
    /// From now on writes that would make the files larger than this together fail with `StorageFull`.
    pub fn set_capacity(&self, bytes: Option<u64>) {
        lock(&self.0).capacity_bytes = bytes;
    }

    /// How often an operation was begun.
    #[must_use]
    pub fn count(&self, operation: Operation) -> u64 {
        lock(&self.0).counts.get(&operation).copied().unwrap_or(0)
    }

    /// The next `operation` that is not yet doomed fails with `kind` and does nothing.
    pub fn fail_next(&self, operation: Operation, kind: ErrorKind) {
        lock(&self.0).failures.entry(operation).or_default().push_back(kind);
    }

    /// No `operation` is doomed any more.
    pub fn forget_failures(&self, operation: Operation) {
        lock(&self.0).failures.remove(&operation);
    }

    /// Every `operation` begun from now on hangs until [`MemoryVolume::release`].
    pub fn hold(&self, operation: Operation) {
        lock(&self.0).held.entry(operation).or_default();
    }

    pub fn release(&self, operation: Operation) {
        let waiting = lock(&self.0).held.remove(&operation);
        waiting.into_iter().flatten().for_each(Waker::wake);
    }

    /// From now on listings lack what has this name, as those do that were made earlier. What is there can be read.
    pub fn overlook(&self, name: &str) {
        lock(&self.0).overlooked.insert(name.to_owned());
    }

    /// The operation that is begun after `others` more is doomed, whatever it is.
    pub fn doom(&self, others: u64, doom: Doom) {
        lock(&self.0).doom = Some((others, doom));
    }

    /// Whether a doomed operation is still to come.
    #[must_use]
    pub fn is_doomed(&self) -> bool {
        lock(&self.0).doom.is_some()
    }

    /// Lets go on what hangs by [`Doom::Hang`]; nothing is doomed any more.
    pub fn revive(&self) {
        let mut state = lock(&self.0);
        state.doom = None;
        state.revivals += 1;
        std::mem::take(&mut state.hanging).into_iter().for_each(Waker::wake);
    }

    async fn hang(&self, since: u64) {
        poll_fn(|context| {
            let mut state = lock(&self.0);
            if state.revivals > since {
                return Poll::Ready(());
            }
            state.hanging.push(context.waker().clone());
            Poll::Pending
        })
        .await;
    }

    /// Gives other tasks a turn, as a real operation would, then carries `effect` out in one step.
    async fn perform<T>(
        &self,
        operation: Operation,
        effect: impl FnOnce(&mut State) -> io::Result<T>,
    ) -> io::Result<T> {
        let (failure, hangs_since) = {
            let mut state = lock(&self.0);
            *state.counts.entry(operation).or_default() += 1;
            let doom = state.doom.take();
            let (mut failure, mut hangs_since) = (None, None);
            match doom {
                Some((0, Doom::Hang)) => hangs_since = Some(state.revivals),
                Some((0, Doom::Fail(kind))) => failure = Some(kind),
                Some((others, doom)) => state.doom = Some((others - 1, doom)),
                None => {}
            }
            (failure.or_else(|| state.failures.get_mut(&operation).and_then(VecDeque::pop_front)), hangs_since)
        };
        futures_lite::future::yield_now().await;
        if let Some(since) = hangs_since {
            self.hang(since).await;
        }
        poll_fn(|context| match lock(&self.0).held.get_mut(&operation) {
            Some(waiting) => {
                waiting.push(context.waker().clone());
                Poll::Pending
            }
            None => Poll::Ready(()),
        })
        .await;
        match failure {
            Some(kind) => Err(kind.into()),
            None => effect(&mut lock(&self.0)),
        }
    }
}

impl Volume for MemoryVolume {
    type File = MemoryFile;

    async fn open(&self, path: &Path, mode: OpenMode) -> io::Result<MemoryFile> {
        let content = self.perform(Operation::Open, |state| state.open(path, mode)).await?;
        Ok(MemoryFile { volume: self.clone(), content, writable: mode != OpenMode::Read })
    }

    async fn list(&self, directory: &Path) -> io::Result<Vec<DirectoryEntry>> {
        self.perform(Operation::List, |state| {
            let entry = |(name, node): (&String, &Node)| DirectoryEntry {
                name: name.clone(),
                kind: match node {
                    Node::File(_) => EntryKind::File,
                    Node::Directory(_) => EntryKind::Directory,
                },
            };
            let entries: Vec<_> = state.directory(&names(directory)?)?.iter().map(entry).collect();
            Ok(entries.into_iter().filter(|entry| !state.overlooked.contains(&entry.name)).collect())
        })
        .await
    }

    async fn size(&self, path: &Path) -> io::Result<u64> {
        self.perform(Operation::Size, |state| state.file(path).map(|content| lock(&content).len() as u64)).await
    }

    async fn read(&self, path: &Path, limit_bytes: usize) -> io::Result<Vec<u8>> {
        self.perform(Operation::Read, |state| {
            let content = state.file(path)?;
            let content = lock(&content).clone();
            if content.len() > limit_bytes { Err(ErrorKind::FileTooLarge.into()) } else { Ok(content) }
        })
        .await
    }

    async fn write(&self, path: &Path, content: Vec<u8>) -> io::Result<()> {
        self.perform(Operation::Write, |state| {
            let file = match state.open(path, OpenMode::CreateNew) {
                Err(error) if error.kind() == ErrorKind::AlreadyExists => state.file(path)?,
                opened => opened?,
            };
            lock(&file).clear();
            state.put(&file, 0, &content)
        })
        .await
    }

    async fn overwrite(&self, path: &Path, content: Vec<u8>) -> io::Result<()> {
        self.perform(Operation::Overwrite, |state| {
            let file = state.file(path)?;
            state.put(&file, 0, &content)
        })
        .await
    }

    async fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.perform(Operation::Rename, |state| state.rename(from, to)).await
    }

    async fn unlink(&self, path: &Path) -> io::Result<()> {
        self.perform(Operation::Unlink, |state| {
            state.file(path)?;
            let (directory, name) = state.parent(path)?;
            directory.remove(name);
            Ok(())
        })
        .await
    }

    async fn create_directories(&self, path: &Path) -> io::Result<()> {
        self.perform(Operation::CreateDirectories, |state| {
            let mut directory = &mut state.root;
            for name in names(path)? {
                let node = directory.entry(name.to_owned()).or_insert_with(|| Node::Directory(Directory::new()));
                directory = match node {
                    Node::Directory(next) => next,
                    Node::File(_) => return Err(ErrorKind::NotADirectory.into()),
                };
            }
            Ok(())
        })
        .await
    }

    async fn remove_directory(&self, path: &Path) -> io::Result<()> {
        self.perform(Operation::RemoveDirectory, |state| {
            let (directory, name) = state.parent(path)?;
            match directory.get(name) {
                Some(Node::Directory(content)) if content.is_empty() => {}
                Some(Node::Directory(_)) => return Err(ErrorKind::DirectoryNotEmpty.into()),
                Some(Node::File(_)) => return Err(ErrorKind::NotADirectory.into()),
                None => return Err(ErrorKind::NotFound.into()),
            }
            directory.remove(name);
            Ok(())
        })
        .await
    }

    async fn sync_directory(&self, path: &Path) -> io::Result<()> {
        self.perform(Operation::SyncDirectory, |state| state.directory(&names(path)?).map(drop)).await
    }

    async fn space(&self, _path: &Path) -> io::Result<VolumeSpace> {
        self.perform(Operation::Space, |state| {
            let total_bytes = state.capacity_bytes.unwrap_or(UNLIMITED_TOTAL_BYTES);
            Ok(VolumeSpace { total_bytes, available_bytes: total_bytes.saturating_sub(used_bytes(&state.root)) })
        })
        .await
    }
}

/// A file of a [`MemoryVolume`]. Goes on after it was unlinked, as on a real file system.
#[derive(Debug)]
pub struct MemoryFile {
    volume: MemoryVolume,
    content: Content,
    writable: bool,
}

impl MemoryFile {
    fn check_writable(&self) -> io::Result<()> {
        if self.writable {
            Ok(())
        } else {
            Err(io::Error::new(ErrorKind::PermissionDenied, "the file is open for reading"))
        }
    }
}

impl VolumeFile for MemoryFile {
    async fn write_at(&self, offset: u64, content: Bytes) -> io::Result<()> {
        check_aligned_write(offset, &content)?;
        self.check_writable()?;
        let offset = usize::try_from(offset).map_err(|_| ErrorKind::FileTooLarge)?;
        self.volume.perform(Operation::WriteAt, |state| state.put(&self.content, offset, &content)).await
    }

    async fn read_at(&self, offset: u64, length: usize) -> io::Result<Bytes> {
        check_aligned_offset(offset)?;
        self.volume
            .perform(Operation::ReadAt, |_| {
                let content = lock(&self.content);
                let begin = usize::try_from(offset).unwrap_or(usize::MAX).min(content.len());
                let end = begin.saturating_add(length).min(content.len());
                let mut buffer = AlignedBuffer::with_capacity(end - begin);
                buffer.extend_from_slice(&content[begin..end]);
                Ok(buffer.freeze())
            })
            .await
    }

    async fn truncate(&self, length: u64) -> io::Result<()> {
        self.check_writable()?;
        let length = usize::try_from(length).map_err(|_| ErrorKind::FileTooLarge)?;
        self.volume
            .perform(Operation::Truncate, |_| {
                lock(&self.content).resize(length, 0);
                Ok(())
            })
            .await
    }

    async fn size(&self) -> io::Result<u64> {
        self.volume.perform(Operation::Size, |_| Ok(lock(&self.content).len() as u64)).await
    }

    async fn close(self) -> io::Result<()> {
        self.volume.perform(Operation::Close, |_| Ok(())).await
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]
    use futures_lite::future::block_on;

    use super::*;
    use crate::env::BLOCK_BYTES;

    fn path(text: &str) -> &Path {
        Path::new(text)
    }

    fn block(byte: u8) -> Bytes {
        let mut buffer = AlignedBuffer::zeroed(BLOCK_BYTES);
        buffer.fill(byte);
        buffer.freeze()
    }

    fn kind<T: std::fmt::Debug>(result: io::Result<T>) -> ErrorKind {
        result.unwrap_err().kind()
    }

    #[test]
    fn a_full_volume_heals() {
        block_on(async {
            let volume = MemoryVolume::default();
            volume.set_capacity(Some(6000));
            let file = volume.open(path("f"), OpenMode::CreateNew).await.unwrap();
            file.write_at(0, block(1)).await.unwrap();
            assert_eq!(kind(file.write_at(4096, block(2)).await), ErrorKind::StorageFull);
            file.write_at(0, block(3)).await.unwrap();
            assert_eq!(volume.space(path("")).await.unwrap(), VolumeSpace { total_bytes: 6000, available_bytes: 1904 });
            volume.set_capacity(None);
            file.write_at(4096, block(2)).await.unwrap();
        });
    }
}
