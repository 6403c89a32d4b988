//! Whether the reserve is in place: a file of zeros on the volume that is given up when the volume is full, so that
//! partitions can be taken over and topics deleted all the same.
//!
//! One task of the broker keeps the file; everybody else sees this, asks for the room, and waits. Nobody has to: where no
//! reserve is kept, records are accepted and there is nothing to give up.

use std::io::{Error, ErrorKind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::sync::watch;

use crate::control::PartitionKey;

/// Whether the volume has no room for a write: no block or inode is left, of all or of those that the broker may use.
#[must_use]
pub fn is_full(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::StorageFull | ErrorKind::QuotaExceeded)
}

/// How far the reserve is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ReserveState {
    /// Nobody keeps one: in memory there is none, and early in a start nobody does yet.
    #[default]
    Unkept,
    /// It was not looked for yet.
    Unknown,
    InPlace,
    /// Somebody needs the room: it is about to go.
    Wanted,
    /// It was given up, or there was no room for one.
    Missing,
}

impl ReserveState {
    /// Whether records are refused: what room there is belongs to takeovers and deletions.
    #[must_use]
    pub fn refuses_records(self) -> bool {
        matches!(self, Self::Wanted | Self::Missing)
    }

    /// When somebody needs the room.
    fn asked(self) -> Self {
        match self {
            Self::Unknown | Self::InPlace | Self::Wanted => Self::Wanted,
            Self::Unkept | Self::Missing => self,
        }
    }

    /// When the keeper has found or made it. Whoever asked meanwhile still needs the room.
    fn made(self) -> Self {
        if self == Self::Wanted { self } else { Self::InPlace }
    }

    /// When the keeper has removed it, or found no room for it.
    fn missed(self) -> Self {
        Self::Missing
    }
}

/// Crosses threads; clones are the same.
#[derive(Clone, Debug, Default)]
pub struct Reserve(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    state: watch::Sender<ReserveState>,
    /// Of the state; appends look at it without a lock.
    refuses_records: AtomicBool,
}

impl Reserve {
    /// Whether records are refused.
    #[must_use]
    pub fn refuses_records(&self) -> bool {
        self.0.refuses_records.load(Ordering::Relaxed)
    }

    #[must_use]
    pub fn state(&self) -> ReserveState {
        *self.0.state.borrow()
    }

    /// Has the reserve given up; does not wait. False: there is none.
    pub fn ask_for_room(&self) -> bool {
        self.change(ReserveState::asked) == ReserveState::Wanted
    }

    /// Has the reserve given up, and waits until it is. False: there was none.
    pub async fn make_room(&self) -> bool {
        let mut state = self.0.state.subscribe();
        if !self.ask_for_room() {
            return false;
        }
        // The sender is this very value.
        state.wait_for(|state| *state != ReserveState::Wanted).await.is_ok()
    }

    /// Completes when somebody needs the room.
    pub async fn wanted(&self) {
        // The sender is this very value.
        let _ = self.0.state.subscribe().wait_for(|state| *state == ReserveState::Wanted).await;
    }

    /// From now on it is kept.
    pub fn keep(&self) {
        self.change(|_| ReserveState::Unknown);
    }

    /// It was found or made.
    pub fn made(&self) {
        self.change(ReserveState::made);
    }

    /// It was removed, or there is no room for it.
    pub fn missed(&self) {
        self.change(ReserveState::missed);
    }

    /// Returns the state after the change.
    fn change(&self, next: impl FnOnce(ReserveState) -> ReserveState) -> ReserveState {
        let mut changed = ReserveState::default();
        self.0.state.send_if_modified(|state| {
            changed = next(*state);
            self.0.refuses_records.store(changed.refuses_records(), Ordering::Relaxed);
            std::mem::replace(state, changed) != changed
        });
        changed
    }
}

/// One reserve per volume. Clones are the same.
#[derive(Clone, Debug)]
pub struct Reserves {
    /// Of the volume of topics.
    pub data: Reserve,
    /// Of the volume of the cluster's own state, among which are the coordinator slots. It may be that of topics.
    pub cluster: Reserve,
}

impl Reserves {
    /// Two of them, for two volumes.
    #[must_use]
    pub fn apart() -> Self {
        Self { data: Reserve::default(), cluster: Reserve::default() }
    }

    /// Whether there are two.
    #[must_use]
    pub fn are_apart(&self) -> bool {
        !Arc::ptr_eq(&self.data.0, &self.cluster.0)
    }

    /// That of the volume on which a partition lies.
    #[must_use]
    pub fn of(&self, partition: PartitionKey) -> &Reserve {
        if partition.slot().is_some() { &self.cluster } else { &self.data }
    }
}

/// One for one volume.
impl From<Reserve> for Reserves {
    fn from(reserve: Reserve) -> Self {
        Self { data: reserve.clone(), cluster: reserve }
    }
}

impl Default for Reserves {
    fn default() -> Self {
        Reserve::default().into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::SlotId;

    #[test]
    fn a_full_volume_is_not_the_other_one() {
        let (slot, topic) = (PartitionKey::of_slot(SlotId(1)), PartitionKey::of_slot(SlotId(1)));
        let topic = PartitionKey { topic_id: crate::types::TopicId(*b"an id of a topic"), ..topic };
        let (together, apart) = (Reserves::default(), Reserves::apart());
        assert!(!together.are_apart() && apart.are_apart() && !together.clone().are_apart());
        for reserves in [&together, &apart] {
            reserves.data.keep();
            reserves.data.missed();
            assert!(reserves.of(topic).refuses_records());
        }
        assert!(together.of(slot).refuses_records() && !apart.of(slot).refuses_records());
    }

    #[test]
    fn records_are_refused_from_the_first_call_for_room_until_it_is_back() {
        let reserve = Reserve::default();
        assert!(!reserve.ask_for_room() && !reserve.refuses_records(), "nobody keeps one");
        reserve.keep();
        assert!(!reserve.refuses_records(), "nobody has looked yet");
        reserve.made();
        assert!(reserve.ask_for_room() && reserve.refuses_records());
        assert!(reserve.ask_for_room(), "it is on its way already");
        reserve.missed();
        assert!(!reserve.ask_for_room() && reserve.refuses_records(), "there is nothing more to give up");
        reserve.made();
        assert!(!reserve.refuses_records());
    }

    #[test]
    fn a_call_for_room_outlasts_what_the_keeper_finds() {
        let reserve = Reserve::default();
        reserve.keep();
        assert!(reserve.ask_for_room(), "there may be one");
        reserve.made();
        assert_eq!(reserve.state(), ReserveState::Wanted);
        reserve.missed();
        assert_eq!(reserve.state(), ReserveState::Missing);
    }

    #[test]
    fn a_quota_is_an_end_like_that_of_the_volume() {
        assert!(is_full(&Error::from_raw_os_error(28)) && is_full(&Error::from_raw_os_error(122)));
        assert!(!is_full(&Error::from_raw_os_error(5)), "a broken one is not full");
    }

    #[test]
    fn no_room_at_the_start_refuses_records_too() {
        let reserve = Reserve::default();
        reserve.keep();
        reserve.missed();
        assert!(reserve.refuses_records());
    }
}
