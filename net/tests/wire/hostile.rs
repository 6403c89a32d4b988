//! Clients that misbehave: a closed connection, one line in the log, one in the counters, and nobody else disturbed.

use std::io::{Read, Write};
use std::net::Shutdown;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use kaas_proto::kafka::messages::join_group::JoinGroupRequestProtocol;
use kaas_proto::kafka::messages::metadata::MetadataRequestTopic;
use kaas_proto::kafka::messages::{JoinGroupRequest, MetadataRequest};
use kaas_proto::kafka::wire::MAX_REQUEST_ELEMENTS;
use kaas_proto::kafka::{ErrorCode, Frame};

use crate::support::{Broker, Client, Options, TOPIC, batch, eventually, set};

fn closed(broker: &Broker, reason: &str) -> f64 {
    broker.counted("kaas_connections_closed_total", reason)
}

fn works(broker: &Broker) {
    let response = broker.client().call(12, &MetadataRequest::default());
    assert_eq!(response.topics.len(), 2);
}

fn limits(change: impl Fn(&mut kaas_net::limits::Limits) + 'static) -> Options {
    Options { limits: Box::new(change), ..Options::default() }
}

/// D44.
#[test]
fn lengths_that_can_not_be_are_refused_at_once() {
    let broker = Broker::start();
    for length in [0x7fff_ffff_u32, 0x8000_0000, 0xffff_ffff, 104_857_601] {
        let before = closed(&broker, "request_length");
        let mut client = broker.client();
        client.send_raw(&length.to_be_bytes());
        client.assert_closed();
        eventually("counted", || closed(&broker, "request_length") == before + 1.0);
    }
    works(&broker);
}

/// However many connections misbehave, the log has some lines about each cause; the counters have all.
#[test]
fn lines_of_the_log_are_limited_by_cause() {
    let broker = Broker::start();
    for _ in 0..100 {
        let mut client = broker.client();
        client.send_raw(&u32::MAX.to_be_bytes());
        client.assert_closed();
    }
    eventually("all are counted", || closed(&broker, "request_length") == 100.0);
    let suppressed = |cause| broker.counted("kaas_log_lines_suppressed_total", cause);
    assert!(suppressed("request_length") >= 100.0 - 2.0 * 10.0, "ten lines for each of two shards");
    assert_eq!(suppressed("idle"), 0.0);
}

#[test]
fn other_protocols_are_recognised() {
    let broker = Broker::start();
    let hello = [0x16, 3, 1, 0, 200, 1, 0, 0, 196, 3, 3];
    for (count, greeting) in [(1.0, &hello[..]), (2.0, b"GET / HTTP/1.1\r\n\r\n"), (3.0, b"SSH-2.0-x\r\n")] {
        let mut client = broker.client();
        client.send_raw(greeting);
        client.assert_closed();
        eventually("counted", || closed(&broker, "other_protocol") == count);
    }
}

#[test]
fn random_bytes_do_no_harm() {
    let broker = Broker::start();
    let mut state = 0x1234_5678_9abc_def0_u64;
    for _ in 0..200 {
        let mut bytes = vec![0_u8; 64];
        for byte in &mut bytes {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            *byte = state.to_le_bytes()[0];
        }
        // Half of them with a length that is believed.
        if state & 1 == 0 {
            bytes[..4].copy_from_slice(&60_u32.to_be_bytes());
        }
        let mut client = broker.client();
        client.send_raw(&bytes);
        client.stream.shutdown(Shutdown::Write).unwrap();
        let mut answer = Vec::new();
        let _ = client.stream.read_to_end(&mut answer);
    }
    eventually("all are closed", || broker.counted("kaas_connections", "") == 0.0);
    works(&broker);
}

#[test]
fn a_half_request_ends_with_its_time() {
    let broker = Broker::with(limits(|limits| limits.receive_timeout = Duration::from_millis(50)));
    let mut client = broker.client();
    client.send_raw(&[0, 0, 0, 100, 0, 3]);
    client.assert_closed();
    assert_eq!(closed(&broker, "half_request"), 1.0);
    works(&broker);
}

#[test]
fn a_frame_may_come_byte_by_byte() {
    let broker = Broker::start();
    let mut client = broker.client();
    let frame = Frame::request(12, 1, None, &MetadataRequest::default()).into_parts().concat();
    for byte in frame {
        client.send_raw(&[byte]);
    }
    client.receive::<MetadataRequest>(12, 1);
}

