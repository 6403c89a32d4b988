//! Topics: what clients ask for, decided ([`decide`]), made durable ([`directory`]), told to the shards ([`service`]).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use kaas_proto::reserve::Reserve;
use kaas_proto::types::TopicId;
use tokio::time::timeout;

pub mod decide;
pub mod directory;
pub mod disk;
pub mod names;
pub mod service;

pub use directory::{StoreError, TopicDirectory};

/// How long after a removal that failed it is tried again.
const SWEEP_PAUSE: Duration = Duration::from_secs(60);
/// The same for want of room: removing is what makes some.
const SWEEP_PAUSE_WHEN_FULL: Duration = Duration::from_secs(2);

/// How long a deletion that finds the volume full waits for the reserve to go.
const ROOM_WAIT: Duration = Duration::from_secs(2);

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

    /// Of all topics that have a directory.
    fn incarnations(&self) -> Result<BTreeSet<TopicId>, StoreError> {
        match self {
            Self::Directory(directory) => directory.incarnations(),
            Self::Memory => Ok(BTreeSet::new()),
        }
    }

    /// Removes what was renamed aside.
    pub(crate) fn sweep(&self) -> Swept {
        let Self::Directory(directory) = self else { return Swept::Clean };
        let leftovers = match directory.leftovers() {
            Ok(leftovers) => leftovers,
            Err(error) => {
                tracing::warn!("{error}; it is tried again later");
                return Swept::Later;
            }
        };
        // One line, however many there are: it may be the volume.
        let failed: Vec<_> = leftovers.iter().filter_map(|leftover| directory.reclaim(leftover).err()).collect();
        let Some(first) = failed.first() else { return Swept::Clean };
        tracing::warn!(leftovers = failed.len(), "{first}; it is tried again later");
        if failed.iter().any(StoreError::is_full) { Swept::NoRoom } else { Swept::Later }
    }
}

/// What a sweep leaves behind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Swept {
    Clean,
    /// Something failed: it is tried again.
    Later,
    /// The volume is so full that not even a fence can be revoked.
    NoRoom,
}

impl Swept {
    /// How long to wait before the next one, after having asked for room if that is what was missing; `None`: until there is
    /// something to do.
    pub(crate) fn pause(self, reserve: &Reserve) -> Option<Duration> {
        match self {
            Self::Clean => None,
            Self::Later => Some(SWEEP_PAUSE),
            Self::NoRoom => {
                reserve.ask_for_room();
                Some(SWEEP_PAUSE_WHEN_FULL)
            }
        }
    }
}

/// The volume is full: has the reserve given up. True if there is room now, and what needs it may be tried again.
pub(crate) async fn make_room(reserve: &Reserve) -> bool {
    timeout(ROOM_WAIT, reserve.make_room()).await.unwrap_or(false)
}

/// Runs what blocks on another thread.
pub(crate) async fn blocking<T: Send + 'static>(call: impl FnOnce() -> T + Send + 'static) -> T {
    tokio::task::spawn_blocking(call).await.expect("such calls do not panic, and the runtime outlives its tasks")
}
