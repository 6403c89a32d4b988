#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

use std::fs;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use kaas_proto::format::assignment::{BrokerHealth, RegisteredBroker};
use kaas_proto::types::{BrokerId, Incarnation};
use tempfile::TempDir;
use tokio::net::TcpListener;
use tokio::sync::{mpsc, watch};
use tokio::task::{JoinHandle, LocalSet, spawn_local};
use tokio::time::timeout;

use super::client::{Client, ClientTls, Status};
use super::server::{self, EVENT_QUEUE_LENGTH, SessionEvent};
use super::tls::{Tls, TlsError, TlsFiles, look};
use crate::cluster::ports::Leadership;

#[path = "../../../tests/certificates/mod.rs"]
mod certificates;

use certificates::Authority;

const DEADLINE: Duration = Duration::from_secs(30);

/// Files of a broker that `authority` has signed and that trusts it.
fn files(directory: &Path, authority: &Authority, host: &str) -> TlsFiles {
    let [certificate, key, authority] = authority.issue(directory, host);
    TlsFiles { certificate, key, authority }
}

fn tls(authority: &Authority, host: &str) -> Tls {
    let directory = TempDir::new().unwrap();
    Tls::load(&files(directory.path(), authority, host)).unwrap()
}

/// A controller.
struct Server {
    address: Arc<str>,
    events: mpsc::Receiver<SessionEvent>,
    current: watch::Sender<Tls>,
}

async fn serve(tls: Tls) -> Server {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string().into();
    let (sender, events) = mpsc::channel(EVENT_QUEUE_LENGTH);
    let (_, sink) = watch::channel(Some(sender));
    let (current, followed) = watch::channel(tls);
    tokio::spawn(server::serve(listener, "ours".into(), sink, Some(followed)));
    Server { address, events, current }
}

impl Server {
    async fn next(&mut self) -> SessionEvent {
        timeout(DEADLINE, self.events.recv()).await.unwrap().unwrap()
    }

    /// A session of a broker, for as long as it lasts. The one of that name is the controller itself.
    fn dial(&self, broker: i32, tls: Option<Tls>, itself: Option<&str>) -> JoinHandle<Result<(), tonic::Status>> {
        let own_address = if itself.is_some() { Arc::clone(&self.address) } else { "127.0.0.1:1".into() };
        let own_name: Arc<str> = itself.unwrap_or("another").into();
        let client_tls = tls.map(|tls| ClientTls { current: watch::channel(tls).1, own_name });
        let (_, leadership) = watch::channel(Leadership::Unknown);
        let client = Client {
            broker: RegisteredBroker {
                id: BrokerId(broker),
                incarnation: Incarnation(5),
                rack: None,
                listeners: Vec::new(),
                health: BrokerHealth::Dead,
            },
            cluster_id: "ours".into(),
            own_address,
            tls: client_tls,
            leadership,
            missed: Default::default(),
            assignment: watch::channel(None).1,
            status: Rc::new(Status::default()),
            outstanding: Box::new(Vec::new),
            hear: Box::new(|_| {}),
        };
        let address = Arc::clone(&self.address);
        spawn_local(async move { client.session(&address).await })
    }

    /// The broker gets a session; the sender that keeps it.
    async fn takes(&mut self, broker: i32, tls: Tls, itself: Option<&str>) -> server::ToBroker {
        drop(self.dial(broker, Some(tls), itself));
        loop {
            if let SessionEvent::Began { broker: come, to_broker, .. } = self.next().await {
                assert_eq!(come.id, BrokerId(broker));
                return to_broker;
            }
        }
    }

    async fn refuses(&mut self, why: &str, tls: Option<Tls>) {
        let dialled = self.dial(9, tls, None);
        timeout(DEADLINE, dialled).await.unwrap().unwrap().expect_err(why);
        while let Ok(event) = self.events.try_recv() {
            assert!(!matches!(event, SessionEvent::Began { .. }), "{why}");
        }
    }
}

