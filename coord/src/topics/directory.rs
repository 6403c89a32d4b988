//! Topics on the volume.
//!
//! ```text
//! <data>/<topic>/.topic-id.json         which incarnation it is, and how many partitions it has
//! <data>/<topic>/.config.json           its own settings
//! <data>/<topic>/<topic id>/<partition>/
//! <data>/.creating-<topic id>/          a topic that is being made
//! <data>/.deleting-<topic id>/          one that is being removed
//! ```
//!
//! Every change has one commit point, and a crash leaves either what was before or what comes after it:
//!
//! | change | prepared | commit point | afterwards |
//! |---|---|---|---|
//! | create | the whole topic under `.creating-…`, synced | rename to its name, directory synced | |
//! | grow | the new partition directories, synced | rename of `.topic-id.json` | |
//! | configure | temporary file, synced | rename of `.config.json` | |
//! | delete | all shards have let go | rename to `.deleting-…`, directory synced | revoke each fence, remove |
//!
//! A name is not an identity: a process that was stopped for a while in the middle of a change may find another incarnation under
//! the topic's name, made by the broker that took its place. So each step by name looks first whether the incarnation that is meant
//! is there, a directory that was renamed is looked at again and put back if it is another one's, and what lies aside
//! is removed only if it holds nothing else.
//!
//! What a crash left of a topic that was being made is renamed to `.deleting-…` at the next start, and all of that kind is
//! removed in the background, again and again until it works. Whatever else lies in the data directory (`lost+found`, `.snapshot`, directories that are no topics) is left alone.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use kaas_proto::format::topic_config::{LIMIT_BYTES, StoredTopicConfig};
use kaas_proto::format::topic_id::TopicIdentity;
use kaas_proto::layout::{
    self, CLUSTER_DIRECTORY, COORDINATORS_DIRECTORY, PRODUCER_IDS_DIRECTORY, TOPIC_CONFIG_FILE, TOPIC_ID_FILE,
    incarnation_directory,
};
use kaas_proto::reserve::is_full;
use kaas_proto::roots::Roots;
use kaas_proto::topic_name;
use kaas_proto::types::{BrokerId, COORDINATOR_SLOTS, SlotId, TopicId};
use serde_json::json;

use super::StoredTopic;
use super::disk::Disk;

/// What failed, and where.
#[derive(Debug, thiserror::Error)]
#[error("could not {action} {path}: {source}")]
pub struct StoreError {
    action: &'static str,
    path: PathBuf,
    source: io::Error,
}

impl StoreError {
    /// No space, or no inode, is left.
    #[must_use]
    pub fn is_full(&self) -> bool {
        is_full(&self.source)
    }
}

/// The data directory, seen as a set of topics. Calls block.
#[derive(Debug)]
pub struct TopicDirectory {
    root: PathBuf,
    broker: BrokerId,
    disk: Arc<dyn Disk>,
}

impl TopicDirectory {
    /// Makes what every broker needs: `__cluster` and the directories of the coordinator slots. Something else in the place of one of those
    /// costs what would be in it, and is left alone.
    ///
    /// # Errors
    /// The volume is not writable.
    pub fn open(roots: &Roots, broker: BrokerId, disk: Arc<dyn Disk>) -> Result<Self, StoreError> {
        let store = Self { root: roots.data().to_owned(), broker, disk };
        let cluster = roots.cluster();
        let coordinators = cluster.join(COORDINATORS_DIRECTORY);
        store.create_directory(&cluster)?;
        store.provide_directory(&cluster.join(PRODUCER_IDS_DIRECTORY))?;
        store.provide_directory(&coordinators)?;
        for slot in 0..COORDINATOR_SLOTS {
            store.provide_directory(&roots.locate(&layout::slot_directory(SlotId(slot))))?;
        }
        for directory in [&coordinators, &cluster, &store.root] {
            store.sync_directory(directory)?;
        }
        Ok(store)
    }

    /// All topics, in order of name. What is no topic, or can't be read as one, is skipped with a log line.
    ///
    /// # Errors
    /// The data directory can't be listed.
    pub fn list(&self) -> Result<Vec<StoredTopic>, StoreError> {
        let mut topics = Vec::new();
        for name in self.directories()? {
            if topic_name::check(&name).is_err() {
                if !name.starts_with('.') && name != CLUSTER_DIRECTORY {
                    tracing::info!(directory = name, "skipped: no topic has such a name");
                }
                continue;
            }
            match self.load(&name) {
                Ok(topic) => topics.push(topic),
                Err(error) => tracing::warn!("{error}; the directory is left alone, it is not served as a topic"),
            }
        }
        topics.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(topics)
    }

