//! The production [`Env`]: tasks, timers and clocks of a glommio executor, files through a ring of our own.
//!
//! glommio's direct files open with a synchronous `statfs` that panics when the file is gone and hangs when the server
//! does, so no file of the volume goes through glommio.

use std::future::Future;
use std::io;
use std::time::Duration;

use kaas_proto::roots::Roots;
use kaas_proto::types::TimestampMs;

use super::executor::{self, TaskQueues};
use super::{Env, MonotonicTime, TaskClass};

pub use super::helper::HELPER_THREADS;
pub use super::ring::{MAXIMUM_WORKERS, QUEUE_DEPTH};
pub use super::split_volume::SplitVolume;
pub use super::uring_volume::{UringFile, UringVolume};

/// What a shard of a durable broker runs on. Shard-local.
#[derive(Clone, Debug)]
pub struct UringEnv {
    volume: SplitVolume<UringVolume>,
    queues: TaskQueues,
}

impl UringEnv {
    /// The environment of the executor that runs the caller, with its files below `roots`.
    ///
    /// # Errors
    /// When the kernel gives no ring, or a root is no directory.
    ///
    /// # Panics
    /// Outside a glommio executor.
    pub fn start(roots: &Roots) -> io::Result<Self> {
        let queues = TaskQueues::create();
        let start = |root| UringVolume::start(root, queues);
        let cluster = roots.own_cluster().map(start).transpose()?;
        Ok(Self { volume: SplitVolume::new(start(roots.data())?, cluster), queues })
    }
}

impl Env for UringEnv {
    type Volume = SplitVolume<UringVolume>;

    fn volume(&self) -> &SplitVolume<UringVolume> {
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
