//! Fetch: long polls, limits, sessions.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use kaas_proto::kafka::ErrorCode;
use kaas_proto::kafka::messages::FetchRequest;
use kaas_proto::kafka::messages::fetch::{FetchPartition, FetchResponse, FetchTopic, PartitionData};
use kaas_proto::record::{BatchBuilder, Compression, RecordBatchView};
use kaas_proto::types::{BrokerId, LeaderEpoch, Offset, PartitionIndex, TimestampMs, TopicId};

use crate::support::{
    Broker, Client, ELSEWHERE, ELSEWHERE_ID, TOPIC, TOPIC_ID, batch, eventually, fetch_request, produce_request,
};

const KIB: i32 = 1024;

fn rows(response: &FetchResponse) -> Vec<&PartitionData> {
    response.responses.iter().flat_map(|topic| &topic.partitions).collect()
}

fn only(response: &FetchResponse) -> &PartitionData {
    assert_eq!(rows(response).len(), 1);
    rows(response)[0]
}

fn indexes(response: &FetchResponse) -> Vec<i32> {
    rows(response).iter().map(|row| row.partition_index.0).collect()
}

fn produce(client: &mut Client, partition: i32, value: &str) {
    let response = client.call(9, &produce_request(-1, TOPIC, partition, &batch(value)));
    assert_eq!(response.responses[0].partition_responses[0].error_code, ErrorCode::None);
}

#[test]
fn every_version_reads_by_name_or_by_id() {
    let broker = Broker::start();
    let mut client = broker.client();
    client.produce("x");
    for version in 4..=18 {
        let response = client.call(version, &fetch_request(&[(0, 0)]));
        let row = only(&response);
        assert_eq!((row.error_code, row.high_watermark), (ErrorCode::None, Offset(1)), "version {version}");
        assert!(!row.records.is_empty());
        // D19, D22, D33.
        assert_eq!(row.preferred_read_replica, BrokerId(-1));
        assert_eq!(row.aborted_transactions, None);
        let topic = &response.responses[0];
        assert_eq!(topic.topic_id == TOPIC_ID, version >= 13);
        let committed = FetchRequest { isolation_level: 1, ..fetch_request(&[(0, 0)]) };
        assert_eq!(only(&client.call(version, &committed)).aborted_transactions, Some(vec![]));
    }
    let mut unknown = fetch_request(&[(0, 0)]);
    unknown.topics[0].topic_id = TopicId([9; 16]);
    let response = client.call(13, &unknown);
    let row = only(&response);
    assert_eq!(row.error_code, ErrorCode::UnknownTopicId);
    let sentinels = (row.high_watermark, row.last_stable_offset, row.log_start_offset);
    assert_eq!(sentinels, (Offset(-1), Offset(-1), Offset(-1)));
}

/// D18: no records are zero bytes, not null. The frame is looked at itself.
#[test]
fn no_records_are_zero_bytes() {
    let broker = Broker::start();
    let mut client = broker.client();
    client.send(11, &FetchRequest { max_wait_ms: 0, ..fetch_request(&[(0, 0)]) });
    let frame = client.receive_frame();
    // The last field of the frame is the length of the records.
    assert_eq!(frame[frame.len() - 4..], [0, 0, 0, 0]);
}

/// D17.
#[test]
fn an_offset_inside_a_batch_gives_the_batch() {
    let broker = Broker::start();
    let mut client = broker.client();
    let two =
        BatchBuilder::new().record(TimestampMs(1), None, Some(b"a")).record(TimestampMs(1), None, Some(b"b")).build();
    client.call(9, &produce_request(-1, TOPIC, 0, &two));
    let records = client.fetch(12, 0, 1).records.into_bytes();
    assert_eq!(RecordBatchView::read(&records).unwrap().base_offset(), Offset(0));
}

