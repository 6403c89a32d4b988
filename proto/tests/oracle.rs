//! Our codec against the `kafka-protocol` crate: every API and version that both know, requests and responses, must come
//! out of either with the same bytes that went in.

#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

mod samples;

use std::ops::RangeInclusive;

use bytes::{Bytes, BytesMut};
use kaas_proto::kafka::Message;
use kaas_proto::kafka::api_key::ApiKey;
use kaas_proto::kafka::messages as ours;
use kafka_protocol::messages as theirs;
use kafka_protocol::protocol::{Decodable, Encodable, Message as TheirMessage};
use samples::random::Random;
use samples::sample;

const SEEDS: u64 = 40;

/// What we serve and the crate does not know; `golden.rs` spells out bytes for each.
const UNKNOWN_TO_THE_ORACLE: &[(ApiKey, RangeInclusive<i16>, &str)] = &[
    (ApiKey::ListOffsets, 11..=11, "KIP-1023, Kafka 4.2"),
    (ApiKey::OffsetCommit, 10..=10, "KIP-848 topic ids, stable since Kafka 4.2"),
    (ApiKey::OffsetFetch, 10..=10, "KIP-848 topic ids, stable since Kafka 4.2"),
    (ApiKey::DescribeLogDirs, 5..=5, "KIP-1066 cordoned directories, Kafka 4.3"),
];

fn compare<Ours, Theirs>(version: i16, seed: u64)
where
    Ours: Message + PartialEq + std::fmt::Debug,
    Theirs: Encodable + Decodable,
{
    let name = Ours::STRUCTURE.name;
    let flexible = Ours::FLEXIBLE.contains(version);
    let bytes = Bytes::from(sample(Ours::STRUCTURE, version, flexible, &mut Random::new(seed)));
    let case = format!("{name} version {version} seed {seed}: {bytes:02x?}");

    let message = Ours::decode(bytes.clone(), version).unwrap_or_else(|error| panic!("{error}, {case}"));
    let our_bytes = message.encode_joined(version);
    assert_eq!(our_bytes, bytes, "ours, {case}");

    let mut rest = our_bytes.clone();
    let their_message = Theirs::decode(&mut rest, version).unwrap_or_else(|error| panic!("{error}, {case}"));
    assert!(rest.is_empty(), "{} bytes left by the oracle, {case}", rest.len());
    let mut their_bytes = BytesMut::new();
    their_message.encode(&mut their_bytes, version).unwrap_or_else(|error| panic!("{error}, {case}"));
    let their_bytes = their_bytes.freeze();
    assert_eq!(their_bytes, our_bytes, "theirs, {case}");

    assert_eq!(Ours::decode(their_bytes, version).unwrap(), message, "{case}");
}

macro_rules! compare_all {
    ($($name:ident = $key:literal, $request:ident, $response:ident, $min:literal..=$max:literal, advertised $_a:literal;)*) => {
        $(
            #[allow(non_snake_case, reason = "tests are named for their API")]
            mod $name {
                #[test]
                fn same_bytes_both_ways() {
                    use super::*;
                    let api = ApiKey::$name.api();
                    let known = <theirs::$request as TheirMessage>::VERSIONS;
                    for version in api.served() {
                        let excused = UNKNOWN_TO_THE_ORACLE
                            .iter()
                            .any(|(key, versions, _)| *key == api.key && versions.contains(&version));
                        let is_known = (known.min..=known.max).contains(&version);
                        assert_ne!(is_known, excused, "{} version {version}", api.name);
                        if is_known {
                            for seed in 0..SEEDS {
                                compare::<ours::$request, theirs::$request>(version, seed);
                                compare::<ours::$response, theirs::$response>(version, seed);
                            }
                        }
                    }
                }
            }
        )*
    };
}

kaas_proto::for_each_api!(compare_all);

#[test]
fn headers_are_the_same() {
    use kaas_proto::kafka::writer::Writer;
    use kaas_proto::kafka::{RequestFrame, RequestHeader, ResponseHeader};
    use kafka_protocol::protocol::StrBytes;

    for api in kaas_proto::kafka::api_key::APIS {
        for version in api.served() {
            let flexible = api.flexible(version);
            let header = RequestHeader {
                request_api_key: api.key.code(),
                request_api_version: version,
                correlation_id: 0x0102_0304,
                client_id: Some("client".into()),
            };
            let mut writer = Writer::new(0, false);
            header.write(&mut writer, flexible);
            let bytes = writer.into_joined();

            let key = theirs::ApiKey::try_from(api.key.code()).unwrap();
            let their_header = theirs::RequestHeader::default()
                .with_request_api_key(api.key.code())
                .with_request_api_version(version)
                .with_correlation_id(0x0102_0304)
                .with_client_id(Some(StrBytes::from_static_str("client")));
            let mut their_bytes = BytesMut::new();
            their_header.encode(&mut their_bytes, key.request_header_version(version)).unwrap();
            assert_eq!(bytes, their_bytes, "{} version {version}", api.name);

            let frame = RequestFrame::parse(bytes).unwrap();
            assert_eq!((frame.api.key, frame.version, frame.correlation_id), (api.key, version, 0x0102_0304));
            assert_eq!(frame.client_id.as_deref(), Some("client"));
            assert!(frame.body.is_empty());

            let mut writer = Writer::new(0, false);
            ResponseHeader { correlation_id: 7 }.write(&mut writer, api.flexible_response_header(version));
            let mut their_bytes = BytesMut::new();
            let their_header = theirs::ResponseHeader::default().with_correlation_id(7);
            their_header.encode(&mut their_bytes, key.response_header_version(version)).unwrap();
            assert_eq!(writer.into_joined(), their_bytes, "{} version {version}", api.name);
        }
    }
}
