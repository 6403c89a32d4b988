//! Consumer groups: the coordinator of the slots that this shard leads.
//!
//! A slot is led like a partition (same log, same fence, same takeover). Its log holds committed offsets and the
//! membership of finished rebalances; everything else about a group is in memory and ends with the leadership.
//!
//! [`state`] is the state machine of a group, pure: `(now, input) -> effects`, with [`join`], [`round`], [`sync`] and
//! [`leave`].
//! Everything here is shard-local.

mod admin;
mod answer;
mod commits;
pub mod config;
pub mod consumer_protocol;
pub mod coordinator;
pub mod effect;
pub mod error;
pub mod ids;
pub mod join;
pub mod journal;
pub mod leave;
pub mod ledger;
pub mod member;
pub mod metadata;
pub mod offsets;
pub mod operation;
pub mod phase;
pub mod protocol;
pub mod record;
mod refusal;
pub mod replay;
mod request;
pub mod round;
pub mod slot;
pub mod slot_log;
pub mod state;
pub mod sync;
pub mod usage;

#[cfg(test)]
mod tests;
