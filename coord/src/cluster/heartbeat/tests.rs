#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use kaas_proto::control::PartitionKey;
use kaas_proto::format::assignment::{Assignment, BrokerHealth, RegisteredBroker};
use kaas_proto::heartbeat::ControllerMessage;
use kaas_proto::types::{AssignmentVersion, BrokerId, ControllerEpoch, Incarnation, LeaderEpoch, SlotId};
use tokio::net::TcpListener;
use tokio::sync::{Notify, mpsc, watch};
use tokio::task::{LocalSet, spawn_local};
use tokio::time::timeout;

use super::client::{Client, Status, Told};
use super::messages::{report, wire_report};
use super::server::{self, EVENT_QUEUE_LENGTH, EventSink, SessionEvent};
use crate::cluster::follower::{Report, What};
use crate::cluster::ports::{Controller, Leadership};
use crate::cluster::sample::assignment;

const DEADLINE: Duration = Duration::from_secs(30);

fn slot_report(what: What) -> Report {
    Report { partition: PartitionKey::of_slot(SlotId(3)), epoch: LeaderEpoch(7), what }
}

/// How the broker knows who the controller is.
enum Known {
    ByElection,
    ByAssignment,
}

struct Both {
    sink: watch::Sender<EventSink>,
    status: Rc<Status>,
    told: Rc<RefCell<Vec<Told>>>,
    heard: Rc<Notify>,
    leadership: watch::Sender<Leadership>,
    _assignment: watch::Sender<Option<Arc<Assignment>>>,
}

fn follower_of(address: &Arc<str>) -> Leadership {
    let controller = Controller { broker: BrokerId(9), heartbeat: Arc::clone(address) };
    Leadership::Follower { lease_transitions: 1, controller }
}

/// A server, and a broker that takes it for the controller.
async fn both(cluster_id: &str, known: Known) -> Both {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address: Arc<str> = listener.local_addr().unwrap().to_string().into();
    let (sink, receiver) = watch::channel(None);
    tokio::spawn(server::serve(listener, "ours".into(), receiver, None));
    let (leadership, assignment) = match known {
        Known::ByElection => (follower_of(&address), None),
        Known::ByAssignment => {
            let controller_heartbeat = Some(Arc::clone(&address));
            let assignment = Assignment { controller: BrokerId(9), controller_heartbeat, ..assignment(3, 8) };
            (Leadership::Unknown, Some(Arc::new(assignment)))
        }
    };
    let (election, leadership) = watch::channel(leadership);
    let (volume, assignment) = watch::channel(assignment);
    let (told, heard, status) = (Rc::new(RefCell::new(Vec::new())), Rc::new(Notify::new()), Rc::new(Status::default()));
    let (into, ring) = (Rc::clone(&told), Rc::clone(&heard));
    let client = Client {
        broker: RegisteredBroker {
            id: BrokerId(1),
            incarnation: Incarnation(5),
            rack: None,
            listeners: Vec::new(),
            health: BrokerHealth::Dead,
        },
        cluster_id: cluster_id.into(),
        own_address: "127.0.0.1:1".into(),
        tls: None,
        leadership,
        missed: Default::default(),
        assignment,
        status: Rc::clone(&status),
        outstanding: Box::new(|| vec![slot_report(What::Leads)]),
        hear: Box::new(move |message| {
            into.borrow_mut().push(message);
            ring.notify_one();
        }),
    };
    spawn_local(client.run());
    status.set_healthy(true);
    Both { sink, status, told, heard, leadership: election, _assignment: volume }
}

async fn next(events: &mut mpsc::Receiver<SessionEvent>) -> SessionEvent {
    timeout(DEADLINE, events.recv()).await.unwrap().unwrap()
}

