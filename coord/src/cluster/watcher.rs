//! Follows `assignment.json`: looks at once when told that there is a newer one, and once a second anyway.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use kaas_proto::format::assignment::Assignment;
use kaas_proto::types::{AssignmentVersion, ControllerEpoch};
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, timeout};

use super::assignment_file::AssignmentFile;
use super::ports::Leadership;
use crate::topics::blocking;

/// How often the file is looked at without being told to.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// Why an assignment is not followed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Stale {
    #[error("its controller epoch is {0}, and the controller of epoch {1} has written since")]
    Deposed(ControllerEpoch, ControllerEpoch),
    #[error("its version is {0}, and {1} of the same controller is followed already")]
    Older(AssignmentVersion, AssignmentVersion),
    #[error("its controller epoch is {0}, but the Lease has had {1} holders since the first")]
    BehindLease(ControllerEpoch, i32),
}

/// Whether an assignment may be followed by someone who follows `current`.
///
/// # Errors
/// It may not.
pub fn check_fresh(current: Option<&Assignment>, lease_transitions: i32, found: &Assignment) -> Result<(), Stale> {
    let (epoch, version) = found.generation();
    if epoch.0 < lease_transitions {
        return Err(Stale::BehindLease(epoch, lease_transitions));
    }
    match current.map(Assignment::generation) {
        Some((current, _)) if epoch < current => Err(Stale::Deposed(epoch, current)),
        Some((current, newest)) if epoch == current && version < newest => Err(Stale::Older(version, newest)),
        _ => Ok(()),
    }
}

/// Control thread: the assignment that this broker follows.
#[derive(Debug)]
pub struct Watcher {
    file: AssignmentFile,
    leadership: watch::Receiver<Leadership>,
    accepted: watch::Sender<Option<Arc<Assignment>>>,
    look: Notify,
    read_at: Cell<Instant>,
    accepted_at: Cell<Option<Instant>>,
    rejected: Cell<u64>,
}

impl Watcher {
    #[must_use]
    pub fn new(file: AssignmentFile, leadership: watch::Receiver<Leadership>) -> Rc<Self> {
        Rc::new(Self {
            file,
            leadership,
            accepted: watch::Sender::new(None),
            look: Notify::new(),
            read_at: Cell::new(Instant::now()),
            accepted_at: Cell::new(None),
            rejected: Cell::new(0),
        })
    }

    /// All that are accepted from now on.
    #[must_use]
    pub fn accepted(&self) -> watch::Receiver<Option<Arc<Assignment>>> {
        self.accepted.subscribe()
    }

    /// There may be a newer one.
    pub fn look(&self) {
        self.look.notify_one();
    }

    /// How long ago the volume has answered.
    #[must_use]
    pub fn age(&self) -> Duration {
        self.read_at.get().elapsed()
    }

    /// For how long the newest assignment has been followed.
    #[must_use]
    pub fn followed_for(&self) -> Option<Duration> {
        self.accepted_at.get().map(|at| at.elapsed())
    }

    /// How many were found that may not be followed.
    #[must_use]
    pub fn rejected(&self) -> u64 {
        self.rejected.get()
    }

    /// For ever. While the volume hangs, so does this; nothing else waits for it.
    pub async fn run(&self) {
        let mut known: Arc<Vec<u8>> = Arc::default();
        let mut complaint = String::new();
        loop {
            let (file, former) = (self.file.clone(), Arc::clone(&known));
            let found = blocking(move || {
                let bytes = file.read()?;
                // Content counts; times of a shared volume are other machines' times.
                Ok(bytes.filter(|bytes| *bytes != *former).map(|bytes| (Assignment::decode(&bytes), bytes)))
            });
            let found: Result<_, super::assignment_file::AssignmentFileError> = found.await;
            if found.is_ok() {
                self.read_at.set(Instant::now());
            }
            let said = match found {
                Ok(None) => None,
                Ok(Some((decoded, bytes))) => {
                    known = Arc::new(bytes);
                    match decoded {
                        Ok(assignment) => self.offer(assignment).err().map(|stale| stale.to_string()),
                        Err(error) => Some(error.to_string()),
                    }
                }
                Err(error) => Some(error.to_string()),
            };
            if let Some(said) = said.filter(|said| *said != complaint) {
                tracing::warn!("assignment.json is not followed, what was followed before still is: {said}");
                complaint = said;
            }
            let _ = timeout(POLL_INTERVAL, self.look.notified()).await;
        }
    }

    pub(super) fn offer(&self, found: Assignment) -> Result<(), Stale> {
        let lease_transitions = match &*self.leadership.borrow() {
            Leadership::Unknown => 0,
            Leadership::Follower { lease_transitions, .. } | Leadership::Controller { lease_transitions, .. } => {
                *lease_transitions
            }
        };
        let checked = check_fresh(self.accepted.borrow().as_deref(), lease_transitions, &found);
        match checked {
            Ok(()) => {
                self.accepted_at.set(Some(Instant::now()));
                self.accepted.send_replace(Some(Arc::new(found)));
            }
            Err(_) => self.rejected.set(self.rejected.get() + 1),
        }
        checked
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]
    use std::fs;

    use kaas_proto::layout::{ASSIGNMENT_FILE, CLUSTER_DIRECTORY};
    use tokio::task::LocalSet;

    use super::super::sample::{assignment, volume};
    use super::*;

    #[test]
    fn only_what_is_newer_is_followed() {
        let current = assignment(5, 10);
        let check = |lease, epoch, version| check_fresh(Some(&current), lease, &assignment(epoch, version));
        assert_eq!(check(0, 5, 11), Ok(()));
        assert_eq!(check(5, 6, 2), Ok(()), "the file was lost; a higher epoch counts");
        assert_eq!(check(0, 4, 99), Err(Stale::Deposed(ControllerEpoch(4), ControllerEpoch(5))));
        assert_eq!(check(0, 5, 9), Err(Stale::Older(AssignmentVersion(9), AssignmentVersion(10))));
        assert_eq!(check(7, 6, 11), Err(Stale::BehindLease(ControllerEpoch(6), 7)));
        assert_eq!(check_fresh(None, 0, &assignment(1, 1)), Ok(()));
    }

    #[tokio::test]
    async fn a_deposed_controllers_file_changes_nothing() {
        let (root, file) = volume();
        let path = root.path().join(CLUSTER_DIRECTORY).join(ASSIGNMENT_FILE);
        let (_leadership, receiver) = watch::channel(Leadership::Unknown);
        let watcher = Watcher::new(file, receiver);
        let mut accepted = watcher.accepted();
        let write = |content: Vec<u8>| {
            let temporary = path.with_extension("tmp");
            fs::write(&temporary, content).unwrap();
            fs::rename(&temporary, &path).unwrap();
            watcher.look();
        };
        let running = Rc::clone(&watcher);
        LocalSet::new()
            .run_until(async {
                tokio::task::spawn_local(async move { running.run().await });
                write(assignment(5, 10).encode());
                accepted.wait_for(Option::is_some).await.unwrap();
                write(b"{}".to_vec());
                write(assignment(4, 11).encode());
                while watcher.rejected() == 0 {
                    tokio::task::yield_now().await;
                }
                assert_eq!(accepted.borrow().as_ref().unwrap().controller_epoch, ControllerEpoch(5));
                write(assignment(6, 11).encode());
                let newer = |found: &Option<Arc<Assignment>>| found.as_ref().unwrap().controller_epoch.0 == 6;
                accepted.wait_for(newer).await.unwrap();
            })
            .await;
    }
}
