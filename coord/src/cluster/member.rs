//! This broker as a member of the cluster: follows the assignment, tells the shards, reports to the controller.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use kaas_proto::config::broker::BrokerConfig;
use kaas_proto::config::topic::TopicConfig;
use kaas_proto::control::{PartitionChange, PartitionKey, ShardCommand, ShardEvent, TakeOver};
use kaas_proto::format::assignment::{Assignment, BrokerHealth};
use kaas_proto::types::{BrokerId, Incarnation, LeaderEpoch, ShardId, TopicId};
use tokio::sync::{Notify, mpsc, oneshot, watch};
use tokio::time::{Instant, sleep_until};

use super::configs::{Configs, read_configs};
use super::follower::{Follower, Report, Step};
use super::heartbeat::client::Status;
use super::ports::DesiredTopics;
use super::view::{Known, view_of};
use crate::cluster_state::ClusterState;
use crate::outbox::{Outbox, OutboxFull};
use crate::topics::blocking;
use crate::topics::service::slot_config;

/// With which nobody has led a partition before.
const FIRST_EPOCH: LeaderEpoch = LeaderEpoch(1);
/// After configurations could not be read from the volume.
const CONFIG_PAUSE: Duration = Duration::from_secs(1);
/// Events of shards that are taken note of at a time.
const EVENT_BATCH: usize = 1024;

/// Control thread.
#[derive(Debug)]
pub(crate) struct Member {
    root: PathBuf,
    broker: BrokerId,
    state: Rc<RefCell<ClusterState>>,
    outbox: Rc<Outbox>,
    status: Rc<Status>,
    follower: RefCell<Follower>,
    configs: RefCell<Configs>,
    slot_config: Arc<TopicConfig>,
    assignment: RefCell<Option<Arc<Assignment>>>,
    /// Takeovers that wait for a configuration.
    unconfigured: RefCell<BTreeMap<PartitionKey, Step>>,
    /// When configurations are looked for again, if any takeover waits for one.
    retry_at: Cell<Option<Instant>>,
    /// Something was let go of, or a deadline may have come nearer.
    changed: Notify,
}

impl Member {
    pub(crate) fn new(
        root: PathBuf,
        incarnation: Incarnation,
        state: Rc<RefCell<ClusterState>>,
        outbox: Rc<Outbox>,
        status: Rc<Status>,
        config: Arc<BrokerConfig>,
    ) -> Rc<Self> {
        let broker = state.borrow().view().self_id;
        Rc::new(Self {
            root,
            broker,
            state,
            outbox,
            status,
            follower: RefCell::new(Follower::new(broker, incarnation)),
            configs: RefCell::new(Configs::new(config)),
            slot_config: Arc::new(slot_config()),
            assignment: RefCell::default(),
            unconfigured: RefCell::default(),
            retry_at: Cell::default(),
            changed: Notify::new(),
        })
    }

    /// Follows assignments, topics and shards, for ever.
    ///
    /// # Errors
    /// A shard takes no commands.
    pub(crate) async fn run(
        &self,
        mut assignments: watch::Receiver<Option<Arc<Assignment>>>,
        mut topics: watch::Receiver<Option<Arc<DesiredTopics>>>,
        events: &mut mpsc::Receiver<ShardEvent>,
    ) -> Result<(), OutboxFull> {
        let mut desired: Option<Arc<DesiredTopics>> = None;
        let mut batch = Vec::new();
        loop {
            let deadline = self.next_deadline();
            tokio::select! {
                // A change of topics first: an assignment that is newer may name them.
                biased;
                Ok(()) = topics.changed() => {
                    let newer = topics.borrow_and_update().clone();
                    if let Some(newer) = newer {
                        self.desire(desired.as_deref(), &newer)?;
                        desired = Some(newer);
                    }
                }
                Ok(()) = assignments.changed() => {
                    let newer = assignments.borrow_and_update().clone();
                    if let Some(newer) = newer {
                        self.read_missing_configs(&newer).await;
                        self.adopt(newer, desired.as_deref())?;
                    }
                }
                count = events.recv_many(&mut batch, EVENT_BATCH) => {
                    if count == 0 {
                        std::future::pending::<()>().await;
                    }
                    self.apply(batch.drain(..))?;
                }
                () = sleep_until(deadline) => {
                    let steps = self.follower.borrow_mut().clock(Instant::now());
                    self.carry_out(steps)?;
                    self.configure_late().await?;
                }
                () = self.changed.notified() => {}
            }
        }
    }

    fn next_deadline(&self) -> Instant {
        let waiting = self.follower.borrow().next_deadline();
        let far = || Instant::now() + CONFIG_PAUSE * 3600;
        waiting.into_iter().chain(self.retry_at.get()).min().unwrap_or_else(far)
    }

