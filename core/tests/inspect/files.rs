//! The golden files, and a partition's directory.

use std::fs;

use kaas_core::inspect::{Kind, Outcome};

use crate::{Scratch, check, check_partition, golden};

#[test]
fn golden_files_are_printed() {
    let scratch = Scratch::new();
    for (name, kind) in [
        ("manifest.json", Kind::Manifest),
        ("producers.v1", Kind::Producers),
        ("revoked.fence", Kind::Fence),
        ("segment.v1.index", Kind::Index),
        ("checkpoint.json", Kind::Checkpoint),
    ] {
        let path = scratch.file(name, &golden(name));
        check(&format!("golden.{kind}"), kind, &path, false, Outcome::Sound);
    }
}

#[test]
fn golden_files_fit_the_names_that_they_have_on_the_volume() {
    let scratch = Scratch::new();
    for (name, golden_name, kind) in [
        ("00000007.manifest.json", "manifest.json", Kind::Manifest),
        ("00000007.producers", "producers.v1", Kind::Producers),
        ("00000007.fence", "revoked.fence", Kind::Fence),
        ("00000007-00000000000000001000.index", "segment.v1.index", Kind::Index),
        ("00000007.checkpoint.json", "checkpoint.json", Kind::Checkpoint),
        ("00000007.manifest.json.00000000000000ff.tmp", "manifest.json", Kind::Manifest),
    ] {
        let path = scratch.file(name, &golden(golden_name));
        assert_eq!(crate::damage(kind, &path, false), None, "{name}");
    }
}

#[test]
fn a_fence_is_held_when_it_is_empty() {
    let scratch = Scratch::new();
    let path = scratch.file("0000000a.fence", b"");
    check("held", Kind::Fence, &path, false, Outcome::Sound);
}

#[test]
fn the_directory_of_a_partition_says_what_counts() {
    let scratch = Scratch::new();
    let names = [
        "00000003-00000000000000000000.log", // below the log start
        "00000005-00000000000000000010-00000001.log",
        "00000005-00000000000000000400.log",
        "00000005-00000000000000001000.log", // behind the epoch's end
        "00000007-00000000000000001000.log",
        "00000007-00000000000000001000.index",
        "00000009-00000000000000001200.log",
        "00000007.fence",
        "00000005.producers",
        "00000007.checkpoint.json.0000000000000001.tmp",
        "lost+found",
    ];
    for name in names {
        scratch.file(name, b"");
    }
    scratch.file("00000005.fence", &golden("revoked.fence"));
    scratch.file("00000007.manifest.json", &golden("manifest.json"));
    check_partition("partition", scratch.path(), Outcome::Sound);
    fs::remove_file(scratch.path().join(names[1])).unwrap();
    check_partition("partition.missing", scratch.path(), Outcome::Damaged);
    scratch.file("00000007.manifest.json", b"{\"epoch\":7");
    check_partition("partition.damaged", scratch.path(), Outcome::Damaged);
}
