//! Carries out what clients ask for topics: one request after the other, each durable before the shards and the
//! clients hear of it.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use kaas_proto::config::broker::BrokerConfig;
use kaas_proto::config::topic::TopicConfig;
use kaas_proto::control::{
    ConfigChange, ControlRequest, GONE_TOPIC_AGE, NewTopic, PartitionKey, ShardCommand, TakeOver, TopicDone, TopicName,
    TopicRefusal, TopicResult,
};
use kaas_proto::kafka::error_code::ErrorCode;
use kaas_proto::reserve::Reserve;
use kaas_proto::types::{ShardId, TopicId};
use kaas_proto::view::{ClusterView, PartitionView, TopicView};
use tokio::sync::{Notify, mpsc, oneshot, watch};
use tokio::time::{sleep, timeout};

use super::decide::{self, PartitionLimit, refusal};
use super::{StoreError, StoredTopic, TopicStore, blocking, make_room};
use crate::cluster_state::{ClusterState, partitions, slots};
use crate::log_limit::may_log;
use crate::outbox::{Outbox, OutboxFull};

/// How long a created topic is held back from the client until its partitions are led. Clients cope with
/// LEADER_NOT_AVAILABLE, but need not see it.
const LEADER_WAIT: Duration = Duration::from_secs(5);

/// How long shards have to let go of a deleted topic. Its fences stop those that did not hear.
const ABANDON_WAIT: Duration = Duration::from_secs(10);

/// Control thread.
#[derive(Debug)]
pub struct TopicService {
    state: Rc<RefCell<ClusterState>>,
    outbox: Rc<Outbox>,
    store: TopicStore,
    broker: Arc<BrokerConfig>,
    limit: PartitionLimit,
    reserve: Reserve,
    sweep: Notify,
}

impl TopicService {
    #[must_use]
    pub fn new(
        state: Rc<RefCell<ClusterState>>,
        outbox: Rc<Outbox>,
        store: TopicStore,
        broker: Arc<BrokerConfig>,
        limit: PartitionLimit,
        reserve: Reserve,
    ) -> Self {
        Self { state, outbox, store, broker, limit, reserve, sweep: Notify::new() }
    }

    /// Tells the shards to lead all that the view shows: coordinator slots first, because a group waits for one.
    ///
    /// # Errors
    /// A shard's outbox is full.
    pub fn take_over_all(&self) -> Result<(), OutboxFull> {
        let config = Arc::new(slot_config());
        for slot in slots() {
            self.take_over(slot, "".into(), &config)?;
        }
        let topics: Vec<Arc<TopicView>> = self.state.borrow().view().topics.values().cloned().collect();
        for topic in topics {
            self.take_over_topic(&topic, 0)?;
        }
        Ok(())
    }

    /// Answers requests until nobody can send one.
    pub async fn serve(&self, mut requests: mpsc::Receiver<ControlRequest>) {
        while let Some(request) = requests.recv().await {
            self.handle(request).await;
        }
    }

    /// Some time after the start, groups forget what they committed for topics that went without their hearing of it: this process ended
    /// in between.
    ///
    /// # Errors
    /// A shard's outbox is full.
    pub async fn forget_gone_topics(&self) -> Result<(), OutboxFull> {
        sleep(GONE_TOPIC_AGE).await;
        // A topic that can't be served is there all the same.
        let store = self.store.clone();
        let mut topics = match blocking(move || store.incarnations()).await {
            Ok(topics) => topics,
            Err(error) => {
                tracing::warn!("{error}; offsets of topics that are gone stay until they expire");
                return Ok(());
            }
        };
        topics.extend(self.state.borrow().view().topic_names.keys());
        let topics = Arc::new(topics);
        for shard in (0..self.outbox.shards()).map(ShardId) {
            self.outbox.send(shard, ShardCommand::RetainTopics { topics: Arc::clone(&topics) })?;
        }
        Ok(())
    }

