//! The controller's side: takes sessions in, and hands on what they say.

use std::future::pending;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use futures_util::stream::{Stream, poll_fn};
use kaas_proto::format::assignment::RegisteredBroker;
use kaas_proto::heartbeat::{BrokerMessage, ControllerMessage};
use kaas_proto::types::BrokerId;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, watch};
use tokio::time::error::Elapsed;
use tokio::time::timeout;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Server;
use tonic::{Request, Response, Status, Streaming};

use super::messages::registered;
use super::service::heartbeat_server::{Heartbeat, HeartbeatServer};
use super::tls::Tls;
use crate::cluster::registry::{SESSION_TIMEOUT, SessionId};

/// Sessions at a time, those included that are about to end.
const MAX_SESSIONS: usize = 1024;
/// How long a session waits for this broker to become the controller: others may hear of its election before it has begun.
const ELECTION_WAIT: Duration = Duration::from_millis(500);
/// Messages that may wait for the controller; who sends more has to wait, too.
pub const EVENT_QUEUE_LENGTH: usize = 256;
/// Messages that may wait for a broker. Each makes those before it superfluous, but for reports.
const MESSAGE_QUEUE_LENGTH: usize = 64;

/// To a broker. Dropping it ends the session.
pub type ToBroker = mpsc::Sender<Result<ControllerMessage, Status>>;

/// What happens in sessions.
#[derive(Debug)]
pub enum SessionEvent {
    Began { session: SessionId, broker: RegisteredBroker, to_broker: ToBroker },
    Heard { session: SessionId, broker: BrokerId, message: BrokerMessage },
    Ended { session: SessionId, broker: BrokerId },
}

/// Where events go; `None` while this broker is not the controller.
pub type EventSink = Option<mpsc::Sender<SessionEvent>>;

/// Serves until the task is dropped; with `tls` only those that show a certificate of the authority.
///
/// # Errors
/// The listener failed.
pub async fn serve(
    listener: TcpListener,
    cluster_id: Arc<str>,
    sink: watch::Receiver<EventSink>,
    mut tls: Option<watch::Receiver<Tls>>,
) -> Result<(), tonic::transport::Error> {
    let sessions = Sessions { cluster_id, sink, next: AtomicU64::new(1), open: Arc::new(AtomicUsize::new(0)) };
    let service = HeartbeatServer::new(sessions);
    loop {
        let mut server = Server::builder();
        if let Some(tls) = &mut tls {
            let config = tls.borrow_and_update().server();
            server = server.tls_config(config)?;
        }
        let serving = server.add_service(service.clone()).serve_with_incoming(accept(&listener));
        // Sessions that there are have tasks of their own, and go on.
        tokio::select! {
            ended = serving => return ended,
            () = renewed(&mut tls) => {}
        }
    }
}

fn accept(listener: &TcpListener) -> impl Stream<Item = io::Result<TcpStream>> {
    poll_fn(move |context| {
        let prepare = |(stream, _): (TcpStream, _)| {
            // Of use, not needed.
            let _ = stream.set_nodelay(true);
            stream
        };
        listener.poll_accept(context).map(|accepted| Some(accepted.map(prepare)))
    })
}

/// Completes when there are other certificates.
async fn renewed(tls: &mut Option<watch::Receiver<Tls>>) {
    if let Some(tls) = tls
        && tls.changed().await.is_ok()
    {
        return;
    }
    pending().await
}

struct Sessions {
    cluster_id: Arc<str>,
    sink: watch::Receiver<EventSink>,
    next: AtomicU64,
    open: Arc<AtomicUsize>,
}

#[tonic::async_trait]
impl Heartbeat for Sessions {
    type SessionStream = ReceiverStream<Result<ControllerMessage, Status>>;

    async fn session(
        &self,
        request: Request<Streaming<BrokerMessage>>,
    ) -> Result<Response<Self::SessionStream>, Status> {
        let open = Open::count(&self.open).ok_or_else(|| Status::resource_exhausted("too many sessions"))?;
        let mut elected = self.sink.clone();
        let sink = match timeout(ELECTION_WAIT, elected.wait_for(Option::is_some)).await {
            Ok(Ok(sink)) => sink.clone(),
            Ok(Err(_)) | Err(_) => None,
        };
        let Some(sink) = sink else {
            return Err(Status::failed_precondition("this broker is not the controller"));
        };
        let session = SessionId(self.next.fetch_add(1, Ordering::Relaxed));
        let (to_broker, messages) = mpsc::channel(MESSAGE_QUEUE_LENGTH);
        let cluster_id = Arc::clone(&self.cluster_id);
        tokio::spawn(async move {
            let _open = open;
            let mut inbound = request.into_inner();
            let (broker, first) = match introduce(&cluster_id, &mut inbound).await {
                Ok(introduced) => introduced,
                Err(status) => {
                    // The broker may be gone.
                    let _ = to_broker.try_send(Err(status));
                    return;
                }
            };
            // Only the controller keeps the stream open, so that it ends with the term.
            let weak = to_broker.downgrade();
            if let Err(status) = converse(session, broker, first, &mut inbound, &sink, to_broker).await
                && let Some(to_broker) = weak.upgrade()
            {
                let _ = to_broker.try_send(Err(status));
            }
        });
        Ok(Response::new(ReceiverStream::new(messages)))
    }
}

fn silent(_: Elapsed) -> Status {
    Status::deadline_exceeded("no message in time")
}

/// The broker behind a stream, and its first message.
async fn introduce(
    cluster_id: &str,
    inbound: &mut Streaming<BrokerMessage>,
) -> Result<(RegisteredBroker, BrokerMessage), Status> {
    let first = timeout(SESSION_TIMEOUT, inbound.message()).await.map_err(silent)??;
    let first = first.ok_or_else(|| Status::cancelled("nothing was said"))?;
    let registration = first.registration.as_ref();
    let registration = registration.ok_or_else(|| Status::invalid_argument("the first message registers a broker"))?;
    let broker = registered(registration, cluster_id).map_err(|error| Status::invalid_argument(error.to_string()))?;
    Ok((broker, first))
}

async fn converse(
    session: SessionId,
    broker: RegisteredBroker,
    first: BrokerMessage,
    inbound: &mut Streaming<BrokerMessage>,
    sink: &mpsc::Sender<SessionEvent>,
    to_broker: ToBroker,
) -> Result<(), Status> {
    let gone = |_| Status::failed_precondition("this broker is not the controller any more");
    let id = broker.id;
    sink.send(SessionEvent::Began { session, broker, to_broker }).await.map_err(gone)?;
    let mut message = first;
    let ended = loop {
        sink.send(SessionEvent::Heard { session, broker: id, message }).await.map_err(gone)?;
        // How long silence may last is the registry's to say; this ends what it has given up already.
        match timeout(SESSION_TIMEOUT * 2, inbound.message()).await {
            Ok(Ok(Some(next))) => message = next,
            Ok(Ok(None)) => break Ok(()),
            Ok(Err(status)) => break Err(status),
            Err(elapsed) => break Err(silent(elapsed)),
        }
    };
    sink.send(SessionEvent::Ended { session, broker: id }).await.map_err(gone)?;
    ended
}

/// Counts one session for as long as it lives.
struct Open(Arc<AtomicUsize>);

impl Open {
    fn count(open: &Arc<AtomicUsize>) -> Option<Self> {
        let counted = Self(Arc::clone(open));
        (open.fetch_add(1, Ordering::Relaxed) < MAX_SESSIONS).then_some(counted)
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}
