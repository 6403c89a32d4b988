//! Hostile and broken clients: each gets a clear answer or a closed connection with one log line; memory stays bounded and
//! other clients notice nothing.

#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use bytes::Bytes;
use kaas_bench::broker::{Broker, BrokerOptions, DEADLINE, wait_until};
use kaas_bench::client::{Client, FETCH_VERSION, fetch_request};
use kaas_proto::kafka::messages::join_group::JoinGroupRequestProtocol;
use kaas_proto::kafka::messages::{
    ApiVersionsRequest, DescribeGroupsRequest, FetchRequest, JoinGroupRequest, MetadataRequest, SyncGroupRequest,
};
use kaas_proto::kafka::{ApiKey, ErrorCode};
use kaas_proto::record::BatchBuilder;
use kaas_proto::types::{Offset, TimestampMs};

/// How much a broker may grow while it is mistreated.
const GROWTH_BYTES: u64 = 96 << 20;

fn broker(arguments: &[&str]) -> Broker {
    let options = BrokerOptions::in_memory(Path::new(env!("CARGO_BIN_EXE_kaas"))).with(arguments);
    let broker = Broker::start(&options).unwrap();
    broker.wait_ready().unwrap();
    broker
}

fn connect(broker: &Broker) -> TcpStream {
    let stream = TcpStream::connect_timeout(&broker.kafka(), DEADLINE).unwrap();
    stream.set_read_timeout(Some(DEADLINE)).unwrap();
    stream.set_write_timeout(Some(DEADLINE)).unwrap();
    stream
}

fn batch(value_bytes: usize) -> Bytes {
    BatchBuilder::new().record(TimestampMs(1_700_000_000_000), None, Some(&vec![7; value_bytes])).build()
}

/// Another client, to show that it is not disturbed.
struct Witness {
    client: Client,
    appended: i64,
}

impl Witness {
    fn new(broker: &Broker) -> Self {
        let mut client = Client::connect(broker.kafka()).unwrap();
        client.create_topic("witness", 1, &[]).unwrap();
        Self { client, appended: 0 }
    }

    fn is_served(&mut self) {
        assert_eq!(self.client.produce("witness", 0, batch(10)).unwrap(), Offset(self.appended));
        self.appended += 1;
    }
}

/// The broker closed the connection: nothing more comes.
fn assert_closed(stream: &mut TcpStream) {
    match stream.read_to_end(&mut Vec::new()) {
        Ok(_) => {}
        Err(error) => assert!(
            matches!(error.kind(), ErrorKind::ConnectionReset | ErrorKind::BrokenPipe),
            "the broker kept the connection: {error}"
        ),
    }
}

fn log_count(broker: &Broker, words: &str) -> usize {
    broker.log_lines().iter().filter(|line| line.contains(words)).count()
}

#[test]
fn garbage_closes_the_connection_with_one_log_line() {
    let broker = broker(&[]);
    let mut witness = Witness::new(&broker);
    // A fixed generator: the same bytes in every run.
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    for round in 0..50 {
        let mut stream = connect(&broker);
        let peer = stream.local_addr().unwrap().to_string();
        let garbage: Vec<u8> = (0..(round + 1) * 37)
            .map(|_| {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                (state >> 56) as u8
            })
            .collect();
        // The broker may close before all is written.
        stream.write_all(&garbage).ok();
        stream.shutdown(Shutdown::Write).ok();
        assert_closed(&mut stream);
        assert!(log_count(&broker, &peer) <= 1, "one line at most for {peer}");
        witness.is_served();
    }
    // Every one has its line, unless that was too much of the same.
    wait_until("50 lines, or notes of them", || {
        let suppressed = broker.metric("kaas_log_lines_suppressed_total", "").unwrap_or(0.0);
        Ok(log_count(&broker, "closed the connection: ") as f64 + suppressed == 50.0)
    })
    .unwrap();
}

#[test]
fn many_misbehaving_clients_do_not_flood_the_log() {
    let broker = broker(&["--shards", "1", "--set", "connections.max.idle.ms=4000"]);
    for _ in 0..200 {
        let mut stream = connect(&broker);
        stream.write_all(&(-5_i32).to_be_bytes()).unwrap();
        assert_closed(&mut stream);
    }
    let line = broker.wait_for_log("more of the same was not logged").unwrap();
    let logged = log_count(&broker, "it announces a request of -5 bytes");
    assert!(logged >= 10 && line.contains("request_length"), "{logged} lines, then: {line}");
    // On a slow machine the attack may take longer than one interval.
    assert!(logged < 100, "{logged} lines for 200 connections");
}