    /// Removes what deletions and crashes leave behind, for ever.
    pub async fn sweep(&self) {
        loop {
            let store = self.store.clone();
            match blocking(move || store.sweep()).await.pause(&self.reserve) {
                None => self.sweep.notified().await,
                Some(pause) => drop(timeout(pause, self.sweep.notified()).await),
            }
        }
    }

    /// A request whose client has gone is carried out all the same: it may have been seen by others.
    async fn handle(&self, request: ControlRequest) {
        match request {
            ControlRequest::CreateTopics { topics, validate_only, reply } => {
                let mut results = Vec::with_capacity(topics.len());
                for topic in &topics {
                    let outcome = self.create(topic, validate_only).await;
                    results.push(TopicResult { name: Some(Arc::clone(&topic.name)), outcome });
                }
                self.reply_when_led(results, validate_only, reply);
            }
            ControlRequest::CreatePartitions { topics, validate_only, reply } => {
                let mut results = Vec::with_capacity(topics.len());
                for (name, partitions) in &topics {
                    let outcome = self.grow(name, *partitions, validate_only).await;
                    results.push(TopicResult { name: Some(Arc::clone(name)), outcome });
                }
                self.reply_when_led(results, validate_only, reply);
            }
            ControlRequest::DeleteTopics { topics, reply } => {
                let mut results = Vec::with_capacity(topics.len());
                for name in &topics {
                    results.push(self.delete(name).await);
                }
                let _ = reply.send(results);
            }
            ControlRequest::AlterTopicConfigs { topics, validate_only, reply } => {
                let mut results = Vec::with_capacity(topics.len());
                for (name, change) in &topics {
                    let outcome = self.configure(name, change, validate_only).await;
                    results.push(TopicResult { name: Some(Arc::clone(name)), outcome });
                }
                let _ = reply.send(results);
            }
        }
    }

    async fn create(&self, new: &NewTopic, validate_only: bool) -> Result<TopicDone, TopicRefusal> {
        let (topic, config) = {
            let state = self.state.borrow();
            decide::creation(state.view(), &self.broker, self.limit, new)?
        };
        let config = Arc::new(config);
        let done = TopicDone { id: topic.id, partitions: topic.partitions, config: Arc::clone(&config) };
        if validate_only {
            return Ok(done);
        }
        self.room_for_more()?;
        let (store, stored) = (self.store.clone(), topic.clone());
        if let Err(error) = blocking(move || store.create(&stored)).await {
            // What there is of it lies aside.
            self.sweep.notify_one();
            return Err(storage(&error));
        }
        let view = topic_view(&topic, config);
        self.state.borrow_mut().put_topic(view.clone());
        tracing::info!(topic = &*topic.name, id = %topic.id, partitions = topic.partitions, "topic created");
        self.take_over_topic(&view, 0).map_err(too_busy)?;
        Ok(done)
    }

    /// What room there is on a full volume belongs to takeovers and deletions.
    fn room_for_more(&self) -> Result<(), TopicRefusal> {
        match self.reserve.refuses_records() {
            true => Err(refusal(
                ErrorCode::KafkaStorageError,
                "no space on the volume; delete topics or records, or enlarge it".to_owned(),
            )),
            false => Ok(()),
        }
    }

