//! An environment of one broker that can be stopped before any call of its volume, while others go on with the same files.
//!
//! Calls go on when nobody waits for them any more, as those of a kernel do.

use std::cell::{Cell, RefCell};
use std::future::{Future, poll_fn};
use std::io;
use std::path::Path;
use std::rc::Rc;
use std::task::{Poll, Waker};
use std::time::Duration;

use bytes::Bytes;
use kaas_core::env::memory::{MemoryEnv, MemoryVolume};
use kaas_core::env::{DirectoryEntry, Env, MonotonicTime, OpenMode, TaskClass, Volume, VolumeFile, VolumeSpace};
use kaas_proto::types::TimestampMs;
use tokio::sync::oneshot;

/// What a test sees and does. Clones are the same.
#[derive(Clone, Debug, Default)]
pub struct Gate(Rc<State>);

#[derive(Debug, Default)]
struct State {
    calls: Cell<u64>,
    /// The call that stops the broker.
    stops_at: Cell<Option<u64>>,
    stopped: RefCell<Option<(String, Vec<Waker>)>>,
    open_files: Cell<usize>,
    read_bytes: Cell<u64>,
}

impl Gate {
    /// The `n`th call from now on, and all behind it, wait until [`Gate::go_on`].
    pub fn stop_before(&self, n: u64) {
        self.0.stops_at.set(Some(self.0.calls.get() + n));
    }

    /// No further call is begun.
    pub fn stop(&self) {
        self.0.stopped.borrow_mut().get_or_insert_default();
    }

    /// The call that the broker has stopped before.
    pub fn stopped_before(&self) -> Option<String> {
        self.0.stopped.borrow().as_ref().map(|(call, _)| call.clone())
    }

    pub fn go_on(&self) {
        self.0.stops_at.set(None);
        let stopped = self.0.stopped.take();
        stopped.into_iter().flat_map(|(_, waiting)| waiting).for_each(Waker::wake);
    }

    pub fn open_files(&self) -> usize {
        self.0.open_files.get()
    }

    /// Bytes of all reads, direct or not.
    pub fn read_bytes(&self) -> u64 {
        self.0.read_bytes.get()
    }

    async fn pass(&self, call: impl FnOnce() -> String) {
        self.0.calls.set(self.0.calls.get() + 1);
        if self.0.stops_at.get() == Some(self.0.calls.get()) {
            self.0.stopped.replace(Some((call(), Vec::new())));
        }
        poll_fn(|context| match self.0.stopped.borrow_mut().as_mut() {
            Some((_, waiting)) => {
                waiting.push(context.waker().clone());
                Poll::Pending
            }
            None => Poll::Ready(()),
        })
        .await;
    }
}

#[derive(Clone, Debug)]
pub struct StepEnv {
    memory: MemoryEnv,
    volume: StepVolume,
}

impl StepEnv {
    /// Another process with the files and the clock of `memory`.
    pub fn new(memory: &MemoryEnv) -> Self {
        let gate = Gate::default();
        Self { memory: memory.clone(), volume: StepVolume { memory: memory.clone(), gate } }
    }

    pub fn gate(&self) -> &Gate {
        &self.volume.gate
    }
}

impl Env for StepEnv {
    type Volume = StepVolume;

    fn volume(&self) -> &StepVolume {
        &self.volume
    }

    fn now(&self) -> MonotonicTime {
        self.memory.now()
    }

    fn wall_clock(&self) -> TimestampMs {
        self.memory.wall_clock()
    }

    fn random_u64(&self) -> u64 {
        self.memory.random_u64()
    }

    fn spawn(&self, class: TaskClass, task: impl Future<Output = ()> + 'static) {
        self.memory.spawn(class, task);
    }

    async fn sleep(&self, duration: Duration) {
        self.memory.sleep(duration).await;
    }

    async fn yield_now(&self) {
        self.memory.yield_now().await;
    }
}

#[derive(Clone, Debug)]
pub struct StepVolume {
    memory: MemoryEnv,
    gate: Gate,
}

impl StepVolume {
    /// Waits for its turn; then the call is made, whether or not somebody waits for its end.
    async fn call<T: 'static>(
        &self,
        name: impl FnOnce() -> String,
        call: impl Future<Output = io::Result<T>> + 'static,
    ) -> io::Result<T> {
        self.gate.pass(name).await;
        let (sender, receiver) = oneshot::channel();
        self.memory.spawn(TaskClass::Latency, async move {
            let result = call.await;
            let _ = sender.send(result);
        });
        receiver.await.unwrap()
    }

    fn files(&self) -> MemoryVolume {
        self.memory.volume().clone()
    }

    fn count_read(&self, bytes: usize) {
        self.gate.0.read_bytes.set(self.gate.read_bytes() + bytes as u64);
    }
}

impl Volume for StepVolume {
    type File = StepFile;

