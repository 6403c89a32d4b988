//! [`VolumeFile`] of one process. Goes on after it was unlinked, unless the server forgets such files.

use std::io::{self, ErrorKind};
use std::path::Path;
use std::rc::Rc;

use bytes::Bytes;

use super::super::{AlignedBuffer, VolumeFile, check_aligned_offset, check_aligned_write};
use super::flight::OwnedChange;
use super::tree::{FileRef, Tree};
use super::volume::{Call, SimVolume};
use super::{Operation, SimRandom};

/// What a torn write leaves whole.
const SECTOR_BYTES: usize = 512;

pub struct SimFile {
    volume: SimVolume,
    inode: FileRef,
    writable: bool,
    /// The size when it was opened.
    known_size: u64,
    what: Rc<str>,
}

impl SimFile {
    pub(super) fn new(volume: SimVolume, inode: FileRef, path: &Path, writable: bool) -> Self {
        let known_size = inode.borrow().content.len() as u64;
        Self { volume, inode, writable, known_size, what: path.display().to_string().into() }
    }

    fn check_writable(&self) -> io::Result<()> {
        if self.writable {
            Ok(())
        } else {
            Err(io::Error::new(ErrorKind::PermissionDenied, "the file is open for reading"))
        }
    }

    /// An operation on the open file, whatever its name is by now.
    fn call<T>(
        &self,
        operation: Operation,
        what: String,
        effect: impl FnOnce(&mut Tree, &FileRef) -> io::Result<T> + 'static,
    ) -> Call<T> {
        let (inode, client) = (Rc::clone(&self.inode), self.volume.process().client());
        Call::new(operation, what, move |tree| {
            tree.check_handle(client, &inode)?;
            effect(tree, &inode)
        })
    }
}

/// Which sectors of a torn write land: the first ones, or any.
fn landed_sectors(count: usize, random: &SimRandom) -> Vec<usize> {
    if random.chance(500) {
        let landed = random.below(count as u64 + 1);
        (0..usize::try_from(landed).expect("below a length")).collect()
    } else {
        (0..count).filter(|_| random.chance(500)).collect()
    }
}

impl VolumeFile for SimFile {
    async fn write_at(&self, offset: u64, content: Bytes) -> io::Result<()> {
        check_aligned_write(offset, &content)?;
        self.check_writable()?;
        let what = format!("{} at {offset}, {} bytes", self.what, content.len());
        let offset = usize::try_from(offset).map_err(|_| ErrorKind::FileTooLarge)?;
        let simulation = self.volume.simulation();
        let sectors = landed_sectors(content.len() / SECTOR_BYTES, &simulation.0.random);
        let (torn_inode, torn_content) = (Rc::clone(&self.inode), content.clone());
        let (watcher, process) = (simulation.clone(), self.volume.process().id());
        let client = self.volume.process().client();
        let call = self.call(Operation::WriteAt, what, move |tree, inode| {
            tree.put(client, inode, offset, &content)?;
            let mut inode = inode.borrow_mut();
            if inode.writers.insert(process) && inode.writers.len() > 1 {
                watcher.violated(format!("{} is written by more than one process: {:?}", inode.path, inode.writers));
            }
            Ok(())
        });
        let tear = move |tree: &mut Tree| {
            for sector in sectors {
                let bytes = &torn_content[sector * SECTOR_BYTES..(sector + 1) * SECTOR_BYTES];
                // One that finds no room is as good as lost.
                drop(tree.put(client, &torn_inode, offset + sector * SECTOR_BYTES, bytes));
            }
        };
        self.volume.perform(call.torn(tear)).await
    }

    async fn read_at(&self, offset: u64, length: usize) -> io::Result<Bytes> {
        check_aligned_offset(offset)?;
        let what = format!("{} at {offset}, {length} bytes", self.what);
        let read = move |_: &mut Tree, inode: &FileRef| {
            let content = &inode.borrow().content;
            let begin = usize::try_from(offset).unwrap_or(usize::MAX).min(content.len());
            let end = begin.saturating_add(length).min(content.len());
            let mut buffer = AlignedBuffer::with_capacity(end - begin);
            buffer.extend_from_slice(&content[begin..end]);
            Ok(buffer.freeze())
        };
        self.volume.perform(self.call(Operation::ReadAt, what, read)).await
    }

    async fn truncate(&self, length: u64) -> io::Result<()> {
        self.check_writable()?;
        let bytes = usize::try_from(length).map_err(|_| ErrorKind::FileTooLarge)?;
        let (path, client) = (self.inode.borrow().path.clone(), self.volume.process().client());
        let call = self.call(Operation::Truncate, format!("{} to {length}", self.what), move |tree, inode| {
            tree.cut(client, inode, bytes);
            Ok(())
        });
        self.volume.perform(call.guarded(OwnedChange::Cut(path, length))).await
    }

    async fn size(&self) -> io::Result<u64> {
        let (client, known) = (self.volume.process().client(), self.known_size);
        let size = move |tree: &mut Tree, inode: &FileRef| Ok(tree.believed_size_of(client, inode, known));
        self.volume.perform(self.call(Operation::Size, self.what.to_string(), size)).await
    }

    async fn close(self) -> io::Result<()> {
        self.volume.perform(Call::new(Operation::Close, self.what.to_string(), |_| Ok(()))).await
    }
}

impl Drop for SimFile {
    fn drop(&mut self) {
        let (simulation, client) = (self.volume.simulation(), self.volume.process().client());
        // While the server is in the middle of something, or a failed test unwinds, nothing may panic here.
        if let Ok(mut tree) = simulation.0.tree.try_borrow_mut() {
            tree.close(client, &self.inode);
        }
    }
}

impl std::fmt::Debug for SimFile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SimFile").field("path", &self.what).finish_non_exhaustive()
    }
}
