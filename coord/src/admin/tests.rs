#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;

use kaas_proto::control::{ControlLink, PartitionChange, PartitionKey, ShardEvent, ShardLink, link};
use kaas_proto::metrics::{MetricKind, MetricName};
use kaas_proto::reserve::{Reserve, Reserves};
use kaas_proto::types::{BrokerId, LeaderEpoch, PartitionIndex, ShardId, SlotId, TopicId};
use kaas_proto::view::{BrokerView, ClusterView};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::task::LocalSet;

use super::*;
use crate::cluster::sample;

const APPENDS: MetricName =
    MetricName { name: "kaas_appends_total", help: "Batches appended.", kind: MetricKind::Counter };

/// An admin endpoint in front of two shards, of which only the first one runs.
fn admin() -> (Rc<Admin>, Rc<RefCell<ClusterState>>, watch::Sender<bool>) {
    let broker = BrokerView { id: BrokerId(1), rack: None, fenced: false, listeners: Vec::new() };
    let (ControlLink { commands, view, stopping, .. }, mut links) =
        link(2, Arc::new(ClusterView::empty("c1".into(), broker)), Reserves::default());
    links.truncate(1);
    let ShardLink { commands: mut receiver, .. } = links.remove(0);
    tokio::task::spawn_local(async move {
        while let Some(command) = receiver.recv().await {
            if let ShardCommand::Metrics { reply } = command {
                let metrics = ShardMetrics { values: vec![(APPENDS, Vec::new(), 7.0)], histograms: Vec::new() };
                let _ = reply.send(Box::new(metrics));
            }
        }
    });
    let state = Rc::new(RefCell::new(ClusterState::new(view)));
    let facts = Facts { version: "1.2.3", mode: "standalone", started: std::time::Instant::now() };
    let outbox = Rc::new(Outbox::start(&commands));
    let answers = Rc::new(ShardsAnswer::default());
    answers.note(true);
    let admin = Admin::new(Rc::clone(&state), commands, outbox, answers, stopping.subscribe(), facts);
    (Rc::new(admin), state, stopping)
}

async fn listen(admin: Rc<Admin>) -> SocketAddr {
    let listener = bind((Ipv4Addr::LOCALHOST, 0).into()).unwrap();
    let address = listener.local_addr().unwrap();
    tokio::task::spawn_local(admin.serve(TcpListener::from_std(listener).unwrap()));
    address
}

