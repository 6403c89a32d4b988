//! Record batches: bytes spelled out, the `kafka-protocol` crate as oracle in both directions and all compressions, and
//! damage of every kind.

#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

#[path = "samples/random.rs"]
mod random;

use bytes::{Bytes, BytesMut};
use kaas_proto::kafka::ErrorCode;
use kaas_proto::record::batch::{HEADER_BYTES, field};
use kaas_proto::record::record::RecordError;
use kaas_proto::record::{
    BatchBuilder, BatchError, Batches, Compression, ControlRecordType, RecordBatchView, RecordSet, Summarizing,
    Summary, lookup, patch,
};
use kaas_proto::types::{LeaderEpoch, Offset, ProducerEpoch, ProducerId, TimestampMs};
use kafka_protocol::indexmap::IndexMap;
use kafka_protocol::protocol::StrBytes;
use kafka_protocol::records::{
    Compression as TheirCompression, Record as TheirRecord, RecordBatchDecoder, RecordBatchEncoder,
    RecordEncodeOptions, TimestampType,
};
use random::Random;

const LIMIT: usize = 1 << 20;

const COMPRESSIONS: [(TheirCompression, Compression); 5] = [
    (TheirCompression::None, Compression::None),
    (TheirCompression::Gzip, Compression::Gzip),
    (TheirCompression::Snappy, Compression::Snappy),
    (TheirCompression::Lz4, Compression::Lz4),
    (TheirCompression::Zstd, Compression::Zstd),
];

fn small_batch() -> Bytes {
    let mut batch = BatchBuilder::new().producer(ProducerId(9), ProducerEpoch(1), 5);
    batch.push(TimestampMs(1000), Some(b"k"), Some(b"value"), &[("h", Some(b"x")), ("n", None)]);
    batch.push(TimestampMs(1003), None, None, &[]);
    batch.build()
}

#[test]
fn a_batch_is_spelled_like_this() {
    let crc = [0; 4];
    let expected = [
        &0_i64.to_be_bytes()[..], // base offset
        &76_i32.to_be_bytes(),    // bytes that follow
        &(-1_i32).to_be_bytes(),  // partition leader epoch
        &[2],                     // magic
        &crc,                     // CRC, compared by itself
        &[0, 0],                  // attributes
        &1_i32.to_be_bytes(),     // last offset delta
        &1000_i64.to_be_bytes(),  // base timestamp
        &1003_i64.to_be_bytes(),  // largest timestamp
        &9_i64.to_be_bytes(),     // producer id
        &1_i16.to_be_bytes(),     // producer epoch
        &5_i32.to_be_bytes(),     // base sequence
        &2_i32.to_be_bytes(),     // records
        &[38],                    // 19 bytes of record, zigzag
        &[0, 0, 0],               // attributes, timestamp delta, offset delta
        &[2, b'k'],               // key
        &[10],                    // value
        b"value",                 //
        &[4],                     // two headers
        &[2, b'h', 2, b'x'],      //
        &[2, b'n', 1],            // null is -1, zigzag 1
        &[12, 0, 6, 2, 1, 1, 0],  // 6 bytes: attributes, timestamp delta 3, offset delta 1, null, null, no headers
    ]
    .concat();
    let mut batch = small_batch().to_vec();
    let stored = RecordBatchView::read(&batch).unwrap().crc();
    assert_eq!(stored, crc32c::crc32c(&expected[field::ATTRIBUTES..]));
    batch[field::CRC..field::ATTRIBUTES].fill(0);
    assert_eq!(batch, expected);
}

