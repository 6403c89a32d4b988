//! Requests to coordinators: how they get there, and what is said if the coordinator is elsewhere.

use std::sync::Arc;

use kaas_proto::kafka::ErrorCode;
use kaas_proto::kafka::messages::offset_commit::{OffsetCommitRequestPartition, OffsetCommitRequestTopic};
use kaas_proto::kafka::messages::offset_delete::{OffsetDeleteRequestPartition, OffsetDeleteRequestTopic};
use kaas_proto::kafka::messages::offset_fetch::{
    OffsetFetchRequestGroup, OffsetFetchRequestTopic, OffsetFetchRequestTopics,
};
use kaas_proto::kafka::messages::*;
use kaas_proto::types::{BrokerId, Offset, PartitionIndex, SlotId, TopicId};
use kaas_proto::view::PartitionView;

use crate::support::{Broker, Client, TOPIC, TOPIC_ID};

const GROUP: &str = "g";

fn commit(topics: &[(&str, TopicId, i32)]) -> OffsetCommitRequest {
    let topic = |&(name, topic_id, index): &(&str, TopicId, i32)| OffsetCommitRequestTopic {
        name: name.into(),
        topic_id,
        partitions: vec![OffsetCommitRequestPartition {
            partition_index: PartitionIndex(index),
            committed_offset: Offset(42),
            committed_metadata: Some("note".into()),
            ..Default::default()
        }],
    };
    OffsetCommitRequest { group_id: GROUP.into(), topics: topics.iter().map(topic).collect(), ..Default::default() }
}

fn codes(response: &OffsetCommitResponse) -> Vec<ErrorCode> {
    response.topics.iter().flat_map(|topic| topic.partitions.iter().map(|one| one.error_code)).collect()
}

/// D11 in part: names and ids lead to the same offsets.
#[test]
fn offsets_are_committed_and_fetched_by_name_and_by_id() {
    let broker = Broker::start();
    let mut client = broker.client();
    for version in 2..=9 {
        let request = commit(&[("missing", TopicId::ZERO, 0), (TOPIC, TopicId::ZERO, 9), (TOPIC, TopicId::ZERO, 1)]);
        let response = client.call(version, &request);
        let unknown = ErrorCode::UnknownTopicOrPartition;
        assert_eq!(codes(&response), [unknown, unknown, ErrorCode::None], "version {version}");
        assert_eq!(&*response.topics[2].name, TOPIC);
    }
    let response = client.call(10, &commit(&[("", TopicId([9; 16]), 0), ("", TOPIC_ID, 2)]));
    assert_eq!(codes(&response), [ErrorCode::UnknownTopicId, ErrorCode::None]);
    assert_eq!(response.topics[1].topic_id, TOPIC_ID);

    // By name what was committed by id.
    for version in 1..=7 {
        let topic =
            |name: &str| OffsetFetchRequestTopic { name: name.into(), partition_indexes: vec![PartitionIndex(2)] };
        let request = OffsetFetchRequest {
            group_id: GROUP.into(),
            topics: Some(vec![topic("missing"), topic(TOPIC)]),
            ..Default::default()
        };
        let response = client.call(version, &request);
        assert_eq!(response.error_code, ErrorCode::None);
        // D10.
        let missing = &response.topics[0].partitions[0];
        let none = (ErrorCode::None, Offset(-1), Some(""));
        assert_eq!((missing.error_code, missing.committed_offset, missing.metadata.as_deref()), none);
        let found = &response.topics[1].partitions[0];
        assert_eq!((found.committed_offset, found.metadata.as_deref()), (Offset(42), Some("note")));
        if version >= 2 {
            let all = client.call(version, &OffsetFetchRequest { topics: None, ..request });
            assert_eq!((all.topics.len(), &*all.topics[0].name), (1, TOPIC));
        }
    }
    for version in 8..=10 {
        let topic = |name: &str, topic_id| OffsetFetchRequestTopics {
            name: name.into(),
            topic_id,
            partition_indexes: vec![PartitionIndex(2)],
        };
        let group = |group_id: &str| OffsetFetchRequestGroup {
            group_id: group_id.into(),
            topics: Some(vec![topic("missing", TopicId([9; 16])), topic(TOPIC, TOPIC_ID)]),
            ..Default::default()
        };
        let request = OffsetFetchRequest { groups: vec![group(GROUP), group("other")], ..Default::default() };
        let response = client.call(version, &request);
        let rows = |index: usize| {
            let topics = &response.groups[index].topics;
            topics
                .iter()
                .map(|topic| (topic.partitions[0].error_code, topic.partitions[0].committed_offset.0))
                .collect::<Vec<_>>()
        };
        let unknown = if version >= 10 { ErrorCode::UnknownTopicId } else { ErrorCode::None };
        assert_eq!(rows(0), [(unknown, -1), (ErrorCode::None, 42)], "version {version}");
        assert_eq!(rows(1), [(unknown, -1), (ErrorCode::None, -1)]);
        assert_eq!(response.groups[0].topics[1].topic_id == TOPIC_ID, version >= 10);
    }
}

#[test]
fn memberships_reach_the_coordinator() {
    let broker = Broker::start();
    let mut client = broker.client();
    for version in 0..=9 {
        let joined = client.call(version, &JoinGroupRequest { group_id: GROUP.into(), ..Default::default() });
        assert_eq!((joined.error_code, &*joined.leader), (ErrorCode::None, GROUP));
        assert_eq!(&*joined.member_id, "test-/127.0.0.1", "who asks is told");
    }
    client.call(5, &SyncGroupRequest { group_id: GROUP.into(), ..Default::default() });
    client.call(4, &HeartbeatRequest { group_id: GROUP.into(), ..Default::default() });
    client.call(5, &LeaveGroupRequest { group_id: GROUP.into(), ..Default::default() });
}

