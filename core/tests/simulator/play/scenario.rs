//! One scenario: random steps by a seed, then its [`end`].

use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use kaas_core::env::sim::{SimRandom, Simulation};
use kaas_core::shard::operation::IsolationLevel;
use kaas_proto::config::broker::BrokerConfig;
use kaas_proto::config::topic::TopicConfig;

use super::broker::{Broker, Subject};
use super::clients::Clients;
use super::cluster::Cluster;
use super::ending::end;
use super::guard::guard;
use super::payload::{KEYS, Shape};
use super::producer::{send_batch, send_once};
use super::profile::{Profile, Step};
use super::run::Summary;

/// Kafka's bound for the metadata of a commit.
const MAX_METADATA_BYTES: usize = 4096;
/// Between the parts of a transaction.
const LONGEST_PAUSE: Duration = Duration::from_secs(2);
/// Of a thousand duels, how many are about one epoch.
const SAME_EPOCH_RATE: u32 = 150;
/// How wrong a clock may be.
const CLOCK_ERRORS_MS: [i64; 5] = [-3_000_000, -30_000, 0, 5_000, 20_000];
/// A clock that is fast makes records look so much older.
const LONGEST_JUMP: Duration = Duration::from_secs(25);

/// # Errors
/// What did not hold.
pub async fn play(seed: u64, simulation: &Simulation) -> Result<Summary, String> {
    let random = SimRandom::new(seed ^ 0x5eed_5eed);
    let profile = Profile::of(seed, &random);
    simulation.guard(guard());
    simulation.names_are_durable(profile.names_are_durable);
    simulation.removed_files_are_stale(profile.removed_files_are_stale);
    simulation.note(format!("seed {seed}: {}, {} brokers, {} nodes", profile.name, profile.brokers, profile.nodes));
    let cluster = Cluster::start(simulation, profile.setup()).await;
    cluster.oracle(|oracle| {
        oracle.retention = profile.retention.map(|retention| retention - LONGEST_JUMP);
        oracle.lasting = profile.lasting;
    });
    simulation.set_faults(profile.calm);
    let clients = Clients::of(&cluster, profile.subject, profile.lasting.is_some());
    let play = Play { random, profile, cluster, clients };
    for number in 0..play.profile.count {
        play.step(number).await?;
        let pause = play.random.of(&[0, 200, 1_000, 5_000, 20_000, 200_000]);
        simulation.time().sleep(Duration::from_micros(pause)).await;
        play.cluster.check()?;
    }
    end(&play.cluster, &play.clients, play.random.chance(500)).await
}

pub fn topic_config(settings: &[(&str, &str)]) -> Arc<TopicConfig> {
    let mut own = BTreeMap::from([("segment.bytes".to_owned(), "1048576".to_owned())]);
    own.extend(settings.iter().map(|&(key, value)| (key.to_owned(), value.to_owned())));
    Arc::new(TopicConfig::resolve(&BrokerConfig::default(), &own).expect("valid settings"))
}

struct Play {
    random: SimRandom,
    profile: Profile,
    cluster: Cluster,
    clients: Clients,
}

impl Play {
    fn any(&self) -> usize {
        usize::try_from(self.random.below(self.cluster.len() as u64)).expect("a few brokers")
    }

    fn any_broker(&self) -> Option<Rc<Broker>> {
        self.cluster.broker(self.any())
    }

    /// Mostly whoever leads.
    fn target(&self) -> Option<Rc<Broker>> {
        if self.random.chance(700) { self.cluster.newest_leader() } else { self.any_broker() }
    }

    fn padding(&self) -> usize {
        self.random.of(&[1, 1, 1, 10, 10, 500, 500, 3000, 3000, 5000, 5000, 200_000])
    }

    fn shape(&self) -> Shape {
        let padding = self.padding();
        if self.profile.lasting.is_none() {
            return padding.into();
        }
        Shape { key: self.random.of(&KEYS), is_tombstone: self.random.chance(250), padding }
    }

    /// The records of one batch: compaction may take some of them.
    fn shapes(&self) -> Vec<Shape> {
        let more = if self.profile.lasting.is_some() { self.random.below(3) } else { 0 };
        (0..=more).map(|_| self.shape()).collect()
    }