#[test]
fn idle_connections_are_closed_but_not_waiting_ones() {
    let broker = Broker::with(Options { settings: vec![("connections.max.idle.ms", "60")], ..Options::default() });
    let mut waiting = broker.client();
    set(&broker.switches.hold_appends, true);
    let correlation_id = waiting.send_produce(9, -1, TOPIC, &batch("x"));
    for _ in 0..3 {
        broker.client().assert_closed();
    }
    assert_eq!(closed(&broker, "idle"), 3.0);
    set(&broker.switches.hold_appends, false);
    waiting.receive_produce(9, correlation_id);
}

#[test]
fn many_idle_connections_cost_little() {
    let broker = Broker::start();
    let before = resident_bytes();
    let idle: Vec<Client> = (0..500).map(|_| broker.client()).collect();
    eventually("all are open", || broker.counted("kaas_connections", "") == 500.0);
    let each = resident_bytes().saturating_sub(before) / idle.len();
    // Other tests of this process take memory meanwhile: the bound is generous.
    assert!(each < 64 * 1024, "{each} bytes for an idle connection");
    works(&broker);
}

fn resident_bytes() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: usize = statm.split(' ').nth(1).unwrap().parse().unwrap();
    pages * 4096
}

/// A client that asks and never reads is cut off; its memory is bounded by what may be in flight.
#[test]
fn a_client_that_does_not_read_is_closed() {
    let broker = Broker::with(limits(|limits| limits.send_timeout = Duration::from_millis(100)));
    let mut other = broker.client();
    let mut client = broker.client();
    client.stream.set_nonblocking(true).unwrap();
    let frame = Frame::request(12, 1, None, &MetadataRequest::default()).into_parts().concat();
    let deadline = Instant::now() + crate::support::PATIENCE;
    while closed(&broker, "slow_reader") == 0.0 {
        assert!(Instant::now() < deadline, "it is never closed");
        let _ = client.stream.write(&frame.repeat(100));
        other.call(12, &MetadataRequest::default());
    }
}

#[test]
fn connections_are_limited() {
    let broker = Broker::with(limits(|limits| limits.connections = 3));
    let mut open: Vec<Client> = (0..3).map(|_| broker.client()).collect();
    for client in &mut open {
        client.call(12, &MetadataRequest::default());
    }
    broker.client().assert_closed();
    eventually("counted", || broker.counted("kaas_net_bound_reached_total", "max_connections") == 1.0);
    open.pop();
    eventually("one may come in its place", || broker.counted("kaas_connections", "") == 2.0);
    broker.client().call(12, &MetadataRequest::default());

    let broker = Broker::with(limits(|limits| limits.connections_per_ip = 1));
    let mut first = broker.client();
    first.call(12, &MetadataRequest::default());
    broker.client().assert_closed();
    first.call(12, &MetadataRequest::default());
}

/// Large requests are not read while the shard's memory for them is used up; they are not lost, and others pass.
#[test]
fn memory_for_requests_is_bounded() {
    let broker = Broker::with(Options {
        shards: 1,
        limits: Box::new(|limits| limits.shard_request_bytes = 10 << 20),
        ..Options::default()
    });
    set(&broker.switches.hold_appends, true);
    let large = batch(&"x".repeat(4 << 20));
    std::thread::scope(|scope| {
        let send = || {
            let mut client = broker.client();
            let correlation_id = client.send_produce(9, -1, TOPIC, &large);
            assert_eq!(client.receive_produce(9, correlation_id).0, ErrorCode::None);
        };
        for _ in 0..5 {
            scope.spawn(send);
        }
        let bound = || broker.counted("kaas_net_bound_reached_total", "shard_request_bytes");
        eventually("the bound is reached", || bound() >= 3.0);
        let appended = || broker.switches.produced.load(Ordering::SeqCst);
        eventually("two fit", || appended() == 2);
        works(&broker);
        assert_eq!(appended(), 2, "the third does not fit");
        set(&broker.switches.hold_appends, false);
    });
}

