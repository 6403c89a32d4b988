//! Topics: what clients ask for, decided ([`decide`]), made durable ([`directory`]), told to the shards ([`service`]).

use std::collections::BTreeMap;
use std::sync::Arc;

use kaas_proto::types::TopicId;

pub mod decide;
pub mod directory;
pub mod disk;
pub mod names;
pub mod service;

pub use directory::{StoreError, TopicDirectory};

/// A topic as it is stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredTopic {
    pub name: Arc<str>,
    pub id: TopicId,
    pub partitions: i32,
    /// Its own settings.
    pub own: BTreeMap<String, String>,
}

/// Where topics are kept. Calls block.
#[derive(Clone, Debug)]
pub enum TopicStore {
    Directory(Arc<TopicDirectory>),
    /// Local-dev mode: nothing outlives the process, so there is nothing to keep beside the cluster view.
    Memory,
}

impl TopicStore {
    fn create(&self, topic: &StoredTopic) -> Result<(), StoreError> {
        match self {
            Self::Directory(directory) => directory.create(topic),
            Self::Memory => Ok(()),
        }
    }

    fn grow(&self, topic: &StoredTopic, former: i32) -> Result<(), StoreError> {
        match self {
            Self::Directory(directory) => directory.grow(topic, former),
            Self::Memory => Ok(()),
        }
    }

    fn configure(&self, topic: &StoredTopic) -> Result<(), StoreError> {
        match self {
            Self::Directory(directory) => directory.configure(topic),
            Self::Memory => Ok(()),
        }
    }

    fn delete(&self, topic: &str, id: TopicId) -> Result<(), StoreError> {
        match self {
            Self::Directory(directory) => directory.delete(topic, id),
            Self::Memory => Ok(()),
        }
    }

    /// Removes what was renamed aside, and says whether nothing of it is left.
    pub(crate) fn sweep(&self) -> bool {
        let Self::Directory(directory) = self else { return true };
        let leftovers = match directory.leftovers() {
            Ok(leftovers) => leftovers,
            Err(error) => {
                tracing::warn!("{error}; it is tried again later");
                return false;
            }
        };
        // One line, however many there are: it may be the volume.
        let mut failed = leftovers.iter().filter_map(|leftover| directory.reclaim(leftover).err());
        let Some(first) = failed.next() else { return true };
        tracing::warn!(leftovers = 1 + failed.count(), "{first}; it is tried again later");
        false
    }
}

/// Runs what blocks on another thread.
pub(crate) async fn blocking<T: Send + 'static>(call: impl FnOnce() -> T + Send + 'static) -> T {
    tokio::task::spawn_blocking(call).await.expect("such calls do not panic, and the runtime outlives its tasks")
}
