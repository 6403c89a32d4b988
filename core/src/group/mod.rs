//! Consumer groups: the coordinator of the slots that this shard leads.
//!
//! A slot is led like a partition (same log, same fence, same takeover). Its log holds committed offsets and the
//! membership of finished rebalances; everything else about a group is in memory and ends with the leadership.
//!
//! Everything here is shard-local. From the inside out:
//! - [`state`] is the state machine of a group, pure: `(now, input) -> effects`, with [`join`], [`round`], [`sync`] and
//!   [`leave`]; its phases are drawn in [`phase`];
//! - [`offsets`] are what groups have committed, [`record`] says all of it in the log of a slot, [`ledger`] is the sum of
//!   those records, pure;
//! - [`slot`] is one slot, sync: groups in memory, writes on their way ([`journal`]), requests that wait;
//! - [`coordinator`] owns the slots of the shard and the tasks that replay, write and wait for the clock.
//!
//! A request is answered at once, or by a step of its group, or when its records are durable; and in any case when the
//! leadership of the slot ends.

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
