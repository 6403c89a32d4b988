#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use kaas_proto::control::{ConfigOperation, PartitionChange, ShardEvent, ShardLink, link};
use kaas_proto::reserve::Reserves;
use kaas_proto::types::{BrokerId, LeaderEpoch};
use kaas_proto::view::BrokerView;
use tokio::task::{LocalSet, spawn_local};

use super::*;
use crate::standalone::follow;
use crate::topics::TopicDirectory;
use crate::topics::disk::FileSystem;

/// A topic service in front of two shards that do as they are told.
struct Harness {
    requests: mpsc::Sender<ControlRequest>,
    state: Rc<RefCell<ClusterState>>,
    /// What the shards were told, in order of arrival.
    told: Rc<RefCell<Vec<String>>>,
    service: Rc<TopicService>,
}

fn directory(root: &Path) -> TopicStore {
    TopicStore::Directory(Arc::new(TopicDirectory::open(&root.into(), BrokerId(1), Arc::new(FileSystem)).unwrap()))
}

async fn obey(mut link: ShardLink, told: Rc<RefCell<Vec<String>>>) {
    while let Some(command) = link.commands.recv().await {
        match command {
            ShardCommand::TakeOver(TakeOver { partition, topic, config, .. }) => {
                told.borrow_mut().push(format!("take over {topic}-{} {:?}", partition.partition, config.own));
                let change = PartitionChange::Leading { epoch: LeaderEpoch(1) };
                link.events.send(ShardEvent { shard: link.shard, partition, change }).await.unwrap();
            }
            ShardCommand::Abandon { done, .. } => {
                told.borrow_mut().push("abandon".to_owned());
                done.send(()).unwrap();
            }
            ShardCommand::RetainTopics { topics } => told.borrow_mut().push(format!("retain {topics:?}")),
            other => panic!("unexpected {other:?}"),
        }
    }
}

impl Harness {
    fn start(store: TopicStore, broker: BrokerConfig, open_files: u64) -> Self {
        let view = BrokerView { id: BrokerId(1), rack: None, fenced: false, listeners: Vec::new() };
        let (control, links) = link(2, Arc::new(ClusterView::empty("c1".into(), view)), Reserves::default());
        let told = Rc::new(RefCell::new(Vec::new()));
        let requests = links[0].requests.clone();
        for link in links {
            spawn_local(obey(link, Rc::clone(&told)));
        }
        let state = Rc::new(RefCell::new(ClusterState::new(control.view)));
        let outbox = Rc::new(Outbox::start(&control.commands));
        let limit = PartitionLimit::of_open_files(open_files);
        let service = Rc::new(TopicService::new(
            Rc::clone(&state),
            outbox,
            store,
            Arc::new(broker),
            limit,
            control.reserves.data,
        ));
        let (events_state, mut events) = (Rc::clone(&state), control.events);
        spawn_local(async move { follow(&events_state, &mut events).await });
        let sweeping = Rc::clone(&service);
        spawn_local(async move { sweeping.sweep().await });
        let serving = Rc::clone(&service);
        spawn_local(async move { serving.serve(control.requests).await });
        Self { requests, state, told, service }
    }

    async fn ask(&self, request: impl FnOnce(oneshot::Sender<Vec<TopicResult>>) -> ControlRequest) -> Vec<TopicResult> {
        let (reply, answer) = oneshot::channel();
        self.requests.send(request(reply)).await.unwrap();
        answer.await.unwrap()
    }

    async fn create(&self, name: &str, partitions: i32, configs: &[(&str, &str)]) -> Result<TopicDone, TopicRefusal> {
        let configs = configs.iter().map(|&(key, value)| (key.to_owned(), value.to_owned())).collect();
        let topics = vec![NewTopic { name: name.into(), partitions, configs }];
        let request = |reply| ControlRequest::CreateTopics { topics, validate_only: false, reply };
        self.ask(request).await.remove(0).outcome
    }

    async fn delete(&self, name: TopicName) -> TopicResult {
        self.ask(|reply| ControlRequest::DeleteTopics { topics: vec![name], reply }).await.remove(0)
    }

