//! Operations that the kernel works on, and what must live until it is done.

use std::ffi::CString;
use std::mem;
use std::rc::Rc;
use std::task::{Context, Waker};

use bytes::Bytes;
use tokio::sync::OwnedSemaphorePermit;

use super::AlignedBuffer;
use super::ring_operations::Descriptor;

/// Memory that the kernel may touch during one operation. None of it moves when its owner does.
#[expect(dead_code, reason = "most of it is only kept")]
pub(super) enum Held {
    Nothing,
    Content(Bytes),
    Buffer(AlignedBuffer),
    Names(CString, Option<CString>),
    /// Of an open: if nobody waits for it any more, its file is closed.
    Open(CString),
    /// A name and room for the answer to statx.
    Stat(CString, AlignedBuffer),
}

/// All that lives as long as the kernel works on an operation.
#[expect(dead_code, reason = "most of it is only kept")]
pub(super) struct InFlight {
    pub(super) held: Held,
    /// Keeps the descriptor open.
    pub(super) file: Option<Rc<Descriptor>>,
    /// One of the queue's places.
    pub(super) permit: OwnedSemaphorePermit,
}

/// The operations of one ring, by the number that their completions carry.
#[derive(Default)]
pub(super) struct Slots {
    entries: Vec<Slot>,
    free: Vec<usize>,
}

/// ```text
/// insert ─► Busy ─ complete ─► Done ─ take_result, abandon ─► Free
///             └─── abandon ──► Abandoned ─ complete ─► Free
/// ```
enum Slot {
    Free,
    Busy {
        operation: InFlight,
        waker: Option<Waker>,
    },
    /// Its future was dropped.
    Abandoned(InFlight),
    Done {
        operation: InFlight,
        result: i32,
    },
}

/// What a completion leads to.
pub(super) enum Completed {
    /// Whoever waits is to be woken.
    Awaited(Option<Waker>),
    /// Nobody waits any more.
    Abandoned(InFlight),
}

impl Slots {
    pub(super) fn insert(&mut self, operation: InFlight) -> usize {
        let slot = Slot::Busy { operation, waker: None };
        if let Some(index) = self.free.pop() {
            self.entries[index] = slot;
            return index;
        }
        self.entries.push(slot);
        self.entries.len() - 1
    }

    /// A completion has arrived.
    pub(super) fn complete(&mut self, index: usize, result: i32) -> Completed {
        match mem::replace(&mut self.entries[index], Slot::Free) {
            Slot::Busy { operation, waker } => {
                self.entries[index] = Slot::Done { operation, result };
                Completed::Awaited(waker)
            }
            Slot::Abandoned(operation) => {
                self.free.push(index);
                Completed::Abandoned(operation)
            }
            Slot::Free | Slot::Done { .. } => unreachable!("one completion per operation"),
        }
    }

    /// The result, if it is there; otherwise the context is woken when it is.
    pub(super) fn take_result(&mut self, index: usize, context: &Context<'_>) -> Option<(InFlight, i32)> {
        match mem::replace(&mut self.entries[index], Slot::Free) {
            Slot::Done { operation, result } => {
                self.free.push(index);
                Some((operation, result))
            }
            Slot::Busy { operation, .. } => {
                self.entries[index] = Slot::Busy { operation, waker: Some(context.waker().clone()) };
                None
            }
            Slot::Free | Slot::Abandoned(_) => unreachable!("a slot is free only after its future"),
        }
    }

    /// The future is dropped. Returns what is left if the kernel is done already.
    pub(super) fn abandon(&mut self, index: usize) -> Option<(InFlight, i32)> {
        match mem::replace(&mut self.entries[index], Slot::Free) {
            Slot::Done { operation, result } => {
                self.free.push(index);
                Some((operation, result))
            }
            Slot::Busy { operation, .. } => {
                self.entries[index] = Slot::Abandoned(operation);
                None
            }
            Slot::Free | Slot::Abandoned(_) => unreachable!("a future is dropped once"),
        }
    }
}
