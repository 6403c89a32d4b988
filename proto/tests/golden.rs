//! Messages spelled out byte by byte, each read and written. Those that clients meet first, and the versions that the
//! oracle of `oracle.rs` does not know.

#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

use std::fmt::Debug;

use bytes::Bytes;
use kaas_proto::kafka::api_key::ApiKey;
use kaas_proto::kafka::frame::decode_response;
use kaas_proto::kafka::messages::*;
use kaas_proto::kafka::{ErrorCode, Frame, FrameError, Message, Records, RequestFrame};
use kaas_proto::types::{
    BrokerId, GenerationId, LeaderEpoch, Offset, PartitionIndex, ProducerId, TimestampMs, TopicId,
};

#[track_caller]
fn golden<M: Message + PartialEq + Debug>(version: i16, message: &M, bytes: &[&[u8]]) {
    let bytes = bytes.concat();
    let written = message.encode_joined(version);
    assert_eq!(written, bytes, "written:  {written:02x?}\nexpected: {bytes:02x?}");
    assert_eq!(&M::decode(bytes.into(), version).unwrap(), message);
}

const TOPIC_ID: TopicId = TopicId(*b"0123456789abcdef");

#[test]
fn api_versions_request_3_in_its_frame() {
    let request = ApiVersionsRequest { client_software_name: "kcat".into(), client_software_version: "1.7".into() };
    let expected = [
        &[0, 0, 0, 26][..], // bytes that follow
        &[0, 18],           // API key
        &[0, 3],            // version
        &[0, 0, 0, 7],      // correlation id
        &[0, 5],            // client id: two bytes of length even in header version 2
        b"rdkaf",           //
        &[0],               // no tagged fields in the header
        &[5],               // compact string: length + 1
        b"kcat",            //
        &[4],               //
        b"1.7",             //
        &[0],               // no tagged fields
    ]
    .concat();
    let frame = Frame::request(3, 7, Some("rdkaf".into()), &request);
    assert_eq!(frame.len(), expected.len());
    let bytes = frame.into_parts().concat();
    assert_eq!(bytes, expected);

    let frame = RequestFrame::parse(Bytes::from(bytes).slice(4..)).unwrap();
    assert_eq!((frame.api.key, frame.version, frame.correlation_id), (ApiKey::ApiVersions, 3, 7));
    assert_eq!(frame.client_id.as_deref(), Some("rdkaf"));
    assert_eq!(frame.decode::<ApiVersionsRequest>().unwrap(), request);
}

#[test]
fn api_versions_response_3_has_a_header_of_version_0() {
    let keys = vec![api_versions::ApiVersion { api_key: 18, min_version: 0, max_version: 4 }];
    let feature = api_versions::FinalizedFeatureKey {
        name: "transaction.version".into(),
        max_version_level: 2,
        min_version_level: 1,
    };
    let response = ApiVersionsResponse {
        api_keys: keys,
        finalized_features_epoch: 5,
        finalized_features: vec![feature],
        ..Default::default()
    };
    let expected = [
        &[0, 0, 0, 57][..],     // bytes that follow
        &[0, 0, 0, 7],          // correlation id, and no tagged fields behind it although the body is flexible
        &[0, 0],                // no error
        &[2],                   // one API: count + 1
        &[0, 18, 0, 0, 0, 4],   // key, first and last version
        &[0],                   // no tagged fields of it
        &[0, 0, 0, 0],          // throttle time
        &[2],                   // two tagged fields: supported features are empty and left out
        &[1, 8],                // tag 1, eight bytes
        &5_i64.to_be_bytes(),   // epoch of the finalized features
        &[2, 26],               // tag 2, 26 bytes
        &[2],                   // one feature
        &[20],                  //
        b"transaction.version", //
        &[0, 2, 0, 1, 0],       // levels, no tagged fields of it
    ]
    .concat();
    let frame = Frame::response(ApiKey::ApiVersions.api(), 3, 7, &response);
    assert_eq!(frame.len(), expected.len());
    let bytes = frame.into_parts().concat();
    assert_eq!(bytes, expected);
    assert_eq!(decode_response::<ApiVersionsRequest>(3, Bytes::from(bytes).slice(4..)), Ok((7, response)));
}

