//! Scenarios on the simulated volume: who plays, what happens, and what must hold.

pub mod broker;
pub mod clients;
pub mod cluster;
pub mod committer;
pub mod consumer;
pub mod ending;
pub mod guard;
pub mod lasting;
pub mod oracle;
pub mod payload;
pub mod producer;
pub mod profile;
pub mod rising;
pub mod run;
pub mod scenario;
pub mod transaction;
