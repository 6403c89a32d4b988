//! `kaas-coord`: the control thread. Topics, the cluster view, the admin endpoint.
//!
//! One named thread with its own single-threaded tokio runtime. It never waits for a shard without a deadline, and
//! never for the volume on its own thread: such calls run on blocking threads, so that probes and metrics stay up.

pub mod admin;
pub mod cluster;
pub mod cluster_id;
pub mod cluster_state;
pub mod kubernetes;
pub mod leadership;
mod log_limit;
mod outbox;
mod shard_pings;
pub mod shards;
mod signals;
pub mod standalone;
mod successor;
pub mod thread;
pub mod topics;
