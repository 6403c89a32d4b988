//! Requests about single partitions: offsets, epochs, records to delete, producers, sizes; and producer ids.

use kaas_proto::kafka::ErrorCode;
use kaas_proto::kafka::messages::delete_records::{DeleteRecordsPartition, DeleteRecordsTopic};
use kaas_proto::kafka::messages::describe_log_dirs::DescribableLogDirTopic;
use kaas_proto::kafka::messages::list_offsets::{ListOffsetsPartition, ListOffsetsTopic};
use kaas_proto::kafka::messages::offset_for_leader_epoch::{OffsetForLeaderPartition, OffsetForLeaderTopic};
use kaas_proto::kafka::messages::*;
use kaas_proto::types::{LeaderEpoch, Offset, PartitionIndex, ProducerEpoch, ProducerId, TimestampMs};

use crate::support::{Broker, ELSEWHERE, TOPIC, batch};

fn offsets(topic: &str, wanted: &[(i32, i64)]) -> ListOffsetsRequest {
    let partition = |&(index, timestamp): &(i32, i64)| ListOffsetsPartition {
        partition_index: PartitionIndex(index),
        timestamp: TimestampMs(timestamp),
        ..Default::default()
    };
    let partitions = wanted.iter().map(partition).collect();
    ListOffsetsRequest { topics: vec![ListOffsetsTopic { name: topic.into(), partitions }], ..Default::default() }
}

/// D9.
#[test]
fn offsets_are_found_by_time() {
    let broker = Broker::start();
    let mut client = broker.client();
    for n in 0..3 {
        client.produce(&n.to_string());
    }
    for version in 1..=11 {
        let response = client.call(version, &offsets(TOPIC, &[(0, -1), (1, -1), (2, 500), (3, 5000)]));
        let found: Vec<_> =
            response.topics[0].partitions.iter().map(|one| (one.error_code, one.offset.0, one.timestamp.0)).collect();
        let none = ErrorCode::None;
        assert_eq!(found, [(none, 3, -1), (none, 0, -1), (none, 0, 1000), (none, -1, -1)], "version {version}");
        let epoch = if version >= 4 { 5 } else { -1 };
        assert_eq!(response.topics[0].partitions[0].leader_epoch, LeaderEpoch(epoch));
        for (timestamp, since) in [(-3, 7), (-4, 8), (-5, 9), (-6, 11), (-7, 99)] {
            let response = client.call(version, &offsets(TOPIC, &[(0, timestamp)]));
            let code = response.topics[0].partitions[0].error_code;
            let expected = if version >= since { ErrorCode::None } else { ErrorCode::UnsupportedVersion };
            assert_eq!(code, expected, "{timestamp} in version {version}");
        }
    }
    let codes = |response: ListOffsetsResponse| {
        response.topics[0].partitions.iter().map(|one| one.error_code).collect::<Vec<_>>()
    };
    let twice = codes(client.call(5, &offsets(TOPIC, &[(0, -1), (0, -2)])));
    assert_eq!(twice, [ErrorCode::None, ErrorCode::InvalidRequest]);
    let elsewhere = codes(client.call(5, &offsets(ELSEWHERE, &[(0, -1), (1, -1), (2, -1)])));
    let (other, nobody) = (ErrorCode::NotLeaderOrFollower, ErrorCode::LeaderNotAvailable);
    assert_eq!(elsewhere, [other, nobody, ErrorCode::UnknownTopicOrPartition]);
}

/// D24.
#[test]
fn ends_of_epochs_are_told() {
    let broker = Broker::start();
    let mut client = broker.client();
    client.produce("x");
    let partition = |index| OffsetForLeaderPartition { partition: PartitionIndex(index), ..Default::default() };
    let topic = OffsetForLeaderTopic { topic: TOPIC.into(), partitions: vec![partition(0), partition(9)] };
    let request = OffsetForLeaderEpochRequest { topics: vec![topic], ..Default::default() };
    for version in 2..=4 {
        let response = client.call(version, &request);
        let rows = &response.topics[0].partitions;
        assert_eq!((rows[0].leader_epoch, rows[0].end_offset), (LeaderEpoch(5), Offset(1)));
        assert_eq!((rows[1].error_code, rows[1].end_offset), (ErrorCode::UnknownTopicOrPartition, Offset(-1)));
        assert_eq!(rows[1].partition, PartitionIndex(9));
    }
}

/// KIP-320: fetches and look-ups of whoever believes in another leader epoch; -1 believes in none.
#[test]
fn a_wrong_leader_epoch_is_refused() {
    let broker = Broker::start();
    let mut client = broker.client();
    client.produce("x");
    let (fenced, unknown) = (ErrorCode::FencedLeaderEpoch, ErrorCode::UnknownLeaderEpoch);
    assert_eq!((fenced as i16, unknown as i16), (74, 75));
    for (believed, code) in
        [(-1, ErrorCode::None), (5, ErrorCode::None), (0, fenced), (4, fenced), (6, unknown), (i32::MAX, unknown)]
    {
        let believed = LeaderEpoch(believed);
        for version in 9..=18 {
            let mut request = crate::support::fetch_request(&[(0, 0)]);
            request.topics[0].partitions[0].current_leader_epoch = believed;
            let row = client.call(version, &request).responses.remove(0).partitions.remove(0);
            assert_eq!((row.error_code, row.records.is_empty()), (code, code != ErrorCode::None), "{believed}");
        }
        for version in 4..=11 {
            let mut request = offsets(TOPIC, &[(0, -1)]);
            request.topics[0].partitions[0].current_leader_epoch = believed;
            let response = client.call(version, &request);
            let row = &response.topics[0].partitions[0];
            let offset = if code == ErrorCode::None { Offset(1) } else { Offset(-1) };
            assert_eq!((row.error_code, row.offset), (code, offset), "{believed}");
        }
        for version in 2..=4 {
            let wanted = OffsetForLeaderPartition {
                leader_epoch: LeaderEpoch(5),
                current_leader_epoch: believed,
                ..Default::default()
            };
            let topics = vec![OffsetForLeaderTopic { topic: TOPIC.into(), partitions: vec![wanted] }];
            let request = OffsetForLeaderEpochRequest { topics, ..Default::default() };
            let response = client.call(version, &request);
            let row = &response.topics[0].partitions[0];
            let offset = if code == ErrorCode::None { Offset(1) } else { Offset(-1) };
            assert_eq!((row.error_code, row.end_offset), (code, offset), "{believed}");
        }
    }
}

