//! The topic store on a volume that stops at every step: what was before or what comes after, never something between.
//!
//! The bug that this would find: a topic that appears after a restart with half of its partitions, or one that was
//! acknowledged and is gone.

#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use kaas_coord::topics::disk::{Disk, FileSystem};
use kaas_coord::topics::{StoreError, StoredTopic, TopicDirectory};
use kaas_proto::types::{BrokerId, TopicId};

/// How a disk fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Failure {
    Never,
    /// From this step on nothing works: the process is gone.
    CrashAt(usize),
    /// This step fails, the next ones work.
    OnceAt(usize),
}

/// What a crash takes back if its directory was not synced.
#[derive(Debug)]
enum Unsynced {
    Created(PathBuf),
    Renamed { from: PathBuf, to: PathBuf },
}

#[derive(Debug)]
struct FaultyDisk {
    failure: Failure,
    steps: Mutex<usize>,
    unsynced: Mutex<Vec<Unsynced>>,
}

impl FaultyDisk {
    fn new(failure: Failure) -> Arc<Self> {
        Arc::new(Self { failure, steps: Mutex::new(0), unsynced: Mutex::new(Vec::new()) })
    }

    fn steps(&self) -> usize {
        *self.steps.lock().unwrap()
    }

    fn step(&self) -> io::Result<()> {
        let mut steps = self.steps.lock().unwrap();
        let now = *steps;
        *steps += 1;
        match self.failure {
            Failure::CrashAt(at) if now >= at => Err(io::Error::other("crashed")),
            Failure::OnceAt(at) if now == at => Err(io::Error::from(io::ErrorKind::StorageFull)),
            _ => Ok(()),
        }
    }

    fn note(&self, change: Unsynced) {
        self.unsynced.lock().unwrap().push(change);
    }

    fn lose_what_was_not_synced(&self) {
        for change in self.unsynced.lock().unwrap().drain(..).rev() {
            match change {
                Unsynced::Created(path) if path.is_dir() => fs::remove_dir_all(path).unwrap(),
                Unsynced::Created(path) => fs::remove_file(path).unwrap(),
                Unsynced::Renamed { from, to } => fs::rename(to, from).unwrap(),
            }
        }
    }
}

/// What the path names now, also where it goes by an open directory.
fn real(path: &Path) -> PathBuf {
    let name = path.file_name().unwrap();
    path.parent().unwrap().canonicalize().map_or_else(|_| path.to_owned(), |parent| parent.join(name))
}

impl Disk for FaultyDisk {
    fn create_directory(&self, path: &Path) -> io::Result<()> {
        self.step()?;
        if !path.exists() {
            self.note(Unsynced::Created(real(path)));
        }
        FileSystem.create_directory(path)
    }

    fn write(&self, path: &Path, content: &[u8]) -> io::Result<()> {
        if !path.exists() {
            self.note(Unsynced::Created(real(path)));
        }
        if let Err(error) = self.step() {
            // Cut off in the middle.
            fs::write(path, &content[..content.len() / 2])?;
            return Err(error);
        }
        FileSystem.write(path, content)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.step()?;
        let replaced = to.is_file();
        FileSystem.rename(from, to)?;
        // A replaced file can't be brought back; the other outcome, that the rename was kept, is tried as well.
        if !replaced {
            self.note(Unsynced::Renamed { from: real(from), to: real(to) });
        } else {
            let from = real(from);
            self.unsynced.lock().unwrap().retain(|change| !matches!(change, Unsynced::Created(path) if *path == from));
        }
        Ok(())
    }

    fn sync_directory(&self, path: &Path) -> io::Result<()> {
        self.step()?;
        let synced = path.canonicalize()?;
        self.unsynced.lock().unwrap().retain(|change| match change {
            Unsynced::Created(entry) | Unsynced::Renamed { to: entry, .. } => entry.parent() != Some(&*synced),
        });
        FileSystem.sync_directory(path)
    }

    fn revoke(&self, fence: &Path, line: &[u8]) -> io::Result<()> {
        self.step()?;
        FileSystem.revoke(fence, line)
    }