#[test]
fn header_fields_read_back() {
    let bytes = BatchBuilder::new()
        .producer(ProducerId(7), ProducerEpoch(3), i32::MAX)
        .transactional()
        .base_offset(Offset(100))
        .leader_epoch(LeaderEpoch(4))
        .record(TimestampMs(50), None, Some(b"a"))
        .record(TimestampMs(40), None, Some(b"b"))
        .build();
    let batch = RecordBatchView::read_produced(&bytes).unwrap();
    assert_eq!(
        (batch.base_offset(), batch.last_offset(), batch.next_offset()),
        (Offset(100), Offset(101), Offset(102))
    );
    assert_eq!(batch.partition_leader_epoch(), LeaderEpoch(4));
    assert_eq!((batch.base_timestamp(), batch.max_timestamp()), (TimestampMs(50), TimestampMs(50)));
    assert_eq!((batch.producer_id(), batch.producer_epoch()), (ProducerId(7), ProducerEpoch(3)));
    assert_eq!((batch.base_sequence(), batch.last_sequence()), (i32::MAX, 0), "sequence numbers wrap to 0");
    assert!(batch.is_transactional() && !batch.is_control() && !batch.is_log_append_time());
    assert_eq!(batch.compression(), Ok(Compression::None));
}

#[test]
fn assigned_fields_lie_outside_the_crc() {
    let mut bytes = small_batch().to_vec();
    let crc = RecordBatchView::read(&bytes).unwrap().crc();
    patch::patch_base_offset(&mut bytes, Offset(i64::MAX - 5));
    patch::patch_leader_epoch(&mut bytes, LeaderEpoch(77));
    let batch = RecordBatchView::read_produced(&bytes).unwrap();
    assert_eq!((batch.base_offset(), batch.partition_leader_epoch()), (Offset(i64::MAX - 5), LeaderEpoch(77)));
    assert_eq!(batch.crc(), crc);
}

#[test]
fn log_append_time_is_every_records_time() {
    let mut bytes = small_batch().to_vec();
    patch::set_log_append_time(&mut bytes, TimestampMs(5000));
    let batch = RecordBatchView::read_produced(&bytes).unwrap();
    assert!(batch.is_log_append_time());
    assert_eq!((batch.base_timestamp(), batch.max_timestamp()), (TimestampMs(1000), TimestampMs(5000)));
    let records = RecordSet::read(batch, LIMIT).unwrap();
    assert!(records.iter().all(|record| records.timestamp(&record.unwrap()) == TimestampMs(5000)));
    let found = lookup::first_at_or_after(batch, TimestampMs(4000), Offset(0)).unwrap();
    assert_eq!(found, Some((Offset(0), TimestampMs(5000))));
}

#[test]
fn only_the_crc_notices_a_flipped_bit() {
    let good = small_batch();
    for position in field::ATTRIBUTES..good.len() {
        let mut bad = good.to_vec();
        bad[position] ^= 0x10;
        let error = RecordBatchView::read_produced(&bad).unwrap_err();
        assert!(matches!(error, BatchError::Crc { .. }), "byte {position}: {error}");
        assert_eq!(error.error_code(), ErrorCode::CorruptMessage);
    }
}

#[test]
fn a_batch_cut_anywhere_is_too_short() {
    let good = small_batch();
    assert_eq!(RecordBatchView::read(&[]), Err(BatchError::Empty));
    for length in 1..good.len() {
        let error = RecordBatchView::read_produced(&good[..length]).unwrap_err();
        assert!(matches!(error, BatchError::TooShort { left, .. } if left == length), "{length} bytes: {error}");
    }
}

fn with(change: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let mut bytes = small_batch().to_vec();
    change(&mut bytes);
    if RecordBatchView::read(&bytes).is_ok() {
        patch::update_crc(&mut bytes);
    }
    bytes
}

