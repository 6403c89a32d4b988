//! What the binary starts on each shard: accept loops, connections, the sweep for idle ones, and the orderly end.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use futures_lite::future;
use kaas_core::log_limit::tell;
use kaas_core::shard::operation::ShardPort;
use kaas_proto::config::broker::BrokerConfig;
use kaas_proto::control::ControlRequest;
use kaas_proto::types::ShardId;
use kaas_proto::view::ClusterView;
use tokio::sync::{Notify, mpsc, watch};

use crate::activity::{self, Pressed};
use crate::close_reason::CloseReason;
use crate::connection::Connection;
use crate::context::{Client, ContextParts, ShardContext, now};
use crate::deadline::Deadline;
use crate::limits::{ACCEPT_RETRY, Limits, PRESSED_SWEEP_INTERVAL};
use crate::listener::{BoundListener, ShardListener};
use crate::metrics::{Bound, NetMetrics};
use crate::route::Router;
use crate::socket::ClientSocket;

/// What a shard's server works with.
#[expect(missing_debug_implementations, reason = "ports are opaque")]
pub struct Server {
    pub shard: ShardId,
    /// All shards, this one included, in order.
    pub ports: Vec<Rc<dyn ShardPort>>,
    pub view: watch::Receiver<Arc<ClusterView>>,
    pub control: mpsc::Sender<ControlRequest>,
    /// Becomes true when the broker begins to stop.
    pub stopping: watch::Receiver<bool>,
    pub config: Arc<BrokerConfig>,
    pub limits: Limits,
    pub connections: Arc<ConnectionCounter>,
    /// Read by whoever answers the control thread's wish for a snapshot.
    pub metrics: Rc<NetMetrics>,
}

impl Server {
    /// Serves the listeners until the broker stops: accepts nothing more then, lets connections answer what they have
    /// read, and completes when those of all shards are closed, or after the grace of a stop. Until then the shard must go
    /// on: another one may need it for its last answers. Runs in the task queue of its caller, and all its connections
    /// with it.
    pub async fn run(self, listeners: Vec<BoundListener>) {
        let parts = ContextParts {
            shard: self.shard,
            router: Router::new(self.ports, Rc::clone(&self.metrics)),
            config: self.config,
            limits: self.limits,
            metrics: self.metrics,
            view: self.view,
            control: self.control,
            stopping: self.stopping,
        };
        let running = Rc::new(Running {
            context: Rc::new(ShardContext::new(parts)),
            counter: self.connections,
            connections: RefCell::default(),
            next_id: Cell::new(0),
            closed: Notify::new(),
        });
        let listeners = listeners.into_iter().map(ShardListener::new);
        let accepting: Vec<_> =
            listeners.map(|listener| glommio::spawn_local(running.clone().accept(listener))).collect();
        let sweeping = glommio::spawn_local(running.clone().sweep());
        running.context.stopping().await;
        for task in accepting {
            task.cancel().await;
        }
        let grace = Deadline::after(running.context.limits.stop_grace);
        running.stop(grace).await;
        sweeping.cancel().await;
        tell(running.context.log_limit.take_all());
        grace.cut(running.counter.none_open()).await;
    }
}

/// The server of one shard at work. Shard-local.
struct Running {
    context: Rc<ShardContext>,
    counter: Arc<ConnectionCounter>,
    connections: RefCell<BTreeMap<u64, Rc<Connection>>>,
    next_id: Cell<u64>,
    closed: Notify,
}

impl Running {
    async fn accept(self: Rc<Self>, listener: ShardListener) {
        loop {
            match listener.accept().await {
                Ok(socket) => self.admit(socket, &listener.name),
                Err(error) => {
                    // Out of descriptors, most likely: to try again at once would only burn the shard's time.
                    if self.context.may_log("accept_failed") {
                        tracing::warn!(listener = &*listener.name, %error, "accepting a connection failed");
                    }
                    glommio::timer::sleep(ACCEPT_RETRY).await;
                }
            }
        }
    }

    fn admit(self: &Rc<Self>, socket: ClientSocket, listener: &Arc<str>) {
        let peer = socket.peer;
        let admission = match self.counter.admit(peer.ip(), &self.context.limits) {
            Ok(admission) => admission,
            Err(bound) => {
                self.context.metrics.reached(bound);
                if self.context.may_log(bound.label()) {
                    tracing::warn!(%peer, listener = &**listener, "refused the connection: {}", describe(bound));
                }
                return;
            }
        };
        self.context.metrics.accepted(listener);
        let client = Client { listener: Arc::clone(listener), peer, local: socket.local };
        let connection = Rc::new(Connection::new(socket, client, Rc::clone(&self.context)));
        let id = self.next_id.replace(self.next_id.get() + 1);
        self.connections.borrow_mut().insert(id, Rc::clone(&connection));
        self.count();
        let running = Rc::clone(self);
        let serve = async move {
            let reason = connection.serve().await;
            running.context.metrics.closed(reason.label());
            let (peer, listener) = (connection.client.peer, &*connection.client.listener);
            if reason.is_ordinary() {
                tracing::debug!(%peer, listener, "closed the connection: {reason}");
            } else if running.context.may_log(reason.label()) {
                tracing::warn!(%peer, listener, "closed the connection: {reason}");
            }
            running.connections.borrow_mut().remove(&id);
            running.count();
            running.closed.notify_one();
            drop(admission);
        };
        glommio::spawn_local(serve).detach();
    }

