//! Record batches (format v2, "magic 2"), as they are on the wire and in a segment.
//!
//! The broker passes batches through as opaque bytes. What lies behind their 61 bytes of header is gone over once when a client writes
//! it, so that nothing gets in that would stop a consumer; later only when someone asks for the offset that belongs to a timestamp, and
//! when compaction drops records.

pub mod batch;
pub mod builder;
pub mod compression;
pub mod control;
pub mod filter;
pub mod lookup;
pub mod patch;
#[expect(clippy::module_inception, reason = "a record is what the module is named for")]
pub mod record;
pub mod varint;
pub mod walk;

pub use batch::{BatchError, Batches, Compression, RecordBatchView};
pub use builder::BatchBuilder;
pub use control::ControlRecordType;
pub use filter::{Filter, Filtered};
pub use record::{Record, RecordError, RecordSet};
pub use walk::{Summarizing, Summary};