    fn remove_tree(&self, path: &Path) -> io::Result<()> {
        self.step()?;
        FileSystem.remove_tree(path)
    }
}

fn topic(partitions: i32) -> StoredTopic {
    StoredTopic {
        name: "orders".into(),
        id: TopicId(*b"one and the same"),
        partitions,
        own: BTreeMap::from([("retention.ms".to_owned(), "5".to_owned())]),
    }
}

fn store(root: &Path, disk: Arc<dyn Disk>) -> Result<TopicDirectory, StoreError> {
    TopicDirectory::open(&root.into(), BrokerId(1), disk)
}

fn reopened(root: &Path) -> TopicDirectory {
    let store = store(root, Arc::new(FileSystem)).unwrap();
    store.abandon_unfinished().unwrap();
    for leftover in store.leftovers().unwrap() {
        store.reclaim(&leftover).unwrap();
    }
    let hidden = fs::read_dir(root).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    assert_eq!(hidden.filter(|name| name.starts_with('.')).count(), 0, "no leftover");
    store
}

/// A whole topic has all its partition directories.
fn assert_whole(root: &Path, topic: &StoredTopic) {
    for partition in 0..topic.partitions {
        assert!(root.join(&*topic.name).join(topic.id.to_string()).join(partition.to_string()).is_dir());
    }
}

/// Runs `change` on a store that holds `before`, ending it at each of its steps, with and without losing what was not
/// synced, and hands what is found afterwards to `check`, with whether `change` said that it was done.
fn at_every_step(
    before: Option<&StoredTopic>,
    change: impl Fn(&TopicDirectory) -> Result<(), StoreError>,
    check: impl Fn(&Path, &[StoredTopic], bool),
) {
    let run = |failure: Failure, lossy: bool| {
        let root = tempfile::tempdir().unwrap();
        let root = root.path();
        let prepared = store(root, Arc::new(FileSystem)).unwrap();
        if let Some(topic) = before {
            prepared.create(topic).unwrap();
        }
        let opening = FaultyDisk::new(Failure::Never);
        store(root, Arc::clone(&opening) as Arc<dyn Disk>).unwrap();
        let failure = match failure {
            Failure::Never => failure,
            Failure::CrashAt(at) => Failure::CrashAt(at + opening.steps()),
            Failure::OnceAt(at) => Failure::OnceAt(at + opening.steps()),
        };
        let disk = FaultyDisk::new(failure);
        let store = store(root, Arc::clone(&disk) as Arc<dyn Disk>).unwrap();
        let done = change(&store).is_ok();
        if lossy {
            disk.lose_what_was_not_synced();
        }
        let found = reopened(root).list().unwrap();
        found.iter().for_each(|topic| assert_whole(root, topic));
        check(root, &found, done);
        disk.steps() - opening.steps()
    };
    let steps = run(Failure::Never, true);
    assert!(steps >= 2, "the change has steps");
    for step in 0..steps {
        for lossy in [false, true] {
            run(Failure::CrashAt(step), lossy);
        }
        run(Failure::OnceAt(step), false);
    }
}

#[test]
fn a_topic_is_created_whole_or_not_at_all() {
    let wanted = topic(3);
    at_every_step(
        None,
        |store| store.create(&wanted),
        |root, found, done| {
            assert!(found.is_empty() || found == [wanted.clone()]);
            assert!(!done || !found.is_empty(), "acknowledged and gone");
            if found.is_empty() {
                let again = StoredTopic { id: TopicId([9; 16]), ..wanted.clone() };
                reopened(root).create(&again).unwrap();
                assert_eq!(reopened(root).list().unwrap(), [again]);
            }
        },
    );
}