    async fn read_missing_configs(&self, assignment: &Assignment) {
        let missing = self.configs.borrow().missing(assignment);
        if !missing.is_empty() {
            let root = self.root.clone();
            let found = blocking(move || read_configs(&root, missing)).await;
            let mut configs = self.configs.borrow_mut();
            found.into_iter().for_each(|topic| configs.found(topic));
        }
    }

    fn adopt(&self, assignment: Arc<Assignment>, desired: Option<&DesiredTopics>) -> Result<(), OutboxFull> {
        let steps = self.follower.borrow_mut().adopt(&assignment, Instant::now());
        let (epoch, version) = assignment.generation();
        let (brokers, partitions) = (assignment.brokers.len(), assignment.partitions.len());
        tracing::debug!(%epoch, %version, brokers, partitions, steps = steps.len(), "following an assignment");
        self.configs.borrow_mut().keep(Some(&assignment), desired);
        self.assignment.replace(Some(Arc::clone(&assignment)));
        self.expect_assigned(&assignment);
        self.status.set_applied((epoch, version));
        self.show();
        self.carry_out(steps)?;
        // What an older assignment asked for, and this one still does.
        let late = self.now_configured();
        self.carry_out(late)
    }

    /// What is to be led here counts from now on, also while its former leader is waited for.
    fn expect_assigned(&self, assignment: &Assignment) {
        let mut state = self.state.borrow_mut();
        let follower = self.follower.borrow();
        for row in assignment.partitions.iter().filter(|row| row.leader == self.broker) {
            let (key, topic) = (row.key(), Arc::clone(&row.topic));
            match follower.topic(key) {
                Some(_) if row.epoch == FIRST_EPOCH => state.leadership_mut().assign_new(key, topic),
                Some(_) => state.leadership_mut().assign(key, topic),
                None => {}
            }
        }
        for slot in assignment.consumer_groups.iter().filter(|slot| slot.leader == self.broker) {
            let key = PartitionKey::of_slot(slot.slot);
            if follower.topic(key).is_some() {
                state.leadership_mut().assign(key, "".into());
            }
        }
    }

    /// Other topics are desired. Those that were, and are not any more, are gone, whatever the assignment says still.
    fn desire(&self, former: Option<&DesiredTopics>, desired: &DesiredTopics) -> Result<(), OutboxFull> {
        let gone =
            |topic: &&super::ports::DesiredTopic| desired.get(&topic.name).is_none_or(|newer| newer.id != topic.id);
        let gone: Vec<TopicId> = former.iter().flat_map(|former| former.values()).filter(gone).map(|t| t.id).collect();
        let mut steps = Vec::new();
        for topic_id in gone {
            steps.extend(self.follower.borrow_mut().delete_topic(topic_id));
        }
        let changed = self.configs.borrow_mut().desire(desired);
        if !steps.is_empty() || !changed.is_empty() || !self.unconfigured.borrow().is_empty() {
            self.show();
        }
        for topic_id in changed {
            let led: Vec<_> = self.follower.borrow().led_of(topic_id).collect();
            for (partition, epoch) in led {
                let topic = self.follower.borrow().topic(partition).cloned().unwrap_or_else(|| "".into());
                steps.push(Step::TakeOver { partition, topic, epoch });
            }
        }
        steps.extend(self.now_configured());
        self.carry_out(steps)
    }

    fn now_configured(&self) -> Vec<Step> {
        let configs = self.configs.borrow();
        let mut waiting = self.unconfigured.borrow_mut();
        let known: Vec<PartitionKey> =
            waiting.keys().filter(|key| configs.get(key.topic_id).is_some()).copied().collect();
        known.iter().filter_map(|key| waiting.remove(key)).collect()
    }

    async fn configure_late(&self) -> Result<(), OutboxFull> {
        if self.retry_at.get().is_none_or(|at| Instant::now() < at) {
            return Ok(());
        }
        self.retry_at.set(None);
        let assignment = self.assignment.borrow().clone();
        let Some(assignment) = assignment.filter(|_| !self.unconfigured.borrow().is_empty()) else { return Ok(()) };
        self.read_missing_configs(&assignment).await;
        if !self.configs.borrow().missing(&assignment).is_empty() {
            self.retry_at.set(Some(Instant::now() + CONFIG_PAUSE));
        }
        let steps = self.now_configured();
        if !steps.is_empty() {
            self.show();
        }
        self.carry_out(steps)
    }

