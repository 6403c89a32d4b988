//! Budgets of bytes. Shard-local, though the counting is tokio's.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;

use kaas_proto::kafka::wire::MAX_REQUEST_ELEMENTS;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::limits::{
    MEDIUM_FRAME_BYTES, MEDIUM_REQUESTS_BYTES, SMALL_REQUESTS_BYTES, UNRESERVED_FRAME_BYTES, WORKING_BYTES_PER_ELEMENT,
};

/// Bytes taken from a budget; they return when it is dropped. `None`: nothing was taken.
pub(crate) type Lease = Option<OwnedSemaphorePermit>;

/// So many bytes for all users together.
#[derive(Clone, Debug)]
pub(crate) struct MemoryBudget {
    free: Arc<Semaphore>,
    limit: u32,
    /// How many wait for some.
    awaited: Rc<Cell<usize>>,
}

/// One who waits, until it is dropped.
struct Waiting(Rc<Cell<usize>>);

impl Drop for Waiting {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}

impl MemoryBudget {
    /// A budget of so many bytes, of which 4 GiB count at most.
    pub(crate) fn new(bytes: usize) -> Self {
        let limit = u32::try_from(bytes).unwrap_or(u32::MAX);
        Self { free: Arc::new(Semaphore::new(limit as usize)), limit, awaited: Rc::default() }
    }

    /// Takes bytes if they are there at once.
    pub(crate) fn try_reserve(&self, bytes: usize) -> Result<Lease, Exhausted> {
        self.free.clone().try_acquire_many_owned(self.clamp(bytes)).map(Some).map_err(|_| Exhausted)
    }

    /// Takes bytes, waiting for those who were first. Who holds a lease must not wait for another one.
    pub(crate) async fn reserve(&self, bytes: usize) -> Lease {
        self.awaited.set(self.awaited.get() + 1);
        let _waiting = Waiting(Rc::clone(&self.awaited));
        let permit = self.free.clone().acquire_many_owned(self.clamp(bytes)).await;
        Some(permit.expect("the semaphore is never closed"))
    }

    /// Whether somebody waits for some.
    pub(crate) fn is_awaited(&self) -> bool {
        self.awaited.get() > 0
    }

    /// Takes as many of the wanted bytes as there are, without waiting. Even with nothing left, `floor` is granted.
    pub(crate) fn grant(&self, wanted: usize, floor: usize) -> (usize, Lease) {
        let wanted = self.clamp(wanted) as usize;
        let granted = wanted.min(self.free.available_permits());
        let lease = self.try_reserve(granted).unwrap_or(None);
        (granted.max(floor.min(wanted)), lease)
    }

    fn clamp(&self, bytes: usize) -> u32 {
        u32::try_from(bytes).unwrap_or(u32::MAX).min(self.limit)
    }
}

/// Memory of requests, in classes of size: whoever announces a large request and does not send it holds up large
/// requests for a while, but neither small ones nor those of ordinary producers.
#[derive(Clone, Debug)]
pub(crate) struct RequestMemory {
    small: MemoryBudget,
    medium: MemoryBudget,
    large: MemoryBudget,
}

impl RequestMemory {
    /// So many bytes for large requests; the other classes have their own.
    pub(crate) fn new(large_bytes: usize) -> Self {
        Self {
            small: MemoryBudget::new(SMALL_REQUESTS_BYTES),
            medium: MemoryBudget::new(MEDIUM_REQUESTS_BYTES),
            large: MemoryBudget::new(large_bytes),
        }
    }

    /// Whether somebody waits for memory of requests.
    pub(crate) fn is_awaited(&self) -> bool {
        [&self.small, &self.medium, &self.large].iter().any(|budget| budget.is_awaited())
    }

    /// The budget of a request of this length.
    pub(crate) fn of(&self, length: usize) -> &MemoryBudget {
        if length <= UNRESERVED_FRAME_BYTES {
            &self.small
        } else if length <= MEDIUM_FRAME_BYTES {
            &self.medium
        } else {
            &self.large
        }
    }
}

/// What a large request is reckoned to take while it is worked on, before anything is known but its length.
pub(crate) fn working_bytes_of_frame(length: usize) -> usize {
    // Two bytes are the shortest element.
    working_bytes_of_elements((length / 2).min(MAX_REQUEST_ELEMENTS))
}

/// The same, when it is read.
pub(crate) fn working_bytes_of_elements(elements: usize) -> usize {
    elements * WORKING_BYTES_PER_ELEMENT
}

/// There is not enough left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Exhausted;

/// Gives back what a lease holds beyond `bytes`.
pub(crate) fn shrink(lease: &mut Lease, bytes: usize) {
    if let Some(permit) = lease
        && let Some(excess) = permit.num_permits().checked_sub(bytes)
    {
        drop(permit.split(excess));
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]
    use super::*;

    #[test]
    fn a_grant_takes_what_is_there_but_never_less_than_the_floor() {
        let budget = MemoryBudget::new(100);
        let (first, mut lease) = budget.grant(70, 10);
        assert_eq!(first, 70);
        let (second, other) = budget.grant(70, 10);
        assert_eq!(second, 30);
        assert_eq!(budget.grant(70, 10).0, 10);
        assert_eq!(budget.grant(5, 10).0, 5, "not more than wanted");
        assert_eq!(budget.try_reserve(1).unwrap_err(), Exhausted);
        shrink(&mut lease, 20);
        assert_eq!(budget.free.available_permits(), 50);
        shrink(&mut lease, 60);
        assert_eq!(budget.free.available_permits(), 50, "it only shrinks");
        drop((lease, other));
        assert_eq!(budget.free.available_permits(), 100);
    }

    #[test]
    fn more_than_all_waits_for_all() {
        let budget = MemoryBudget::new(100);
        let lease = futures_lite::future::block_on(budget.reserve(1000));
        assert_eq!(lease.unwrap().num_permits(), 100);
    }
}
