//! The files and names of the simulated server, what of them a power loss takes back, and what its clients believe.
//!
//! Contents are durable at once: every write through [`super::super::Volume`] is stable when it returns. Names are durable
//! once their directory was synced, or at once where the server says so (NFS).

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, ErrorKind};
use std::path::Path;
use std::rc::{Rc, Weak};
use std::time::Duration;

use kaas_proto::types::TimestampMs;

use super::super::path::{check_rename, names};
use super::super::virtual_time::VirtualTime;
use super::super::{DirectoryEntry, EntryKind, MonotonicTime, OpenMode, VolumeSpace};
use super::process::{ClientId, ProcessId};
use super::random::SimRandom;

/// How long a client may believe what it was told of a file.
const ATTRIBUTE_CACHE: Duration = Duration::from_secs(60);
/// What a volume without a limit says that it holds.
const UNLIMITED_TOTAL_BYTES: u64 = 1 << 40;

pub(super) type FileRef = Rc<RefCell<Inode>>;

#[derive(Debug, Default)]
pub(super) struct Inode {
    pub content: Vec<u8>,
    /// The whole content before it was cut; a power loss may bring it back until something else is written.
    before_cut: Option<Vec<u8>>,
    /// Its name, or the last one that it had.
    pub path: String,
    /// Open handles per client.
    handles: BTreeMap<ClientId, usize>,
    /// A client that removed it while it had it open keeps it under this name until it closes it.
    ghost: Option<(ClientId, String)>,
    /// It has no name any more, and this client removed it.
    removed_by: Option<ClientId>,
    /// Who changed it last: that client knows its size.
    changed_by: Option<ClientId>,
    pub writers: BTreeSet<ProcessId>,
    modified: TimestampMs,
}

#[derive(Clone, Debug)]
enum Node {
    File(FileRef),
    Directory,
}

/// A name, and what it stood for before.
type Undo = Vec<(String, Option<Node>)>;

#[derive(Debug, Default)]
struct Directory {
    names: BTreeMap<String, Node>,
    unsynced: Vec<Undo>,
}

#[derive(Debug)]
pub(super) struct Tree {
    /// By path; the root's is empty.
    directories: BTreeMap<String, Directory>,
    pub capacity_bytes: Option<u64>,
    /// As an NFS server that answers only when a name is durable.
    pub names_are_durable: bool,
    /// Files that another client has removed can't be used any more through open handles.
    pub removed_files_are_stale: bool,
    ghosts: u64,
    /// What a client has open although the name stands for something else by now.
    former: BTreeMap<(ClientId, String), Weak<RefCell<Inode>>>,
    seen_sizes: BTreeMap<(ClientId, String), (u64, MonotonicTime)>,
    random: SimRandom,
    clock: VirtualTime,
}

fn join(directory: &str, name: &str) -> String {
    if directory.is_empty() { name.to_owned() } else { format!("{directory}/{name}") }
}

/// The directory and the last name of a path.
fn split(path: &Path) -> io::Result<(String, String)> {
    let names = names(path)?;
    let (last, parents) = names.split_last().ok_or(ErrorKind::IsADirectory)?;
    Ok((parents.join("/"), (*last).to_owned()))
}

impl Tree {
    pub(super) fn new(random: SimRandom, clock: VirtualTime) -> Self {
        Self {
            directories: BTreeMap::from([(String::new(), Directory::default())]),
            capacity_bytes: None,
            names_are_durable: false,
            removed_files_are_stale: false,
            ghosts: 0,
            former: BTreeMap::new(),
            seen_sizes: BTreeMap::new(),
            random,
            clock,
        }
    }

    fn directory(&mut self, path: &str) -> io::Result<&mut Directory> {
        if self.directories.contains_key(path) {
            return Ok(self.directories.get_mut(path).expect("it is there"));
        }
        // A file on the way, or nothing.
        let mut way = path;
        while let Some((parent, name)) = way.rsplit_once('/').or((!way.is_empty()).then_some(("", way))) {
            match self.directories.get(parent).and_then(|directory| directory.names.get(name)) {
                Some(Node::File(_)) => return Err(ErrorKind::NotADirectory.into()),
                Some(Node::Directory) => break,
                None => way = parent,
            }
        }
        Err(ErrorKind::NotFound.into())
    }

