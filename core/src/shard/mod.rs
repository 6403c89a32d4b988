//! One shard: the operations that it carries out, and the ways to it.

pub mod operation;
pub mod port;
pub mod producer_ids;