#[test]
fn api_versions_response_0_answers_versions_that_we_do_not_know() {
    let response = ApiVersionsResponse {
        error_code: ErrorCode::UnsupportedVersion,
        api_keys: vec![api_versions::ApiVersion { api_key: 18, min_version: 0, max_version: 4 }],
        ..Default::default()
    };
    golden(0, &response, &[&[0, 35], &[0, 0, 0, 1], &[0, 18, 0, 0, 0, 4]]);
    let frame = Bytes::from_static(&[0, 18, 0, 99, 0, 0, 0, 7, 1, 2, 3]);
    let error = RequestFrame::parse(frame).unwrap_err();
    assert_eq!(
        error,
        FrameError::UnsupportedVersion { api: ApiKey::ApiVersions.api(), version: 99, correlation_id: 7 }
    );
    let frame = Bytes::from_static(&[0x7f, 18, 0, 99, 0, 0, 0, 7]);
    let error = RequestFrame::parse(frame).unwrap_err();
    assert_eq!(error, FrameError::UnknownApi { key: 0x7f12, version: 99, correlation_id: 7 });
}

#[test]
fn metadata_request_tells_all_from_none() {
    let none = MetadataRequest { topics: Some(vec![]), ..Default::default() };
    golden(0, &none, &[&[0, 0, 0, 0]]);
    golden(1, &none, &[&[0, 0, 0, 0]]);
    let all = MetadataRequest { topics: None, ..Default::default() };
    golden(1, &all, &[&[0xff; 4]]);
    let all = MetadataRequest { allow_auto_topic_creation: false, ..all };
    golden(12, &all, &[&[0], &[0], &[0], &[0]]); // null, no creation, no operations, no tagged fields

    let by_id = metadata::MetadataRequestTopic { topic_id: TOPIC_ID, name: None };
    let request = MetadataRequest { topics: Some(vec![by_id]), ..Default::default() };
    golden(12, &request, &[&[2], b"0123456789abcdef", &[0], &[0], &[1], &[0], &[0]]);
}

#[test]
fn metadata_response_12() {
    let broker = metadata::MetadataResponseBroker { node_id: BrokerId(1), host: "h".into(), port: 9092, rack: None };
    let partition = metadata::MetadataResponsePartition {
        partition_index: PartitionIndex(3),
        leader_id: BrokerId(1),
        leader_epoch: LeaderEpoch(5),
        replica_nodes: vec![BrokerId(1)],
        isr_nodes: vec![BrokerId(1)],
        ..Default::default()
    };
    let topic = metadata::MetadataResponseTopic {
        name: Some("t".into()),
        topic_id: TOPIC_ID,
        partitions: vec![partition],
        ..Default::default()
    };
    let response = MetadataResponse {
        brokers: vec![broker],
        cluster_id: Some("c".into()),
        controller_id: BrokerId(1),
        topics: vec![topic],
        ..Default::default()
    };
    golden(
        12,
        &response,
        &[
            &[0, 0, 0, 0],       // throttle time
            &[2],                // one broker
            &[0, 0, 0, 1],       // its id
            &[2, b'h'],          // host
            &[0, 0, 0x23, 0x84], // port
            &[0],                // rack null
            &[0],                // no tagged fields
            &[2, b'c'],          // cluster id
            &[0, 0, 0, 1],       // controller
            &[2],                // one topic
            &[0, 0],             // no error
            &[2, b't'],          // name
            b"0123456789abcdef", // topic id
            &[0],                // not internal
            &[2],                // one partition
            &[0, 0],             // no error
            &[0, 0, 0, 3],       // index
            &[0, 0, 0, 1],       // leader
            &[0, 0, 0, 5],       // leader epoch
            &[2, 0, 0, 0, 1],    // replicas
            &[2, 0, 0, 0, 1],    // in sync
            &[1],                // offline
            &[0],                // no tagged fields of the partition
            &[0x80, 0, 0, 0],    // operations of the topic: not asked for
            &[0],                // no tagged fields of the topic
            &[0],                // no tagged fields
        ],
    );
}

