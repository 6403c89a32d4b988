//! What each scenario does.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use kaas_proto::format::assignment::{Assignment, BrokerHealth};
use kaas_proto::layout::{CLUSTER_DIRECTORY, assignment_temporary};
use kaas_proto::types::AssignmentVersion;

use super::{BROKERS, LONGEST_DELAY, PARTITIONS, Stage, TOPIC};
use crate::broker::wait_until;
use crate::cluster::Cluster;
use crate::load::KEPT;
use crate::proxy::Cut;
use crate::random::Random;
use crate::tester::connect;

/// Longer than any silence that a session lasts through.
const CUT: Duration = Duration::from_secs(4);
/// What nobody is to notice may cost a client so much at most: machines are busy.
const UNNOTICED: Duration = Duration::from_secs(2);

impl Stage {
    pub(super) fn kill(&mut self, random: &mut Random, whom: fn(&Cluster) -> Result<i32>) -> Result<()> {
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

    pub(super) fn pause(&mut self, random: &mut Random, whom: fn(&Cluster) -> Result<i32>) -> Result<()> {
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

    pub(super) fn restart_all(&mut self, random: &mut Random) -> Result<()> {
        for id in 0..BROKERS {
            self.step("handed over", |cluster, _| cluster.stop(id))?;
            delay(random);
            self.step("back", |cluster, _| {
                cluster.add(id)?;
                cluster.wait_until_even(BROKERS)
            })?;
        }
        Ok(())
    }

    pub(super) fn scale(&mut self, random: &mut Random) -> Result<()> {
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
            self.step("handed over", |cluster, _| cluster.stop(id))?;
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
                self.cluster.stop(id)?;
            }
        }
        self.settle(BROKERS)
    }

    pub(super) fn recreate_topic(&mut self, random: &mut Random) -> Result<()> {
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

    pub(super) fn race(&mut self, random: &mut Random) -> Result<()> {
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
            if comes_late {
                wait_until("the former controller has renamed it", || Ok(!staged.0.exists()))?;
            }
            let healed = || Ok(cluster.assignment()?.generation() > newer.generation());
            wait_until("the newer controller has written once more", healed)?;
            cluster.add(other)?;
            cluster.wait_until_even(BROKERS)
        })
    }

    pub(super) fn cut(&mut self, random: &mut Random) -> Result<()> {
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

impl Stage {
    pub(super) fn outlast_the_api_server(&mut self, random: &mut Random) -> Result<()> {
        let length = self.pause * 3 + random.duration(LONGEST_DELAY);
        self.tell_the_api_server("stop")?;
        self.step("away", |_, load| {
            let began = Instant::now();
            while began.elapsed() < length {
                load.wait_for_progress()?;
            }
            Ok(())
        })?;
        let longest = self.gaps.iter().map(|gap| gap.waited).max().unwrap_or_default();
        ensure!(longest < UNNOTICED, "a partition was without service for {longest:?}");
        self.tell_the_api_server("start")?;
        delay(random);
        // Somebody is the controller, and acts: what dies is replaced.
        self.kill(random, Cluster::follower)
    }

    fn tell_the_api_server(&self, what: &str) -> Result<()> {
        self.api_server.as_ref().context("the scenario has one")?.command(what).map(drop)
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

fn create(cluster: &Cluster, address: SocketAddr) -> Result<()> {
    connect(address)?.create_topic(TOPIC, PARTITIONS, &KEPT)?;
    cluster.wait_until_even(BROKERS)
}

pub(super) fn delay(random: &mut Random) {
    std::thread::sleep(random.duration(LONGEST_DELAY));
}
