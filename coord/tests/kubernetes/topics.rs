use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use kaas_coord::cluster::ports::{Controller, DesiredTopic, DesiredTopics, Leadership, TopicRequest, Topics};
use kaas_coord::kubernetes::kafka_topic::{KafkaTopic, KafkaTopicSpec};
use kaas_coord::kubernetes::{status, topics};
use kaas_proto::config::broker::BrokerConfig;
use kaas_proto::control::TopicRefusal;
use kaas_proto::kafka::error_code::ErrorCode;
use kaas_proto::types::{BrokerId, TopicId};
use kube::Api;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use serde_json::{Value, json};
use tokio::sync::{oneshot, watch};
use tokio::time::{Instant, timeout};

use super::cluster::{ApiServer, Namespace, PATIENCE, reaches};

/// One broker's topics.
struct Broker {
    topics: Topics,
    leadership: watch::Sender<Leadership>,
}

impl Broker {
    fn start(namespace: &Namespace) -> Self {
        let connection = namespace.connection();
        let (client, name) = (connection.client(), connection.namespace());
        let (topics, snapshot) = topics::start(client.clone(), name, Arc::new(BrokerConfig::default()));
        let (leadership, receiver) = watch::channel(Leadership::Unknown);
        status::start(client, name, receiver, snapshot);
        Self { topics, leadership }
    }

    async fn sees(&mut self, what: &str, condition: impl Fn(&DesiredTopics) -> bool) -> Arc<DesiredTopics> {
        let listed = |topics: &Option<Arc<DesiredTopics>>| topics.as_deref().is_some_and(&condition);
        reaches(&mut self.topics.desired, what, listed).await.unwrap()
    }

    async fn ask<T>(
        &self,
        request: impl FnOnce(oneshot::Sender<Result<T, TopicRefusal>>) -> TopicRequest,
    ) -> Result<T, TopicRefusal> {
        let (reply, answer) = oneshot::channel();
        self.topics.requests.send(request(reply)).await.unwrap();
        timeout(PATIENCE, answer).await.unwrap().unwrap()
    }

    async fn create(&self, name: &str, partitions: i32) -> Result<DesiredTopic, TopicRefusal> {
        let configs = BTreeMap::from([("retention.ms".to_owned(), "5000".to_owned())]);
        self.ask(|reply| TopicRequest::Create { name: name.into(), partitions, configs, reply }).await
    }

    async fn delete(&self, name: &str, id: TopicId) -> Result<(), TopicRefusal> {
        self.ask(|reply| TopicRequest::Delete { name: name.into(), id, reply }).await
    }

    async fn grow(&self, topic: &DesiredTopic, partitions: i32) -> Result<(), TopicRefusal> {
        let (name, id) = (Arc::clone(&topic.name), topic.id);
        self.ask(|reply| TopicRequest::SetPartitions { name, id, partitions, reply }).await
    }
}

fn objects(namespace: &Namespace) -> Api<KafkaTopic> {
    Api::namespaced(namespace.admin.clone(), &namespace.name)
}

fn code<T: std::fmt::Debug>(outcome: Result<T, TopicRefusal>) -> ErrorCode {
    outcome.unwrap_err().code
}

#[tokio::test]
async fn clients_create_change_and_delete_topics() {
    let namespace = ApiServer::shared().namespace("topics-clients").await;
    let (mut one, mut two) = (Broker::start(&namespace), Broker::start(&namespace));
    two.sees("should be listed", DesiredTopics::is_empty).await;

    let orders = one.create("Orders_EU", 3).await.unwrap();
    assert_eq!((&*orders.name, orders.partitions, orders.configs["retention.ms"].as_str()), ("Orders_EU", 3, "5000"));
    let seen = two.sees("should be seen", |topics| topics.contains_key("Orders_EU")).await;
    assert_eq!(seen["Orders_EU"], orders, "the same id on every broker");
    assert_eq!(code(two.create("Orders_EU", 3).await), ErrorCode::TopicAlreadyExists);

    // At once, before the first broker's watch has brought it.
    one.grow(&orders, 5).await.unwrap();
    assert_eq!(code(one.grow(&orders, 5).await), ErrorCode::InvalidPartitions);
    let configs = BTreeMap::from([("segment.bytes".to_owned(), "2097152".to_owned())]);
    let (name, id) = (Arc::clone(&orders.name), orders.id);
    one.ask(|reply| TopicRequest::SetConfigs { name, id, configs: configs.clone(), reply }).await.unwrap();
    let changed = |topics: &DesiredTopics| {
        topics.get("Orders_EU").is_some_and(|topic| topic.partitions == 5 && topic.configs == configs)
    };
    two.sees("should be changed, and retention.ms be gone", changed).await;

    two.delete("Orders_EU", orders.id).await.unwrap();
    assert_eq!(code(two.delete("Orders_EU", orders.id).await), ErrorCode::UnknownTopicOrPartition);
    one.sees("should be gone", DesiredTopics::is_empty).await;
    let again = one.create("Orders_EU", 1).await.unwrap();
    assert_ne!(again.id, orders.id, "another incarnation");
    assert_eq!(code(one.grow(&orders, 9).await), ErrorCode::UnknownTopicOrPartition);
    let seen = two.sees("should be seen", |topics| topics.contains_key("Orders_EU")).await;
    assert_eq!(seen["Orders_EU"], again);
}