    async fn grow(&self, name: &str, partitions: i32, validate_only: bool) -> Result<TopicDone, TopicRefusal> {
        let topic = decide::growth(self.state.borrow().view(), self.limit, name, partitions)?;
        let done = TopicDone { id: topic.id, partitions, config: Arc::clone(&topic.config) };
        if validate_only {
            return Ok(done);
        }
        self.room_for_more()?;
        let former = topic.partitions.len();
        let stored =
            StoredTopic { name: Arc::clone(&topic.name), id: topic.id, partitions, own: topic.config.own.clone() };
        let store = self.store.clone();
        let count = i32::try_from(former).expect("bounded by MAX_PARTITIONS_PER_TOPIC");
        blocking(move || store.grow(&stored, count)).await.map_err(|error| storage(&error))?;
        let wanted = usize::try_from(partitions).expect("more than before");
        self.state.borrow_mut().change_topic(name, topic.id, |topic| {
            topic.partitions.resize(wanted, PartitionView::LEADERLESS);
        });
        tracing::info!(topic = name, from = former, to = partitions, "partitions added");
        let grown = self.state.borrow().view().topic(name).cloned();
        if let Some(grown) = grown {
            self.take_over_topic(&grown, former).map_err(too_busy)?;
        }
        Ok(done)
    }

    async fn configure(
        &self,
        name: &str,
        change: &ConfigChange,
        validate_only: bool,
    ) -> Result<TopicDone, TopicRefusal> {
        let (topic, config) = decide::alteration(self.state.borrow().view(), &self.broker, name, change)?;
        let config = Arc::new(config);
        let partitions = i32::try_from(topic.partitions.len()).expect("bounded by MAX_PARTITIONS_PER_TOPIC");
        let done = TopicDone { id: topic.id, partitions, config: Arc::clone(&config) };
        if validate_only || *config == *topic.config {
            return Ok(done);
        }
        let stored = StoredTopic { name: Arc::clone(&topic.name), id: topic.id, partitions, own: config.own.clone() };
        let store = self.store.clone();
        blocking(move || store.configure(&stored)).await.map_err(|error| storage(&error))?;
        tracing::info!(topic = name, settings = ?config.own, "topic configured");
        self.state.borrow_mut().change_topic(name, topic.id, |topic| topic.config = config);
        let changed = self.state.borrow().view().topic(name).cloned();
        if let Some(changed) = changed {
            self.take_over_topic(&changed, 0).map_err(too_busy)?;
        }
        Ok(done)
    }

    async fn delete(&self, name: &TopicName) -> TopicResult {
        let asked = match name {
            TopicName::Name(name) => Some(Arc::clone(name)),
            TopicName::Id(_) => None,
        };
        let topic = match decide::deletion(self.state.borrow().view(), &self.broker, name) {
            Ok(topic) => topic,
            Err(refusal) => return TopicResult { name: asked, outcome: Err(refusal) },
        };
        TopicResult { name: Some(Arc::clone(&topic.name)), outcome: self.delete_existing(&topic).await }
    }

    async fn delete_existing(&self, topic: &Arc<TopicView>) -> Result<TopicDone, TopicRefusal> {
        // Out of sight first, so that no request reaches a shard behind the abandonment.
        self.state.borrow_mut().remove_topic(topic);
        self.abandon(&topic.name, topic.id).await;
        let delete = || {
            let (store, name, id) = (self.store.clone(), Arc::clone(&topic.name), topic.id);
            blocking(move || store.delete(&name, id))
        };
        let mut deleted = delete().await;
        if deleted.as_ref().is_err_and(StoreError::is_full) && make_room(&self.reserve).await {
            deleted = delete().await;
        }
        if let Err(error) = deleted {
            if may_log("topic_deletion") {
                tracing::error!(
                    topic = &*topic.name,
                    "the topic could not be deleted, it is taken over again: {error}"
                );
            }
            let mut kept = TopicView::clone(topic);
            for partition in &mut kept.partitions {
                partition.leader = None;
            }
            self.state.borrow_mut().put_topic(kept.clone());
            self.take_over_topic(&kept, 0).map_err(too_busy)?;
            return Err(storage(&error));
        }
        self.sweep.notify_one();
        tracing::info!(topic = &*topic.name, id = %topic.id, "topic deleted");
        let partitions = i32::try_from(topic.partitions.len()).expect("bounded by MAX_PARTITIONS_PER_TOPIC");
        Ok(TopicDone { id: topic.id, partitions, config: Arc::clone(&topic.config) })
    }

