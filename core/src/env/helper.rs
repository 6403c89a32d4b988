//! Calls for which the kernel has no asynchronous form: on a few threads that are pinned nowhere.

use std::cell::Cell;
use std::rc::Rc;

use tokio::sync::oneshot;

use super::TaskClass;
use super::executor::TaskQueues;

/// Helper threads per shard. So many calls may hang before others wait.
pub const HELPER_THREADS: usize = 8;

/// The helper threads of one shard, which its executor owns. Shard-local; clones share the counters.
#[derive(Clone, Debug)]
pub(super) struct Helper {
    queues: TaskQueues,
    counters: Rc<Counters>,
}

#[derive(Debug, Default)]
struct Counters {
    running: Cell<usize>,
    all_busy: Cell<u64>,
}

impl Helper {
    pub(super) fn new(queues: TaskQueues) -> Self {
        Self { queues, counters: Rc::default() }
    }

    /// How often a call found all threads busy and had to wait.
    pub(super) fn all_busy(&self) -> u64 {
        self.counters.all_busy.get()
    }

    /// Runs a blocking call elsewhere. It runs to its end even when the future is dropped, and `kept` lives as long.
    pub(super) async fn run<T: Send + 'static>(
        &self,
        kept: impl Sized + 'static,
        call: impl FnOnce() -> T + Send + 'static,
    ) -> T {
        let counters = Rc::clone(&self.counters);
        if counters.running.get() >= HELPER_THREADS {
            counters.all_busy.set(counters.all_busy.get() + 1);
        }
        counters.running.set(counters.running.get() + 1);
        let (sender, receiver) = oneshot::channel();
        self.queues.spawn(TaskClass::Latency, async move {
            glommio::executor()
                .spawn_blocking(move || {
                    // Whoever asked may be gone.
                    let _ = sender.send(call());
                })
                .await;
            counters.running.set(counters.running.get() - 1);
            drop(kept);
        });
        receiver.await.expect("a call sends its result, and a helper thread that panics ends the process")
    }
}
