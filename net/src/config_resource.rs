//! Resources that configurations belong to, as requests name them.

use std::collections::HashMap;
use std::sync::Arc;

use kaas_proto::config::broker::BrokerConfig;
use kaas_proto::control::{ConfigChange, ControlRequest, TopicResult};
use kaas_proto::kafka::{ErrorCode, KafkaString};
use kaas_proto::topic_name;
use kaas_proto::types::BrokerId;
use kaas_proto::view::ClusterView;

use crate::context::Call;
use crate::leaders::Refusal;
use crate::limits::ADMIN_TIMEOUT_MAX;

/// Kafka's numbers of the types of resources.
const TOPIC: i8 = 2;
const BROKER: i8 = 4;

/// A resource that has configurations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Resource<'a> {
    Topic(&'a str),
    /// This broker.
    Broker,
    /// What brokers have that set nothing themselves.
    AllBrokers,
}

/// What a request means by type and name.
///
/// # Errors
/// What the client is told if it means nothing.
pub(crate) fn find(kind: i8, name: &str, self_id: BrokerId) -> Result<Resource<'_>, Refusal> {
    match kind {
        TOPIC => match topic_name::check(name) {
            Ok(()) => Ok(Resource::Topic(name)),
            Err(error) => Err(Refusal::new(ErrorCode::InvalidTopicException, error.to_string())),
        },
        BROKER if name.is_empty() => Ok(Resource::AllBrokers),
        BROKER if name == self_id.to_string() => Ok(Resource::Broker),
        BROKER => {
            let message = format!("this is broker {self_id}; ask broker {name} itself about its configuration");
            Err(Refusal::new(ErrorCode::InvalidRequest, message))
        }
        _ => {
            let message = format!("resource type {kind} has no configurations here, only topics (2) and brokers (4)");
            Err(Refusal::new(ErrorCode::InvalidRequest, message))
        }
    }
}

/// A wanted change of one resource: type, name, and what to do or why that makes no sense.
#[derive(Debug)]
pub(crate) struct Alteration {
    pub(crate) kind: i8,
    pub(crate) name: KafkaString,
    pub(crate) change: Result<ConfigChange, Refusal>,
}

/// Checks all changes and has the control thread make those that are valid. One outcome per change, in order.
pub(crate) async fn alter(call: &Call, changes: Vec<Alteration>, validate_only: bool) -> Vec<Result<(), Refusal>> {
    let view = call.view();
    let mut mentions: HashMap<(i8, KafkaString), u32> = HashMap::new();
    for change in &changes {
        *mentions.entry((change.kind, change.name.clone())).or_default() += 1;
    }
    let mut outcomes = Vec::with_capacity(changes.len());
    let mut accepted = Vec::new();
    for Alteration { kind, name, change } in changes {
        let checked = if mentions[&(kind, name.clone())] > 1 {
            Err(Refusal::new(ErrorCode::InvalidRequest, "each resource may appear once"))
        } else {
            change.and_then(|change| check(kind, &name, change, &view, &call.shard.config))
        };
        outcomes.push(match checked {
            Ok(change) => {
                accepted.push((Arc::from(&*name), change));
                None
            }
            Err(refusal) => Some(Err(refusal)),
        });
    }
    let mut results = apply(call, accepted, validate_only).await.into_iter();
    let mut next = || results.next().expect("one result per change");
    outcomes.into_iter().map(|outcome| outcome.unwrap_or_else(&mut next)).collect()
}

fn check(
    kind: i8,
    name: &str,
    change: ConfigChange,
    view: &ClusterView,
    config: &BrokerConfig,
) -> Result<ConfigChange, Refusal> {
    let Resource::Topic(name) = find(kind, name, view.self_id)? else {
        let message = "broker configurations are set when the broker starts, with --set name=value";
        return Err(Refusal::new(ErrorCode::InvalidRequest, message));
    };
    let missing = || Refusal::new(ErrorCode::UnknownTopicOrPartition, format!("there is no topic {name}"));
    let topic = view.topic(name).ok_or_else(missing)?;
    let invalid = |error: kaas_proto::config::ConfigError| Refusal::new(ErrorCode::InvalidConfig, error.to_string());
    topic.config.changed(config, &change).map_err(invalid)?;
    Ok(change)
}

async fn apply(call: &Call, topics: Vec<(Arc<str>, ConfigChange)>, validate_only: bool) -> Vec<Result<(), Refusal>> {
    if topics.is_empty() {
        return vec![];
    }
    let count = topics.len();
    let request = |reply| ControlRequest::AlterTopicConfigs { topics, validate_only, reply };
    let outcome = |result: TopicResult| match result.outcome {
        Ok(_) => Ok(()),
        Err(refusal) => Err(Refusal::new(refusal.code, refusal.message)),
    };
    match call.shard.ask_control(ADMIN_TIMEOUT_MAX, request).await {
        Ok(results) => results.into_iter().map(outcome).collect(),
        Err(silence) => vec![Err(silence.into()); count],
    }
}

/// How an outcome is written into a response.
pub(crate) fn told(outcome: Result<(), Refusal>) -> (ErrorCode, Option<KafkaString>) {
    match outcome {
        Ok(()) => (ErrorCode::None, None),
        Err(Refusal { code, message }) => (code, Some(message.into())),
    }
}
