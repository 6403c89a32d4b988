//! One connection: reads requests, starts them, writes responses in the order of the requests.
//!
//! A single task. Its reader hands every request to [`dispatch::begin`], which carries out the ordered stage of Produce at
//! once and makes of everything else a future that has not begun; its writer completes them one after the other. So
//! Produce requests overlap while everything else waits for those before it. While nothing arrives, no buffer is held.
//!
//! Dropping the task is safe at any point: long polls forget their waiters, appends that are under way complete
//! unanswered.

use std::cell::{Cell, RefCell};
use std::future::{Future, pending, poll_fn};
use std::io;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Poll, ready};

use bytes::Bytes;
use futures_lite::future;
use kaas_core::env::MonotonicTime;
use tokio::sync::Notify;

use crate::activity::Activity;
use crate::close_reason::CloseReason;
use crate::context::{Client, ShardContext, now};
use crate::deadline::elapsed;
use crate::dispatch;
use crate::frame_buffer::FrameBuffer;
use crate::in_flight::{InFlight, Pending, Reply, ReplyFuture, RequestKind};
use crate::limits::{COALESCE_BYTES, READ_CHUNK_BYTES, SCRATCH_BYTES, UNRESERVED_FRAME_BYTES};
use crate::memory::Lease;
use crate::metrics::{self, Bound};
use crate::socket::{ClientSocket, Parts};

/// Shard-local; shared by the connection's task with the sweep and with the stop.
#[derive(Debug)]
pub(crate) struct Connection {
    pub(crate) client: Rc<Client>,
    pub(crate) activity: Activity,
    socket: ClientSocket,
    context: Rc<ShardContext>,
    in_flight: InFlight,
    stopping: Cell<bool>,
    /// Why others ended it.
    verdict: RefCell<Option<CloseReason>>,
    ended: Notify,
}

impl Connection {
    pub(crate) fn new(socket: ClientSocket, client: Client, context: Rc<ShardContext>) -> Self {
        Self {
            client: Rc::new(client),
            activity: Activity::new(now()),
            socket,
            in_flight: InFlight::new(&context.limits),
            context,
            stopping: Cell::new(false),
            verdict: RefCell::new(None),
            ended: Notify::new(),
        }
    }

    /// Ends the connection from outside, at once.
    pub(crate) fn close(&self, reason: CloseReason) {
        self.verdict.borrow_mut().get_or_insert(reason);
        self.ended.notify_one();
    }

    /// Reads no further request; the connection ends when those that it has read are answered.
    pub(crate) fn stop(&self) {
        self.stopping.set(true);
        self.socket.stop_reading();
    }

    /// Runs until either side ends it.
    pub(crate) async fn serve(&self) -> CloseReason {
        let verdict = async {
            self.ended.notified().await;
            self.verdict.take().expect("a reason comes before the end")
        };
        let mut writing = pin!(self.write_responses());
        let ended = async { (future::or(verdict, self.read_requests()).await, false) };
        let written = async { (writing.as_mut().await, true) };
        let (reason, is_written) = future::or(ended, written).await;
        if !is_written {
            // A client that is gone as soon as it has its response: what was sent is still counted.
            future::poll_once(writing).await;
        }
        reason
    }

    async fn read_requests(&self) -> CloseReason {
        let mut buffer = FrameBuffer::new(self.context.limits.request_max_bytes);
        loop {
            let (frame, memory) = match self.receive(&mut buffer).await {
                Ok(received) => received,
                // The client is gone, and what it asked for with it.
                Err(reason @ (CloseReason::Client | CloseReason::HalfRequest | CloseReason::Lost(_))) => return reason,
                Err(reason) => return self.finish(reason).await,
            };
            if !self.in_flight.has_room() {
                self.context.metrics.reached(Bound::ConnectionRequests);
                self.activity.pause();
                self.in_flight.room().await;
            }
            let (received, bytes) = (now(), frame.len());
            self.activity.pause();
            let begun = dispatch::begin(frame, memory, &self.context, &self.client).await;
            self.in_flight.push(Pending { reply: begun.reply, request: begun.request, received, bytes });
            self.activity.set_requests(self.in_flight.requests());
            if let Some(reason) = begun.end {
                return self.finish(reason).await;
            }
        }
    }

    /// Lets what was read be answered, and reads no more.
    async fn finish(&self, reason: CloseReason) -> CloseReason {
        self.activity.pause();
        self.in_flight.finish(reason);
        pending().await
    }

