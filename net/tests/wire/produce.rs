//! Produce: what is refused, and with which words.

use kaas_proto::kafka::messages::ProduceRequest;
use kaas_proto::kafka::messages::produce::{PartitionProduceResponse, ProduceResponse};
use kaas_proto::kafka::{ErrorCode, Records};
use kaas_proto::record::batch::field;
use kaas_proto::record::{BatchBuilder, Compression, patch};
use kaas_proto::types::{BrokerId, LeaderEpoch, Offset, ProducerEpoch, ProducerId, TimestampMs, TopicId};

use bytes::{Bytes, BytesMut};

use crate::support::{Broker, Client, ELSEWHERE, TOPIC, batch, produce_request};

fn only(response: &ProduceResponse) -> &PartitionProduceResponse {
    assert_eq!((response.responses.len(), response.responses[0].partition_responses.len()), (1, 1));
    &response.responses[0].partition_responses[0]
}

fn refused(client: &mut Client, version: i16, records: &Bytes) -> ErrorCode {
    let response = client.call(version, &produce_request(-1, TOPIC, 0, records));
    let row = only(&response);
    // D22.
    assert_eq!(
        (row.base_offset, row.log_append_time_ms, row.log_start_offset),
        (Offset(-1), TimestampMs(-1), Offset(-1))
    );
    assert!(version < 8 || row.error_message.is_some());
    row.error_code
}

#[test]
fn topics_are_named_or_given_by_id() {
    let broker = Broker::start();
    let mut client = broker.client();
    for (version, offset) in (3..=13).zip(0..) {
        let response = client.call(version, &produce_request(-1, TOPIC, 0, &batch("x")));
        let row = only(&response);
        assert_eq!((row.error_code, row.base_offset), (ErrorCode::None, Offset(offset)), "version {version}");
        let topic = &response.responses[0];
        assert_eq!((&*topic.name == TOPIC, topic.topic_id == TopicId::ZERO), (version < 13, version < 13));
    }
    let missing = client.call(12, &produce_request(-1, "missing", 0, &batch("x")));
    assert_eq!(only(&missing).error_code, ErrorCode::UnknownTopicOrPartition);
    let partition = client.call(12, &produce_request(-1, TOPIC, 4, &batch("x")));
    assert_eq!(only(&partition).error_code, ErrorCode::UnknownTopicOrPartition);
    let mut unknown = produce_request(-1, TOPIC, 0, &batch("x"));
    unknown.topic_data[0].topic_id = TopicId([9; 16]);
    assert_eq!(only(&client.call(13, &unknown)).error_code, ErrorCode::UnknownTopicId);
}

/// D13.
#[test]
fn acks_are_minus_one_zero_or_one() {
    let broker = Broker::start();
    let mut client = broker.client();
    for acks in [2, -2, i16::MAX] {
        let response = client.call(9, &produce_request(acks, TOPIC, 0, &batch("x")));
        assert_eq!(only(&response).error_code, ErrorCode::InvalidRequiredAcks);
    }
    for acks in [1, -1] {
        let response = client.call(9, &produce_request(acks, TOPIC, 0, &batch("x")));
        assert_eq!(only(&response).error_code, ErrorCode::None);
    }
}

/// D26, D29, D30.
#[test]
fn batches_are_checked_before_they_go_anywhere() {
    let broker = Broker::start();
    let mut client = broker.client();
    let good = batch("x");
    let changed = |position: usize, byte: u8| {
        let mut bytes = BytesMut::from(&*good);
        bytes[position] = byte;
        bytes.freeze()
    };
    let two: Bytes = [&*good, &*good].concat().into();
    let control = BatchBuilder::new().control().record(TimestampMs(1), Some(b"k"), None).build();
    let mut gap = BytesMut::from(&*good);
    gap[field::LAST_OFFSET_DELTA + 3] = 7;
    patch::update_crc(&mut gap);
    // A header that is not there, under a checksum that fits.
    let mut header = BytesMut::from(&*good);
    let last = header.len() - 1;
    header[last] = 2;
    patch::update_crc(&mut header);
    for (records, code) in [
        (Bytes::new(), ErrorCode::InvalidRecord),
        (changed(good.len() - 1, 0xff), ErrorCode::CorruptMessage),
        (changed(field::MAGIC, 1), ErrorCode::InvalidRecord),
        (changed(field::MAGIC, 0), ErrorCode::InvalidRecord),
        (good.slice(..good.len() - 1), ErrorCode::CorruptMessage),
        (two, ErrorCode::InvalidRecord),
        (control, ErrorCode::InvalidRecord),
        (gap.freeze(), ErrorCode::InvalidRecord),
        (header.freeze(), ErrorCode::InvalidRecord),
    ] {
        assert_eq!(refused(&mut client, 9, &records), code, "{records:?}");
    }
    let transactional = BatchBuilder::new()
        .producer(ProducerId(1), ProducerEpoch(0), 0)
        .transactional()
        .record(TimestampMs(1), None, None)
        .build();
    assert_eq!(refused(&mut client, 9, &transactional), ErrorCode::InvalidTxnState);
    assert_eq!(client.produce("still in order"), 0);
}

