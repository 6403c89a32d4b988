//! What is inside a batch, record by record, as text where it is text.

use std::fmt::Write as _;
use std::io;

use kaas_proto::record::{ControlRecordType, Record, RecordBatchView, RecordSet};
use serde_json::{Map, Value};

use super::InspectError;
use super::damage::Damage;
use super::printer::{Field, Printer};
use super::segment::time;

/// A batch that grows above this when it is decompressed is not opened.
pub(super) const MAX_RECORDS_BYTES: usize = 512 << 20;

/// Prints the records of a batch that lie at `at` in the file. Returns what is wrong with them.
pub(super) fn print(
    batch: RecordBatchView<'_>,
    at: u64,
    printer: &mut Printer<'_>,
) -> Result<Option<Damage>, InspectError> {
    each(batch, at, |set, record| {
        let offset = set.offset(record).0;
        print_record(batch, offset, set.timestamp(record).0, record, printer)?;
        Ok(None)
    })
}

/// Calls `visit` for each record until it finds damage. Records that can't be read are damage as well.
pub(super) fn each(
    batch: RecordBatchView<'_>,
    at: u64,
    mut visit: impl FnMut(&RecordSet<'_>, &Record<'_>) -> Result<Option<Damage>, InspectError>,
) -> Result<Option<Damage>, InspectError> {
    let unreadable = |what: String, error: &dyn std::fmt::Display| {
        Ok(Some(Damage::new(at, what, format!("{error} (the batch's checksum is right: it was written like this)"))))
    };
    let set = match RecordSet::read(batch, MAX_RECORDS_BYTES) {
        Ok(set) => set,
        Err(error) => return unreadable(format!("{} records", batch.record_count()), &error),
    };
    for (index, record) in set.iter().enumerate() {
        let damage = match record {
            Ok(record) => visit(&set, &record)?,
            Err(error) => return unreadable(format!("record {index} of {}", batch.record_count()), &error),
        };
        if damage.is_some() {
            return Ok(damage);
        }
    }
    Ok(None)
}

fn print_record(
    batch: RecordBatchView<'_>,
    offset: i64,
    timestamp: i64,
    record: &Record<'_>,
    printer: &mut Printer<'_>,
) -> io::Result<()> {
    let mut fields: Vec<Field> =
        vec![("offset", offset.into()), ("timestamp", timestamp.into()), ("time", time(timestamp))];
    if batch.is_control() {
        let marker = match ControlRecordType::of(batch) {
            Ok(Some(ControlRecordType::Abort)) => "abort",
            Ok(Some(ControlRecordType::Commit)) => "commit",
            _ => "unknown",
        };
        if printer.is_json() {
            fields.push(("marker", marker.into()));
            return printer.row("marker", &fields);
        }
        let key = format!("({marker} marker of producer {})", batch.producer_id());
        fields.extend([("key", key.into()), ("value", Value::Null), ("headers", Value::Array(Vec::new()))]);
        return printer.row("record", &fields);
    }
    if printer.is_json() {
        let [key, key_hex] = text_or_hex(record.key);
        let [value, value_hex] = text_or_hex(record.value);
        fields.extend([("key", key), ("keyHex", key_hex), ("value", value), ("valueHex", value_hex)]);
        fields.retain(|(name, value)| !name.ends_with("Hex") || !value.is_null());
        fields.push(("headers", headers(record)));
    } else {
        fields.extend([("key", shown(record.key)), ("value", shown(record.value))]);
        let names: Vec<_> =
            record.headers().flatten().map(|(name, value)| format!("{}={}", text(name), in_words(value))).collect();
        fields.push(("headers", names.into()));
    }
    printer.row("record", &fields)
}

/// A list, for names may repeat.
fn headers(record: &Record<'_>) -> Value {
    let header = |(name, value): (&[u8], Option<&[u8]>)| {
        let [value, value_hex] = text_or_hex(value);
        let mut object = Map::from_iter([("name".to_owned(), text(name).into()), ("value".to_owned(), value)]);
        if !value_hex.is_null() {
            object.insert("valueHex".to_owned(), value_hex);
        }
        Value::Object(object)
    };
    record.headers().flatten().map(header).collect()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Text if the bytes are text without control characters, else hexadecimal digits in the second place.
pub(super) fn text_or_hex(bytes: Option<&[u8]>) -> [Value; 2] {
    let Some(bytes) = bytes else { return [Value::Null, Value::Null] };
    match as_text(bytes) {
        Some(text) => [text.into(), Value::Null],
        None => [Value::Null, hex(bytes).into()],
    }
}

fn as_text(bytes: &[u8]) -> Option<&str> {
    let is_text = |text: &&str| text.chars().all(|c| !c.is_control() || matches!(c, '\n' | '\r' | '\t'));
    std::str::from_utf8(bytes).ok().filter(is_text)
}

pub(super) fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut digits, byte| {
        write!(digits, "{byte:02x}").expect("a string takes everything");
        digits
    })
}

/// For a table: text as it is, other bytes as `0x…`.
fn shown(bytes: Option<&[u8]>) -> Value {
    if bytes.is_some() { in_words(bytes).into() } else { Value::Null }
}

fn in_words(bytes: Option<&[u8]>) -> String {
    match bytes {
        None => "null".to_owned(),
        Some(bytes) => as_text(bytes).map_or_else(|| format!("0x{}", hex(bytes)), str::to_owned),
    }
}
