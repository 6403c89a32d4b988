//! What can happen to a cluster, each with a load throughout: used by short tests and by the soak command alike.

mod actions;

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use clap::ValueEnum;
use kaas_proto::format::assignment::AssignedPartition;
use tempfile::TempDir;

use crate::api_server::ApiServer;
use crate::cluster::{Around, Cluster, Outside};
use crate::load::Load;
use crate::random::Random;
use crate::rename_pause::RenamePause;

const TOPIC: &str = "load";
const BROKERS: i32 = 3;
const PARTITIONS: i32 = 6;
/// Something happens up to so long after what happened before.
const LONGEST_DELAY: Duration = Duration::from_millis(500);

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
    /// The Kubernetes API server is gone, for longer than the Lease holds, and comes back. Then a broker is killed.
    ApiServerAway,
}

impl fmt::Display for Scenario {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.to_possible_value().expect("no scenario is skipped").get_name())
    }
}

/// How long a partition was without service during a step of a scenario.
#[derive(Clone, Debug)]
pub struct Gap {
    pub step: &'static str,
    /// The partition has another leader, or the same one anew.
    pub moved: bool,
    pub waited: Duration,
    /// What was in the way at last, as far as it was told.
    pub obstacle: String,
}

/// Who elects the controller and knows the topics.
#[derive(Clone, Copy, Debug)]
pub enum Setting<'a> {
    /// Files in a directory, see `--cluster-stand-in`. One scenario is of a real API server all the same, and starts one.
    StandIn,
    /// A real API server, with a Lease of this namespace. It is made here.
    Kubernetes { server: &'a ApiServer, namespace: &'a str },
}

/// A cluster with a load, on which a scenario is repeated.
#[derive(Debug)]
pub struct Stage {
    scenario: Scenario,
    cluster: Cluster,
    load: Load,
    /// Kept for as long as brokers may load it.
    _library: Option<TempDir>,
    /// If the scenario has one of its own.
    api_server: Option<ApiServer>,
    /// How long a broker that is paused stands still.
    pause: Duration,
    gaps: Vec<Gap>,
}

impl Stage {
    /// Starts a cluster and the load. The brokers' files are made below `directory`.
    ///
    /// # Errors
    /// What the brokers logged instead.
    pub fn start(
        scenario: Scenario,
        setting: Setting<'_>,
        binary: &Path,
        directory: &Path,
        pause: Duration,
    ) -> Result<Self> {
        let (mut library, mut api_server) = (None, None);
        let around = match scenario {
            Scenario::RacingControllers => {
                let built = RenamePause::build(library.insert(tempfile::tempdir_in(directory)?).path())?;
                Around { rename_pause: Some(built), ..Around::default() }
            }
            Scenario::CutStream => Around { proxies: Some(BTreeMap::new()), ..Around::default() },
            _ => Around::default(),
        };
        let outside = match setting {
            // What others use can't be stopped.
            _ if scenario == Scenario::ApiServerAway => {
                Outside::Kubernetes { kubeconfig: api_server.insert(ApiServer::start()?).make_namespace("kaas")? }
            }
            Setting::StandIn => Outside::StandIn(tempfile::tempdir_in(directory)?),
            Setting::Kubernetes { server, namespace } => {
                Outside::Kubernetes { kubeconfig: server.make_namespace(namespace)? }
            }
        };
        let cluster = Cluster::start_within(binary, directory, outside, around, BROKERS)?;
        let load = Load::start(&cluster, TOPIC, PARTITIONS)?;
        let stage = Self { scenario, cluster, load, _library: library, api_server, pause, gaps: Vec::new() };
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

    /// What the brokers have logged.
    #[must_use]
    pub fn logs(&self) -> String {
        self.cluster.logs()
    }

    fn happen(&mut self, random: &mut Random) -> Result<()> {
        actions::delay(random);
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
            Scenario::ApiServerAway => self.outlast_the_api_server(random),
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
        for ((before, after), (waited, obstacle)) in before.iter().zip(&after).zip(self.load.gaps()) {
            let same_topic = before.topic_id == after.topic_id;
            ensure!(
                !same_topic || before.epoch <= after.epoch,
                "{step}: a leader epoch went back: {before:?}, {after:?}"
            );
            self.gaps.push(Gap { step, moved: !same_topic || before.epoch != after.epoch, waited, obstacle });
        }
        Ok(())
    }
}
