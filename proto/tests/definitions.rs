//! Every declaration against Kafka's own definition of the message, field by field. The definitions are JSON files in the
//! `kafka-clients` jar, which `tests/fetch-definitions` fetches.

#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

use std::collections::HashMap;
use std::env;
use std::fs::File;
use std::io::Read;
use std::path::PathBuf;

use kaas_proto::kafka::Message;
use kaas_proto::kafka::consumer_protocol::{ConsumerProtocolAssignment, ConsumerProtocolSubscription};
use kaas_proto::kafka::messages::*;
use kaas_proto::kafka::schema::{Field, Kind, Structure, Versions};
use kaas_proto::kafka::writer::Writer;
use serde_json::Value;

/// The version that `tests/fetch-definitions` fetches.
const KAFKA_VERSION: &str = "4.3.1";

/// Structures that have another name with us: Kafka has two of the first in files that are one file here.
const RENAMED: [(&str, &str); 2] = [("OwnedPartitions", "TopicPartition"), ("AssignedPartitions", "TopicPartition")];

const FETCH: &str = "run tests/fetch-definitions (it needs mvn), or name the jar in KAFKA_CLIENTS_JAR";

struct Definitions(zip::ZipArchive<File>);

impl Definitions {
    fn open() -> Self {
        let default = || PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../target/test-deps/kafka-clients.jar");
        let path = env::var_os("KAFKA_CLIENTS_JAR").map_or_else(default, PathBuf::from);
        let file = File::open(&path).unwrap_or_else(|error| panic!("{}: {error}; {FETCH}", path.display()));
        let mut jar = Self(zip::ZipArchive::new(file).unwrap());
        let properties = jar.text("kafka/kafka-version.properties");
        let is_pinned = properties.lines().any(|line| line.trim() == format!("version={KAFKA_VERSION}"));
        assert!(is_pinned, "{} is not version {KAFKA_VERSION}; {FETCH}", path.display());
        jar
    }

    fn text(&mut self, name: &str) -> String {
        let mut text = String::new();
        self.0.by_name(name).unwrap_or_else(|error| panic!("{name}: {error}")).read_to_string(&mut text).unwrap();
        text
    }

    fn message(&mut self, name: &str) -> Value {
        let text = self.text(&format!("common/message/{name}.json"));
        let without_comments: Vec<&str> = text.lines().filter(|line| !line.trim_start().starts_with("//")).collect();
        serde_json::from_str(&without_comments.join("\n")).unwrap_or_else(|error| panic!("{name}: {error}"))
    }
}

fn text<'a>(value: &'a Value, key: &str) -> Option<&'a str> {
    value.get(key).and_then(Value::as_str)
}

fn versions(value: &Value, key: &str) -> Versions {
    text(value, key).map_or(Versions::NONE, Versions::parse)
}

/// Compares one message and everything in it.
struct Comparison<'a> {
    valid: Versions,
    common: HashMap<&'a str, &'a Value>,
    differences: Vec<String>,
    fields: usize,
}

impl<'a> Comparison<'a> {
    fn expect<T: PartialEq + std::fmt::Debug>(&mut self, place: &str, what: &str, ours: T, kafkas: T) {
        if ours != kafkas {
            self.differences.push(format!("{place}: {what} is {ours:?}, Kafka has {kafkas:?}"));
        }
    }

    fn structure(&mut self, structure: &Structure, definition: &'a Value) {
        let fields = definition["fields"].as_array().unwrap();
        let place = structure.name;
        self.expect(place, "number of fields", structure.fields.len(), fields.len());
        for (ours, kafkas) in structure.fields.iter().zip(fields) {
            self.field(&format!("{place}.{}", ours.name), ours, kafkas);
        }
    }

    fn field(&mut self, place: &str, ours: &Field, kafkas: &'a Value) {
        self.fields += 1;
        let plain = |name: &str| name.replace('_', "").to_lowercase();
        self.expect(place, "name", plain(ours.name), plain(text(kafkas, "name").unwrap()));
        self.expect(place, "versions", ours.versions, versions(kafkas, "versions"));
        self.expect(place, "nullable versions", ours.nullable, versions(kafkas, "nullableVersions"));
        let tag = kafkas.get("tag").map(|tag| u32::try_from(tag.as_u64().unwrap()).unwrap());
        self.expect(place, "tag", ours.tag, tag);
        if ours.tag.is_some() {
            self.expect(place, "tagged versions", ours.versions, versions(kafkas, "taggedVersions"));
        }
        let kafkas_type = text(kafkas, "type").unwrap();
        self.expect(place, "type", type_name(&ours.kind), kafkas_type.to_owned());
        self.default(place, ours, kafkas);
        if let Some(nested) = nested(&ours.kind) {
            let name = kafkas_type.trim_start_matches("[]");
            let definition = if kafkas.get("fields").is_some() { kafkas } else { self.common[name] };
            self.structure(nested, definition);
        }
    }

