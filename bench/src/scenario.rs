//! What can happen to a cluster, each with a load throughout: used by short tests and by the soak command alike.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use clap::ValueEnum;
use kaas_proto::format::assignment::{AssignedPartition, Assignment, BrokerHealth};
use kaas_proto::layout::{CLUSTER_DIRECTORY, assignment_temporary};
use kaas_proto::types::AssignmentVersion;
use tempfile::TempDir;

use crate::broker::wait_until;
use crate::cluster::{Around, Cluster};
use crate::load::Load;
use crate::proxy::Cut;
use crate::random::Random;
use crate::rename_pause::RenamePause;
use crate::tester::connect;

const TOPIC: &str = "load";
const BROKERS: i32 = 3;
const PARTITIONS: i32 = 6;
/// Something happens up to so long after what happened before.
const LONGEST_DELAY: Duration = Duration::from_millis(500);
/// Longer than any silence that a session lasts through.
const CUT: Duration = Duration::from_secs(4);

/// What happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub enum Scenario {
    /// `kill -9` of a broker that is not the controller, and a new start.
    KillBroker,
    /// `kill -9` of the controller, and a new start.
    KillController,
    /// A broker that is not the controller stands still for a while (SIGSTOP, SIGCONT).
    PauseBroker,
    /// The controller stands still for a while.
    PauseController,
    /// One broker after the other is told to stop (SIGTERM), and started again.
    RollingRestart,
    /// Two brokers come, and two are told to leave.
    Scale,
    /// The topic is deleted and made anew.
    RecreateTopic,
    /// The controller stands still right before it puts an assignment into place, and does so when another one has written.
    RacingControllers,
    /// A broker's stream to the controller is cut, while both see the volume.
    CutStream,
}

impl fmt::Display for Scenario {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.to_possible_value().expect("no scenario is skipped").get_name())
    }
}

/// How long a partition was without service during a step of a scenario.
#[derive(Clone, Copy, Debug)]
pub struct Gap {
    pub step: &'static str,
    /// The partition has another leader, or the same one anew.
    pub moved: bool,
    pub waited: Duration,
}

/// A cluster with a load, on which a scenario is repeated.
#[derive(Debug)]
pub struct Stage {
    scenario: Scenario,
    cluster: Cluster,
    load: Load,
    /// Kept for as long as brokers may load it.
    _library: Option<TempDir>,
    /// How long a broker that is paused stands still.
    pause: Duration,
    gaps: Vec<Gap>,
}

impl Stage {
    /// Starts a cluster and the load. The brokers' files are made below `directory`.
    ///
    /// # Errors
    /// What the brokers logged instead.
    pub fn start(scenario: Scenario, binary: &Path, directory: &Path, pause: Duration) -> Result<Self> {
        let mut library = None;
        let around = match scenario {
            Scenario::RacingControllers => {
                let built = RenamePause::build(library.insert(tempfile::tempdir_in(directory)?).path())?;
                Around { rename_pause: Some(built), ..Around::default() }
            }
            Scenario::CutStream => Around { proxies: Some(BTreeMap::new()), ..Around::default() },
            _ => Around::default(),
        };
        let cluster = Cluster::start_within(binary, directory, around, BROKERS)?;
        let load = Load::start(&cluster, TOPIC, PARTITIONS)?;
        let stage = Self { scenario, cluster, load, _library: library, pause, gaps: Vec::new() };
        stage.settle(BROKERS)?;
        Ok(stage)
    }

    /// Lets it happen once, at times that follow from the seed, and checks everything that was acknowledged.
    ///
    /// # Errors
    /// A violation, or a cluster that does not recover; with all that the brokers have logged.
    pub fn repeat(&mut self, seed: u64) -> Result<Vec<Gap>> {
        let mut random = Random::of(seed);
        let happened =
            self.happen(&mut random).and_then(|()| self.load.check()).and_then(|()| self.cluster.check_followed());
        happened.with_context(|| format!("{}, seed {seed}\n{}", self.scenario, self.cluster.logs()))?;
        Ok(std::mem::take(&mut self.gaps))
    }

    /// The last check. Returns how many records were acknowledged.
    ///
    /// # Errors
    /// A violation.
    pub fn finish(self) -> Result<u64> {
        let Self { scenario, cluster, load, .. } = self;
        load.finish().with_context(|| format!("{scenario}\n{}", cluster.logs()))
    }

    fn happen(&mut self, random: &mut Random) -> Result<()> {
        delay(random);
        match self.scenario {
            Scenario::KillBroker => self.kill(random, Cluster::follower),
            Scenario::KillController => self.kill(random, Cluster::controller),
            Scenario::PauseBroker => self.pause(random, Cluster::follower),
            Scenario::PauseController => self.pause(random, Cluster::controller),
            Scenario::RollingRestart => self.restart_all(random),
            Scenario::Scale => self.scale(random),
            Scenario::RecreateTopic => self.recreate_topic(random),
            Scenario::RacingControllers => self.race(random),
            Scenario::CutStream => self.cut(random),
        }
    }

