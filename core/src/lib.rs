//! `kaas-core`: one shard of a broker and everything that it owns.
//!
//! Nothing here is shared between threads. The outside world (files, clock, tasks, randomness) comes in through
//! [`env::Env`]; production hands in glommio and io_uring, tests and local-dev mode a volume in memory.

pub mod env;
pub mod group;
