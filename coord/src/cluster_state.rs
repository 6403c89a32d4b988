//! The cluster as the control thread knows it, published to the shards after every change.

use std::sync::Arc;

use kaas_proto::control::{PartitionKey, ShardEvent};
use kaas_proto::types::{BrokerId, COORDINATOR_SLOTS, LeaderEpoch, PartitionIndex, SlotId, TopicId};
use kaas_proto::view::{ClusterView, PartitionView, TopicView};
use tokio::sync::watch;

use crate::leadership::{Consequence, Leadership};

/// Someone else leads what this broker led.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Superseded {
    /// Topic and partition, or coordinator slot, for people.
    pub partition: String,
    pub epoch: LeaderEpoch,
    /// What the fence says.
    pub by: Arc<str>,
}

impl Superseded {
    /// Who leads, and with which epoch: what the fence says may hold it already.
    pub(crate) fn leader_in_words(&self) -> String {
        let Self { by, epoch, .. } = self;
        if by.contains(&format!("epoch {epoch}")) { by.to_string() } else { format!("{by} with epoch {epoch}") }
    }
}

/// Control thread. The one place that makes [`ClusterView`]s.
#[derive(Debug)]
pub struct ClusterState {
    view: Arc<ClusterView>,
    publish: watch::Sender<Arc<ClusterView>>,
    leadership: Leadership,
    /// All that was found at start has been taken over, and that was logged.
    ready: bool,
}

impl ClusterState {
    /// Starts from what the shards already see; this broker is to lead all of it.
    #[must_use]
    pub fn new(publish: watch::Sender<Arc<ClusterView>>) -> Self {
        let view = Arc::clone(&publish.borrow());
        let mut leadership = Leadership::default();
        for partition in slots() {
            leadership.assign(partition, "".into());
        }
        for topic in view.topics.values() {
            for partition in partitions(topic) {
                leadership.assign(partition, Arc::clone(&topic.name));
            }
        }
        Self { view, publish, leadership, ready: false }
    }

    /// Starts with nothing to lead: an assignment will say what.
    #[must_use]
    pub fn of_cluster(publish: watch::Sender<Arc<ClusterView>>) -> Self {
        let view = Arc::clone(&publish.borrow());
        Self { view, publish, leadership: Leadership::default(), ready: false }
    }

    /// Shows another view to the shards. In a cluster; a standalone broker's view follows from what shards report.
    pub(crate) fn show(&mut self, view: ClusterView) {
        self.view = Arc::new(view);
        self.publish.send_replace(Arc::clone(&self.view));
    }

    pub(crate) fn leadership_mut(&mut self) -> &mut Leadership {
        &mut self.leadership
    }

    #[must_use]
    pub fn view(&self) -> &Arc<ClusterView> {
        &self.view
    }

    #[must_use]
    pub fn leadership(&self) -> &Leadership {
        &self.leadership
    }

    /// A receiver of all later views.
    #[must_use]
    pub fn watch(&self) -> watch::Receiver<Arc<ClusterView>> {
        self.publish.subscribe()
    }

    /// Shows a topic. This broker is to lead its partitions, also those that are new.
    pub fn put_topic(&mut self, topic: TopicView) {
        for partition in partitions(&topic) {
            self.leadership.assign_new(partition, Arc::clone(&topic.name));
        }
        self.change(|view| view.insert_topic(topic));
    }

    /// Changes the description of a topic, if that incarnation is still there.
    pub fn change_topic(&mut self, name: &str, id: TopicId, change: impl FnOnce(&mut TopicView)) {
        if let Some(topic) = self.view.topic(name).filter(|topic| topic.id == id) {
            let mut topic = TopicView::clone(topic);
            change(&mut topic);
            self.put_topic(topic);
        }
    }

    /// Hides a topic, and forgets its partitions.
    pub fn remove_topic(&mut self, topic: &TopicView) {
        self.leadership.forget(topic.id);
        self.change(|view| view.remove_topic(&topic.name));
    }

