//! What clients ask for topics, in a cluster: checked against the view, passed on to whoever keeps the desired topics, and
//! answered once this broker's view shows it.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use kaas_proto::config::broker::BrokerConfig;
use kaas_proto::control::{ConfigChange, ControlRequest, NewTopic, TopicDone, TopicName, TopicRefusal, TopicResult};
use kaas_proto::kafka::error_code::ErrorCode;
use kaas_proto::types::TopicId;
use kaas_proto::view::{ClusterView, TopicView};
use tokio::sync::{Semaphore, mpsc, oneshot};
use tokio::task::spawn_local;
use tokio::time::timeout;

use super::ports::TopicRequest;
use crate::cluster_state::ClusterState;
use crate::topics::decide::{self, PartitionLimit};

/// How long an accepted change may take to show, before the client is answered all the same.
const SHOW_WAIT: Duration = Duration::from_secs(5);
/// Requests that are carried out at a time. Others wait in their queue, which is bounded, too.
const MAX_REQUESTS: usize = 256;
/// How long whoever keeps the topics has to accept a change.
const ACCEPT_WAIT: Duration = Duration::from_secs(15);

/// Control thread.
pub(crate) struct TopicRequests {
    state: Rc<RefCell<ClusterState>>,
    broker: Arc<BrokerConfig>,
    /// Of one broker.
    limit: PartitionLimit,
    requests: mpsc::Sender<TopicRequest>,
}

type Outcome = Result<TopicDone, TopicRefusal>;

impl TopicRequests {
    pub(crate) fn new(
        state: Rc<RefCell<ClusterState>>,
        broker: Arc<BrokerConfig>,
        limit: PartitionLimit,
        requests: mpsc::Sender<TopicRequest>,
    ) -> Rc<Self> {
        Rc::new(Self { state, broker, limit, requests })
    }

    /// Answers requests until nobody can send one. Each is carried out beside the others: one may wait for long.
    pub(crate) async fn serve(self: Rc<Self>, mut received: mpsc::Receiver<ControlRequest>) {
        let permits = Arc::new(Semaphore::new(MAX_REQUESTS));
        loop {
            let permit = Arc::clone(&permits).acquire_owned().await.expect("it is never closed");
            let Some(request) = received.recv().await else { return };
            let service = Rc::clone(&self);
            spawn_local(async move {
                service.handle(request).await;
                drop(permit);
            });
        }
    }

    async fn handle(&self, request: ControlRequest) {
        let (results, reply) = match request {
            ControlRequest::CreateTopics { topics, validate_only, reply } => {
                let mut results = Vec::with_capacity(topics.len());
                for topic in &topics {
                    let outcome = self.create(topic, validate_only).await;
                    results.push(TopicResult { name: Some(Arc::clone(&topic.name)), outcome });
                }
                if !validate_only {
                    self.wait_until_shown(&results).await;
                }
                (results, reply)
            }
            ControlRequest::CreatePartitions { topics, validate_only, reply } => {
                let mut results = Vec::with_capacity(topics.len());
                for (name, partitions) in &topics {
                    let outcome = self.grow(name, *partitions, validate_only).await;
                    results.push(TopicResult { name: Some(Arc::clone(name)), outcome });
                }
                if !validate_only {
                    self.wait_until_shown(&results).await;
                }
                (results, reply)
            }
            ControlRequest::DeleteTopics { topics, reply } => {
                let mut results = Vec::with_capacity(topics.len());
                for name in &topics {
                    results.push(self.delete(name).await);
                }
                let gone: Vec<TopicId> = done(&results).map(|done| done.id).collect();
                self.wait_for(|view| gone.iter().all(|&id| view.topic_by_id(id).is_none())).await;
                (results, reply)
            }
            ControlRequest::AlterTopicConfigs { topics, validate_only, reply } => {
                let mut results = Vec::with_capacity(topics.len());
                for (name, change) in &topics {
                    let outcome = self.configure(name, change, validate_only).await;
                    results.push(TopicResult { name: Some(Arc::clone(name)), outcome });
                }
                if !validate_only {
                    let shown = |view: &ClusterView, done: &TopicDone| {
                        view.topic_by_id(done.id).is_none_or(|topic| topic.config.own == done.config.own)
                    };
                    self.wait_for(|view| done(&results).all(|done| shown(view, done))).await;
                }
                (results, reply)
            }
        };
        let _ = reply.send(results);
    }

    async fn create(&self, new: &NewTopic, validate_only: bool) -> Outcome {
        let (topic, config) = decide::creation(&self.view(), &self.broker, self.cluster_limit(), new)?;
        let config = Arc::new(config);
        let (partitions, configs) = (topic.partitions, topic.own.clone());
        if validate_only {
            return Ok(TopicDone { id: topic.id, partitions, config });
        }
        let name = Arc::clone(&topic.name);
        let created = self.ask(|reply| TopicRequest::Create { name, partitions, configs, reply }).await?;
        Ok(TopicDone { id: created.id, partitions: created.partitions, config })
    }

    async fn grow(&self, name: &str, partitions: i32, validate_only: bool) -> Outcome {
        let topic = decide::growth(&self.view(), self.cluster_limit(), name, partitions)?;
        if !validate_only {
            let (name, id) = (Arc::clone(&topic.name), topic.id);
            self.ask(|reply| TopicRequest::SetPartitions { name, id, partitions, reply }).await?;
        }
        Ok(TopicDone { id: topic.id, partitions, config: Arc::clone(&topic.config) })
    }

