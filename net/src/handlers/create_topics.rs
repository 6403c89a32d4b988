//! CreateTopics 2–7: creates topics. The configurations of the new topic are returned from version 5 on, its id in 7.
//!
//! Every requested topic has a row; one that is named twice has one row, INVALID_REQUEST. -1 partitions and -1 replicas
//! mean the broker's defaults. `validate_only` changes nothing.
//!
//! Differences from Kafka: there is one copy of a partition, on the volume. Any replication factor is accepted and
//! reported as 1, so that tools and tests written for three brokers run. A manual assignment is accepted if it names
//! known brokers, and otherwise ignored: the balancer places partitions.

use std::collections::{BTreeMap, HashMap, HashSet};

use kaas_proto::config::ConfigEntry;
use kaas_proto::config::topic::TopicConfig;
use kaas_proto::control::{ControlRequest, NewTopic, TopicDone};
use kaas_proto::kafka::messages::create_topics::{
    CreatableReplicaAssignment, CreatableTopic, CreatableTopicConfigs, CreatableTopicResult, CreateTopicsRequest,
    CreateTopicsResponse,
};
use kaas_proto::kafka::{ErrorCode, KafkaString};
use kaas_proto::topic_name::{self, CLUSTER_METADATA};
use kaas_proto::view::ClusterView;

use crate::context::{Call, Handle, admin_timeout};
use crate::leaders::Refusal;

impl Handle for CreateTopicsRequest {
    async fn handle(self, call: &Call) -> CreateTopicsResponse {
        let view = call.view();
        let mut mentions: HashMap<&KafkaString, u32> = HashMap::new();
        for topic in &self.topics {
            *mentions.entry(&topic.name).or_default() += 1;
        }
        let mut rows: Vec<(KafkaString, Result<(), Refusal>)> = Vec::with_capacity(mentions.len());
        let mut accepted = Vec::new();
        let mut seen = HashSet::new();
        for topic in self.topics.iter().filter(|topic| seen.insert(&topic.name)) {
            let checked = if mentions[&topic.name] > 1 {
                Err(Refusal::new(ErrorCode::InvalidRequest, "the topic appears more than once in the request"))
            } else {
                check(topic, &view, call)
            };
            rows.push((topic.name.clone(), checked.map(|topic| accepted.push(topic))));
        }
        let mut outcomes = create(call, accepted, self.validate_only, self.timeout_ms).await.into_iter();
        let topics = rows.into_iter().map(|(name, row)| {
            match row.and_then(|()| outcomes.next().expect("one outcome per topic")) {
                Ok(done) => created(name, &done, self.validate_only, call),
                Err(refusal) => CreatableTopicResult {
                    name,
                    error_code: refusal.code,
                    error_message: Some(refusal.message.into()),
                    topic_config_error_code: ErrorCode::None,
                    ..Default::default()
                },
            }
        });
        CreateTopicsResponse { topics: topics.collect(), ..Default::default() }
    }
}

fn check(topic: &CreatableTopic, view: &ClusterView, call: &Call) -> Result<NewTopic, Refusal> {
    topic_name::check(&topic.name)
        .map_err(|error| Refusal::new(ErrorCode::InvalidTopicException, error.to_string()))?;
    if &*topic.name == CLUSTER_METADATA {
        let message = format!("Creation of internal topic {CLUSTER_METADATA} is prohibited.");
        return Err(Refusal::new(ErrorCode::InvalidRequest, message));
    }
    let partitions = if topic.assignments.is_empty() {
        check_counts(topic)?;
        topic.num_partitions
    } else {
        check_assignments(topic, view)?
    };
    let configs = topic.configs.iter().map(|config| match &config.value {
        Some(value) => Ok((config.name.to_string(), value.to_string())),
        None => Err(Refusal::new(ErrorCode::InvalidConfig, format!("{} has no value", config.name))),
    });
    let configs: BTreeMap<String, String> = configs.collect::<Result<_, _>>()?;
    TopicConfig::resolve(&call.shard.config, &configs)
        .map_err(|error| Refusal::new(ErrorCode::InvalidConfig, error.to_string()))?;
    if view.topic(&topic.name).is_some() {
        return Err(Refusal::new(ErrorCode::TopicAlreadyExists, format!("Topic '{}' already exists.", topic.name)));
    }
    Ok(NewTopic { name: (&*topic.name).into(), partitions, configs })
}

fn check_counts(topic: &CreatableTopic) -> Result<(), Refusal> {
    if topic.num_partitions == 0 || topic.num_partitions < -1 {
        let message = "the number of partitions must be above 0, or -1 for the default";
        return Err(Refusal::new(ErrorCode::InvalidPartitions, message));
    }
    if topic.replication_factor == 0 || topic.replication_factor < -1 {
        let message = "the replication factor must be above 0, or -1 for the default";
        return Err(Refusal::new(ErrorCode::InvalidReplicationFactor, message));
    }
    Ok(())
}

/// How many partitions an assignment has, if it makes sense.
fn check_assignments(topic: &CreatableTopic, view: &ClusterView) -> Result<i32, Refusal> {
    if topic.num_partitions != -1 || topic.replication_factor != -1 {
        let message = "either counts or assignments can be given, not both";
        return Err(Refusal::new(ErrorCode::InvalidRequest, message));
    }
    let invalid = |message: String| Err(Refusal::new(ErrorCode::InvalidReplicaAssignment, message));
    let mut indexes: Vec<i32> = topic.assignments.iter().map(|assignment| assignment.partition_index.0).collect();
    indexes.sort_unstable();
    if !indexes.iter().copied().eq((0..).take(indexes.len())) {
        return invalid("the partitions of an assignment must be numbered from 0 without a gap".to_owned());
    }
    for CreatableReplicaAssignment { partition_index, broker_ids } in &topic.assignments {
        let distinct: HashSet<_> = broker_ids.iter().collect();
        if distinct.is_empty() || distinct.len() < broker_ids.len() {
            return invalid(format!("partition {partition_index} needs brokers, each once"));
        }
        if let Some(unknown) = broker_ids.iter().find(|id| view.broker(**id).is_none()) {
            return invalid(format!("partition {partition_index}: there is no broker {unknown}"));
        }
    }
    Ok(i32::try_from(indexes.len()).expect("a frame does not hold 2^31 assignments"))
}

async fn create(
    call: &Call,
    topics: Vec<NewTopic>,
    validate_only: bool,
    timeout_ms: i32,
) -> Vec<Result<TopicDone, Refusal>> {
    if topics.is_empty() {
        return vec![];
    }
    let count = topics.len();
    let request = |reply| ControlRequest::CreateTopics { topics, validate_only, reply };
    match call.shard.ask_control(admin_timeout(timeout_ms), request).await {
        Ok(results) => results.into_iter().map(|result| result.outcome.map_err(Refusal::from)).collect(),
        Err(silence) => vec![Err(silence.into()); count],
    }
}

fn created(name: KafkaString, done: &TopicDone, validate_only: bool, call: &Call) -> CreatableTopicResult {
    let config = |entry: ConfigEntry| CreatableTopicConfigs {
        name: KafkaString::from_static(entry.definition.name),
        value: entry.value.map(KafkaString::from),
        read_only: entry.read_only,
        config_source: entry.source as i8,
        is_sensitive: false,
    };
    CreatableTopicResult {
        name,
        topic_id: if validate_only { kaas_proto::types::TopicId::ZERO } else { done.id },
        num_partitions: done.partitions,
        replication_factor: 1,
        configs: Some(done.config.entries(&call.shard.config).into_iter().map(config).collect()),
        ..Default::default()
    }
}
