//! Scenarios on the simulated volume: who plays, what happens, and what must hold.

pub mod broker;
pub mod cluster;
pub mod ending;
pub mod guard;
pub mod oracle;
pub mod producer;
pub mod profile;
pub mod run;
pub mod scenario;
