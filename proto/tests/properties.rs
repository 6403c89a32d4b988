//! What may come over the wire: valid messages with fields of the future, messages cut anywhere, flipped bits, noise.
//! Never a panic, always the whole message or a typed error.

#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

mod samples;

use bytes::Bytes;
use kaas_proto::kafka::messages::*;
use kaas_proto::kafka::schema::Structure;
use kaas_proto::kafka::{DecodeCause, DecodeError, Message, RequestFrame};
use proptest::prelude::*;
use samples::random::Random;
use samples::sample;

/// A message in one of its versions, its type forgotten.
#[derive(Clone, Copy, Debug)]
struct Case {
    structure: &'static Structure,
    version: i16,
    flexible: bool,
    /// Reads the bytes and writes what was read.
    recode: fn(Bytes, i16) -> Result<Bytes, DecodeError>,
}

fn recode<M: Message>(bytes: Bytes, version: i16) -> Result<Bytes, DecodeError> {
    M::decode(bytes, version).map(|message| message.encode_joined(version))
}

fn cases_of<M: Message>(cases: &mut Vec<Case>) {
    for version in M::VERSIONS.min..=M::VERSIONS.max {
        let flexible = M::FLEXIBLE.contains(version);
        cases.push(Case { structure: M::STRUCTURE, version, flexible, recode: recode::<M> });
    }
}

macro_rules! all_cases {
    ($($name:ident = $key:literal, $request:ident, $response:ident, $min:literal..=$max:literal, advertised $_a:literal;)*) => {
        fn cases() -> Vec<Case> {
            let mut cases = Vec::new();
            $(
                cases_of::<$request>(&mut cases);
                cases_of::<$response>(&mut cases);
            )*
            cases
        }
    };
}

kaas_proto::for_each_api!(all_cases);

fn any_case() -> impl Strategy<Value = Case> {
    proptest::sample::select(cases())
}

impl Case {
    fn sample(&self, seed: u64) -> Vec<u8> {
        sample(self.structure, self.version, self.flexible, &mut Random::new(seed))
    }

    fn recode(&self, bytes: Vec<u8>) -> Result<Bytes, DecodeError> {
        (self.recode)(bytes.into(), self.version)
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    #[test]
    fn a_message_comes_out_as_it_went_in(case in any_case(), seed: u64) {
        let bytes = case.sample(seed);
        prop_assert_eq!(case.recode(bytes.clone()), Ok(bytes.into()));
    }

    #[test]
    fn noise_is_a_message_or_an_error(case in any_case(), noise: Vec<u8>) {
        // What the bytes mean may be written shorter, but must mean the same.
        if let Ok(bytes) = case.recode(noise) {
            prop_assert_eq!((case.recode)(bytes.clone(), case.version), Ok(bytes));
        }
    }

    #[test]
    fn a_flipped_bit_is_a_message_or_an_error(case in any_case(), seed: u64, position: prop::sample::Index, bit in 0_u8..8) {
        let mut bytes = case.sample(seed);
        prop_assume!(!bytes.is_empty());
        let position = position.index(bytes.len());
        bytes[position] ^= 1_u8 << bit;
        if let Ok(bytes) = case.recode(bytes) {
            prop_assert_eq!((case.recode)(bytes.clone(), case.version), Ok(bytes));
        }
    }

    #[test]
    fn frames_of_noise_are_refused_or_dispatched(noise: Vec<u8>) {
        let _ = RequestFrame::parse(noise.into());
    }

    #[test]
    fn headers_with_noise_behind_the_key_are_refused_or_dispatched(key in 0_i16..80, version in 0_i16..20, noise: Vec<u8>) {
        let frame = [&key.to_be_bytes()[..], &version.to_be_bytes(), &noise].concat();
        let _ = RequestFrame::parse(frame.into());
    }
}

#[test]
fn every_message_cut_anywhere_is_an_error() {
    for case in cases() {
        for seed in 0..4 {
            let bytes = case.sample(seed);
            for length in 0..bytes.len() {
                let error = case.recode(bytes[..length].to_vec()).unwrap_err();
                assert!(matches!(error.cause, DecodeCause::TooShort { .. }), "{case:?} seed {seed}: {error}");
                assert!(!error.structure.is_empty() && error.offset <= length, "{error}");
            }
        }
    }
}

#[test]
fn every_message_with_a_byte_too_many_is_an_error() {
    for case in cases() {
        let bytes = [&case.sample(1)[..], &[0]].concat();
        let error = case.recode(bytes).unwrap_err();
        assert_eq!(error.cause, DecodeCause::LeftOver(1), "{case:?}");
    }
}

#[test]
fn tagged_fields_of_the_future_are_passed_over_by_their_size() {
    for case in cases().into_iter().filter(|case| case.flexible) {
        let bytes = case.sample(3);
        // The last byte of these is the count of tagged fields, when there are none of the message itself.
        if bytes.last() != Some(&0) || case.structure.fields.iter().any(|field| field.tag.is_some()) {
            continue;
        }
        let body = &bytes[..bytes.len() - 1];
        let future = [body, &[2], &[100, 3, 1, 2, 3], &[0xe4, 0x01, 0]].concat();
        assert_eq!(case.recode(future).unwrap(), bytes, "{case:?}");
        let too_long = [body, &[1], &[100, 3, 1, 2]].concat();
        let cause = case.recode(too_long).unwrap_err().cause;
        assert_eq!(cause, DecodeCause::TooShort { needed: 3, left: 2 }, "{case:?}");
    }
}

#[test]
fn a_tagged_field_must_fill_its_size() {
    // ApiVersions response 3: no error, no keys, throttle time, then tag 1, an int64 with a byte too many.
    let bytes = [&[0, 0, 1, 0, 0, 0, 0, 1][..], &[1, 9], &[0; 9]].concat();
    let error = ApiVersionsResponse::decode(bytes.into(), 3).unwrap_err();
    assert_eq!((error.cause, error.structure), (DecodeCause::LeftOver(1), "ApiVersionsResponse"));
}

#[test]
fn errors_name_field_and_place() {
    let of = |version, bytes: &'static [u8]| MetadataRequest::decode(Bytes::from_static(bytes), version).unwrap_err();
    let error = of(0, &[0x7f, 0xff, 0xff, 0xff]);
    assert_eq!(error.to_string(), "MetadataRequest.topics at byte 4: needs 4294967294 bytes, 0 are left");
    let error = of(0, &[0, 0, 0, 1, 0xff, 0xff]);
    assert_eq!(error.to_string(), "MetadataRequestTopic.name at byte 6: null is not allowed in this version");
    let error = of(0, &[0, 0, 0, 1, 0xff, 0xfe]);
    assert_eq!(error.to_string(), "MetadataRequestTopic.name at byte 6: length -2 is negative");
    let error = of(0, &[0, 0, 0, 1, 0, 1, 0xff]);
    assert_eq!(error.to_string(), "MetadataRequestTopic.name at byte 7: string is not UTF-8");
    let error = of(9, &[0xff, 0xff, 0xff, 0xff, 0xff]);
    assert_eq!(error.to_string(), "MetadataRequest.topics at byte 5: variable-length integer does not fit its type");
    let error = of(99, &[]);
    assert_eq!(error.to_string(), "MetadataRequest at byte 0: version 99 does not exist");
}