#[test]
fn impossible_lengths_close_the_connection() {
    let broker = broker(&[]);
    let mut witness = Witness::new(&broker);
    let before = broker.resident_bytes().unwrap();
    for length in [i32::MAX, i32::MIN, -1, 200 << 20] {
        let mut stream = connect(&broker);
        let peer = stream.local_addr().unwrap().to_string();
        stream.write_all(&length.to_be_bytes()).unwrap();
        assert_closed(&mut stream);
        let line = broker.wait_for_log(&peer).unwrap();
        assert!(line.contains(&length.to_string()), "the line names the length: {line}");
        witness.is_served();
    }
    assert!(broker.resident_bytes().unwrap() < before + GROWTH_BYTES);
}

#[test]
fn an_announced_frame_takes_no_memory_before_it_comes() {
    let broker = broker(&[]);
    let mut witness = Witness::new(&broker);
    let before = broker.resident_bytes().unwrap();
    let streams: Vec<_> = (0..200)
        .map(|_| {
            let mut stream = connect(&broker);
            stream.write_all(&(90_i32 << 20).to_be_bytes()).unwrap();
            stream.write_all(b"half").unwrap();
            stream
        })
        .collect();
    witness.is_served();
    assert!(broker.resident_bytes().unwrap() < before + GROWTH_BYTES);
    drop(streams);
    witness.is_served();
}

#[test]
fn half_a_frame_is_closed_when_idle_for_too_long() {
    let broker = broker(&["--set", "connections.max.idle.ms=300"]);
    let mut stream = connect(&broker);
    stream.write_all(&[0, 0, 1, 0, 0, 3]).unwrap();
    let peer = stream.local_addr().unwrap().to_string();
    let begin = Instant::now();
    assert_closed(&mut stream);
    assert!(begin.elapsed() >= Duration::from_millis(250), "not at once");
    let line = broker.wait_for_log(&peer).unwrap();
    assert!(line.contains("in the middle of a request"), "{line}");
    // One that sends nothing at all does no wrong.
    let mut idle = connect(&broker);
    assert_closed(&mut idle);
    assert_eq!(log_count(&broker, &idle.local_addr().unwrap().to_string()), 0);
}

#[test]
fn half_a_frame_and_its_end_is_named_in_the_log() {
    let broker = broker(&[]);
    let mut witness = Witness::new(&broker);
    let mut frame = vec![0, 0, 0, 10];
    frame.extend(ApiKey::ApiVersions.code().to_be_bytes());
    frame.extend([0, 0, 0, 0, 0, 9, 0xff, 0xff]);
    for length in 1..frame.len() {
        let mut stream = connect(&broker);
        let peer = stream.local_addr().unwrap().to_string();
        stream.write_all(&frame[..length]).unwrap();
        stream.shutdown(Shutdown::Write).unwrap();
        assert_closed(&mut stream);
        // Two shards, and ten lines of each.
        if length <= 10 {
            let line = broker.wait_for_log(&peer).unwrap();
            assert!(line.contains("in the middle of a request"), "{line}");
        }
        assert!(log_count(&broker, &peer) <= 1, "one line for {peer}");
        witness.is_served();
    }
    // A client that ends between two requests does what clients do.
    let mut whole = connect(&broker);
    whole.write_all(&frame).unwrap();
    whole.read_exact(&mut [0; 8]).unwrap();
    whole.shutdown(Shutdown::Write).unwrap();
    assert_closed(&mut whole);
    assert_eq!(log_count(&broker, &whole.local_addr().unwrap().to_string()), 0);
}

#[test]
fn unknown_keys_and_versions_are_answered_or_closed() {
    let broker = broker(&[]);
    let mut witness = Witness::new(&broker);

    // KIP-511: an ApiVersions that we do not know is answered in version 0, with what we do know.
    let mut client = Client::connect(broker.kafka()).unwrap();
    let mut frame = vec![0, 0, 0, 0];
    frame.extend(ApiKey::ApiVersions.code().to_be_bytes());
    frame.extend(99_i16.to_be_bytes());
    frame.extend([0, 0, 0, 0, 0, 1, b'x', 0, 1, 1, 0]);
    let length = i32::try_from(frame.len() - 4).unwrap();
    frame[..4].copy_from_slice(&length.to_be_bytes());
    client.stream().write_all(&frame).unwrap();
    let answer = client.receive::<ApiVersionsRequest>(0).unwrap();
    assert_eq!(answer.error_code, ErrorCode::UnsupportedVersion);
    let own = answer.api_keys.iter().find(|row| row.api_key == ApiKey::ApiVersions.code()).unwrap();
    assert_eq!((own.min_version, own.max_version), (0, 4));

    for (key, version) in [(9999_i16, 0_i16), (ApiKey::Metadata.code(), 99), (ApiKey::Produce.code(), 2), (-1, -1)] {
        let mut stream = connect(&broker);
        let peer = stream.local_addr().unwrap().to_string();
        let mut frame = vec![0, 0, 0, 10];
        frame.extend(key.to_be_bytes());
        frame.extend(version.to_be_bytes());
        frame.extend([0, 0, 0, 7, 0xff, 0xff]);
        stream.write_all(&frame).unwrap();
        assert_closed(&mut stream);
        let line = broker.wait_for_log(&peer).unwrap();
        assert!(line.contains(&version.to_string()), "the line names the version: {line}");
        witness.is_served();
    }
}

