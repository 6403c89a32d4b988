//! A volume in memory: local-dev mode inside an executor, and tests under virtual time.

use std::cell::Cell;
use std::future::Future;
use std::rc::Rc;
use std::time::Duration;

use kaas_proto::types::TimestampMs;

use super::executor::{self, TaskQueues};
use super::virtual_time::VirtualTime;
use super::{Env, MonotonicTime, TaskClass};

pub use super::memory_volume::{Doom, MemoryFile, MemoryVolume, Operation};

/// An [`Env`] whose files live in memory. Shard-local; its volume may be shared with other shards and threads.
#[derive(Clone, Debug)]
pub struct MemoryEnv {
    volume: MemoryVolume,
    runtime: Runtime,
}

#[derive(Clone, Debug)]
enum Runtime {
    Virtual { time: VirtualTime, random: Rc<Cell<u64>> },
    Executor(TaskQueues),
}

impl MemoryEnv {
    /// For tests: an empty volume, virtual time, and the same random numbers each time. Call [`MemoryEnv::run`].
    #[must_use]
    pub fn virtual_time() -> Self {
        Self::virtual_time_on(MemoryVolume::default())
    }

    /// The same on a volume that is there already, as after a restart.
    #[must_use]
    pub fn virtual_time_on(volume: MemoryVolume) -> Self {
        Self { volume, runtime: Runtime::Virtual { time: VirtualTime::default(), random: Rc::default() } }
    }

    /// For local-dev mode: tasks and time of the glommio executor that runs the caller.
    ///
    /// # Panics
    /// Outside a glommio executor.
    #[must_use]
    pub fn on_executor(volume: MemoryVolume) -> Self {
        Self { volume, runtime: Runtime::Executor(TaskQueues::create()) }
    }

    /// Drives `main` and all that it spawned until `main` is done; time stands still unless all tasks wait.
    ///
    /// # Panics
    /// When all tasks wait for ever, or inside an executor, which drives its tasks itself.
    pub fn run<T>(&self, main: impl Future<Output = T>) -> T {
        self.time().run(main)
    }

    /// The virtual clock.
    ///
    /// # Panics
    /// Inside an executor, whose time is real.
    #[must_use]
    pub fn time(&self) -> &VirtualTime {
        match &self.runtime {
            Runtime::Virtual { time, .. } => time,
            Runtime::Executor(_) => panic!("an executor's time is not virtual"),
        }
    }
}

impl Env for MemoryEnv {
    type Volume = MemoryVolume;

    fn volume(&self) -> &MemoryVolume {
        &self.volume
    }

    fn now(&self) -> MonotonicTime {
        match &self.runtime {
            Runtime::Virtual { time, .. } => time.now(),
            Runtime::Executor(_) => executor::monotonic_now(),
        }
    }

    fn wall_clock(&self) -> TimestampMs {
        match &self.runtime {
            Runtime::Virtual { time, .. } => time.wall_clock(),
            Runtime::Executor(_) => executor::wall_clock(),
        }
    }

