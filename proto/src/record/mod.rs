//! Record batches (format v2, "magic 2"), as they are on the wire and in a segment.
//!
//! The broker passes batches through as opaque bytes and looks at their 61 bytes of header only. What lies behind is read
//! in four cases: a compacted topic must refuse records without key, a client left the largest timestamp unset, someone asks
//! for the offset that belongs to a timestamp, and compaction drops records.

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

pub use batch::{BatchError, Batches, Compression, RecordBatchView};
pub use builder::BatchBuilder;
pub use control::ControlRecordType;
pub use filter::{Filter, Filtered};
pub use record::{Record, RecordError, RecordSet};
