//! Metadata 0–13: brokers, topics, and who leads what.
//!
//! All topics are asked for with an empty list in version 0, with null from 1 on, where an empty list means none. By id
//! from version 12 on; 10 and 11 know ids but can't ask by them. Leader epochs from 7 on.
//!
//! A topic that does not exist is created if `auto.create.topics.enable` and, from version 4 on, the client allow it. The
//! response has the new topic, or LEADER_NOT_AVAILABLE if that takes longer than
//! [`AUTO_CREATE_WAIT`](crate::limits::AUTO_CREATE_WAIT); clients ask again then.
//!
//! Differences from Kafka: the leader is the only replica. A partition that nobody leads has no replicas at all. The
//! controller is the real one, there being no separate quorum to hide. Everything is authorized.

use std::collections::{BTreeMap, HashSet};

use kaas_proto::control::{ControlRequest, NewTopic, TopicRefusal};
use kaas_proto::kafka::messages::metadata::{
    MetadataRequest, MetadataRequestTopic, MetadataResponse, MetadataResponseBroker, MetadataResponsePartition,
    MetadataResponseTopic,
};
use kaas_proto::kafka::{ErrorCode, KafkaString};
use kaas_proto::topic_name;
use kaas_proto::types::{BrokerId, PartitionIndex, TopicId};
use kaas_proto::view::{ClusterView, TopicView};

use crate::authorized_operations;
use crate::cluster::{self, TopicRef};
use crate::context::{Call, Handle};
use crate::limits::{AUTO_CREATE_WAIT, AUTO_CREATED_TOPICS};

/// The first version in which an empty list means no topics.
const EMPTY_MEANS_NONE: i16 = 1;
/// The first version that asks by id.
const TOPIC_IDS: i16 = 12;

impl Handle for MetadataRequest {
    async fn handle(self, call: &Call) -> MetadataResponse {
        let mut refused = BTreeMap::new();
        let wanted = self.topics.filter(|topics| call.version >= EMPTY_MEANS_NONE || !topics.is_empty());
        let wanted = wanted.map(|topics| distinct(&topics, call.version));
        if let Some(wanted) = &wanted
            && self.allow_auto_topic_creation
            && call.shard.config.auto_create_topics
        {
            refused = create_missing(wanted, call).await;
        }
        let view = call.view();
        let row = |topic: &TopicView| topic_row(&view, topic, call, self.include_topic_authorized_operations);
        let topics = match wanted {
            None => view.topics.values().map(|topic| row(topic)).collect(),
            Some(wanted) => wanted
                .into_iter()
                .map(|wanted| match wanted {
                    Wanted::Topic(topic) => match topic.find(&view) {
                        Ok(found) => row(found),
                        Err(code) => missing_row(&topic, missing_code(&topic, code, &refused)),
                    },
                    Wanted::Nothing => error_row(ErrorCode::InvalidRequest, Some("".into()), TopicId::ZERO),
                })
                .collect(),
        };
        let brokers = cluster::alive_endpoints(&view, &call.client).into_iter();
        let brokers =
            brokers.map(|at| MetadataResponseBroker { node_id: at.id, host: at.host, port: at.port, rack: at.rack });
        MetadataResponse {
            brokers: brokers.collect(),
            cluster_id: Some(KafkaString::from(&*view.cluster_id)),
            controller_id: view.controller.unwrap_or(BrokerId(-1)),
            topics,
            cluster_authorized_operations: if self.include_cluster_authorized_operations {
                authorized_operations::CLUSTER
            } else {
                i32::MIN
            },
            ..Default::default()
        }
    }
}

/// One entry of the list of topics.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Wanted {
    Topic(TopicRef),
    /// Neither a name nor an id that this version may ask by.
    Nothing,
}

