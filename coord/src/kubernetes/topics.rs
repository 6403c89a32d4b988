//! The topics that there are to be, followed on the API server and changed there.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use kaas_proto::config::broker::BrokerConfig;
use kaas_proto::control::TopicRefusal;
use kaas_proto::kafka::error_code::ErrorCode;
use kaas_proto::types::TopicId;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams, Preconditions};
use kube::runtime::watcher;
use kube::{Api, Client};
use serde_json::{Value, json};
use tokio::sync::{mpsc, watch};

use super::api_error::{ApiError, Request, within};
use super::desired::{self, Objects, Verdict};
use super::kafka_topic::{KafkaTopic, KafkaTopicSpec, object_name};
use super::lease::FIELD_MANAGER;
use super::objects;
use crate::cluster::ports::{DesiredTopic, DesiredTopics, TOPIC_REQUEST_QUEUE_LENGTH, TopicRequest, Topics};
use crate::log_limit::may_log;
use crate::topics::decide::refusal;

/// How long the API server has for one request of a client. Below the time that clients give an admin call.
const REQUEST_LIMIT: Duration = Duration::from_secs(5);

/// How often a change that collides with another one is tried.
const ATTEMPTS: usize = 5;

/// What is known of all objects: the objects themselves, and what becomes of each.
#[derive(Debug, Default)]
pub struct Snapshot {
    pub objects: Objects,
    pub verdicts: Vec<(Arc<KafkaTopic>, Verdict)>,
}

/// Starts to follow the objects and to carry out requests. Within a tokio runtime only.
#[must_use]
pub fn start(client: Client, namespace: &str, broker: Arc<BrokerConfig>) -> (Topics, watch::Receiver<Arc<Snapshot>>) {
    let api: Api<KafkaTopic> = Api::namespaced(client, namespace);
    let (desired, desired_receiver) = watch::channel(None);
    let (snapshot, snapshot_receiver) = watch::channel(Arc::default());
    let (requests, request_receiver) = mpsc::channel(TOPIC_REQUEST_QUEUE_LENGTH);
    tokio::spawn(follow(api.clone(), broker, desired, snapshot));
    let sink = Sink { api, snapshot: snapshot_receiver.clone() };
    tokio::spawn(sink.serve(request_receiver));
    (Topics { desired: desired_receiver, requests }, snapshot_receiver)
}

async fn follow(
    api: Api<KafkaTopic>,
    broker: Arc<BrokerConfig>,
    desired: watch::Sender<Option<Arc<DesiredTopics>>>,
    snapshot: watch::Sender<Arc<Snapshot>>,
) {
    let following =
        objects::follow(api, watcher::Config::default(), [Request::TOPIC_LIST, Request::TOPIC_WATCH], |objects| {
            let (topics, verdicts) = desired::decide(objects, &broker);
            snapshot.send_replace(Arc::new(Snapshot { objects: objects.clone(), verdicts }));
            // A status that was written changes the object, but not the topic.
            desired.send_if_modified(|published| {
                let changed = published.as_deref() != Some(&topics);
                if changed {
                    *published = Some(Arc::new(topics));
                }
                changed
            });
        });
    tokio::select! {
        never = following => match never {},
        () = desired.closed() => {}
    }
}

/// Carries out what clients ask for, one request after the other.
struct Sink {
    api: Api<KafkaTopic>,
    snapshot: watch::Receiver<Arc<Snapshot>>,
}

impl Sink {
    async fn serve(self, mut requests: mpsc::Receiver<TopicRequest>) {
        while let Some(request) = requests.recv().await {
            // A client that has gone wanted it all the same.
            match request {
                TopicRequest::Create { name, partitions, configs, reply } => {
                    let spec = KafkaTopicSpec { partitions, config: configs, topic_name: None, topic_id: None };
                    let _ = reply.send(self.create(&name, spec).await);
                }
                TopicRequest::Delete { name, id, reply } => {
                    let _ = reply.send(self.delete(&name, id).await);
                }
                TopicRequest::SetPartitions { name, id, partitions, reply } => {
                    let change = |object: &KafkaTopic| growth(object, partitions);
                    let _ = reply.send(self.change(&name, id, change).await);
                }
                TopicRequest::SetConfigs { name, id, configs, reply } => {
                    let change = |object: &KafkaTopic| Ok(json!({ "config": replacement(object, &configs) }));
                    let _ = reply.send(self.change(&name, id, change).await);
                }
            }
        }
    }