/// D49: what follows of deleting records is seen at once.
#[test]
fn records_are_deleted_up_to_an_offset() {
    let broker = Broker::start();
    let mut client = broker.client();
    for n in 0..3 {
        client.produce(&n.to_string());
    }
    let delete = |offset| {
        let one = |index| DeleteRecordsPartition { partition_index: PartitionIndex(index), offset: Offset(offset) };
        let topic = DeleteRecordsTopic { name: TOPIC.into(), partitions: vec![one(0), one(7)] };
        DeleteRecordsRequest { topics: vec![topic], timeout_ms: 10_000 }
    };
    let response = client.call(2, &delete(2));
    let rows = &response.topics[0].partitions;
    assert_eq!((rows[0].error_code, rows[0].low_watermark), (ErrorCode::None, Offset(2)));
    assert_eq!((rows[1].error_code, rows[1].low_watermark), (ErrorCode::UnknownTopicOrPartition, Offset(-1)));
    let earliest = client.call(5, &offsets(TOPIC, &[(0, -2)]));
    assert_eq!(earliest.topics[0].partitions[0].offset, Offset(2));
    assert_eq!(client.fetch(12, 0, 2).log_start_offset, Offset(2));
    let below = client.call(12, &crate::support::fetch_request(&[(0, 1)]));
    assert_eq!(below.responses[0].partitions[0].error_code, ErrorCode::OffsetOutOfRange);
    assert_eq!(client.call(0, &delete(-1)).topics[0].partitions[0].low_watermark, Offset(3));
}

#[test]
fn producers_are_described() {
    let broker = Broker::start();
    let topic = describe_producers::TopicRequest {
        name: TOPIC.into(),
        partition_indexes: vec![PartitionIndex(1), PartitionIndex(8)],
    };
    let response = broker.client().call(0, &DescribeProducersRequest { topics: vec![topic] });
    let rows = &response.topics[0].partitions;
    let producer = &rows[0].active_producers[0];
    assert_eq!((producer.producer_id, producer.producer_epoch, producer.last_sequence), (ProducerId(4), 1, 9));
    assert_eq!(rows[1].error_code, ErrorCode::UnknownTopicOrPartition);
    assert!(rows[1].error_message.is_some());
}

#[test]
fn sizes_are_told_of_what_is_asked_for() {
    let broker = Broker::start();
    let mut client = broker.client();
    for index in 0..4 {
        client.call(9, &crate::support::produce_request(-1, TOPIC, index, &batch("x")));
    }
    let all = client.call(4, &DescribeLogDirsRequest { topics: None });
    assert_eq!((all.results[0].total_bytes, all.results[0].usable_bytes), (1 << 40, 1 << 39));
    let rows = &all.results[0].topics[0].partitions;
    let indexes: Vec<_> = rows.iter().map(|row| row.partition_index.0).collect();
    assert_eq!(indexes, [0, 1, 2, 3], "of both shards");
    assert_eq!(rows[0].partition_size, i64::try_from(batch("x").len()).unwrap());
    let one = DescribableLogDirTopic { topic: TOPIC.into(), partitions: vec![PartitionIndex(2)] };
    let some = client.call(1, &DescribeLogDirsRequest { topics: Some(vec![one]) });
    assert_eq!(some.results[0].topics[0].partitions.len(), 1);
}

#[test]
fn producer_ids_are_given_out_once() {
    let broker = Broker::start();
    let mut client = broker.client();
    let mut last = ProducerId(0);
    for version in 0..=5 {
        let response = client.call(version, &InitProducerIdRequest::default());
        assert_eq!((response.error_code, response.producer_epoch), (ErrorCode::None, ProducerEpoch(0)));
        assert!(response.producer_id > last);
        last = response.producer_id;
    }
    let transactional = |id: &str| InitProducerIdRequest { transactional_id: Some(id.into()), ..Default::default() };
    let response = client.call(4, &transactional("tx"));
    assert_eq!(response.error_code, ErrorCode::TransactionalIdAuthorizationFailed);
    assert_eq!((response.producer_id, response.producer_epoch), (ProducerId(-1), ProducerEpoch(-1)));
    assert_eq!(client.call(4, &transactional("")).error_code, ErrorCode::InvalidRequest);
    let known = |id, epoch| InitProducerIdRequest {
        producer_id: ProducerId(id),
        producer_epoch: ProducerEpoch(epoch),
        ..Default::default()
    };
    assert_eq!(client.call(4, &known(5, -1)).error_code, ErrorCode::InvalidRequest);
    assert_eq!(client.call(4, &known(-1, 3)).error_code, ErrorCode::InvalidRequest);
    let response = client.call(4, &known(5, 3));
    assert_eq!((response.error_code, response.producer_epoch), (ErrorCode::None, ProducerEpoch(0)));
    assert!(response.producer_id > last, "a new one all the same");
}