    fn load(&self, name: &str) -> Result<StoredTopic, StoreError> {
        let directory = self.root.join(name);
        let identity = read(&directory.join(TOPIC_ID_FILE), TopicIdentity::decode)?;
        let stored = read(&directory.join(TOPIC_CONFIG_FILE), StoredTopicConfig::decode)?;
        // Settings of another incarnation do not count.
        let own = if stored.topic_id == identity.topic_id { stored.configs } else { BTreeMap::new() };
        Ok(StoredTopic { name: name.into(), id: identity.topic_id, partitions: identity.partitions, own })
    }

    /// Makes a topic, durably.
    ///
    /// # Errors
    /// The volume refused a step; there is no topic then. Or something of that name is there already.
    pub fn create(&self, topic: &StoredTopic) -> Result<(), StoreError> {
        let staged = self.root.join(layout::unfinished_directory(topic.id));
        let live = self.root.join(&*topic.name);
        if self.load(&topic.name).is_ok_and(|there| there == *topic) {
            // Made before: by an attempt that could not know it, or by another broker.
            return self.sync_directory(&self.root);
        }
        let mut renamed = false;
        let created = self.stage(topic, &staged).and_then(|()| {
            self.rename(&staged, &live)?;
            renamed = true;
            self.sync_directory(&self.root)
        });
        if created.is_err() {
            // The topic must not appear at the next start. If this fails too, the sweep of the next start ends it,
            // unless the rename was done and could not be undone: then the topic exists although the client was told no.
            // What another broker has made, or leads already, is not touched. And nothing is removed where it may still be
            // renamed from.
            let aside = self.root.join(layout::deleted_directory(topic.id));
            let _ = match renamed {
                true if fences(&live).is_ok_and(|fences| fences.is_empty()) => self.set_aside(&live, &aside, topic.id),
                true => Ok(()),
                false => self.rename(&staged, &aside),
            };
        }
        created
    }

    fn stage(&self, topic: &StoredTopic, staged: &Path) -> Result<(), StoreError> {
        let incarnation = staged.join(topic.id.to_string());
        self.create_directory(staged)?;
        self.create_directory(&incarnation)?;
        for partition in 0..topic.partitions {
            self.create_directory(&incarnation.join(partition.to_string()))?;
        }
        self.sync_directory(&incarnation)?;
        self.write(&staged.join(TOPIC_CONFIG_FILE), &config(topic))?;
        self.write(&staged.join(TOPIC_ID_FILE), &identity(topic))?;
        self.sync_directory(staged)
    }

    /// Gives a topic the partitions up to `topic.partitions`, durably.
    ///
    /// # Errors
    /// The volume refused a step; the topic has as many partitions as before.
    pub fn grow(&self, topic: &StoredTopic, former: i32) -> Result<(), StoreError> {
        let incarnation = self.root.join(incarnation_directory(&topic.name, topic.id));
        for partition in former..topic.partitions {
            self.create_directory(&incarnation.join(partition.to_string()))?;
        }
        self.sync_directory(&incarnation)?;
        self.replace(topic, TOPIC_ID_FILE, &identity(topic))
    }

    /// Replaces a topic's own settings, durably.
    ///
    /// # Errors
    /// The volume refused a step; the settings are those from before.
    pub fn configure(&self, topic: &StoredTopic) -> Result<(), StoreError> {
        self.replace(topic, TOPIC_CONFIG_FILE, &config(topic))
    }

    /// Takes a topic out of sight, durably. The shards must have let go of it. [`TopicDirectory::reclaim`] does the rest. If this
    /// incarnation is not there (any more), there is nothing to be done.
    ///
    /// # Errors
    /// The volume refused a step; the topic is there as before, or aside already. Doing it again carries on.
    pub fn delete(&self, topic: &str, id: TopicId) -> Result<(), StoreError> {
        self.set_aside(&self.root.join(topic), &self.root.join(layout::deleted_directory(id)), id)?;
        self.sync_directory(&self.root)
    }

    /// Renames the directory of a topic, if it is that of this incarnation.
    fn set_aside(&self, live: &Path, aside: &Path, id: TopicId) -> Result<(), StoreError> {
        if !holds(live, id)? {
            return Ok(());
        }
        self.rename(live, aside)?;
        if !holds(aside, id)? {
            // It came in between; whoever leads it has its files open.
            self.rename(aside, live)?;
        }
        Ok(())
    }

