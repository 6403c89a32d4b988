//! Several real brokers on one directory.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use kaas_proto::format::assignment::{Assignment, BrokerHealth};
use tempfile::TempDir;

use crate::broker::{Broker, BrokerOptions, wait_until};

/// Where the brokers have their election and their topics from.
#[derive(Debug)]
pub enum Outside {
    /// Files in a directory.
    StandIn(TempDir),
    /// The API server that a kubeconfig names. The brokers are `kaas-0`, `kaas-1`, ….
    Kubernetes { kubeconfig: PathBuf },
}

/// Kept on the test's side; all brokers are killed when it is dropped.
#[derive(Debug)]
pub struct Cluster {
    binary: PathBuf,
    volume: TempDir,
    outside: Outside,
    arguments: Vec<String>,
    pub brokers: BTreeMap<i32, Broker>,
}

impl Cluster {
    /// Starts so many brokers and waits until they are one cluster. Their files are made below `directory`.
    ///
    /// # Errors
    /// What they logged instead.
    pub fn start(binary: &Path, directory: &Path, brokers: i32) -> Result<Self> {
        let stand_in = Outside::StandIn(tempfile::tempdir_in(directory)?);
        Self::start_with(binary, directory, stand_in, &[], brokers)
    }

    /// The same with another election, and with more arguments for each broker.
    ///
    /// # Errors
    /// What they logged instead.
    pub fn start_with(
        binary: &Path,
        directory: &Path,
        outside: Outside,
        arguments: &[String],
        brokers: i32,
    ) -> Result<Self> {
        let volume = tempfile::tempdir_in(directory)?;
        let (binary, arguments) = (binary.to_owned(), arguments.to_vec());
        let mut cluster = Self { binary, volume, outside, arguments, brokers: BTreeMap::new() };
        (0..brokers).try_for_each(|id| cluster.add(id))?;
        cluster.wait_until_even(brokers)?;
        Ok(cluster)
    }

    /// Starts a broker, without waiting for it to join.
    ///
    /// # Errors
    /// What it logged instead.
    pub fn add(&mut self, id: i32) -> Result<()> {
        self.add_with(id, &self.arguments.clone())
    }

    /// The same with other arguments than those of the others.
    ///
    /// # Errors
    /// What it logged instead.
    pub fn add_with(&mut self, id: i32, arguments: &[String]) -> Result<()> {
        let common = ["--heartbeat-listen", "127.0.0.1:0", "--shards", "1", "--log-level", "info,kaas_coord=debug"];
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        let options = BrokerOptions::new(&self.binary, self.volume.path()).with(&common).with(&arguments);
        let options = match &self.outside {
            Outside::StandIn(directory) => {
                let directory = directory.path().to_str().context("the path is text")?;
                options.with(&["--cluster-stand-in", directory, "--broker-id", &id.to_string()])
            }
            Outside::Kubernetes { kubeconfig } => {
                let kubeconfig = kubeconfig.to_str().context("the path is text")?;
                options.with_variable("MY_POD_NAME", &format!("kaas-{id}")).with_variable("KUBECONFIG", kubeconfig)
            }
        };
        self.brokers.insert(id, Broker::start(&options)?);
        Ok(())
    }

    /// The directory that all brokers share.
    #[must_use]
    pub fn volume(&self) -> &Path {
        self.volume.path()
    }

    /// What `assignment.json` says.
    ///
    /// # Errors
    /// It is not there, or can't be read.
    pub fn assignment(&self) -> Result<Assignment> {
        let bytes = std::fs::read(self.volume.path().join("__cluster/assignment.json"))?;
        Ok(Assignment::decode(&bytes)?)
    }

    /// Waits until so many brokers are alive and ready, one that runs is the controller, and they lead as many partitions each, give or take
    /// one.
    ///
    /// # Errors
    /// What they logged instead.
    pub fn wait_until_even(&self, brokers: i32) -> Result<()> {
        let even = || {
            let Ok(assignment) = self.assignment() else { return Ok(false) };
            let alive = assignment.brokers.iter().filter(|broker| broker.health == BrokerHealth::Alive);
            let leads = |id| assignment.partitions.iter().filter(|partition| partition.leader == id).count();
            let counts: Vec<usize> = alive.map(|broker| leads(broker.id)).collect();
            let spread = counts.iter().max().unwrap_or(&0) - counts.iter().min().unwrap_or(&0);
            // A controller that hands over writes its last assignment itself.
            let controlled = self.brokers.contains_key(&assignment.controller.0);
            Ok(controlled && i32::try_from(counts.len())? == brokers && spread <= 1)
        };
        wait_until("the cluster is even", even).with_context(|| self.logs())?;
        for broker in self.brokers.values() {
            broker.wait_ready().with_context(|| format!("{:?}\n{}", broker.get("/healthz"), self.logs()))?;
        }
        Ok(())
    }

    /// What all brokers have logged.
    #[must_use]
    pub fn logs(&self) -> String {
        let log = |(id, broker): (&i32, &Broker)| format!("--- broker {id}\n{}", broker.log_lines().join("\n"));
        self.brokers.iter().map(log).collect::<Vec<_>>().join("\n")
    }

    /// The broker that wrote the assignment.
    ///
    /// # Errors
    /// There is none.
    pub fn controller(&self) -> Result<i32> {
        Ok(self.assignment()?.controller.0)
    }

    /// Another one.
    ///
    /// # Errors
    /// There is none.
    pub fn follower(&self) -> Result<i32> {
        let controller = self.controller()?;
        self.brokers.keys().find(|&&id| id != controller).copied().context("there is a second broker")
    }

    /// `kill -9`.
    ///
    /// # Errors
    /// There is no such broker.
    pub fn kill(&mut self, id: i32) -> Result<()> {
        self.brokers.remove(&id).context("it runs")?.kill()
    }
}
