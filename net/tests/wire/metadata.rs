//! Metadata, DescribeCluster, DescribeTopicPartitions, FindCoordinator: who is where.

use std::sync::Arc;

use kaas_proto::kafka::ErrorCode;
use kaas_proto::kafka::messages::describe_topic_partitions::{Cursor, TopicRequest};
use kaas_proto::kafka::messages::metadata::{MetadataRequestTopic, MetadataResponse, MetadataResponseTopic};
use kaas_proto::kafka::messages::*;
use kaas_proto::types::{BrokerId, LeaderEpoch, PartitionIndex, SlotId, TopicId};
use kaas_proto::view::PartitionView;

use crate::support::{Broker, Client, ELSEWHERE, Options, TOPIC, TOPIC_ID, set};

fn named(name: &str) -> MetadataRequestTopic {
    MetadataRequestTopic { name: Some(name.into()), ..Default::default() }
}

fn by_id(id: TopicId) -> MetadataRequestTopic {
    MetadataRequestTopic { topic_id: id, name: None }
}

fn asking(topics: Vec<MetadataRequestTopic>) -> MetadataRequest {
    MetadataRequest { topics: Some(topics), ..Default::default() }
}

fn only(response: &MetadataResponse) -> &MetadataResponseTopic {
    assert_eq!(response.topics.len(), 1);
    &response.topics[0]
}

/// D7.
#[test]
fn null_and_empty_lists_mean_what_they_mean_in_each_version() {
    let broker = Broker::start();
    let mut client = broker.client();
    for version in 0..=13 {
        let none = client.call(version, &asking(vec![])).topics.len();
        assert_eq!(none, if version == 0 { 2 } else { 0 }, "version {version}");
        if version > 0 {
            let all = client.call(version, &MetadataRequest { topics: None, ..Default::default() });
            assert_eq!(all.topics.len(), 2, "version {version}");
        }
        let one = client.call(version, &asking(vec![named(TOPIC), named(TOPIC)]));
        let topic = only(&one);
        assert_eq!((topic.error_code, topic.partitions.len()), (ErrorCode::None, 4));
        assert_eq!(topic.topic_id == TOPIC_ID, version >= 10);
        let partition = &topic.partitions[3];
        assert_eq!((partition.leader_id, partition.partition_index), (BrokerId(1), PartitionIndex(3)));
        let epoch = if version >= 7 { 5 } else { -1 };
        assert_eq!(partition.leader_epoch, LeaderEpoch(epoch));
        assert_eq!((&partition.replica_nodes, &partition.isr_nodes), (&vec![BrokerId(1)], &vec![BrokerId(1)]));
    }
}

#[test]
fn topics_are_found_by_id_from_version_12_on() {
    let broker = Broker::start();
    let mut client = broker.client();
    let response = client.call(12, &asking(vec![by_id(TOPIC_ID)]));
    assert_eq!(only(&response).name.as_deref(), Some(TOPIC));
    let response = client.call(12, &asking(vec![by_id(TopicId([9; 16]))]));
    let topic = only(&response);
    assert_eq!((topic.error_code, topic.name.as_deref()), (ErrorCode::UnknownTopicId, None));
    assert_eq!(topic.topic_id, TopicId([9; 16]));
    for version in 10..=11 {
        let response = client.call(version, &asking(vec![by_id(TOPIC_ID)]));
        assert_eq!(only(&response).error_code, ErrorCode::InvalidRequest, "version {version}");
    }
}

/// D48: without an advertised address a client is sent where it came from; others are named as they advertise.
#[test]
fn addresses_are_those_that_work_for_the_client() {
    let broker = Broker::start();
    let mut client = broker.client();
    let response = client.call(12, &asking(vec![named(ELSEWHERE)]));
    let brokers: Vec<_> = response.brokers.iter().map(|at| (at.node_id.0, &*at.host, at.port)).collect();
    let own = i32::from(broker.address.port());
    assert_eq!(brokers, [(1, "127.0.0.1", own), (2, "two.example", 9092)]);
    assert_eq!(response.controller_id, BrokerId(1));
    assert_eq!(response.cluster_id.as_deref(), Some("the-cluster-0123456789"));

    let partitions = &only(&response).partitions;
    assert_eq!((partitions[0].error_code, partitions[0].leader_id), (ErrorCode::None, BrokerId(2)));
    assert_eq!((partitions[1].error_code, partitions[1].leader_id), (ErrorCode::LeaderNotAvailable, BrokerId(-1)));
    // A leader that can't be reached is none.
    broker.view.send_modify(|view| Arc::make_mut(view).brokers[1].fenced = true);
    let response = client.call(12, &asking(vec![named(ELSEWHERE)]));
    assert_eq!(response.brokers.len(), 1);
    let partition = &only(&response).partitions[0];
    assert_eq!((partition.error_code, partition.leader_id), (ErrorCode::LeaderNotAvailable, BrokerId(-1)));
    assert_eq!(partition.offline_replicas, [BrokerId(2)]);
}

