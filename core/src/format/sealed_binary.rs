//! The frame of the binary formats: magic, version, checksum. All numbers are big-endian, as in Kafka.
//!
//! | offset | size | field |
//! |---|---|---|
//! | 0 | 4 | magic |
//! | 4 | 2 | version |
//! | 6 | 2 | zero |
//! | 8 | 4 | CRC-32C of everything but these four bytes |
//! | 12 | | body |

use thiserror::Error;

pub(crate) const VERSION_AT: usize = 4;
const RESERVED_AT: usize = 6;
pub(crate) const CRC_AT: usize = 8;
pub(crate) const BODY_AT: usize = 12;

/// Why bytes are not the binary file that they should be.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum SealedBinaryError {
    #[error("the file is empty")]
    Empty,
    #[error("the file has {length} bytes, {needed} are needed")]
    Truncated { length: usize, needed: usize },
    #[error("the file does not start with {expected:?}")]
    Magic { expected: &'static str },
    #[error("version {version} is not known to this kaas, the newest is {newest}")]
    Version { version: u16, newest: u16 },
    #[error("the checksum says {stored:08x}, the content has {computed:08x}")]
    Checksum { stored: u32, computed: u32 },
    #[error("{what} at byte {position}")]
    Content { what: &'static str, position: usize },
}

/// Builds one file.
#[derive(Debug)]
pub(super) struct Encoder(Vec<u8>);

impl Encoder {
    pub(super) fn new(magic: &'static str, version: u16, body_bytes: usize) -> Self {
        let mut bytes = Vec::with_capacity(BODY_AT + body_bytes);
        assert_eq!(magic.len(), VERSION_AT, "a magic has four letters");
        bytes.extend_from_slice(magic.as_bytes());
        bytes.extend_from_slice(&version.to_be_bytes());
        bytes.resize(BODY_AT, 0);
        Self(bytes)
    }

    pub(super) fn put<const N: usize>(&mut self, bytes: [u8; N]) {
        self.0.extend_from_slice(&bytes);
    }

    pub(super) fn finish(mut self) -> Vec<u8> {
        let crc = checksum(&self.0);
        self.0[CRC_AT..BODY_AT].copy_from_slice(&crc.to_be_bytes());
        self.0
    }
}

fn checksum(bytes: &[u8]) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(&bytes[..CRC_AT]), &bytes[BODY_AT..])
}

/// Walks through one file whose checksum is right.
#[derive(Debug)]
pub(super) struct Decoder<'bytes> {
    bytes: &'bytes [u8],
    position: usize,
}

impl<'bytes> Decoder<'bytes> {
    /// The version is between 1 and `newest`.
    pub(super) fn new(magic: &'static str, newest: u16, bytes: &'bytes [u8]) -> Result<(u16, Self), SealedBinaryError> {
        if bytes.is_empty() {
            return Err(SealedBinaryError::Empty);
        }
        if bytes.len() < BODY_AT {
            return Err(SealedBinaryError::Truncated { length: bytes.len(), needed: BODY_AT });
        }
        if bytes[..VERSION_AT] != *magic.as_bytes() {
            return Err(SealedBinaryError::Magic { expected: magic });
        }
        let mut header = Decoder { bytes, position: VERSION_AT };
        let version = u16::from_be_bytes(header.take()?);
        if !(1..=newest).contains(&version) {
            return Err(SealedBinaryError::Version { version, newest });
        }
        header.position = CRC_AT;
        let stored = u32::from_be_bytes(header.take()?);
        let computed = checksum(bytes);
        if stored != computed {
            return Err(SealedBinaryError::Checksum { stored, computed });
        }
        if bytes[RESERVED_AT..CRC_AT] != [0, 0] {
            return Err(SealedBinaryError::Content { what: "reserved bytes are set", position: RESERVED_AT });
        }
        Ok((version, Decoder { bytes, position: BODY_AT }))
    }

    pub(super) fn take<const N: usize>(&mut self) -> Result<[u8; N], SealedBinaryError> {
        let taken = self
            .bytes
            .get(self.position..)
            .and_then(|rest| rest.first_chunk::<N>())
            .ok_or(SealedBinaryError::Truncated { length: self.bytes.len(), needed: self.position + N })?;
        self.position += N;
        Ok(*taken)
    }

    /// A count of things that take at least `bytes_each`, checked against the bytes that are left.
    pub(super) fn take_count(&mut self, bytes_each: usize) -> Result<usize, SealedBinaryError> {
        let count = usize::try_from(u32::from_be_bytes(self.take()?)).expect("usize has 32 bits or more");
        let needed = self.position.saturating_add(count.saturating_mul(bytes_each));
        if needed > self.bytes.len() {
            return Err(SealedBinaryError::Truncated { length: self.bytes.len(), needed });
        }
        Ok(count)
    }

    /// An error about what was read last, `width` bytes wide.
    pub(super) fn wrong(&self, what: &'static str, width: usize) -> SealedBinaryError {
        SealedBinaryError::Content { what, position: self.position - width }
    }

    pub(super) fn finish(self) -> Result<(), SealedBinaryError> {
        if self.position == self.bytes.len() {
            return Ok(());
        }
        Err(SealedBinaryError::Content { what: "bytes behind the end", position: self.position })
    }
}
