//! The table of APIs: everything that is advertised is answered, and what is not is refused in a way that clients grasp.

use kaas_proto::for_each_api;
use kaas_proto::kafka::ErrorCode;
use kaas_proto::kafka::messages::api_versions::ApiVersion;
use kaas_proto::kafka::messages::produce::{PartitionProduceData, TopicProduceData};
use kaas_proto::kafka::messages::*;
use kaas_proto::kafka::{Api, ApiKey, Request, api_key};

use crate::support::{Broker, Client, TOPIC, batch};

/// Version 3 of ApiVersions demands that a client says what it is.
fn named() -> ApiVersionsRequest {
    ApiVersionsRequest { client_software_name: "test".into(), client_software_version: "1".into() }
}

fn ask<R: Request>(client: &mut Client, api: &Api) {
    for version in api.served() {
        let correlation_id = client.send(version, &R::default());
        // A bare Produce request has acks=0, which is answered by silence.
        if api.key != ApiKey::Produce {
            client.receive::<R>(version, correlation_id);
        }
    }
}

macro_rules! ask_all {
    ($($name:ident = $key:literal, $request:ident, $response:ident, $min:literal..=$max:literal, advertised $advertised:literal;)*) => {
        fn ask_by_key(client: &mut Client, api: &Api) {
            match api.key {
                $(ApiKey::$name => ask::<$request>(client, api),)*
            }
        }
    };
}

for_each_api!(ask_all);

#[test]
fn every_advertised_version_has_a_readable_answer() {
    let broker = Broker::start();
    let mut client = broker.client();
    for api in api_key::APIS {
        ask_by_key(&mut client, api);
    }
    for version in api_key::APIS[0].advertised_min_version..=api_key::APIS[0].max_version {
        let correlation_id = client.send_produce(version, -1, TOPIC, &batch("x"));
        let code = client.receive_produce(version, correlation_id).0;
        assert_eq!(code, if version < 3 { ErrorCode::UnsupportedVersion } else { ErrorCode::None }, "{version}");
    }
}

/// D1: a client that does not know our version yet reads this one response with a header that has no tagged fields.
#[test]
fn the_answer_to_api_versions_has_a_plain_header() {
    let broker = Broker::start();
    let mut client = broker.client();
    for version in 0..=4 {
        let correlation_id = client.send(version, &named());
        let frame = client.receive_frame();
        assert_eq!(frame[..4], correlation_id.to_be_bytes(), "{version}");
        assert_eq!(frame[4..6], [0, 0], "the error code of version {version} follows at once");
        // The other flexible responses do have a section of tagged fields there.
        let correlation_id = client.send(12, &MetadataRequest::default());
        let frame = client.receive_frame();
        assert_eq!(frame[..4], correlation_id.to_be_bytes());
        assert_eq!(frame[4..9], [0; 5], "no tagged fields, then a throttle time of zero");
    }
}

/// D5: versions that look too old to matter, and that clients in use depend on.
#[test]
fn versions_that_old_clients_need_are_served() {
    for (key, version) in [
        (ApiKey::JoinGroup, 0),
        (ApiKey::JoinGroup, 1),
        (ApiKey::Metadata, 0),
        (ApiKey::Metadata, 1),
        (ApiKey::OffsetFetch, 1),
        (ApiKey::ListOffsets, 1),
        (ApiKey::OffsetCommit, 2),
        (ApiKey::FindCoordinator, 0),
        (ApiKey::Fetch, 4),
        (ApiKey::Produce, 3),
        (ApiKey::ApiVersions, 0),
    ] {
        assert!(key.api().served().contains(&version), "{key:?} {version}");
    }
}

/// D6: tagged fields of later versions are passed over by their size, in the header and in the message.
#[test]
fn unknown_tagged_fields_are_passed_over() {
    let broker = Broker::start();
    let mut client = broker.client();
    let unknown = [2, 100, 3, 1, 2, 3, 0xe8, 0x07, 0];
    let mut frame: Vec<u8> =
        [&3_i16.to_be_bytes()[..], &12_i16.to_be_bytes(), &7_i32.to_be_bytes(), &[0, 1, b'c']].concat();
    frame.extend(unknown);
    // All topics, by a null list; three flags.
    frame.extend([0, 0, 0]);
    frame.extend(unknown);
    client.send_raw(&u32::try_from(frame.len()).unwrap().to_be_bytes());
    client.send_raw(&frame);
    assert_eq!(client.receive::<MetadataRequest>(12, 7).topics.len(), 2);
}