    /// Lets names stand for something else, in one step that a power loss takes back whole or not at all.
    fn change(&mut self, directory: &str, changes: Vec<(String, Option<Node>)>) {
        let durable = self.names_are_durable;
        let directory = self.directories.get_mut(directory).expect("looked up before");
        let mut undo = Undo::new();
        for (name, node) in changes {
            let former = match node {
                Some(node) => directory.names.insert(name.clone(), node),
                None => directory.names.remove(&name),
            };
            undo.push((name, former));
        }
        if !durable {
            directory.unsynced.push(undo);
        }
    }

    /// The file that a name stands for on the server.
    fn file(&mut self, path: &Path) -> io::Result<FileRef> {
        let (directory, name) = split(path)?;
        match self.directory(&directory)?.names.get(&name) {
            Some(Node::File(file)) => Ok(Rc::clone(file)),
            Some(Node::Directory) => Err(ErrorKind::IsADirectory.into()),
            None => Err(ErrorKind::NotFound.into()),
        }
    }

    /// The file that a client takes a name for: while it has open what the name stood for, that may be the old one.
    fn believed_file(&mut self, client: ClientId, path: &Path) -> io::Result<FileRef> {
        let key = (client, names(path)?.join("/"));
        if let Some(former) = self.former.get(&key) {
            let former = former.upgrade().filter(|file| file.borrow().handles.contains_key(&client));
            match former {
                Some(file) if self.random.chance(500) => return Ok(file),
                Some(_) => {}
                None => drop(self.former.remove(&key)),
            }
        }
        self.file(path)
    }

    pub(super) fn open(&mut self, client: ClientId, path: &Path, mode: OpenMode) -> io::Result<FileRef> {
        let file = if mode == OpenMode::CreateNew { self.create(path)? } else { self.believed_file(client, path)? };
        *file.borrow_mut().handles.entry(client).or_default() += 1;
        Ok(file)
    }

    fn create(&mut self, path: &Path) -> io::Result<FileRef> {
        let (directory, name) = split(path)?;
        if self.directory(&directory)?.names.contains_key(&name) {
            return Err(ErrorKind::AlreadyExists.into());
        }
        let file = FileRef::new(RefCell::new(Inode { path: join(&directory, &name), ..Inode::default() }));
        self.change(&directory, vec![(name, Some(Node::File(Rc::clone(&file))))]);
        Ok(file)
    }

    /// A handle is gone; with the last one of its client a ghost goes too.
    pub(super) fn close(&mut self, client: ClientId, file: &FileRef) {
        let mut inode = file.borrow_mut();
        let Some(handles) = inode.handles.get_mut(&client) else { return };
        *handles -= 1;
        if *handles > 0 {
            return;
        }
        inode.handles.remove(&client);
        if let Some((_, ghost)) = inode.ghost.take_if(|(owner, _)| *owner == client) {
            let (directory, name) = ghost.rsplit_once('/').unwrap_or(("", &ghost));
            inode.removed_by = Some(client);
            if let Some(directory) = self.directories.get_mut(directory) {
                directory.names.remove(name);
            }
        }
    }

    /// # Errors
    /// Another client has removed the file, and this server does not keep it for those who have it open.
    pub(super) fn check_handle(&self, client: ClientId, file: &FileRef) -> io::Result<()> {
        let removed = file.borrow().removed_by.is_some_and(|remover| remover != client);
        if removed && self.removed_files_are_stale { Err(ErrorKind::StaleNetworkFileHandle.into()) } else { Ok(()) }
    }

    pub(super) fn list(&mut self, path: &Path) -> io::Result<Vec<DirectoryEntry>> {
        let kind = |node: &Node| if matches!(node, Node::File(_)) { EntryKind::File } else { EntryKind::Directory };
        let directory = self.directory(&names(path)?.join("/"))?;
        let entry = |(name, node): (&String, &Node)| DirectoryEntry { name: name.clone(), kind: kind(node) };
        Ok(directory.names.iter().map(entry).collect())
    }

