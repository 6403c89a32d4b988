//! Some brokers on one volume, and whoever watches what they say.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use kaas_core::env::sim::{ClientId, Simulation};
use kaas_core::env::{Env, Volume};
use kaas_core::shard::operation::IsolationLevel;
use kaas_proto::config::topic::TopicConfig;
use kaas_proto::control::PartitionChange;
use kaas_proto::types::{BrokerId, LeaderEpoch};

use super::broker::{Broker, Subject, directory, neighbour};
use super::oracle::Oracle;
use super::run::short;

/// How long a broker without any trouble may take to lead.
const LEADING_LIMIT: Duration = Duration::from_secs(600);

/// What the brokers of a scenario are, and what they are for.
#[derive(Clone, Debug)]
pub struct Setup {
    pub subject: Subject,
    pub config: Arc<TopicConfig>,
    pub brokers: usize,
    /// How many nodes they share.
    pub nodes: u32,
    /// Memory for the keys of a pass of compaction.
    pub map_bytes: usize,
    /// The size of the volume while there is room on it; `None`: no limit, and no broker keeps a reserve.
    pub capacity: Option<u64>,
    /// Each broker leads another partition, and may hardly have any segment open.
    pub is_crowded: bool,
}

impl Setup {
    /// Two brokers, a node for each.
    pub fn new(config: Arc<TopicConfig>) -> Self {
        let subject = Subject::Partition;
        Self { subject, config, brokers: 2, nodes: 2, map_bytes: 1 << 20, capacity: None, is_crowded: false }
    }
}

/// Clones are the same cluster.
#[derive(Clone)]
pub struct Cluster(Rc<State>);

struct State {
    simulation: Simulation,
    setup: Setup,
    /// One for each broker id; `None` while it is down.
    brokers: RefCell<Vec<Option<Rc<Broker>>>>,
    oracle: RefCell<Oracle>,
    /// The highest epoch that was given out or reported.
    epoch: Cell<i32>,
}

impl Cluster {
    /// Brokers that lead nothing, and the empty directory of a partition.
    pub async fn start(simulation: &Simulation, setup: Setup) -> Self {
        let brokers = setup.brokers;
        let provisioner = simulation.start_process(ClientId(u32::MAX - 1));
        let volume = provisioner.volume();
        volume.create_directories(&setup.subject.directory()).await.expect("a calm volume");
        if setup.is_crowded {
            for id in (0..).map(BrokerId).take(brokers) {
                volume.create_directories(&directory(neighbour(id))).await.expect("a calm volume");
            }
        }
        simulation.set_capacity(setup.capacity);
        let cluster = Self(Rc::new(State {
            simulation: simulation.clone(),
            setup,
            brokers: RefCell::new((0..brokers).map(|_| None).collect()),
            oracle: RefCell::default(),
            epoch: Cell::new(0),
        }));
        (0..brokers).for_each(|id| cluster.start_broker(id));
        cluster
    }

    pub fn simulation(&self) -> &Simulation {
        &self.0.simulation
    }

    pub fn setup(&self) -> &Setup {
        &self.0.setup
    }

    /// Only between two awaits.
    pub fn oracle<T>(&self, ask: impl FnOnce(&mut Oracle) -> T) -> T {
        ask(&mut self.0.oracle.borrow_mut())
    }

    /// Runs beside the brokers, whatever becomes of them.
    pub fn spawn(&self, task: impl Future<Output = ()> + 'static) {
        self.0.simulation.time().spawn(task);
    }

    pub fn len(&self) -> usize {
        self.0.brokers.borrow().len()
    }

    pub fn broker(&self, id: usize) -> Option<Rc<Broker>> {
        self.0.brokers.borrow()[id].clone()
    }

    /// Those that are up.
    pub fn brokers(&self) -> Vec<Rc<Broker>> {
        self.0.brokers.borrow().iter().flatten().cloned().collect()
    }

    /// A new life of a broker that is down.
    pub fn start_broker(&self, id: usize) {
        if self.broker(id).is_some_and(|broker| !broker.env.process().is_dead()) {
            return;
        }
        let number = u32::try_from(id).expect("a few brokers");
        let (client, broker_id) = (ClientId(number % self.0.setup.nodes), i32::try_from(id).expect("a few brokers"));
        let broker = Broker::start(&self.0.simulation, broker_id, client, &self.0.setup);
        self.0.simulation.note(format!("broker {id} starts as process {}", broker.env.process().id().0));
        self.0.brokers.borrow_mut()[id] = Some(Rc::new(broker));
    }