#[tokio::test]
async fn brokers_of_one_authority_talk_and_nobody_else_is_let_in() {
    LocalSet::new()
        .run_until(async {
            let (ours, theirs) = (Authority::new(), Authority::new());
            let mut server = serve(tls(&ours, "127.0.0.1")).await;
            let _session = server.takes(1, tls(&ours, "127.0.0.1"), None).await;

            server.refuses("no TLS", None).await;
            server.refuses("an authority of its own", Some(tls(&theirs, "127.0.0.1"))).await;
            // It trusts our authority, which does not know it.
            let directory = TempDir::new().unwrap();
            let mut foreign = files(directory.path(), &theirs, "127.0.0.1");
            let other = TempDir::new().unwrap();
            foreign.authority = files(other.path(), &ours, "127.0.0.1").authority;
            server.refuses("not ours", Some(Tls::load(&foreign).unwrap())).await;
            // We would let it in, and it does not know who we are.
            let mut strict = files(other.path(), &ours, "127.0.0.1");
            strict.authority = files(directory.path(), &theirs, "127.0.0.1").authority;
            server.refuses("we are not theirs", Some(Tls::load(&strict).unwrap())).await;
        })
        .await;
}

#[tokio::test]
async fn a_controller_is_known_by_its_name() {
    LocalSet::new()
        .run_until(async {
            let (ours, all) = (Authority::new(), "*.kaas-headless.kafka.svc");
            let mut server = serve(tls(&ours, all)).await;
            server.refuses("the address is not in the certificate", Some(tls(&ours, all))).await;
            // A broker reaches itself by loopback.
            let _session = server.takes(1, tls(&ours, all), Some("kaas-1.kaas-headless.kafka.svc")).await;
        })
        .await;
}

#[tokio::test]
async fn renewed_certificates_count_for_new_sessions_and_end_none() {
    LocalSet::new()
        .run_until(async {
            let (former, next) = (Authority::new(), Authority::new());
            let mut server = serve(tls(&former, "127.0.0.1")).await;
            let first = server.takes(1, tls(&former, "127.0.0.1"), None).await;
            server.current.send_replace(tls(&next, "127.0.0.1"));
            let _second = server.takes(2, tls(&next, "127.0.0.1"), None).await;
            server.refuses("replaced", Some(tls(&former, "127.0.0.1"))).await;
            assert!(!first.is_closed());
            loop {
                if let SessionEvent::Heard { broker: BrokerId(1), .. } = server.next().await {
                    break;
                }
            }
        })
        .await;
}

#[tokio::test]
async fn files_that_cannot_be_used_are_named_and_change_nothing() {
    let directory = TempDir::new().unwrap();
    let (ours, other) = (Authority::new(), TempDir::new().unwrap());
    let good = files(directory.path(), &ours, "a.example");
    let (current, _kept) = watch::channel(Tls::load(&good).unwrap());
    assert!(!look(&good, &current).await.unwrap());

    let empty = directory.path().join("empty");
    fs::write(&empty, "no PEM").unwrap();
    let foreign_key = files(other.path(), &ours, "a.example").key;
    let missing = directory.path().join("missing");
    let with = |change: &dyn Fn(&mut TlsFiles), path: &Path| {
        let mut files = good.clone();
        change(&mut files);
        let error = Tls::load(&files).unwrap_err();
        assert!(error.to_string().contains(path.to_str().unwrap()), "{error}");
        error
    };
    let certificate = |path: &Path| with(&|files| files.certificate = path.to_owned(), path);
    let key = |path: &Path| with(&|files| files.key = path.to_owned(), path);
    let authority = |path: &Path| with(&|files| files.authority = path.to_owned(), path);
    for error in [certificate(&missing), key(&missing), authority(&missing)] {
        assert!(matches!(error, TlsError::Unreadable { .. }), "{error}");
    }
    for error in [certificate(&empty), key(&empty), key(&foreign_key)] {
        assert!(matches!(error, TlsError::Identity { .. }), "{error}");
    }
    assert!(matches!(authority(&empty), TlsError::Authority { .. }));

    let before = current.borrow().clone();
    fs::write(&good.key, "torn").unwrap();
    look(&good, &current).await.unwrap_err();
    assert!(*current.borrow() == before);
    ours.issue(directory.path(), "b.example");
    assert!(look(&good, &current).await.unwrap());
    assert!(*current.borrow() != before);
}