    fn random_u64(&self) -> u64 {
        match &self.runtime {
            Runtime::Virtual { random, .. } => {
                // SplitMix64: a counter, well stirred.
                let counter = random.get().wrapping_add(0x9e37_79b9_7f4a_7c15);
                random.set(counter);
                let stirred = (counter ^ (counter >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
                let stirred = (stirred ^ (stirred >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
                stirred ^ (stirred >> 31)
            }
            Runtime::Executor(_) => executor::random_u64(),
        }
    }

    fn spawn(&self, class: TaskClass, task: impl Future<Output = ()> + 'static) {
        match &self.runtime {
            Runtime::Virtual { time, .. } => time.spawn(task),
            Runtime::Executor(queues) => queues.spawn(class, task),
        }
    }

    async fn sleep(&self, duration: Duration) {
        match &self.runtime {
            Runtime::Virtual { time, .. } => time.sleep(duration).await,
            Runtime::Executor(queues) => queues.sleep(duration).await,
        }
    }

    async fn yield_now(&self) {
        match &self.runtime {
            Runtime::Virtual { .. } => futures_lite::future::yield_now().await,
            Runtime::Executor(queues) => queues.yield_now().await,
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]
    use std::cell::RefCell;
    use std::path::Path;

    use bytes::Bytes;

    use super::*;
    use crate::env::{AlignedBuffer, OpenMode, Volume, VolumeFile};

    fn block(byte: u8) -> Bytes {
        let mut buffer = AlignedBuffer::zeroed(4096);
        buffer.fill(byte);
        buffer.freeze()
    }

    #[test]
    fn runs_are_repeatable() {
        let numbers = || {
            let env = MemoryEnv::virtual_time();
            [env.random_u64(), env.random_u64()]
        };
        assert_eq!(numbers(), numbers());
        assert_ne!(numbers()[0], numbers()[1]);
    }

    #[test]
    fn writes_of_several_tasks_interleave() {
        let env = MemoryEnv::virtual_time();
        let log = Rc::new(RefCell::new(Vec::new()));
        env.run(async {
            for name in ["a", "b"] {
                let (task_env, log) = (env.clone(), Rc::clone(&log));
                env.spawn(TaskClass::Latency, async move {
                    let file = task_env.volume().open(Path::new(name), OpenMode::CreateNew).await.unwrap();
                    for index in 0..2 {
                        file.write_at(index * 4096, block(1)).await.unwrap();
                        log.borrow_mut().push((name, index));
                    }
                });
            }
            env.sleep(Duration::from_secs(1)).await;
        });
        assert_eq!(*log.borrow(), [("a", 0), ("b", 0), ("a", 1), ("b", 1)]);
    }

    #[test]
    fn a_held_write_waits_and_a_failed_one_fails_once() {
        let env = MemoryEnv::virtual_time();
        let volume = env.volume().clone();
        env.run(async {
            let file = volume.open(Path::new("f"), OpenMode::CreateNew).await.unwrap();
            volume.fail_next(Operation::WriteAt, std::io::ErrorKind::StorageFull);
            assert_eq!(file.write_at(0, block(1)).await.unwrap_err().kind(), std::io::ErrorKind::StorageFull);
            volume.hold(Operation::WriteAt);
            let write = async {
                file.write_at(0, block(2)).await.unwrap();
                env.now()
            };
            let release = async {
                env.sleep(Duration::from_secs(31)).await;
                assert_eq!(file.size().await.unwrap(), 0);
                volume.release(Operation::WriteAt);
                MonotonicTime(0)
            };
            let (written_at, _) = futures_lite::future::zip(write, release).await;
            assert_eq!(written_at, MonotonicTime(31_000_000_000));
            assert_eq!(volume.count(Operation::WriteAt), 2);
        });
    }

    #[test]
    fn local_dev_mode_runs_inside_an_executor() {
        let volume = MemoryVolume::default();
        let shared = volume.clone();
        let shard = glommio::LocalExecutorBuilder::default()
            .io_memory(64 << 10)
            .spawn(move || async move {
                let env = MemoryEnv::on_executor(shared);
                let (sender, receiver) = tokio::sync::oneshot::channel();
                let task_env = env.clone();
                env.spawn(TaskClass::Background, async move {
                    task_env.yield_now().await;
                    task_env.sleep(Duration::from_millis(1)).await;
                    task_env.volume().write(Path::new("f"), b"content".to_vec()).await.unwrap();
                    sender.send(task_env.now()).unwrap();
                });
                let before = env.now();
                assert!(receiver.await.unwrap() >= MonotonicTime(before.0 + 1_000_000));
            })
            .unwrap();
        shard.join().unwrap();
        assert_eq!(futures_lite::future::block_on(volume.read(Path::new("f"), 100)).unwrap(), b"content");
    }
}