    async fn step(&self, number: usize) -> Result<(), String> {
        let step = self.profile.step(&self.random);
        let simulation = self.cluster.simulation();
        simulation.note(format!("step {number}: {step:?}"));
        if self.profile.is_crowded {
            self.cluster.brokers().iter().for_each(|broker| broker.crowd());
        }
        match step {
            Step::SendOnce => {
                for more in 0..=self.random.below(3) {
                    if let Some(broker) = self.target() {
                        let number = number * 10 + usize::try_from(more).expect("less than 3");
                        send_batch(&self.cluster, &broker, number, &self.shapes());
                    }
                }
            }
            Step::SendIdempotent => self.send_idempotent(),
            Step::Transact => self.transact(),
            Step::Commit => {
                if let Some(broker) = self.target() {
                    self.random.any(&self.clients.committers).commit(&broker, self.padding().min(MAX_METADATA_BYTES));
                }
            }
            Step::LookAtCommits => self.cluster.brokers().into_iter().for_each(|broker| self.look_at_commits(broker)),
            Step::TakeOver => {
                if let Some(broker) = self.any_broker() {
                    let epoch = self.cluster.next_epoch(self.random.of(&[1, 1, 2]));
                    self.cluster.take_over(&broker, epoch);
                }
            }
            Step::Duel => self.duel(number).await,
            Step::Relinquish => {
                if let Some(broker) = self.target() {
                    broker.relinquish();
                }
            }
            Step::Pause => {
                if let Some(broker) = self.target() {
                    broker.env.process().pause();
                }
            }
            Step::Resume => self.cluster.brokers().iter().for_each(|broker| broker.env.process().resume()),
            Step::Crash => self.cluster.crash(self.any()),
            Step::LosePower => {
                self.cluster.lose_power();
                (0..self.cluster.len()).for_each(|id| self.cluster.start_broker(id));
                self.cluster.check()?;
            }
            Step::DeleteRecords => self.delete_records(),
            Step::Read => {
                if let Some(broker) = self.target() {
                    self.read(broker);
                }
            }
            Step::AskEndsOfEpochs => {
                if let Some(broker) = self.target() {
                    let cluster = self.cluster.clone();
                    self.cluster.spawn(async move { cluster.ask_ends_of_epochs(&broker).await });
                }
            }
            Step::Trouble => simulation.set_faults(self.profile.trouble),
            Step::Calm => {
                simulation.set_faults(self.profile.calm);
                simulation.set_capacity(self.profile.capacity);
            }
            Step::FillUp => simulation.leave_room(self.random.below(30_000)),
            Step::MakeRoom => simulation.leave_room(self.random.of(&[1 << 20, 5 << 20, 20 << 20])),
            Step::LeadWithoutRoom => self.lead_without_room().await,
            Step::FillVolume => simulation.set_capacity(Some(self.random.below(20_000))),
            Step::SetClock => {
                if let Some(broker) = self.any_broker() {
                    broker.env.process().set_wall_clock(self.random.of(&CLOCK_ERRORS_MS));
                }
            }
            Step::LongSleep => {
                let seconds = self.random.of(&[1, 3, 12, 70]);
                simulation.time().sleep(Duration::from_secs(seconds)).await;
            }
        }
        // Somebody is up again sooner or later, and somebody is told to lead.
        if self.random.chance(200) {
            (0..self.cluster.len()).for_each(|id| self.cluster.start_broker(id));
        }
        if self.cluster.newest_leader().is_none()
            && self.random.chance(300)
            && let Some(broker) = self.any_broker()
        {
            let epoch = self.cluster.next_epoch(1);
            self.cluster.take_over(&broker, epoch);
        }
        Ok(())
    }

    /// Whatever room the reserve of a broker gives is enough for it to lead.
    async fn lead_without_room(&self) {
        let id = self.any();
        let Some(broker) = self.cluster.broker(id).filter(|broker| broker.has_reserve()) else { return };
        broker.env.process().resume();
        self.cluster.simulation().leave_room(0);
        self.cluster.lead(id).await;
    }

