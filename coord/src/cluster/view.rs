//! The cluster view that follows from an assignment. Pure.

use std::collections::HashMap;
use std::sync::Arc;

use kaas_proto::config::topic::TopicConfig;
use kaas_proto::control::PartitionKey;
use kaas_proto::format::assignment::{AssignedPartition, Assignment, BrokerHealth, RegisteredBroker};
use kaas_proto::types::{BrokerId, LeaderEpoch, TopicId};
use kaas_proto::view::{BrokerView, ClusterView, ListenerAddress, PartitionView, TopicView};

/// What this broker knows beside the assignment.
pub(crate) struct Known<'a> {
    /// Of each topic that is to be shown.
    pub(crate) configs: &'a HashMap<TopicId, Arc<TopicConfig>>,
    /// The epoch that this broker itself leads a partition with: above the assigned one after a failed write.
    pub(crate) led: &'a dyn Fn(PartitionKey) -> Option<LeaderEpoch>,
    pub(crate) is_deleted: &'a dyn Fn(TopicId) -> bool,
}

/// The view after `former`. Topics of which nothing has changed are shared with it.
pub(crate) fn view_of(former: &ClusterView, assignment: &Assignment, known: &Known<'_>) -> ClusterView {
    let mut view = ClusterView {
        cluster_id: Arc::clone(&former.cluster_id),
        self_id: former.self_id,
        controller: Some(assignment.controller),
        brokers: brokers(former, assignment),
        topics: Default::default(),
        topic_names: HashMap::with_capacity(former.topic_names.len()),
        slots: Vec::with_capacity(assignment.consumer_groups.len()),
    };
    let shown = |key, leader: BrokerId, assigned: LeaderEpoch| {
        let led = Some(leader).filter(|&leader| leader == former.self_id).and_then(|_| (known.led)(key));
        PartitionView { leader: Some(leader), epoch: led.map_or(assigned, |led| led.max(assigned)) }
    };
    for slot in &assignment.consumer_groups {
        view.slots.push(shown(PartitionKey::of_slot(slot.slot), slot.leader, slot.epoch));
    }
    for rows in assignment.partitions.chunk_by(|a, b| a.topic_id == b.topic_id) {
        let topic_id = rows[0].topic_id;
        let Some(config) = known.configs.get(&topic_id).filter(|_| !(known.is_deleted)(topic_id)) else { continue };
        let partition = |row: &AssignedPartition| shown(row.key(), row.leader, row.epoch);
        let topic = TopicView {
            name: Arc::clone(&rows[0].topic),
            id: topic_id,
            config: Arc::clone(config),
            partitions: rows.iter().map(partition).collect(),
        };
        let unchanged = former.topic(&topic.name).filter(|former| is_same(former, &topic));
        let topic = unchanged.map_or_else(|| Arc::new(topic), Arc::clone);
        view.topic_names.insert(topic_id, Arc::clone(&topic.name));
        view.topics.insert(Arc::clone(&topic.name), topic);
    }
    view
}

fn is_same(a: &TopicView, b: &TopicView) -> bool {
    a.id == b.id && Arc::ptr_eq(&a.config, &b.config) && a.partitions == b.partitions
}

fn brokers(former: &ClusterView, assignment: &Assignment) -> Vec<BrokerView> {
    let own = former.broker(former.self_id);
    let row = |broker: &RegisteredBroker| BrokerView {
        id: broker.id,
        rack: broker.rack.clone(),
        fenced: broker.health == BrokerHealth::Dead,
        listeners: broker
            .listeners
            .iter()
            .map(|listener| ListenerAddress {
                name: Arc::clone(&listener.name),
                advertised: Some((Arc::clone(&listener.host), listener.port)),
            })
            .collect(),
    };
    let mut brokers: Vec<BrokerView> = assignment.brokers.iter().map(row).collect();
    // Until the controller has heard of it, this broker knows at least itself.
    if let Some(own) = own.filter(|own| assignment.broker(own.id).is_none()) {
        brokers.push(BrokerView { fenced: true, ..own.clone() });
        brokers.sort_by_key(|broker| broker.id);
    }
    brokers
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]
    use kaas_proto::config::broker::BrokerConfig;
    use kaas_proto::format::assignment::{AdvertisedListener, AssignedSlot};
    use kaas_proto::types::{
        AssignmentVersion, COORDINATOR_SLOTS, ControllerEpoch, Incarnation, PartitionIndex, SlotId,
    };

    use super::*;

    fn assignment() -> Assignment {
        let listener = AdvertisedListener { name: "A".into(), host: "h".into(), port: 9, protocol: "PLAINTEXT".into() };
        let broker = |id, health| RegisteredBroker {
            id: BrokerId(id),
            incarnation: Incarnation(1),
            rack: None,
            listeners: vec![listener.clone()],
            health,
        };
        let slot =
            |slot| AssignedSlot { slot: SlotId(slot), leader: BrokerId(2), epoch: LeaderEpoch(4), previous: None };
        let partition = |topic: &str, byte, leader| AssignedPartition {
            topic: topic.into(),
            topic_id: TopicId([byte; 16]),
            partition: PartitionIndex(0),
            leader: BrokerId(leader),
            epoch: LeaderEpoch(3),
            previous: None,
        };
        Assignment {
            controller_epoch: ControllerEpoch(1),
            assignment_version: AssignmentVersion(1),
            controller: BrokerId(2),
            controller_heartbeat: None,
            brokers: vec![
                broker(2, BrokerHealth::Alive),
                broker(3, BrokerHealth::Draining),
                broker(4, BrokerHealth::Dead),
            ],
            partitions: vec![partition("a", 1, 1), partition("b", 2, 2), partition("c", 3, 2)],
            consumer_groups: (0..COORDINATOR_SLOTS).map(slot).collect(),
        }
    }

    #[test]
    fn the_view_says_what_the_assignment_says() {
        let own = BrokerView { id: BrokerId(1), rack: None, fenced: false, listeners: Vec::new() };
        let former = ClusterView::empty("c".into(), own);
        let config = Arc::new(TopicConfig::resolve(&BrokerConfig::default(), &Default::default()).unwrap());
        let configs = [1, 2, 3].map(|byte| (TopicId([byte; 16]), Arc::clone(&config))).into();
        let led = |_| Some(LeaderEpoch(7));
        let is_deleted = |id| id == TopicId([3; 16]);
        let known = Known { configs: &configs, led: &led, is_deleted: &is_deleted };
        let view = view_of(&former, &assignment(), &known);
        assert_eq!(view.controller, Some(BrokerId(2)));
        let fenced: Vec<_> = view.brokers.iter().map(|broker| (broker.id.0, broker.fenced)).collect();
        assert_eq!(fenced, [(1, true), (2, false), (3, false), (4, true)]);
        let partition = |topic: &str| view.topic(topic).unwrap().partitions[0];
        assert_eq!(partition("a"), PartitionView { leader: Some(BrokerId(1)), epoch: LeaderEpoch(7) });
        assert_eq!(partition("b"), PartitionView { leader: Some(BrokerId(2)), epoch: LeaderEpoch(3) });
        assert!(view.topic("c").is_none() && view.topic_by_id(TopicId([3; 16])).is_none());
        assert_eq!(view.slots[9], PartitionView { leader: Some(BrokerId(2)), epoch: LeaderEpoch(4) });

        let again = view_of(&view, &assignment(), &known);
        assert!(Arc::ptr_eq(view.topic("a").unwrap(), again.topic("a").unwrap()), "nothing has changed");
    }
}
