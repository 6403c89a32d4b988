//! Shards on a volume in memory, under virtual time.

#![allow(unreachable_pub, reason = "the modules of a test are its own")]
#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

mod basics;
mod groups;
mod harness;
