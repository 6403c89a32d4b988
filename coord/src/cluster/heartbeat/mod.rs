//! The stream between each broker and the controller: `heartbeat.proto`.
//!
//! [`client`] is this broker's side, whoever the controller is; [`server`] the controller's, on every broker, open only while
//! it is the controller. [`messages`] translates, [`tls`] keeps others out.

pub mod client;
pub mod messages;
pub mod server;
pub mod tls;

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

/// The error and its causes: tonic's own text names none.
fn in_words(error: &tonic::transport::Error) -> String {
    let mut said = error.to_string();
    let mut cause = std::error::Error::source(error);
    while let Some(error) = cause {
        let words = error.to_string();
        if !said.contains(&words) {
            said = format!("{said}: {words}");
        }
        cause = error.source();
    }
    said
}

#[cfg(test)]
mod tests;
#[cfg(test)]
mod tls_tests;
