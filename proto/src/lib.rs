//! `kaas-proto`: every contract of kaas. Newtypes, the Kafka wire codec, record batches, configuration tables, the
//! cluster view, and the messages between shards and the control thread. No I/O, no runtime.

pub mod config;
pub mod control;
pub mod format;
pub mod heartbeat;
pub mod kafka;
pub mod layout;
pub mod log_limit;
pub mod metrics;
pub mod record;
pub mod reserve;
pub mod roots;
pub mod topic_name;
pub mod types;
pub mod utc_time;
pub mod view;
