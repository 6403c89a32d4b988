//! What a broker and the controller tell each other, as in `heartbeat.proto`. The service itself is made in `kaas-coord`.

#![allow(missing_debug_implementations, unreachable_pub, clippy::all, reason = "generated")]

include!(concat!(env!("OUT_DIR"), "/kaas.heartbeat.v1.rs"));