async fn request(address: SocketAddr, line: &str) -> String {
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(format!("{line} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    answer
}

#[tokio::test]
async fn the_three_pages_and_nothing_else() {
    LocalSet::new()
        .run_until(async {
            let (admin, state, stopping) = admin();
            let address = listen(admin).await;

            let metrics = request(address, "GET /metrics").await;
            assert!(metrics.starts_with("HTTP/1.1 200"), "{metrics}");
            assert!(metrics.contains("text/plain; version=0.0.4"), "{metrics}");
            assert!(metrics.contains("\nkaas_appends_total 7\n"), "{metrics}");
            assert!(metrics.contains("\nkaas_silent_shards 1\n"), "the other shard is missed: {metrics}");
            assert!(metrics.contains("\nkaas_partitions{state=\"waiting\"} 50\n"), "{metrics}");
            assert!(metrics.contains("kaas_build_info{version=\"1.2.3\",mode=\"standalone\"} 1\n"), "{metrics}");

            let health = request(address, "GET /healthz").await;
            assert!(health.starts_with("HTTP/1.1 200") && health.contains("\"status\":\"ok\""), "{health}");
            assert!(health.contains("\"clusterId\":\"c1\""), "{health}");

            assert!(request(address, "GET /readyz").await.starts_with("HTTP/1.1 503"));
            let event =
                |slot, change| ShardEvent { shard: ShardId(0), partition: PartitionKey::of_slot(SlotId(slot)), change };
            let led = (0..49).map(|slot| event(slot, PartitionChange::Leading { epoch: LeaderEpoch(1) }));
            state.borrow_mut().apply(led);
            assert!(request(address, "GET /readyz").await.starts_with("HTTP/1.1 503"), "one is still to come");
            state.borrow_mut().apply([event(49, PartitionChange::Failed { reason: "no manifest".into() })]);
            let ready = request(address, "GET /readyz").await;
            assert!(
                ready.starts_with("HTTP/1.1 200") && ready.contains("\"failed\":1"),
                "failed and reported: {ready}"
            );
            let health = request(address, "GET /healthz").await;
            assert!(health.contains("\"status\":\"degraded\""), "{health}");
            assert!(health.contains("{\"coordinatorSlot\":49,\"reason\":\"no manifest\"}"), "{health}");

            stopping.send_replace(true);
            assert!(request(address, "GET /readyz").await.starts_with("HTTP/1.1 503"), "stopping");

            assert!(request(address, "GET /").await.starts_with("HTTP/1.1 404"));
            assert!(request(address, "POST /metrics").await.starts_with("HTTP/1.1 405"));
        })
        .await;
}

#[tokio::test]
async fn connections_are_bounded() {
    LocalSet::new()
        .run_until(async {
            let (admin, _state, _stopping) = admin();
            let address = listen(Rc::clone(&admin)).await;
            let mut held = Vec::new();
            for _ in 0..MAX_CONNECTIONS {
                let mut stream = TcpStream::connect(address).await.unwrap();
                stream.write_all(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
                stream.read_u8().await.unwrap();
                held.push(stream);
            }
            // All of them could send another request, and none has: the oldest makes room.
            assert!(request(address, "GET /healthz").await.starts_with("HTTP/1.1 200"));
            assert_eq!((admin.dropped.get(), admin.refused.get()), (1, 0));
            let mut rest = Vec::new();
            held.remove(0).read_to_end(&mut rest).await.unwrap();
            for open in admin.connections.borrow_mut().values_mut() {
                open.is_answering = true;
            }
            while admin.connections.borrow().len() < MAX_CONNECTIONS {
                held.push(TcpStream::connect(address).await.unwrap());
                tokio::task::yield_now().await;
                admin.connections.borrow_mut().values_mut().for_each(|open| open.is_answering = true);
            }
            let mut further = TcpStream::connect(address).await.unwrap();
            assert!(further.read_u8().await.is_err(), "closed at once");
            assert_eq!((admin.dropped.get(), admin.refused.get()), (1, 1));
            drop(held);
            while !admin.connections.borrow().is_empty() {
                tokio::task::yield_now().await;
            }
            assert!(request(address, "GET /healthz").await.starts_with("HTTP/1.1 200"));
        })
        .await;
}

#[tokio::test]
async fn requests_that_never_end_keep_no_probe_out() {
    LocalSet::new()
        .run_until(async {
            let (admin, _state, _stopping) = admin();
            let address = listen(Rc::clone(&admin)).await;
            let mut held = Vec::new();
            for _ in 0..2 * MAX_CONNECTIONS {
                let mut stream = TcpStream::connect(address).await.unwrap();
                stream.write_all(b"GET /metrics HTTP/1.1\r\nX: ").await.unwrap();
                held.push(stream);
            }
            for page in ["GET /healthz", "GET /metrics"] {
                assert!(request(address, page).await.starts_with("HTTP/1.1 200"), "{page}");
            }
            assert!(admin.dropped.get() > 0 && admin.refused.get() == 0);
            let began = Instant::now();
            held.pop().unwrap().read_to_end(&mut Vec::new()).await.ok();
            assert!(began.elapsed() < 3 * HEAD_WAIT, "a head that does not come is not waited for");
        })
        .await;
}

#[tokio::test]
async fn a_new_topic_makes_a_broker_unready_only_when_it_takes_long_and_a_takeover_does_at_once() {
    let (admin, state, _stopping) = LocalSet::new().run_until(async { admin() }).await;
    let reason = || admin.unready(state.borrow().leadership().counts());
    assert_eq!(reason().as_deref(), Some("50 partitions are not taken over yet"));
    let led = |slot| ShardEvent {
        shard: ShardId(0),
        partition: PartitionKey::of_slot(SlotId(slot)),
        change: PartitionChange::Leading { epoch: LeaderEpoch(1) },
    };
    state.borrow_mut().apply((0..50).map(led));
    assert_eq!(reason(), None);
    let partition = PartitionKey { topic_id: TopicId([7; 16]), partition: PartitionIndex(0) };
    let another = PartitionKey { partition: PartitionIndex(1), ..partition };
    let leads = |partition| ShardEvent { partition, ..led(0) };
    state.borrow_mut().leadership_mut().assign_new(partition, "new".into());
    assert_eq!(reason(), None, "it is being made");
    state.borrow_mut().leadership_mut().assign(another, "of a broker that died".into());
    let one = Some("1 partitions are not taken over yet".to_owned());
    assert_eq!(reason(), one, "somebody wants its records");
    state.borrow_mut().apply([leads(another)]);
    assert_eq!(reason(), None);
    tokio::time::pause();
    tokio::time::advance(NEW_PARTITION_GRACE).await;
    assert_eq!(reason(), one, "it should have been there long ago");
    state.borrow_mut().apply([leads(partition)]);
    assert_eq!(reason(), None);
}

fn slot(slot: u8, change: PartitionChange) -> ShardEvent {
    ShardEvent { shard: ShardId(0), partition: PartitionKey::of_slot(SlotId(slot)), change }
}

/// An admin endpoint of which all slots are led.
fn ready_admin() -> (Admin, Rc<RefCell<ClusterState>>) {
    let (admin, state, _) = admin();
    state.borrow_mut().apply((0..50).map(|id| slot(id, PartitionChange::Leading { epoch: LeaderEpoch(1) })));
    (Rc::into_inner(admin).unwrap(), state)
}

#[tokio::test]
async fn a_broker_with_a_silent_shard_is_not_ready_alone_and_in_a_cluster() {
    LocalSet::new()
        .run_until(async {
            let (alone, _state) = ready_admin();
            let (member, state) = ready_admin();
            let (health, shown) = sample::shown(&state, &member.outbox);
            shown.follow(sample::assignment(4, 17));
            for admin in [alone, member.in_cluster(health)] {
                let answers = Rc::clone(&admin.answers);
                let address = listen(Rc::new(admin)).await;
                assert!(request(address, "GET /readyz").await.starts_with("HTTP/1.1 200"));
                // Long enough to count.
                while answers.is_fine() {
                    answers.note(false);
                }
                let answer = request(address, "GET /readyz").await;
                assert!(answer.starts_with("HTTP/1.1 503") && answer.contains("a shard does not answer"), "{answer}");
                answers.note(true);
                assert!(request(address, "GET /readyz").await.starts_with("HTTP/1.1 200"));
            }
        })
        .await;
}

#[tokio::test]
async fn why_a_broker_of_a_cluster_is_not_ready() {
    LocalSet::new()
        .run_until(async {
            let (admin, state) = ready_admin();
            let (health, shown) = sample::shown(&state, &admin.outbox);
            let admin = admin.in_cluster(health);
            let reason = || admin.unready(state.borrow().leadership().counts());
            let unknown = Some("no assignment knows this broker yet".to_owned());
            assert_eq!(reason(), unknown);
            let mut assignment = sample::assignment(4, 17);
            assignment.brokers[0].incarnation.0 += 1;
            shown.follow(assignment);
            assert_eq!(reason(), unknown, "it knows another life of it");
            shown.follow(sample::assignment(4, 18));
            assert_eq!(reason(), None);
            let superseded = PartitionChange::Superseded { epoch: LeaderEpoch(2), by: "broker 2".into() };
            state.borrow_mut().leadership_mut().apply(slot(3, superseded));
            assert_eq!(reason().as_deref(), Some("1 partitions are led by others and not assigned anew yet"));
            shown.status.set_draining();
            assert_eq!(reason().as_deref(), Some("it is about to leave"));
        })
        .await;
}

#[tokio::test(start_paused = true)]
async fn health_tells_epochs_versions_and_ages() {
    LocalSet::new()
        .run_until(async {
            let (admin, state) = ready_admin();
            let (health, shown) = sample::shown(&state, &admin.outbox);
            let admin = admin.in_cluster(health);
            let before = &admin.health()["cluster"];
            for absent in ["term", "assignment", "controllerHeardMsAgo"] {
                assert!(before[absent].is_null(), "{before}");
            }
            assert_eq!(before["election"]["role"], "unknown");

            shown.elect(3, 4);
            shown.follow(sample::assignment(4, 17));
            tokio::time::advance(Duration::from_millis(200)).await;
            shown.status.note_heard(0);
            tokio::time::advance(Duration::from_millis(50)).await;
            let cluster = &admin.health()["cluster"];
            assert_eq!(
                cluster["election"],
                json!({ "role": "controller", "leaseTransitions": 3, "mayActForMs": 9750 })
            );
            assert_eq!((&cluster["term"]["epoch"], &cluster["term"]["assignmentsWritten"]), (&json!(4), &json!(1)));
            let assignment = &cluster["assignment"];
            assert_eq!((&assignment["controllerEpoch"], &assignment["version"]), (&json!(4), &json!(17)));
            assert_eq!((&assignment["controller"], &assignment["followedForMs"]), (&json!(1), &json!(250)));
            assert_eq!(cluster["controllerHeardMsAgo"], 50);
            assert_eq!(cluster["volumeAnsweredMsAgo"], 250, "nothing has looked since the start");
        })
        .await;
}

#[tokio::test]
async fn a_full_volume_is_told() {
    LocalSet::new()
        .run_until(async {
            let (admin, ..) = admin();
            let reserve = Reserve::default();
            let admin = Rc::into_inner(admin).unwrap().with_reserves(reserve.clone().into());
            let told = || (admin.health()["status"].clone(), admin.health()["acceptsRecords"].clone());
            assert_eq!(told(), (json!("ok"), json!(true)));
            reserve.keep();
            reserve.missed();
            assert_eq!(told(), (json!("degraded"), json!(false)));
            reserve.made();
            assert_eq!(told(), (json!("ok"), json!(true)));
        })
        .await;
}
