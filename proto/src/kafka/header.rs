//! What stands in front of a message: [`RequestHeader`] and [`ResponseHeader`].

use bytes::Bytes;

use super::wire::{DecodeError, KafkaString, Nullable, Reader};
use super::writer::Writer;

/// In front of every request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RequestHeader {
    /// The API, as a bare number: it may be one that we do not know.
    pub request_api_key: i16,
    /// The version of the request, and of its response.
    pub request_api_version: i16,
    /// Repeated in the response.
    pub correlation_id: i32,
    /// What the client calls itself.
    pub client_id: Option<KafkaString>,
}

impl RequestHeader {
    /// Key, version and correlation id: the part that is the same in all versions of the header.
    pub const FIXED_BYTES: usize = 8;

    /// Reads only the part that is the same in all versions of the header; the client id stays null.
    pub fn read_fixed(reader: &mut Reader) -> Result<Self, DecodeError> {
        let mut header = Self::default();
        let within = |field| move |error: DecodeError| error.within("RequestHeader", field);
        header.request_api_key = i16::from_be_bytes(reader.array().map_err(within("request_api_key"))?);
        header.request_api_version = i16::from_be_bytes(reader.array().map_err(within("request_api_version"))?);
        header.correlation_id = i32::from_be_bytes(reader.array().map_err(within("correlation_id"))?);
        Ok(header)
    }

    /// Reads what follows the fixed part: a client id, and in flexible requests (header version 2) tagged fields, of
    /// which none is known.
    pub fn read_rest(&mut self, reader: &mut Reader, flexible: bool) -> Result<(), DecodeError> {
        // The client id keeps its two-byte length in all versions, so that any broker can read any ApiVersions request.
        let mut plain = Reader::new(reader.rest(), 1, false);
        self.client_id = KafkaString::read_nullable(&mut plain).map_err(|mut error| {
            error.offset += Self::FIXED_BYTES;
            error.within("RequestHeader", "client_id")
        })?;
        reader.skip(reader.left() - plain.left())?;
        if flexible {
            reader.tagged_fields(|_, _| Ok(false)).map_err(|error| error.within("RequestHeader", "tagged fields"))?;
        }
        Ok(())
    }

    /// Writes the header in version 1, or 2 for a flexible request.
    pub fn write(&self, writer: &mut Writer, flexible: bool) {
        writer.put(&self.request_api_key.to_be_bytes());
        writer.put(&self.request_api_version.to_be_bytes());
        writer.put(&self.correlation_id.to_be_bytes());
        writer.set_version(1, false);
        match &self.client_id {
            Some(client_id) => writer.put_string(client_id),
            None => writer.put_null_string(),
        }
        if flexible {
            writer.put_unsigned_varint(0);
        }
    }
}

/// In front of every response.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ResponseHeader {
    /// The one of the request.
    pub correlation_id: i32,
}

impl ResponseHeader {
    /// Reads the header in version 0, or 1 if flexible, and returns what follows.
    pub fn read(frame: Bytes, flexible: bool) -> Result<(Self, Bytes), DecodeError> {
        let mut reader = Reader::new(frame, 0, flexible);
        let within = |error: DecodeError| error.within("ResponseHeader", "correlation_id");
        let correlation_id = i32::from_be_bytes(reader.array().map_err(within)?);
        if flexible {
            reader.tagged_fields(|_, _| Ok(false)).map_err(|error| error.within("ResponseHeader", "tagged fields"))?;
        }
        Ok((Self { correlation_id }, reader.rest()))
    }

    /// Writes the header in version 0, or 1 if flexible.
    pub fn write(self, writer: &mut Writer, flexible: bool) {
        writer.put(&self.correlation_id.to_be_bytes());
        if flexible {
            writer.put_unsigned_varint(0);
        }
    }
}
