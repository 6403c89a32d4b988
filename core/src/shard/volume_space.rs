//! How large the volume is and how much of it is left, as of a few seconds ago.
//!
//! The question goes to the file system on a helper thread, at most once per [`MAX_AGE`]. A volume that hangs delays an answer by
//! [`PATIENCE`]; then what was known last is told.

use std::cell::Cell;
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use futures_lite::future;
use tokio::sync::Notify;

use crate::env::{Env, MonotonicTime, TaskClass, Volume, VolumeSpace};

/// How old an answer may be before the file system is asked again.
pub const MAX_AGE: Duration = Duration::from_secs(5);

/// How long a request waits for the file system.
pub const PATIENCE: Duration = Duration::from_millis(500);

/// Shard-local.
#[derive(Debug, Default)]
pub struct SpaceCache {
    known: Cell<Option<(MonotonicTime, VolumeSpace)>>,
    asking: Cell<bool>,
    answered: Notify,
}

impl SpaceCache {
    /// What is known, asked anew if that is old. `None`: the volume has never said.
    pub async fn space<E: Env>(self: &Rc<Self>, env: &E) -> Option<VolumeSpace> {
        if self.is_old(env.now()) {
            let answered = self.answered.notified();
            self.ask(env);
            future::or(answered, env.sleep(PATIENCE)).await;
        }
        self.known.get().map(|(_, space)| space)
    }

    fn is_old(&self, now: MonotonicTime) -> bool {
        self.known.get().is_none_or(|(asked, _)| now.since(asked) > MAX_AGE)
    }

    fn ask<E: Env>(self: &Rc<Self>, env: &E) {
        if self.asking.replace(true) {
            return;
        }
        let (cache, env) = (Rc::clone(self), env.clone());
        env.clone().spawn(TaskClass::Background, async move {
            match env.volume().space(Path::new("")).await {
                Ok(space) => cache.known.set(Some((env.now(), space))),
                Err(error) => tracing::debug!(%error, "the volume does not say how large it is"),
            }
            cache.asking.set(false);
            cache.answered.notify_waiters();
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::env::memory::{MemoryEnv, Operation};

    #[test]
    fn the_volume_is_asked_now_and_then_and_never_waited_for() {
        let env = MemoryEnv::virtual_time();
        let cache = Rc::new(SpaceCache::default());
        env.run(async {
            let volume = env.volume();
            volume.set_capacity(Some(1000));
            let total = |space: Option<VolumeSpace>| space.map(|space| space.total_bytes);
            volume.hold(Operation::Space);
            let begin = env.now();
            assert_eq!(cache.space(&env).await, None, "it hangs");
            assert_eq!(cache.space(&env).await, None);
            assert_eq!(env.now().0 - begin.0, 2 * 500_000_000);
            assert_eq!(volume.count(Operation::Space), 1, "one question at a time");
            volume.release(Operation::Space);
            env.sleep(Duration::from_millis(1)).await;
            assert_eq!(total(cache.space(&env).await), Some(1000));
            volume.set_capacity(Some(2000));
            assert_eq!(total(cache.space(&env).await), Some(1000), "of a moment ago");
            env.sleep(MAX_AGE * 2).await;
            assert_eq!(total(cache.space(&env).await), Some(2000));
            volume.hold(Operation::Space);
            env.sleep(MAX_AGE * 2).await;
            assert_eq!(total(cache.space(&env).await), Some(2000), "the last that was known");
            assert_eq!(volume.count(Operation::Space), 3);
        });
    }
}