    async fn create(&self, name: &Arc<str>, mut spec: KafkaTopicSpec) -> Result<DesiredTopic, TopicRefusal> {
        let exists = || refusal(ErrorCode::TopicAlreadyExists, format!("topic '{name}' already exists"));
        if self.snapshot.borrow().verdicts.iter().any(|(object, _)| object.topic_name() == &**name) {
            return Err(exists());
        }
        let (object, topic_name) = object_name(name);
        spec.topic_name = topic_name.map(|name| name.to_string());
        let object = KafkaTopic::new(&object, spec);
        let request = Request::TOPIC_CREATE;
        let post = PostParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PostParams::default() };
        match within(REQUEST_LIMIT, request, self.api.create(&post, &object)).await {
            Ok(created) => desired::desired(&created).ok_or_else(|| {
                refusal(ErrorCode::UnknownServerError, "the API server created an object without a usable uid")
            }),
            Err(ApiError::AlreadyExists { .. }) => Err(exists()),
            Err(error) => Err(refused(&error)),
        }
    }

    async fn delete(&self, name: &str, id: TopicId) -> Result<(), TopicRefusal> {
        let object = self.look(name, id).await?;
        let uid = Preconditions { uid: object.metadata.uid.clone(), resource_version: None };
        let params = DeleteParams::default().preconditions(uid);
        let request = Request::TOPIC_DELETE;
        let object_name = object.metadata.name.as_deref().unwrap_or_default();
        match within(REQUEST_LIMIT, request, self.api.delete(object_name, &params)).await {
            Ok(_) => Ok(()),
            // Another was quicker, or it is another incarnation by now.
            Err(ApiError::NotFound { .. } | ApiError::Conflict { .. }) => Err(unknown(name, id)),
            Err(error) => Err(refused(&error)),
        }
    }

    /// Changes the object's spec as `change` decides on it. The API server refuses the change if the object is another one by then, and it
    /// is decided anew.
    async fn change(
        &self,
        name: &str,
        id: TopicId,
        change: impl Fn(&KafkaTopic) -> Result<Value, TopicRefusal>,
    ) -> Result<(), TopicRefusal> {
        let request = Request::TOPIC_PATCH;
        let params = PatchParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PatchParams::default() };
        let mut collision = None;
        for _ in 0..ATTEMPTS {
            let object = self.look(name, id).await?;
            let metadata = json!({ "uid": object.metadata.uid, "resourceVersion": object.metadata.resource_version });
            let patch = Patch::Merge(json!({ "metadata": metadata, "spec": change(&object)? }));
            let object_name = object.metadata.name.as_deref().unwrap_or_default();
            match within(REQUEST_LIMIT, request, self.api.patch(object_name, &params, &patch)).await {
                Ok(_) => return Ok(()),
                Err(error @ ApiError::Conflict { .. }) => collision = Some(error),
                Err(ApiError::NotFound { .. }) => return Err(unknown(name, id)),
                Err(error) => return Err(refused(&error)),
            }
        }
        Err(collision.map_or_else(|| unknown(name, id), |error| refused(&error)))
    }

    /// The object that stands for the topic, as it is now.
    async fn look(&self, name: &str, id: TopicId) -> Result<KafkaTopic, TopicRefusal> {
        // Users name their objects as they like. One that was just created may not have been seen yet.
        let known = self.snapshot.borrow().objects.values().find(|object| object.topic_id() == Some(id)).cloned();
        let object = match &known {
            Some(object) => object.metadata.name.clone().unwrap_or_default(),
            None => object_name(name).0,
        };
        let request = Request::TOPIC_GET;
        match within(REQUEST_LIMIT, request, self.api.get_opt(&object)).await {
            Ok(Some(object)) if object.topic_id() == Some(id) && !object.is_leaving() => Ok(object),
            Ok(_) => Err(unknown(name, id)),
            Err(error) => Err(refused(&error)),
        }
    }
}