#[test]
fn produce_request_by_name_and_by_id() {
    let partition =
        produce::PartitionProduceData { index: PartitionIndex(2), records: Bytes::from_static(b"batch").into() };
    let topic =
        produce::TopicProduceData { name: "t".into(), topic_id: TopicId::ZERO, partition_data: vec![partition] };
    let by_name =
        ProduceRequest { transactional_id: None, acks: -1, timeout_ms: 1500, topic_data: vec![topic.clone()] };
    let acks_and_timeout: &[u8] = &[0xff, 0xff, 0, 0, 0x05, 0xdc];
    golden(
        3,
        &by_name,
        &[
            &[0xff, 0xff], // transactional id null
            acks_and_timeout,
            &[0, 0, 0, 1], // one topic
            &[0, 1, b't'], // name
            &[0, 0, 0, 1], // one partition
            &[0, 0, 0, 2], // index
            &[0, 0, 0, 5], // bytes of records
            b"batch",
        ],
    );
    let topic = produce::TopicProduceData { name: "".into(), topic_id: TOPIC_ID, ..topic };
    let by_id = ProduceRequest { topic_data: vec![topic], ..by_name };
    golden(
        13,
        &by_id,
        &[
            &[0], // transactional id null
            acks_and_timeout,
            &[2],                // one topic
            b"0123456789abcdef", // its id
            &[2],                // one partition
            &[0, 0, 0, 2],       // index
            &[6],                // bytes of records + 1
            b"batch",
            &[0, 0, 0], // no tagged fields of partition, topic, request
        ],
    );
}

#[test]
fn produce_response_10_names_the_new_leader_in_tagged_fields() {
    let partition = produce::PartitionProduceResponse {
        index: PartitionIndex(2),
        error_code: ErrorCode::NotLeaderOrFollower,
        base_offset: Offset(-1),
        current_leader: produce::LeaderIdAndEpoch { leader_id: BrokerId(3), leader_epoch: LeaderEpoch(9) },
        ..Default::default()
    };
    let topic =
        produce::TopicProduceResponse { name: "t".into(), partition_responses: vec![partition], ..Default::default() };
    let endpoint = produce::NodeEndpoint { node_id: BrokerId(3), host: "h".into(), port: 9092, rack: None };
    let response = ProduceResponse { responses: vec![topic], node_endpoints: vec![endpoint], ..Default::default() };
    golden(
        10,
        &response,
        &[
            &[2, 2, b't', 2],                   // one topic, its name, one partition
            &[0, 0, 0, 2],                      // index
            &[0, 6],                            // NOT_LEADER_OR_FOLLOWER
            &[0xff; 8],                         // base offset
            &[0xff; 8],                         // append time
            &[0xff; 8],                         // log start offset
            &[1],                               // no record errors
            &[0],                               // no error message
            &[1],                               // one tagged field of the partition
            &[0, 9],                            // tag 0, nine bytes
            &[0, 0, 0, 3, 0, 0, 0, 9, 0],       // leader, its epoch, no tagged fields
            &[0],                               // no tagged fields of the topic
            &[0, 0, 0, 0],                      // throttle time
            &[1],                               // one tagged field of the response
            &[0, 13],                           // tag 0, 13 bytes
            &[2, 0, 0, 0, 3],                   // one node, its id
            &[2, b'h', 0, 0, 0x23, 0x84, 0, 0], // host, port, rack null, no tagged fields
        ],
    );
}

