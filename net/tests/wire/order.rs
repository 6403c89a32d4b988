//! One connection: answers in the order of the requests, whatever happens meanwhile.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use kaas_proto::kafka::ErrorCode;
use kaas_proto::kafka::messages::fetch::{FetchPartition, FetchTopic};
use kaas_proto::kafka::messages::{FetchRequest, JoinGroupRequest, MetadataRequest};

use crate::support::{Broker, Options, TOPIC, batch, eventually, set};

fn long_poll(max_wait_ms: i32) -> FetchRequest {
    let partition = FetchPartition { partition_max_bytes: 1 << 20, ..Default::default() };
    let topic = FetchTopic { topic: TOPIC.into(), partitions: vec![partition], ..Default::default() };
    FetchRequest { max_wait_ms, min_bytes: 1, topics: vec![topic], ..Default::default() }
}

/// D14: a long poll in front holds back the answers behind it, but not the append of a Produce request.
#[test]
fn answers_keep_the_order_of_the_requests() {
    let broker = Broker::start();
    let mut client = broker.client();
    let fetch = client.send(12, &long_poll(20_000));
    eventually("it waits", || broker.switches.watching.load(Ordering::SeqCst) == 1);
    let metadata = client.send(12, &MetadataRequest::default());
    let produce = client.send_produce(9, -1, TOPIC, &batch("wakes the long poll in front of it"));
    let records = client.receive::<FetchRequest>(12, fetch);
    assert!(!records.responses[0].partitions[0].records.is_empty());
    client.receive::<MetadataRequest>(12, metadata);
    assert_eq!(client.receive_produce(9, produce), (ErrorCode::None, 0));
}

#[test]
fn produce_requests_overlap_and_keep_their_order() {
    let broker = Broker::start();
    set(&broker.switches.hold_appends, true);
    let mut client = broker.client();
    let sent: Vec<i32> = (0..10).map(|n| client.send_produce(9, -1, TOPIC, &batch(&n.to_string()))).collect();
    eventually("all are appended before one is answered", || broker.switches.produced.load(Ordering::SeqCst) == 10);
    set(&broker.switches.hold_appends, false);
    for (offset, correlation_id) in (0..).zip(sent) {
        assert_eq!(client.receive_produce(9, correlation_id), (ErrorCode::None, offset));
    }
}

#[test]
fn other_requests_wait_for_those_before_them() {
    let broker = Broker::start();
    set(&broker.switches.hold_appends, true);
    let mut client = broker.client();
    let produce = client.send_produce(9, -1, TOPIC, &batch("x"));
    let fetch = client.send(12, &long_poll(0));
    eventually("it is appended", || broker.switches.produced.load(Ordering::SeqCst) == 1);
    broker.client().call(12, &MetadataRequest::default());
    assert_eq!(broker.switches.fetched.load(Ordering::SeqCst), 0);
    set(&broker.switches.hold_appends, false);
    client.receive_produce(9, produce);
    client.receive::<FetchRequest>(12, fetch);
    assert_eq!(broker.switches.fetched.load(Ordering::SeqCst), 1);
}

#[test]
fn requests_in_flight_are_bounded() {
    let options = Options { limits: Box::new(|limits| limits.connection_requests = 4), ..Options::default() };
    let broker = Broker::with(options);
    set(&broker.switches.hold_appends, true);
    let mut client = broker.client();
    let sent: Vec<i32> = (0..8).map(|_| client.send_produce(9, -1, TOPIC, &batch("x"))).collect();
    let reached = || broker.counted("kaas_net_bound_reached_total", "connection_requests");
    eventually("the bound is reached", || reached() == 1.0);
    assert_eq!(broker.switches.produced.load(Ordering::SeqCst), 4);
    set(&broker.switches.hold_appends, false);
    for correlation_id in sent {
        client.receive_produce(9, correlation_id);
    }
}

/// D12: nothing at all is sent for acks=0, and what follows still matches.
#[test]
fn acks_0_is_answered_by_silence() {
    let broker = Broker::start();
    let mut client = broker.client();
    for n in 0..5 {
        client.send_produce(9, 0, TOPIC, &batch(&n.to_string()));
    }
    assert_eq!(client.produce("last"), 5);
    // An error is told by the end of the connection.
    client.send_produce(9, 0, "missing", &batch("x"));
    client.assert_closed();
    assert_eq!(broker.counted("kaas_connections_closed_total", "unacknowledged_failure"), 1.0);
}