    async fn configure(&self, name: &str, change: &ConfigChange, validate_only: bool) -> Outcome {
        let (topic, config) = decide::alteration(&self.view(), &self.broker, name, change)?;
        if !validate_only && config != *topic.config {
            let (name, id, configs) = (Arc::clone(&topic.name), topic.id, config.own.clone());
            self.ask(|reply| TopicRequest::SetConfigs { name, id, configs, reply }).await?;
        }
        Ok(TopicDone { id: topic.id, partitions: count(&topic), config: Arc::new(config) })
    }

    async fn delete(&self, name: &TopicName) -> TopicResult {
        let asked = match name {
            TopicName::Name(name) => Some(Arc::clone(name)),
            TopicName::Id(_) => None,
        };
        let topic = match decide::deletion(&self.view(), &self.broker, name) {
            Ok(topic) => topic,
            Err(refusal) => return TopicResult { name: asked, outcome: Err(refusal) },
        };
        let (name, id) = (Arc::clone(&topic.name), topic.id);
        let deleted = self.ask(|reply| TopicRequest::Delete { name, id, reply }).await;
        let done = TopicDone { id: topic.id, partitions: count(&topic), config: Arc::clone(&topic.config) };
        TopicResult { name: Some(Arc::clone(&topic.name)), outcome: deleted.map(|()| done) }
    }

    async fn ask<T>(
        &self,
        request: impl FnOnce(oneshot::Sender<Result<T, TopicRefusal>>) -> TopicRequest,
    ) -> Result<T, TopicRefusal> {
        let (reply, answer) = oneshot::channel();
        let asking = async {
            self.requests.send(request(reply)).await.ok()?;
            answer.await.ok()
        };
        let late = || TopicRefusal {
            code: ErrorCode::RequestTimedOut,
            message: "whoever keeps the topics did not accept the change in time; it may happen later".to_owned(),
        };
        timeout(ACCEPT_WAIT, asking).await.ok().flatten().unwrap_or_else(|| Err(late()))
    }

    /// Clients cope with topics that have no leader yet, but need not see them.
    async fn wait_until_shown(&self, results: &[TopicResult]) {
        let led = |view: &ClusterView, done: &TopicDone| {
            let topic = view.topic_by_id(done.id);
            let wanted = usize::try_from(done.partitions).unwrap_or(0);
            topic.is_some_and(|topic| {
                topic.partitions.len() >= wanted && topic.partitions.iter().all(|partition| partition.leader.is_some())
            })
        };
        self.wait_for(|view| done(results).all(|done| led(view, done))).await;
    }

    async fn wait_for(&self, mut shown: impl FnMut(&ClusterView) -> bool) {
        let mut view = self.state.borrow().watch();
        let _ = timeout(SHOW_WAIT, view.wait_for(|view| shown(view))).await;
    }

    fn view(&self) -> Arc<ClusterView> {
        Arc::clone(self.state.borrow().view())
    }

    fn cluster_limit(&self) -> PartitionLimit {
        self.limit.of_cluster(&self.view().brokers)
    }
}

fn done(results: &[TopicResult]) -> impl Iterator<Item = &TopicDone> {
    results.iter().filter_map(|result| result.outcome.as_ref().ok())
}

fn count(topic: &TopicView) -> i32 {
    i32::try_from(topic.partitions.len()).expect("bounded by MAX_PARTITIONS_PER_TOPIC")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]
    use kaas_proto::types::BrokerId;
    use kaas_proto::view::BrokerView;
    use tokio::sync::watch;
    use tokio::task::{LocalSet, yield_now};

    use super::*;

    #[tokio::test]
    async fn so_many_requests_are_carried_out_at_a_time_and_the_others_wait() {
        LocalSet::new()
            .run_until(async {
                let own = BrokerView { id: BrokerId(1), rack: None, fenced: false, listeners: Vec::new() };
                let (publish, _view) = watch::channel(Arc::new(ClusterView::empty("c".into(), own)));
                let state = Rc::new(RefCell::new(ClusterState::of_cluster(publish)));
                // Whoever keeps the topics takes what comes, and answers nothing yet.
                let (asked, mut kept) = mpsc::channel(2 * MAX_REQUESTS);
                let limit = PartitionLimit::of_open_files(1 << 20);
                let service = TopicRequests::new(state, Arc::new(BrokerConfig::default()), limit, asked);
                let (requests, received) = mpsc::channel(2 * MAX_REQUESTS);
                spawn_local(service.serve(received));
                let mut answers = Vec::new();
                for number in 0..=MAX_REQUESTS {
                    let topics = vec![NewTopic {
                        name: format!("t{number}").into(),
                        partitions: 1,
                        configs: Default::default(),
                    }];
                    let (reply, answer) = oneshot::channel();
                    requests.send(ControlRequest::CreateTopics { topics, validate_only: false, reply }).await.unwrap();
                    answers.push(answer);
                }
                while kept.len() < MAX_REQUESTS {
                    yield_now().await;
                }
                assert_eq!(requests.max_capacity() - requests.capacity(), 1, "one is still in its queue");
                drop(kept.recv().await.unwrap());
                while kept.len() < MAX_REQUESTS {
                    yield_now().await;
                }
                assert!(answers.remove(0).await.unwrap()[0].outcome.is_err());
            })
            .await;
    }
}