#[test]
fn other_protocols_are_named_in_the_log() {
    let broker = broker(&[]);
    let mut witness = Witness::new(&broker);
    let tls_hello = [0x16, 3, 1, 2, 0, 1, 0, 1, 0xfc, 3, 3, 0, 0, 0, 0, 0];
    for (bytes, word) in [(&tls_hello[..], "TLS"), (b"GET / HTTP/1.1\r\nHost: kaas\r\n\r\n", "HTTP")] {
        let mut stream = connect(&broker);
        let peer = stream.local_addr().unwrap().to_string();
        stream.write_all(bytes).unwrap();
        assert_closed(&mut stream);
        let line = broker.wait_for_log(&peer).unwrap();
        assert!(line.contains(word), "the line names {word}: {line}");
        witness.is_served();
    }
}

#[test]
fn ten_thousand_idle_connections_disturb_nobody() {
    raise_handle_limit();
    let broker = broker(&[]);
    let mut witness = Witness::new(&broker);
    let before = broker.resident_bytes().unwrap();
    let mut streams: Vec<_> = (0..10_000).map(|_| connect(&broker)).collect();
    witness.is_served();
    let grown = broker.resident_bytes().unwrap().saturating_sub(before);
    assert!(grown < GROWTH_BYTES, "10,000 connections took {} KiB each", grown / 1024 / 10_000);
    // The last one was really accepted, and is served.
    let mut frame = vec![0, 0, 0, 10];
    frame.extend(ApiKey::ApiVersions.code().to_be_bytes());
    frame.extend([0, 0, 0, 0, 0, 9, 0xff, 0xff]);
    let last = streams.last_mut().unwrap();
    last.write_all(&frame).unwrap();
    last.read_exact(&mut [0; 8]).unwrap();
    drop(streams);
    wait_until("all connections are gone", || Ok(broker.metric("kaas_connections", "")? <= 2.0)).unwrap();
    witness.is_served();
}

/// This process needs a handle for each connection as well.
fn raise_handle_limit() {
    let process_id = std::process::id().to_string();
    let status = Command::new("prlimit").args(["--pid", &process_id, "--nofile=12000:"]).status().unwrap();
    assert!(status.success(), "prlimit: {status}");
}

#[test]
fn a_client_that_never_reads_holds_up_nobody() {
    let broker = broker(&[]);
    let mut witness = Witness::new(&broker);
    let mut writer = Client::connect(broker.kafka()).unwrap();
    writer.create_topic("large", 1, &[]).unwrap();
    for _ in 0..20 {
        writer.produce("large", 0, batch(1_000_000)).unwrap();
    }
    let before = broker.resident_bytes().unwrap();
    // 200 answers of 1 MB for each of 20 connections: 4 GB, if the broker prepared them all.
    let mut deaf: Vec<_> = (0..20).map(|_| Client::connect(broker.kafka()).unwrap()).collect();
    for client in &mut deaf {
        client.stream().set_write_timeout(Some(Duration::from_millis(50))).unwrap();
        for _ in 0..200 {
            // Once the broker stops reading, this fails: that is the back-pressure.
            if client.send::<FetchRequest>(FETCH_VERSION, &fetch_request("large", 0, Offset(0), 0)).is_err() {
                break;
            }
        }
        witness.is_served();
    }
    let grown = broker.resident_bytes().unwrap().saturating_sub(before);
    assert!(grown < GROWTH_BYTES, "grew by {} MiB", grown >> 20);
    // One that reads after all gets its answers, whole and in order.
    let mut late = deaf.pop().unwrap();
    for _ in 0..20 {
        let answer = late.receive::<FetchRequest>(FETCH_VERSION).unwrap();
        assert_eq!(answer.responses[0].partitions[0].error_code, ErrorCode::None);
    }
    // All are cut off half a minute after they read last, with one line each, unless that was too much of the same.
    deaf.push(late);
    let verdict = "does not read its responses";
    wait_until("a line for each, or a note of it", || {
        let suppressed = broker.metric("kaas_log_lines_suppressed_total", "").unwrap_or(0.0);
        Ok(log_count(&broker, verdict) as f64 + suppressed == deaf.len() as f64)
    })
    .unwrap();
    for client in &mut deaf {
        let peer = client.stream().local_addr().unwrap().to_string();
        assert!(log_count(&broker, &peer) <= 1, "one line for {peer}");
    }
    witness.is_served();
}

