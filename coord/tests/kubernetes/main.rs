//! Election, topics and endpoints against a real Kubernetes API server with RBAC, as the brokers' service account.

#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

mod cluster;
mod deployment;
mod election;
mod endpoints;
mod server;
mod topics;