/// D4: from that range clients conclude whether they may compress.
#[test]
fn api_versions_lists_the_table() {
    let broker = Broker::start();
    let mut client = broker.client();
    let response = client.call(4, &named());
    assert_eq!(response.error_code, ErrorCode::None);
    assert_eq!(response.finalized_features_epoch, -1);
    assert!(response.finalized_features.is_empty() && response.supported_features.is_empty());
    let row = |api: &Api| ApiVersion {
        api_key: api.key.code(),
        min_version: api.advertised_min_version,
        max_version: api.max_version,
    };
    assert_eq!(response.api_keys, api_key::APIS.iter().map(row).collect::<Vec<_>>());
    assert_eq!((response.api_keys[0].api_key, response.api_keys[0].min_version), (0, 0), "Produce from 0");
    let unnamed = client.call(3, &ApiVersionsRequest::default());
    assert_eq!(unnamed.error_code, ErrorCode::InvalidRequest);
}

/// D2: a client that is newer than the broker can read the answer, and asks again on the same connection.
#[test]
fn an_unknown_version_of_api_versions_is_answered_in_version_0() {
    let broker = Broker::start();
    let mut client = broker.client();
    // Key 18, version 99, correlation id 7, and a client id and body in whatever form.
    client.send_raw(&[0, 0, 0, 12, 0, 18, 0, 99, 0, 0, 0, 7, 0xff, 0xff, 1, 2]);
    let response = client.receive::<ApiVersionsRequest>(0, 7);
    assert_eq!(response.error_code, ErrorCode::UnsupportedVersion);
    assert!(response.api_keys.iter().any(|api| api.api_key == 18 && api.max_version == 4));
    assert_eq!(client.call(4, &named()).error_code, ErrorCode::None);
}

/// D3.
#[test]
fn unknown_keys_and_versions_close_the_connection() {
    let broker = Broker::start();
    let header = |key: i16, version: i16| {
        let mut frame = vec![0, 0, 0, 10];
        frame.extend([key.to_be_bytes(), version.to_be_bytes()].concat());
        frame.extend([0, 0, 0, 1, 0xff, 0xff]);
        frame
    };
    for (key, version, reason) in [
        (999, 0, "unknown_api"),
        (-1, 0, "unknown_api"),
        (1, 99, "unsupported_version"),
        (3, -1, "unsupported_version"),
        (17, 1, "sasl"),
    ] {
        let before = broker.counted("kaas_connections_closed_total", reason);
        let mut client = broker.client();
        client.send_raw(&header(key, version));
        client.assert_closed();
        crate::support::eventually(reason, || broker.counted("kaas_connections_closed_total", reason) == before + 1.0);
    }
}

/// What was asked before is answered before the connection ends.
#[test]
fn earlier_requests_are_answered_before_a_connection_is_closed() {
    let broker = Broker::start();
    let mut client = broker.client();
    let correlation_id = client.send(12, &MetadataRequest::default());
    client.send_raw(&[0, 0, 0, 10, 0x7f, 0xff, 0, 0, 0, 0, 0, 1, 0xff, 0xff]);
    client.receive::<MetadataRequest>(12, correlation_id);
    client.assert_closed();
}

#[test]
fn an_unreadable_request_closes_the_connection() {
    let broker = Broker::start();
    let mut client = broker.client();
    let request = ProduceRequest {
        topic_data: vec![TopicProduceData {
            name: TOPIC.into(),
            partition_data: vec![PartitionProduceData::default()],
            ..Default::default()
        }],
        ..Default::default()
    };
    let frame = kaas_proto::kafka::Frame::request(9, 1, None, &request).into_parts().concat();
    // The frame is complete, but its message ends early.
    let cut = frame.len() - 1;
    let length = u32::try_from(cut - 4).unwrap().to_be_bytes();
    client.send_raw(&[&length, &frame[4..cut]].concat());
    client.assert_closed();
    crate::support::eventually("counted", || {
        broker.counted("kaas_connections_closed_total", "unreadable_request") == 1.0
    });
}
