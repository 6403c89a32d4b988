//! Messages made up from a declaration's own description: bytes, written by a third writer that shares no code with the
//! codec but its tables. What comes out is valid, canonical, and as varied as the seed.

pub(crate) mod random;

use kaas_proto::kafka::schema::{Field, Kind, Structure};
use kaas_proto::kafka::writer::Writer;

use random::Random;

/// Bytes of a message in a version.
pub(crate) fn sample(structure: &Structure, version: i16, flexible: bool, random: &mut Random) -> Vec<u8> {
    let mut sampler = Sampler { version, flexible, random, bytes: Vec::new() };
    sampler.structure(structure);
    sampler.bytes
}

struct Sampler<'a> {
    version: i16,
    flexible: bool,
    random: &'a mut Random,
    bytes: Vec<u8>,
}

impl Sampler<'_> {
    fn structure(&mut self, structure: &Structure) {
        let fields = structure.fields.iter().filter(|field| field.versions.contains(self.version));
        let (tagged, plain): (Vec<&Field>, Vec<&Field>) = fields.partition(|field| field.tag.is_some());
        for field in plain {
            self.field(field);
        }
        if !self.flexible {
            assert!(tagged.is_empty(), "{} has tagged fields in a version that is not flexible", structure.name);
            return;
        }
        let mut values = Vec::new();
        for field in tagged {
            let value = self.aside(|sampler| sampler.field(field));
            // A field that holds its default is left out; and sometimes leave out another.
            if value != default_bytes(field, self.version) && self.random.below(4) > 0 {
                values.push((field.tag.expect("partitioned by it"), value));
            }
        }
        self.varint(values.len());
        for (tag, value) in values {
            self.varint(tag as usize);
            self.varint(value.len());
            self.bytes.extend(value);
        }
    }

    fn aside(&mut self, write: impl FnOnce(&mut Self)) -> Vec<u8> {
        let outer = std::mem::take(&mut self.bytes);
        write(self);
        std::mem::replace(&mut self.bytes, outer)
    }

    fn field(&mut self, field: &Field) {
        let nullable = field.nullable.contains(self.version);
        // Null records are read, but never written.
        if nullable && !matches!(field.kind, Kind::Records) && self.random.below(4) == 0 {
            match field.kind {
                Kind::Struct(_) => self.bytes.push(0xff),
                _ if self.flexible => self.varint(0),
                Kind::String => self.bytes.extend((-1_i16).to_be_bytes()),
                _ => self.bytes.extend((-1_i32).to_be_bytes()),
            }
        } else {
            if nullable && matches!(field.kind, Kind::Struct(_)) {
                self.bytes.push(1);
            }
            self.value(&field.kind);
        }
    }

    fn value(&mut self, kind: &Kind) {
        match kind {
            Kind::Bool => {
                let bit = u8::from(self.random.below(2) == 1);
                self.bytes.push(bit);
            }
            Kind::Int8 => self.number(1),
            Kind::Int16 => self.number(2),
            Kind::Int32 => self.number(4),
            Kind::Int64 => self.number(8),
            Kind::Uuid => self.number(16),
            Kind::ErrorCode => {
                let code = i16::try_from(self.random.below(134)).expect("small");
                self.bytes.extend(code.to_be_bytes());
            }
            Kind::String => {
                let length = self.length();
                let text: String = (0..length).map(|_| ['a', 'Z', '9', '-', 'ß', '語'][self.random.below(6)]).collect();
                if self.flexible {
                    self.varint(text.len() + 1);
                } else {
                    self.bytes.extend(i16::try_from(text.len()).expect("short").to_be_bytes());
                }
                self.bytes.extend(text.as_bytes());
            }
            Kind::Bytes | Kind::Records => {
                let length = self.length();
                self.count(length);
                self.raw(length);
            }
            Kind::Struct(structure) => self.structure(structure),
            Kind::Array(element) => {
                let count = self.random.below(4);
                self.count(count);
                (0..count).for_each(|_| self.value(element));
            }
        }
    }

    fn number(&mut self, bytes: usize) {
        match self.random.below(4) {
            // Negative and small numbers are more likely in nature than in 64 random bits.
            0 => self.bytes.extend(vec![0xff; bytes]),
            1 => {
                self.bytes.extend(vec![0; bytes - 1]);
                self.raw(1);
            }
            _ => self.raw(bytes),
        }
    }

    fn raw(&mut self, length: usize) {
        for _ in 0..length {
            let byte = self.random.bits().to_le_bytes()[0];
            self.bytes.push(byte);
        }
    }

    /// Mostly short, empty at times, and at times long enough for a compact length of two bytes.
    fn length(&mut self) -> usize {
        match self.random.below(8) {
            0 => 0,
            1 => 120 + self.random.below(300),
            _ => 1 + self.random.below(12),
        }
    }

    fn count(&mut self, count: usize) {
        if self.flexible {
            self.varint(count + 1);
        } else {
            self.bytes.extend(i32::try_from(count).expect("small").to_be_bytes());
        }
    }

    fn varint(&mut self, mut value: usize) {
        while value > 0x7f {
            self.bytes.push(u8::try_from(value & 0x7f).expect("seven bits") | 0x80);
            value >>= 7;
        }
        self.bytes.push(u8::try_from(value).expect("seven bits"));
    }
}

/// The default of a tagged field as it would be written.
fn default_bytes(field: &Field, version: i16) -> Vec<u8> {
    let mut writer = Writer::new(version, true);
    (field.write_default)(&mut writer);
    writer.into_joined().to_vec()
}