fn growth(object: &KafkaTopic, partitions: i32) -> Result<Value, TopicRefusal> {
    let now = object.spec.partitions;
    if partitions <= now {
        let name = object.topic_name();
        let message =
            format!("topic '{name}' has {now} partitions already; their number can only rise, not to {partitions}");
        return Err(refusal(ErrorCode::InvalidPartitions, message));
    }
    Ok(json!({ "partitions": partitions }))
}

/// A merge patch takes out what is null in it.
fn replacement(object: &KafkaTopic, configs: &BTreeMap<String, String>) -> Value {
    let removed = object.spec.config.keys().filter(|&key| !configs.contains_key(key));
    let removed = removed.map(|key| (key.clone(), Value::Null));
    let set = configs.iter().map(|(key, value)| (key.clone(), Value::String(value.clone())));
    Value::Object(removed.chain(set).collect())
}

fn unknown(name: &str, id: TopicId) -> TopicRefusal {
    refusal(ErrorCode::UnknownTopicOrPartition, format!("there is no topic '{name}' with the id {id}"))
}

/// Kafka's code for what the API server said. The client can do nothing about most of it, but its user reads the message.
fn refused(error: &ApiError) -> TopicRefusal {
    let code = match error {
        // RBAC, a quota or an admission policy.
        ApiError::Forbidden { .. } => ErrorCode::PolicyViolation,
        ApiError::AlreadyExists { .. } => ErrorCode::TopicAlreadyExists,
        ApiError::Invalid { .. } => ErrorCode::InvalidRequest,
        // Clients try these again.
        ApiError::Conflict { .. } | ApiError::TimedOut { .. } | ApiError::Unavailable { .. } => {
            ErrorCode::RequestTimedOut
        }
        ApiError::Unauthorized { .. } | ApiError::NotFound { .. } => ErrorCode::UnknownServerError,
    };
    if may_log("topic_change") {
        tracing::warn!("a change of topics: {error}");
    }
    refusal(code, error.to_string())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]
    use super::*;

    fn object() -> KafkaTopic {
        let config = [("retention.ms", "5"), ("segment.bytes", "9")];
        let config = config.map(|(key, value)| (key.to_owned(), value.to_owned())).into();
        KafkaTopic::new("orders", KafkaTopicSpec { partitions: 3, config, topic_name: None, topic_id: None })
    }

    #[test]
    fn a_patch_names_what_is_taken_out() {
        let wanted: BTreeMap<String, String> = [("retention.ms".to_owned(), "6".to_owned())].into();
        assert_eq!(replacement(&object(), &wanted), json!({ "retention.ms": "6", "segment.bytes": null }));
    }

    #[test]
    fn partitions_rise() {
        assert_eq!(growth(&object(), 4).unwrap(), json!({ "partitions": 4 }));
        assert_eq!(growth(&object(), 3).unwrap_err().code, ErrorCode::InvalidPartitions);
    }

    #[test]
    fn every_failure_has_a_code() {
        let request = Request::TOPIC_PATCH;
        let message = String::new;
        let rows = [
            (ApiError::Forbidden { request, message: message() }, ErrorCode::PolicyViolation),
            (ApiError::Unauthorized { message: message() }, ErrorCode::UnknownServerError),
            (ApiError::NotFound { request, message: message() }, ErrorCode::UnknownServerError),
            (ApiError::AlreadyExists { message: message() }, ErrorCode::TopicAlreadyExists),
            (ApiError::Conflict { message: message() }, ErrorCode::RequestTimedOut),
            (ApiError::Invalid { message: message() }, ErrorCode::InvalidRequest),
            (ApiError::TimedOut { request, after: REQUEST_LIMIT }, ErrorCode::RequestTimedOut),
        ];
        for (error, code) in rows {
            assert_eq!(refused(&error).code, code, "{error}");
        }
    }
}
