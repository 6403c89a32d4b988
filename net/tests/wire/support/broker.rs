//! A broker of two shards on loopback.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use glommio::ExecutorJoinHandle;
use kaas_core::env::TaskClass;
use kaas_core::env::executor::{TaskQueues, spawn_shard};
use kaas_core::shard::operation::ShardPort;
use kaas_core::shard::port::{self, LocalPort};
use kaas_net::limits::Limits;
use kaas_net::listener::{self, NamedAddress};
use kaas_net::metrics::NetMetrics;
use kaas_net::server::{ConnectionCounter, Server};
use kaas_proto::config::broker::BrokerConfig;
use kaas_proto::control::{self, ControlLink, ControlRequest};
use kaas_proto::metrics::ShardMetrics;
use kaas_proto::reserve::Reserves;
use kaas_proto::types::{BrokerId, LeaderEpoch};
use kaas_proto::view::{BrokerView, ClusterView, ListenerAddress, PartitionView, TopicView};
use tokio::sync::{mpsc, oneshot, watch};

use super::control::{Control, described, led};
use super::shard::{GatedPort, PretendedShard};
use super::{Client, ELSEWHERE, ELSEWHERE_ID, PATIENCE, Switches, TOPIC, TOPIC_ID};

/// How a broker differs from the ordinary.
pub(crate) struct Options {
    pub(crate) settings: Vec<(&'static str, &'static str)>,
    pub(crate) limits: Box<dyn Fn(&mut Limits)>,
    pub(crate) shards: u16,
}

impl Default for Options {
    fn default() -> Self {
        Self { settings: vec![], limits: Box::new(|_| {}), shards: 2 }
    }
}

pub(crate) struct Broker {
    pub(crate) address: SocketAddr,
    pub(crate) switches: Arc<Switches>,
    pub(crate) view: watch::Sender<Arc<ClusterView>>,
    snapshots: Vec<mpsc::Sender<oneshot::Sender<ShardMetrics>>>,
    stopping: watch::Sender<bool>,
    shards: Vec<ExecutorJoinHandle<()>>,
    control: Option<JoinHandle<()>>,
}

impl Broker {
    pub(crate) fn start() -> Self {
        Self::with(Options::default())
    }

    pub(crate) fn with(options: Options) -> Self {
        let config = Arc::new(BrokerConfig::resolve(options.settings.iter().copied()).unwrap());
        let mut limits = Limits::of(&config);
        (options.limits)(&mut limits);
        let address: NamedAddress = "127.0.0.1:0".parse().unwrap();
        let listeners = listener::bind(&[address], options.shards).unwrap();
        let address = listeners[0][0].address;
        let (ControlLink { view, stopping, requests, .. }, links) =
            control::link(options.shards, view(&config), Reserves::default());
        let switches = Arc::new(Switches::default());
        let connections = Arc::new(ConnectionCounter::default());
        let (handles, queues): (Vec<_>, Vec<_>) = (0..options.shards).map(|_| port::queue()).unzip();
        let (mut shards, mut snapshots) = (Vec::new(), Vec::new());
        for ((link, listeners), mut queue) in links.into_iter().zip(listeners).zip(queues) {
            let (snapshot, mut wanted) = mpsc::channel::<oneshot::Sender<ShardMetrics>>(1);
            snapshots.push(snapshot);
            let (handles, switches, limits) = (handles.clone(), Arc::clone(&switches), limits.clone());
            let (config, connections) = (Arc::clone(&config), Arc::clone(&connections));
            let main = async move || {
                let shard = PretendedShard::new(Arc::clone(&switches));
                let own = {
                    let shard = shard.clone();
                    LocalPort::new(move |operation| shard.handle(operation))
                };
                let port = |(index, handle)| {
                    let inner: Rc<dyn ShardPort> =
                        if index == link.shard.0 { Rc::new(own.clone()) } else { Rc::new(handle) };
                    Rc::new(GatedPort { inner, switches: Arc::clone(&switches) }) as Rc<dyn ShardPort>
                };
                let metrics = Rc::new(NetMetrics::default());
                let server = Server {
                    shard: link.shard,
                    ports: (0..).zip(handles).map(port).collect(),
                    view: link.view,
                    control: link.requests,
                    stopping: link.stopping,
                    config,
                    limits,
                    connections,
                    metrics: Rc::clone(&metrics),
                };
                let tasks = TaskQueues::create();
                let ticking = shard.clone();
                tasks.spawn(TaskClass::Latency, async move {
                    loop {
                        ticking.tick();
                        glommio::timer::sleep(Duration::from_millis(1)).await;
                    }
                });
                tasks.spawn(TaskClass::Latency, async move {
                    while let Some(operation) = queue.recv().await {
                        shard.handle(operation);
                    }
                });
                tasks.spawn(TaskClass::Latency, async move {
                    while let Some(reply) = wanted.recv().await {
                        let mut snapshot = ShardMetrics::default();
                        metrics.add_to(&mut snapshot);
                        let _ = reply.send(snapshot);
                    }
                });
                let (done, ended) = oneshot::channel();
                tasks.spawn(TaskClass::Latency, async move {
                    server.run(listeners).await;
                    let _ = done.send(());
                });
                ended.await.unwrap();
            };
            shards.push(spawn_shard("net-test", None, main).unwrap());
        }
        let control = start_control(&config, view.clone(), &switches, requests);
        Self { address, switches, view, snapshots, stopping, shards, control: Some(control) }
    }

