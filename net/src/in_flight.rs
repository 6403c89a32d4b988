//! The requests of one connection that are read and not answered, in the order in which they came.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::{Poll, Waker};

use kaas_core::env::MonotonicTime;
use kaas_proto::kafka::{Api, Frame};

use crate::close_reason::CloseReason;
use crate::limits::Limits;
use crate::memory::Lease;

/// What a request leads to.
#[derive(Debug, Default)]
pub(crate) struct Reply {
    /// `None`: nothing is sent, as for acks=0.
    pub(crate) frame: Option<Frame>,
    /// Memory of the response's records.
    pub(crate) lease: Lease,
    /// Memory of the rest, if that is much.
    pub(crate) rest: Lease,
    /// The connection ends behind this reply.
    pub(crate) close: Option<CloseReason>,
}

/// A reply in the making. Requests other than Produce begin when this is first polled.
pub(crate) type ReplyFuture = Pin<Box<dyn Future<Output = Reply>>>;

/// One request on its way.
pub(crate) struct Pending {
    pub(crate) reply: ReplyFuture,
    pub(crate) request: Option<RequestKind>,
    pub(crate) received: MonotonicTime,
    /// Size of its frame.
    pub(crate) bytes: usize,
}

/// What is counted when a request is answered.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RequestKind {
    pub(crate) api: &'static Api,
    pub(crate) version: i16,
}

impl fmt::Debug for Pending {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pending").field("bytes", &self.bytes).finish_non_exhaustive()
    }
}

/// Shard-local. The reader of a connection pushes, its writer pops; both are parts of one task in which the writer is
/// polled after the reader, so only the reader ever needs to be woken.
#[derive(Debug)]
pub(crate) struct InFlight {
    queue: RefCell<VecDeque<Pending>>,
    /// Read and not answered: more than the queue while the writer works on one.
    requests: Cell<usize>,
    bytes: Cell<usize>,
    most_requests: usize,
    most_bytes: usize,
    reader: RefCell<Option<Waker>>,
    /// Why nothing more will come.
    end: RefCell<Option<CloseReason>>,
}

impl InFlight {
    pub(crate) fn new(limits: &Limits) -> Self {
        Self {
            queue: RefCell::default(),
            requests: Cell::new(0),
            bytes: Cell::new(0),
            most_requests: limits.connection_requests,
            most_bytes: limits.connection_request_bytes,
            reader: RefCell::new(None),
            end: RefCell::new(None),
        }
    }

    pub(crate) fn requests(&self) -> usize {
        self.requests.get()
    }

    /// Whether another request may be read.
    pub(crate) fn has_room(&self) -> bool {
        let requests = self.requests.get();
        requests == 0 || requests < self.most_requests && self.bytes.get() < self.most_bytes
    }

    /// Completes when another request may be read.
    pub(crate) async fn room(&self) {
        poll_fn(|cx| {
            if self.has_room() {
                return Poll::Ready(());
            }
            self.reader.replace(Some(cx.waker().clone()));
            Poll::Pending
        })
        .await;
    }

    pub(crate) fn push(&self, pending: Pending) {
        self.requests.set(self.requests.get() + 1);
        self.bytes.set(self.bytes.get() + pending.bytes);
        self.queue.borrow_mut().push_back(pending);
    }

    /// Nothing more will come; the connection ends when everything is answered.
    pub(crate) fn finish(&self, reason: CloseReason) {
        self.end.borrow_mut().get_or_insert(reason);
    }

    /// The next request, if there is one now.
    pub(crate) fn try_pop(&self) -> Option<Pending> {
        self.queue.borrow_mut().pop_front()
    }

    /// The next request, or why there will be none.
    pub(crate) async fn pop(&self) -> Result<Pending, CloseReason> {
        poll_fn(|_| {
            if let Some(pending) = self.try_pop() {
                return Poll::Ready(Ok(pending));
            }
            self.end.borrow().clone().map_or(Poll::Pending, |reason| Poll::Ready(Err(reason)))
        })
        .await
    }

    /// A request that was popped is answered.
    pub(crate) fn done(&self, bytes: usize) {
        self.requests.set(self.requests.get() - 1);
        self.bytes.set(self.bytes.get() - bytes);
        if let Some(reader) = self.reader.take() {
            reader.wake();
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]
    use futures_lite::future::{block_on, poll_once};
    use kaas_proto::config::broker::BrokerConfig;

    use super::*;

    fn pending(bytes: usize) -> Pending {
        let reply = Box::pin(async { Reply::default() });
        Pending { reply, request: None, received: MonotonicTime(0), bytes }
    }

    fn in_flight(connection_requests: usize, connection_request_bytes: usize) -> InFlight {
        let limits = Limits::of(&BrokerConfig::default());
        InFlight::new(&Limits { connection_requests, connection_request_bytes, ..limits })
    }

    #[test]
    fn the_bounds_count_until_the_answer() {
        block_on(async {
            let queue = in_flight(2, 100);
            queue.push(pending(10));
            assert!(queue.has_room());
            queue.push(pending(10));
            assert_eq!(poll_once(queue.room()).await, None);
            let first = queue.pop().await.unwrap();
            assert_eq!(poll_once(queue.room()).await, None, "it is not answered yet");
            queue.done(first.bytes);
            queue.room().await;
        });
    }

    #[test]
    fn a_request_above_the_bound_goes_alone() {
        let queue = in_flight(2, 100);
        assert!(queue.has_room());
        queue.push(pending(1000));
        assert!(!queue.has_room());
    }

    #[test]
    fn the_end_comes_behind_the_last_answer() {
        block_on(async {
            let queue = in_flight(5, 100);
            queue.push(pending(1));
            queue.finish(CloseReason::Stopping);
            queue.finish(CloseReason::Client);
            assert!(queue.pop().await.is_ok());
            assert_eq!(queue.pop().await.unwrap_err(), CloseReason::Stopping);
        });
    }
}
