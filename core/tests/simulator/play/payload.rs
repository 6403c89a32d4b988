//! What producers write: each record has a name that no other has, and a key.

use std::rc::Rc;

use kaas_proto::record::{BatchBuilder, Record as WireRecord};
use kaas_proto::types::TimestampMs;

/// The header that names a record without a value.
const NAME_HEADER: &str = "name";

/// The keys of a compacted topic: few, so that there is something to compact.
pub const KEYS: [&str; 5] = ["k0", "k1", "k2", "k3", "k4"];

/// What a record is to be like.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    pub key: &'static str,
    pub is_tombstone: bool,
    pub padding: usize,
}

impl From<usize> for Shape {
    fn from(padding: usize) -> Self {
        Self { key: "k", is_tombstone: false, padding }
    }
}

/// One record.
#[derive(Clone, Debug)]
pub struct Payload {
    pub name: Rc<str>,
    pub key: &'static str,
    pub is_tombstone: bool,
}

impl Payload {
    pub fn new(name: &str, shape: Shape) -> Self {
        let name = format!("{name}:{}", "x".repeat(shape.padding)).into();
        Self { name, key: shape.key, is_tombstone: shape.is_tombstone }
    }

    pub fn push_to(&self, builder: &mut BatchBuilder, now: TimestampMs) {
        let (key, name) = (Some(self.key.as_bytes()), Some(self.name.as_bytes()));
        if self.is_tombstone {
            builder.push(now, key, None, &[(NAME_HEADER, name)]);
        } else {
            builder.push(now, key, name, &[]);
        }
    }
}

/// The name of a record that was read.
pub fn name_of(record: &WireRecord<'_>) -> Rc<str> {
    let header = || record.headers().flatten().find(|(name, _)| *name == NAME_HEADER.as_bytes());
    let name = record.value.or_else(|| header()?.1);
    String::from_utf8_lossy(name.unwrap_or_default()).into()
}
