//! What the admin endpoint shows of a broker in a cluster. From memory alone: the volume may hang.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use kaas_proto::format::assignment::{Assignment, RegisteredBroker};
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::time::Instant;

use super::controller::ControllerFacts;
use super::heartbeat::client::Status;
use super::member::Member;
use super::ports::Leadership;
use super::watcher::Watcher;

/// What the admin endpoint shows beside what every broker has. Control thread.
pub(crate) struct ClusterHealth {
    pub(crate) leadership: watch::Receiver<Leadership>,
    pub(crate) assignment: watch::Receiver<Option<Arc<Assignment>>>,
    pub(crate) own: RegisteredBroker,
    pub(crate) watcher: Rc<Watcher>,
    pub(crate) status: Rc<Status>,
    pub(crate) member: Rc<Member>,
    pub(crate) controller: Rc<ControllerFacts>,
}

/// For metrics.
pub(crate) struct Numbers {
    pub(crate) controller: bool,
    pub(crate) connected: bool,
    pub(crate) followers_behind: usize,
    pub(crate) healthy: bool,
    pub(crate) controller_epoch: i32,
    pub(crate) assignment_version: i64,
    pub(crate) volume_silent: Duration,
    pub(crate) written: u64,
    pub(crate) rejected: u64,
    pub(crate) forgotten_releases: u64,
}

impl std::fmt::Debug for ClusterHealth {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ClusterHealth").field("own", &self.own).finish_non_exhaustive()
    }
}

impl ClusterHealth {
    /// Why this broker should not be sent clients, beside shards that are silent and partitions that are still to come.
    pub(crate) fn unready(&self) -> Option<&'static str> {
        let assignment = self.assignment.borrow();
        let row = assignment.as_ref().and_then(|assignment| assignment.broker(self.own.id));
        if self.status.is_draining() {
            Some("it is about to leave")
        } else if row.is_none_or(|row| row.incarnation != self.own.incarnation) {
            Some("no assignment knows this broker yet")
        } else {
            None
        }
    }

    pub(crate) fn numbers(&self) -> Numbers {
        let assignment = self.assignment.borrow();
        let (epoch, version) = assignment.as_ref().map(|assignment| assignment.generation()).unwrap_or_default();
        Numbers {
            controller: self.controller.epoch.get().is_some(),
            connected: self.status.is_connected(),
            followers_behind: self.controller.followers.borrow().iter().filter(|row| row.is_behind).count(),
            healthy: self.status.is_healthy(),
            controller_epoch: epoch.0,
            assignment_version: version.0,
            volume_silent: self.watcher.age(),
            written: self.controller.written.get(),
            rejected: self.watcher.rejected(),
            forgotten_releases: self.member.forgotten_releases(),
        }
    }

    pub(crate) fn show(&self) -> Value {
        let assignment = self.assignment.borrow();
        let election = match &*self.leadership.borrow() {
            Leadership::Unknown => json!({ "role": "unknown" }),
            Leadership::Follower { lease_transitions, controller } => json!({
                "role": "follower", "leaseTransitions": lease_transitions, "controller": controller.broker,
                "controllerAddress": &*controller.heartbeat,
            }),
            Leadership::Controller { lease_transitions, act_until } => json!({
                "role": "controller", "leaseTransitions": lease_transitions,
                "mayActForMs": millis(act_until.saturating_duration_since(Instant::now())),
            }),
        };
        let controller = &self.controller;
        let term = controller.epoch.get().map(|epoch| {
            json!({
                "epoch": epoch, "brokersConnected": controller.connected.get(),
                "assignmentsWritten": controller.written.get(),
                "lastWriteMs": millis(*controller.last_write.borrow()),
                "followers": controller.followers.borrow().iter().map(|row| json!({
                    "id": row.broker, "controllerEpoch": row.generation.0, "version": row.generation.1,
                    "behind": row.is_behind,
                })).collect::<Vec<_>>(),
            })
        });
        json!({
            "incarnation": self.own.incarnation.to_string(),
            "election": election,
            "term": term,
            "connectedToController": self.status.is_connected(),
            "controllerHeardMsAgo": self.status.controller_silent().map(millis),
            "healthy": self.status.is_healthy(),
            "draining": self.status.is_draining(),
            "assignment": assignment.as_ref().map(|assignment| json!({
                "controllerEpoch": assignment.controller_epoch,
                "version": assignment.assignment_version,
                "followedForMs": self.watcher.followed_for().map(millis),
                "controller": assignment.controller,
                "brokers": assignment.brokers.iter().map(|broker| json!({
                    "id": broker.id, "health": broker.health,
                })).collect::<Vec<_>>(),
            })),
            "volumeAnsweredMsAgo": millis(self.watcher.age()),
            "staleAssignmentsRejected": self.watcher.rejected(),
        })
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