/// D29: zstd from version 7 on only.
#[test]
fn zstd_needs_a_client_that_knows_it() {
    let broker = Broker::start();
    let mut client = broker.client();
    let zstd = BatchBuilder::new().compression(Compression::Zstd).record(TimestampMs(1), None, Some(b"x")).build();
    assert_eq!(refused(&mut client, 6, &zstd), ErrorCode::UnsupportedCompressionType);
    let response = client.call(7, &produce_request(-1, TOPIC, 0, &zstd));
    assert_eq!(only(&response).error_code, ErrorCode::None);
}

/// KIP-951: who leads instead, and where that broker is.
#[test]
fn a_producer_is_sent_to_the_leader() {
    let broker = Broker::start();
    let mut client = broker.client();
    let response = client.call(10, &produce_request(-1, ELSEWHERE, 0, &batch("x")));
    let row = only(&response);
    assert_eq!(row.error_code, ErrorCode::NotLeaderOrFollower);
    assert_eq!((row.current_leader.leader_id, row.current_leader.leader_epoch), (BrokerId(2), LeaderEpoch(5)));
    let at = &response.node_endpoints[0];
    assert_eq!((at.node_id, &*at.host, at.port), (BrokerId(2), "two.example", 9092));
    let nobody = client.call(10, &produce_request(-1, ELSEWHERE, 1, &batch("x")));
    assert_eq!(only(&nobody).error_code, ErrorCode::LeaderNotAvailable);
    assert!(nobody.node_endpoints.is_empty());
}

/// Rows come back in the order of the request, whichever shard answers first.
#[test]
fn rows_keep_their_order_over_shards() {
    let broker = Broker::start();
    let mut client = broker.client();
    let mut request = produce_request(-1, TOPIC, 0, &batch("x"));
    let partitions = &mut request.topic_data[0].partition_data;
    for index in [3, 9, 1, 2] {
        partitions.extend(produce_request(-1, TOPIC, index, &batch("x")).topic_data.remove(0).partition_data);
    }
    let response = client.call(9, &request);
    let rows = response.responses[0].partition_responses.iter().map(|row| (row.index.0, row.error_code));
    let missing = ErrorCode::UnknownTopicOrPartition;
    let expected =
        [(0, ErrorCode::None), (3, ErrorCode::None), (9, missing), (1, ErrorCode::None), (2, ErrorCode::None)];
    assert!(rows.eq(expected));
}

#[test]
fn a_write_that_takes_too_long_times_out() {
    let broker = Broker::start();
    crate::support::set(&broker.switches.hold_appends, true);
    let mut client = broker.client();
    let request = ProduceRequest { timeout_ms: 30, ..produce_request(-1, TOPIC, 0, &batch("x")) };
    assert_eq!(only(&client.call(9, &request)).error_code, ErrorCode::RequestTimedOut);
}

/// A large request goes through in one piece, and its records come out as they went in.
#[test]
fn large_requests_pass() {
    let broker = Broker::start();
    let mut client = broker.client();
    let large = BatchBuilder::new().record(TimestampMs(1), None, Some(&vec![7; 3 << 20])).build();
    let response = client.call(9, &produce_request(-1, TOPIC, 0, &large));
    assert_eq!(only(&response).error_code, ErrorCode::None);
    let fetched = client.fetch(12, 0, 0);
    assert_eq!(fetched.records, Records::from(large));
}
