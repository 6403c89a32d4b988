//! `net/APIS.md` is made from the table of APIs and the head comments of the handlers. `UPDATE=1` writes it.

use std::fmt::Write;
use std::fs;
use std::path::PathBuf;

use kaas_proto::kafka::{Api, api_key};

const INTRODUCTION: &str = "# Kafka APIs of kaas

Made from the table of APIs (`proto/src/kafka/api_key.rs`) and the head comments of the handlers (`src/handlers/`); a test
fails when this page is stale, `UPDATE=1 cargo test -p kaas-net apis_md` writes it.

What is not listed is not served: the connection is closed, and the log says why. An unknown version of ApiVersions is
answered in version 0, so that the client can ask again. No features are supported or finalized.

";

fn directory() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

/// `OffsetForLeaderEpoch` → `offset_for_leader_epoch`.
fn file_name(api: &Api) -> String {
    let mut name = String::new();
    for character in api.name.chars() {
        if character.is_ascii_uppercase() && !name.is_empty() {
            name.push('_');
        }
        name.push(character.to_ascii_lowercase());
    }
    name
}

/// The head comment of the API's handler, one paragraph per item.
fn head_comment(api: &Api) -> Vec<String> {
    let path = directory().join("src/handlers").join(file_name(api)).with_extension("rs");
    let source = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let lines = source.lines().map_while(|line| line.strip_prefix("//!"));
    let mut paragraphs = vec![String::new()];
    for line in lines.map(str::trim) {
        match (line.is_empty(), paragraphs.last_mut().expect("there is always one")) {
            (true, _) => paragraphs.push(String::new()),
            (false, paragraph) => {
                if !paragraph.is_empty() {
                    paragraph.push(' ');
                }
                paragraph.push_str(line);
            }
        }
    }
    paragraphs
}

fn versions(min: i16, max: i16) -> String {
    if min == max { min.to_string() } else { format!("{min}–{max}") }
}

fn page() -> String {
    let mut page = INTRODUCTION.to_owned();
    page.push_str("| Key | API | Served | Advertised | Flexible from |\n|---:|---|---|---|---|\n");
    for api in api_key::APIS {
        let served = versions(api.min_version, api.max_version);
        let advertised = versions(api.advertised_min_version, api.max_version);
        let flexible = api.flexible_from.map_or_else(|| "–".to_owned(), |version| version.to_string());
        let (key, name) = (api.key.code(), api.name);
        let _ = writeln!(page, "| {key} | [{name}](#{}) | {served} | {advertised} | {flexible} |", name.to_lowercase());
    }
    for api in api_key::APIS {
        let _ = write!(page, "\n## {}\n", api.name);
        for paragraph in head_comment(api) {
            let _ = write!(page, "\n{}\n", without_links(&paragraph));
        }
    }
    page
}

/// Links into the code lead nowhere from the page.
fn without_links(text: &str) -> String {
    let mut plain = String::new();
    let mut rest = text;
    while let Some((before, link)) = rest.split_once("[`") {
        let (name, after) = link.split_once("`]").expect("a link ends");
        let target = after.strip_prefix('(').and_then(|target| target.split_once(')'));
        let _ = write!(plain, "{before}`{name}`");
        rest = target.map_or(after, |(_, after)| after);
    }
    plain + rest
}

#[test]
fn head_comments_name_the_versions_of_the_table() {
    for api in api_key::APIS {
        let expected = format!("{} {}: ", api.name, versions(api.min_version, api.max_version));
        let head = &head_comment(api)[0];
        assert!(head.starts_with(&expected), "{} begins with '{expected}', not '{head}'", file_name(api));
    }
}

#[test]
fn apis_md_is_fresh() {
    let path = directory().join("APIS.md");
    let page = page();
    if std::env::var_os("UPDATE").is_some() {
        fs::write(&path, &page).unwrap();
    }
    let found = fs::read_to_string(&path).unwrap_or_default();
    assert!(found == page, "net/APIS.md is stale: UPDATE=1 cargo test -p kaas-net apis_md");
}