/// D8.
#[test]
fn missing_topics_are_created_if_both_sides_want_it() {
    let broker = Broker::with(Options { settings: vec![("num.partitions", "4")], ..Options::default() });
    let mut client = broker.client();
    let forbidden = MetadataRequest { allow_auto_topic_creation: false, ..asking(vec![named("new")]) };
    assert_eq!(only(&client.call(4, &forbidden)).error_code, ErrorCode::UnknownTopicOrPartition);
    // Before version 4 a client can't forbid it.
    let response = client.call(3, &asking(vec![named("old")]));
    assert_eq!((only(&response).error_code, only(&response).partitions.len()), (ErrorCode::None, 4));
    let response = client.call(12, &asking(vec![named("new"), named("a b"), named("..")]));
    let codes: Vec<_> = response.topics.iter().map(|topic| topic.error_code).collect();
    assert_eq!(codes, [ErrorCode::None, ErrorCode::InvalidTopicException, ErrorCode::InvalidTopicException]);
    assert_ne!(response.topics[0].topic_id, TopicId::ZERO);

    let broker = Broker::with(Options { settings: vec![("auto.create.topics.enable", "false")], ..Options::default() });
    let response = broker.client().call(12, &asking(vec![named("new")]));
    assert_eq!(only(&response).error_code, ErrorCode::UnknownTopicOrPartition);
}

#[test]
fn a_topic_on_its_way_is_said_to_come() {
    let broker = Broker::start();
    set(&broker.switches.control_silent, true);
    let response = broker.client().call(12, &asking(vec![named("slow")]));
    assert_eq!(only(&response).error_code, ErrorCode::LeaderNotAvailable);
}

#[test]
fn operations_are_listed_if_asked_for() {
    let broker = Broker::start();
    let mut client = broker.client();
    let ask = |yes| MetadataRequest {
        include_topic_authorized_operations: yes,
        include_cluster_authorized_operations: yes,
        ..asking(vec![named(TOPIC)])
    };
    let response = client.call(8, &ask(true));
    assert_eq!((only(&response).topic_authorized_operations, response.cluster_authorized_operations), (3576, 8096));
    let response = client.call(8, &ask(false));
    assert_eq!(only(&response).topic_authorized_operations, i32::MIN);
}

#[test]
fn the_cluster_is_described() {
    let broker = Broker::start();
    let mut client = broker.client();
    broker.view.send_modify(|view| Arc::make_mut(view).brokers[1].fenced = true);
    for version in 0..=1 {
        let response = client.call(version, &DescribeClusterRequest::default());
        assert_eq!((response.error_code, response.brokers.len()), (ErrorCode::None, 1));
    }
    let all = DescribeClusterRequest { include_fenced_brokers: true, ..Default::default() };
    let response = client.call(2, &all);
    let fenced: Vec<_> = response.brokers.iter().map(|at| (at.broker_id.0, at.is_fenced)).collect();
    assert_eq!(fenced, [(1, false), (2, true)]);
    assert_eq!((response.controller_id, &*response.cluster_id), (BrokerId(1), "the-cluster-0123456789"));
    for (endpoint_type, code) in [(2, ErrorCode::MismatchedEndpointType), (9, ErrorCode::UnsupportedEndpointType)] {
        let response = client.call(2, &DescribeClusterRequest { endpoint_type, ..Default::default() });
        assert_eq!(response.error_code, code);
    }
}

