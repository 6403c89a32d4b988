//! Tests of the group state machine: scenarios in virtual time, and random walks.

#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

mod harness;
mod joining;
mod leaving;
mod properties;
mod static_members;
mod syncing;