    pub(crate) fn client(&self) -> Client {
        Client::connect(self.address)
    }

    /// The sum of a counter over all shards and labels that contain `label`.
    pub(crate) fn counted(&self, name: &str, label: &str) -> f64 {
        let mut sum = 0.0;
        for shard in &self.snapshots {
            let (reply, answer) = oneshot::channel();
            shard.blocking_send(reply).unwrap();
            let snapshot = answer.blocking_recv().unwrap();
            let matching = snapshot.values.iter().filter(|(metric, labels, _)| {
                metric.name == name && (label.is_empty() || labels.iter().any(|(_, value)| value == label))
            });
            sum += matching.map(|(_, _, value)| value).sum::<f64>();
        }
        sum
    }

    /// Begins to stop; [`Broker::wait`] waits for the end.
    pub(crate) fn stop(&self) {
        self.stopping.send_replace(true);
    }

    pub(crate) fn wait(&mut self) {
        self.snapshots.clear();
        for shard in self.shards.drain(..) {
            shard.join().unwrap();
        }
    }
}

impl Drop for Broker {
    fn drop(&mut self) {
        self.stop();
        // A test that failed must not hang on what it holds back.
        super::set(&self.switches.hold_appends, false);
        super::set(&self.switches.queues_full, false);
        self.wait();
        if let Some(control) = self.control.take() {
            control.join().unwrap();
        }
        let _ = PATIENCE;
    }
}

fn start_control(
    config: &Arc<BrokerConfig>,
    view: watch::Sender<Arc<ClusterView>>,
    switches: &Arc<Switches>,
    requests: mpsc::Receiver<ControlRequest>,
) -> JoinHandle<()> {
    let control = Control { config: Arc::clone(config), view, switches: Arc::clone(switches) };
    std::thread::spawn(move || control.run(requests))
}

fn broker(id: i32, advertised: Option<(&str, u16)>) -> BrokerView {
    let advertised = advertised.map(|(host, port)| (host.into(), port));
    let listeners = vec![ListenerAddress { name: "PLAINTEXT".into(), advertised }];
    BrokerView { id: BrokerId(id), rack: None, fenced: false, listeners }
}

fn view(config: &BrokerConfig) -> Arc<ClusterView> {
    let mut view = ClusterView::empty("the-cluster-0123456789".into(), broker(1, None));
    view.brokers.push(broker(2, Some(("two.example", 9092))));
    view.slots.fill(led(1));
    view.insert_topic(described(TOPIC, TOPIC_ID, config, &BTreeMap::new(), 4));
    let elsewhere = described(ELSEWHERE, ELSEWHERE_ID, config, &BTreeMap::new(), 2);
    let nobody = PartitionView { leader: None, epoch: LeaderEpoch(3) };
    view.insert_topic(TopicView { partitions: vec![led(2), nobody], ..elsewhere });
    Arc::new(view)
}
