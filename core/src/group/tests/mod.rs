//! Scenarios in virtual time, random walks, crashes.

#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

mod client;
mod consumers;
mod coordinating;
mod crashes;
mod harness;
mod joining;
mod leaving;
mod memory_log;
mod properties;
mod static_members;
mod syncing;
