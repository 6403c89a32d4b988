//! Holds the layout of the code: who may depend on whom, and where `unsafe` may stand (DESIGN.md sections 3 and 4).

#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

fn dependencies(krate: &str) -> BTreeSet<String> {
    let manifest = fs::read_to_string(root().join(krate).join("Cargo.toml")).unwrap();
    let manifest: toml::Table = manifest.parse().unwrap();
    manifest["dependencies"].as_table().unwrap().keys().cloned().collect()
}

fn ours(krate: &str) -> BTreeSet<String> {
    dependencies(krate).into_iter().filter(|name| name.starts_with("kaas-")).collect()
}

fn set(names: &[&str]) -> BTreeSet<String> {
    names.iter().map(|&name| name.to_owned()).collect()
}

#[test]
fn dependencies_point_one_way() {
    assert_eq!(ours("proto"), set(&[]));
    assert_eq!(ours("core"), set(&["kaas-proto"]));
    assert_eq!(ours("net"), set(&["kaas-core", "kaas-proto"]));
    assert_eq!(ours("coord"), set(&["kaas-proto"]), "coord and the shards meet in proto types");
}

#[test]
fn each_runtime_stays_in_its_crates() {
    for krate in ["proto", "coord"] {
        let found = dependencies(krate);
        assert!(!found.contains("glommio") && !found.contains("io-uring"), "{krate} has no shard runtime");
    }
    for krate in ["proto", "core", "net"] {
        let manifest: toml::Table = fs::read_to_string(root().join(krate).join("Cargo.toml")).unwrap().parse().unwrap();
        let tokio = &manifest["dependencies"]["tokio"];
        assert!(tokio.get("features").is_none(), "{krate} uses tokio::sync alone, no runtime");
        for name in ["kube", "tonic", "hyper"] {
            assert!(!dependencies(krate).contains(name), "{krate} must not depend on {name}");
        }
    }
}

#[test]
fn anyhow_is_for_programs() {
    for krate in ["proto", "core", "net", "coord"] {
        assert!(!dependencies(krate).contains("anyhow"), "{krate} has one error enum per operation");
    }
}

fn rust_files(directory: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            rust_files(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
}

#[test]
fn unsafe_stays_where_it_is_allowed() {
    let allowed = |path: &Path| path.starts_with("core/src/env") || path == Path::new("net/src/listener.rs");
    let mut files = Vec::new();
    for krate in ["src", "proto/src", "core/src", "net/src", "coord/src", "bench/src"] {
        rust_files(&root().join(krate), &mut files);
    }
    assert!(files.len() > 5, "the search finds the sources");
    for file in files {
        let path = file.strip_prefix(root()).unwrap();
        let text = fs::read_to_string(&file).unwrap();
        assert!(allowed(path) || !text.contains("unsafe {"), "{} has an unsafe block", path.display());
    }
}

/// The simulator and the bugs that it is tried on are for tests: nothing that ships can turn them on.
#[test]
fn no_bug_can_be_planted_in_the_binary() {
    for krate in ["", "net", "coord", "bench"] {
        let manifest = fs::read_to_string(root().join(krate).join("Cargo.toml")).unwrap();
        assert!(!manifest.contains("simulator"), "the manifest of '{krate}' names the simulator");
    }
    let manifest: toml::Table = fs::read_to_string(root().join("core/Cargo.toml")).unwrap().parse().unwrap();
    let features = manifest["features"].as_table().unwrap();
    assert_eq!(features.keys().collect::<Vec<_>>(), ["simulator"], "no default, nothing that implies it");
    assert!(features["simulator"].as_array().unwrap().is_empty());
    let own = &manifest["dev-dependencies"]["kaas-core"]["features"];
    assert_eq!(own.as_array().unwrap().len(), 1, "the tests of core are the ones that turn it on");
    let planted = fs::read_to_string(root().join("core/src/planted.rs")).unwrap();
    let gate = "#[cfg(all(feature = \"simulator\", debug_assertions))]";
    for item in ["std::thread_local!", "pub(crate) fn is_planted", "pub fn with<"] {
        let before = &planted[..planted.find(item).unwrap()];
        let attributes = before.rsplit("\n\n").next().unwrap();
        assert!(attributes.contains(gate), "{item} exists in release builds");
    }
    let release = fs::read_to_string(root().join("Cargo.toml")).unwrap();
    assert!(!release.contains("debug-assertions"), "a release build has none");
    let mut files = Vec::new();
    for krate in ["src", "proto/src", "core/src", "net/src", "coord/src", "bench/src"] {
        rust_files(&root().join(krate), &mut files);
    }
    for file in files {
        let text = fs::read_to_string(&file).unwrap();
        let path = file.strip_prefix(root()).unwrap();
        assert!(!text.contains("planted::with"), "{} plants a bug", path.display());
    }
}

#[test]
fn glommio_stays_behind_the_environment_and_the_sockets() {
    let allowed = |path: &Path| {
        path.starts_with("core/src/env") || path.starts_with("core/src/shard") || path.starts_with("net/src")
    };
    let mut files = Vec::new();
    for krate in ["src", "core/src"] {
        rust_files(&root().join(krate), &mut files);
    }
    for file in files {
        let path = file.strip_prefix(root()).unwrap();
        let text = fs::read_to_string(&file).unwrap();
        assert!(allowed(path) || !text.contains("glommio::"), "{} names glommio", path.display());
    }
}
