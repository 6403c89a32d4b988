//! Whole frames: a request as it comes in, a response as it goes out, and both the other way round for clients.

use bytes::Bytes;
use thiserror::Error;

use super::api_key::{Api, ApiKey};
use super::header::{RequestHeader, ResponseHeader};
use super::message::{Message, Request};
use super::wire::{DecodeError, KafkaString, MAX_REQUEST_ELEMENTS, Reader};
use super::writer::Writer;

/// A frame to send, its four bytes of length included: parts that follow each other.
#[derive(Clone, Debug)]
pub struct Frame {
    parts: Vec<Bytes>,
    len: usize,
}

impl Frame {
    /// Encodes a response.
    #[must_use]
    pub fn response<M: Message>(api: &Api, version: i16, correlation_id: i32, body: &M) -> Self {
        Self::build(|writer| {
            ResponseHeader { correlation_id }.write(writer, api.flexible_response_header(version));
            body.encode(writer, version);
        })
    }

    /// Encodes a response in a version that Kafka has removed. Its fields are still declared with their versions; what a
    /// client of that age can read is up to the caller.
    #[must_use]
    pub fn response_in_removed_version<M: Message>(version: i16, correlation_id: i32, body: &M) -> Self {
        Self::build(|writer| {
            ResponseHeader { correlation_id }.write(writer, false);
            writer.set_version(version, false);
            body.write(writer, false);
        })
    }

    /// Encodes a request, for clients.
    #[must_use]
    pub fn request<R: Request>(version: i16, correlation_id: i32, client_id: Option<KafkaString>, body: &R) -> Self {
        Self::build(|writer| {
            let header = RequestHeader {
                request_api_key: R::API.code(),
                request_api_version: version,
                correlation_id,
                client_id,
            };
            header.write(writer, R::FLEXIBLE.contains(version));
            body.encode(writer, version);
        })
    }

    fn build(write: impl FnOnce(&mut Writer)) -> Self {
        let mut writer = Writer::new(0, false);
        let length = writer.reserve_i32();
        write(&mut writer);
        let len = writer.bytes_written();
        let length_after = i32::try_from(len - 4).expect("an answer is bounded far below 2 GiB");
        writer.fill_i32(length, length_after);
        Self { parts: writer.into_parts(), len }
    }

    /// The parts, in the order to send them.
    #[must_use]
    pub fn into_parts(self) -> Vec<Bytes> {
        self.parts
    }

    /// The parts, in the order to send them.
    #[must_use]
    pub fn parts(&self) -> &[Bytes] {
        &self.parts
    }

    /// Bytes of all parts.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "a frame is never empty")]
    pub fn len(&self) -> usize {
        self.len
    }
}

/// A request frame whose header is read and whose API and version are served.
#[derive(Clone, Debug)]
pub struct RequestFrame {
    /// The API.
    pub api: &'static Api,
    /// Version of the request, and of its response.
    pub version: i16,
    /// Repeated in the response.
    pub correlation_id: i32,
    /// What the client calls itself.
    pub client_id: Option<KafkaString>,
    /// The message.
    pub body: Bytes,
}

/// A frame that can not be dispatched.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum FrameError {
    /// The header is broken.
    #[error(transparent)]
    Header(#[from] DecodeError),
    /// No API of ours has this key.
    #[error("unknown API key {key} (version {version})")]
    UnknownApi { key: i16, version: i16, correlation_id: i32 },
    /// We serve the API, but not in this version.
    #[error("{} version {version} is not served, only {} to {}", api.name, api.min_version, api.max_version)]
    UnsupportedVersion { api: &'static Api, version: i16, correlation_id: i32 },
}

impl RequestFrame {
    /// Reads the header of a frame, which comes without its four bytes of length.
    pub fn parse(frame: Bytes) -> Result<Self, FrameError> {
        let mut reader = Reader::new(frame, 0, false);
        let mut header = RequestHeader::read_fixed(&mut reader)?;
        let (key, version) = (header.request_api_key, header.request_api_version);
        let correlation_id = header.correlation_id;
        let Some(key) = ApiKey::from_code(key) else {
            return Err(FrameError::UnknownApi { key, version, correlation_id });
        };
        let api = key.api();
        if !api.served().contains(&version) {
            return Err(FrameError::UnsupportedVersion { api, version, correlation_id });
        }
        header.read_rest(&mut reader, api.flexible(version))?;
        Ok(Self { api, version, correlation_id, client_id: header.client_id, body: reader.rest() })
    }

    /// Reads the message.
    pub fn decode<R: Request>(&self) -> Result<R, DecodeError> {
        self.decode_counted().map(|(message, _)| message)
    }

    /// Reads the message, and counts the elements of all its arrays.
    pub fn decode_counted<R: Request>(&self) -> Result<(R, usize), DecodeError> {
        debug_assert_eq!(R::API, self.api.key, "the message that belongs to the key");
        R::decode_counted(self.body.clone(), self.version, MAX_REQUEST_ELEMENTS)
    }

    /// Lets go of the message, for who only has to respond.
    pub fn release_body(&mut self) {
        (self.body, self.client_id) = (Bytes::new(), None);
    }

    /// Encodes the response to this request.
    #[must_use]
    pub fn respond<M: Message>(&self, body: &M) -> Frame {
        Frame::response(self.api, self.version, self.correlation_id, body)
    }
}

/// Reads a response frame, which comes without its four bytes of length: its correlation id and its message.
pub fn decode_response<R: Request>(version: i16, frame: Bytes) -> Result<(i32, R::Response), DecodeError> {
    let (header, body) = ResponseHeader::read(frame, R::API.api().flexible_response_header(version))?;
    Ok((header.correlation_id, R::Response::decode(body, version)?))
}