    /// The size as the client knows it, which may be a minute old.
    pub(super) fn believed_size(&mut self, client: ClientId, path: &Path) -> io::Result<u64> {
        // When the server looks: of two calls the later one may be quicker.
        let now = self.clock.now();
        let file = self.believed_file(client, path)?;
        let (size, is_own) = (file.borrow().content.len() as u64, file.borrow().changed_by == Some(client));
        let key = (client, names(path)?.join("/"));
        match self.seen_sizes.get(&key) {
            Some(&(seen, at))
                if !is_own
                    && Duration::from_nanos(now.0.saturating_sub(at.0)) < ATTRIBUTE_CACHE
                    && self.random.chance(500) =>
            {
                Ok(seen)
            }
            _ => {
                self.seen_sizes.insert(key, (size, now));
                Ok(size)
            }
        }
    }

    /// The size of an open file as its client knows it, given the one that it knew when it opened the file.
    pub(super) fn believed_size_of(&self, client: ClientId, file: &FileRef, known: u64) -> u64 {
        let inode = file.borrow();
        let may_be_old = inode.changed_by.is_some_and(|changer| changer != client);
        if may_be_old && self.random.chance(500) { known } else { inode.content.len() as u64 }
    }

    /// By the clock of the server.
    pub(super) fn modified(&mut self, path: &Path) -> io::Result<TimestampMs> {
        Ok(self.file(path)?.borrow().modified)
    }

    pub(super) fn read(&mut self, client: ClientId, path: &Path, limit_bytes: usize) -> io::Result<Vec<u8>> {
        let content = self.believed_file(client, path)?.borrow().content.clone();
        if content.len() > limit_bytes { Err(ErrorKind::FileTooLarge.into()) } else { Ok(content) }
    }

    /// Creates or empties the file, then fills it.
    pub(super) fn write(&mut self, client: ClientId, path: &Path, content: &[u8]) -> io::Result<()> {
        let file = match self.create(path) {
            Err(error) if error.kind() == ErrorKind::AlreadyExists => self.file(path)?,
            created => created?,
        };
        file.borrow_mut().content.clear();
        self.put(client, &file, 0, content)
    }

    pub(super) fn overwrite(&mut self, client: ClientId, path: &Path, content: &[u8]) -> io::Result<()> {
        let file = self.believed_file(client, path)?;
        self.put(client, &file, 0, content)
    }

    /// Puts `bytes` at `offset`, with zeros between the old end and there.
    pub(super) fn put(&mut self, client: ClientId, file: &FileRef, offset: usize, bytes: &[u8]) -> io::Result<()> {
        let end = offset + bytes.len();
        let growth = end.saturating_sub(file.borrow().content.len()) as u64;
        if let Some(capacity) = self.capacity_bytes
            && growth > 0
            && self.used_bytes() + growth > capacity
        {
            return Err(ErrorKind::StorageFull.into());
        }
        let mut inode = file.borrow_mut();
        if inode.content.len() < end {
            inode.content.resize(end, 0);
        }
        inode.content[offset..end].copy_from_slice(bytes);
        inode.before_cut = None;
        inode.changed_by = Some(client);
        inode.modified = self.clock.wall_clock();
        Ok(())
    }

    pub(super) fn cut(&mut self, client: ClientId, file: &FileRef, length: usize) {
        let mut inode = file.borrow_mut();
        if !self.names_are_durable && inode.before_cut.is_none() {
            inode.before_cut = Some(inode.content.clone());
        }
        inode.content.resize(length, 0);
        inode.changed_by = Some(client);
    }

    pub(super) fn used_bytes(&self) -> u64 {
        let files = self.directories.values().flat_map(|directory| directory.names.values());
        let bytes = |node: &Node| match node {
            Node::File(file) => file.borrow().content.len() as u64,
            Node::Directory => 0,
        };
        files.map(bytes).sum()
    }

    pub(super) fn space(&self) -> VolumeSpace {
        let total_bytes = self.capacity_bytes.unwrap_or(UNLIMITED_TOTAL_BYTES);
        VolumeSpace { total_bytes, available_bytes: total_bytes.saturating_sub(self.used_bytes()) }
    }

    pub(super) fn rename(&mut self, client: ClientId, from: &Path, to: &Path) -> io::Result<()> {
        check_rename(from, to)?;
        let ((directory, from), (_, to)) = (split(from)?, split(to)?);
        let target = self.directory(&directory)?.names.get(&to).cloned();
        let node = self.directory(&directory)?.names.get(&from).cloned().ok_or(ErrorKind::NotFound)?;
        let mut changes = match (&node, target) {
            (Node::Directory, _) => return Err(ErrorKind::Unsupported.into()),
            (_, Some(Node::Directory)) => return Err(ErrorKind::IsADirectory.into()),
            (Node::File(_), None) => Vec::new(),
            (Node::File(_), Some(Node::File(target))) => self.take_name(client, &directory, &to, &target),
        };
        if let Node::File(file) = &node {
            file.borrow_mut().path = join(&directory, &to);
        }
        changes.extend([(from, None), (to, Some(node))]);
        self.change(&directory, changes);
        Ok(())
    }