    fn apply(&self, events: impl Iterator<Item = ShardEvent>) -> Result<(), OutboxFull> {
        let now = Instant::now();
        let mut epochs_changed = false;
        let mut steps = Vec::new();
        for event in events {
            steps.extend(self.follower.borrow_mut().changed(event.partition, &event.change, now));
            match event.change {
                // Whether it counts is the follower's to say.
                PartitionChange::Relinquished { .. } => {}
                PartitionChange::Superseded { epoch, ref by } => {
                    tracing::info!(partition = ?event.partition, %epoch, %by, "another broker leads what this one led");
                    self.state.borrow_mut().leadership_mut().apply(event);
                }
                PartitionChange::Leading { .. } | PartitionChange::Failed { .. } | PartitionChange::Stalled(_) => {
                    epochs_changed |= matches!(event.change, PartitionChange::Leading { .. });
                    self.state.borrow_mut().leadership_mut().apply(event);
                }
            }
        }
        self.state.borrow_mut().say_when_ready();
        let reports_an_epoch =
            |step: &Step| matches!(step, Step::Report(Report { what: super::follower::What::Leads, .. }));
        if epochs_changed && steps.iter().any(reports_an_epoch) {
            self.show();
        }
        self.carry_out(steps)
    }

    /// The former leader of a partition has let go of it.
    pub(crate) fn released(&self, partition: PartitionKey, epoch: LeaderEpoch) {
        let step = self.follower.borrow_mut().released(partition, epoch);
        if let Some(step) = step
            && let Err(full) = self.carry_out(vec![step])
        {
            tracing::error!("{full}");
        }
    }

    /// How often releases were forgotten, because there were too many.
    pub(crate) fn forgotten_releases(&self) -> u64 {
        self.follower.borrow().forgotten_releases()
    }

    /// What a session with a controller begins with.
    pub(crate) fn outstanding(&self) -> Vec<Report> {
        self.follower.borrow().outstanding(Instant::now())
    }

    /// Publishes the view that follows from all that is known.
    fn show(&self) {
        let assignment = self.assignment.borrow().clone();
        let Some(assignment) = assignment else { return };
        let former = Arc::clone(self.state.borrow().view());
        let configs = self.configs.borrow();
        let follower = self.follower.borrow();
        let known = Known {
            configs: configs.known(),
            led: &|partition| follower.led(partition),
            is_deleted: &|topic_id| follower.is_deleted(topic_id),
        };
        let view = view_of(&former, &assignment, &known);
        drop((configs, follower));
        self.state.borrow_mut().show(view);
    }

    fn carry_out(&self, steps: Vec<Step>) -> Result<(), OutboxFull> {
        let shards = self.outbox.shards();
        for step in steps {
            match step {
                Step::TakeOver { partition, ref topic, epoch } => {
                    let config = match partition.slot() {
                        Some(_) => Some(Arc::clone(&self.slot_config)),
                        None => self.configs.borrow().get(partition.topic_id).cloned(),
                    };
                    let Some(config) = config else {
                        self.unconfigured.borrow_mut().insert(partition, step);
                        self.retry_at.set(self.retry_at.get().or_else(|| Some(Instant::now() + CONFIG_PAUSE)));
                        continue;
                    };
                    self.unconfigured.borrow_mut().remove(&partition);
                    self.state.borrow_mut().leadership_mut().assign_again(partition);
                    let take_over = TakeOver { partition, topic: Arc::clone(topic), epoch: Some(epoch), config };
                    self.outbox.send(partition.shard(shards), ShardCommand::TakeOver(take_over))?;
                }
                Step::Relinquish { partition } => {
                    self.unconfigured.borrow_mut().remove(&partition);
                    self.outbox.send(partition.shard(shards), ShardCommand::Relinquish { partition })?;
                }
                Step::Abandon { topic_id } => {
                    self.state.borrow_mut().leadership_mut().forget(topic_id);
                    self.unconfigured.borrow_mut().retain(|partition, _| partition.topic_id != topic_id);
                    for shard in (0..shards).map(ShardId) {
                        // Nobody waits for the answer: the fences of the topic stop a shard that is late.
                        let (done, _) = oneshot::channel();
                        self.outbox.send(shard, ShardCommand::Abandon { topic_id, done })?;
                    }
                }
                Step::Forget { partition } => {
                    self.state.borrow_mut().leadership_mut().remove(partition);
                    self.changed.notify_waiters();
                }
                Step::Report(report) => self.status.report(report),
                Step::RetainTopics { topics } => {
                    let topics = Arc::new(topics);
                    for shard in (0..shards).map(ShardId) {
                        self.outbox.send(shard, ShardCommand::RetainTopics { topics: Arc::clone(&topics) })?;
                    }
                }
            }
        }
        self.changed.notify_one();
        Ok(())
    }

    /// Whether nothing keeps this broker from leaving: it leads nothing, or nobody could take over from it.
    pub(crate) fn may_leave(&self) -> bool {
        let assignment = self.assignment.borrow();
        let others = assignment.iter().flat_map(|assignment| &assignment.brokers);
        let mut others = others.filter(|broker| broker.id != self.broker);
        self.follower.borrow().is_empty() || !others.any(|broker| broker.health == BrokerHealth::Alive)
    }
}

#[cfg(test)]
#[path = "member_tests.rs"]
mod tests;
