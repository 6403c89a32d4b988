#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

use std::fs;

use kaas_proto::control::ShardLink;
use kaas_proto::control::link;
use kaas_proto::format::assignment::AssignedPartition;
use kaas_proto::format::topic_config::StoredTopicConfig;
use kaas_proto::layout::TOPIC_CONFIG_FILE;
use kaas_proto::reserve::Reserves;
use kaas_proto::types::{AssignmentVersion, PartitionIndex};
use kaas_proto::view::{BrokerView, ClusterView};
use tempfile::TempDir;
use tokio::task::{LocalSet, spawn_local};
use tokio::time::timeout;

use super::super::sample;
use super::*;

const PATIENCE: Duration = Duration::from_secs(30);
const TOPIC: TopicId = TopicId([7; 16]);

/// Broker 1, what it follows, and its shard.
struct Scene {
    root: TempDir,
    assignments: watch::Sender<Option<Arc<Assignment>>>,
    _topics: watch::Sender<Option<Arc<DesiredTopics>>>,
    shard: ShardLink,
}

fn scene() -> Scene {
    let root = tempfile::tempdir().unwrap();
    let own = BrokerView { id: BrokerId(1), rack: None, fenced: false, listeners: Vec::new() };
    let (control, mut shards) = link(1, Arc::new(ClusterView::empty("c".into(), own)), Reserves::default());
    let state = Rc::new(RefCell::new(ClusterState::of_cluster(control.view)));
    let outbox = Rc::new(Outbox::start(&control.commands));
    let (config, status) = (Arc::new(BrokerConfig::default()), Rc::new(Status::default()));
    let member = Member::new(root.path().to_owned(), Incarnation(1), state, outbox, status, config);
    let (assignments, followed) = watch::channel(None);
    let (topics, desired) = watch::channel(None);
    let mut events = control.events;
    spawn_local(async move { member.run(followed, desired, &mut events).await });
    Scene { root, assignments, _topics: topics, shard: shards.remove(0) }
}

impl Scene {
    /// Broker 1 is to lead partition 0 of a topic.
    fn assign(&self, version: i64) {
        let row = AssignedPartition {
            topic: "t".into(),
            topic_id: TOPIC,
            partition: PartitionIndex(0),
            leader: BrokerId(1),
            epoch: LeaderEpoch(1),
            previous: None,
        };
        let assignment_version = AssignmentVersion(version);
        let assignment = Assignment { partitions: vec![row], assignment_version, ..sample::assignment(1, version) };
        self.assignments.send_replace(Some(Arc::new(assignment)));
    }

    fn write_config(&self) {
        let directory = self.root.path().join("t");
        fs::create_dir(&directory).unwrap();
        let config = StoredTopicConfig { topic_id: TOPIC, configs: [("retention.ms".into(), "5".into())].into() };
        fs::write(directory.join(TOPIC_CONFIG_FILE), config.encode()).unwrap();
    }

    async fn taken_over(&mut self) -> TakeOver {
        let wait = async {
            loop {
                if let Some(ShardCommand::TakeOver(command)) = self.shard.commands.recv().await
                    && command.partition.topic_id == TOPIC
                {
                    return command;
                }
            }
        };
        timeout(PATIENCE, wait).await.expect("the shard is told to lead it")
    }

    /// Until all slots were taken over, which the same assignment says.
    async fn slots_are_told(&mut self) {
        for _ in 0..kaas_proto::types::COORDINATOR_SLOTS {
            let command = timeout(PATIENCE, self.shard.commands.recv()).await.unwrap().unwrap();
            assert!(matches!(command, ShardCommand::TakeOver(command) if command.partition.slot().is_some()));
        }
    }
}

/// The bug that this would find: an assignment that came before the configuration could be read made the broker forget it.
#[tokio::test]
async fn a_takeover_that_waits_for_its_configuration_outlives_another_assignment() {
    LocalSet::new()
        .run_until(async {
            let mut scene = scene();
            scene.assign(1);
            scene.slots_are_told().await;
            scene.write_config();
            scene.assign(2);
            let told = scene.taken_over().await;
            assert_eq!((told.epoch, &*told.config.own["retention.ms"]), (Some(LeaderEpoch(1)), "5"));
        })
        .await;
}

/// The same, when shards have so much to report that the clock is looked at late each time.
#[tokio::test(start_paused = true)]
async fn configurations_are_looked_for_again_whatever_else_happens() {
    LocalSet::new()
        .run_until(async {
            let mut scene = scene();
            scene.assign(1);
            scene.slots_are_told().await;
            scene.write_config();
            let (events, shard) = (scene.shard.events.clone(), scene.shard.shard);
            spawn_local(async move {
                loop {
                    let partition = PartitionKey::of_slot(kaas_proto::types::SlotId(3));
                    let change = PartitionChange::Stalled(false);
                    events.send(ShardEvent { shard, partition, change }).await.unwrap();
                    tokio::time::sleep(CONFIG_PAUSE / 4).await;
                }
            });
            assert_eq!(scene.taken_over().await.epoch, Some(LeaderEpoch(1)));
        })
        .await;
}