    /// Takes note of events and publishes once. Returns the first that says that this broker was superseded.
    pub fn apply(&mut self, events: impl IntoIterator<Item = ShardEvent>) -> Option<Superseded> {
        let mut superseded = None;
        let mut changes = Vec::new();
        for event in events {
            let key = event.partition;
            match self.leadership.apply(event) {
                Consequence::None => {}
                Consequence::Leads { topic, epoch } => {
                    let leader = Some(self.view.self_id);
                    changes.push((topic, key, leader, Some(epoch)));
                }
                Consequence::Leaderless { topic } => changes.push((topic, key, None, None)),
                Consequence::Superseded { topic, epoch, by } => {
                    let partition = match key.slot() {
                        Some(slot) => format!("coordinator slot {slot}"),
                        None => format!("{topic}-{}", key.partition),
                    };
                    // Until the process ends, requests still go to the shard: it knows that somebody else leads, and says so.
                    superseded.get_or_insert(Superseded { partition, epoch, by });
                }
            }
        }
        self.say_when_ready();
        if !changes.is_empty() {
            self.change(|view| {
                for (topic, key, leader, epoch) in changes {
                    set_leader(view, &topic, key, leader, epoch);
                }
            });
        }
        superseded
    }

    pub(crate) fn say_when_ready(&mut self) {
        if !self.ready {
            let counts = self.leadership.counts();
            self.ready = counts.settled();
            if self.ready && counts.failed == 0 {
                tracing::info!(leading = counts.leading, "ready: all partitions are led");
            } else if self.ready {
                let first = self.leadership.troubles(1).into_iter().next();
                tracing::warn!(
                    leading = counts.leading,
                    failed = counts.failed,
                    first_reason = first.map(|trouble| trouble.reason.to_string()),
                    "{} of {} partitions could not be taken over; that is tried again, /healthz lists them",
                    counts.failed,
                    counts.assigned
                );
            }
        }
    }

    /// All that was found at start has been taken over once, or has failed.
    pub(crate) fn was_ready(&self) -> bool {
        self.ready
    }

    fn change(&mut self, change: impl FnOnce(&mut ClusterView)) {
        change(Arc::make_mut(&mut self.view));
        self.publish.send_replace(Arc::clone(&self.view));
    }
}

/// All coordinator slots.
pub(crate) fn slots() -> impl Iterator<Item = PartitionKey> {
    (0..COORDINATOR_SLOTS).map(|slot| PartitionKey::of_slot(SlotId(slot)))
}

/// All partitions of a topic.
pub(crate) fn partitions(topic: &TopicView) -> impl Iterator<Item = PartitionKey> + use<> {
    let topic_id = topic.id;
    (0..topic.partitions.len()).map(move |index| PartitionKey {
        topic_id,
        partition: PartitionIndex(i32::try_from(index).expect("bounded by MAX_PARTITIONS_PER_TOPIC")),
    })
}

