//! The stream between each broker and the controller: `heartbeat.proto`.
//!
//! [`client`] is this broker's side, whoever the controller is; [`server`] the controller's, on every broker, open only while
//! it is the controller. [`messages`] translates.

pub mod client;
pub mod messages;
pub mod server;

/// Client and server as tonic makes them.
mod service {
    #![allow(
        missing_debug_implementations,
        unreachable_pub,
        unused_qualifications,
        elided_lifetimes_in_paths,
        clippy::all,
        clippy::allow_attributes_without_reason,
        reason = "generated"
    )]
    tonic::include_proto!("kaas.heartbeat.v1");
}

#[cfg(test)]
mod tests;
