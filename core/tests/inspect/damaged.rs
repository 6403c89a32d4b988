//! The first bad byte of files that were cut off, changed or replaced.

use kaas_core::inspect::Kind;
use kaas_proto::record::RecordBatchView;
use kaas_proto::record::batch::field;
use kaas_proto::record::patch::update_crc;

use crate::segments::{NAME, batches, padded};
use crate::{Scratch, check, damage, golden};

/// The formats that are read whole, by the names that they have on the volume.
const WHOLE: [(&str, &str, Kind); 4] = [
    ("00000007.manifest.json", "manifest.json", Kind::Manifest),
    ("00000007.producers", "producers.v1", Kind::Producers),
    ("00000007-00000000000000001000.index", "segment.v1.index", Kind::Index),
    ("00000007.checkpoint.json", "checkpoint.json", Kind::Checkpoint),
];

#[test]
fn a_file_that_was_cut_off_is_damaged_at_every_length() {
    let scratch = Scratch::new();
    for (name, golden_name, kind) in WHOLE {
        let content = golden(golden_name);
        for length in 0..content.len() {
            let path = scratch.file(name, &content[..length]);
            let found = damage(kind, &path, false);
            let (at, ..) = found.unwrap_or_else(|| panic!("{name} cut at {length} looks sound"));
            assert!(at <= length as u64, "{name} cut at {length}: {at}");
        }
    }
}

#[test]
fn a_flipped_bit_is_damage_and_mostly_found_where_it_is() {
    let scratch = Scratch::new();
    for (name, golden_name, kind) in WHOLE {
        let content = golden(golden_name);
        let mut near = 0;
        for bit in (0..content.len() * 8).step_by(3) {
            let mut flipped = content.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            let path = scratch.file(name, &flipped);
            let found = damage(kind, &path, false);
            let (at, ..) = found.unwrap_or_else(|| panic!("{name} with bit {bit} flipped looks sound"));
            near += usize::from(at.abs_diff(bit as u64 / 8) <= 4);
        }
        let flips = (content.len() * 8).div_ceil(3);
        assert!(near * 10 >= flips * 8, "{name}: {near} of {flips}");
    }
}

#[test]
fn what_else_may_lie_there_is_damage_too() {
    let scratch = Scratch::new();
    for (name, _, kind) in WHOLE {
        for content in [&b""[..], b"not one of ours", &[0; 4096], b"{}", b"{\"epoch\":1}\n", &[0xff; 70_000]] {
            let path = scratch.file(name, content);
            assert!(damage(kind, &path, false).is_some(), "{name} with {content:?}");
        }
    }
    let path = scratch.file("00000001.fence", b"{\"epoch\":2,\"bro\0er\":1}\n");
    let (at, expected, _) = damage(Kind::Fence, &path, false).unwrap();
    assert_eq!((at, &*expected), (15, "no byte, or one line that says who revoked it"));
    check("damaged.fence", Kind::Fence, &path, false, kaas_core::inspect::Outcome::Damaged);
}

#[test]
fn names_must_fit_the_content() {
    let scratch = Scratch::new();
    for (name, golden_name, kind, at) in [
        ("00000008.manifest.json", "manifest.json", Kind::Manifest, 1),
        ("00000008.checkpoint.json", "checkpoint.json", Kind::Checkpoint, 1),
        ("00000007-00000000000000001001.index", "segment.v1.index", Kind::Index, 12 + 7),
    ] {
        let path = scratch.file(name, &golden(golden_name));
        assert_eq!(damage(kind, &path, false).unwrap().0, at, "{name}");
    }
}

#[test]
fn the_first_bad_byte_of_a_segment_is_marked() {
    let scratch = Scratch::new();
    let batches = batches();
    let content = padded(&batches);
    let third = batches[0].len() + batches[1].len();
    let at = |change: &dyn Fn(&mut Vec<u8>)| {
        let mut changed = content.clone();
        change(&mut changed);
        let path = scratch.file(NAME, &changed);
        damage(Kind::Segment, &path, false).unwrap()
    };
    // Every bit of the third batch but those of its length.
    for byte in (0..batches[2].len()).filter(|byte| !(8..12).contains(byte)) {
        for bit in [0, 5, 7] {
            let (found, expected, _) = at(&|content| content[third + byte] ^= 1 << bit);
            let field = if (17..21).contains(&byte) { 17 } else { byte };
            assert_eq!(found, (third + field) as u64, "byte {byte}, bit {bit}: {expected}");
        }
    }
    let (found, expected, _) = at(&|content| content[third + 8] = 0x7f);
    assert_eq!((found, &*expected), (third as u64 + 8, "a batch of at most 268435456 bytes"));
    let (found, ..) = at(&|content| content[third + 8] = 0xff);
    assert_eq!(found, third as u64 + 8);
    // Two changes: only that the damage begins somewhere in what the checksum covers can be told.
    let (found, _, what) = at(&|content| content[third + 40..third + 60].fill(0xaa));
    assert_eq!(found, (third + field::ATTRIBUTES) as u64);
    assert!(what.ends_with("here or further behind"), "{what}");
    let (found, expected, what) = at(&|content| content.truncate(third + 70));
    assert_eq!(found, third as u64 + 70);
    assert!(expected.contains(&format!("begins at byte {third}")) && what.contains("end of the file"));
    let (found, ..) = at(&|content| content[batches.concat().len() + 5] = 1);
    assert_eq!(found, batches.concat().len() as u64 + 16, "padding is zeros");
    // A hole: zeros in the middle, more behind.
    let (found, ..) = at(&|content| content[third..third + batches[2].len()].fill(0));
    assert_eq!(found, third as u64 + 16);
}

#[test]
fn a_damaged_segment_is_printed_up_to_there() {
    let scratch = Scratch::new();
    let batches = batches();
    let mut content = padded(&batches);
    content[batches[0].len() + 70] ^= 4;
    let path = scratch.file(NAME, &content);
    check("damaged.segment", Kind::Segment, &path, false, kaas_core::inspect::Outcome::Damaged);
}

#[test]
fn records_that_can_not_be_read_are_found_with_records() {
    let scratch = Scratch::new();
    let mut batches = batches();
    let last = batches[1].len() - 1;
    batches[1][last] = 9; // headers that are not there
    update_crc(&mut batches[1]);
    assert!(RecordBatchView::read(&batches[1]).unwrap().check_crc().is_ok());
    let path = scratch.file(NAME, &padded(&batches));
    assert_eq!(damage(Kind::Segment, &path, false), None, "the batch is what was written");
    let (at, expected, found) = damage(Kind::Segment, &path, true).unwrap();
    assert_eq!((at, &*expected), ((batches[0].len() + 61) as u64, "record 0 of 1"));
    assert!(found.contains("it was written like this"), "{found}");
}
