//! Topics that a client makes under the names of Kafka's own: shown as internal everywhere, and guarded as in Kafka.

use kaas_proto::kafka::ErrorCode;
use kaas_proto::kafka::messages::create_topics::CreatableTopic;
use kaas_proto::kafka::messages::delete_records::{DeleteRecordsPartition, DeleteRecordsTopic};
use kaas_proto::kafka::messages::*;
use kaas_proto::types::{Offset, PartitionIndex};

use crate::support::{Broker, Client, TOPIC, batch, produce_request};

const INTERNAL: [&str; 3] = ["__consumer_offsets", "__share_group_state", "__transaction_state"];

/// Name, code and flag of what Metadata and DescribeTopicPartitions say of these topics.
fn shown(client: &mut Client, names: &[&str]) -> Vec<(String, ErrorCode, bool)> {
    let wanted = |name: &&str| metadata::MetadataRequestTopic { name: Some((*name).into()), ..Default::default() };
    let request = MetadataRequest {
        topics: Some(names.iter().map(wanted).collect()),
        allow_auto_topic_creation: false,
        ..Default::default()
    };
    let metadata = client.call(13, &request).topics.into_iter();
    let metadata: Vec<_> =
        metadata.map(|row| (row.name.unwrap().to_string(), row.error_code, row.is_internal)).collect();
    let wanted = |name: &&str| describe_topic_partitions::TopicRequest { name: (*name).into() };
    let request = DescribeTopicPartitionsRequest {
        topics: names.iter().map(wanted).collect(),
        response_partition_limit: 100,
        ..Default::default()
    };
    let described = client.call(0, &request).topics.into_iter();
    let described: Vec<_> =
        described.map(|row| (row.name.unwrap().to_string(), row.error_code, row.is_internal)).collect();
    assert_eq!(metadata, described, "one answer");
    metadata
}

#[test]
fn internal_topics_are_shown_as_such_and_guarded() {
    let broker = Broker::start();
    let mut client = broker.client();
    let missing = INTERNAL.map(|name| (name.to_owned(), ErrorCode::UnknownTopicOrPartition, true));
    assert_eq!(shown(&mut client, &INTERNAL), missing, "also before they exist");
    assert_eq!(
        shown(&mut client, &["__consumer_offset", TOPIC]).into_iter().map(|row| row.2).collect::<Vec<_>>(),
        [false; 2]
    );

    let topic = |name: &&str| CreatableTopic {
        name: (*name).into(),
        num_partitions: 1,
        replication_factor: -1,
        ..Default::default()
    };
    let request = CreateTopicsRequest { topics: INTERNAL.iter().map(topic).collect(), ..Default::default() };
    assert!(client.call(7, &request).topics.iter().all(|row| row.error_code == ErrorCode::None));
    assert_eq!(shown(&mut client, &INTERNAL), INTERNAL.map(|name| (name.to_owned(), ErrorCode::None, true)));

    let offsets = INTERNAL[0];
    let produce = |client: &mut Client| {
        let correlation_id = client.send_produce(12, -1, offsets, &batch("x"));
        client.receive_produce(12, correlation_id).0
    };
    assert_eq!(produce(&mut client), ErrorCode::InvalidTopicException);
    let id = broker.view.borrow().topic(offsets).unwrap().id;
    let mut by_id = produce_request(-1, "", 0, &batch("x"));
    by_id.topic_data[0].topic_id = id;
    let response = client.call(13, &by_id);
    assert_eq!(response.responses[0].partition_responses[0].error_code, ErrorCode::InvalidTopicException);
    let mut admin = broker.client();
    admin.client_id = "__admin_client";
    assert_eq!(produce(&mut admin), ErrorCode::None, "as Kafka's own tools");

    let delete = |name: &str| DeleteRecordsTopic {
        name: name.into(),
        partitions: vec![DeleteRecordsPartition { partition_index: PartitionIndex(0), offset: Offset(-1) }],
    };
    let request = DeleteRecordsRequest { topics: vec![delete(offsets), delete(TOPIC)], timeout_ms: 10_000 };
    let rows = client.call(2, &request).topics;
    let codes: Vec<_> = rows.iter().map(|row| row.partitions[0].error_code).collect();
    assert_eq!(codes, [ErrorCode::InvalidTopicException, ErrorCode::None]);

    let names = DeleteTopicsRequest { topic_names: vec![offsets.into()], timeout_ms: 10_000, ..Default::default() };
    assert_eq!(client.call(5, &names).responses[0].error_code, ErrorCode::None, "they can be deleted");

    let request = CreateTopicsRequest { topics: vec![topic(&"__cluster_metadata")], ..Default::default() };
    let refused = client.call(7, &request).topics.remove(0);
    assert_eq!(refused.error_code, ErrorCode::InvalidRequest);
    assert!(refused.error_message.unwrap().contains("prohibited"));
}