#[tokio::test]
async fn a_session_carries_news_both_ways_and_ends_with_the_controller() {
    LocalSet::new()
        .run_until(async {
            let both = both("ours", Known::ByElection).await;
            let (sender, mut events) = mpsc::channel(EVENT_QUEUE_LENGTH);
            both.sink.send_replace(Some(sender));
            let SessionEvent::Began { session, broker, to_broker } = next(&mut events).await else { unreachable!() };
            assert_eq!((broker.id, broker.incarnation), (BrokerId(1), Incarnation(5)));
            let SessionEvent::Heard { message, .. } = next(&mut events).await else { unreachable!() };
            assert!(message.healthy && !message.draining);
            let reports: Vec<_> = message.reports.iter().filter_map(report).collect();
            assert_eq!(reports, [slot_report(What::Leads)], "what is outstanding comes first");

            both.status.report(slot_report(What::Superseded));
            both.status.set_draining();
            let mut reported = Vec::new();
            let (mut draining, mut number) = (false, 0);
            while !(draining && reported == [slot_report(What::Superseded)]) {
                let SessionEvent::Heard { session: of, message, .. } = next(&mut events).await else { unreachable!() };
                assert_eq!(of, session);
                reported.extend(message.reports.iter().filter_map(report));
                draining = message.draining;
                number = message.number;
            }
            assert!(!both.status.all_reported(), "it was heard, but the broker can't know");

            let message = ControllerMessage {
                controller_epoch: 4,
                assignment_version: 17,
                relinquished: vec![wire_report(&slot_report(What::Relinquished))],
                heard: number,
            };
            to_broker.send(Ok(message)).await.unwrap();
            while both.told.borrow().len() < 2 {
                timeout(DEADLINE, both.heard.notified()).await.unwrap();
            }
            let assignment = Told::Assignment(ControllerEpoch(4), AssignmentVersion(17));
            let Report { partition, epoch, .. } = slot_report(What::Relinquished);
            assert_eq!(*both.told.borrow(), [assignment, Told::Released(partition, epoch)]);
            assert!(both.status.all_reported());
            both.status.report(slot_report(What::Leads));
            assert!(!both.status.all_reported(), "that is news");

            // The controller is deposed, and another one elected in the same place.
            drop((to_broker, events));
            let (sender, mut events) = mpsc::channel(EVENT_QUEUE_LENGTH);
            both.sink.send_replace(Some(sender));
            let SessionEvent::Began { session: newer, .. } = next(&mut events).await else { unreachable!() };
            assert_ne!(newer, session);
        })
        .await;
}

#[tokio::test]
async fn a_broker_of_another_volume_is_not_let_in() {
    LocalSet::new()
        .run_until(async {
            let both = both("theirs", Known::ByElection).await;
            let (sender, mut events) = mpsc::channel(EVENT_QUEUE_LENGTH);
            both.sink.send_replace(Some(sender));
            timeout(Duration::from_millis(300), events.recv()).await.expect_err("nobody comes");
        })
        .await;
}

#[tokio::test]
async fn a_broker_that_cannot_ask_the_election_goes_by_the_assignment() {
    LocalSet::new()
        .run_until(async {
            let both = both("ours", Known::ByAssignment).await;
            let (sender, mut events) = mpsc::channel(EVENT_QUEUE_LENGTH);
            both.sink.send_replace(Some(sender));
            let SessionEvent::Began { broker, to_broker, .. } = next(&mut events).await else { unreachable!() };
            assert_eq!(broker.id, BrokerId(1));

            // What the election says counts more, as soon as it says something.
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let elsewhere: Arc<str> = listener.local_addr().unwrap().to_string().into();
            both.leadership.send_replace(follower_of(&elsewhere));
            timeout(DEADLINE, listener.accept()).await.unwrap().unwrap();
            while !matches!(next(&mut events).await, SessionEvent::Ended { .. }) {}

            // It falls silent, and the assignment still names the other.
            both.leadership.send_replace(Leadership::Unknown);
            while !matches!(next(&mut events).await, SessionEvent::Began { .. }) {}
            drop(to_broker);
        })
        .await;
}
