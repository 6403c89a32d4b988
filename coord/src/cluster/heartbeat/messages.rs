//! Between the messages on the wire and what they mean.

use std::sync::Arc;

use kaas_proto::control::PartitionKey;
use kaas_proto::format::assignment::{AdvertisedListener, BrokerHealth, RegisteredBroker};
use kaas_proto::heartbeat::partition_report::What as WireWhat;
use kaas_proto::heartbeat::{Listener, PartitionReport, Registration};
use kaas_proto::types::{BrokerId, Incarnation, LeaderEpoch, PartitionIndex, TopicId};

use crate::cluster::follower::{Report, What};

/// Partition reports in one message; more go into the next ones.
pub const MAX_REPORTS: usize = 2000;

/// Why a broker is not let in.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidRegistration {
    #[error("broker id {0} is negative")]
    Broker(i32),
    #[error("port {0} of a listener is none")]
    Port(u32),
    #[error("it belongs to the cluster {theirs}, and this one is {ours}: it has another data directory")]
    Cluster { ours: String, theirs: String },
}

/// What a broker says of itself.
#[must_use]
pub fn registration(broker: &RegisteredBroker, cluster_id: &str) -> Registration {
    let listener = |listener: &AdvertisedListener| Listener {
        name: listener.name.to_string(),
        host: listener.host.to_string(),
        port: u32::from(listener.port),
        protocol: listener.protocol.to_string(),
    };
    Registration {
        broker: broker.id.0,
        incarnation: broker.incarnation.0,
        rack: broker.rack.as_deref().unwrap_or_default().to_owned(),
        listeners: broker.listeners.iter().map(listener).collect(),
        cluster_id: cluster_id.to_owned(),
    }
}

/// The broker behind a registration.
///
/// # Errors
/// It can't be one of this cluster.
pub fn registered(message: &Registration, cluster_id: &str) -> Result<RegisteredBroker, InvalidRegistration> {
    if message.broker < 0 {
        return Err(InvalidRegistration::Broker(message.broker));
    }
    if message.cluster_id != cluster_id {
        let (ours, theirs) = (cluster_id.to_owned(), message.cluster_id.clone());
        return Err(InvalidRegistration::Cluster { ours, theirs });
    }
    let listener = |listener: &Listener| -> Result<AdvertisedListener, InvalidRegistration> {
        let port = u16::try_from(listener.port).ok().filter(|&port| port > 0);
        Ok(AdvertisedListener {
            name: listener.name.as_str().into(),
            host: listener.host.as_str().into(),
            port: port.ok_or(InvalidRegistration::Port(listener.port))?,
            protocol: listener.protocol.as_str().into(),
        })
    };
    let rack: Option<Arc<str>> = Some(message.rack.as_str()).filter(|rack| !rack.is_empty()).map(Into::into);
    Ok(RegisteredBroker {
        id: BrokerId(message.broker),
        incarnation: Incarnation(message.incarnation),
        rack,
        listeners: message.listeners.iter().map(listener).collect::<Result<_, _>>()?,
        health: BrokerHealth::Dead,
    })
}

#[must_use]
pub fn wire_report(report: &Report) -> PartitionReport {
    let what = match report.what {
        What::Leads => WireWhat::Leads,
        What::Superseded => WireWhat::Superseded,
        What::Relinquished => WireWhat::Relinquished,
    };
    PartitionReport {
        topic_id: report.partition.topic_id.0.to_vec(),
        partition: report.partition.partition.0,
        epoch: report.epoch.0,
        what: what.into(),
    }
}

/// `None` for what this version does not know.
#[must_use]
pub fn report(message: &PartitionReport) -> Option<Report> {
    let what = match WireWhat::try_from(message.what).ok()? {
        WireWhat::Unknown => return None,
        WireWhat::Leads => What::Leads,
        WireWhat::Superseded => What::Superseded,
        WireWhat::Relinquished => What::Relinquished,
    };
    let topic_id = TopicId(message.topic_id.as_slice().try_into().ok()?);
    let partition = PartitionKey { topic_id, partition: PartitionIndex(message.partition) };
    Some(Report { partition, epoch: LeaderEpoch(message.epoch), what })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]
    use super::*;

    #[test]
    fn what_is_sent_is_understood() {
        let listener = AdvertisedListener { name: "A".into(), host: "h".into(), port: 9, protocol: "PLAINTEXT".into() };
        let broker = RegisteredBroker {
            id: BrokerId(3),
            incarnation: Incarnation(u64::MAX),
            rack: Some("r".into()),
            listeners: vec![listener],
            health: BrokerHealth::Dead,
        };
        assert_eq!(registered(&registration(&broker, "c"), "c"), Ok(broker.clone()));
        let elsewhere = registered(&registration(&broker, "c"), "d").unwrap_err();
        assert!(elsewhere.to_string().contains("another data directory"), "{elsewhere}");
        for what in [What::Leads, What::Superseded, What::Relinquished] {
            let partition = PartitionKey { topic_id: TopicId([1; 16]), partition: PartitionIndex(7) };
            let sent = Report { partition, epoch: LeaderEpoch(9), what };
            assert_eq!(report(&wire_report(&sent)), Some(sent));
        }
    }

    #[test]
    fn what_is_not_understood_is_left_out() {
        let message = PartitionReport { topic_id: vec![1; 15], partition: 0, epoch: 1, what: 1 };
        assert_eq!(report(&message), None);
        assert_eq!(report(&PartitionReport { topic_id: vec![1; 16], what: 77, ..message.clone() }), None);
        assert_eq!(report(&PartitionReport { topic_id: vec![1; 16], what: 0, ..message }), None);
        let port = |port| Listener { name: "A".into(), host: "h".into(), port, protocol: String::new() };
        for bad in [0, 65_536] {
            let registration = Registration { listeners: vec![port(bad)], ..Registration::default() };
            assert_eq!(registered(&registration, ""), Err(InvalidRegistration::Port(bad)));
        }
    }
}