#[test]
fn one_failed_step_creates_nothing() {
    let wanted = topic(2);
    let disk = FaultyDisk::new(Failure::Never);
    let root = tempfile::tempdir().unwrap();
    store(root.path(), Arc::clone(&disk) as Arc<dyn Disk>).unwrap();
    let opening = disk.steps();
    for step in 0.. {
        let root = tempfile::tempdir().unwrap();
        let disk = FaultyDisk::new(Failure::OnceAt(opening + step));
        let store = store(root.path(), Arc::clone(&disk) as Arc<dyn Disk>).unwrap();
        match store.create(&wanted) {
            Ok(()) => return,
            Err(error) => {
                assert!(error.is_full());
                assert_eq!(store.list().unwrap(), [], "step {step}");
                assert_eq!(reopened(root.path()).list().unwrap(), []);
            }
        }
    }
}

#[test]
fn partitions_are_added_together() {
    let (before, after) = (topic(2), topic(5));
    at_every_step(
        Some(&before),
        |store| store.grow(&after, before.partitions),
        |_, found, done| {
            assert!(found == [before.clone()] || found == [after.clone()]);
            assert!(!done || found == [after.clone()], "acknowledged and gone");
        },
    );
}

#[test]
fn settings_change_together() {
    let before = topic(1);
    let own = BTreeMap::from([("cleanup.policy".to_owned(), "compact".to_owned())]);
    let after = StoredTopic { own, ..before.clone() };
    at_every_step(
        Some(&before),
        |store| store.configure(&after),
        |_, found, done| {
            assert!(found == [before.clone()] || found == [after.clone()]);
            assert!(!done || found == [after.clone()], "acknowledged and gone");
        },
    );
}

#[test]
fn a_topic_is_deleted_whole_or_not_at_all() {
    let before = topic(2);
    let reclaim = |store: &TopicDirectory| {
        store.delete("orders", before.id)?;
        store.leftovers()?.iter().try_for_each(|aside| store.reclaim(aside))
    };
    at_every_step(Some(&before), reclaim, |_, found, done| {
        assert!(found.is_empty() || found == [before.clone()]);
        assert!(!done || found.is_empty(), "deleted and back");
    });
}

#[test]
fn fences_are_revoked_before_they_are_removed() {
    let root = tempfile::tempdir().unwrap();
    let store = store(root.path(), Arc::new(FileSystem)).unwrap();
    let topic = topic(2);
    store.create(&topic).unwrap();
    let partition = root.path().join("orders").join(topic.id.to_string()).join("1");
    fs::write(partition.join("00000001.fence"), "").unwrap();
    fs::write(partition.join("00000001-00000000000000000000.log"), "records").unwrap();
    let mut held = fs::File::open(partition.join("00000001.fence")).unwrap();
    store.delete("orders", topic.id).unwrap();
    for aside in store.leftovers().unwrap() {
        store.reclaim(&aside).unwrap();
    }
    let mut line = String::new();
    held.read_to_string(&mut line).unwrap();
    assert_eq!(line, "{\"broker\":1,\"deleted\":true}\n", "a leader that holds it learns that it was revoked");
    assert!(!partition.exists());
}

#[test]
fn foreign_entries_are_left_alone() {
    let root = tempfile::tempdir().unwrap();
    for name in ["lost+found", ".snapshot", "no-topic"] {
        fs::create_dir(root.path().join(name)).unwrap();
    }
    fs::write(root.path().join("file"), "").unwrap();
    fs::create_dir(root.path().join("broken")).unwrap();
    fs::write(root.path().join("broken/.topic-id.json"), "{").unwrap();
    let store = store(root.path(), Arc::new(FileSystem)).unwrap();
    store.create(&topic(1)).unwrap();
    store.abandon_unfinished().unwrap();
    assert_eq!(store.list().unwrap(), [topic(1)]);
    assert_eq!(store.leftovers().unwrap(), Vec::<PathBuf>::new());
    for name in ["lost+found", ".snapshot", "no-topic", "file", "broken/.topic-id.json"] {
        assert!(root.path().join(name).exists(), "{name}");
    }
    let taken = StoredTopic { name: "broken".into(), ..topic(1) };
    let error = store.create(&taken).unwrap_err().to_string();
    assert!(error.starts_with("could not rename to") && error.contains("broken"), "{error}");
}
