//! What a client needs to know of the cluster: who leads a partition, and how that broker is reached from where the
//! client is. Pure look-ups in the [`ClusterView`].

use std::sync::Arc;

use kaas_proto::control::PartitionKey;
use kaas_proto::kafka::{ErrorCode, KafkaString};
use kaas_proto::types::{BrokerId, LeaderEpoch, PartitionIndex, SlotId, TopicId};
use kaas_proto::view::{BrokerView, ClusterView, PartitionView, TopicView};

use crate::context::Client;

/// A topic as a request names it: by id from a certain version on.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum TopicRef {
    Name(KafkaString),
    Id(TopicId),
}

impl TopicRef {
    /// Of a request that names topics by id from version `ids_from` on.
    pub(crate) fn of(version: i16, ids_from: i16, name: &KafkaString, id: TopicId) -> Self {
        if version >= ids_from { Self::Id(id) } else { Self::Name(name.clone()) }
    }

    /// The topic, or what the client is told if there is none.
    pub(crate) fn find<'v>(&self, view: &'v ClusterView) -> Result<&'v Arc<TopicView>, ErrorCode> {
        match self {
            Self::Name(name) => view.topic(name).ok_or(ErrorCode::UnknownTopicOrPartition),
            Self::Id(id) => view.topic_by_id(*id).ok_or(ErrorCode::UnknownTopicId),
        }
    }
}

/// A broker and the epoch that it leads a partition in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Leader {
    pub(crate) id: BrokerId,
    pub(crate) epoch: LeaderEpoch,
}

/// Why this broker does not answer for a partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Elsewhere {
    pub(crate) code: ErrorCode,
    /// Who does, if it is another one.
    pub(crate) leader: Option<Leader>,
}

impl From<ErrorCode> for Elsewhere {
    fn from(code: ErrorCode) -> Self {
        Self { code, leader: None }
    }
}

/// The partition, if this broker leads it.
pub(crate) fn led_here(
    view: &ClusterView,
    topic: &TopicView,
    index: PartitionIndex,
) -> Result<PartitionKey, Elsewhere> {
    let partition = topic.partition(index).ok_or(ErrorCode::UnknownTopicOrPartition)?;
    match partition.leader {
        Some(leader) if leader == view.self_id => Ok(PartitionKey { topic_id: topic.id, partition: index }),
        Some(id) => {
            let leader = Some(Leader { id, epoch: partition.epoch });
            Err(Elsewhere { code: ErrorCode::NotLeaderOrFollower, leader })
        }
        None => Err(ErrorCode::LeaderNotAvailable.into()),
    }
}

/// A partition as replies describe it: the leader is the only replica.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PartitionState {
    pub(crate) code: ErrorCode,
    /// -1: none that the client can reach.
    pub(crate) leader: BrokerId,
    pub(crate) epoch: LeaderEpoch,
    pub(crate) replicas: Vec<BrokerId>,
    pub(crate) in_sync: Vec<BrokerId>,
    pub(crate) offline: Vec<BrokerId>,
}

/// What a client is told of a partition.
pub(crate) fn partition_state(view: &ClusterView, partition: PartitionView, client: &Client) -> PartitionState {
    let reached = partition.leader.filter(|leader| alive_endpoint(view, *leader, client).is_some());
    let replicas: Vec<BrokerId> = partition.leader.into_iter().collect();
    PartitionState {
        code: if reached.is_some() { ErrorCode::None } else { ErrorCode::LeaderNotAvailable },
        leader: reached.unwrap_or(BrokerId(-1)),
        epoch: partition.epoch,
        in_sync: reached.into_iter().collect(),
        offline: if reached.is_some() { vec![] } else { replicas.clone() },
        replicas,
    }
}

/// Whether this broker coordinates a slot.
pub(crate) fn slot_here(view: &ClusterView, slot: SlotId) -> Result<(), ErrorCode> {
    match view.slot(slot).leader {
        Some(leader) if leader == view.self_id => Ok(()),
        Some(_) => Err(ErrorCode::NotCoordinator),
        None => Err(ErrorCode::CoordinatorNotAvailable),
    }
}

/// Where a client reaches a broker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Endpoint {
    pub(crate) id: BrokerId,
    pub(crate) host: KafkaString,
    pub(crate) port: i32,
    pub(crate) rack: Option<KafkaString>,
}

