//! The Kafka wire protocol: one declaration per message gives its reader, its writer and its description.
//!
//! On the way in nothing is copied: strings, bytes and records are slices of the frame. On the way out records are never
//! joined with what surrounds them: a frame is a list of parts. Every length is checked against the bytes that are left
//! before anything is allocated, so no input can panic or make a reader allocate more than a small multiple of itself.

#[macro_use]
mod message;

pub mod api_key;
pub mod consumer_protocol;
pub mod error_code;
mod field;
pub mod frame;
pub mod header;
pub mod messages;
pub mod records;
pub mod schema;
pub mod wire;
pub mod writer;

pub use api_key::{Api, ApiKey};
pub use error_code::ErrorCode;
pub use frame::{Frame, FrameError, RequestFrame};
pub use header::{RequestHeader, ResponseHeader};
pub use message::{Message, Request};
pub use records::Records;
pub use wire::{DecodeCause, DecodeError, KafkaString};