/// A member may wait for the others for minutes. Its subscription, however large, must not keep producers out.
#[test]
fn members_that_wait_hold_no_memory_of_requests() {
    let one = |limits: &mut kaas_net::limits::Limits| limits.shard_request_bytes = 5 << 20;
    let broker = Broker::with(Options { shards: 1, ..limits(one) });
    set(&broker.switches.hold_joins, true);
    let join = || {
        let protocol = JoinGroupRequestProtocol { name: "range".into(), metadata: vec![7; 4 << 20].into() };
        let mut client = broker.client();
        let request = JoinGroupRequest { group_id: "g".into(), protocols: vec![protocol], ..Default::default() };
        client.send(5, &request);
        client
    };
    let _waiting: Vec<Client> = (0..3).map(|_| join()).collect();
    let mut client = broker.client();
    let correlation_id = client.send_produce(9, -1, TOPIC, &batch(&"x".repeat(4 << 20)));
    assert_eq!(client.receive_produce(9, correlation_id).0, ErrorCode::None);
}

#[test]
fn requests_of_very_many_elements_are_refused() {
    let broker = Broker::start();
    let ask = |count: usize| {
        let topic = MetadataRequestTopic { name: Some("".into()), ..Default::default() };
        let mut client = broker.client();
        client.send(9, &MetadataRequest { topics: Some(vec![topic; count]), ..Default::default() });
        client
    };
    let frame = ask(MAX_REQUEST_ELEMENTS).try_receive_frame().unwrap();
    assert!(frame.len() < 1000, "one row for all of them");
    ask(MAX_REQUEST_ELEMENTS + 1).assert_closed();
    eventually("counted", || closed(&broker, "unreadable_request") == 1.0);
}

/// Whoever announces large requests and does not send them keeps nobody out for long.
#[test]
fn half_requests_do_not_keep_their_memory_while_others_wait() {
    let one = |limits: &mut kaas_net::limits::Limits| limits.shard_request_bytes = 5 << 20;
    let broker = Broker::with(Options { shards: 1, ..limits(one) });
    let announcing = |_| {
        let mut client = broker.client();
        client.send_raw(&(4_u32 << 20).to_be_bytes());
        client.send_raw(&[0; 20_000]);
        client
    };
    let _slow: Vec<Client> = (0..3).map(announcing).collect();
    eventually("memory is short", || broker.counted("kaas_net_bound_reached_total", "shard_request_bytes") >= 2.0);
    let mut client = broker.client();
    let correlation_id = client.send_produce(9, -1, TOPIC, &batch(&"x".repeat(4 << 20)));
    assert_eq!(client.receive_produce(9, correlation_id).0, ErrorCode::None);
    assert!(closed(&broker, "half_request") >= 1.0);
}

/// Long answers wait for memory, and whoever reads none of its own is not waited for long.
#[test]
fn memory_for_responses_is_bounded() {
    let one = |limits: &mut kaas_net::limits::Limits| limits.shard_reply_bytes = 1 << 20;
    let broker = Broker::with(Options { shards: 1, ..limits(one) });
    let named = |number: u32| MetadataRequestTopic {
        name: Some(format!("{}{number}", "x".repeat(190)).into()),
        ..Default::default()
    };
    let topics = Some((0..2000).map(named).collect());
    let request = MetadataRequest { topics, allow_auto_topic_creation: false, ..Default::default() };
    let frame = Frame::request(12, 1, None, &request).into_parts().concat();
    // Until the broker does not take any more, which is behind what the kernel keeps of the answers.
    let deaf = |_| {
        let mut client = broker.client();
        client.stream.set_write_timeout(Some(Duration::from_millis(200))).unwrap();
        for _ in 0..200 {
            if client.stream.write_all(&frame).is_err() {
                break;
            }
        }
        client
    };
    let deaf: Vec<Client> = (0..3).map(deaf).collect();
    let bound = || broker.counted("kaas_net_bound_reached_total", "shard_reply_bytes");
    eventually("the bound is reached", || bound() >= 1.0);
    // Short answers do not wait, and long ones not as long as a slow client may take.
    let begin = Instant::now();
    let mut client = broker.client();
    let correlation_id = client.send_produce(9, -1, TOPIC, &batch("x"));
    assert_eq!(client.receive_produce(9, correlation_id).0, ErrorCode::None);
    assert_eq!(client.call(12, &request).topics.len(), 2000);
    eventually("those who do not read are closed", || closed(&broker, "slow_reader") >= 2.0);
    assert!(begin.elapsed() < Duration::from_secs(20), "before the send timeout");
    drop(deaf);
    works(&broker);
}