    /// Defaults are compared as the bytes that they make, in a version that has the field and, if any has, its null.
    fn default(&mut self, place: &str, ours: &Field, kafkas: &Value) {
        let range = if ours.nullable == Versions::NONE { ours.versions } else { ours.nullable };
        let mut writer = Writer::new(range.min.max(self.valid.min), false);
        (ours.write_default)(&mut writer);
        let ours_written = writer.into_joined().to_vec();
        let default = match kafkas.get("default") {
            None => None,
            Some(Value::String(text)) => Some(text.clone()),
            Some(other) => Some(other.to_string()),
        };
        let is_null = ours.nullable != Versions::NONE && !matches!(ours.kind, Kind::Records);
        // Where Kafka leaves the default of a nullable field open, its own is the empty value. Ours is always null.
        if is_null {
            assert!(default.is_none() || default.as_deref() == Some("null"), "{place}: {default:?}");
        }
        let number = |bytes: usize| {
            let text = default.as_deref().unwrap_or("0");
            let number = match text.strip_prefix("0x") {
                Some(digits) => i64::from_str_radix(digits, 16).unwrap(),
                None => text.parse().unwrap(),
            };
            number.to_be_bytes()[8 - bytes..].to_vec()
        };
        let expected = match ours.kind {
            Kind::Bool => vec![u8::from(default.as_deref() == Some("true"))],
            Kind::Int8 => number(1),
            Kind::Int16 | Kind::ErrorCode => number(2),
            Kind::Int32 => number(4),
            Kind::Int64 => number(8),
            Kind::Uuid => vec![0; 16],
            Kind::String if is_null => vec![0xff; 2],
            Kind::Struct(_) if is_null => vec![0xff],
            Kind::Bytes | Kind::Array(_) if is_null => vec![0xff; 4],
            Kind::String => {
                assert!(default.as_deref().unwrap_or_default().is_empty(), "{place}: {default:?}");
                vec![0; 2]
            }
            Kind::Bytes | Kind::Records | Kind::Array(_) => vec![0; 4],
            // Made of the defaults of its fields, which are compared by themselves.
            Kind::Struct(_) => return,
        };
        self.expect(place, "default", ours_written, expected);
    }
}

fn type_name(kind: &Kind) -> String {
    let name = match kind {
        Kind::Bool => "bool",
        Kind::Int8 => "int8",
        Kind::Int16 | Kind::ErrorCode => "int16",
        Kind::Int32 => "int32",
        Kind::Int64 => "int64",
        Kind::Uuid => "uuid",
        Kind::String => "string",
        Kind::Bytes => "bytes",
        Kind::Records => "records",
        Kind::Struct(structure) => {
            RENAMED.iter().find(|(ours, _)| *ours == structure.name).map_or(structure.name, |(_, kafkas)| kafkas)
        }
        Kind::Array(element) => return format!("[]{}", type_name(element)),
    };
    name.to_owned()
}

fn nested(kind: &Kind) -> Option<&'static Structure> {
    match kind {
        Kind::Struct(structure) => Some(structure),
        Kind::Array(element) => nested(element),
        _ => None,
    }
}

fn compare<M: Message>(definitions: &mut Definitions, key: Option<i16>) -> (Vec<String>, usize) {
    let name = M::STRUCTURE.name;
    let definition = definitions.message(name);
    let common = definition.get("commonStructs").and_then(Value::as_array);
    let mut comparison = Comparison {
        valid: M::VERSIONS,
        common: common.into_iter().flatten().map(|common| (text(common, "name").unwrap(), common)).collect(),
        differences: Vec::new(),
        fields: 0,
    };
    comparison.expect(name, "key", key.map(i64::from), definition.get("apiKey").and_then(Value::as_i64));
    comparison.expect(name, "name", Some(name), text(&definition, "name"));
    comparison.expect(name, "valid versions", M::VERSIONS, versions(&definition, "validVersions"));
    comparison.expect(name, "flexible versions", M::FLEXIBLE, versions(&definition, "flexibleVersions"));
    comparison.structure(M::STRUCTURE, &definition);
    (comparison.differences, comparison.fields)
}

macro_rules! compare_all {
    ($($name:ident = $key:literal, $request:ident, $response:ident, $min:literal..=$max:literal, advertised $_a:literal;)*) => {
        #[test]
        fn declarations_are_kafkas() {
            let mut definitions = Definitions::open();
            let results = [
                $(
                    compare::<$request>(&mut definitions, Some($key)),
                    compare::<$response>(&mut definitions, Some($key)),
                )*
                compare::<ConsumerProtocolSubscription>(&mut definitions, None),
                compare::<ConsumerProtocolAssignment>(&mut definitions, None),
            ];
            let differences: Vec<String> = results.iter().flat_map(|(differences, _)| differences.clone()).collect();
            assert!(differences.is_empty(), "\n{}", differences.join("\n"));
            let fields: usize = results.iter().map(|(_, fields)| fields).sum();
            assert!(fields > 500, "only {fields} fields compared");
        }
    };
}

kaas_proto::for_each_api!(compare_all);

#[test]
fn versions_that_kafka_calls_unstable_are_not_served() {
    let mut definitions = Definitions::open();
    for api in kaas_proto::kafka::api_key::APIS {
        let definition = definitions.message(&format!("{}Request", api.name));
        let unstable = definition.get("latestVersionUnstable").and_then(Value::as_bool) == Some(true);
        let last = versions(&definition, "validVersions").max - i16::from(unstable);
        assert_eq!(api.max_version, last, "{}", api.name);
    }
}
