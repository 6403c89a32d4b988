//! What measurements and end-to-end tests share: a broker process under control, and a small blocking Kafka client.

pub mod broker;
pub mod client;
