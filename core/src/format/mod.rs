//! What the shards write to the volume: one file per format, encode and decode without I/O. `FORMATS.md` has every byte;
//! [`kaas_proto::format`] has the files of the control thread.
//!
//! Readers accept every version that was ever written, writers write the newest. Nothing here trusts its input: lengths
//! are checked before anything is allocated, and a flipped bit is an error, never another valid value.

pub mod believed_time;
pub mod chain;
pub mod checkpoint;
pub mod fence;
pub mod index;
pub mod inventory;
pub mod manifest;
pub mod partition_file;
pub mod producer_id_block;
pub mod producer_snapshot;
pub(crate) mod sealed_binary;
pub mod segment_name;

pub use sealed_binary::SealedBinaryError;

#[cfg(test)]
#[path = "../../../proto/src/format/robustness.rs"]
mod robustness;
