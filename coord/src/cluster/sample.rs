//! Set-up that several tests share.

#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use kaas_proto::config::broker::BrokerConfig;
use kaas_proto::format::assignment::{AssignedSlot, Assignment, BrokerHealth, RegisteredBroker};
use kaas_proto::layout::CLUSTER_DIRECTORY;
use kaas_proto::roots::Roots;
use kaas_proto::types::{
    AssignmentVersion, BrokerId, COORDINATOR_SLOTS, ControllerEpoch, Incarnation, LeaderEpoch, SlotId,
};
use tempfile::TempDir;
use tokio::sync::watch;
use tokio::time::Instant;

use super::ClusterHealth;
use super::assignment_file::AssignmentFile;
use super::controller::ControllerFacts;
use super::heartbeat::client::Status;
use super::member::Member;
use super::ports::Leadership;
use super::watcher::Watcher;
use crate::cluster_state::ClusterState;
use crate::outbox::Outbox;

/// Broker 1 is all there is, the controller too, and there are no topics.
pub(crate) fn assignment(epoch: i32, version: i64) -> Assignment {
    let broker = RegisteredBroker {
        id: BrokerId(1),
        incarnation: Incarnation(1),
        rack: None,
        listeners: Vec::new(),
        health: BrokerHealth::Alive,
    };
    let slot = |slot| AssignedSlot { slot: SlotId(slot), leader: BrokerId(1), epoch: LeaderEpoch(1), previous: None };
    Assignment {
        controller_epoch: ControllerEpoch(epoch),
        assignment_version: AssignmentVersion(version),
        controller: BrokerId(1),
        controller_heartbeat: None,
        brokers: vec![broker],
        partitions: Vec::new(),
        consumer_groups: (0..COORDINATOR_SLOTS).map(slot).collect(),
    }
}

/// Without an assignment.
pub(super) fn volume() -> (TempDir, AssignmentFile) {
    let root = tempfile::tempdir().unwrap();
    std::fs::create_dir(root.path().join(CLUSTER_DIRECTORY)).unwrap();
    let file = AssignmentFile::new(&Roots::from(root.path()));
    (root, file)
}

/// What the admin endpoint sees of a broker of a cluster, as long as these say so.
pub(crate) struct Shown {
    pub(crate) status: Rc<Status>,
    pub(crate) leadership: watch::Sender<Leadership>,
    pub(crate) watcher: Rc<Watcher>,
    pub(crate) controller: Rc<ControllerFacts>,
}

/// Broker 1, which has no volume.
pub(crate) fn shown(state: &Rc<RefCell<ClusterState>>, outbox: &Rc<Outbox>) -> (ClusterHealth, Shown) {
    let own = assignment(1, 1).brokers.remove(0);
    let (status, controller) = (Rc::new(Status::default()), Rc::new(ControllerFacts::default()));
    let (leadership, elected) = watch::channel(Leadership::Unknown);
    let (config, root) = (Arc::new(BrokerConfig::default()), std::path::PathBuf::new());
    let watcher = Watcher::new(AssignmentFile::new(&Roots::from(&root)), elected.clone());
    let member = Member::new(root, own.incarnation, Rc::clone(state), Rc::clone(outbox), Rc::clone(&status), config);
    let health = ClusterHealth {
        leadership: elected,
        assignment: watcher.accepted(),
        own,
        watcher: Rc::clone(&watcher),
        status: Rc::clone(&status),
        member,
        controller: Rc::clone(&controller),
    };
    (health, Shown { status, leadership, watcher, controller })
}

impl Shown {
    /// The broker follows it from now on.
    pub(crate) fn follow(&self, assignment: Assignment) {
        self.watcher.offer(assignment).unwrap();
    }

    /// The broker is elected, and has written an assignment.
    pub(crate) fn elect(&self, lease_transitions: i32, epoch: i32) {
        let act_until = Instant::now() + Duration::from_secs(10);
        self.leadership.send_replace(Leadership::Controller { lease_transitions, act_until });
        self.controller.epoch.set(Some(ControllerEpoch(epoch)));
        self.controller.written.set(1);
    }
}