#[test]
fn fetch_response_13_goes_out_in_parts() {
    let (first, second) = (Bytes::from_static(b"first batch"), Bytes::from_static(b"second"));
    let partition = |index, records: Records| fetch::PartitionData {
        partition_index: PartitionIndex(index),
        high_watermark: Offset(10),
        last_stable_offset: Offset(10),
        log_start_offset: Offset(0),
        records,
        ..Default::default()
    };
    let partitions = vec![partition(0, vec![first.clone(), second.clone()].into()), partition(1, Records::default())];
    let topic = fetch::FetchableTopicResponse { topic_id: TOPIC_ID, partitions, ..Default::default() };
    let response = FetchResponse { session_id: 77, responses: vec![topic], ..Default::default() };

    let head: &[&[u8]] = &[
        &[0, 0, 0, 126],            // bytes that follow, in all parts
        &[0, 0, 0, 7, 0],           // correlation id, no tagged fields
        &[0, 0, 0, 0],              // throttle time
        &[0, 0],                    // no error
        &[0, 0, 0, 77],             // session id
        &[2],                       // one topic
        b"0123456789abcdef",        // its id
        &[3],                       // two partitions
        &[0, 0, 0, 0],              // index
        &[0, 0],                    // no error
        &[0, 0, 0, 0, 0, 0, 0, 10], // high watermark
        &[0, 0, 0, 0, 0, 0, 0, 10], // last stable offset
        &[0; 8],                    // log start offset
        &[0],                       // aborted transactions null
        &[0xff; 4],                 // no preferred replica
        &[18],                      // 17 bytes of records
    ];
    let tail: &[&[u8]] = &[
        &[0],                       // no tagged fields of the first partition
        &[0, 0, 0, 1],              // index
        &[0, 0],                    // no error
        &[0, 0, 0, 0, 0, 0, 0, 10], // high watermark
        &[0, 0, 0, 0, 0, 0, 0, 10], // last stable offset
        &[0; 8],                    // log start offset
        &[0],                       // aborted transactions null
        &[0xff; 4],                 // no preferred replica
        &[1],                       // no records are empty, never null
        &[0, 0, 0],                 // no tagged fields of partition, topic, response
    ];
    let frame = Frame::response(ApiKey::Fetch.api(), 13, 7, &response);
    let parts = frame.parts();
    assert_eq!(parts.len(), 4);
    assert_eq!(parts[0], head.concat());
    assert_eq!((parts[1].as_ptr(), parts[1].len()), (first.as_ptr(), first.len()), "records are not copied");
    assert_eq!((parts[2].as_ptr(), parts[2].len()), (second.as_ptr(), second.len()));
    assert_eq!(parts[3], tail.concat());
    assert_eq!(frame.len(), parts.iter().map(Bytes::len).sum::<usize>());

    let joined = Bytes::from(frame.into_parts().concat());
    let (correlation_id, read) = decode_response::<FetchRequest>(13, joined.slice(4..)).unwrap();
    assert_eq!((correlation_id, &read), (7, &response));
    let records = read.responses[0].partitions[0].records.clone().into_bytes();
    assert!(joined.as_ptr_range().contains(&records.as_ptr()), "records are a slice of the frame");
}

#[test]
fn fetch_request_4_and_17() {
    let partition = fetch::FetchPartition {
        partition: PartitionIndex(1),
        fetch_offset: Offset(5),
        partition_max_bytes: 0x10_0000,
        ..Default::default()
    };
    let topic = fetch::FetchTopic { topic: "t".into(), topic_id: TopicId::ZERO, partitions: vec![partition] };
    let request = FetchRequest {
        max_wait_ms: 500,
        min_bytes: 1,
        max_bytes: 0x320_0000,
        isolation_level: 1,
        topics: vec![topic.clone()],
        ..Default::default()
    };
    let limits: &[u8] = &[0, 0, 1, 0xf4, 0, 0, 0, 1, 3, 0x20, 0, 0, 1]; // wait, min bytes, max bytes, isolation level
    golden(
        4,
        &request,
        &[
            &[0xff; 4], // replica id
            limits,
            &[0, 0, 0, 1, 0, 1, b't', 0, 0, 0, 1], // one topic, its name, one partition
            &[0, 0, 0, 1],                         // index
            &5_i64.to_be_bytes(),                  // offset
            &[0, 0x10, 0, 0],                      // max bytes of the partition
        ],
    );
    let topic = fetch::FetchTopic { topic: "".into(), topic_id: TOPIC_ID, ..topic };
    let request = FetchRequest { topics: vec![topic], rack_id: "r".into(), ..request };
    golden(
        17,
        &request,
        &[
            limits,
            &[0; 4],              // session id
            &[0xff; 4],           // session epoch
            &[2],                 // one topic
            b"0123456789abcdef",  //
            &[2],                 // one partition
            &[0, 0, 0, 1],        // index
            &[0xff; 4],           // current leader epoch
            &5_i64.to_be_bytes(), // offset
            &[0xff; 4],           // last fetched epoch
            &[0xff; 8],           // log start offset
            &[0, 0x10, 0, 0],     // max bytes of the partition
            &[0, 0],              // no tagged fields of partition, topic
            &[1],                 // nothing forgotten
            &[2, b'r'],           // rack
            &[0],                 // no tagged fields: no cluster id, and the replica state is the default
        ],
    );
}