/// Short requests with long answers: as many as fit are made, and those who take them get them.
#[test]
fn clients_that_never_read_long_descriptions_are_bounded() {
    let broker = broker(&["--shards", "1"]);
    let mut witness = Witness::new(&broker);
    let mut member = Client::connect(broker.kafka()).unwrap();
    let protocol = JoinGroupRequestProtocol { name: "p".into(), metadata: vec![7; 10 << 20].into() };
    let join = JoinGroupRequest {
        group_id: "large".into(),
        session_timeout_ms: 300_000,
        rebalance_timeout_ms: 300_000,
        protocol_type: "consumer".into(),
        protocols: vec![protocol],
        ..Default::default()
    };
    let joined = member.call(3, &join).unwrap();
    assert_eq!(joined.error_code, ErrorCode::None);
    let sync = SyncGroupRequest {
        group_id: "large".into(),
        generation_id: joined.generation_id,
        member_id: joined.member_id,
        ..Default::default()
    };
    assert_eq!(member.call(3, &sync).unwrap().error_code, ErrorCode::None);
    let before = broker.resident_bytes().unwrap();
    let describe = DescribeGroupsRequest { groups: vec!["large".into()], ..Default::default() };
    // 2 GB, if the broker prepared all answers; it has 128 MiB for them.
    let mut deaf: Vec<_> = (0..200).map(|_| Client::connect(broker.kafka()).unwrap()).collect();
    for client in &mut deaf {
        client.send(3, &describe).unwrap();
    }
    witness.is_served();
    let grown = || broker.resident_bytes().unwrap().saturating_sub(before);
    wait_until("somebody is cut off", || Ok(log_count(&broker, "does not read its responses") > 0)).unwrap();
    assert!(grown() < (128 << 20) + 2 * GROWTH_BYTES, "grew by {} MiB", grown() >> 20);
    witness.is_served();
    let described = Client::connect(broker.kafka()).unwrap().call(3, &describe).unwrap();
    assert_eq!(described.groups[0].members[0].member_metadata.len(), 10 << 20);
    assert!(grown() < (128 << 20) + 2 * GROWTH_BYTES, "grew by {} MiB", grown() >> 20);
}

#[test]
fn a_second_broker_on_the_port_is_told_so() {
    let first = broker(&[]);
    let port = first.kafka().port();
    let options = BrokerOptions::in_memory(Path::new(env!("CARGO_BIN_EXE_kaas"))).on_port(port);
    let error = format!("{:#}", Broker::start(&options).unwrap_err());
    assert!(error.contains(&port.to_string()) && error.contains("in use"), "names the port: {error}");
}

#[test]
fn broken_bodies_do_not_bring_the_broker_down() {
    let broker = broker(&[]);
    let mut witness = Witness::new(&broker);
    // Every served API and version, with a body that claims two billion elements.
    let mut sent = 0.0;
    for api in kaas_proto::kafka::api_key::APIS {
        for version in api.served() {
            let mut stream = connect(&broker);
            let mut frame = vec![0, 0, 0, 0];
            frame.extend(api.key.code().to_be_bytes());
            frame.extend(version.to_be_bytes());
            frame.extend([0, 0, 0, 1, 0xff, 0xff]);
            frame.extend([0; 1].repeat(usize::from(api.flexible(version))));
            frame.extend([0x7f, 0xff, 0xff, 0xff, 0x07]);
            let length = i32::try_from(frame.len() - 4).unwrap();
            frame[..4].copy_from_slice(&length.to_be_bytes());
            let peer = stream.local_addr().unwrap().to_string();
            stream.write_all(&frame).unwrap();
            stream.shutdown(Shutdown::Write).unwrap();
            assert_closed(&mut stream);
            assert!(log_count(&broker, &peer) <= 1, "one line at most for {peer}");
            sent += 1.0;
        }
    }
    witness.is_served();
    wait_until("a line for each, or a note of it", || {
        let suppressed = broker.metric("kaas_log_lines_suppressed_total", "unreadable_request").unwrap_or(0.0);
        Ok(log_count(&broker, " can't be read: ") as f64 + suppressed >= sent)
    })
    .unwrap();
    let request = MetadataRequest { topics: None, ..MetadataRequest::default() };
    assert!(!witness.client.call(12, &request).unwrap().brokers.is_empty());
}
