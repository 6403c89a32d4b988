//! Writing: [`Writer`] collects a message as parts, so that records travel from the log to the socket uncopied.

use bytes::{BufMut, Bytes, BytesMut};

use super::records::Records;
use super::wire::MAX_STRING_BYTES;

/// Room for most answers; larger ones grow.
const INITIAL_CAPACITY: usize = 512;

/// Collects what is written. Everything but records goes to one growing buffer; records are remembered as they are,
/// together with the position at which they belong.
#[derive(Debug)]
pub struct Writer {
    buffer: BytesMut,
    splices: Vec<Splice>,
    spliced_bytes: usize,
    version: i16,
    flexible: bool,
}

#[derive(Debug)]
struct Splice {
    /// Position in `Writer::buffer` in front of which the part belongs.
    position: usize,
    part: Bytes,
}

impl Writer {
    /// An empty writer for a version of a message.
    #[must_use]
    pub fn new(version: i16, flexible: bool) -> Self {
        let buffer = BytesMut::with_capacity(INITIAL_CAPACITY);
        Self { buffer, splices: Vec::new(), spliced_bytes: 0, version, flexible }
    }

    /// The version of the message.
    #[must_use]
    pub fn version(&self) -> i16 {
        self.version
    }

    /// Whether the version uses compact lengths and tagged fields.
    #[must_use]
    pub fn flexible(&self) -> bool {
        self.flexible
    }

    /// What follows is of this version: the body behind a header.
    pub(crate) fn set_version(&mut self, version: i16, flexible: bool) {
        self.version = version;
        self.flexible = flexible;
    }

    /// Bytes written so far, records included.
    #[must_use]
    pub fn bytes_written(&self) -> usize {
        self.buffer.len() + self.spliced_bytes
    }

    /// Writes bytes as they are.
    pub fn put(&mut self, bytes: &[u8]) {
        self.buffer.put_slice(bytes);
    }

    /// Writes an unsigned variable-length integer.
    pub fn put_unsigned_varint(&mut self, value: u32) {
        let (bytes, length) = unsigned_varint(value);
        self.put(&bytes[..length]);
    }

    /// Writes a length in front of bytes, records or an array.
    pub(crate) fn put_length(&mut self, length: usize) {
        // A frame is at most 2 GiB long, so nothing longer can be meant to be sent.
        let length = i32::try_from(length).expect("a length fits 31 bits");
        if self.flexible {
            self.put_unsigned_varint(length.unsigned_abs() + 1);
        } else {
            self.put(&length.to_be_bytes());
        }
    }

    /// Writes the null that stands for a length.
    pub(crate) fn put_null_length(&mut self) {
        if self.flexible {
            self.put_unsigned_varint(0);
        } else {
            self.put(&(-1_i32).to_be_bytes());
        }
    }

    /// Writes a string with its length. What exceeds the protocol's longest string is cut off: only texts for people,
    /// such as error messages, can be that long.
    pub(crate) fn put_string(&mut self, string: &str) {
        let mut end = string.len().min(MAX_STRING_BYTES);
        while !string.is_char_boundary(end) {
            end -= 1;
        }
        let string = &string[..end];
        if self.flexible {
            self.put_length(string.len());
        } else {
            self.put(&i16::try_from(string.len()).expect("cut to 15 bits").to_be_bytes());
        }
        self.put(string.as_bytes());
    }

    /// Writes the null that stands for a string.
    pub(crate) fn put_null_string(&mut self) {
        if self.flexible {
            self.put_unsigned_varint(0);
        } else {
            self.put(&(-1_i16).to_be_bytes());
        }
    }

    /// Writes records with their length, without copying them.
    pub(crate) fn put_records(&mut self, records: &Records) {
        self.put_length(records.len());
        let position = self.buffer.len();
        let parts = records.parts().iter().filter(|part| !part.is_empty());
        self.splices.extend(parts.map(|part| Splice { position, part: part.clone() }));
        self.spliced_bytes += records.len();
    }

    /// Writes a tagged field: tag, size, and what `write` writes.
    pub(crate) fn put_tagged(&mut self, tag: u32, write: impl FnOnce(&mut Self)) {
        self.put_unsigned_varint(tag);
        let start = self.buffer.len();
        write(self);
        let size = u32::try_from(self.buffer.len() - start).expect("a tagged field fits a frame");
        let (bytes, length) = unsigned_varint(size);
        // The size goes in front of what was written: move that up. Tagged fields are few and small.
        self.put(&bytes[..length]);
        self.buffer[start..].rotate_right(length);
    }

    /// Reserves four bytes for a number that is known later.
    pub(crate) fn reserve_i32(&mut self) -> usize {
        let position = self.buffer.len();
        self.put(&[0; 4]);
        position
    }

    /// Writes the number that [`Writer::reserve_i32`] made room for.
    pub(crate) fn fill_i32(&mut self, position: usize, value: i32) {
        self.buffer[position..position + 4].copy_from_slice(&value.to_be_bytes());
    }

    /// All that was written, in order. Small things between two parts of records are slices of one buffer.
    #[must_use]
    pub fn into_parts(self) -> Vec<Bytes> {
        let buffer = self.buffer.freeze();
        let mut parts = Vec::with_capacity(2 * self.splices.len() + 1);
        let mut position = 0;
        for splice in self.splices {
            if splice.position > position {
                parts.push(buffer.slice(position..splice.position));
                position = splice.position;
            }
            parts.push(splice.part);
        }
        if position < buffer.len() {
            parts.push(buffer.slice(position..));
        }
        parts
    }

    /// All that was written, joined into one buffer. For small things, and for tests.
    #[must_use]
    pub fn into_joined(self) -> Bytes {
        if self.splices.is_empty() { self.buffer.freeze() } else { self.into_parts().concat().into() }
    }
}

/// An unsigned variable-length integer, and how many of the bytes it takes.
fn unsigned_varint(mut value: u32) -> ([u8; 5], usize) {
    let mut bytes = [0; 5];
    let mut length = 0;
    loop {
        let low = value.to_le_bytes()[0] & 0x7f;
        value >>= 7;
        bytes[length] = if value == 0 { low } else { low | 0x80 };
        length += 1;
        if value == 0 {
            return (bytes, length);
        }
    }
}