    /// Gives up topics that a crash left half made. Only at start: later they are being made.
    ///
    /// # Errors
    /// The data directory can't be listed, or the volume refused a step.
    pub fn abandon_unfinished(&self) -> Result<(), StoreError> {
        for name in self.directories()? {
            if let Some(id) = layout::parse_unfinished_directory(&name) {
                tracing::info!(directory = name, "removing a topic that was not finished when kaas ended");
                self.rename(&self.root.join(&name), &self.root.join(layout::deleted_directory(id)))?;
            }
        }
        Ok(())
    }

    /// What was renamed aside and is still there.
    ///
    /// # Errors
    /// The data directory can't be listed.
    pub fn leftovers(&self) -> Result<Vec<PathBuf>, StoreError> {
        let names = self.directories()?.into_iter();
        Ok(names
            .filter(|name| layout::parse_deleted_directory(name).is_some())
            .map(|name| self.root.join(name))
            .collect())
    }

    /// Revokes every fence below a directory that was renamed aside, so that a leader which has not heard of the
    /// deletion stops acknowledging, and removes it.
    ///
    /// # Errors
    /// The volume refused a step; doing it again carries on. Or the directory holds an incarnation that nobody has deleted.
    pub fn reclaim(&self, aside: &Path) -> Result<(), StoreError> {
        if let Some(other) = other_incarnation(aside).map_err(|source| failure("list", aside, source))? {
            let reason = format!("it holds topic {other}, which was not deleted: give it its name back");
            return Err(failure("remove", aside, io::Error::other(reason)));
        }
        let line = json!({ "deleted": true, "broker": self.broker }).to_string() + "\n";
        for fence in fences(aside).map_err(|source| failure("list", aside, source))? {
            self.disk.revoke(&fence, line.as_bytes()).map_err(|source| failure("revoke", &fence, source))?;
        }
        self.disk.remove_tree(aside).map_err(|source| failure("remove", aside, source))?;
        self.sync_directory(&self.root)
    }

    /// Through the directory itself, once it is known whose it is: its name may be that of another incarnation a moment later, also
    /// between the two names that a rename looks up.
    fn replace(&self, topic: &StoredTopic, file: &str, content: &[u8]) -> Result<(), StoreError> {
        let directory = self.root.join(&*topic.name);
        if content.len() > LIMIT_BYTES {
            return Err(failure("write", &directory.join(file), io::ErrorKind::FileTooLarge.into()));
        }
        let failed = |action| {
            let path = directory.join(file);
            move |source| failure(action, &path, source)
        };
        let opened = fs::File::open(&directory).map_err(failed("open the directory of"))?;
        let held = Path::new("/proc/self/fd").join(opened.as_raw_fd().to_string());
        if !holds(&held, topic.id)? {
            let reason = io::Error::other("another topic has taken its place");
            return Err(failure("change", &directory.join(topic.id.to_string()), reason));
        }
        let temporary = held.join(format!("{file}.{}.tmp", topic.id));
        self.write_limited(&temporary, content).map_err(failed("write"))?;
        self.disk.rename(&temporary, &held.join(file)).map_err(failed("rename to"))?;
        self.disk.sync_directory(&held).map_err(failed("sync the directory of"))
    }

    /// The ids of all topics that have a directory, also of those that can't be served.
    ///
    /// # Errors
    /// The volume can't be listed.
    pub fn incarnations(&self) -> Result<BTreeSet<TopicId>, StoreError> {
        let mut ids = BTreeSet::new();
        for name in self.directories()?.into_iter().filter(|name| topic_name::check(name).is_ok()) {
            let path = self.root.join(name);
            let names = list_directories(&path).map_err(|source| failure("list", &path, source))?;
            ids.extend(names.iter().filter_map(|name| name.parse::<TopicId>().ok()));
        }
        Ok(ids)
    }

    fn directories(&self) -> Result<Vec<String>, StoreError> {
        list_directories(&self.root).map_err(|source| failure("list", &self.root, source))
    }

    fn provide_directory(&self, path: &Path) -> Result<(), StoreError> {
        let is_foreign =
            |error: &io::Error| matches!(error.kind(), io::ErrorKind::AlreadyExists | io::ErrorKind::NotADirectory);
        match self.create_directory(path) {
            Err(error) if is_foreign(&error.source) => {
                tracing::error!(%error, "something else is in the place of a directory; it is left alone, and what needs it does not work");
                Ok(())
            }
            outcome => outcome,
        }
    }