#[test]
fn topics_are_described_page_by_page() {
    let broker = Broker::start();
    let mut client = broker.client();
    let mut seen = Vec::new();
    let mut cursor = None;
    for _ in 0..10 {
        let request = DescribeTopicPartitionsRequest { response_partition_limit: 2, cursor, ..Default::default() };
        let response = client.call(0, &request);
        let mut page = 0;
        for topic in &response.topics {
            for partition in &topic.partitions {
                seen.push((topic.name.as_deref().unwrap().to_owned(), partition.partition_index.0));
                page += 1;
            }
        }
        assert!(page <= 2);
        cursor = response.next_cursor;
        if cursor.is_none() {
            break;
        }
    }
    let all = [(ELSEWHERE, 0), (ELSEWHERE, 1), (TOPIC, 0), (TOPIC, 1), (TOPIC, 2), (TOPIC, 3)];
    assert_eq!(seen, all.map(|(topic, index)| (topic.to_owned(), index)));

    let asked = |names: &[&str]| DescribeTopicPartitionsRequest {
        topics: names.iter().map(|name| TopicRequest { name: (*name).into() }).collect(),
        ..Default::default()
    };
    let response = client.call(0, &asked(&[TOPIC, "missing", "a b"]));
    let codes: Vec<_> = response.topics.iter().map(|topic| topic.error_code).collect();
    assert_eq!(codes, [ErrorCode::InvalidTopicException, ErrorCode::UnknownTopicOrPartition, ErrorCode::None]);
    // A cursor behind a topic that is gone, and one behind the last partition.
    for cursor in [("zzz", 0), (TOPIC, 4)] {
        let cursor = Some(Cursor { topic_name: cursor.0.into(), partition_index: PartitionIndex(cursor.1) });
        let response = client.call(0, &DescribeTopicPartitionsRequest { cursor, ..Default::default() });
        assert_eq!(response.topics.iter().map(|topic| topic.partitions.len()).sum::<usize>(), 0);
        assert_eq!(response.next_cursor, None);
    }
}

#[test]
fn coordinators_are_found() {
    let broker = Broker::start();
    broker.view.send_modify(|view| {
        let slots = &mut Arc::make_mut(view).slots;
        slots[usize::from(SlotId::of("second").0)].leader = Some(BrokerId(2));
        slots[usize::from(SlotId::of("nobody").0)] = PartitionView::LEADERLESS;
    });
    let mut client = broker.client();
    let own = i32::from(broker.address.port());
    for version in 0..=3 {
        let response = client.call(version, &FindCoordinatorRequest { key: "g".into(), ..Default::default() });
        assert_eq!(
            (response.error_code, response.node_id, &*response.host),
            (ErrorCode::None, BrokerId(1), "127.0.0.1")
        );
        assert_eq!(response.port, own);
        let response = client.call(version, &FindCoordinatorRequest { key: "nobody".into(), ..Default::default() });
        assert_eq!((response.error_code, response.node_id), (ErrorCode::CoordinatorNotAvailable, BrokerId(-1)));
    }
    let keys = ["g", "second", "nobody"];
    for (version, key_type) in [(4, 0), (6, 1)] {
        let request = FindCoordinatorRequest {
            key_type,
            coordinator_keys: keys.iter().map(|key| (*key).into()).collect(),
            ..Default::default()
        };
        let response = client.call(version, &request);
        let found: Vec<_> =
            response.coordinators.iter().map(|one| (&*one.key, one.node_id.0, &*one.host, one.error_code)).collect();
        let nobody = ("nobody", -1, "", ErrorCode::CoordinatorNotAvailable);
        let expected = [("g", 1, "127.0.0.1", ErrorCode::None), ("second", 2, "two.example", ErrorCode::None), nobody];
        assert_eq!(found, expected);
    }
    let share = FindCoordinatorRequest { key_type: 2, coordinator_keys: vec!["g".into()], ..Default::default() };
    assert_eq!(client.call(6, &share).coordinators[0].error_code, ErrorCode::InvalidRequest);
}

/// However many topics one request names, it creates a bounded number of them; the client asks again for the others.
#[test]
fn one_request_creates_a_bounded_number_of_topics() {
    let broker = Broker::start();
    let mut client = broker.client();
    let names: Vec<String> = (0..1500).map(|index| format!("many-{index}")).collect();
    let request = asking(names.iter().map(|name| named(name)).collect());
    let codes = |client: &mut Client| {
        let topics = client.call(9, &request).topics;
        let with = |code| topics.iter().filter(|topic| topic.error_code == code).count();
        (with(ErrorCode::None), with(ErrorCode::UnknownTopicOrPartition))
    };
    assert_eq!(codes(&mut client), (1000, 500));
    assert_eq!(codes(&mut client), (1500, 0));
}
