//! The simulator: seeded scenarios of brokers on a volume that lies, and proof that they find bugs.

#![allow(unreachable_pub, reason = "the modules of a test are its own")]
#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

mod every_operation;
mod operation_counts;
mod planted;
mod play;
mod seeds;