#[test]
fn join_group_request_0_and_9() {
    let protocol = join_group::JoinGroupRequestProtocol { name: "range".into(), metadata: Bytes::from_static(b"xy") };
    let request = JoinGroupRequest {
        group_id: "g".into(),
        session_timeout_ms: 10_000,
        protocol_type: "consumer".into(),
        protocols: vec![protocol],
        ..Default::default()
    };
    golden(
        0,
        &request,
        &[
            &[0, 1, b'g'],
            &[0, 0, 0x27, 0x10], // session timeout, which is the rebalance timeout too in this version
            &[0, 0],             // no member id yet
            &[0, 8],
            b"consumer",
            &[0, 0, 0, 1], // one protocol
            &[0, 5],
            b"range",
            &[0, 0, 0, 2, b'x', b'y'],
        ],
    );
    let request = JoinGroupRequest { rebalance_timeout_ms: 1, reason: Some("why".into()), ..request };
    golden(
        9,
        &request,
        &[
            &[2, b'g'],
            &[0, 0, 0x27, 0x10], // session timeout
            &[0, 0, 0, 1],       // rebalance timeout
            &[1],                // no member id yet
            &[0],                // instance id null
            &[9],
            b"consumer",
            &[2], // one protocol
            &[6],
            b"range",
            &[3, b'x', b'y'],
            &[0], // no tagged fields of it
            &[4],
            b"why",
            &[0], // no tagged fields
        ],
    );
}

