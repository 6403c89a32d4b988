//! A broker of a cluster: what the others and clients are told of it, and what lies outside of it.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;

use anyhow::{Context, bail};
use kaas_coord::admin;
use kaas_coord::cluster::heartbeat::tls::{Tls, TlsFiles};
use kaas_coord::cluster::ports::{OpenPorts, PortsError};
use kaas_coord::cluster::{self, ClusterOptions, HeartbeatTls, stand_in};
use kaas_coord::kubernetes::connection::Connection;
use kaas_coord::kubernetes::election::{Holder, Timings};
use kaas_coord::thread::Role;
use kaas_net::listener::NamedAddress;
use kaas_proto::config::broker::BrokerConfig;
use kaas_proto::format::assignment::{AdvertisedListener, BrokerHealth, RegisteredBroker};
use kaas_proto::roots::Roots;
use kaas_proto::types::{BrokerId, Incarnation};
use kaas_proto::view::ListenerAddress;

use crate::options::Outside;

/// What the options say of this broker.
pub(crate) struct Member<'a> {
    pub(crate) broker: BrokerId,
    pub(crate) listen: &'a [NamedAddress],
    pub(crate) advertised: &'a [ListenerAddress],
    /// Where the listeners are, by name.
    pub(crate) bound: &'a [(Arc<str>, SocketAddr)],
    pub(crate) heartbeat_listen: SocketAddr,
    pub(crate) heartbeat_tls: Option<TlsFiles>,
    pub(crate) heartbeat_advertise: Option<&'a str>,
    pub(crate) roots: &'a Roots,
    pub(crate) outside: &'a Outside,
    pub(crate) config: Arc<BrokerConfig>,
    pub(crate) open_files: u64,
}

/// Binds the heartbeat port, opens the volume.
pub(crate) fn role(member: Member<'_>) -> anyhow::Result<Role> {
    let listeners = listeners(&member)?;
    let heartbeat_listener = admin::bind(member.heartbeat_listen).with_context(|| {
        format!("{} can't be used for heartbeats; choose another one with --heartbeat-listen", member.heartbeat_listen)
    })?;
    let bound = heartbeat_listener.local_addr()?;
    let told = member.heartbeat_advertise.map_or_else(|| told_to_others(member.outside, bound), str::to_owned);
    let heartbeat_tls = member.heartbeat_tls.clone().map(load).transpose()?;
    let words = if heartbeat_tls.is_some() { "mutual TLS" } else { "neither encrypted nor authenticated" };
    tracing::info!("heartbeats on {bound} ({words})");
    let heartbeat_address: Arc<str> = reachable_here(bound).to_string().into();
    let incarnation = Incarnation::random();
    let own = RegisteredBroker { id: member.broker, incarnation, rack: None, listeners, health: BrokerHealth::Dead };
    let ports = open_ports(member.outside, member.broker, incarnation, told.clone(), Arc::clone(&member.config));
    let prepared = Box::new(cluster::prepare(ClusterOptions {
        own,
        roots: member.roots.clone(),
        config: member.config,
        open_files: member.open_files,
        heartbeat_address,
        heartbeat_told: told.as_str().into(),
        heartbeat_tls,
    })?);
    Ok(Role::Cluster { prepared, ports, heartbeat_listener })
}

fn load(files: TlsFiles) -> anyhow::Result<HeartbeatTls> {
    let loaded = Tls::load(&files).context("heartbeats can't be encrypted (--heartbeat-tls-…)")?;
    Ok(HeartbeatTls { files, loaded })
}

