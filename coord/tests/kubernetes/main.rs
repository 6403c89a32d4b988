//! Election, topics and endpoints against a real Kubernetes API server with RBAC, as the brokers' service account.

#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

#[allow(unreachable_pub, reason = "the file is a part of kaas-bench, too")]
#[path = "../../../bench/src/api_server.rs"]
mod api_server;
mod cluster;
mod deployment;
mod election;
mod endpoints;
mod topics;
