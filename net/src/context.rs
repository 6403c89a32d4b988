//! What a request handler has at hand: the shard it runs on, the client that asks, the request's version.

use std::cell::RefCell;
use std::future::Future;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use kaas_core::env::MonotonicTime;
use kaas_core::env::executor::monotonic_now;
use kaas_core::log_limit::LogLimit;
use kaas_core::shard::operation::ClientIdentity;
use kaas_proto::config::broker::BrokerConfig;
use kaas_proto::control::ControlRequest;
use kaas_proto::kafka::{KafkaString, Request};
use kaas_proto::types::ShardId;
use kaas_proto::view::ClusterView;
use tokio::sync::{Notify, mpsc, oneshot, watch};

use crate::deadline;
use crate::fetch_session::FetchSessions;
use crate::limits::{ADMIN_TIMEOUT_MAX, Limits, UNRESERVED_FRAME_BYTES, WORKING_BYTES};
use crate::memory::{self, Lease, MemoryBudget, RequestMemory};
use crate::metrics::{Bound, NetMetrics};
use crate::route::Router;

/// One shard, as its connections see it. Shard-local.
#[derive(Debug)]
pub(crate) struct ShardContext {
    pub(crate) router: Router,
    pub(crate) config: Arc<BrokerConfig>,
    pub(crate) limits: Limits,
    pub(crate) metrics: Rc<NetMetrics>,
    pub(crate) log_limit: LogLimit,
    pub(crate) request_memory: RequestMemory,
    /// Somebody begins to wait for memory of requests or of replies.
    pub(crate) pressed: Notify,
    pub(crate) working_memory: MemoryBudget,
    /// Of fetched records.
    pub(crate) response_memory: MemoryBudget,
    /// Of all else in large responses.
    pub(crate) reply_memory: MemoryBudget,
    pub(crate) fetch_sessions: RefCell<FetchSessions>,
    /// Bytes of small requests pass through here, within one poll.
    pub(crate) scratch: RefCell<Box<[u8]>>,
    view: watch::Receiver<Arc<ClusterView>>,
    control: mpsc::Sender<ControlRequest>,
    stopping: watch::Receiver<bool>,
}

/// What [`ShardContext::new`] is made of.
#[derive(Debug)]
pub(crate) struct ContextParts {
    pub(crate) shard: ShardId,
    pub(crate) router: Router,
    pub(crate) config: Arc<BrokerConfig>,
    pub(crate) limits: Limits,
    pub(crate) metrics: Rc<NetMetrics>,
    pub(crate) view: watch::Receiver<Arc<ClusterView>>,
    pub(crate) control: mpsc::Sender<ControlRequest>,
    pub(crate) stopping: watch::Receiver<bool>,
}

impl ShardContext {
    pub(crate) fn new(parts: ContextParts) -> Self {
        let ContextParts { shard, router, config, limits, metrics, view, control, stopping } = parts;
        let sessions = config.max_fetch_sessions.div_ceil(usize::from(router.shards()));
        Self {
            fetch_sessions: RefCell::new(FetchSessions::new(sessions, shard, router.shards())),
            request_memory: RequestMemory::new(limits.shard_request_bytes),
            pressed: Notify::new(),
            working_memory: MemoryBudget::new(WORKING_BYTES),
            response_memory: MemoryBudget::new(limits.shard_response_bytes),
            reply_memory: MemoryBudget::new(limits.shard_reply_bytes),
            log_limit: LogLimit::default(),
            scratch: RefCell::new(vec![0; crate::limits::SCRATCH_BYTES].into()),
            router,
            config,
            limits,
            metrics,
            view,
            control,
            stopping,
        }
    }

    /// The cluster as it is now.
    pub(crate) fn view(&self) -> Arc<ClusterView> {
        Arc::clone(&self.view.borrow())
    }

    /// Whether a line about this cause is to be logged, and not only counted.
    pub(crate) fn may_log(&self, cause: &'static str) -> bool {
        let may = self.log_limit.admits(cause, now());
        if !may {
            self.metrics.suppressed_line(cause);
        }
        may
    }

    /// Waits behind those who wait for memory of their replies.
    pub(crate) async fn reply_turn(&self) {
        if self.reply_memory.is_awaited() {
            drop(self.reply_memory.reserve(1).await);
        }
    }