fn open_ports(
    outside: &Outside,
    broker: BrokerId,
    incarnation: Incarnation,
    heartbeat: String,
    config: Arc<BrokerConfig>,
) -> OpenPorts {
    match outside {
        Outside::Kubernetes { pod, service, namespace } => {
            let me = Holder { name: pod.clone(), incarnation: incarnation.to_string(), heartbeat };
            let (service, namespace) = (service.clone(), namespace.clone());
            Box::new(move |floor| {
                Box::pin(async move {
                    let connected = Connection::configured(namespace).await;
                    let connection = connected.map_err(|error| PortsError(error.to_string()))?;
                    tracing::info!(namespace = connection.namespace(), heartbeat = me.heartbeat, "on Kubernetes");
                    Ok(connection.start(me, Timings::DEFAULT, floor, &service, config))
                })
            })
        }
        Outside::StandIn(directory) => {
            tracing::warn!(
                "election and topics are kept by files in {}: for tests on one machine, and not for more",
                directory.display()
            );
            let directory = directory.clone();
            Box::new(move |_| {
                Box::pin(async move {
                    stand_in::start(&directory, broker, incarnation, &heartbeat).map_err(|error| {
                        let directory = directory.display();
                        PortsError(format!("--cluster-stand-in {directory} can't be used: {error}"))
                    })
                })
            })
        }
    }
}

/// What clients of each listener are told. Other brokers tell it too, so it can't be the address that a client has used.
fn listeners(member: &Member<'_>) -> anyhow::Result<Vec<AdvertisedListener>> {
    let mut listeners = Vec::with_capacity(member.advertised.len());
    for ListenerAddress { name, advertised } in member.advertised {
        let listen = member.listen.iter().find(|listen| listen.name == *name);
        let bound = member.bound.iter().find(|(bound, _)| bound == name);
        let (host, port) = match (advertised, listen, bound) {
            (Some((host, port)), _, _) => (Arc::clone(host), *port),
            (None, Some(listen), Some((_, bound))) if !bound.ip().is_unspecified() => {
                (listen.host.to_string().into(), bound.port())
            }
            _ => bail!(
                "in a cluster clients must be told where the listener {name} of each broker is: give it with \
                 --advertise {name}=HOST:PORT"
            ),
        };
        listeners.push(AdvertisedListener { name: Arc::clone(name), host, port, protocol: "PLAINTEXT".into() });
    }
    Ok(listeners)
}

/// Where the other brokers reach the heartbeat port.
fn told_to_others(outside: &Outside, bound: SocketAddr) -> String {
    match outside {
        Outside::Kubernetes { pod, service, namespace } if bound.ip().is_unspecified() => {
            // With the namespace one certificate for *.SERVICE.NAMESPACE.svc is good for all brokers.
            let domain = namespace.as_ref().map_or_else(String::new, |namespace| format!(".{namespace}.svc"));
            format!("{pod}.{service}{domain}:{}", bound.port())
        }
        Outside::Kubernetes { .. } | Outside::StandIn(_) => reachable_here(bound).to_string(),
    }
}

/// How this process itself reaches a port that it listens on.
fn reachable_here(bound: SocketAddr) -> SocketAddr {
    let ip = match bound.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => IpAddr::V4(Ipv4Addr::LOCALHOST),
        IpAddr::V6(ip) if ip.is_unspecified() => IpAddr::V6(Ipv6Addr::LOCALHOST),
        ip => ip,
    };
    SocketAddr::new(ip, bound.port())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn others_are_told_a_name_that_one_certificate_covers() {
        let told = |namespace: Option<&str>, bound: &str| {
            let (pod, service) = ("kaas-1".to_owned(), "kaas-headless".to_owned());
            let outside = Outside::Kubernetes { pod, service, namespace: namespace.map(str::to_owned) };
            told_to_others(&outside, bound.parse().expect("it is an address"))
        };
        assert_eq!(told(Some("kafka"), "0.0.0.0:9094"), "kaas-1.kaas-headless.kafka.svc:9094");
        assert_eq!(told(None, "[::]:9094"), "kaas-1.kaas-headless:9094");
        assert_eq!(told(Some("kafka"), "10.0.0.7:9"), "10.0.0.7:9");
    }
}