    pub fn crash(&self, id: usize) {
        let broker = self.0.brokers.borrow_mut()[id].take();
        if let Some(broker) = broker {
            self.0.simulation.crash(broker.env.process());
            self.hear();
        }
    }

    pub fn lose_power(&self) {
        self.0.simulation.lose_power();
        self.hear();
        self.0.brokers.borrow_mut().iter_mut().for_each(|broker| *broker = None);
    }

    /// An epoch above all others.
    pub fn next_epoch(&self, above: i32) -> LeaderEpoch {
        let epoch = self.0.epoch.get() + above;
        self.0.epoch.set(epoch);
        LeaderEpoch(epoch)
    }

    pub fn take_over(&self, broker: &Broker, epoch: LeaderEpoch) {
        self.0.simulation.note(format!("process {} is told to lead with {epoch}", broker.env.process().id().0));
        broker.take_over(epoch, &self.0.setup.config);
    }

    /// Listens to what the brokers report.
    pub fn hear(&self) {
        let brokers = self.brokers();
        for broker in brokers {
            for change in broker.changes() {
                let process = broker.env.process().id();
                self.0.simulation.note(format!("process {} reports {change:?}", process.0));
                match change {
                    PartitionChange::Leading { epoch } => {
                        broker.led.set(Some(epoch));
                        self.0.epoch.set(self.0.epoch.get().max(epoch.0));
                        self.oracle(|oracle| oracle.leads(epoch, process));
                    }
                    PartitionChange::Superseded { epoch, .. } => {
                        broker.led.set(None);
                        self.0.epoch.set(self.0.epoch.get().max(epoch.0));
                    }
                    PartitionChange::Relinquished { .. } => broker.led.set(None),
                    // What was acknowledged can still be read.
                    PartitionChange::Failed { .. } | PartitionChange::Stalled(_) => {}
                }
            }
        }
    }

    /// A producer is told where its record is stored.
    pub fn acknowledged(&self, name: &Rc<str>, offset: i64) {
        self.hear();
        self.0.simulation.note(format!("{} is acknowledged at {offset}", short(name)));
        self.oracle(|oracle| oracle.acknowledged(offset, name));
    }

    /// # Errors
    /// The first thing that did not hold.
    pub fn check(&self) -> Result<(), String> {
        self.hear();
        if let Some(violation) = self.0.simulation.violations().first() {
            return Err(violation.clone());
        }
        self.oracle(|oracle| oracle.violation().map_or(Ok(()), |violation| Err(violation.to_owned())))
    }

    /// The broker that says to lead with the highest epoch.
    pub fn newest_leader(&self) -> Option<Rc<Broker>> {
        self.hear();
        self.brokers().into_iter().max_by_key(|broker| broker.led.get()).filter(|broker| broker.led.get().is_some())
    }

    /// Asks a broker where the epochs end that are known to have records.
    pub async fn ask_ends_of_epochs(&self, broker: &Broker) {
        let Some(epoch) = broker.led.get() else { return };
        let known = self.oracle(|oracle| oracle.epochs_with_records());
        let mut ends = Vec::new();
        for wanted in known.into_iter().filter(|&wanted| wanted < epoch) {
            if let Ok(mut rows) = broker.end_of_epoch(wanted, epoch).await
                && let Ok((_, end)) = rows.remove(0)
            {
                ends.push((wanted, end.0));
            }
        }
        // Of what is deleted no epoch is known any more: where the log starts is seen after the answers.
        let end = self.oracle(|oracle| oracle.end());
        if self.read(broker, end, IsolationLevel::ReadUncommitted).await.is_ok() {
            ends.into_iter()
                .for_each(|(wanted, end)| self.oracle(|oracle| oracle.sees_end_of_epoch(wanted, epoch, end)));
        }
    }

    /// A broker takes over and leads; nothing must keep it from that any more.
    pub async fn lead(&self, id: usize) -> Option<Rc<Broker>> {
        self.start_broker(id);
        let broker = self.broker(id)?;
        let epoch = self.next_epoch(1000);
        self.take_over(&broker, epoch);
        let time = self.0.simulation.time().clone();
        let limit = time.now().0 + u64::try_from(LEADING_LIMIT.as_nanos()).expect("minutes");
        while time.now().0 < limit {
            self.hear();
            if broker.led.get().is_some_and(|led| led >= epoch) {
                return Some(broker);
            }
            time.sleep(Duration::from_millis(20)).await;
        }
        self.oracle(|oracle| oracle.violated(format!("a broker alone can't lead with epoch {epoch}")));
        None
    }
}