    fn create_directory(&self, path: &Path) -> Result<(), StoreError> {
        self.disk.create_directory(path).map_err(|source| failure("create", path, source))
    }

    fn write(&self, path: &Path, content: &[u8]) -> Result<(), StoreError> {
        self.write_limited(path, content).map_err(|source| failure("write", path, source))
    }

    /// A topic's file; what no reader would take is not written.
    fn write_limited(&self, path: &Path, content: &[u8]) -> io::Result<()> {
        if content.len() > LIMIT_BYTES {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        self.disk.write(path, content)
    }

    fn rename(&self, from: &Path, to: &Path) -> Result<(), StoreError> {
        self.disk.rename(from, to).map_err(|source| failure("rename to", to, source))
    }

    fn sync_directory(&self, path: &Path) -> Result<(), StoreError> {
        self.disk.sync_directory(path).map_err(|source| failure("sync", path, source))
    }
}

fn failure(action: &'static str, path: &Path, source: io::Error) -> StoreError {
    StoreError { action, path: path.to_owned(), source }
}

fn identity(topic: &StoredTopic) -> Vec<u8> {
    TopicIdentity { topic_id: topic.id, partitions: topic.partitions }.encode()
}

fn config(topic: &StoredTopic) -> Vec<u8> {
    StoredTopicConfig { topic_id: topic.id, configs: topic.own.clone() }.encode()
}

fn read<T, E>(path: &Path, decode: impl Fn(&[u8]) -> Result<T, E>) -> Result<T, StoreError>
where
    E: std::error::Error + Send + Sync + 'static,
{
    let content = fs::read(path).map_err(|source| failure("read", path, source))?;
    decode(&content).map_err(|error| failure("understand", path, io::Error::other(error)))
}

/// Names that are not UTF-8 are none of ours.
fn list_directories(path: &Path) -> io::Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in fs::read_dir(path)? {
        let entry = entry?;
        if entry.file_type()?.is_dir()
            && let Ok(name) = entry.file_name().into_string()
        {
            names.push(name);
        }
    }
    Ok(names)
}

/// Whether a directory is that of this incarnation of a topic.
fn holds(directory: &Path, id: TopicId) -> Result<bool, StoreError> {
    let incarnation = directory.join(id.to_string());
    incarnation.try_exists().map_err(|source| failure("look for", &incarnation, source))
}

/// An incarnation in a directory that was renamed aside for another one.
fn other_incarnation(aside: &Path) -> io::Result<Option<TopicId>> {
    let named = |path: &Path| path.file_name().and_then(|name| name.to_str().map(str::to_owned));
    let meant = named(aside).and_then(|name| layout::parse_deleted_directory(&name));
    let found = children(aside)?.into_iter().filter_map(|path| named(&path)?.parse().ok());
    Ok(found.into_iter().find(|&id| Some(id) != meant))
}

/// `<aside>/<topic id>/<partition>/*.fence`; none if the directory is gone.
fn fences(aside: &Path) -> io::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for incarnation in children(aside)? {
        for partition in children(&incarnation)? {
            found.extend(
                children(&partition)?.into_iter().filter(|path| path.extension().is_some_and(|e| e == "fence")),
            );
        }
    }
    Ok(found)
}

fn children(path: &Path) -> io::Result<Vec<PathBuf>> {
    match fs::read_dir(path) {
        Ok(entries) => entries.map(|entry| entry.map(|entry| entry.path())).collect(),
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => Ok(Vec::new()),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]
    use super::super::disk::FileSystem;
    use super::*;

    #[test]
    fn settings_that_no_broker_would_read_are_not_written() {
        let root = tempfile::tempdir().unwrap();
        let directory = TopicDirectory::open(&root.path().into(), BrokerId(1), Arc::new(FileSystem)).unwrap();
        let mut topic =
            StoredTopic { name: "t".into(), id: TopicId(*b"an id of a topic"), partitions: 1, own: BTreeMap::new() };
        directory.create(&topic).unwrap();
        topic.own.insert("leader.replication.throttled.replicas".into(), "0:1,".repeat(LIMIT_BYTES / 4));
        let refused = directory.configure(&topic).unwrap_err();
        assert_eq!(refused.source.kind(), io::ErrorKind::FileTooLarge);
        let listed = directory.list().unwrap();
        assert!(listed.len() == 1 && listed[0].own.is_empty(), "{listed:?}");
    }
}
