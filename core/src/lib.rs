//! `kaas-core`: one shard of a broker and everything that it owns.
//!
//! Nothing here is shared between threads. The outside world (files, clock, tasks, randomness) comes in through
//! [`env::Env`]; production hands in glommio and io_uring, tests and local-dev mode a volume in memory.
//!
//! From the inside out: [`log`] keeps batches in segments, [`partition`] decides who may write them and what they mean,
//! [`group`] coordinates consumer groups, [`shard`] owns the partitions of one core and carries out what request
//! handlers and the control thread ask for.

pub mod compaction;
pub mod env;
pub mod format;
pub mod group;
pub mod inspect;
pub mod log;
pub mod log_limit;
pub mod metrics;
pub mod partition;
pub mod planted;
pub mod shard;
pub mod steady_clock;
