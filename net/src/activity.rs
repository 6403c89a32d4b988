//! What a connection is doing and since when, so that one task per shard can find those that do nothing.

use std::cell::Cell;
use std::time::Duration;

use kaas_core::env::MonotonicTime;

use crate::close_reason::CloseReason;
use crate::limits::{Limits, PRESSED_RECEIVE_TIMEOUT, PRESSED_SEND_TIMEOUT};

/// Whether others wait for memory.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Pressed {
    /// Of requests.
    pub(crate) requests: bool,
    /// Of responses.
    pub(crate) replies: bool,
}

impl Pressed {
    pub(crate) fn any(self) -> bool {
        self.requests || self.replies
    }
}

/// Shard-local; written by the connection, read by the sweep.
#[derive(Debug)]
pub(crate) struct Activity {
    /// Inside a request, waiting for more of it.
    receiving: Cell<bool>,
    /// Inside a response, waiting for the client to read it.
    sending: Cell<bool>,
    /// Holds memory for the request that it is receiving.
    reserved: Cell<bool>,
    /// Holds memory for the response that it is sending, or is in line for more.
    hinders: Cell<bool>,
    /// Requests that are read and not answered.
    requests: Cell<usize>,
    received_at: Cell<MonotonicTime>,
    sent_at: Cell<MonotonicTime>,
}

impl Activity {
    pub(crate) fn new(now: MonotonicTime) -> Self {
        Self {
            receiving: Cell::new(false),
            sending: Cell::new(false),
            reserved: Cell::new(false),
            hinders: Cell::new(false),
            requests: Cell::new(0),
            received_at: Cell::new(now),
            sent_at: Cell::new(now),
        }
    }

    /// Waits for bytes from now on, within a request or between two.
    pub(crate) fn receive(&self, now: MonotonicTime, within_request: bool) {
        self.receiving.set(within_request);
        self.received_at.set(now);
    }

    /// Whether memory is held for the request that is being received.
    pub(crate) fn set_reserved(&self, reserved: bool) {
        self.reserved.set(reserved);
    }

    /// Does not wait for the client, but for something of ours.
    pub(crate) fn pause(&self) {
        self.receiving.set(false);
    }

    /// Waits for room in the socket from now on, or no longer.
    pub(crate) fn send(&self, now: MonotonicTime, unsent: bool) {
        self.sending.set(unsent);
        self.sent_at.set(now);
    }

    /// Whether others may have to wait for memory until what is being sent is gone.
    pub(crate) fn set_hinders(&self, hinders: bool) {
        self.hinders.set(hinders);
    }

    pub(crate) fn set_requests(&self, requests: usize) {
        self.requests.set(requests);
    }

    /// Why the connection should end now, if it should.
    pub(crate) fn overdue(&self, now: MonotonicTime, limits: &Limits, pressed: Pressed) -> Option<CloseReason> {
        let since = |point: &Cell<MonotonicTime>| Duration::from_nanos(now.0.saturating_sub(point.get().0));
        let hinders = pressed.replies && self.hinders.get();
        let patience = limits.send_timeout.min(if hinders { PRESSED_SEND_TIMEOUT } else { Duration::MAX });
        if self.sending.get() && since(&self.sent_at) > patience {
            return Some(CloseReason::SlowReader);
        }
        let hinders = pressed.requests && self.reserved.get();
        let patience = limits.receive_timeout.min(if hinders { PRESSED_RECEIVE_TIMEOUT } else { Duration::MAX });
        if self.receiving.get() && since(&self.received_at) > patience {
            return Some(CloseReason::HalfRequest);
        }
        let last = since(&self.received_at).min(since(&self.sent_at));
        let idle = self.requests.get() == 0 && limits.connection_idle.is_some_and(|most| last > most);
        idle.then(|| if self.receiving.get() { CloseReason::HalfRequest } else { CloseReason::Idle })
    }
}

/// How often to look: a timeout is exceeded by a quarter at most.
pub(crate) fn sweep_interval(limits: &Limits) -> Duration {
    let shortest = limits.send_timeout.min(limits.receive_timeout);
    (limits.connection_idle.map_or(shortest, |idle| idle.min(shortest)) / 4).max(Duration::from_millis(1))
}

#[cfg(test)]
mod tests {
    use kaas_proto::config::broker::BrokerConfig;

    use super::*;

    const CALM: Pressed = Pressed { requests: false, replies: false };
    const PRESSED: Pressed = Pressed { requests: true, replies: false };
    const FULL: Pressed = Pressed { requests: false, replies: true };

    fn second(n: u64) -> MonotonicTime {
        MonotonicTime(n * 1_000_000_000)
    }

    #[test]
    fn each_kind_of_waiting_has_its_own_limit() {
        let limits = Limits::of(&BrokerConfig::default());
        let activity = Activity::new(second(0));
        assert_eq!(activity.overdue(second(600), &limits, CALM), None);
        assert_eq!(activity.overdue(second(601), &limits, CALM), Some(CloseReason::Idle));
        activity.set_requests(1);
        assert_eq!(activity.overdue(second(10_000), &limits, CALM), None, "a long poll or a rebalance");
        activity.receive(second(10_000), true);
        assert_eq!(activity.overdue(second(10_031), &limits, CALM), Some(CloseReason::HalfRequest));
        activity.receive(second(10_100), true);
        assert_eq!(activity.overdue(second(10_102), &limits, PRESSED), None, "it holds nothing that others wait for");
        activity.set_reserved(true);
        assert_eq!(activity.overdue(second(10_102), &limits, CALM), None);
        assert_eq!(activity.overdue(second(10_102), &limits, PRESSED), Some(CloseReason::HalfRequest));
        activity.receive(second(10_000), true);
        activity.pause();
        assert_eq!(activity.overdue(second(10_031), &limits, CALM), None, "waiting for memory");
        activity.send(second(10_031), true);
        assert_eq!(activity.overdue(second(10_033), &limits, FULL), None, "it holds nothing that others wait for");
        activity.set_hinders(true);
        assert_eq!(activity.overdue(second(10_033), &limits, PRESSED), None);
        assert_eq!(activity.overdue(second(10_033), &limits, FULL), Some(CloseReason::SlowReader));
        assert_eq!(activity.overdue(second(10_062), &limits, CALM), Some(CloseReason::SlowReader));
        activity.send(second(10_062), false);
        activity.set_requests(0);
        assert_eq!(activity.overdue(second(10_662), &limits, CALM), None);
        assert_eq!(activity.overdue(second(10_663), &limits, CALM), Some(CloseReason::Idle));
        assert_eq!(sweep_interval(&limits), Duration::from_millis(7500));
    }
}
