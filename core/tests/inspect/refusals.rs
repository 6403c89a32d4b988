//! What is not printed, and why.

use std::fs;
use std::path::Path;

use kaas_core::inspect::{Format, InspectError, Kind, inspect_partition};

use crate::{Scratch, golden, try_inspect};

fn refusal(kind: Kind, path: &Path) -> String {
    match try_inspect(kind, path, false, Format::Table) {
        Ok(printed) => panic!("printed: {}", printed.text),
        Err(error) => error.to_string(),
    }
}

const KINDS: [Kind; 6] = [Kind::Segment, Kind::Index, Kind::Manifest, Kind::Producers, Kind::Fence, Kind::Checkpoint];

#[test]
fn no_such_file_and_directories() {
    let scratch = Scratch::new();
    for kind in KINDS {
        let error = refusal(kind, &scratch.path().join("absent"));
        assert!(error.contains("absent can't be read") && error.contains("No such file"), "{error}");
        let error = refusal(kind, scratch.path());
        assert!(error.contains("is a directory") && error.contains("kaas inspect partition"), "{error}");
    }
    assert!(refusal(Kind::Fence, Path::new("/dev/null")).contains("no regular file"));
}

#[test]
fn another_kind_of_file_is_named() {
    let scratch = Scratch::new();
    let path = scratch.file("00000007.manifest.json", &golden("manifest.json"));
    for kind in KINDS.into_iter().filter(|&kind| kind != Kind::Manifest) {
        assert!(refusal(kind, &path).ends_with("try `kaas inspect manifest`"));
    }
}

#[test]
fn foreign_files_are_not_called_damaged() {
    let scratch = Scratch::new();
    for (number, content) in [&b""[..], b"some text\n", &[0xff; 5000], b"{\"a\":1}"].into_iter().enumerate() {
        let path = scratch.file(&format!("foreign-{number}"), content);
        for kind in KINDS {
            // An empty or zeroed segment has no batch that could tell.
            if content.is_empty() && kind == Kind::Segment {
                continue;
            }
            let error = try_inspect(kind, &path, false, Format::Table).map(|printed| printed.text).unwrap_err();
            assert!(matches!(error, InspectError::Foreign { .. }), "{kind} {number}: {error}");
            assert!(error.to_string().contains("not a file of kaas"), "{error}");
        }
    }
}

#[test]
fn a_directory_that_is_no_partition() {
    let scratch = Scratch::new();
    let refused = |path: &Path| inspect_partition(path, Format::Table, &mut Vec::new()).unwrap_err().to_string();
    assert!(refused(scratch.path()).contains("not the directory of a partition"));
    let file = scratch.file("x", b"");
    assert!(refused(&file).contains("is no directory"));
    assert!(refused(&scratch.path().join("absent")).contains("can't be read"));
    // A manifest that is a directory is damage; the rest is printed.
    fs::create_dir(scratch.path().join("00000001.manifest.json")).unwrap();
    let mut out = Vec::new();
    inspect_partition(scratch.path(), Format::Table, &mut out).unwrap();
    assert!(String::from_utf8(out).unwrap().contains("DAMAGED"));
}
