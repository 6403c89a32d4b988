//! The log of a led partition: segments, group commits, the tail in memory.
//!
//! [`led_log`] is the log under one leader epoch, [`appender`] writes it, [`reader`] reads it, [`recovery`] finds out
//! where it ends. All shard-local.

pub mod append_queue;
pub mod appender;
pub mod batch_check;
pub mod commit;
pub mod context;
pub mod last_append;
pub mod led_log;
pub mod open_segments;
pub mod persist;
pub mod read_ahead;
pub mod read_progress;
pub mod reader;
pub mod recovery;
pub mod segment;
pub mod tail_cache;
