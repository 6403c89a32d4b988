//! The log of a led partition: segments, group commits, the tail in memory.

pub mod commit;
pub mod tail_cache;
