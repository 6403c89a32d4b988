//! Several brokers on one shared volume, of which one is the controller.
//!
//! Who that is, and which topics there are to be, comes from outside through [`ports`]. Who leads what is in `assignment.json`
//! on the volume, and nowhere else.
//!
//! ```text
//!   ports ──▶ controller ──▶ plan, balancer, slots ──▶ assignment_file ──▶ watcher ──▶ member ──▶ shards
//!                 ▲            (what to write)           (the volume)     (any broker)  │ follower, view
//!                 └──── registry ◀── heartbeat::server ◀── heartbeat::client ◀──────────┘
//! ```

pub mod assignment_file;
pub mod balancer;
mod broker;
mod configs;
mod controller;
pub mod follower;
pub mod found_epochs;
mod health;
pub mod heartbeat;
pub mod lag;
mod member;
pub mod plan;
pub mod ports;
mod provision;
pub mod registry;
pub mod releases;
#[cfg(test)]
pub(crate) mod sample;
mod shown;
pub mod slots;
pub mod stand_in;
mod topic_requests;
mod view;
pub mod watcher;

pub(crate) use broker::run;
pub use broker::{ClusterError, ClusterOptions, HeartbeatTls, Prepared, prepare};
pub(crate) use shown::ClusterHealth;
