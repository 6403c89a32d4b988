//! DeleteTopics 1–6: deletes topics, by name; from version 6 on by name or id.
//!
//! As in Kafka: one row per topic; one that is named twice is INVALID_REQUEST. With `delete.topic.enable=false` everything
//! is refused.

use std::collections::{HashMap, HashSet};

use kaas_proto::control::{ControlRequest, TopicName};
use kaas_proto::kafka::messages::delete_topics::{
    DeletableTopicResult, DeleteTopicState, DeleteTopicsRequest, DeleteTopicsResponse,
};
use kaas_proto::kafka::{ErrorCode, KafkaString};
use kaas_proto::types::TopicId;
use kaas_proto::view::ClusterView;

use crate::cluster::TopicRef;
use crate::context::{Call, Handle, admin_timeout};
use crate::leaders::Refusal;

/// The first version that names topics by id.
const TOPIC_IDS: i16 = 6;
/// The first version whose clients know TOPIC_DELETION_DISABLED.
const DELETION_DISABLED: i16 = 3;

impl Handle for DeleteTopicsRequest {
    async fn handle(self, call: &Call) -> DeleteTopicsResponse {
        let by_name = |name: KafkaString| DeleteTopicState { name: Some(name), topic_id: TopicId::ZERO };
        let wanted: Vec<DeleteTopicState> = match call.version >= TOPIC_IDS {
            true => self.topics,
            false => self.topic_names.into_iter().map(by_name).collect(),
        };
        let view = call.view();
        let mut mentions: HashMap<Option<TopicId>, u32> = HashMap::new();
        for state in &wanted {
            *mentions.entry(id_of(state, &view)).or_default() += 1;
        }
        let mut seen = HashSet::new();
        let (mut rows, mut accepted) = (Vec::with_capacity(wanted.len()), Vec::new());
        for state in wanted {
            let twice = id_of(&state, &view).is_some_and(|id| mentions[&Some(id)] > 1);
            if !seen.insert((state.name.clone(), state.topic_id)) {
                continue;
            }
            let checked = check(&state, &view, call, twice);
            rows.push((state, checked.map(|topic| accepted.push(topic))));
        }
        let mut outcomes = delete(call, accepted, self.timeout_ms).await.into_iter();
        let responses = rows.into_iter().map(|(state, row)| {
            let outcome = row.and_then(|()| outcomes.next().expect("one outcome per topic"));
            let (error_code, error_message) = crate::config_resource::told(outcome);
            let name = state.name.or_else(|| Some(KafkaString::from(&*view.topic_by_id(state.topic_id)?.name)));
            let id = name.as_ref().and_then(|name| view.topic(name)).map_or(state.topic_id, |topic| topic.id);
            DeletableTopicResult { name, topic_id: id, error_code, error_message }
        });
        DeleteTopicsResponse { responses: responses.collect(), ..Default::default() }
    }
}

fn reference(state: &DeleteTopicState) -> Option<TopicRef> {
    match &state.name {
        Some(name) => Some(TopicRef::Name(name.clone())),
        None => (state.topic_id != TopicId::ZERO).then_some(TopicRef::Id(state.topic_id)),
    }
}

fn id_of(state: &DeleteTopicState, view: &ClusterView) -> Option<TopicId> {
    reference(state)?.find(view).ok().map(|topic| topic.id)
}

fn check(state: &DeleteTopicState, view: &ClusterView, call: &Call, twice: bool) -> Result<TopicName, Refusal> {
    if !call.shard.config.delete_topics {
        let known = call.version >= DELETION_DISABLED;
        let code = if known { ErrorCode::TopicDeletionDisabled } else { ErrorCode::InvalidRequest };
        return Err(Refusal::new(code, "delete.topic.enable is false"));
    }
    if state.name.is_some() && state.topic_id != TopicId::ZERO {
        return Err(Refusal::new(ErrorCode::InvalidRequest, "a topic is named either by name or by id"));
    }
    let Some(topic) = reference(state) else {
        return Err(Refusal::new(ErrorCode::InvalidRequest, "neither a name nor an id is given"));
    };
    if twice {
        return Err(Refusal::new(ErrorCode::InvalidRequest, "the topic appears more than once in the request"));
    }
    let found = topic.find(view).map_err(|code| Refusal::new(code, "there is no such topic"))?;
    // By id in any case: what was created anew under the name meanwhile is not what the client saw.
    Ok(TopicName::Id(found.id))
}

async fn delete(call: &Call, topics: Vec<TopicName>, timeout_ms: i32) -> Vec<Result<(), Refusal>> {
    if topics.is_empty() {
        return vec![];
    }
    let count = topics.len();
    let request = |reply| ControlRequest::DeleteTopics { topics, reply };
    match call.shard.ask_control(admin_timeout(timeout_ms), request).await {
        Ok(results) => results.into_iter().map(|result| result.outcome.map(|_| ()).map_err(Refusal::from)).collect(),
        Err(silence) => vec![Err(silence.into()); count],
    }
}
