//! `kaas-net`: Kafka clients and this broker. Listeners, connections, dispatch, one handler per API, and the routing of
//! requests to the shards that own their partitions.
//!
//! Everything is shard-local unless it says otherwise: a connection stays on the shard that accepted it. Decisions about
//! partitions and groups are `kaas-core`'s, reached through `ShardPort`; topics are the control thread's, reached through
//! `ControlRequest`; who leads what is read from `ClusterView` alone.

mod activity;
mod authorized_operations;
mod close_reason;
mod cluster;
mod config_resource;
mod connection;
mod context;
mod coordinator;
mod deadline;
mod dispatch;
mod error_map;
mod fetch_session;
mod foreign;
mod frame_buffer;
mod handlers;
mod in_flight;
mod leaders;
pub mod limits;
pub mod listener;
mod memory;
pub mod metrics;
mod route;
pub mod server;
mod socket;
