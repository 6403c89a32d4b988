//! The admin endpoint: `/metrics`, `/healthz`, `/readyz`.
//!
//! It answers from memory and from the shards, with a deadline, and never touches the volume: it stays up when the
//! filer does not.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::header::{ALLOW, CONTENT_TYPE};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use kaas_proto::control::ShardCommand;
use kaas_proto::metrics::ShardMetrics;
use kaas_proto::reserve::Reserves;
use serde_json::{Value, json};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::AbortHandle;
use tokio::time::{Instant, sleep, timeout_at};

use crate::cluster::ClusterHealth;
use crate::cluster_state::ClusterState;
use crate::leadership::Counts;
use crate::log_limit::may_log;
use crate::outbox::Outbox;
use crate::shard_pings::ShardsAnswer;
use prometheus::Exposition;

mod cluster_metrics;
mod control_metrics;
mod process;
mod prometheus;

/// Connections at a time. For a further one the oldest makes room whose request is not being worked on.
const MAX_CONNECTIONS: usize = 64;
/// How long a connection may take to send the head of a request, also of the next one. Scrapers connect again.
const HEAD_WAIT: Duration = Duration::from_secs(2);
/// Once this broker has been ready: how long it may take to lead a partition of a new topic, before it counts as unready.
/// Clients that create topics must not take brokers out of service.
const NEW_PARTITION_GRACE: Duration = Duration::from_secs(10);
/// How long shards have to answer a scrape; those that do not are missing in it, and counted.
const SHARD_WAIT: Duration = Duration::from_secs(1);
/// Partitions that `/healthz` lists by name.
const MAX_TROUBLES: usize = 20;
/// After a failed accept (no more open files), before the next one.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// What the admin endpoint says about the process itself.
#[derive(Clone, Debug)]
pub struct Facts {
    pub version: &'static str,
    /// `standalone`, `local-dev` or `cluster`.
    pub mode: &'static str,
    pub started: std::time::Instant,
}

/// Control thread.
#[derive(Debug)]
pub struct Admin {
    state: Rc<RefCell<ClusterState>>,
    shards: Vec<mpsc::Sender<ShardCommand>>,
    outbox: Rc<Outbox>,
    answers: Rc<ShardsAnswer>,
    stopping: watch::Receiver<bool>,
    facts: Facts,
    reserves: Reserves,
    cluster: Option<ClusterHealth>,
    connections: RefCell<BTreeMap<u64, Open>>,
    next_connection: Cell<u64>,
    refused: Cell<u64>,
    dropped: Cell<u64>,
}

/// A connection.
#[derive(Debug)]
struct Open {
    task: AbortHandle,
    /// A request is being worked on; else the client is to send one, or to read its answer.
    is_answering: bool,
}

impl Admin {
    #[must_use]
    pub(crate) fn new(
        state: Rc<RefCell<ClusterState>>,
        shards: Vec<mpsc::Sender<ShardCommand>>,
        outbox: Rc<Outbox>,
        answers: Rc<ShardsAnswer>,
        stopping: watch::Receiver<bool>,
        facts: Facts,
    ) -> Self {
        Self {
            state,
            shards,
            outbox,
            answers,
            stopping,
            facts,
            reserves: Reserves::default(),
            cluster: None,
            connections: RefCell::default(),
            next_connection: Cell::new(0),
            refused: Cell::new(0),
            dropped: Cell::new(0),
        }
    }

    /// Shows whether the volume is full.
    #[must_use]
    pub(crate) fn with_reserves(self, reserves: Reserves) -> Self {
        Self { reserves, ..self }
    }

    /// Shows a broker of a cluster.
    #[must_use]
    pub(crate) fn in_cluster(self, health: ClusterHealth) -> Self {
        Self { cluster: Some(health), ..self }
    }

