//! CreatePartitions 0–3: adds partitions to topics.
//!
//! Every requested topic has a row; one that is named twice is INVALID_REQUEST. `validate_only` changes nothing.
//! Differences from Kafka: a manual assignment is accepted if it names known brokers, and otherwise ignored: the balancer
//! places partitions.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use kaas_proto::control::ControlRequest;
use kaas_proto::kafka::messages::create_partitions::{
    CreatePartitionsRequest, CreatePartitionsResponse, CreatePartitionsTopic, CreatePartitionsTopicResult,
};
use kaas_proto::kafka::{ErrorCode, KafkaString};
use kaas_proto::view::ClusterView;

use crate::config_resource;
use crate::context::{Call, Handle, admin_timeout};
use crate::leaders::Refusal;

impl Handle for CreatePartitionsRequest {
    async fn handle(self, call: &Call) -> CreatePartitionsResponse {
        let view = call.view();
        let mut mentions: HashMap<&KafkaString, u32> = HashMap::new();
        for topic in &self.topics {
            *mentions.entry(&topic.name).or_default() += 1;
        }
        let mut seen = HashSet::new();
        let (mut rows, mut accepted) = (Vec::with_capacity(mentions.len()), Vec::new());
        for topic in self.topics.iter().filter(|topic| seen.insert(&topic.name)) {
            let checked = if mentions[&topic.name] > 1 {
                Err(Refusal::new(ErrorCode::InvalidRequest, "the topic appears more than once in the request"))
            } else {
                check(topic, &view)
            };
            let accept = |()| accepted.push((Arc::from(&*topic.name), topic.count));
            rows.push((topic.name.clone(), checked.map(accept)));
        }
        let mut outcomes = vec![].into_iter();
        if !accepted.is_empty() {
            let (count, validate_only) = (accepted.len(), self.validate_only);
            let request = |reply| ControlRequest::CreatePartitions { topics: accepted, validate_only, reply };
            let results = match call.shard.ask_control(admin_timeout(self.timeout_ms), request).await {
                Ok(results) => results.into_iter().map(|one| one.outcome.map(|_| ()).map_err(Refusal::from)).collect(),
                Err(silence) => vec![Err(silence.into()); count],
            };
            outcomes = results.into_iter();
        }
        let results = rows.into_iter().map(|(name, row)| {
            let outcome = row.and_then(|()| outcomes.next().expect("one outcome per topic"));
            let (error_code, error_message) = config_resource::told(outcome);
            CreatePartitionsTopicResult { name, error_code, error_message }
        });
        CreatePartitionsResponse { results: results.collect(), ..Default::default() }
    }
}

fn check(topic: &CreatePartitionsTopic, view: &ClusterView) -> Result<(), Refusal> {
    let Some(found) = view.topic(&topic.name) else {
        return Err(Refusal::new(ErrorCode::UnknownTopicOrPartition, format!("there is no topic {}", topic.name)));
    };
    let current = found.partitions.len();
    let added = usize::try_from(topic.count).ok().and_then(|count| count.checked_sub(current)).unwrap_or(0);
    if added == 0 {
        let message = format!("the topic has {current} partitions, {} are not more", topic.count);
        return Err(Refusal::new(ErrorCode::InvalidPartitions, message));
    }
    let Some(assignments) = &topic.assignments else { return Ok(()) };
    let invalid = |message: String| Err(Refusal::new(ErrorCode::InvalidReplicaAssignment, message));
    if assignments.len() != added {
        return invalid(format!("{added} partitions are added, {} are assigned", assignments.len()));
    }
    if assignments.iter().any(|assignment| assignment.broker_ids.is_empty()) {
        return invalid("each partition that is assigned needs brokers".to_owned());
    }
    let brokers = assignments.iter().flat_map(|assignment| &assignment.broker_ids);
    match brokers.into_iter().find(|id| view.broker(**id).is_none()) {
        Some(unknown) => invalid(format!("there is no broker {unknown}")),
        None => Ok(()),
    }
}