    /// Tells every shard that the topic is gone, and waits until they have closed its files.
    async fn abandon(&self, topic: &str, topic_id: TopicId) {
        let mut answers = Vec::new();
        for shard in (0..self.outbox.shards()).map(ShardId) {
            let (done, answer) = oneshot::channel();
            match self.outbox.send(shard, ShardCommand::Abandon { topic_id, done }) {
                Ok(()) => answers.push(answer),
                Err(full) if may_log("abandonment") => tracing::warn!(topic, "{full}; the topic's fences will stop it"),
                Err(_) => {}
            }
        }
        let all = async {
            for answer in answers {
                let _ = answer.await;
            }
        };
        if timeout(ABANDON_WAIT, all).await.is_err() {
            tracing::warn!(
                topic,
                "a shard did not let go of the deleted topic in time; the topic's fences will stop it"
            );
        }
    }

    fn take_over_topic(&self, topic: &TopicView, from: usize) -> Result<(), OutboxFull> {
        partitions(topic).skip(from).try_for_each(|key| self.take_over(key, Arc::clone(&topic.name), &topic.config))
    }

    fn take_over(&self, partition: PartitionKey, topic: Arc<str>, config: &Arc<TopicConfig>) -> Result<(), OutboxFull> {
        let take_over = TakeOver { partition, topic, epoch: None, config: Arc::clone(config) };
        self.outbox.send(partition.shard(self.outbox.shards()), ShardCommand::TakeOver(take_over))
    }

    /// Replies once the topics in `results` are led, or after [`LEADER_WAIT`]; other requests go on meanwhile.
    fn reply_when_led(&self, results: Vec<TopicResult>, validate_only: bool, reply: oneshot::Sender<Vec<TopicResult>>) {
        let created: Vec<TopicId> =
            results.iter().filter_map(|result| Some(result.outcome.as_ref().ok()?.id)).collect();
        if validate_only || created.is_empty() {
            let _ = reply.send(results);
            return;
        }
        let view = self.state.borrow().watch();
        tokio::spawn(async move {
            let _ = timeout(LEADER_WAIT, all_led(view, created)).await;
            let _ = reply.send(results);
        });
    }
}

async fn all_led(mut view: watch::Receiver<Arc<ClusterView>>, topics: Vec<TopicId>) {
    let led = |view: &Arc<ClusterView>| {
        let found = topics.iter().filter_map(|&id| view.topic_by_id(id));
        found.flat_map(|topic| &topic.partitions).all(|partition| partition.leader.is_some())
    };
    let _ = view.wait_for(led).await;
}

/// A topic of which nobody leads anything yet.
pub(crate) fn topic_view(topic: &StoredTopic, config: Arc<TopicConfig>) -> TopicView {
    TopicView {
        name: Arc::clone(&topic.name),
        id: topic.id,
        config,
        partitions: vec![PartitionView::LEADERLESS; usize::try_from(topic.partitions).unwrap_or(0)],
    }
}

/// Coordinator slots keep everything: their own snapshots bound them. Small segments let go early of what is behind one.
pub(crate) fn slot_config() -> TopicConfig {
    let own = [("cleanup.policy", ""), ("retention.ms", "-1"), ("segment.bytes", "16777216")];
    let own = own.map(|(key, value)| (key.to_owned(), value.to_owned())).into();
    TopicConfig::resolve(&BrokerConfig::default(), &own).expect("these are accepted")
}

fn storage(error: &StoreError) -> TopicRefusal {
    let advice = if error.is_full() { "; free space on the volume or enlarge it" } else { "" };
    refusal(ErrorCode::KafkaStorageError, format!("{error}{advice}"))
}

fn too_busy(full: OutboxFull) -> TopicRefusal {
    refusal(ErrorCode::RequestTimedOut, full.to_string())
}

#[cfg(test)]
#[path = "service_tests.rs"]
mod tests;
