//! Some brokers on one volume, and whoever watches what they say.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use kaas_core::env::sim::{ClientId, Simulation};
use kaas_core::env::{Env, Volume};
use kaas_core::partition::error::FetchError;
use kaas_proto::config::topic::TopicConfig;
use kaas_proto::control::PartitionChange;
use kaas_proto::record::{Batches, RecordSet};
use kaas_proto::types::LeaderEpoch;

use super::broker::{Broker, directory};
use super::oracle::{Oracle, Record};

/// Longer than any record of a scenario.
const MAX_BATCH_BYTES: usize = 1 << 24;
/// How long a broker without any trouble may take to lead.
const LEADING_LIMIT: Duration = Duration::from_secs(600);

/// Clones are the same cluster.
#[derive(Clone)]
pub struct Cluster(Rc<State>);

struct State {
    simulation: Simulation,
    config: Arc<TopicConfig>,
    /// One for each broker id; `None` while it is down.
    brokers: RefCell<Vec<Option<Rc<Broker>>>>,
    /// How many nodes they share.
    nodes: u32,
    oracle: RefCell<Oracle>,
    /// The highest epoch that was given out or reported.
    epoch: Cell<i32>,
}

impl Cluster {
    /// Brokers that lead nothing, and the empty directory of a partition.
    pub async fn start(simulation: &Simulation, config: Arc<TopicConfig>, brokers: usize, nodes: u32) -> Self {
        let provisioner = simulation.start_process(ClientId(u32::MAX - 1));
        let volume = provisioner.volume();
        for at in directory().ancestors().collect::<Vec<_>>().into_iter().rev() {
            volume.create_directories(at).await.expect("a calm volume");
        }
        let cluster = Self(Rc::new(State {
            simulation: simulation.clone(),
            config,
            brokers: RefCell::new((0..brokers).map(|_| None).collect()),
            nodes,
            oracle: RefCell::default(),
            epoch: Cell::new(0),
        }));
        (0..brokers).for_each(|id| cluster.start_broker(id));
        cluster
    }

    pub fn simulation(&self) -> &Simulation {
        &self.0.simulation
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
        let client = ClientId(number % self.0.nodes);
        let broker = Broker::start(&self.0.simulation, i32::try_from(id).expect("a few brokers"), client);
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
        broker.take_over(epoch, &self.0.config);
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

    /// Reads what a broker shows from an offset on and holds it against everything that is known. The records, if it
    /// showed all up to its high watermark.
    pub async fn read(&self, broker: &Broker, from: i64) -> Result<Vec<Record>, FetchError> {
        let not_here = || FetchError::NotLeading(kaas_core::partition::error::NotLeading::NotHere);
        let epoch = broker.led.get().ok_or_else(not_here)?;
        let mut found: Vec<Record> = Vec::new();
        let mut next = from;
        loop {
            let floor = self.oracle(|oracle| oracle.floor(epoch));
            // A broker that was killed does not answer.
            let answer = broker.fetch(next, epoch).await.map_err(|_| not_here())?.remove(0);
            let now = self.0.simulation.time().now();
            let fetched = match answer {
                Ok(fetched) => fetched,
                Err(FetchError::OffsetOutOfRange { log_start, .. }) if log_start.0 > next && found.is_empty() => {
                    next = log_start.0;
                    continue;
                }
                Err(error) => return Err(error),
            };
            let (high_watermark, log_start) = (fetched.high_watermark.0, fetched.log_start_offset.0);
            let mut records = Vec::new();
            let batches = fetched.records.iter().flat_map(|part| Batches::new(part));
            for batch in batches {
                let read = batch.map_err(|error| error.to_string()).and_then(|batch| {
                    batch.check_crc().map_err(|error| error.to_string())?;
                    let records = RecordSet::read(batch, MAX_BATCH_BYTES).map_err(|error| error.to_string())?;
                    Ok((batch.partition_leader_epoch(), records))
                });
                let (epoch, set) = match read {
                    Ok(read) => read,
                    Err(error) => {
                        self.oracle(|oracle| oracle.violated(format!("a consumer reads garbage at {next}: {error}")));
                        return Ok(found);
                    }
                };
                for record in &set {
                    let record = record.expect("its batch is whole");
                    let offset = set.offset(&record).0;
                    if offset >= next {
                        let value = String::from_utf8_lossy(record.value.unwrap_or_default()).into();
                        records.push(Record { offset, value, epoch });
                    }
                }
            }
            let gap = self.oracle(|oracle| {
                oracle.sees_ends(epoch, floor, high_watermark, log_start, now);
                oracle.sees_records(next, &records)
            });
            if let Some(gap) = gap {
                self.explain(broker, epoch, gap).await;
            }
            let is_last = match records.last() {
                Some(last) => {
                    next = last.offset + 1;
                    next >= high_watermark
                }
                None => true,
            };
            found.extend(records);
            if is_last {
                let ends = format!("high watermark {high_watermark}, log start {log_start}");
                self.0.simulation.note(format!("epoch {epoch} shows {} records from {from}, {ends}", found.len()));
                return Ok(found);
            }
        }
    }

    /// Records that a consumer did not get may have been deleted while it read; then the log starts behind them now.
    async fn explain(&self, broker: &Broker, epoch: LeaderEpoch, gap: std::ops::Range<i64>) {
        let Ok(mut rows) = broker.fetch(gap.start, epoch).await else { return };
        let is_there = match rows.remove(0) {
            Ok(_) => true,
            Err(FetchError::OffsetOutOfRange { log_start, .. }) => log_start.0 < gap.end,
            Err(_) => false,
        };
        if is_there {
            self.oracle(|oracle| oracle.violated(format!("a consumer does not get offsets {gap:?} of epoch {epoch}")));
        }
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
        if self.read(broker, end).await.is_ok() {
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
