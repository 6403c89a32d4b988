//! Set-up that several tests share.

#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

use kaas_proto::format::assignment::{AssignedSlot, Assignment, BrokerHealth, RegisteredBroker};
use kaas_proto::layout::CLUSTER_DIRECTORY;
use kaas_proto::types::{
    AssignmentVersion, BrokerId, COORDINATOR_SLOTS, ControllerEpoch, Incarnation, LeaderEpoch, SlotId,
};
use tempfile::TempDir;

use super::assignment_file::AssignmentFile;

/// Broker 1 is all there is, the controller too, and there are no topics.
pub(super) fn assignment(epoch: i32, version: i64) -> Assignment {
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
    let file = AssignmentFile::new(root.path());
    (root, file)
}
