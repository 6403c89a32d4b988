//! Requests that ask about partitions one by one: each is put to the shard that leads it, and comes back in its place.

use std::fmt::Display;

use kaas_core::shard::operation::ShardOperation;
use kaas_proto::control::{PartitionKey, TopicRefusal};
use kaas_proto::kafka::{ErrorCode, KafkaString};
use kaas_proto::types::PartitionIndex;
use tokio::sync::oneshot;

use crate::cluster::{self, Elsewhere, TopicRef};
use crate::context::{Call, ControlSilence};
use crate::error_map::ErrorCodeOf;

/// A partition as a request names it, and what is asked about it.
#[derive(Clone, Debug)]
pub(crate) struct Asked<T> {
    pub(crate) topic: TopicRef,
    pub(crate) index: PartitionIndex,
    pub(crate) question: T,
}

impl<T> Asked<T> {
    pub(crate) fn by_name(topic: &KafkaString, index: PartitionIndex, question: T) -> Self {
        Self { topic: TopicRef::Name(topic.clone()), index, question }
    }
}

/// Why there is no answer, for clients and for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Refusal {
    pub(crate) code: ErrorCode,
    pub(crate) message: String,
}

impl Refusal {
    pub(crate) fn new(code: ErrorCode, message: impl Into<String>) -> Self {
        Self { code, message: message.into() }
    }
}

impl From<ControlSilence> for Refusal {
    fn from(_: ControlSilence) -> Self {
        Self::new(ErrorCode::RequestTimedOut, "the broker's control thread did not answer in time; it may still happen")
    }
}

impl From<TopicRefusal> for Refusal {
    fn from(TopicRefusal { code, message }: TopicRefusal) -> Self {
        Self { code, message }
    }
}

impl From<Elsewhere> for Refusal {
    fn from(Elsewhere { code, leader }: Elsewhere) -> Self {
        let message = match (code, leader) {
            (_, Some(leader)) => format!("broker {} leads the partition", leader.id),
            (ErrorCode::LeaderNotAvailable, None) => "nobody leads the partition right now".to_owned(),
            (ErrorCode::UnknownTopicId, None) => "there is no topic with this id (any more)".to_owned(),
            _ => "there is no such topic or partition".to_owned(),
        };
        Self { code, message }
    }
}

/// Puts every question to the leader of its partition, all at once. The answers are in the order of the questions.
pub(crate) async fn ask<T, R, E: ErrorCodeOf + Display>(
    call: &Call,
    questions: Vec<Asked<T>>,
    operation: impl Fn(Vec<(PartitionKey, T)>, oneshot::Sender<Vec<Result<R, E>>>) -> ShardOperation,
) -> Vec<Result<R, Refusal>> {
    let view = call.view();
    let mut answers = Vec::with_capacity(questions.len());
    let mut led = Vec::with_capacity(questions.len());
    for Asked { topic, index, question } in questions {
        let found = topic.find(&view).map_err(Elsewhere::from);
        match found.and_then(|topic| cluster::led_here(&view, topic, index)) {
            Ok(partition) => {
                led.push((partition, question));
                answers.push(None);
            }
            Err(elsewhere) => answers.push(Some(Err(elsewhere.into()))),
        }
    }
    let mut replies = call.shard.router.scatter(led, |(partition, _)| *partition, operation).await.into_iter();
    let reply = |reply: Option<Result<R, E>>| match reply {
        Some(reply) => reply.map_err(|error| Refusal::new(error.code(), error.to_string())),
        None => Err(Refusal::new(ErrorCode::NotLeaderOrFollower, "the broker is stopping")),
    };
    answers.into_iter().map(|answer| answer.unwrap_or_else(|| reply(replies.next().flatten()))).collect()
}