    /// Completes when the broker begins to stop.
    pub(crate) async fn stopping(&self) {
        // The sender is gone only when the control thread is, and then the process ends.
        let _ = self.stopping.clone().wait_for(|stopping| *stopping).await;
    }

    /// Asks the control thread, and waits so long for its answer.
    pub(crate) async fn ask_control<T>(
        &self,
        timeout: Duration,
        request: impl FnOnce(oneshot::Sender<T>) -> ControlRequest,
    ) -> Result<T, ControlSilence> {
        let (reply, answer) = oneshot::channel();
        if self.control.try_send(request(reply)).is_err() {
            self.metrics.reached(Bound::ControlQueue);
            return Err(ControlSilence);
        }
        let answer = deadline::within(timeout, answer).await;
        answer.and_then(Result::ok).ok_or(ControlSilence)
    }
}

/// The control thread did not answer in time; what was asked may still happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ControlSilence;

/// The client of a connection.
#[derive(Clone, Debug)]
pub(crate) struct Client {
    /// The name of the listener that it came through.
    pub(crate) listener: Arc<str>,
    pub(crate) peer: SocketAddr,
    /// The address that it connected to.
    pub(crate) local: SocketAddr,
}

/// One request, as its handler sees it.
#[derive(Debug)]
pub(crate) struct Call {
    pub(crate) shard: Rc<ShardContext>,
    pub(crate) client: Rc<Client>,
    pub(crate) version: i16,
    pub(crate) client_id: Option<KafkaString>,
    /// Memory of the request's frame.
    request_memory: RefCell<Lease>,
    /// Memory of working on it.
    working_memory: RefCell<Lease>,
    response_memory: RefCell<Lease>,
}

impl Call {
    pub(crate) fn new(
        shard: Rc<ShardContext>,
        client: Rc<Client>,
        version: i16,
        client_id: Option<KafkaString>,
        request_memory: Lease,
    ) -> Self {
        let request_memory = RefCell::new(request_memory);
        let (working_memory, response_memory) = (RefCell::new(None), RefCell::new(None));
        Self { shard, client, version, client_id, request_memory, working_memory, response_memory }
    }

    /// Reserves what a request of this length may take while it is worked on, if that is worth the trouble.
    pub(crate) async fn reserve_working_memory(&self, length: usize) {
        if length <= UNRESERVED_FRAME_BYTES {
            return;
        }
        let (budget, bytes) = (&self.shard.working_memory, memory::working_bytes_of_frame(length));
        let lease = match budget.try_reserve(bytes) {
            Ok(lease) => lease,
            Err(_) => {
                self.shard.metrics.reached(Bound::ShardWorkingBytes);
                budget.reserve(bytes).await
            }
        };
        self.working_memory.replace(lease);
    }

    /// The request has so many elements, mostly far fewer than its length allows.
    pub(crate) fn shrink_working_memory(&self, elements: usize) {
        memory::shrink(&mut self.working_memory.borrow_mut(), memory::working_bytes_of_elements(elements));
    }

    /// Gives the memory of the request back before it is answered: nothing keeps a part of its frame any more. For
    /// requests that may wait for others for long, who would otherwise keep those out.
    pub(crate) fn release_request(&self) {
        self.request_memory.take();
    }

    /// The cluster as it is now.
    pub(crate) fn view(&self) -> Arc<ClusterView> {
        self.shard.view()
    }

    /// Who asks, for groups.
    pub(crate) fn identity(&self) -> ClientIdentity {
        ClientIdentity {
            client_id: self.client_id.as_deref().unwrap_or_default().to_owned(),
            host: format!("/{}", self.client.peer.ip()),
        }
    }

    /// Keeps memory reserved until the response is sent.
    pub(crate) fn hold(&self, lease: Lease) {
        self.response_memory.replace(lease);
    }

    pub(crate) fn take_lease(&self) -> Lease {
        self.response_memory.take()
    }
}

/// A handler: what answers one API. It starts when all earlier requests of its connection are answered.
pub(crate) trait Handle: Request {
    /// Answers the request.
    fn handle(self, call: &Call) -> impl Future<Output = Self::Response>;
}

/// How long an administrative request may take, as its client asks for within bounds.
pub(crate) fn admin_timeout(timeout_ms: i32) -> Duration {
    Duration::from_millis(u64::try_from(timeout_ms).unwrap_or(0)).min(ADMIN_TIMEOUT_MAX)
}

/// The monotonic clock.
pub(crate) fn now() -> MonotonicTime {
    monotonic_now()
}
