//! What `kaas inspect` prints: of whole files to the letter, of damaged ones the first bad byte. The expected outputs lie
//! beside this file; `UPDATE_EXPECTED=1` writes them anew.

#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]
#![allow(clippy::disallowed_methods, reason = "inspect looks at real files")]

mod damaged;
mod files;
mod refusals;
mod segments;

use std::fs;
use std::path::{Path, PathBuf};

use kaas_core::inspect::{Format, InspectError, Kind, Outcome, inspect_file, inspect_partition};
use serde_json::Value;

/// A directory for the files of one test.
struct Scratch(tempfile::TempDir);

impl Scratch {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    /// Writes a file below the directory, making what is missing of its path.
    fn file(&self, name: &str, content: &[u8]) -> PathBuf {
        let path = self.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, content).unwrap();
        path
    }
}

fn golden(name: &str) -> Vec<u8> {
    fs::read(Path::new("tests/golden").join(name)).unwrap()
}

struct Printed {
    outcome: Outcome,
    text: String,
}

fn try_inspect(kind: Kind, path: &Path, records: bool, format: Format) -> Result<Printed, InspectError> {
    let before = fs::read(path).ok();
    let mut out = Vec::new();
    let outcome = inspect_file(kind, path, records, format, &mut out);
    assert_eq!(fs::read(path).ok(), before, "inspecting changes nothing");
    Ok(Printed { outcome: outcome?, text: String::from_utf8(out).unwrap() })
}

/// Prints a file twice and compares with what is expected, less where the file lies.
fn check(expected: &str, kind: Kind, path: &Path, records: bool, outcome: Outcome) {
    for (format, ending) in [(Format::Table, "txt"), (Format::Json, "jsonl")] {
        let printed = try_inspect(kind, path, records, format).unwrap();
        assert_eq!(printed.outcome, outcome, "{}", printed.text);
        compare(&format!("{expected}.{ending}"), &printed.text, path.parent().unwrap());
    }
}

fn check_partition(expected: &str, directory: &Path, outcome: Outcome) {
    for (format, ending) in [(Format::Table, "txt"), (Format::Json, "jsonl")] {
        let mut out = Vec::new();
        assert_eq!(inspect_partition(directory, format, &mut out).unwrap(), outcome);
        compare(&format!("{expected}.{ending}"), &String::from_utf8(out).unwrap(), directory);
    }
}

fn compare(name: &str, printed: &str, directory: &Path) {
    let printed = printed.replace(directory.to_str().unwrap(), "DIRECTORY");
    let path = Path::new("tests/inspect/expected").join(name);
    if std::env::var_os("UPDATE_EXPECTED").is_some() {
        fs::write(&path, &printed).unwrap();
    }
    let expected = fs::read_to_string(&path).unwrap();
    assert_eq!(printed, expected, "{name} is printed differently");
}

/// The last line of the JSON, if it tells of damage: where, what was expected, what was found.
fn damage(kind: Kind, path: &Path, records: bool) -> Option<(u64, String, String)> {
    let printed = try_inspect(kind, path, records, Format::Json).unwrap();
    let lines: Vec<Value> = printed.text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let last = lines.last().unwrap();
    let is_damage = last["type"] == "damage";
    assert_eq!(is_damage, printed.outcome == Outcome::Damaged, "{}", printed.text);
    let text = |name: &str| last[name].as_str().unwrap().to_owned();
    is_damage.then(|| (last["at"].as_u64().unwrap(), text("expected"), text("found")))
}