#[test]
fn what_a_producer_may_not_send() {
    let put = |position: usize, value: &'static [u8]| {
        with(|bytes| bytes[position..position + value.len()].copy_from_slice(value))
    };
    let rows: [(&str, Vec<u8>, BatchError, ErrorCode); 10] = [
        ("old format", put(field::MAGIC, &[1]), BatchError::Magic(1), ErrorCode::InvalidRecord),
        ("negative length", put(field::BATCH_LENGTH, &[0xff; 4]), BatchError::Length(-1), ErrorCode::CorruptMessage),
        ("short length", put(field::BATCH_LENGTH, &[0, 0, 0, 48]), BatchError::Length(48), ErrorCode::CorruptMessage),
        ("two batches", [small_batch(), small_batch()].concat(), BatchError::LeftOver(88), ErrorCode::InvalidRecord),
        ("nothing", Vec::new(), BatchError::Empty, ErrorCode::InvalidRecord),
        (
            "no records",
            put(field::RECORD_COUNT, &[0; 4]),
            BatchError::Count { count: 0, last_offset_delta: 1 },
            ErrorCode::InvalidRecord,
        ),
        (
            "a gap",
            put(field::LAST_OFFSET_DELTA, &[0, 0, 0, 2]),
            BatchError::Count { count: 2, last_offset_delta: 2 },
            ErrorCode::InvalidRecord,
        ),
        ("control", put(field::ATTRIBUTES, &[0, 0x20]), BatchError::Control, ErrorCode::InvalidRecord),
        (
            "no sequence",
            put(field::BASE_SEQUENCE, &[0xff; 4]),
            BatchError::Sequence { producer_id: 9, base_sequence: -1 },
            ErrorCode::InvalidRecord,
        ),
        (
            "unknown compression",
            put(field::ATTRIBUTES, &[0, 5]),
            BatchError::Compression(5),
            ErrorCode::UnsupportedCompressionType,
        ),
    ];
    for (name, bytes, error, code) in rows {
        assert_eq!(RecordBatchView::read_produced(&bytes), Err(error), "{name}");
        assert_eq!(error.error_code(), code, "{name}");
    }
}

#[test]
fn several_batches_are_told_apart() {
    let second = ControlRecordType::Commit.batch(ProducerId(9), ProducerEpoch(1), 3, TimestampMs(8));
    let mut bytes = [small_batch(), second.clone()].concat();
    let sizes: Vec<usize> = Batches::new(&bytes).map(|batch| batch.unwrap().size()).collect();
    assert_eq!(sizes, [88, second.len()]);
    bytes.pop();
    let results: Vec<bool> = Batches::new(&bytes).map(|batch| batch.is_ok()).collect();
    assert_eq!(results, [true, false]);
    // What recovery finds behind the logical end of a segment.
    assert!(Batches::new(&[0; 4096]).next().unwrap().is_err());
}

#[test]
fn control_batches_say_how_a_transaction_ended() {
    for kind in [ControlRecordType::Abort, ControlRecordType::Commit] {
        let bytes = kind.batch(ProducerId(9), ProducerEpoch(1), 3, TimestampMs(8));
        let batch = RecordBatchView::read(&bytes).unwrap();
        batch.check_crc().unwrap();
        assert!(batch.is_control() && batch.is_transactional());
        assert_eq!(ControlRecordType::of(batch), Ok(Some(kind)));
        assert_eq!(RecordBatchView::read_produced(&bytes), Err(BatchError::Control));
        let records = RecordSet::read(batch, LIMIT).unwrap();
        let record = records.iter().next().unwrap().unwrap();
        let kind = if kind == ControlRecordType::Commit { 1 } else { 0 };
        assert_eq!(record.key, Some(&[0, 0, 0, kind][..]), "version, type");
        assert_eq!(record.value, Some(&[0, 0, 0, 0, 0, 3][..]), "version, coordinator epoch");
    }
}

#[test]
fn lookups_answer_from_the_records() {
    let bytes = BatchBuilder::new()
        .base_offset(Offset(10))
        .record(TimestampMs(100), Some(b"a"), None)
        .record(TimestampMs(300), None, None)
        .record(TimestampMs(200), None, None)
        .build();
    let batch = RecordBatchView::read(&bytes).unwrap();
    let summary = Summary { first_keyless: Some(1), earliest: Some(TimestampMs(100)), latest: TimestampMs(300) };
    assert_eq!(Summary::of(batch), Ok(summary));
    assert_eq!(lookup::largest_timestamp_from(batch, Offset(12)), Ok(TimestampMs(200)));
    let at = |timestamp, from| lookup::first_at_or_after(batch, TimestampMs(timestamp), Offset(from)).unwrap();
    assert_eq!(at(0, 0), Some((Offset(10), TimestampMs(100))));
    assert_eq!(at(101, 0), Some((Offset(11), TimestampMs(300))));
    assert_eq!(at(150, 12), Some((Offset(12), TimestampMs(200))));
    assert_eq!(at(301, 0), None);

    let mut unset = bytes.to_vec();
    patch::set_max_timestamp(&mut unset, TimestampMs(-1));
    let batch = RecordBatchView::read_produced(&unset).unwrap();
    let largest = Summary::of(batch).unwrap().latest;
    patch::set_max_timestamp(&mut unset, largest);
    assert_eq!(unset, bytes);
}

