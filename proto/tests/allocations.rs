//! A frame can not make its reader allocate more than a small multiple of the frame, whatever lengths it claims. The only
//! test of its binary, because it counts what the whole process allocates.

#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

mod samples;

use std::alloc::System;

use bytes::Bytes;
use kaas_proto::kafka::messages::*;
use kaas_proto::kafka::wire::{DecodeCause, MAX_REQUEST_ELEMENTS};
use kaas_proto::kafka::{Message, RequestFrame};
use samples::random::Random;
use samples::sample;
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};

#[global_allocator]
static COUNTING: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

/// Structures in memory are larger than on the wire: a name and a value of one byte each become two strings of 32.
const MEMORY_PER_FRAME_BYTE: usize = 40;

/// The handle by which slices share a frame.
const CONSTANT_BYTES: usize = 64;

fn check<M: Message>(version: i16, frame: Vec<u8>, what: &str) {
    let length = frame.len();
    let frame = Bytes::from(frame);
    let region = Region::new(COUNTING);
    let message = M::decode(frame, version);
    let allocated = region.change().bytes_allocated;
    let name = M::STRUCTURE.name;
    let bound = CONSTANT_BYTES + MEMORY_PER_FRAME_BYTE * length;
    assert!(allocated <= bound, "{name} version {version}, {what}: {allocated} bytes for a frame of {length}");
    drop(message);
}

fn check_all<M: Message>() {
    for version in M::VERSIONS.min..=M::VERSIONS.max {
        let flexible = M::FLEXIBLE.contains(version);
        let mut random = Random::new(1);
        for seed in 0..3 {
            let good = sample(M::STRUCTURE, version, flexible, &mut Random::new(seed));
            check::<M>(version, good.clone(), "valid");
            for position in 0..good.len() {
                // Wherever a length lies, make it a huge one.
                let mut plain = good.clone();
                plain.splice(position..good.len().min(position + 4), [0x7f, 0xff, 0xff, 0xff]);
                check::<M>(version, plain, "a plain length of 2 GiB");
                let mut compact = good.clone();
                compact.splice(position..=position, [0xff, 0xff, 0xff, 0xff, 0x0f]);
                check::<M>(version, compact, "a compact length of 4 GiB");
                let mut flipped = good.clone();
                flipped[position] ^= 1 << random.below(8);
                check::<M>(version, flipped, "a flipped bit");
            }
            for fill in [0_u8, 1, 2, 0x7f, 0xff] {
                check::<M>(version, vec![fill; 4096], "a page of one byte");
            }
        }
        for _ in 0..50 {
            let length = random.below(2000);
            let noise = (0..length).map(|_| random.bits().to_le_bytes()[0]).collect();
            check::<M>(version, noise, "noise");
        }
    }
}

macro_rules! check_apis {
    ($($name:ident = $key:literal, $request:ident, $response:ident, $min:literal..=$max:literal, advertised $_a:literal;)*) => {
        #[test]
        fn no_frame_makes_its_reader_allocate_much_more_than_itself() {
            $(
                check_all::<$request>();
                check_all::<$response>();
            )*
            // As many elements as fit a large frame are refused before anything is allocated for them.
            let mut body = vec![1, 0].repeat(10 << 20);
            body.splice(..4, [0xff, 0xff, 0xff, 0x02]);
            let region = Region::new(COUNTING);
            let error = MetadataRequest::decode_counted(body.into(), 9, MAX_REQUEST_ELEMENTS).unwrap_err();
            assert_eq!(error.cause, DecodeCause::TooManyElements);
            assert!(region.change().bytes_allocated < 512, "{error}");
            // A frame of records is read without copying them: one array each of topics and partitions.
            let records = vec![0; 1 << 20];
            let partition = produce::PartitionProduceData { records: Bytes::from(records).into(), ..Default::default() };
            let topic = produce::TopicProduceData { partition_data: vec![partition], ..Default::default() };
            let request = ProduceRequest { topic_data: vec![topic], ..Default::default() };
            let frame = kaas_proto::kafka::Frame::request(9, 1, Some("client".into()), &request);
            let frame = Bytes::from(frame.into_parts().concat()).slice(4..);
            let region = Region::new(COUNTING);
            let request = RequestFrame::parse(frame).unwrap().decode::<ProduceRequest>().unwrap();
            let change = region.change();
            assert!(change.bytes_allocated < 512, "{change:?}");
            assert!(change.allocations <= 3, "{change:?}");
            drop(request);
        }
    };
}

kaas_proto::for_each_api!(check_apis);