    fn send_idempotent(&self) {
        let Some(broker) = self.target() else { return };
        let producer = self.random.any(&self.clients.producers);
        if producer.is_sending() {
            return;
        }
        (0..=self.random.below(2)).for_each(|_| producer.add(self.shape()));
        producer.send(&broker);
        if self.random.chance(300) {
            producer.send_again(&broker);
        }
    }

    fn transact(&self) {
        let part = |_| (self.shape(), self.random.duration(LONGEST_PAUSE));
        let parts = (0..=self.random.below(2)).map(part).collect();
        self.random.any(&self.clients.transactional).begin(parts, self.random.chance(600));
    }

    fn look_at_commits(&self, broker: Rc<Broker>) {
        let committers = self.clients.committers.clone();
        self.cluster.spawn(async move {
            for committer in committers {
                committer.look(&broker).await;
            }
        });
    }

    /// Records are on their way, two brokers take over, and one of them may stop anywhere in the middle. Both may be told the
    /// same epoch, as by two controllers.
    async fn duel(&self, number: usize) {
        let time = self.cluster.simulation().time();
        if let Some(leader) = self.cluster.newest_leader().filter(|_| self.profile.subject == Subject::Partition) {
            for more in 0..=self.random.below(2) {
                let number = number * 10 + 5 + usize::try_from(more).expect("less than 2");
                let padding = self.random.of(&[1, 3000]);
                send_once(&self.cluster, &leader, number, Shape { padding, ..self.shape() });
                time.sleep(self.random.duration(Duration::from_millis(2))).await;
            }
        }
        let first = self.any();
        let second = (first + 1) % self.cluster.len();
        let epoch = self.cluster.next_epoch(1);
        let epochs = (epoch, if self.random.chance(SAME_EPOCH_RATE) { epoch } else { self.cluster.next_epoch(1) });
        let (Some(first), Some(second)) = (self.cluster.broker(first), self.cluster.broker(second)) else { return };
        self.cluster.take_over(&first, epochs.0);
        let stops = self.random.chance(500);
        time.sleep(self.random.duration(Duration::from_millis(if stops { 60 } else { 10 }))).await;
        if stops {
            first.env.process().pause();
        }
        self.cluster.take_over(&second, epochs.1);
        time.sleep(self.random.duration(Duration::from_millis(200))).await;
        first.env.process().resume();
        time.sleep(self.random.duration(Duration::from_millis(60))).await;
        for broker in self.cluster.brokers() {
            self.look_at_commits(Rc::clone(&broker));
            self.read(broker);
        }
    }

    fn delete_records(&self) {
        let Some(broker) = self.target() else { return };
        let end = self.cluster.oracle(|oracle| oracle.end());
        let offset = i64::try_from(self.random.below(u64::try_from(end + 1).expect("an offset"))).expect("an offset");
        self.cluster.oracle(|oracle| oracle.delete_up_to = oracle.delete_up_to.max(offset));
        let (answer, cluster) = (broker.delete_records(offset), self.cluster.clone());
        self.cluster.spawn(async move {
            if let Ok(rows) = answer.await
                && let Ok(log_start) = rows[0]
            {
                cluster.hear();
                cluster.simulation().note(format!("records below {log_start} are deleted"));
                cluster.oracle(|oracle| oracle.deleted(log_start.0));
            }
        });
    }

    fn read(&self, broker: Rc<Broker>) {
        let end = self.cluster.oracle(|oracle| oracle.end());
        let from =
            if self.random.chance(500) { 0 } else { self.random.below(u64::try_from(end + 1).expect("an offset")) };
        let (cluster, from) = (self.cluster.clone(), i64::try_from(from).expect("an offset"));
        let isolation = if self.profile.lasting.is_some() && self.random.chance(500) {
            IsolationLevel::ReadCommitted
        } else {
            IsolationLevel::ReadUncommitted
        };
        self.cluster.spawn(async move {
            // Whoever does not lead, or whose volume is in trouble, shows nothing.
            drop(cluster.read(&broker, from, isolation).await);
        });
    }
}