    async fn grow(&self, name: &str, partitions: i32) -> Result<TopicDone, TopicRefusal> {
        let topics = vec![(name.into(), partitions)];
        let request = |reply| ControlRequest::CreatePartitions { topics, validate_only: false, reply };
        self.ask(request).await.remove(0).outcome
    }

    async fn alter(&self, name: &str, change: ConfigChange) -> Result<TopicDone, TopicRefusal> {
        let topics = vec![(name.into(), change)];
        let request = |reply| ControlRequest::AlterTopicConfigs { topics, validate_only: false, reply };
        self.ask(request).await.remove(0).outcome
    }

    fn leaders(&self, topic: &str) -> Vec<bool> {
        let state = self.state.borrow();
        state.view().topic(topic).unwrap().partitions.iter().map(|partition| partition.leader.is_some()).collect()
    }
}

fn code(outcome: Result<TopicDone, TopicRefusal>) -> ErrorCode {
    outcome.unwrap_err().code
}

async fn in_local_set(test: impl Future<Output = ()>) {
    LocalSet::new().run_until(test).await;
}

#[tokio::test]
async fn a_topic_lives_and_dies() {
    let root = tempfile::tempdir().unwrap();
    in_local_set(async {
        let broker = BrokerConfig::resolve([("num.partitions", "3")]).unwrap();
        let harness = Harness::start(directory(root.path()), broker, 1 << 20);

        let done = harness.create("orders", -1, &[("retention.ms", "5")]).await.unwrap();
        assert_eq!((done.partitions, done.config.retention_ms), (3, Some(5)));
        assert_eq!(harness.leaders("orders"), [true; 3], "led before the client hears of it");
        assert_eq!(code(harness.create("orders", 1, &[]).await), ErrorCode::TopicAlreadyExists);

        let grown = harness.grow("orders", 5).await.unwrap();
        assert_eq!((grown.id, grown.partitions), (done.id, 5));
        assert_eq!(harness.leaders("orders"), [true; 5]);
        assert_eq!(code(harness.grow("orders", 5).await), ErrorCode::InvalidPartitions);

        let set = ConfigOperation::Set("2097152".to_owned());
        let change = ConfigChange::Incremental(vec![("segment.bytes".to_owned(), set)]);
        let altered = harness.alter("orders", change).await.unwrap();
        assert_eq!((altered.config.segment_bytes, altered.config.retention_ms), (2_097_152, Some(5)));
        assert_eq!(harness.leaders("orders"), [true; 5], "leaders stay");

        let stored = TopicDirectory::open(&root.path().into(), BrokerId(1), Arc::new(FileSystem)).unwrap();
        let own = [("retention.ms", "5"), ("segment.bytes", "2097152")];
        let own: BTreeMap<String, String> = own.map(|(key, value)| (key.to_owned(), value.to_owned())).into();
        let expected = StoredTopic { name: "orders".into(), id: done.id, partitions: 5, own };
        assert_eq!(stored.list().unwrap(), [expected]);

        let deleted = harness.delete(TopicName::Id(done.id)).await;
        assert_eq!((deleted.name.as_deref(), deleted.outcome.unwrap().id), (Some("orders"), done.id));
        assert!(harness.state.borrow().view().topics.is_empty());
        assert_eq!(stored.list().unwrap(), []);
        let told = |text: &str| harness.told.borrow().iter().filter(|told| told.contains(text)).count();
        assert_eq!(told("2097152"), 5, "each partition is told of its new configuration");
        assert_eq!(told("abandon"), 2, "each shard");
        let name = TopicName::Name("orders".into());
        assert_eq!(code(harness.delete(name).await.outcome), ErrorCode::UnknownTopicOrPartition);
        assert_eq!(code(harness.delete(TopicName::Id(done.id)).await.outcome), ErrorCode::UnknownTopicId);

        let again = harness.create("orders", 1, &[]).await.unwrap();
        assert_ne!(again.id, done.id, "another incarnation");
    })
    .await;
}