/// Where the client reaches a broker through the listener that it came by; `None` if that broker has no such listener.
///
/// Without an advertised address clients are sent to the one that they themselves connected to: never to 0.0.0.0, and
/// inside a container or behind a port mapping at least to what works for a client there.
pub(crate) fn endpoint(view: &ClusterView, broker: &BrokerView, client: &Client) -> Option<Endpoint> {
    let listener = broker.listeners.iter().find(|listener| listener.name == client.listener)?;
    let (host, port) = match &listener.advertised {
        Some((host, port)) => (KafkaString::from(&**host), *port),
        None if broker.id == view.self_id => (client.local.ip().to_string().into(), client.local.port()),
        None => return None,
    };
    let rack = broker.rack.as_deref().map(KafkaString::from);
    Some(Endpoint { id: broker.id, host, port: i32::from(port), rack })
}

/// Where the client reaches the broker with this id, if that one is alive.
pub(crate) fn alive_endpoint(view: &ClusterView, id: BrokerId, client: &Client) -> Option<Endpoint> {
    view.broker(id).filter(|broker| !broker.fenced).and_then(|broker| endpoint(view, broker, client))
}

/// Where the client reaches those of the brokers that are alive, each once.
pub(crate) fn endpoints_of(view: &ClusterView, mut ids: Vec<BrokerId>, client: &Client) -> Vec<Endpoint> {
    ids.sort_unstable();
    ids.dedup();
    ids.into_iter().filter_map(|id| alive_endpoint(view, id, client)).collect()
}

/// All brokers that the client can reach.
pub(crate) fn alive_endpoints(view: &ClusterView, client: &Client) -> Vec<Endpoint> {
    view.brokers.iter().filter(|broker| !broker.fenced).filter_map(|broker| endpoint(view, broker, client)).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]
    use std::collections::BTreeMap;

    use kaas_proto::config::broker::BrokerConfig;
    use kaas_proto::config::topic::TopicConfig;
    use kaas_proto::view::ListenerAddress;

    use super::*;

    fn broker(id: i32, advertised: Option<(&str, u16)>) -> BrokerView {
        let advertised = advertised.map(|(host, port)| (host.into(), port));
        let listeners = vec![ListenerAddress { name: "PLAINTEXT".into(), advertised }];
        BrokerView { id: BrokerId(id), rack: None, fenced: false, listeners }
    }

    fn client(listener: &str) -> Client {
        let local = "192.0.2.7:19092".parse().unwrap();
        Client { listener: listener.into(), peer: "192.0.2.1:5".parse().unwrap(), local }
    }

    #[test]
    fn clients_are_sent_where_they_can_go() {
        let mut view = ClusterView::empty("cluster".into(), broker(1, None));
        view.brokers.push(broker(2, Some(("two.example", 9))));
        view.brokers.push(broker(3, None));
        view.brokers.push(BrokerView { fenced: true, ..broker(4, Some(("four.example", 9))) });
        let all = alive_endpoints(&view, &client("PLAINTEXT"));
        let shown: Vec<_> = all.iter().map(|e| (e.id.0, &*e.host, e.port)).collect();
        assert_eq!(shown, [(1, "192.0.2.7", 19092), (2, "two.example", 9)]);
        assert_eq!(alive_endpoints(&view, &client("OTHER")), []);
        assert_eq!(alive_endpoint(&view, BrokerId(4), &client("PLAINTEXT")), None, "it is fenced");
    }

    #[test]
    fn leadership_comes_from_the_view_alone() {
        let view = ClusterView::empty("cluster".into(), broker(1, None));
        let led = |leader: Option<i32>| PartitionView { leader: leader.map(BrokerId), epoch: LeaderEpoch(7) };
        let topic = TopicView {
            name: "t".into(),
            id: TopicId([1; 16]),
            config: Arc::new(TopicConfig::resolve(&BrokerConfig::default(), &BTreeMap::new()).unwrap()),
            partitions: vec![led(Some(1)), led(Some(2)), led(None)],
        };
        let at = |index| led_here(&view, &topic, PartitionIndex(index));
        assert_eq!(at(0).unwrap().topic_id, topic.id);
        let leader = Some(Leader { id: BrokerId(2), epoch: LeaderEpoch(7) });
        assert_eq!(at(1), Err(Elsewhere { code: ErrorCode::NotLeaderOrFollower, leader }));
        assert_eq!(at(2), Err(ErrorCode::LeaderNotAvailable.into()));
        assert_eq!(at(3), Err(ErrorCode::UnknownTopicOrPartition.into()));
        assert_eq!(at(-1), Err(ErrorCode::UnknownTopicOrPartition.into()));
    }
}