    fn settle(&self, brokers: i32) -> Result<()> {
        self.cluster.wait_until_even(brokers)?;
        self.load.wait_for_progress()
    }

    fn rows(&self) -> Result<Vec<AssignedPartition>> {
        let rows = self.cluster.assignment()?.partitions;
        Ok(rows.into_iter().filter(|row| &*row.topic == TOPIC).collect())
    }

    /// Does something, waits until all partitions are served, and notes how long they were not.
    fn step(&mut self, step: &'static str, act: impl FnOnce(&mut Cluster, &Load) -> Result<()>) -> Result<()> {
        let before = self.rows()?;
        self.load.reset_gaps();
        act(&mut self.cluster, &self.load).context(step)?;
        self.load.wait_for_progress().context(step)?;
        let after = self.rows()?;
        ensure!(before.len() == after.len(), "{step}: {before:?} became {after:?}");
        for ((before, after), waited) in before.iter().zip(&after).zip(self.load.gaps()) {
            let same_topic = before.topic_id == after.topic_id;
            ensure!(
                !same_topic || before.epoch <= after.epoch,
                "{step}: a leader epoch went back: {before:?}, {after:?}"
            );
            self.gaps.push(Gap { step, moved: !same_topic || before.epoch != after.epoch, waited });
        }
        Ok(())
    }

    fn kill(&mut self, random: &mut Random, whom: fn(&Cluster) -> Result<i32>) -> Result<()> {
        let id = whom(&self.cluster)?;
        self.step("killed", |cluster, _| cluster.kill(id))?;
        // Sometimes it is back before the others have settled.
        if random.flip() {
            self.settle(BROKERS - 1)?;
        }
        delay(random);
        self.step("back", |cluster, _| {
            cluster.add(id)?;
            cluster.wait_until_even(BROKERS)
        })
    }

    fn pause(&mut self, random: &mut Random, whom: fn(&Cluster) -> Result<i32>) -> Result<()> {
        let id = whom(&self.cluster)?;
        let length = self.pause + random.duration(LONGEST_DELAY);
        self.step("paused", |cluster, load| {
            cluster.brokers[&id].signal("STOP")?;
            let began = Instant::now();
            let others_lead = || {
                let Ok(assignment) = cluster.assignment() else { return Ok(false) };
                Ok(assignment.partitions.iter().all(|row| row.leader.0 != id) && assignment.controller.0 != id)
            };
            let replaced = wait_until("others lead what it led", others_lead).and_then(|()| load.wait_for_progress());
            std::thread::sleep(length.saturating_sub(began.elapsed()));
            cluster.brokers[&id].signal("CONT")?;
            replaced
        })?;
        self.step("continued", |cluster, _| cluster.wait_until_even(BROKERS))
    }

    fn restart_all(&mut self, random: &mut Random) -> Result<()> {
        for id in 0..BROKERS {
            self.step("handed over", |cluster, _| stop(cluster, id))?;
            delay(random);
            self.step("back", |cluster, _| {
                cluster.add(id)?;
                cluster.wait_until_even(BROKERS)
            })?;
        }
        Ok(())
    }

    fn scale(&mut self, random: &mut Random) -> Result<()> {
        let (fourth, fifth) = (BROKERS, BROKERS + 1);
        let pause = random.duration(LONGEST_DELAY);
        self.step("two more", |cluster, _| {
            cluster.add(fourth)?;
            std::thread::sleep(pause);
            cluster.add(fifth)?;
            cluster.wait_until_even(BROKERS + 2)
        })?;
        // Any two may go, also the controller.
        for _ in 0..2 {
            let ids: Vec<i32> = self.cluster.brokers.keys().copied().collect();
            let id = random.pick(&ids).context("brokers run")?;
            delay(random);
            self.step("handed over", |cluster, _| stop(cluster, id))?;
        }
        self.settle(BROKERS)?;
        // The next repetition starts with the same ids.
        for id in 0..BROKERS {
            if !self.cluster.brokers.contains_key(&id) {
                self.cluster.add(id)?;
            }
        }
        for id in [fourth, fifth] {
            if self.cluster.brokers.contains_key(&id) {
                stop(&mut self.cluster, id)?;
            }
        }
        self.settle(BROKERS)
    }