#[tokio::test]
async fn of_two_brokers_that_create_one_topic_one_is_told_that_it_exists() {
    let namespace = ApiServer::shared().namespace("topics-race").await;
    let (one, two) = (Broker::start(&namespace), Broker::start(&namespace));
    let (first, second) = tokio::join!(one.create("orders", 3), two.create("orders", 3));
    let codes: Vec<ErrorCode> = [first, second].into_iter().filter_map(Result::err).map(|error| error.code).collect();
    assert_eq!(codes, [ErrorCode::TopicAlreadyExists]);
}

#[tokio::test]
async fn changes_that_collide_all_happen() {
    let namespace = ApiServer::shared().namespace("topics-collide").await;
    let (one, two) = (Broker::start(&namespace), Broker::start(&namespace));
    let orders = one.create("orders", 1).await.unwrap();
    let set = |broker: &Broker, key: &str, value: &str| {
        let (name, id) = (Arc::clone(&orders.name), orders.id);
        let configs = BTreeMap::from([(key.to_owned(), value.to_owned())]);
        let requests = broker.topics.requests.clone();
        async move {
            let (reply, answer) = oneshot::channel();
            requests.send(TopicRequest::SetConfigs { name, id, configs, reply }).await.unwrap();
            answer.await.unwrap()
        }
    };
    for round in 0..5 {
        let value = format!("{}", 5_000 + round);
        let (grown, configured) = tokio::join!(one.grow(&orders, 2 + round), set(&two, "retention.ms", &value));
        assert_eq!((grown, configured), (Ok(()), Ok(())));
        let object = objects(&namespace).get("orders").await.unwrap();
        assert_eq!((object.spec.partitions, object.spec.config["retention.ms"].as_str()), (2 + round, value.as_str()));
    }
}

#[tokio::test]
async fn users_write_objects_and_read_their_status() {
    let namespace = ApiServer::shared().namespace("topics-users").await;
    let mut broker = Broker::start(&namespace);
    broker.leadership.send_replace(Leadership::Follower {
        lease_transitions: 1,
        controller: Controller { broker: BrokerId(7), heartbeat: "".into() },
    });
    let api = objects(&namespace);
    let object = |topic: Option<&str>, config: &[(&str, &str)]| KafkaTopicSpec {
        partitions: 3,
        config: config.iter().map(|&(key, value)| (key.to_owned(), value.to_owned())).collect(),
        topic_name: topic.map(str::to_owned),
        topic_id: None,
    };
    let post = PostParams::default();
    let created = api.create(&post, &KafkaTopic::new("orders", object(None, &[]))).await.unwrap();
    api.create(&post, &KafkaTopic::new("second", object(Some("orders"), &[]))).await.unwrap();
    api.create(&post, &KafkaTopic::new("wrong", object(None, &[("retention.mss", "1")]))).await.unwrap();
    let topics = broker.sees("should see both", |topics| topics.len() == 2).await;
    assert_eq!(topics["orders"].id, created.topic_id().unwrap());
    assert_eq!(topics.keys().map(|name| &**name).collect::<Vec<_>>(), ["orders", "wrong"]);
    assert_eq!(api.get("orders").await.unwrap().status, None, "not the controller");

    let act_until = Instant::now() + Duration::from_secs(3600);
    broker.leadership.send_replace(Leadership::Controller { lease_transitions: 2, act_until });
    for (name, status, reason) in
        [("orders", "True", "Accepted"), ("second", "False", "NameTaken"), ("wrong", "False", "InvalidConfig")]
    {
        let object = eventually(&api, name, |object| object.status.is_some()).await;
        let written = object.status.unwrap();
        assert_eq!((written.conditions[0].status.as_str(), written.conditions[0].reason.as_str()), (status, reason));
        assert_eq!(written.observed_generation, Some(1));
    }
    // The user corrects it; the status follows.
    let patch = json!({ "spec": { "config": { "retention.mss": null, "retention.ms": "1" } } });
    api.patch("wrong", &PatchParams::default(), &Patch::Merge(patch)).await.unwrap();
    let corrected =
        |object: &KafkaTopic| object.status.as_ref().is_some_and(|status| status.conditions[0].status == "True");
    let object = eventually(&api, "wrong", corrected).await;
    let status = object.status.as_ref().unwrap();
    assert_eq!(status.observed_generation, Some(2));
    assert_eq!(status.topic_id.as_deref(), Some(object.topic_id().unwrap().to_string().as_str()));
    // The older object goes: the younger one with the same topic name takes over, as another incarnation.
    api.delete("orders", &DeleteParams::default()).await.unwrap();
    let taken_over =
        |topics: &DesiredTopics| topics.get("orders").is_some_and(|topic| topic.id != created.topic_id().unwrap());
    broker.sees("should be the younger one's", taken_over).await;
}