#[test]
fn groups_of_all_shards_are_listed_and_described() {
    let broker = Broker::start();
    let mut client = broker.client();
    let names: Vec<String> = (0..10).map(|n| format!("group-{n}")).collect();
    for name in &names {
        let request = OffsetCommitRequest { group_id: name.as_str().into(), ..commit(&[(TOPIC, TopicId::ZERO, 0)]) };
        assert_eq!(codes(&client.call(9, &request)), [ErrorCode::None]);
    }
    let listed = client.call(5, &ListGroupsRequest::default());
    assert_eq!(listed.groups.iter().map(|group| group.group_id.to_string()).collect::<Vec<_>>(), names);
    let described = client.call(
        6,
        &DescribeGroupsRequest {
            groups: names.iter().map(|name| name.as_str().into()).collect(),
            include_authorized_operations: true,
        },
    );
    assert_eq!(described.groups.iter().map(|group| group.group_id.to_string()).collect::<Vec<_>>(), names);
    assert!(described.groups.iter().all(|group| group.authorized_operations == 3400));
    let deleted = client.call(2, &DeleteGroupsRequest { groups_names: vec!["group-3".into(), "group-4".into()] });
    assert_eq!(deleted.results.len(), 2);
    assert_eq!(client.call(5, &ListGroupsRequest::default()).groups.len(), 8);
    let twice = client.call(2, &DeleteGroupsRequest { groups_names: vec!["group-6".into(), "group-6".into()] });
    assert_eq!(twice.results.iter().map(|row| row.error_code).collect::<Vec<_>>(), [ErrorCode::None]);

    let topic = |name: &str| OffsetDeleteRequestTopic {
        name: name.into(),
        partitions: [0, 99, -1]
            .map(|index| OffsetDeleteRequestPartition { partition_index: PartitionIndex(index) })
            .into(),
    };
    let request = OffsetDeleteRequest { group_id: "group-5".into(), topics: vec![topic(TOPIC), topic("missing")] };
    let response = client.call(0, &request);
    let mut rows: Vec<_> = response
        .topics
        .iter()
        .flat_map(|topic| topic.partitions.iter().map(|row| (&*topic.name, row.partition_index.0, row.error_code)))
        .collect();
    rows.sort_unstable_by_key(|row| (row.0 == TOPIC, row.1));
    let unknown = ErrorCode::UnknownTopicOrPartition;
    assert_eq!(
        rows[..4],
        [("missing", -1, unknown), ("missing", 0, unknown), ("missing", 99, unknown), (TOPIC, -1, unknown)]
    );
    assert_eq!(rows.last(), Some(&(TOPIC, 99, unknown)));
    assert_eq!(client.call(5, &ListGroupsRequest::default()).groups.len(), 6);
}

/// D40.
#[test]
fn a_coordinator_that_is_elsewhere_is_said_to_be() {
    let broker = Broker::start();
    let mut client = broker.client();
    let move_to = |leader: PartitionView| {
        broker.view.send_modify(|view| Arc::make_mut(view).slots[usize::from(SlotId::of(GROUP).0)] = leader);
    };
    move_to(PartitionView { leader: Some(BrokerId(2)), ..PartitionView::LEADERLESS });
    assert_all(&mut client, ErrorCode::NotCoordinator);
    move_to(PartitionView::LEADERLESS);
    assert_all(&mut client, ErrorCode::CoordinatorNotAvailable);
}

fn assert_all(client: &mut Client, code: ErrorCode) {
    let group_id = || GROUP.into();
    let joined =
        client.call(5, &JoinGroupRequest { group_id: group_id(), member_id: "m".into(), ..Default::default() });
    assert_eq!((joined.error_code, &*joined.member_id, joined.generation_id.0), (code, "m", -1));
    assert_eq!(client.call(4, &SyncGroupRequest { group_id: group_id(), ..Default::default() }).error_code, code);
    assert_eq!(client.call(4, &HeartbeatRequest { group_id: group_id(), ..Default::default() }).error_code, code);
    assert_eq!(client.call(4, &LeaveGroupRequest { group_id: group_id(), ..Default::default() }).error_code, code);
    assert_eq!(codes(&client.call(9, &commit(&[(TOPIC, TopicId::ZERO, 0)]))), [code]);
    let topic = OffsetFetchRequestTopic { name: TOPIC.into(), partition_indexes: vec![PartitionIndex(0)] };
    let fetch = OffsetFetchRequest { group_id: group_id(), topics: Some(vec![topic]), ..Default::default() };
    assert_eq!(client.call(7, &fetch).error_code, code);
    let oldest = client.call(1, &fetch);
    assert_eq!(oldest.topics[0].partitions[0].error_code, code, "version 1 has no other place for it");
    let groups = vec![OffsetFetchRequestGroup { group_id: group_id(), topics: None, ..Default::default() }];
    let response = client.call(9, &OffsetFetchRequest { groups, ..Default::default() });
    assert_eq!((response.groups[0].error_code, &*response.groups[0].group_id), (code, GROUP));
    let response = client.call(5, &DescribeGroupsRequest { groups: vec![group_id()], ..Default::default() });
    assert_eq!((response.groups[0].error_code, &*response.groups[0].group_id), (code, GROUP));
    let response = client.call(2, &DeleteGroupsRequest { groups_names: vec![group_id()] });
    assert_eq!(response.results[0].error_code, code);
    let response = client.call(0, &OffsetDeleteRequest { group_id: group_id(), topics: vec![] });
    assert_eq!(response.error_code, code);
}