    pub(super) fn unlink(&mut self, client: ClientId, path: &Path) -> io::Result<()> {
        let file = self.file(path)?;
        let (directory, name) = split(path)?;
        let mut changes = self.take_name(client, &directory, &name, &file);
        changes.push((name, None));
        self.change(&directory, changes);
        Ok(())
    }

    /// A file loses its name: to its own client it stays under another one while it is open, others may go on taking the
    /// name for it. Returns the change that makes the ghost.
    fn take_name(&mut self, client: ClientId, directory: &str, name: &str, file: &FileRef) -> Undo {
        let path = join(directory, name);
        let mut inode = file.borrow_mut();
        for &holder in inode.handles.keys().filter(|&&holder| holder != client) {
            self.former.insert((holder, path.clone()), Rc::downgrade(file));
        }
        if !inode.handles.contains_key(&client) {
            inode.removed_by = Some(client);
            return Vec::new();
        }
        self.ghosts += 1;
        let ghost = format!(".nfs{:024x}", self.ghosts);
        inode.ghost = Some((client, join(directory, &ghost)));
        vec![(ghost, Some(Node::File(Rc::clone(file))))]
    }

    pub(super) fn create_directories(&mut self, path: &Path) -> io::Result<()> {
        let mut directory = String::new();
        for name in names(path)? {
            let names = &mut self.directory(&directory)?.names;
            match names.get(name) {
                Some(Node::File(_)) => return Err(ErrorKind::NotADirectory.into()),
                Some(Node::Directory) => {}
                None => drop(names.insert(name.to_owned(), Node::Directory)),
            }
            directory = join(&directory, name);
            self.directories.entry(directory.clone()).or_default();
        }
        Ok(())
    }

    pub(super) fn remove_directory(&mut self, path: &Path) -> io::Result<()> {
        let (parent, name) = split(path)?;
        match self.directory(&parent)?.names.get(&name) {
            Some(Node::Directory) => {}
            Some(Node::File(_)) => return Err(ErrorKind::NotADirectory.into()),
            None => return Err(ErrorKind::NotFound.into()),
        }
        let directory = join(&parent, &name);
        if !self.directory(&directory)?.names.is_empty() {
            return Err(ErrorKind::DirectoryNotEmpty.into());
        }
        self.directories.remove(&directory);
        self.directory(&parent)?.names.remove(&name);
        Ok(())
    }

    pub(super) fn sync_directory(&mut self, path: &Path) -> io::Result<()> {
        self.directory(&names(path)?.join("/"))?.unsynced.clear();
        Ok(())
    }

    /// Power is lost: of every directory a first part of what was not synced remains; nobody has anything open.
    pub(super) fn lose_unsynced(&mut self) {
        for (path, directory) in &mut self.directories {
            let keep = self.random.below(directory.unsynced.len() as u64 + 1);
            let lost = directory.unsynced.split_off(usize::try_from(keep).expect("below a length"));
            directory.unsynced.clear();
            for (name, former) in lost.into_iter().rev().flat_map(|undo| undo.into_iter().rev()) {
                match former {
                    Some(Node::File(file)) => {
                        let mut inode = file.borrow_mut();
                        (inode.path, inode.removed_by, inode.ghost) = (join(path, &name), None, None);
                        drop(inode);
                        directory.names.insert(name, Node::File(file));
                    }
                    Some(Node::Directory) => drop(directory.names.insert(name, Node::Directory)),
                    None => drop(directory.names.remove(&name)),
                }
            }
            for node in directory.names.values() {
                let Node::File(file) = node else { continue };
                let mut inode = file.borrow_mut();
                inode.handles.clear();
                inode.ghost = None;
                if let Some(content) = inode.before_cut.take()
                    && self.random.chance(500)
                {
                    inode.content = content;
                }
            }
        }
        self.former.clear();
        self.seen_sizes.clear();
    }
}
