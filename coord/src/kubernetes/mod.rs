//! What cluster mode needs from Kubernetes: an elected controller, the topics that there are to be, ready endpoints.
//!
//! Nothing here touches the volume, and nothing of it runs in standalone or local-dev mode.
//!
//! | file | what |
//! |---|---|
//! | [`connection`] | where the API server is, and everything below started |
//! | [`election`] | who holds the Lease: decided |
//! | [`lease`], [`candidate`] | the Lease read and written; the decisions carried out |
//! | [`kafka_topic`] | the custom resource; `deploy/crd.yaml` is generated from it |
//! | [`desired`] | objects to topics: decided |
//! | [`topics`], [`status`] | objects followed, changed for clients, answered in their status |
//! | [`endpoints`] | pods that are ready |
//! | `objects` | list and watch, with relist and backoff |
//! | [`api_error`] | what the API server says, in words |

pub mod api_error;
pub mod candidate;
pub mod connection;
pub mod desired;
pub mod election;
pub mod endpoints;
pub mod kafka_topic;
pub mod lease;
mod objects;
pub mod status;
pub mod topics;
