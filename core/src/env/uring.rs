//! The production [`Env`]: tasks, timers and clocks of a glommio executor, files through a ring of our own.
//!
//! glommio's direct files open with a synchronous `statfs` that panics when the file is gone and hangs when the server
//! does, so no file of the volume goes through glommio.

use std::future::Future;
use std::io;
use std::path::Path;
use std::time::Duration;

use kaas_proto::types::TimestampMs;

use super::executor::{self, TaskQueues};
use super::{Env, MonotonicTime, TaskClass};

pub use super::helper::HELPER_THREADS;
pub use super::ring::{MAXIMUM_WORKERS, QUEUE_DEPTH};
pub use super::uring_volume::{UringFile, UringVolume};

/// What a shard of a durable broker runs on. Shard-local.
#[derive(Clone, Debug)]
pub struct UringEnv {
    volume: UringVolume,
    queues: TaskQueues,
}

impl UringEnv {
    /// The environment of the executor that runs the caller, with its files below `root`.
    ///
    /// # Errors
    /// When the kernel gives no ring, or `root` is no directory.
    ///
    /// # Panics
    /// Outside a glommio executor.
    pub fn start(root: &Path) -> io::Result<Self> {
        let queues = TaskQueues::create();
        Ok(Self { volume: UringVolume::start(root, queues)?, queues })
    }
}

impl Env for UringEnv {
    type Volume = UringVolume;

    fn volume(&self) -> &UringVolume {
        &self.volume
    }

    fn now(&self) -> MonotonicTime {
        executor::monotonic_now()
    }

    fn wall_clock(&self) -> TimestampMs {
        executor::wall_clock()
    }

    fn random_u64(&self) -> u64 {
        executor::random_u64()
    }

    fn spawn(&self, class: TaskClass, task: impl Future<Output = ()> + 'static) {
        self.queues.spawn(class, task);
    }

    async fn sleep(&self, duration: Duration) {
        self.queues.sleep(duration).await;
    }

    async fn yield_now(&self) {
        self.queues.yield_now().await;
    }
}