    fn count(&self) {
        self.context.metrics.connections.set(self.connections.borrow().len());
    }

    /// Ends connections that do nothing, stop in the middle, or don't read.
    async fn sweep(self: Rc<Self>) {
        let interval = activity::sweep_interval(&self.context.limits);
        loop {
            if self.pressed().any() {
                glommio::timer::sleep(PRESSED_SWEEP_INTERVAL).await;
            } else {
                future::or(glommio::timer::sleep(interval), self.context.pressed.notified()).await;
            }
            let (now, pressed) = (now(), self.pressed());
            tell(self.context.log_limit.take_ended(now));
            for connection in self.connections.borrow().values() {
                if let Some(reason) = connection.activity.overdue(now, &self.context.limits, pressed) {
                    connection.close(reason);
                }
            }
        }
    }

    fn pressed(&self) -> Pressed {
        Pressed { requests: self.context.request_memory.is_awaited(), replies: self.context.reply_memory.is_awaited() }
    }

    async fn stop(&self, grace: Deadline) {
        for connection in self.connections.borrow().values() {
            connection.stop();
        }
        if grace.cut(self.all_closed()).await.is_none() {
            let left: Vec<_> = self.connections.borrow().values().cloned().collect();
            tracing::warn!(connections = left.len(), "closing connections whose requests are not answered yet");
            left.iter().for_each(|connection| connection.close(CloseReason::Stopping));
            // Closed from outside, they end when their tasks run next.
            Deadline::after(self.context.limits.stop_grace).cut(self.all_closed()).await;
        }
    }

    async fn all_closed(&self) {
        while !self.connections.borrow().is_empty() {
            self.closed.notified().await;
        }
    }
}

fn describe(bound: Bound) -> &'static str {
    match bound {
        Bound::OpenFiles => "the other open files are for the volume; raise the limit (ulimit -n) for more connections",
        Bound::ConnectionsPerIp => "its address has max.connections.per.ip connections",
        _ => "there are max.connections connections",
    }
}

/// Counts the connections of the whole process, over all shards. Crosses shards.
#[derive(Debug, Default)]
pub struct ConnectionCounter {
    open: AtomicUsize,
    none_open: Notify,
    /// Used only if there is a limit per address.
    #[expect(
        clippy::disallowed_types,
        reason = "held for one look-up when a connection opens or closes, no shard waits"
    )]
    by_ip: std::sync::Mutex<HashMap<IpAddr, usize>>,
}

/// A connection that counts, until it is dropped.
struct Admission {
    counter: Arc<ConnectionCounter>,
    limited_ip: Option<IpAddr>,
}

impl ConnectionCounter {
    async fn none_open(&self) {
        loop {
            let closed = self.none_open.notified();
            if self.open.load(Ordering::SeqCst) == 0 {
                return;
            }
            closed.await;
        }
    }

    fn leave(&self) {
        if self.open.fetch_sub(1, Ordering::SeqCst) == 1 {
            self.none_open.notify_waiters();
        }
    }

    fn admit(self: &Arc<Self>, ip: IpAddr, limits: &Limits) -> Result<Admission, Bound> {
        let open = self.open.fetch_add(1, Ordering::SeqCst);
        for (most, bound) in [(limits.connections, Bound::Connections), (limits.connection_files, Bound::OpenFiles)] {
            if open >= most {
                self.leave();
                return Err(bound);
            }
        }
        let mut admission = Admission { counter: Arc::clone(self), limited_ip: None };
        if limits.connections_per_ip < limits.connections {
            let mut by_ip = self.by_ip();
            let count = by_ip.entry(ip).or_default();
            if *count >= limits.connections_per_ip {
                drop(by_ip);
                return Err(Bound::ConnectionsPerIp);
            }
            *count += 1;
            admission.limited_ip = Some(ip);
        }
        Ok(admission)
    }

    fn by_ip(&self) -> std::sync::MutexGuard<'_, HashMap<IpAddr, usize>> {
        self.by_ip.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

impl Drop for Admission {
    fn drop(&mut self) {
        self.counter.leave();
        if let Some(ip) = self.limited_ip {
            let mut by_ip = self.counter.by_ip();
            if let Some(count) = by_ip.get_mut(&ip) {
                *count -= 1;
                if *count == 0 {
                    by_ip.remove(&ip);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]
    use super::*;

    #[test]
    fn connections_count_until_they_are_dropped() {
        let counter = Arc::new(ConnectionCounter::default());
        let limits = Limits { connections: 3, connections_per_ip: 2, ..Limits::of(&BrokerConfig::default()) };
        let admit = |ip: [u8; 4]| counter.admit(ip.into(), &limits);
        let (first, second) = (admit([1; 4]).unwrap(), admit([1; 4]).unwrap());
        assert_eq!(admit([1; 4]).err(), Some(Bound::ConnectionsPerIp));
        let third = admit([2; 4]).unwrap();
        assert_eq!(admit([3; 4]).err(), Some(Bound::Connections));
        drop((first, second));
        assert!(admit([1; 4]).is_ok());
        let few = Limits { connection_files: 2, ..limits.clone() };
        let fourth = counter.admit([4; 4].into(), &few).unwrap();
        assert_eq!(counter.admit([4; 4].into(), &few).err(), Some(Bound::OpenFiles));
        drop(fourth);
        drop(third);
        assert!(counter.by_ip().is_empty());
        assert_eq!(counter.open.load(Ordering::SeqCst), 0);
    }
}