    /// Serves until the task is dropped. Within a `LocalSet`.
    pub async fn serve(self: Rc<Self>, listener: TcpListener) {
        loop {
            match listener.accept().await {
                Ok((stream, _)) if self.has_room() => {
                    let id = self.next_connection.replace(self.next_connection.get() + 1);
                    let task = tokio::task::spawn_local(Rc::clone(&self).connection(id, stream)).abort_handle();
                    self.connections.borrow_mut().insert(id, Open { task, is_answering: false });
                }
                Ok(_) => self.refused.set(self.refused.get() + 1),
                Err(error) => {
                    if may_log("admin_accept") {
                        tracing::warn!("the admin endpoint could not accept a connection: {error}");
                    }
                    sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }

    /// Whether another connection may be served, if need be in place of one that keeps us waiting: connections that send
    /// nothing must not keep a probe out.
    fn has_room(&self) -> bool {
        let mut connections = self.connections.borrow_mut();
        if connections.len() < MAX_CONNECTIONS {
            return true;
        }
        let waiting = connections.iter().find(|(_, open)| !open.is_answering).map(|(&id, _)| id);
        let Some(dropped) = waiting.and_then(|id| connections.remove(&id)) else { return false };
        dropped.task.abort();
        self.dropped.set(self.dropped.get() + 1);
        true
    }

    async fn connection(self: Rc<Self>, id: u64, stream: TcpStream) {
        let service = service_fn(|request: Request<Incoming>| {
            let admin = Rc::clone(&self);
            async move {
                admin.note_answering(id, true);
                let answer = admin.answer(request.method(), request.uri().path()).await;
                admin.note_answering(id, false);
                Ok::<_, Infallible>(answer)
            }
        });
        let serving = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(HEAD_WAIT)
            .serve_connection(TokioIo::new(stream), service);
        // A client that goes away, or sends no HTTP, is its own problem.
        let _ = serving.await;
        self.connections.borrow_mut().remove(&id);
    }

    fn note_answering(&self, id: u64, is_answering: bool) {
        if let Some(open) = self.connections.borrow_mut().get_mut(&id) {
            open.is_answering = is_answering;
        }
    }

    async fn answer(&self, method: &Method, path: &str) -> Response<Full<Bytes>> {
        if method != Method::GET && method != Method::HEAD {
            let mut response = text(StatusCode::METHOD_NOT_ALLOWED, "only GET and HEAD are served here\n");
            response.headers_mut().insert(ALLOW, hyper::header::HeaderValue::from_static("GET, HEAD"));
            return response;
        }
        match path {
            "/metrics" => {
                let mut response = text(StatusCode::OK, self.metrics().await);
                let version = hyper::header::HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
                response.headers_mut().insert(CONTENT_TYPE, version);
                response
            }
            "/healthz" => json_response(StatusCode::OK, &self.health()),
            "/readyz" => self.readiness(),
            _ => text(StatusCode::NOT_FOUND, "there are /metrics, /healthz and /readyz\n"),
        }
    }

    fn readiness(&self) -> Response<Full<Bytes>> {
        let counts = self.state.borrow().leadership().counts();
        let reason = self.unready(counts);
        let ready = reason.is_none();
        let body = json!({
            "ready": ready, "reason": reason, "assigned": counts.assigned, "leading": counts.leading, "waiting": counts.waiting,
            "failed": counts.failed, "stalled": counts.stalled,
        });
        json_response(if ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE }, &body)
    }

    /// Why clients should not come here, if they should not.
    fn unready(&self, counts: Counts) -> Option<String> {
        if *self.stopping.borrow() {
            return Some("it is stopping".to_owned());
        }
        if !self.answers.is_fine() {
            return Some("a shard does not answer".to_owned());
        }
        if let Some(reason) = self.cluster.as_ref().and_then(ClusterHealth::unready) {
            return Some(reason.to_owned());
        }
        // In a cluster a superseded partition is about to be assigned anew.
        if self.cluster.is_some() && counts.superseded > 0 {
            return Some(format!("{} partitions are led by others and not assigned anew yet", counts.superseded));
        }
        let state = self.state.borrow();
        let grace = if state.was_ready() { NEW_PARTITION_GRACE } else { Duration::ZERO };
        let overdue = state.leadership().overdue(grace);
        (overdue > 0).then(|| format!("{overdue} partitions are not taken over yet"))
    }

    fn health(&self) -> Value {
        let state = self.state.borrow();
        let (view, counts) = (state.view(), state.leadership().counts());
        let troubles = state.leadership().troubles(MAX_TROUBLES);
        let troubles: Vec<Value> = troubles
            .iter()
            .map(|trouble| match trouble.partition.slot() {
                Some(slot) => json!({ "coordinatorSlot": slot, "reason": &*trouble.reason }),
                None => json!({
                    "topic": &*trouble.topic, "partition": trouble.partition.partition, "reason": &*trouble.reason,
                }),
            })
            .collect();
        let accepts_records = !self.reserves.data.refuses_records();
        let accepts_offsets = !self.reserves.cluster.refuses_records();
        let healthy =
            accepts_records && accepts_offsets && counts.failed == 0 && counts.stalled == 0 && counts.superseded == 0;
        json!({
            "status": if healthy { "ok" } else { "degraded" },
            "version": self.facts.version,
            "mode": self.facts.mode,
            "uptimeSeconds": self.facts.started.elapsed().as_secs(),
            "clusterId": &*view.cluster_id,
            "broker": view.self_id,
            "shards": self.shards.len(),
            // Not while the volume is full.
            "acceptsRecords": accepts_records,
            "acceptsOffsets": accepts_offsets,
            "topics": view.topics.len(),
            "cluster": self.cluster.as_ref().map(ClusterHealth::show),
            "partitions": {
                "assigned": counts.assigned, "leading": counts.leading, "waiting": counts.waiting,
                "failed": counts.failed, "stalled": counts.stalled, "superseded": counts.superseded,
            },
            "troubles": troubles,
        })
    }

    async fn metrics(&self) -> String {
        let mut exposition = Exposition::default();
        let mut silent = 0;
        for metrics in self.shard_metrics().await {
            match metrics {
                Some(metrics) => exposition.shard(*metrics),
                None => silent += 1,
            }
        }
        let state = self.state.borrow();
        let bounds = control_metrics::Bounds {
            silent_shards: silent,
            refused_connections: self.refused.get(),
            dropped_connections: self.dropped.get(),
            refused_commands: self.outbox.refused(),
        };
        control_metrics::add(&mut exposition, &state, &self.facts, bounds);
        if let Some(cluster) = &self.cluster {
            cluster_metrics::add(&mut exposition, cluster);
        }
        process::add(&mut exposition);
        exposition.render()
    }

    /// What each shard has counted; `None` for one that did not answer in time.
    async fn shard_metrics(&self) -> Vec<Option<Box<ShardMetrics>>> {
        let deadline = Instant::now() + SHARD_WAIT;
        let ask = |shard: &mpsc::Sender<ShardCommand>| {
            let (reply, answer) = oneshot::channel();
            shard.try_send(ShardCommand::Metrics { reply }).ok().map(|()| answer)
        };
        // All are asked before the first is waited for.
        let answers: Vec<_> = self.shards.iter().map(ask).collect();
        let mut metrics = Vec::with_capacity(answers.len());
        for answer in answers {
            metrics.push(match answer {
                Some(answer) => timeout_at(deadline, answer).await.ok().and_then(Result::ok),
                None => None,
            });
        }
        metrics
    }
}

fn text(status: StatusCode, body: impl Into<Bytes>) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(body.into()));
    *response.status_mut() = status;
    let plain = hyper::header::HeaderValue::from_static("text/plain; charset=utf-8");
    response.headers_mut().insert(CONTENT_TYPE, plain);
    response
}

fn json_response(status: StatusCode, body: &Value) -> Response<Full<Bytes>> {
    let mut response = text(status, format!("{body}\n"));
    response.headers_mut().insert(CONTENT_TYPE, hyper::header::HeaderValue::from_static("application/json"));
    response
}

/// Binds the admin port.
///
/// # Errors
/// The port is taken, or not ours.
pub fn bind(address: std::net::SocketAddr) -> std::io::Result<std::net::TcpListener> {
    let listener = std::net::TcpListener::bind(address)?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

#[cfg(test)]
mod tests;
