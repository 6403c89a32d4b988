//! `kaas inspect` as people call it: the real binary on the files of a real broker, also while that broker leads.

#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use kaas_bench::broker::{Broker, BrokerOptions};
use kaas_bench::client::Client;
use kaas_proto::record::BatchBuilder;
use kaas_proto::types::TimestampMs;

const KAAS: &str = env!("CARGO_BIN_EXE_kaas");

/// Runs `kaas inspect` with the environment that a pod has: options of the broker are none of its business.
fn inspect(arguments: &[&str]) -> Output {
    let mut command = Command::new(KAAS);
    command.arg("inspect").args(arguments).env("KAAS_DATA_DIR", "/elsewhere").env("MY_POD_NAME", "kaas-0");
    command.output().unwrap()
}

fn printed(kind: &str, path: &Path, more: &[&str]) -> (i32, String) {
    let output = inspect(&[&[kind, path.to_str().unwrap()], more].concat());
    assert_eq!(output.stderr, b"", "{}", String::from_utf8_lossy(&output.stderr));
    (output.status.code().unwrap(), String::from_utf8(output.stdout).unwrap())
}

fn refused(arguments: &[&str]) -> String {
    let output = inspect(arguments);
    assert_eq!(output.status.code(), Some(2), "{}", String::from_utf8_lossy(&output.stdout));
    assert_eq!(output.stdout, b"");
    String::from_utf8(output.stderr).unwrap()
}

/// All files below a directory.
fn files(directory: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() { found.extend(files(&path)) } else { found.push(path) }
    }
    found.sort();
    found
}

fn kind_of(path: &Path) -> Option<&'static str> {
    let name = path.file_name()?.to_str()?;
    let endings = [
        (".log", "segment"),
        (".index", "index"),
        (".manifest.json", "manifest"),
        (".producers", "producers"),
        (".fence", "fence"),
        (".checkpoint.json", "checkpoint"),
    ];
    endings.iter().find(|(ending, _)| name.ends_with(ending)).map(|(_, kind)| *kind)
}

#[test]
fn files_of_a_broker_are_printed_while_it_leads_and_afterwards() {
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let options = BrokerOptions::new(Path::new(KAAS), directory.path()).with(&["--shards", "1"]);
    let broker = Broker::start(&options).unwrap();
    broker.wait_ready().unwrap();
    let mut client = Client::connect(broker.kafka()).unwrap();
    client.create_topic("t", 1, &[]).unwrap();
    let time = TimestampMs(1_700_000_000_000);
    for number in 0..20 {
        let batch = BatchBuilder::new().record(time, Some(b"the key"), Some(format!("value {number}").as_bytes()));
        client.produce("t", 0, batch.build()).unwrap();
    }

    let segment = files(&directory.path().join("t")).into_iter().find(|path| kind_of(path) == Some("segment")).unwrap();
    let (code, table) = printed("segment", &segment, &["--records"]);
    assert_eq!(code, 0, "{table}");
    assert!(table.contains("the key") && table.contains("value 19") && table.contains("2023-11-14T22:13:20.000Z"));
    let (code, json) = printed("segment", &segment, &["--format", "json", "--records"]);
    assert_eq!(code, 0, "{json}");
    assert_eq!(json.lines().filter(|line| line.starts_with(r#"{"type":"record""#)).count(), 20);
    let fence = files(segment.parent().unwrap()).into_iter().find(|path| kind_of(path) == Some("fence")).unwrap();
    assert!(printed("fence", &fence, &[]).1.contains("held"));
    let (code, summary) = printed("partition", segment.parent().unwrap(), &[]);
    assert_eq!(code, 0, "{summary}");
    assert!(summary.contains("live") && summary.contains("held"), "{summary}");
    client.produce("t", 0, BatchBuilder::new().record(time, None, Some(b"more")).build()).unwrap();
    assert!(broker.stop().unwrap().success());

    let mut kinds = Vec::new();
    for path in files(directory.path()) {
        let Some(kind) = kind_of(&path) else { continue };
        let before = fs::read(&path).unwrap();
        for format in ["json", "table"] {
            let (code, text) = printed(kind, &path, &["--format", format]);
            assert_eq!(code, 0, "{}: {text}", path.display());
        }
        assert_eq!(fs::read(&path).unwrap(), before);
        kinds.push(kind);
    }
    for kind in ["segment", "index", "manifest", "fence", "checkpoint"] {
        assert!(kinds.contains(&kind), "{kind} is not among {kinds:?}");
    }

    // One flipped bit.
    let mut content = fs::read(&segment).unwrap();
    content[150] ^= 1;
    fs::write(&segment, &content).unwrap();
    let (code, text) = printed("segment", &segment, &[]);
    assert_eq!(code, 1, "{text}");
    assert!(text.contains("DAMAGED at byte 150"), "{text}");
}

#[test]
fn what_can_not_be_printed_is_said_on_standard_error() {
    let directory = tempfile::tempdir().unwrap();
    let foreign = directory.path().join("notes.txt");
    fs::write(&foreign, "not ours").unwrap();
    let path = foreign.to_str().unwrap();
    assert!(refused(&["manifest", path]).contains("not a file of kaas"));
    assert!(refused(&["segment", "/does/not/exist"]).contains("/does/not/exist can't be read"));
    assert!(refused(&["index", directory.path().to_str().unwrap()]).contains("is a directory"));
    assert!(refused(&["topic", path]).contains("topic"));
    assert!(refused(&["manifest", path, "--format", "xml"]).contains("table, json"));
}

#[test]
fn help_explains_it() {
    for (arguments, words) in [
        (&["--help"][..], &["segment", "manifest", "producers", "fence", "index", "checkpoint", "Exit code"][..]),
        (&["segment", "--help"], &["--records", "--format", "coordinator slot", "Exit code"]),
        (&["partition", "--help"], &["directory of a partition", "--format"]),
    ] {
        let output = inspect(arguments);
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(output.status.success(), "{text}");
        words.iter().for_each(|word| assert!(text.contains(word), "{word} is missing in:\n{text}"));
    }
    let help = String::from_utf8(Command::new(KAAS).arg("--help").output().unwrap().stdout).unwrap();
    assert!(help.contains("inspect"), "{help}");
    // Options of the broker in front are a mistake.
    let output = Command::new(KAAS).args(["--shards", "1", "inspect", "fence", "x"]).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
}
