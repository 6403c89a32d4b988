//! Where cluster mode meets what lies outside: an election, the readiness of endpoints, and the topics that there are to be.
//!
//! Channels, so that either side can be replaced: on Kubernetes a Lease, EndpointSlices and KafkaTopic objects stand
//! behind them; tests put something in one process behind them.

use std::collections::{BTreeMap, BTreeSet};
use std::pin::Pin;
use std::sync::Arc;

use kaas_proto::control::TopicRefusal;
use kaas_proto::types::{BrokerId, TopicId};
use tokio::sync::{Notify, mpsc, oneshot, watch};
use tokio::time::Instant;

/// Requests that may wait for the sink before those who send more have to wait.
pub const TOPIC_REQUEST_QUEUE_LENGTH: usize = 256;

/// All that cluster mode needs from outside.
#[derive(Debug)]
pub struct Ports {
    pub election: Election,
    pub topics: Topics,
    /// Brokers whose endpoint is ready; `None` while that is not known. Only a freshly elected controller looks at it.
    pub ready_endpoints: watch::Receiver<Option<BTreeSet<BrokerId>>>,
}

/// The highest controller epoch of the assignments that this broker has accepted: the Lease is not to count below it.
pub type EpochFloor = watch::Receiver<i32>;

/// Makes the ports, on the control thread and within its runtime.
pub type OpenPorts = Box<dyn FnOnce(EpochFloor) -> Pin<Box<dyn Future<Output = Result<Ports, PortsError>>>> + Send>;

/// What lies outside can't be reached; says what to change.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct PortsError(pub String);

/// The election of the controller. Every broker takes part until it resigns.
#[derive(Debug)]
pub struct Election {
    pub leadership: watch::Receiver<Leadership>,
    /// Gives the Lease back, if this broker holds it, and takes part no longer. Answered when that is done, or has failed.
    pub resign: oneshot::Sender<oneshot::Sender<()>>,
    /// To be told when the controller that `leadership` names does not answer: there may be another one.
    pub missed: Arc<Notify>,
}

/// Who is the controller, as far as this broker knows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Leadership {
    /// Nobody was elected yet, or the holder's time is up and no other is known.
    Unknown,
    Follower {
        /// `leaseTransitions`: assignments of a lower controller epoch are stale.
        lease_transitions: i32,
        controller: Controller,
    },
    /// This broker is. Sent again with every renewal.
    Controller {
        lease_transitions: i32,
        /// From then on it must not act, unless a renewal has moved it: earlier than anyone else can be elected.
        act_until: Instant,
    },
}

/// The elected broker, and where it listens for heartbeats.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Controller {
    pub broker: BrokerId,
    /// `HOST:PORT`.
    pub heartbeat: Arc<str>,
}

/// The topics that there are to be, and how to ask for others.
#[derive(Debug)]
pub struct Topics {
    /// All of them after every change; `None` until they were listed once. A state, not events: a topic that was deleted
    /// and created anew between two looks shows by its id.
    pub desired: watch::Receiver<Option<Arc<DesiredTopics>>>,
    pub requests: mpsc::Sender<TopicRequest>,
}

/// By name.
pub type DesiredTopics = BTreeMap<Arc<str>, DesiredTopic>;

/// A topic that there is to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DesiredTopic {
    pub name: Arc<str>,
    /// The incarnation: never changes, and another one for a topic that was created anew under the same name.
    pub id: TopicId,
    pub partitions: i32,
    /// Its own settings, by Kafka's names; not validated.
    pub configs: BTreeMap<String, String>,
}

/// A change that a client asked for, validated. Answered when it is accepted for good, which may be before `desired` shows it.
#[derive(Debug)]
pub enum TopicRequest {
    Create {
        name: Arc<str>,
        partitions: i32,
        configs: BTreeMap<String, String>,
        reply: oneshot::Sender<Result<DesiredTopic, TopicRefusal>>,
    },
    /// Concerns this incarnation and no other.
    Delete { name: Arc<str>, id: TopicId, reply: oneshot::Sender<Result<(), TopicRefusal>> },
    /// The number of partitions from now on.
    SetPartitions { name: Arc<str>, id: TopicId, partitions: i32, reply: oneshot::Sender<Result<(), TopicRefusal>> },
    /// All of the topic's own settings from now on.
    SetConfigs {
        name: Arc<str>,
        id: TopicId,
        configs: BTreeMap<String, String>,
        reply: oneshot::Sender<Result<(), TopicRefusal>>,
    },
}