/// A queue that stays full: refused after a while, and nothing that was sent later is appended.
#[test]
fn a_full_queue_refuses_and_nothing_overtakes() {
    let options =
        Options { limits: Box::new(|limits| limits.queue_wait = Duration::from_millis(50)), ..Options::default() };
    let broker = Broker::with(options);
    set(&broker.switches.queues_full, true);
    let mut client = broker.client();
    let first = client.send_produce(9, -1, TOPIC, &batch("refused"));
    client.send_produce(9, -1, TOPIC, &batch("must not overtake"));
    assert_eq!(client.receive_produce(9, first), (ErrorCode::RequestTimedOut, -1));
    client.assert_closed();
    set(&broker.switches.queues_full, false);
    assert_eq!(broker.switches.produced.load(Ordering::SeqCst), 0);
    assert_eq!(broker.counted("kaas_connections_closed_total", "queue_full"), 1.0);
    assert_eq!(broker.client().produce("first of all"), 0);
}

/// A queue that is full for a moment only delays.
#[test]
fn a_queue_with_room_again_takes_what_waited() {
    let broker = Broker::start();
    set(&broker.switches.queues_full, true);
    let mut client = broker.client();
    let sent = client.send_produce(9, -1, TOPIC, &batch("x"));
    eventually("it waits", || broker.counted("kaas_net_bound_reached_total", "shard_queue") > 0.0);
    set(&broker.switches.queues_full, false);
    assert_eq!(client.receive_produce(9, sent), (ErrorCode::None, 0));
}

/// A response of several parts goes out with one system call, and responses that are ready go out together.
#[test]
fn system_calls_are_few() {
    let broker = Broker::with(Options { shards: 1, ..Options::default() });
    let mut client = broker.client();
    for n in 0..20 {
        client.produce(&n.to_string());
    }
    let sends = || broker.counted("kaas_socket_sends_total", "");
    let before = sends();
    let response = client.call(12, &long_poll(0));
    assert!(response.responses[0].partitions[0].records.len() > 20 * 60);
    assert_eq!(sends() - before, 1.0);

    set(&broker.switches.hold_appends, true);
    let sent: Vec<i32> = (0..10).map(|_| client.send_produce(9, -1, TOPIC, &batch("x"))).collect();
    eventually("all are appended", || broker.switches.produced.load(Ordering::SeqCst) == 30);
    let before = sends();
    set(&broker.switches.hold_appends, false);
    for correlation_id in sent {
        client.receive_produce(9, correlation_id);
    }
    assert!(sends() - before <= 3.0, "{} calls for ten answers", sends() - before);
}

/// A stop answers what is in flight, ends long polls early, reads no further requests, and closes.
#[test]
fn a_stop_is_orderly() {
    let mut broker = Broker::start();
    set(&broker.switches.hold_appends, true);
    let (mut producer, mut consumer, mut idle) = (broker.client(), broker.client(), broker.client());
    let produce = producer.send_produce(9, -1, TOPIC, &batch("x"));
    idle.call(12, &MetadataRequest::default());
    let fetch = consumer.send(12, &FetchRequest { min_bytes: 1 << 20, ..long_poll(60_000) });
    eventually("both are under way", || {
        broker.switches.produced.load(Ordering::SeqCst) == 1 && broker.switches.watching.load(Ordering::SeqCst) == 1
    });
    let begun = Instant::now();
    broker.stop();
    idle.assert_closed();
    consumer.receive::<FetchRequest>(12, fetch);
    consumer.assert_closed();
    set(&broker.switches.hold_appends, false);
    assert_eq!(producer.receive_produce(9, produce), (ErrorCode::None, 0));
    producer.assert_closed();
    broker.wait();
    assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
    // The kernel closes a socket that a ring still accepts on some time after the ring.
    eventually("nobody listens any more", || std::net::TcpStream::connect(broker.address).is_err());
}

/// What does not end by itself, such as a rebalance, ends with the grace of the stop.
#[test]
fn a_stop_does_not_wait_for_ever() {
    let options =
        Options { limits: Box::new(|limits| limits.stop_grace = Duration::from_millis(50)), ..Options::default() };
    let mut broker = Broker::with(options);
    set(&broker.switches.hold_joins, true);
    let mut client = broker.client();
    client.send(5, &JoinGroupRequest { group_id: "g".into(), ..Default::default() });
    eventually("it is read", || broker.counted("kaas_received_bytes_total", "") > 0.0);
    broker.stop();
    client.assert_closed();
    broker.wait();
}

/// A client that leaves during a long poll is not waited for.
#[test]
fn a_client_that_leaves_takes_its_long_poll_along() {
    let broker = Broker::start();
    let mut client = broker.client();
    client.send(12, &long_poll(60_000));
    eventually("it waits", || broker.switches.watching.load(Ordering::SeqCst) == 1);
    drop(client);
    eventually("it is forgotten", || broker.switches.watching.load(Ordering::SeqCst) == 0);
}