/// A batch around these bytes of records, with a count and a checksum that fit.
fn around(records: &[u8], count: i32, compression: u8) -> Vec<u8> {
    let mut bytes = BatchBuilder::new().record(TimestampMs(5), None, None).build()[..field::RECORDS].to_vec();
    bytes.extend_from_slice(records);
    let length = i32::try_from(bytes.len() - 12).unwrap();
    bytes[field::BATCH_LENGTH..][..4].copy_from_slice(&length.to_be_bytes());
    bytes[field::ATTRIBUTES + 1] = compression;
    bytes[field::LAST_OFFSET_DELTA..][..4].copy_from_slice(&(count - 1).to_be_bytes());
    bytes[field::RECORD_COUNT..][..4].copy_from_slice(&count.to_be_bytes());
    let crc = crc32c::crc32c(&bytes[field::ATTRIBUTES..]);
    bytes[field::CRC..][..4].copy_from_slice(&crc.to_be_bytes());
    bytes
}

#[test]
fn records_that_no_consumer_could_read_are_refused() {
    // Length 6: attributes, timestamp delta, offset delta, null key, null value, no headers.
    let record = |offset_delta: u8| [12, 0, 0, offset_delta << 1, 1, 1, 0];
    let two = [record(0), record(1)].concat();
    assert!(Summary::of(RecordBatchView::read_produced(&around(&two, 2, 0)).unwrap()).is_ok());
    let bad: [(&str, Vec<u8>, i32); 14] = [
        ("fewer than said", record(0).to_vec(), 2),
        ("far fewer than said", record(0).to_vec(), i32::MAX),
        ("more than said", two.clone(), 1),
        ("an offset is left out", [record(0), record(5)].concat(), 2),
        ("an offset is there twice", [record(0), record(0)].concat(), 2),
        ("the first offset is not 0", record(5).to_vec(), 1),
        ("length 0", vec![0], 1),
        ("a negative length", [&[9][..], &record(0)[1..]].concat(), 1),
        ("a length beyond the end", vec![0xfe, 0xff, 0xff, 0xff, 0x0f, 0, 0, 0, 1, 1, 0], 1),
        ("a number that does not end", vec![0xff; 11], 1),
        ("a value beyond the record", vec![12, 0, 0, 0, 1, 100, 0], 1),
        ("a key of length -2", vec![12, 0, 0, 0, 3, 1, 0], 1),
        ("a header without name", vec![16, 0, 0, 0, 1, 1, 2, 1, 1], 1),
        ("bytes behind the headers", vec![14, 0, 0, 0, 1, 1, 0, 7], 1),
    ];
    for (what, records, count) in bad {
        let bytes = around(&records, count, 0);
        let batch = RecordBatchView::read_produced(&bytes).unwrap();
        let error = Summary::of(batch).unwrap_err();
        assert!(!matches!(error, RecordError::Batch(_)), "{what}: {error}");
    }
    for compression in 1..=4 {
        for garbage in [&b""[..], b"no such compression"] {
            let bytes = around(garbage, 1, compression);
            let batch = RecordBatchView::read_produced(&bytes).unwrap();
            assert!(Summary::of(batch).is_err(), "{compression}");
        }
    }
}