/// D15, D16: the first partition with records returns one batch even above the limits, and no later one does.
#[test]
fn limits_are_shared_in_the_order_of_the_request() {
    let broker = Broker::start();
    let mut client = broker.client();
    let value = "x".repeat(2000);
    for partition in 0..4 {
        produce(&mut client, partition, &value);
        produce(&mut client, partition, &value);
    }
    let size = i32::try_from(batch(&value).len()).unwrap();
    let sizes = |client: &mut Client, max_bytes, partition_max_bytes, order: &[i32]| {
        let wanted: Vec<(i32, i64)> = order.iter().map(|index| (*index, 0)).collect();
        let mut request = FetchRequest { max_bytes, ..fetch_request(&wanted) };
        for partition in &mut request.topics[0].partitions {
            partition.partition_max_bytes = partition_max_bytes;
        }
        let response = client.call(12, &request);
        rows(&response).iter().map(|row| i32::try_from(row.records.len()).unwrap() / size).collect::<Vec<_>>()
    };
    for order in [[0, 1, 2, 3], [3, 2, 1, 0], [2, 0, 3, 1]] {
        assert_eq!(sizes(&mut client, 1, 1, &order), [1, 0, 0, 0], "{order:?}");
        assert_eq!(sizes(&mut client, 1 << 20, 1, &order), [1, 0, 0, 0]);
        assert_eq!(sizes(&mut client, 1 << 20, size, &order), [1, 1, 1, 1]);
        assert_eq!(sizes(&mut client, 1 << 20, 1 << 20, &order), [2, 2, 2, 2]);
        let some = sizes(&mut client, 4 * size, 2 * size, &order);
        assert!(some[0] > 0 && some.iter().sum::<i32>() <= 4, "{some:?}");
    }
    // A partition without records does not use up the exception.
    let mut request = FetchRequest { max_bytes: 1, ..fetch_request(&[(0, 2), (1, 0)]) };
    request.topics[0].partitions[1].partition_max_bytes = 1;
    let response = client.call(12, &request);
    assert_eq!(rows(&response)[1].records.len(), usize::try_from(size).unwrap());
}

/// D21.
#[test]
fn a_long_poll_waits_for_min_bytes_or_its_time() {
    let broker = Broker::start();
    let mut client = broker.client();
    let begun = Instant::now();
    let response = client.call(12, &FetchRequest { max_wait_ms: 60, ..fetch_request(&[(0, 0)]) });
    assert!(only(&response).records.is_empty());
    assert!(begun.elapsed() >= Duration::from_millis(60), "{:?}", begun.elapsed());

    // It wakes when both partitions together have enough, whichever shards own them.
    let each = i32::try_from(batch("x").len()).unwrap();
    let wanted = FetchRequest { max_wait_ms: 60_000, min_bytes: 2 * each, ..fetch_request(&[(0, 0), (1, 0)]) };
    let waiting = client.send(12, &wanted);
    eventually("it waits", || broker.switches.watching.load(Ordering::SeqCst) >= 1);
    let mut producer = broker.client();
    produce(&mut producer, 0, "x");
    produce(&mut producer, 1, "x");
    let response = client.receive::<FetchRequest>(12, waiting);
    assert!(rows(&response).iter().all(|row| !row.records.is_empty()));
}

#[test]
fn errors_end_the_wait() {
    let broker = Broker::start();
    let mut client = broker.client();
    let begun = Instant::now();
    let wait = |request| FetchRequest { max_wait_ms: 60_000, ..request };
    let out_of_range = client.call(12, &wait(fetch_request(&[(0, 0), (1, 5)])));
    assert_eq!(rows(&out_of_range)[1].error_code, ErrorCode::OffsetOutOfRange);
    let mut elsewhere = wait(fetch_request(&[(0, 0), (1, 0)]));
    elsewhere.topics[0].topic = ELSEWHERE.into();
    elsewhere.topics[0].topic_id = ELSEWHERE_ID;
    let response = client.call(16, &elsewhere);
    let row = rows(&response)[0];
    assert_eq!(row.error_code, ErrorCode::NotLeaderOrFollower);
    assert_eq!((row.current_leader.leader_id, row.current_leader.leader_epoch), (BrokerId(2), LeaderEpoch(5)));
    assert_eq!((&*response.node_endpoints[0].host, response.node_endpoints[0].port), ("two.example", 9092));
    // The Java consumer knows no LEADER_NOT_AVAILABLE here.
    assert_eq!(rows(&response)[1].error_code, ErrorCode::NotLeaderOrFollower);
    assert!(begun.elapsed() < Duration::from_secs(20));
}

/// D29.
#[test]
fn zstd_is_kept_from_clients_that_do_not_know_it() {
    let broker = Broker::start();
    let mut client = broker.client();
    let zstd = BatchBuilder::new().compression(Compression::Zstd).record(TimestampMs(1), None, Some(b"x")).build();
    client.call(9, &produce_request(-1, TOPIC, 0, &zstd));
    assert_eq!(only(&client.call(9, &fetch_request(&[(0, 0)]))).error_code, ErrorCode::UnsupportedCompressionType);
    assert_eq!(only(&client.call(10, &fetch_request(&[(0, 0)]))).error_code, ErrorCode::None);
}