    fn recreate_topic(&mut self, random: &mut Random) -> Result<()> {
        let ids: Vec<i32> = self.cluster.brokers.keys().copied().collect();
        let asked = random.pick(&ids).context("brokers run")?;
        let pause = random.duration(LONGEST_DELAY);
        self.step("made anew", |cluster, load| {
            let before = cluster.assignment()?;
            let address = cluster.brokers[&asked].kafka();
            connect(address)?.delete_topic(TOPIC)?;
            std::thread::sleep(pause);
            // Another broker may not know yet that it is gone: a client would try again.
            create(cluster, address)?;
            let anew = || {
                let assignment = cluster.assignment()?;
                let row = assignment.partitions.iter().find(|row| &*row.topic == TOPIC);
                Ok(row.is_some_and(|row| before.partitions.iter().all(|before| before.topic_id != row.topic_id)))
            };
            wait_until("the topic is another one", anew)?;
            load.wait_for_progress()
        })
    }
}

impl Stage {
    fn race(&mut self, random: &mut Random) -> Result<()> {
        let (former, other) = (self.cluster.controller()?, self.cluster.follower()?);
        let before = self.cluster.assignment()?;
        let (pause, comes_late) = (random.duration(LONGEST_DELAY), random.flip());
        self.step("raced", |cluster, load| {
            let library = cluster.around.rename_pause.as_ref().context("it was built")?;
            library.arm(former)?;
            // A broker that goes makes the controller write.
            cluster.brokers.remove(&other).context("it runs")?.kill()?;
            library.wait_until_stopped(&cluster.brokers[&former])?;
            let staged = staged(cluster, &before)?;
            let successor = || {
                let assignment = cluster.assignment()?;
                let newer = assignment.controller_epoch > before.controller_epoch;
                Ok(newer && assignment.partitions.iter().all(|row| row.leader.0 != former))
            };
            wait_until("another controller has written", successor)?;
            load.wait_for_progress()?;
            std::thread::sleep(pause);
            // The successor has removed what the former one wants to rename. Half of the time it comes to its rename all the
            // same, as if the removal had not reached the volume.
            if comes_late {
                std::fs::write(&staged.0, &staged.1)?;
            }
            let newer = cluster.assignment()?;
            cluster.brokers[&former].signal("CONT")?;
            let healed = || Ok(cluster.assignment()?.generation() > newer.generation());
            wait_until("the newer controller has written once more", healed)?;
            cluster.add(other)?;
            cluster.wait_until_even(BROKERS)
        })
    }

    fn cut(&mut self, random: &mut Random) -> Result<()> {
        let (id, controller) = (self.cluster.follower()?, self.cluster.controller()?);
        let how = random.pick(&[Cut::Closed, Cut::Silent, Cut::Held]).context("there are three ways")?;
        let length = CUT + random.duration(CUT);
        let step = match how {
            Cut::Closed => "cut, closed",
            Cut::Silent => "cut, silent",
            Cut::Held => "cut, held back",
        };
        self.step(step, |cluster, load| {
            let proxies = cluster.around.proxies.as_ref().context("there are proxies")?;
            proxies[&controller].cut(cluster.brokers[&id].process_id(), how);
            let began = Instant::now();
            let dead = || {
                let rows = cluster.assignment()?.brokers;
                Ok(rows.iter().any(|row| row.id.0 == id && row.health == BrokerHealth::Dead))
            };
            wait_until("the controller has noticed", dead)?;
            load.wait_for_progress()?;
            std::thread::sleep(length.saturating_sub(began.elapsed()));
            proxies[&controller].heal();
            Ok(())
        })?;
        self.step("healed", |cluster, _| cluster.wait_until_even(BROKERS))
    }
}

/// The file that is to replace an assignment, and what is in it.
fn staged(cluster: &Cluster, before: &Assignment) -> Result<(PathBuf, Vec<u8>)> {
    let (epoch, AssignmentVersion(version)) = before.generation();
    let name = assignment_temporary(epoch, AssignmentVersion(version + 1));
    let path = cluster.volume().join(CLUSTER_DIRECTORY).join(name);
    let content = std::fs::read(&path).with_context(|| path.display().to_string())?;
    Ok((path, content))
}

fn create(cluster: &Cluster, address: std::net::SocketAddr) -> Result<()> {
    connect(address)?.create_topic(TOPIC, PARTITIONS, &[])?;
    cluster.wait_until_even(BROKERS)
}

/// SIGTERM, until the process has ended.
fn stop(cluster: &mut Cluster, id: i32) -> Result<()> {
    let mut broker = cluster.brokers.remove(&id).context("it runs")?;
    broker.signal("TERM")?;
    let status = broker.wait()?;
    if !status.success() {
        bail!("a broker that is told to stop exits with 0, not {status}:\n{}", broker.log_lines().join("\n"));
    }
    Ok(())
}

fn delay(random: &mut Random) {
    std::thread::sleep(random.duration(LONGEST_DELAY));
}
