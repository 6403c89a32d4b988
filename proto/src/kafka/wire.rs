//! Reading: [`Reader`] walks over a frame, [`Wire`] is what a field of a message can be.

use bytes::Bytes;
use thiserror::Error;

use super::schema::Kind;
use super::writer::Writer;

/// A string of a message: UTF-8 checked once, a slice of its frame.
///
/// It keeps the whole frame in memory. What outlives the request should hold `KafkaString::from(&*string)` or a `String`.
pub type KafkaString = bytestring::ByteString;

/// The longest string that the protocol allows, in either form.
pub const MAX_STRING_BYTES: usize = 0x7fff;

/// Elements of all arrays of one request. A broker leads fewer partitions, and whoever names each of them once stays
/// below; an element takes a few bytes on the wire and a hundred times as many where it is worked on.
pub const MAX_REQUEST_ELEMENTS: usize = 200_000;

/// Bytes that are no valid message, and where.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("{structure}{}{field} at byte {offset}: {cause}", if field.is_empty() { "" } else { "." })]
pub struct DecodeError {
    /// The message or nested structure that was being read.
    pub structure: &'static str,
    /// Its field; empty when the error concerns the structure as such.
    pub field: &'static str,
    /// Position in the bytes that were given to read.
    pub offset: usize,
    /// What is wrong there.
    pub cause: DecodeCause,
}

/// What is wrong with the bytes of a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum DecodeCause {
    /// The field claims more bytes than are left.
    #[error("needs {needed} bytes, {left} are left")]
    TooShort { needed: usize, left: usize },
    /// A length below zero, other than the −1 that stands for null.
    #[error("length {0} is negative")]
    NegativeLength(i32),
    /// A string longer than [`MAX_STRING_BYTES`].
    #[error("string of {0} bytes is longer than {MAX_STRING_BYTES}")]
    StringTooLong(usize),
    /// More elements than one request may have.
    #[error("more than {MAX_REQUEST_ELEMENTS} elements in one request")]
    TooManyElements,
    /// A variable-length integer that does not end, or exceeds its type.
    #[error("variable-length integer does not fit its type")]
    VarintTooLong,
    /// A string that is not UTF-8.
    #[error("string is not UTF-8")]
    NotUtf8,
    /// Null where this version of the message has no null.
    #[error("null is not allowed in this version")]
    UnexpectedNull,
    /// The field or message is shorter than the bytes given for it.
    #[error("{0} bytes are left over")]
    LeftOver(usize),
    /// The message does not exist in this version.
    #[error("version {0} does not exist")]
    UnknownVersion(i16),
}

impl DecodeError {
    /// Names the field, unless a deeper one is named already.
    pub(crate) fn within(mut self, structure: &'static str, field: &'static str) -> Self {
        if self.structure.is_empty() {
            self.structure = structure;
            self.field = field;
        }
        self
    }
}

/// What a field of a message can be. `nullable` says whether this version of the field may be null; only types with a
/// null form look at it.
pub trait Wire: Sized {
    /// The type in Kafka's definitions.
    const KIND: Kind;

    /// The fewest bytes that a value can take, so that an array's length can be refused before it is believed.
    fn min_bytes(version: i16, flexible: bool) -> usize;

    /// Reads one value.
    fn read(reader: &mut Reader, nullable: bool) -> Result<Self, DecodeError>;

    /// Writes one value.
    fn write(&self, writer: &mut Writer, nullable: bool);
}

/// A type that has a null form on the wire: `Option` of it is a field.
pub trait Nullable: Wire + Default {
    /// Reads a value or null.
    fn read_nullable(reader: &mut Reader) -> Result<Option<Self>, DecodeError>;

    /// Writes null.
    fn write_null(writer: &mut Writer);

    /// Writes a value where null would be possible.
    fn write_some(&self, writer: &mut Writer) {
        self.write(writer, true);
    }
}

/// A position in a frame, and the version that it is read in.
#[derive(Debug)]
pub struct Reader {
    data: Bytes,
    position: usize,
    end: usize,
    version: i16,
    flexible: bool,
    /// Array elements that may still be read.
    elements_left: usize,
}

impl Reader {
    /// Reads `data` from its start.
    #[must_use]
    pub fn new(data: Bytes, version: i16, flexible: bool) -> Self {
        let end = data.len();
        Self { data, position: 0, end, version, flexible, elements_left: usize::MAX }
    }

    /// Reads no more array elements than so many, all arrays together.
    #[must_use]
    pub fn with_elements(self, most: usize) -> Self {
        Self { elements_left: most, ..self }
    }