/// D20.
#[test]
fn a_session_remembers_and_tells_news() {
    let broker = Broker::start();
    let mut client = broker.client();
    let session = |id, epoch, wanted: &[(i32, i64)]| FetchRequest {
        session_id: id,
        session_epoch: epoch,
        max_wait_ms: 0,
        ..fetch_request(wanted)
    };
    let opened = client.call(12, &session(0, 0, &[(0, 0), (1, 0), (2, 0)]));
    let id = opened.session_id;
    assert!(id > 0);
    assert_eq!(indexes(&opened), [0, 1, 2], "a full answer");

    assert_eq!(indexes(&client.call(12, &session(id, 1, &[]))), [0; 0], "no news");
    produce(&mut client, 1, "x");
    let news = client.call(12, &session(id, 2, &[]));
    assert_eq!((indexes(&news), news.session_id), (vec![1], id));
    assert_eq!(indexes(&client.call(12, &session(id, 3, &[(1, 1)]))), [0; 0], "it was read");

    let forgotten = FetchRequest {
        forgotten_topics_data: vec![kaas_proto::kafka::messages::fetch::ForgottenTopic {
            topic: TOPIC.into(),
            partitions: vec![PartitionIndex(1)],
            ..Default::default()
        }],
        ..session(id, 4, &[])
    };
    client.call(12, &forgotten);
    produce(&mut client, 1, "y");
    assert_eq!(indexes(&client.call(12, &session(id, 5, &[]))), [0; 0], "it is forgotten");

    let wrong_epoch = client.call(12, &session(id, 5, &[]));
    assert_eq!((wrong_epoch.error_code, wrong_epoch.session_id), (ErrorCode::InvalidFetchSessionEpoch, 0));
    let unknown = client.call(12, &session(id + 2, 6, &[]));
    assert_eq!(unknown.error_code, ErrorCode::FetchSessionIdNotFound);
    let by_id = client.call(13, &session(id, 6, &[]));
    assert_eq!(by_id.error_code, ErrorCode::FetchSessionTopicIdError);

    let ended = client.call(12, &session(id, -1, &[(0, 0)]));
    assert_eq!((ended.session_id, indexes(&ended)), (0, vec![0]));
    assert_eq!(client.call(12, &session(id, 6, &[])).error_code, ErrorCode::FetchSessionIdNotFound);
    assert_eq!(broker.counted("kaas_fetch_sessions", ""), 0.0);
}

/// A topic that is created anew has another id; a consumer of the old one is told (D23).
#[test]
fn a_new_topic_is_not_the_old_one() {
    let broker = Broker::start();
    let mut client = broker.client();
    client.produce("old");
    broker.view.send_modify(|view| {
        let view = std::sync::Arc::make_mut(view);
        let mut topic = kaas_proto::view::TopicView::clone(view.topic(TOPIC).unwrap());
        topic.id = TopicId([10; 16]);
        view.insert_topic(topic);
    });
    assert_eq!(only(&client.call(13, &fetch_request(&[(0, 0)]))).error_code, ErrorCode::UnknownTopicId);
    let by_name = client.call(12, &fetch_request(&[(0, 0)]));
    assert!(only(&by_name).records.is_empty());
}

/// Memory for responses that are not read is bounded: a fetch gets less, but something.
#[test]
fn memory_for_responses_is_bounded() {
    let broker = Broker::with(crate::support::Options {
        shards: 1,
        limits: Box::new(|limits| limits.shard_response_bytes = 100_000),
        ..Default::default()
    });
    let mut client = broker.client();
    for _ in 0..200 {
        produce(&mut client, 0, &"x".repeat(4000));
    }
    let large = FetchRequest { max_bytes: 10_000 * KIB, ..fetch_request(&[(0, 0)]) };
    let response = client.call(12, &large);
    let got = only(&response).records.len();
    assert!((10_000..=100_000).contains(&got), "{got}");
    assert!(broker.counted("kaas_net_bound_reached_total", "shard_response_bytes") > 0.0);
}

#[test]
fn partitions_without_topics_are_answered_at_once() {
    let broker = Broker::start();
    let mut client = broker.client();
    let nothing = FetchRequest { max_wait_ms: 60_000, topics: vec![], ..fetch_request(&[]) };
    assert!(client.call(12, &nothing).responses.is_empty());
    let missing =
        FetchTopic { topic: "missing".into(), partitions: vec![FetchPartition::default()], ..Default::default() };
    let request = FetchRequest { max_wait_ms: 60_000, topics: vec![missing], ..fetch_request(&[]) };
    assert_eq!(only(&client.call(12, &request)).error_code, ErrorCode::UnknownTopicOrPartition);
}
