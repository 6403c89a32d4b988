//! A broker that stands still in the middle of a change of a topic, while another one deletes the topic and makes it anew: what the
//! first one does when it goes on leaves the new incarnation alone.
//!
//! The bug that this would find: acknowledged records of a topic that was made anew are removed with its former incarnation.

#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use kaas_coord::topics::disk::{Disk, FileSystem};
use kaas_coord::topics::{StoreError, StoredTopic, TopicDirectory};
use kaas_proto::types::{BrokerId, TopicId};

/// The file system of a broker that stands still before one of its steps, while something happens.
#[derive(Debug)]
struct Interrupted {
    root: PathBuf,
    /// Steps that are left before it.
    left: AtomicUsize,
    meanwhile: fn(&Path),
}

impl Interrupted {
    fn step(&self) {
        let left = self.left.load(Ordering::SeqCst);
        self.left.store(left.wrapping_sub(1), Ordering::SeqCst);
        if left == 0 {
            (self.meanwhile)(&self.root);
        }
    }
}

impl Disk for Interrupted {
    fn create_directory(&self, path: &Path) -> io::Result<()> {
        self.step();
        FileSystem.create_directory(path)
    }

    fn write(&self, path: &Path, content: &[u8]) -> io::Result<()> {
        self.step();
        FileSystem.write(path, content)
    }

    /// The kernel looks up the directories of both names, one after the other.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.step();
        let parent = fs::File::open(from.parent().unwrap())?;
        self.step();
        let found = Path::new("/proc/self/fd").join(parent.as_raw_fd().to_string());
        FileSystem.rename(&found.join(from.file_name().unwrap()), to)
    }

    fn sync_directory(&self, path: &Path) -> io::Result<()> {
        self.step();
        FileSystem.sync_directory(path)
    }

    fn revoke(&self, fence: &Path, line: &[u8]) -> io::Result<()> {
        self.step();
        FileSystem.revoke(fence, line)
    }

    fn remove_tree(&self, path: &Path) -> io::Result<()> {
        self.step();
        FileSystem.remove_tree(path)
    }
}

fn topic(id: u8, partitions: i32) -> StoredTopic {
    StoredTopic { name: "orders".into(), id: TopicId([id; 16]), partitions, own: BTreeMap::new() }
}

fn former() -> StoredTopic {
    topic(1, 2)
}

fn successor() -> StoredTopic {
    topic(2, 3)
}

/// A record that was acknowledged, of an incarnation.
fn record(root: &Path, topic: &StoredTopic) -> PathBuf {
    root.join("orders").join(topic.id.to_string()).join("0/00000001-00000000000000000000.log")
}

fn open(root: &Path, disk: Arc<dyn Disk>) -> TopicDirectory {
    TopicDirectory::open(&root.into(), BrokerId(1), disk).unwrap()
}

/// The other broker deletes the topic and makes it anew.
fn recreate(root: &Path) {
    open(root, Arc::new(FileSystem)).delete("orders", former().id).unwrap();
    create(root);
}

/// The same, and nothing is left of the former incarnation.
fn recreate_and_sweep(root: &Path) {
    let store = open(root, Arc::new(FileSystem));
    store.delete("orders", former().id).unwrap();
    sweep(&store);
    create(root);
}

/// The other broker makes the topic, or finds it made, and leads it.
fn create(root: &Path) {
    let _ = open(root, Arc::new(FileSystem)).create(&successor());
    let record = record(root, &successor());
    fs::write(record.with_file_name("00000001.fence"), "").unwrap();
    fs::write(record, "acknowledged").unwrap();
}

fn sweep(store: &TopicDirectory) {
    for aside in store.leftovers().unwrap() {
        store.reclaim(&aside).unwrap();
    }
}

/// Lets the other broker in before each step of a change of what was there before.
fn at_every_step(
    before: Option<StoredTopic>,
    others: &[fn(&Path)],
    change: impl Fn(&TopicDirectory) -> Result<(), StoreError>,
) {
    for &meanwhile in others {
        for step in 0.. {
            let directory = tempfile::tempdir().unwrap();
            let root = directory.path();
            let prepared = open(root, Arc::new(FileSystem));
            before.iter().for_each(|topic| prepared.create(topic).unwrap());
            let disk = Arc::new(Interrupted { root: root.to_owned(), left: AtomicUsize::new(usize::MAX), meanwhile });
            let stopped = open(root, Arc::clone(&disk) as Arc<dyn Disk>);
            disk.left.store(step, Ordering::SeqCst);
            // It may be refused: the topic that it is about is gone.
            let _ = change(&stopped);
            if disk.left.load(Ordering::SeqCst) <= step {
                assert!(step > 0, "the change has steps");
                break;
            }
            let after = open(root, Arc::new(FileSystem));
            sweep(&after);
            assert_eq!(after.list().unwrap(), [successor()], "before step {step}");
            assert_eq!(fs::read(record(root, &successor())).unwrap(), b"acknowledged", "before step {step}");
        }
    }
}

#[test]
fn a_deletion_that_comes_late_removes_nothing() {
    at_every_step(Some(former()), &[recreate, recreate_and_sweep], |store| store.delete("orders", former().id));
    at_every_step(Some(former()), &[recreate, recreate_and_sweep], |store| {
        store.delete("orders", former().id)?;
        store.leftovers()?.iter().try_for_each(|aside| store.reclaim(aside))
    });
}

#[test]
fn a_change_that_comes_late_changes_nothing() {
    at_every_step(Some(former()), &[recreate, recreate_and_sweep], |store| store.grow(&topic(1, 5), 2));
    let own = BTreeMap::from([("retention.ms".to_owned(), "5".to_owned())]);
    let configure = |store: &TopicDirectory| store.configure(&StoredTopic { own: own.clone(), ..former() });
    at_every_step(Some(former()), &[recreate, recreate_and_sweep], configure);
}

/// Both controllers were asked for one topic: its id is that of the object.
#[test]
fn a_creation_that_comes_late_takes_nothing_back() {
    at_every_step(None, &[create], |store| store.create(&successor()));
}

#[test]
fn what_was_set_aside_by_mistake_is_kept() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(directory.path(), Arc::new(FileSystem));
    store.create(&successor()).unwrap();
    // A broker that was killed before it could put it back.
    let aside = directory.path().join(format!(".deleting-{}", former().id));
    fs::rename(directory.path().join("orders"), &aside).unwrap();
    let error = store.reclaim(&aside).unwrap_err().to_string();
    assert!(error.contains(&successor().id.to_string()) && error.contains("was not deleted"), "{error}");
    fs::rename(&aside, directory.path().join("orders")).unwrap();
    assert_eq!(store.list().unwrap(), [successor()]);
}
