//! Shards on a volume in memory, under virtual time.

#![allow(unreachable_pub, reason = "the modules of a test are its own")]
#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

mod appending;
mod basics;
mod commands;
mod compaction;
mod compaction_log;
mod damage;
mod deleting;
mod deposed;
mod every_file;
mod failures;
mod few_slots;
mod files;
mod gone;
mod groups;
mod handles;
mod hanging;
mod harness;
mod interrupting;
mod random;
mod reading;
mod recovering;
mod reserve;
mod stepping;
mod takeover;
mod timestamps;
mod transactions;