#[test]
fn a_summary_takes_little_memory_and_time_at_once() {
    let value = vec![0; 1 << 20];
    for (_, compression) in COMPRESSIONS {
        // Each record is larger than what is gone over at once: one at a time.
        let builder = (0..20).fold(BatchBuilder::new(), |batch, _| batch.record(TimestampMs(5), None, Some(&value)));
        let bytes = builder.compression(compression).build();
        let mut summarizing = Summarizing::new(RecordBatchView::read_produced(&bytes).unwrap()).unwrap();
        for _ in 0..19 {
            assert_eq!(summarizing.go_on(1), Ok(None), "{compression:?}");
        }
        assert!(summarizing.go_on(1).unwrap().is_some());
        let bomb = (0..40).fold(BatchBuilder::new(), |batch, _| batch.record(TimestampMs(5), None, Some(&value)));
        let bytes = bomb.compression(compression).build();
        let too_large = Summary::of(RecordBatchView::read_produced(&bytes).unwrap());
        if bytes.len() < 8 << 20 {
            assert_eq!(too_large, Err(RecordError::TooLarge(32 << 20)), "{compression:?}");
        }
    }
}

#[test]
fn noise_is_refused_or_read() {
    let mut random = Random::new(5);
    let mut readable = 0;
    for _ in 0..20_000 {
        let length = random.below(300);
        let mut bytes: Vec<u8> = (0..length).map(|_| random.bits().to_le_bytes()[0]).collect();
        if length > field::MAGIC {
            // Noise has hardly ever the right format, nor a length that fits.
            bytes[field::MAGIC] = 2;
            let claimed = i32::try_from(random.below(length)).unwrap();
            bytes[field::BATCH_LENGTH..field::BATCH_LENGTH + 4].copy_from_slice(&claimed.to_be_bytes());
        }
        assert!(RecordBatchView::read_produced(&bytes).is_err());
        for batch in Batches::new(&bytes).flatten() {
            readable += 1;
            let _ = ControlRecordType::of(batch);
            let _ = Summary::of(batch);
            let _ = (batch.last_offset(), batch.next_offset(), batch.last_sequence());
        }
    }
    assert!(readable > 1000);
}

fn their_record(index: i32, value: Vec<u8>) -> TheirRecord {
    let header = (StrBytes::from_static_str("trace"), Some(Bytes::from_static(b"on")));
    TheirRecord {
        transactional: false,
        control: false,
        delete_horizon: false,
        partition_leader_epoch: 0,
        producer_id: 4,
        producer_epoch: 2,
        timestamp_type: TimestampType::Creation,
        offset: i64::from(index),
        sequence: index,
        timestamp: 1_700_000_000_000 + i64::from(index % 7),
        key: (index % 3 > 0).then(|| Bytes::from(format!("key-{index}"))),
        value: (index % 5 > 0).then(|| value.into()),
        headers: if index % 2 == 0 { IndexMap::from([header]) } else { IndexMap::new() },
    }
}

#[test]
fn records_of_the_oracle_read_the_same_in_every_compression() {
    let mut random = Random::new(1);
    let mut noise = |length| (0..length).map(|_| random.bits().to_le_bytes()[0] & 0x0f).collect();
    let records: Vec<_> = (0..200).map(|index| their_record(index, noise(400))).collect();
    for (theirs, ours) in COMPRESSIONS {
        let mut bytes = BytesMut::new();
        let options = RecordEncodeOptions { version: 2, compression: theirs };
        RecordBatchEncoder::encode(&mut bytes, &records, &options).unwrap();
        let batch = RecordBatchView::read_produced(&bytes).unwrap();
        assert_eq!(batch.compression(), Ok(ours));
        let set = RecordSet::read(batch, LIMIT).unwrap();
        assert_eq!(set.iter().count(), records.len(), "{ours:?}");
        for (record, expected) in set.iter().zip(&records) {
            let record = record.unwrap();
            assert_eq!(record.key, expected.key.as_deref());
            assert_eq!(record.value, expected.value.as_deref());
            assert_eq!(set.timestamp(&record), TimestampMs(expected.timestamp));
            assert_eq!(set.offset(&record), Offset(expected.offset));
            let headers = record.headers().map(|header| header.unwrap());
            assert!(headers.eq(expected.headers.iter().map(|(name, value)| (name.as_bytes(), value.as_deref()))));
        }
        assert_eq!(Summary::of(batch).unwrap().first_keyless, Some(0));

        if ours != Compression::None {
            assert_eq!(RecordSet::read(batch, 1000).unwrap_err(), RecordError::TooLarge(1000), "{ours:?}");
        }
        // Damage behind the CRC, as a malicious client can craft it: an error or other records, never a panic.
        let good = bytes.to_vec();
        for round in 0..500 {
            let mut bad = good.clone();
            let position = HEADER_BYTES + random_below(round, bad.len() - HEADER_BYTES);
            bad[position] ^= 1 << (round % 8);
            if let Ok(batch) = RecordBatchView::read(&bad)
                && let Ok(set) = RecordSet::read(batch, LIMIT)
            {
                set.iter().for_each(drop);
            }
        }
    }
}