    async fn open(&self, path: &Path, mode: OpenMode) -> io::Result<StepFile> {
        let (files, path) = (self.files(), path.to_path_buf());
        let name = format!("open {mode:?} {}", path.display());
        let file = self.call(|| name.clone(), async move { files.open(&path, mode).await }).await?;
        self.gate.0.open_files.set(self.gate.open_files() + 1);
        Ok(StepFile { file: Rc::new(file), volume: self.clone(), name })
    }

    async fn list(&self, directory: &Path) -> io::Result<Vec<DirectoryEntry>> {
        let (files, path) = (self.files(), directory.to_path_buf());
        self.call(|| format!("list {}", directory.display()), async move { files.list(&path).await }).await
    }

    async fn size(&self, path: &Path) -> io::Result<u64> {
        let (files, own) = (self.files(), path.to_path_buf());
        self.call(|| format!("size {}", path.display()), async move { files.size(&own).await }).await
    }

    async fn read(&self, path: &Path, limit_bytes: usize) -> io::Result<Vec<u8>> {
        let (files, own) = (self.files(), path.to_path_buf());
        let read = async move { files.read(&own, limit_bytes).await };
        let content = self.call(|| format!("read {}", path.display()), read).await?;
        self.count_read(content.len());
        Ok(content)
    }

    async fn write(&self, path: &Path, content: Vec<u8>) -> io::Result<()> {
        let (files, own) = (self.files(), path.to_path_buf());
        self.call(|| format!("write {}", path.display()), async move { files.write(&own, content).await }).await
    }

    async fn overwrite(&self, path: &Path, content: Vec<u8>) -> io::Result<()> {
        let (files, own) = (self.files(), path.to_path_buf());
        self.call(|| format!("overwrite {}", path.display()), async move { files.overwrite(&own, content).await }).await
    }

    async fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let (files, own, other) = (self.files(), from.to_path_buf(), to.to_path_buf());
        self.call(|| format!("rename to {}", to.display()), async move { files.rename(&own, &other).await }).await
    }

    async fn unlink(&self, path: &Path) -> io::Result<()> {
        let (files, own) = (self.files(), path.to_path_buf());
        self.call(|| format!("unlink {}", path.display()), async move { files.unlink(&own).await }).await
    }

    async fn create_directories(&self, path: &Path) -> io::Result<()> {
        let (files, own) = (self.files(), path.to_path_buf());
        let made = async move { files.create_directories(&own).await };
        self.call(|| format!("create {}", path.display()), made).await
    }

    async fn remove_directory(&self, path: &Path) -> io::Result<()> {
        let (files, own) = (self.files(), path.to_path_buf());
        self.call(|| format!("remove {}", path.display()), async move { files.remove_directory(&own).await }).await
    }

    async fn sync_directory(&self, path: &Path) -> io::Result<()> {
        let (files, own) = (self.files(), path.to_path_buf());
        self.call(|| format!("sync {}", path.display()), async move { files.sync_directory(&own).await }).await
    }

    async fn space(&self, path: &Path) -> io::Result<VolumeSpace> {
        let (files, path) = (self.files(), path.to_owned());
        self.call(|| "space".into(), async move { files.space(&path).await }).await
    }
}

#[derive(Debug)]
pub struct StepFile {
    file: Rc<<MemoryVolume as Volume>::File>,
    volume: StepVolume,
    name: String,
}

impl StepFile {
    fn file(&self) -> Rc<<MemoryVolume as Volume>::File> {
        Rc::clone(&self.file)
    }
}

impl Drop for StepFile {
    fn drop(&mut self) {
        let open = &self.volume.gate.0.open_files;
        open.set(open.get() - 1);
    }
}

impl VolumeFile for StepFile {
    async fn write_at(&self, offset: u64, content: Bytes) -> io::Result<()> {
        let file = self.file();
        let write = async move { file.write_at(offset, content).await };
        self.volume.call(|| format!("write at {offset} after {}", self.name), write).await
    }

    async fn read_at(&self, offset: u64, length: usize) -> io::Result<Bytes> {
        let file = self.file();
        let read = async move { file.read_at(offset, length).await };
        let content = self.volume.call(|| format!("read at {offset} after {}", self.name), read).await?;
        self.volume.count_read(content.len());
        Ok(content)
    }

    async fn truncate(&self, length: u64) -> io::Result<()> {
        let file = self.file();
        let cut = async move { file.truncate(length).await };
        self.volume.call(|| format!("truncate to {length} after {}", self.name), cut).await
    }

    async fn size(&self) -> io::Result<u64> {
        let file = self.file();
        self.volume.call(|| format!("size after {}", self.name), async move { file.size().await }).await
    }

    async fn close(self) -> io::Result<()> {
        self.volume.gate.pass(|| format!("close after {}", self.name)).await;
        Ok(())
    }
}