/// What is asked for, each once.
fn distinct(topics: &[MetadataRequestTopic], version: i16) -> Vec<Wanted> {
    let mut seen = HashSet::new();
    let wanted = topics.iter().map(|topic| match &topic.name {
        _ if version >= TOPIC_IDS && topic.topic_id != TopicId::ZERO => Wanted::Topic(TopicRef::Id(topic.topic_id)),
        Some(name) => Wanted::Topic(TopicRef::Name(name.clone())),
        None => Wanted::Nothing,
    });
    wanted.filter(|wanted| seen.insert(wanted.clone())).collect()
}

/// Creates the topics that do not exist; returns what was refused.
async fn create_missing(wanted: &[Wanted], call: &Call) -> BTreeMap<String, ErrorCode> {
    let view = call.view();
    let missing = wanted.iter().filter_map(|wanted| match wanted {
        Wanted::Topic(TopicRef::Name(name)) if view.topic(name).is_none() && topic_name::check(name).is_ok() => {
            Some(&**name)
        }
        _ => None,
    });
    let topics: Vec<NewTopic> = missing
        .take(AUTO_CREATED_TOPICS)
        .map(|name| NewTopic { name: name.into(), partitions: -1, configs: BTreeMap::new() })
        .collect();
    if topics.is_empty() {
        return BTreeMap::new();
    }
    let names: Vec<String> = topics.iter().map(|topic| topic.name.to_string()).collect();
    let create = |reply| ControlRequest::CreateTopics { topics, validate_only: false, reply };
    let results = match call.shard.ask_control(AUTO_CREATE_WAIT, create).await {
        Ok(results) => results.into_iter().map(|result| result.outcome.err()).collect(),
        Err(_) => vec![None; names.len()],
    };
    // Whatever is on its way, or was created by another client meanwhile, appears soon.
    let code = |refusal: Option<TopicRefusal>| match refusal.map(|refusal| refusal.code) {
        None | Some(ErrorCode::TopicAlreadyExists | ErrorCode::RequestTimedOut) => ErrorCode::LeaderNotAvailable,
        Some(code) => code,
    };
    names.into_iter().zip(results.into_iter().map(code)).collect()
}

fn missing_code(topic: &TopicRef, code: ErrorCode, refused: &BTreeMap<String, ErrorCode>) -> ErrorCode {
    match topic {
        TopicRef::Name(name) if topic_name::check(name).is_err() => ErrorCode::InvalidTopicException,
        TopicRef::Name(name) => refused.get(&**name).copied().unwrap_or(code),
        TopicRef::Id(_) => code,
    }
}

fn missing_row(topic: &TopicRef, code: ErrorCode) -> MetadataResponseTopic {
    match topic {
        TopicRef::Name(name) => error_row(code, Some(name.clone()), TopicId::ZERO),
        TopicRef::Id(id) => error_row(code, None, *id),
    }
}

fn error_row(error_code: ErrorCode, name: Option<KafkaString>, topic_id: TopicId) -> MetadataResponseTopic {
    let is_internal = name.as_deref().is_some_and(topic_name::is_internal);
    MetadataResponseTopic { error_code, name, topic_id, is_internal, ..Default::default() }
}

fn topic_row(view: &ClusterView, topic: &TopicView, call: &Call, operations: bool) -> MetadataResponseTopic {
    let partitions = (0..).zip(&topic.partitions).map(|(index, partition)| {
        let state = cluster::partition_state(view, *partition, &call.client);
        MetadataResponsePartition {
            error_code: state.code,
            partition_index: PartitionIndex(index),
            leader_id: state.leader,
            leader_epoch: state.epoch,
            replica_nodes: state.replicas,
            isr_nodes: state.in_sync,
            offline_replicas: state.offline,
        }
    });
    MetadataResponseTopic {
        error_code: ErrorCode::None,
        name: Some(KafkaString::from(&*topic.name)),
        topic_id: topic.id,
        is_internal: topic.is_internal(),
        partitions: partitions.collect(),
        topic_authorized_operations: if operations { authorized_operations::TOPIC } else { i32::MIN },
    }
}
