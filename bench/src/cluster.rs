//! Several real brokers on one directory.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use kaas_proto::format::assignment::{Assignment, BrokerHealth};
use tempfile::TempDir;

use crate::broker::{Broker, BrokerOptions, wait_until};
use crate::proxy::Proxy;
use crate::rename_pause::RenamePause;

/// Where the brokers have their election and their topics from.
#[derive(Debug)]
pub enum Outside {
    /// Files in a directory.
    StandIn(TempDir),
    /// The API server that a kubeconfig names. The brokers are `kaas-0`, `kaas-1`, ….
    Kubernetes { kubeconfig: PathBuf },
}

/// What stands around the brokers, for tests that need it.
#[derive(Debug, Default)]
pub struct Around {
    /// Of each broker's heartbeat port.
    pub proxies: Option<BTreeMap<i32, Proxy>>,
    /// Loaded into each broker.
    pub rename_pause: Option<RenamePause>,
}

/// Kept on the test's side; all brokers are killed when it is dropped.
#[derive(Debug)]
pub struct Cluster {
    binary: PathBuf,
    volume: TempDir,
    outside: Outside,
    arguments: Vec<String>,
    pub around: Around,
    pub brokers: BTreeMap<i32, Broker>,
    /// What the last of each that was told to stop has logged.
    stopped: BTreeMap<i32, String>,
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

    /// The same with another election, and with something around the brokers.
    ///
    /// # Errors
    /// What they logged instead.
    pub fn start_within(
        binary: &Path,
        directory: &Path,
        outside: Outside,
        around: Around,
        brokers: i32,
    ) -> Result<Self> {
        Self::assemble(binary, directory, outside, around, &[], brokers)
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
        Self::assemble(binary, directory, outside, Around::default(), arguments, brokers)
    }

    fn assemble(
        binary: &Path,
        directory: &Path,
        outside: Outside,
        around: Around,
        arguments: &[String],
        brokers: i32,
    ) -> Result<Self> {
        let volume = tempfile::tempdir_in(directory)?;
        let (binary, arguments) = (binary.to_owned(), arguments.to_vec());
        let (brokers_of, stopped) = (BTreeMap::new(), BTreeMap::new());
        let mut cluster = Self { binary, volume, outside, around, arguments, brokers: brokers_of, stopped };
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
        let mut options = match &self.outside {
            Outside::StandIn(directory) => {
                let directory = directory.path().to_str().context("the path is text")?;
                options.with(&["--cluster-stand-in", directory, "--broker-id", &id.to_string()])
            }
            Outside::Kubernetes { kubeconfig } => {
                let kubeconfig = kubeconfig.to_str().context("the path is text")?;
                options.with_variable("MY_POD_NAME", &format!("kaas-{id}")).with_variable("KUBECONFIG", kubeconfig)
            }
        };
        if let Some(pause) = &self.around.rename_pause {
            options.variables.extend(pause.variables(id));
        }
        let Some(proxies) = &mut self.around.proxies else {
            self.brokers.insert(id, Broker::start(&options)?);
            return Ok(());
        };
        let proxy = match proxies.entry(id) {
            Entry::Occupied(proxy) => proxy.into_mut(),
            Entry::Vacant(place) => place.insert(Proxy::start()?),
        };
        let options = options.with(&["--heartbeat-advertise", &proxy.address().to_string()]);
        let broker = Broker::start(&options)?;
        proxy.forward_to(broker.heartbeat()?);
        self.brokers.insert(id, broker);
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
        let bytes = std::fs::read(self.cluster_directory().join("assignment.json"))?;
        Ok(Assignment::decode(&bytes)?)
    }

    /// Where the cluster's own state lies.
    fn cluster_directory(&self) -> PathBuf {
        let mut arguments = self.arguments.iter();
        match arguments.by_ref().any(|argument| argument == "--cluster-dir").then(|| arguments.next()).flatten() {
            Some(directory) => directory.into(),
            None => self.volume.path().join("__cluster"),
        }
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

    /// What all brokers have logged, and what those said last that were told to stop.
    #[must_use]
    pub fn logs(&self) -> String {
        let stopped = self.stopped.iter().map(|(id, log)| format!("--- broker {id}, stopped\n{log}"));
        let runs = |(id, broker): (&i32, &Broker)| format!("--- broker {id}\n{}", broker.log_lines().join("\n"));
        stopped.chain(self.brokers.iter().map(runs)).collect::<Vec<_>>().join("\n")
    }

    /// SIGTERM, until the process has ended.
    ///
    /// # Errors
    /// It does not end, or not well.
    pub fn stop(&mut self, id: i32) -> Result<()> {
        let mut broker = self.brokers.remove(&id).context("it runs")?;
        broker.signal("TERM")?;
        let status = broker.wait()?;
        let log = broker.log_lines().join("\n");
        ensure!(status.success(), "a broker that is told to stop exits with 0, not {status}:\n{log}");
        self.stopped.insert(id, log);
        Ok(())
    }

    /// No broker has followed an assignment of a controller after one of a newer controller.
    ///
    /// # Errors
    /// One has.
    pub fn check_followed(&self) -> Result<()> {
        for (id, broker) in &self.brokers {
            let mut newest = 0;
            for line in broker.log_lines() {
                let Some((_, rest)) = line.split_once("following an assignment epoch=") else { continue };
                let epoch: i32 = rest.split(' ').next().unwrap_or_default().parse()?;
                ensure!(newest <= epoch, "broker {id} has followed a controller of epoch {newest}, and then: {line}");
                newest = epoch;
            }
        }
        Ok(())
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
