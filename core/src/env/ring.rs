//! One io_uring for file operations, driven by a glommio executor. Shard-local.
//!
//! An operation takes a slot. The slot owns everything that the kernel may still touch (buffer, names, file) until the
//! completion arrives: a future that is dropped half-way leaves its slot behind, and the memory with it.
//!
//! Completions are looked for right after each submission, whenever a waiting operation is polled, and by one task that
//! awaits the ring's eventfd.

#![expect(unsafe_code, reason = "the kernel reads and writes memory that the slots keep alive")]

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::io;
use std::mem;
use std::os::fd::{FromRawFd, RawFd};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use glommio::io::BufferedFile;
use io_uring::types::Fd;
use io_uring::{IoUring, Probe, opcode, squeue};
use tokio::sync::Semaphore;

use super::ring_operations::Descriptor;
use super::ring_slots::{Completed, Held, InFlight, Slots};

/// Operations in flight per ring. More wait for a slot, in order.
pub const QUEUE_DEPTH: u32 = 128;

/// Kernel threads that the operations of one shard may hang in; its rings share them. As many as two rings can have in
/// flight, so that a server that hangs does not hold up another one's volume.
pub const MAXIMUM_WORKERS: u32 = 2 * QUEUE_DEPTH;

/// Writes from this size on are worth a look of the scheduler at who else wants the processor.
const LARGE_WRITE_BYTES: usize = 64 << 10;

/// Marks completions that nobody waits for.
const NOBODY: u64 = u64::MAX;

/// A ring of one shard. Clones share it.
#[derive(Clone)]
pub(super) struct Ring(Rc<State>);

struct State {
    ring: RefCell<IoUring>,
    slots: RefCell<Slots>,
    /// One permit per slot; held until the completion arrives.
    permits: Arc<Semaphore>,
    depth_reached: Cell<u64>,
    truncates: bool,
}

impl Ring {
    /// A ring without the task that drives it; see [`Ring::drive`].
    ///
    /// # Errors
    /// When the kernel refuses io_uring, or is too old for the operations that are needed.
    pub(super) fn new() -> io::Result<Self> {
        let ring = build()?;
        ring.submitter().register_iowq_max_workers(&mut [MAXIMUM_WORKERS, MAXIMUM_WORKERS])?;
        ring.submitter().register_iowq_aff(&cpus_of_process()?)?;
        let mut probe = Probe::new();
        ring.submitter().register_probe(&mut probe)?;
        for (code, name) in NEEDED {
            if !probe.is_supported(code) {
                let message = format!("this kernel's io_uring has no {name}; Linux 5.15 or newer is needed");
                return Err(io::Error::new(io::ErrorKind::Unsupported, message));
            }
        }
        Ok(Self(Rc::new(State {
            ring: RefCell::new(ring),
            slots: RefCell::default(),
            permits: Arc::new(Semaphore::new(QUEUE_DEPTH as usize)),
            depth_reached: Cell::new(0),
            truncates: probe.is_supported(opcode::Ftruncate::CODE),
        })))
    }