#[tokio::test]
async fn refusals_change_nothing() {
    in_local_set(async {
        let harness = Harness::start(TopicStore::Memory, BrokerConfig::default(), 10);
        assert_eq!(code(harness.create("a b", 1, &[]).await), ErrorCode::InvalidTopicException);
        assert_eq!(code(harness.create("__cluster", 1, &[]).await), ErrorCode::InvalidTopicException);
        assert_eq!(code(harness.create("__cluster_metadata", 1, &[]).await), ErrorCode::InvalidRequest);
        assert_eq!(code(harness.create("a", 0, &[]).await), ErrorCode::InvalidPartitions);
        assert_eq!(code(harness.create("a", 10_001, &[]).await), ErrorCode::InvalidPartitions);
        assert_eq!(code(harness.create("a", 1, &[("segment.bytes", "1")]).await), ErrorCode::InvalidConfig);
        assert_eq!(code(harness.grow("a", 2).await), ErrorCode::UnknownTopicOrPartition);
        let refusal = harness.create("a", 11, &[]).await.unwrap_err();
        assert_eq!(refusal.code, ErrorCode::PolicyViolation);
        assert!(
            refusal.message.contains("limit of 10") && refusal.message.contains("ulimit -n"),
            "{}",
            refusal.message
        );
        let validate = |reply| ControlRequest::CreateTopics {
            topics: vec![NewTopic { name: "a".into(), partitions: 1, configs: BTreeMap::new() }],
            validate_only: true,
            reply,
        };
        assert!(harness.ask(validate).await[0].outcome.is_ok());
        assert!(harness.state.borrow().view().topics.is_empty());
        harness.create("a.b", 10, &[]).await.unwrap();
        assert_eq!(code(harness.create("a_b", 1, &[]).await), ErrorCode::InvalidTopicException);
        assert_eq!(code(harness.grow("a.b", 11).await), ErrorCode::PolicyViolation);
    })
    .await;
}

#[tokio::test]
async fn deletion_can_be_switched_off() {
    in_local_set(async {
        let broker = BrokerConfig::resolve([("delete.topic.enable", "false")]).unwrap();
        let harness = Harness::start(TopicStore::Memory, broker, 1 << 20);
        harness.create("orders", 1, &[]).await.unwrap();
        let name = TopicName::Name("orders".into());
        assert_eq!(code(harness.delete(name).await.outcome), ErrorCode::TopicDeletionDisabled);
        assert_eq!(harness.leaders("orders"), [true]);
    })
    .await;
}

#[tokio::test]
async fn a_topic_that_can_not_be_deleted_is_led_again() {
    let root = tempfile::tempdir().unwrap();
    in_local_set(async {
        let harness = Harness::start(directory(root.path()), BrokerConfig::default(), 1 << 20);
        let done = harness.create("orders", 1, &[]).await.unwrap();
        // Something lies where the topic would be renamed to.
        let obstacle = root.path().join(format!(".deleting-{}", done.id));
        std::fs::write(&obstacle, "").unwrap();
        let name = TopicName::Name("orders".into());
        assert_eq!(code(harness.delete(name).await.outcome), ErrorCode::KafkaStorageError);
        let mut view = harness.state.borrow().watch();
        view.wait_for(|view| view.topics["orders"].partitions[0].leader.is_some()).await.unwrap();
        let told = harness.told.borrow().clone();
        assert_eq!(told, ["take over orders-0 {}", "abandon", "abandon", "take over orders-0 {}"]);
    })
    .await;
}

#[tokio::test]
async fn groups_hear_which_topics_there_are_also_of_one_that_is_not_served() {
    let root = tempfile::tempdir().unwrap();
    in_local_set(async {
        let harness = Harness::start(directory(root.path()), BrokerConfig::default(), 1 << 20);
        let done = harness.create("orders", 1, &[]).await.unwrap();
        let damaged = TopicId([9; 16]);
        std::fs::create_dir_all(root.path().join("damaged").join(damaged.to_string())).unwrap();
        tokio::time::pause();
        harness.service.forget_gone_topics().await.unwrap();
        let both = format!("retain {:?}", BTreeSet::from([done.id, damaged]));
        while harness.told.borrow().iter().filter(|told| **told == both).count() < 2 {
            tokio::task::yield_now().await;
        }
    })
    .await;
}
