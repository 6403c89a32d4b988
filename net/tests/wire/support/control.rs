//! A control thread that creates topics in memory at once.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use kaas_proto::config::broker::BrokerConfig;
use kaas_proto::config::topic::TopicConfig;
use kaas_proto::control::{ConfigChange, ControlRequest, NewTopic, TopicDone, TopicName, TopicRefusal, TopicResult};
use kaas_proto::kafka::ErrorCode;
use kaas_proto::types::{BrokerId, LeaderEpoch, TopicId};
use kaas_proto::view::{ClusterView, PartitionView, TopicView};
use tokio::sync::{mpsc, watch};

use super::Switches;

pub(crate) struct Control {
    pub(crate) config: Arc<BrokerConfig>,
    pub(crate) view: watch::Sender<Arc<ClusterView>>,
    pub(crate) switches: Arc<Switches>,
}

impl Control {
    /// Answers until all senders are gone.
    pub(crate) fn run(self, mut requests: mpsc::Receiver<ControlRequest>) {
        let mut unanswered = Vec::new();
        while let Some(request) = requests.blocking_recv() {
            if self.switches.control_silent.load(Ordering::SeqCst) {
                unanswered.push(request);
                continue;
            }
            match request {
                ControlRequest::CreateTopics { topics, validate_only, reply } => {
                    let create = |topic: NewTopic| TopicResult {
                        name: Some(Arc::clone(&topic.name)),
                        outcome: self.create(topic, validate_only),
                    };
                    let _ = reply.send(topics.into_iter().map(create).collect());
                }
                ControlRequest::DeleteTopics { topics, reply } => {
                    let _ = reply.send(topics.into_iter().map(|topic| self.delete(&topic)).collect());
                }
                ControlRequest::CreatePartitions { topics, validate_only, reply } => {
                    let resize = |(name, count): (Arc<str>, i32)| TopicResult {
                        outcome: self.change(&name, validate_only, |topic| {
                            topic.partitions.resize(usize::try_from(count).unwrap(), led(1));
                        }),
                        name: Some(name),
                    };
                    let _ = reply.send(topics.into_iter().map(resize).collect());
                }
                ControlRequest::AlterTopicConfigs { topics, validate_only, reply } => {
                    let alter = |(name, change): (Arc<str>, ConfigChange)| TopicResult {
                        outcome: self.change(&name, validate_only, |topic| {
                            topic.config = Arc::new(topic.config.changed(&self.config, &change).unwrap());
                        }),
                        name: Some(name),
                    };
                    let _ = reply.send(topics.into_iter().map(alter).collect());
                }
            }
        }
    }

    fn create(&self, topic: NewTopic, validate_only: bool) -> Result<TopicDone, TopicRefusal> {
        let partitions = if topic.partitions == -1 { self.config.num_partitions } else { topic.partitions };
        let topic = described(&topic.name, TopicId::random(), &self.config, &topic.configs, partitions);
        let done = done(&topic);
        if !validate_only {
            self.view.send_modify(|view| Arc::make_mut(view).insert_topic(topic));
        }
        Ok(done)
    }

    fn delete(&self, topic: &TopicName) -> TopicResult {
        let view = self.view.borrow().clone();
        let found = match topic {
            TopicName::Name(name) => view.topic(name),
            TopicName::Id(id) => view.topic_by_id(*id),
        };
        let outcome = found
            .map(|topic| done(topic))
            .ok_or(TopicRefusal { code: ErrorCode::UnknownTopicOrPartition, message: String::new() });
        if let Some(topic) = found {
            self.view.send_modify(|view| Arc::make_mut(view).remove_topic(&topic.name));
        }
        TopicResult { name: found.map(|topic| Arc::clone(&topic.name)), outcome }
    }

    fn change(
        &self,
        name: &str,
        validate_only: bool,
        change: impl FnOnce(&mut TopicView),
    ) -> Result<TopicDone, TopicRefusal> {
        let mut topic = TopicView::clone(self.view.borrow().topic(name).unwrap());
        change(&mut topic);
        let done = done(&topic);
        if !validate_only {
            self.view.send_modify(|view| Arc::make_mut(view).insert_topic(topic));
        }
        Ok(done)
    }
}

fn done(topic: &TopicView) -> TopicDone {
    let partitions = i32::try_from(topic.partitions.len()).unwrap();
    TopicDone { id: topic.id, partitions, config: Arc::clone(&topic.config) }
}

pub(crate) fn led(broker: i32) -> PartitionView {
    PartitionView { leader: Some(BrokerId(broker)), epoch: LeaderEpoch(5) }
}

pub(crate) fn described(
    name: &str,
    id: TopicId,
    config: &BrokerConfig,
    own: &BTreeMap<String, String>,
    partitions: i32,
) -> TopicView {
    TopicView {
        name: name.into(),
        id,
        config: Arc::new(TopicConfig::resolve(config, own).unwrap()),
        partitions: vec![led(1); usize::try_from(partitions).unwrap()],
    }
}