    /// The task that wakes those who wait for completions. Run it in the ring's executor.
    ///
    /// # Errors
    /// When the kernel gives no eventfd.
    pub(super) fn drive(&self) -> io::Result<impl Future<Output = ()> + 'static> {
        // SAFETY: no pointers are involved. Blocking mode is right: io_uring waits for it, no thread does.
        let descriptor = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC) };
        if descriptor < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor is new and belongs to nobody else.
        let eventfd = unsafe { BufferedFile::from_raw_fd(descriptor) };
        self.0.ring.borrow().submitter().register_eventfd(descriptor)?;
        let ring = self.clone();
        Ok(async move {
            loop {
                eventfd.read_at(0, 8).await.expect("an eventfd can be read as long as it is open");
                ring.reap();
            }
        })
    }

    /// How often an operation had to wait for a slot.
    pub(super) fn depth_reached(&self) -> u64 {
        self.0.depth_reached.get()
    }

    /// Operations that the kernel works on.
    pub(super) fn in_flight(&self) -> usize {
        QUEUE_DEPTH as usize - self.0.permits.available_permits()
    }

    /// Whether [`opcode::Ftruncate`] may be used: since Linux 6.9.
    pub(super) fn truncates(&self) -> bool {
        self.0.truncates
    }

    /// Submits an operation and waits for its result, a negative errno or what the call returns.
    ///
    /// # Safety
    /// Every pointer in `entry` leads into `held`, and its descriptor is that of `file`, if it has one.
    pub(super) async unsafe fn perform(
        &self,
        entry: squeue::Entry,
        file: Option<Rc<Descriptor>>,
        held: Held,
    ) -> (i32, Held) {
        let permit = if let Ok(permit) = Arc::clone(&self.0.permits).try_acquire_owned() {
            permit
        } else {
            self.0.depth_reached.set(self.0.depth_reached.get() + 1);
            Arc::clone(&self.0.permits).acquire_owned().await.expect("the semaphore is never closed")
        };
        let is_large_write = matches!(&held, Held::Content(content) if content.len() >= LARGE_WRITE_BYTES);
        let slot = self.0.slots.borrow_mut().insert(InFlight { held, file, permit });
        // SAFETY: the slot owns what the entry points to until the completion arrives.
        unsafe { self.submit(entry.user_data(slot as u64)) };
        if is_large_write {
            // The kernel's worker starts it now, if it is on this processor, and not when the shard has nothing to do.
            std::thread::yield_now();
        }
        Operation { ring: self, slot: Some(slot) }.await
    }

    /// # Safety
    /// What the entry points to lives until its completion.
    unsafe fn submit(&self, entry: squeue::Entry) {
        let mut ring = self.0.ring.borrow_mut();
        // SAFETY: passed on to the caller.
        while unsafe { ring.submission().push(&entry) }.is_err() {
            // Full, because the kernel did not take earlier entries. It does so now or the shard is lost.
            ring.submit().expect("io_uring takes submissions");
        }
        drop(ring);
        self.flush();
    }

    /// Hands entries to the kernel. What it does not take now, for want of memory, it is offered again by the next
    /// [`Ring::reap`].
    fn flush(&self) {
        if let Err(error) = self.0.ring.borrow().submit() {
            match error.raw_os_error() {
                Some(libc::EAGAIN | libc::EBUSY | libc::EINTR) => {}
                _ => panic!("io_uring takes no submissions: {error}"),
            }
        }
    }

    /// Picks up completions and wakes who waits for them. False if the kernel has not taken all submissions yet: then
    /// somebody has to call again.
    fn reap(&self) -> bool {
        loop {
            let next = self.0.ring.borrow_mut().completion().next();
            let Some(entry) = next else { break };
            if entry.user_data() == NOBODY {
                continue;
            }
            let index = usize::try_from(entry.user_data()).expect("it was a usize");
            let completed = self.0.slots.borrow_mut().complete(index, entry.result());
            match completed {
                Completed::Awaited(waker) => waker.into_iter().for_each(Waker::wake),
                Completed::Abandoned(operation) => self.discard(&operation, entry.result()),
            }
        }
        let all_submitted = self.0.ring.borrow_mut().submission().is_empty();
        if !all_submitted {
            self.flush();
        }
        all_submitted
    }

    /// Nobody wants the result any more.
    fn discard(&self, operation: &InFlight, result: i32) {
        if matches!(operation.held, Held::Open(_)) && result >= 0 {
            self.close_in_background(result);
        }
    }

    pub(super) fn close_in_background(&self, descriptor: RawFd) {
        let entry = opcode::Close::new(Fd(descriptor)).build().user_data(NOBODY);
        // SAFETY: the entry has no pointers.
        unsafe { self.submit(entry) };
    }
}

impl Drop for State {
    fn drop(&mut self) {
        // The kernel may still write into what the slots hold, also after the ring is closed: better to leak it.
        if self.permits.available_permits() < QUEUE_DEPTH as usize {
            mem::forget(self.slots.take());
        }
    }
}

/// An operation that was submitted.
struct Operation<'ring> {
    ring: &'ring Ring,
    /// None once the result was taken.
    slot: Option<usize>,
}

impl Future for Operation<'_> {
    type Output = (i32, Held);

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<(i32, Held)> {
        if !self.ring.reap() {
            context.waker().wake_by_ref();
        }
        let index = self.slot.expect("not polled after it was ready");
        let taken = self.ring.0.slots.borrow_mut().take_result(index, context);
        match taken {
            Some((operation, result)) => {
                self.slot = None;
                Poll::Ready((result, operation.held))
            }
            None => Poll::Pending,
        }
    }
}

impl Drop for Operation<'_> {
    fn drop(&mut self) {
        let Some(index) = self.slot else { return };
        let left = self.ring.0.slots.borrow_mut().abandon(index);
        if let Some((operation, result)) = left {
            self.ring.discard(&operation, result);
        }
    }
}

/// A ring set up as well as this kernel can.
fn build() -> io::Result<IoUring> {
    IoUring::builder().build(QUEUE_DEPTH)
}

/// Where the kernel's workers may run: on every processor of the process. Those of a pinned thread are pinned with it otherwise, and a
/// write that needs one would wait until the shard has nothing to do.
fn cpus_of_process() -> io::Result<libc::cpu_set_t> {
    // SAFETY: a set of processors is plain bits, for which zero is valid.
    let mut set: libc::cpu_set_t = unsafe { mem::zeroed() };
    // SAFETY: the call only reads the identity of the process.
    let main_thread = unsafe { libc::getpid() };
    // SAFETY: the set outlives the call, which is told its size.
    let result = unsafe { libc::sched_getaffinity(main_thread, size_of::<libc::cpu_set_t>(), &raw mut set) };
    if result == 0 { Ok(set) } else { Err(io::Error::last_os_error()) }
}

/// The operations without which there is no volume.
const NEEDED: [(u8, &str); 9] = [
    (opcode::OpenAt::CODE, "openat"),
    (opcode::Close::CODE, "close"),
    (opcode::Read::CODE, "read"),
    (opcode::Write::CODE, "write"),
    (opcode::Fsync::CODE, "fsync"),
    (opcode::Statx::CODE, "statx"),
    (opcode::RenameAt::CODE, "renameat"),
    (opcode::UnlinkAt::CODE, "unlinkat"),
    (opcode::MkDirAt::CODE, "mkdirat"),
];