    /// Array elements that may still be read.
    #[must_use]
    pub fn elements_left(&self) -> usize {
        self.elements_left
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

    /// Bytes that are not read yet.
    #[must_use]
    pub fn left(&self) -> usize {
        self.end - self.position
    }

    /// What is not read yet.
    #[must_use]
    pub fn rest(&self) -> Bytes {
        self.data.slice(self.position..self.end)
    }

    /// An error at the current position.
    #[must_use]
    pub fn error(&self, cause: DecodeCause) -> DecodeError {
        DecodeError { structure: "", field: "", offset: self.position, cause }
    }

    fn check(&self, needed: usize) -> Result<(), DecodeError> {
        let left = self.left();
        if needed > left { Err(self.error(DecodeCause::TooShort { needed, left })) } else { Ok(()) }
    }

    /// Reads `N` bytes.
    pub fn array<const N: usize>(&mut self) -> Result<[u8; N], DecodeError> {
        let left = self.left();
        match self.data[self.position..self.end].first_chunk::<N>() {
            Some(chunk) => {
                let chunk = *chunk;
                self.position += N;
                Ok(chunk)
            }
            None => Err(self.error(DecodeCause::TooShort { needed: N, left })),
        }
    }

    /// Takes a slice of the frame, without copying.
    pub fn slice(&mut self, length: usize) -> Result<Bytes, DecodeError> {
        self.check(length)?;
        let slice = self.data.slice(self.position..self.position + length);
        self.position += length;
        Ok(slice)
    }

    /// Passes over bytes.
    pub fn skip(&mut self, length: usize) -> Result<(), DecodeError> {
        self.check(length)?;
        self.position += length;
        Ok(())
    }

    /// Reads an unsigned variable-length integer of at most 32 bits.
    pub fn unsigned_varint(&mut self) -> Result<u32, DecodeError> {
        let mut value = 0_u32;
        for index in 0..5 {
            let [byte] = self.array()?;
            let bits = u32::from(byte & 0x7f);
            if index == 4 && byte > 0x0f {
                break;
            }
            value |= bits << (7 * index);
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err(self.error(DecodeCause::VarintTooLong))
    }

    /// A length in front of a string: `None` stands for null. Checked against the bytes left.
    pub(crate) fn string_length(&mut self) -> Result<Option<usize>, DecodeError> {
        let length = if self.flexible {
            self.compact_length()?
        } else {
            let length = i16::from_be_bytes(self.array()?);
            self.plain_length(i32::from(length))?
        };
        match length {
            Some(length) if length > MAX_STRING_BYTES => Err(self.error(DecodeCause::StringTooLong(length))),
            length => Ok(length),
        }
    }

    /// A length in front of bytes, records or an array: `None` stands for null. Not yet checked for arrays.
    pub(crate) fn length(&mut self) -> Result<Option<usize>, DecodeError> {
        if self.flexible {
            self.compact_length()
        } else {
            let length = i32::from_be_bytes(self.array()?);
            self.plain_length(length)
        }
    }

    fn compact_length(&mut self) -> Result<Option<usize>, DecodeError> {
        Ok((self.unsigned_varint()? as usize).checked_sub(1))
    }

    fn plain_length(&self, length: i32) -> Result<Option<usize>, DecodeError> {
        match usize::try_from(length) {
            Ok(length) => Ok(Some(length)),
            Err(_) if length == -1 => Ok(None),
            Err(_) => Err(self.error(DecodeCause::NegativeLength(length))),
        }
    }

    /// Reads an array whose length is known, but not yet believed.
    pub(crate) fn elements<T: Wire>(&mut self, count: usize) -> Result<Vec<T>, DecodeError> {
        self.check(count.saturating_mul(T::min_bytes(self.version, self.flexible)))?;
        self.elements_left =
            self.elements_left.checked_sub(count).ok_or_else(|| self.error(DecodeCause::TooManyElements))?;
        let mut elements = Vec::with_capacity(count);
        for _ in 0..count {
            elements.push(T::read(self, false)?);
        }
        Ok(elements)
    }

    /// Reads the section of tagged fields at the end of a structure. `read_known` reads the ones it knows and says so;
    /// others are passed over by their size.
    pub(crate) fn tagged_fields(
        &mut self,
        mut read_known: impl FnMut(u32, &mut Self) -> Result<bool, DecodeError>,
    ) -> Result<(), DecodeError> {
        let count = self.unsigned_varint()?;
        for _ in 0..count {
            let tag = self.unsigned_varint()?;
            let size = self.unsigned_varint()? as usize;
            self.check(size)?;
            let outer_end = self.end;
            self.end = self.position + size;
            if read_known(tag, self)? {
                self.finish()?;
            }
            self.position = self.end;
            self.end = outer_end;
        }
        Ok(())
    }

    /// Demands that everything is read.
    pub fn finish(&self) -> Result<(), DecodeError> {
        match self.left() {
            0 => Ok(()),
            left => Err(self.error(DecodeCause::LeftOver(left))),
        }
    }
}
