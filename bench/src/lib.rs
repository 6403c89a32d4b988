//! What measurements and end-to-end tests share: broker processes under control, and small blocking Kafka clients.

pub mod api_server;
pub mod broker;
pub mod client;
pub mod cluster;
pub mod load;
pub mod proxy;
pub mod random;
pub mod rename_pause;
pub mod scenario;
pub mod small_volume;
pub mod tester;