fn random_below(seed: u64, end: usize) -> usize {
    Random::new(seed).below(end)
}

#[test]
fn raw_snappy_reads_too() {
    let plain = small_batch();
    let packed = snap::raw::Encoder::new().compress_vec(&plain[HEADER_BYTES..]).unwrap();
    let mut bytes = [&plain[..HEADER_BYTES], &packed].concat();
    let length = i32::try_from(bytes.len() - 12).unwrap();
    bytes[field::BATCH_LENGTH..field::BATCH_LENGTH + 4].copy_from_slice(&length.to_be_bytes());
    bytes[field::ATTRIBUTES + 1] = 2;
    patch::update_crc(&mut bytes);
    let set = RecordSet::read(RecordBatchView::read_produced(&bytes).unwrap(), LIMIT).unwrap();
    assert_eq!(set.iter().filter(Result::is_ok).count(), 2);
}

#[test]
fn a_bomb_stops_at_the_limit() {
    let zeroes = vec![0; 64 * LIMIT];
    let bombs = [
        (1_u8, {
            let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
            std::io::Write::write_all(&mut gzip, &zeroes).unwrap();
            gzip.finish().unwrap()
        }),
        (2, snap::raw::Encoder::new().compress_vec(&zeroes).unwrap()),
        (3, {
            let mut lz4 = lz4_flex::frame::FrameEncoder::new(Vec::new());
            std::io::Write::write_all(&mut lz4, &zeroes).unwrap();
            lz4.finish().unwrap()
        }),
        (4, zstd::encode_all(&zeroes[..], 1).unwrap()),
    ];
    for (compression, packed) in bombs {
        let mut bytes = [&small_batch()[..HEADER_BYTES], &packed].concat();
        let length = i32::try_from(bytes.len() - 12).unwrap();
        bytes[field::BATCH_LENGTH..field::BATCH_LENGTH + 4].copy_from_slice(&length.to_be_bytes());
        bytes[field::ATTRIBUTES + 1] = compression;
        patch::update_crc(&mut bytes);
        let batch = RecordBatchView::read_produced(&bytes).unwrap();
        assert_eq!(RecordSet::read(batch, LIMIT).unwrap_err(), RecordError::TooLarge(LIMIT));
    }
}

#[test]
fn batches_of_ours_read_the_same_in_the_oracle() {
    let bytes = small_batch();
    let decoded = RecordBatchDecoder::decode(&mut bytes.clone()).unwrap();
    assert_eq!(decoded.records.len(), 2);
    let first = &decoded.records[0];
    assert_eq!((first.offset, first.timestamp, first.sequence), (0, 1000, 5));
    assert_eq!((first.key.as_deref(), first.value.as_deref()), (Some(&b"k"[..]), Some(&b"value"[..])));
    assert_eq!(first.headers.len(), 2);
    let second = &decoded.records[1];
    assert_eq!((second.offset, second.timestamp, second.key.is_none(), second.value.is_none()), (1, 1003, true, true));
}