#[test]
fn join_group_response_9() {
    let member = join_group::JoinGroupResponseMember {
        member_id: "m".into(),
        group_instance_id: None,
        metadata: Bytes::from_static(b"xy"),
    };
    let response = JoinGroupResponse {
        generation_id: GenerationId(4),
        protocol_type: Some("consumer".into()),
        protocol_name: Some("range".into()),
        leader: "m".into(),
        member_id: "m".into(),
        members: vec![member],
        ..Default::default()
    };
    golden(
        9,
        &response,
        &[
            &[0, 0, 0, 0], // throttle time
            &[0, 0],       // no error
            &[0, 0, 0, 4], // generation
            &[9],
            b"consumer",
            &[6],
            b"range",
            &[2, b'm'],                   // leader
            &[0],                         // do not skip the assignment
            &[2, b'm'],                   // this member
            &[2],                         // one member
            &[2, b'm', 0, 3, b'x', b'y'], // its id, instance id null, metadata
            &[0, 0],                      // no tagged fields of it, and of the response
        ],
    );
    // Null where there is no null yet: written as empty.
    let error = JoinGroupResponse { protocol_name: None, ..Default::default() };
    let expected: &[u8] = &[0, 0, 0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    assert_eq!(error.encode_joined(0), expected);
}

#[test]
fn list_offsets_11() {
    let partition = list_offsets::ListOffsetsPartition {
        partition_index: PartitionIndex(1),
        timestamp: TimestampMs(-6),
        ..Default::default()
    };
    let topics = vec![list_offsets::ListOffsetsTopic { name: "t".into(), partitions: vec![partition] }];
    let request = ListOffsetsRequest { replica_id: BrokerId(-1), isolation_level: 1, topics, timeout_ms: 30 };
    golden(
        11,
        &request,
        &[
            &[0xff, 0xff, 0xff, 0xff, 1], // replica id, isolation level
            &[2, 2, b't', 2],             // one topic, its name, one partition
            &[0, 0, 0, 1],                // index
            &[0xff; 4],                   // current leader epoch
            &(-6_i64).to_be_bytes(),      // timestamp
            &[0, 0],                      // no tagged fields of partition, topic
            &[0, 0, 0, 30, 0],            // timeout, no tagged fields
        ],
    );
    let partition = list_offsets::ListOffsetsPartitionResponse {
        partition_index: PartitionIndex(1),
        offset: Offset(8),
        leader_epoch: LeaderEpoch(2),
        ..Default::default()
    };
    let topics = vec![list_offsets::ListOffsetsTopicResponse { name: "t".into(), partitions: vec![partition] }];
    golden(
        11,
        &ListOffsetsResponse { throttle_time_ms: 0, topics },
        &[
            &[0, 0, 0, 0, 2, 2, b't', 2], // throttle time, one topic, its name, one partition
            &[0, 0, 0, 1, 0, 0],          // index, no error
            &[0xff; 8],                   // timestamp
            &8_i64.to_be_bytes(),         // offset
            &[0, 0, 0, 2],                // leader epoch
            &[0, 0, 0],                   // no tagged fields
        ],
    );
}

#[test]
fn offset_commit_10_goes_by_topic_id() {
    let partition = offset_commit::OffsetCommitRequestPartition {
        partition_index: PartitionIndex(1),
        committed_offset: Offset(8),
        committed_leader_epoch: LeaderEpoch(2),
        committed_metadata: Some("m".into()),
    };
    let topic = offset_commit::OffsetCommitRequestTopic {
        topic_id: TOPIC_ID,
        partitions: vec![partition],
        ..Default::default()
    };
    let request = OffsetCommitRequest {
        group_id: "g".into(),
        generation_id_or_member_epoch: GenerationId(3),
        member_id: "x".into(),
        topics: vec![topic],
        ..Default::default()
    };
    golden(
        10,
        &request,
        &[
            &[2, b'g', 0, 0, 0, 3, 2, b'x', 0], // group, generation, member, instance id null
            &[2],                               // one topic
            b"0123456789abcdef",                //
            &[2, 0, 0, 0, 1],                   // one partition, its index
            &8_i64.to_be_bytes(),               // offset
            &[0, 0, 0, 2],                      // leader epoch
            &[2, b'm'],                         // metadata
            &[0, 0, 0],                         // no tagged fields
        ],
    );
    let partition = offset_commit::OffsetCommitResponsePartition {
        partition_index: PartitionIndex(1),
        error_code: ErrorCode::UnknownTopicId,
    };
    let topic = offset_commit::OffsetCommitResponseTopic {
        topic_id: TOPIC_ID,
        partitions: vec![partition],
        ..Default::default()
    };
    golden(
        10,
        &OffsetCommitResponse { throttle_time_ms: 0, topics: vec![topic] },
        &[
            &[0, 0, 0, 0, 2],         // throttle time, one topic
            b"0123456789abcdef",      //
            &[2, 0, 0, 0, 1, 0, 100], // one partition, its index, UNKNOWN_TOPIC_ID
            &[0, 0, 0],               // no tagged fields
        ],
    );
}

#[test]
fn offset_fetch_10_goes_by_topic_id() {
    let topic = offset_fetch::OffsetFetchRequestTopics {
        topic_id: TOPIC_ID,
        partition_indexes: vec![PartitionIndex(1)],
        ..Default::default()
    };
    let group =
        offset_fetch::OffsetFetchRequestGroup { group_id: "g".into(), topics: Some(vec![topic]), ..Default::default() };
    let request = OffsetFetchRequest { groups: vec![group], require_stable: true, ..Default::default() };
    golden(
        10,
        &request,
        &[
            &[2, 2, b'g', 0],    // one group, its id, member id null
            &[0xff; 4],          // member epoch
            &[2],                // one topic
            b"0123456789abcdef", //
            &[2, 0, 0, 0, 1],    // one partition
            &[0, 0],             // no tagged fields of topic, group
            &[1, 0],             // require stable, no tagged fields
        ],
    );
    let partition = offset_fetch::OffsetFetchResponsePartitions {
        partition_index: PartitionIndex(1),
        committed_offset: Offset(-1),
        metadata: Some("".into()),
        ..Default::default()
    };
    let topic = offset_fetch::OffsetFetchResponseTopics {
        topic_id: TOPIC_ID,
        partitions: vec![partition],
        ..Default::default()
    };
    let group = offset_fetch::OffsetFetchResponseGroup {
        group_id: "g".into(),
        topics: vec![topic],
        error_code: ErrorCode::None,
    };
    golden(
        10,
        &OffsetFetchResponse { groups: vec![group], ..Default::default() },
        &[
            &[0, 0, 0, 0, 2, 2, b'g', 2], // throttle time, one group, its id, one topic
            b"0123456789abcdef",          //
            &[2, 0, 0, 0, 1],             // one partition, its index
            &[0xff; 8],                   // no offset
            &[0xff; 4],                   // no leader epoch
            &[1, 0, 0, 0, 0],             // metadata, no error, no tagged fields of partition, topic
            &[0, 0, 0, 0],                // no error of the group, no tagged fields of group, response
        ],
    );
}

#[test]
fn describe_log_dirs_5() {
    let topic = describe_log_dirs::DescribableLogDirTopic { topic: "t".into(), partitions: vec![PartitionIndex(1)] };
    golden(5, &DescribeLogDirsRequest { topics: Some(vec![topic]) }, &[&[2, 2, b't', 2, 0, 0, 0, 1, 0, 0]]);
    golden(5, &DescribeLogDirsRequest { topics: None }, &[&[0, 0]]);
    let partition = describe_log_dirs::DescribeLogDirsPartition {
        partition_index: PartitionIndex(1),
        partition_size: 9,
        ..Default::default()
    };
    let directory = describe_log_dirs::DescribeLogDirsResult {
        log_dir: "/d".into(),
        topics: vec![describe_log_dirs::DescribeLogDirsTopic { name: "t".into(), partitions: vec![partition] }],
        total_bytes: 8,
        usable_bytes: 4,
        is_cordoned: true,
        ..Default::default()
    };
    golden(
        5,
        &DescribeLogDirsResponse { results: vec![directory], ..Default::default() },
        &[
            &[0, 0, 0, 0, 0, 0, 2],       // throttle time, no error, one directory
            &[0, 0, 3, b'/', b'd'],       // no error, its path
            &[2, 2, b't', 2, 0, 0, 0, 1], // one topic, its name, one partition, its index
            &9_i64.to_be_bytes(),         // size
            &[0; 8],                      // lag
            &[0, 0, 0],                   // not a future one, no tagged fields of partition, topic
            &8_i64.to_be_bytes(),         // bytes of the volume
            &4_i64.to_be_bytes(),         // bytes that are left
            &[1, 0, 0],                   // cordoned, no tagged fields of directory, response
        ],
    );
}

#[test]
fn an_aborted_transaction_is_listed_in_fetch_4() {
    let aborted = fetch::AbortedTransaction { producer_id: ProducerId(6), first_offset: Offset(2) };
    let partition = fetch::PartitionData {
        high_watermark: Offset(9),
        last_stable_offset: Offset(7),
        aborted_transactions: Some(vec![aborted]),
        ..Default::default()
    };
    let topic = fetch::FetchableTopicResponse { topic: "t".into(), partitions: vec![partition], ..Default::default() };
    golden(
        4,
        &FetchResponse { responses: vec![topic], ..Default::default() },
        &[
            &[0, 0, 0, 0],                         // throttle time
            &[0, 0, 0, 1, 0, 1, b't', 0, 0, 0, 1], // one topic, its name, one partition
            &[0, 0, 0, 0, 0, 0],                   // index, no error
            &9_i64.to_be_bytes(),                  // high watermark
            &7_i64.to_be_bytes(),                  // last stable offset
            &[0, 0, 0, 1],                         // one aborted transaction
            &6_i64.to_be_bytes(),                  // its producer
            &2_i64.to_be_bytes(),                  // its first offset
            &[0, 0, 0, 0],                         // no records
        ],
    );
}