async fn eventually(api: &Api<KafkaTopic>, name: &str, condition: impl Fn(&KafkaTopic) -> bool) -> KafkaTopic {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let object = api.get(name).await.unwrap();
        if condition(&object) {
            return object;
        }
        assert!(Instant::now() < deadline, "{object:?}");
    }
}

#[tokio::test]
async fn the_api_server_refuses_what_makes_no_sense() {
    let namespace = ApiServer::shared().namespace("topics-refused").await;
    let api = objects(&namespace);
    let dynamic: Api<kube::core::DynamicObject> = Api::namespaced_with(
        namespace.admin.clone(),
        &namespace.name,
        &kube::core::ApiResource::erase::<KafkaTopic>(&()),
    );
    let apply = |name: &'static str, spec: Value| {
        let dynamic = &dynamic;
        async move {
            let body = json!({
                "apiVersion": "kaas.io/v1alpha1", "kind": "KafkaTopic", "metadata": { "name": name }, "spec": spec
            });
            let params = PatchParams::apply("a-user").validation_strict();
            dynamic.patch(name, &params, &Patch::Apply(body)).await.map_err(|error| error.to_string())
        }
    };
    for (spec, said) in [
        (json!({}), "partitions"),
        (json!({ "partitions": 0 }), "greater than or equal to 1"),
        (json!({ "partitions": 10_001 }), "less than or equal to 10000"),
        (json!({ "partitions": 1, "config": { "retention.ms": 5 } }), "string"),
        (json!({ "partitions": 1, "topicName": "a b" }), "topicName"),
        (json!({ "partitions": 1, "topicId": "short" }), "topicId"),
        (json!({ "partitions": 1, "replicas": 3 }), "replicas"),
    ] {
        let error = apply("refused", spec.clone()).await.unwrap_err();
        assert!(error.contains(said), "{spec}: {error}");
    }
    apply("orders", json!({ "partitions": 3, "topicName": "Orders" })).await.unwrap();
    apply("orders", json!({ "partitions": 4, "topicName": "Orders" })).await.unwrap();
    let error = apply("orders", json!({ "partitions": 3, "topicName": "Orders" })).await.unwrap_err();
    assert!(error.contains("can only rise"), "{error}");
    let error = apply("orders", json!({ "partitions": 4, "topicName": "Others" })).await.unwrap_err();
    assert!(error.contains("can not be renamed"), "{error}");
    assert_eq!(api.get("orders").await.unwrap().topic_name(), "Orders");
}

#[tokio::test]
async fn what_was_known_stays_while_the_api_server_is_away() {
    let server = ApiServer::start().unwrap();
    let namespace = server.namespace("topics-outage").await;
    let mut broker = Broker::start(&namespace);
    broker.create("orders", 1).await.unwrap();
    broker.sees("should be seen", |topics| topics.len() == 1).await;
    server.command("stop").unwrap();
    assert_eq!(code(broker.create("others", 1).await), ErrorCode::RequestTimedOut);
    assert_eq!(broker.topics.desired.borrow().as_ref().unwrap().len(), 1);
    server.command("start").unwrap();
    broker.create("others", 1).await.unwrap();
    broker.sees("should be watched again", |topics| topics.len() == 2).await;
}