    /// The next request, and the memory that is reserved for it.
    async fn receive(&self, buffer: &mut FrameBuffer) -> Result<(Bytes, Lease), CloseReason> {
        let mut memory = None;
        loop {
            if self.stopping.get() {
                return Err(CloseReason::Stopping);
            }
            if let Some(frame) = buffer.next().map_err(CloseReason::Frame)? {
                if memory.is_none() {
                    memory = self.reserve(frame.len()).await;
                }
                self.activity.set_reserved(false);
                return Ok((frame, memory));
            }
            let announced = buffer.announced().map_err(CloseReason::Frame)?;
            if let Some(length) = announced.filter(|length| *length > UNRESERVED_FRAME_BYTES)
                && memory.is_none()
            {
                memory = self.reserve(length).await;
                self.activity.set_reserved(true);
            }
            self.activity.receive(now(), !buffer.is_empty());
            let received = match buffer.missing().filter(|missing| *missing > SCRATCH_BYTES) {
                Some(missing) => self.read_large(buffer, missing.min(READ_CHUNK_BYTES)).await,
                None => self.read_small(buffer).await,
            };
            match received {
                Ok(0) if self.stopping.get() => return Err(CloseReason::Stopping),
                Ok(0) if !buffer.is_empty() => return Err(CloseReason::HalfRequest),
                Ok(0) => return Err(CloseReason::Client),
                Ok(received) => metrics::add(&self.context.metrics.received_bytes, received as u64),
                Err(error) => return Err(CloseReason::Lost(error.kind())),
            }
            // A client that sends without pause must not keep others waiting.
            glommio::executor().yield_if_needed().await;
        }
    }

    async fn reserve(&self, bytes: usize) -> Lease {
        let budget = self.context.request_memory.of(bytes);
        if let Ok(lease) = budget.try_reserve(bytes) {
            return lease;
        }
        self.context.metrics.reached(Bound::ShardRequestBytes);
        self.activity.pause();
        self.context.pressed.notify_one();
        budget.reserve(bytes).await
    }

    async fn read_small(&self, buffer: &mut FrameBuffer) -> io::Result<usize> {
        poll_fn(|cx| {
            let mut scratch = self.context.scratch.borrow_mut();
            let received = ready!(self.socket.poll_read(cx, &mut scratch))?;
            buffer.push(&scratch[..received]);
            Poll::Ready(Ok(received))
        })
        .await
    }

    async fn read_large(&self, buffer: &mut FrameBuffer, size: usize) -> io::Result<usize> {
        let room = buffer.room(size);
        let received = poll_fn(|cx| self.socket.poll_read(cx, room)).await;
        buffer.received(*received.as_ref().unwrap_or(&0));
        received
    }

    async fn write_responses(&self) -> CloseReason {
        let mut next = None;
        loop {
            let first = match next.take() {
                Some(pending) => pending,
                None => match self.in_flight.pop().await {
                    Ok(pending) => pending,
                    Err(reason) => return reason,
                },
            };
            let mut batch = ResponseBatch::default();
            batch.complete(first).await;
            next = batch.complete_ready(&self.in_flight).await;
            let hinders = next.is_some() || batch.answered.iter().any(|answered| answered.rest.is_some());
            self.activity.set_hinders(hinders);
            if let Err(error) = self.send(&mut batch.parts).await {
                return CloseReason::Lost(error.kind());
            }
            for answered in batch.answered.drain(..) {
                if let Some(RequestKind { api, version }) = answered.request {
                    self.context.metrics.answered(api, version, elapsed(answered.received));
                }
                self.in_flight.done(answered.bytes);
            }
            self.activity.set_requests(self.in_flight.requests());
            if let Some(reason) = batch.close {
                return reason;
            }
        }
    }

    async fn send(&self, parts: &mut Parts) -> io::Result<()> {
        self.activity.send(now(), !parts.is_empty());
        while !parts.is_empty() {
            let sent = self.socket.write_some(parts).await?;
            metrics::add(&self.context.metrics.sent_bytes, sent as u64);
            self.activity.send(now(), !parts.is_empty());
            glommio::executor().yield_if_needed().await;
        }
        metrics::add(&self.context.metrics.sends, self.socket.take_sends());
        Ok(())
    }
}

/// Responses that are sent together.
#[derive(Default)]
struct ResponseBatch {
    parts: Parts,
    bytes: usize,
    answered: Vec<Answered>,
    close: Option<CloseReason>,
}

/// A request whose response is ready.
struct Answered {
    request: Option<RequestKind>,
    received: MonotonicTime,
    bytes: usize,
    /// Memory of the response, until it is sent.
    _records: Lease,
    rest: Lease,
}

impl ResponseBatch {
    async fn complete(&mut self, mut pending: Pending) {
        let reply = pending.reply.as_mut().await;
        self.add(pending, reply);
    }

    /// Adds what is ready behind the first response; returns the first request that is not.
    async fn complete_ready(&mut self, in_flight: &InFlight) -> Option<Pending> {
        while self.close.is_none() && self.bytes < COALESCE_BYTES {
            let mut pending = in_flight.try_pop()?;
            match poll_reply(&mut pending.reply).await {
                Some(reply) => self.add(pending, reply),
                None => return Some(pending),
            }
        }
        None
    }

    fn add(&mut self, pending: Pending, reply: Reply) {
        let Pending { request, received, bytes, .. } = pending;
        if let Some(frame) = reply.frame {
            self.bytes += frame.len();
            self.parts.extend(frame.into_parts());
        }
        self.close = reply.close;
        self.answered.push(Answered { request, received, bytes, _records: reply.lease, rest: reply.rest });
    }
}

async fn poll_reply(reply: &mut ReplyFuture) -> Option<Reply> {
    poll_fn(|cx| match Pin::new(&mut *reply).poll(cx) {
        Poll::Ready(reply) => Poll::Ready(Some(reply)),
        Poll::Pending => Poll::Ready(None),
    })
    .await
}
