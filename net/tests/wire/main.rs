//! The network side over loopback sockets, with shards and a control thread that live in memory: what real clients see of
//! framing, order, limits and each API.

#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]
#![allow(clippy::disallowed_methods, reason = "the client's side of a test blocks and reads the clock")]
#![allow(clippy::disallowed_types, reason = "the pretended broker is shared between the threads of a test")]

mod apis;
mod apis_md;
mod fetch;
mod groups;
mod hostile;
mod internal_topics;
mod metadata;
mod order;
mod partitions;
mod produce;
mod support;
mod topics;
