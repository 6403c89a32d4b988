//! A partition on this shard: who may write it, and what its batches mean.

pub mod error;
pub mod lifecycle;
pub mod producer_state;
pub mod retention;
pub mod transactions;
pub mod watch;