fn set_leader(
    view: &mut ClusterView,
    topic: &str,
    key: PartitionKey,
    leader: Option<BrokerId>,
    epoch: Option<LeaderEpoch>,
) {
    let Ok(index) = usize::try_from(key.partition.0) else { return };
    let partition = if key.slot().is_some() {
        view.slots.get_mut(index)
    } else {
        let found = view.topics.get_mut(topic).filter(|found| found.id == key.topic_id);
        found.and_then(|topic| Arc::make_mut(topic).partitions.get_mut(index))
    };
    if let Some(partition) = partition {
        *partition = PartitionView { leader, epoch: epoch.unwrap_or(partition.epoch) };
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]
    use super::*;
    use kaas_proto::config::broker::BrokerConfig;
    use kaas_proto::config::topic::TopicConfig;
    use kaas_proto::control::PartitionChange;
    use kaas_proto::types::ShardId;
    use kaas_proto::view::BrokerView;

    fn topic(id: u8, partitions: usize) -> TopicView {
        TopicView {
            name: "orders".into(),
            id: TopicId([id; 16]),
            config: Arc::new(
                TopicConfig::resolve(&BrokerConfig::default(), &std::collections::BTreeMap::new()).unwrap(),
            ),
            partitions: vec![PartitionView::LEADERLESS; partitions],
        }
    }

    fn state() -> ClusterState {
        let broker = BrokerView { id: BrokerId(1), rack: None, fenced: false, listeners: Vec::new() };
        let (publish, _) = watch::channel(Arc::new(ClusterView::empty("cluster".into(), broker)));
        ClusterState::new(publish)
    }

    fn leading(id: u8, partition: i32, epoch: i32) -> ShardEvent {
        let partition = PartitionKey { topic_id: TopicId([id; 16]), partition: PartitionIndex(partition) };
        ShardEvent { shard: ShardId(0), partition, change: PartitionChange::Leading { epoch: LeaderEpoch(epoch) } }
    }

    #[test]
    fn leaders_appear_when_shards_say_so_and_all_at_once() {
        let mut state = state();
        state.put_topic(topic(1, 2));
        let mut watch = state.watch();
        assert_eq!(state.view().topic("orders").unwrap().partitions, [PartitionView::LEADERLESS; 2]);
        let slot = ShardEvent { partition: PartitionKey::of_slot(SlotId(3)), ..leading(1, 0, 9) };
        assert_eq!(state.apply([leading(1, 0, 5), leading(1, 1, 6), slot]), None);
        assert!(watch.has_changed().unwrap());
        let view = Arc::clone(&watch.borrow_and_update());
        let led = |epoch| PartitionView { leader: Some(BrokerId(1)), epoch: LeaderEpoch(epoch) };
        assert_eq!(view.topic("orders").unwrap().partitions, [led(5), led(6)]);
        assert_eq!(view.slots[3], led(9));
        assert!(!watch.has_changed().unwrap(), "published once");
    }

    #[test]
    fn the_epoch_of_a_successor_is_told_once() {
        let words = |by: &str| {
            let superseded = Superseded { partition: "load-0".into(), epoch: LeaderEpoch(2), by: by.into() };
            superseded.leader_in_words()
        };
        assert_eq!(words("broker 1 with epoch 2 at 2025"), "broker 1 with epoch 2 at 2025");
        assert_eq!(words("broker 5"), "broker 5 with epoch 2");
    }

    #[test]
    fn a_former_incarnation_changes_nothing() {
        let mut state = state();
        let former = topic(1, 1);
        state.put_topic(former.clone());
        state.remove_topic(&former);
        state.put_topic(topic(2, 1));
        state.apply([leading(1, 0, 5)]);
        assert_eq!(state.view().topic("orders").unwrap().partitions, [PartitionView::LEADERLESS]);
    }

    #[test]
    fn requests_still_reach_a_failed_partition_and_a_superseded_one() {
        let mut state = state();
        state.put_topic(topic(1, 1));
        state.apply([leading(1, 0, 5)]);
        let event = |change| ShardEvent { change, ..leading(1, 0, 0) };
        state.apply([event(PartitionChange::Failed { reason: "disk".into() })]);
        assert_eq!(state.view().topic("orders").unwrap().partitions[0].leader, Some(BrokerId(1)));
        let superseded = event(PartitionChange::Superseded { epoch: LeaderEpoch(6), by: "broker 2".into() });
        let expected = Superseded { partition: "orders-0".to_owned(), epoch: LeaderEpoch(6), by: "broker 2".into() };
        assert_eq!(state.apply([superseded]), Some(expected));
        let asked = PartitionView { leader: Some(BrokerId(1)), epoch: LeaderEpoch(5) };
        assert_eq!(
            state.view().topic("orders").unwrap().partitions,
            [asked],
            "the shard answers NOT_LEADER_OR_FOLLOWER"
        );
    }
}
