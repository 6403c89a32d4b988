//! Who holds the Lease: decided here without I/O and without a clock, carried out by [`candidate`](super::candidate).
//!
//! ```text
//!            absent             it was given back, or was seen unchanged for its time
//!   Create ◀────────── Look ─────────────────────────────────────────────────▶ Claim, transitions + 1
//!     │                ▲ ▲ │                                                     │  │
//!     └── created ─────┘ │ │ it names this process                      conflict │  │ accepted
//!                        │ └─────────────────▶ Claim, same transitions ◀─┐ ◀─────┼──┤
//!                        │                       │        │ accepted:    │       │  │
//!                        ├───────── conflict ────┘        └── holding ───┘       │  │
//!                        └───────────────────────────────────────────────────────┘  │
//!   resign: ── it names this process ──▶ Release, same transitions ──▶ resigned     ▼
//!           ── it does not ────────────────────────────────────────▶ resigned    holding
//! ```
//!
//! What keeps two brokers from acting at a time:
//!
//! - Every write of the Lease names the version of the object that it was decided on, and the API server refuses it if that is
//!   no longer the current one. So of two that claim, one wins.
//! - A holder acts until [`Timings::renew_deadline`] after it *sent* its last accepted write. Another claims the Lease once it has seen it
//!   unchanged for as long as the Lease says, counted from when it *received* it. The former ends first, whatever the
//!   network does; wall clocks do not take part.
//! - A Lease that nobody holds is claimed at once only if it was given back. If it is new, its predecessor may have been
//!   deleted under a holder that acts still: it has to be seen for as long as any other.
//! - `leaseTransitions` goes above the highest ever seen, above the Lease's own, and above the floor that comes from
//!   `assignment.json`: so it does not rewind when the Lease is deleted.
//!
//! A holder is a process life, not a pod: a pod's name comes back after a restart, its incarnation does not.

use std::time::Duration;

use tokio::time::Instant;

/// How often things happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timings {
    /// `leaseDurationSeconds`: whoever has seen the Lease unchanged for so long may claim it.
    pub lease_duration: Duration,
    /// How long a holder acts after it sent its last accepted write. Below `lease_duration`.
    pub renew_deadline: Duration,
    /// Between two looks, and between two renewals.
    pub retry_period: Duration,
    /// What the pause grows to while requests fail.
    pub longest_pause: Duration,
}

impl Timings {
    /// The partitions of a controller that was killed wait for the Lease, those of another broker for three heartbeats: about as long. An API
    /// server that is away for longer costs little: brokers go on, and whoever is elected next leaves partitions where they are.
    pub const DEFAULT: Self = Self {
        lease_duration: Duration::from_secs(3),
        renew_deadline: Duration::from_secs(2),
        retry_period: Duration::from_millis(500),
        longest_pause: Duration::from_secs(8),
    };
}

/// A Lease that says longer than this is believed this long only: a typing error must not end elections for a day.
const LONGEST_LEASE: Duration = Duration::from_secs(120);

/// A look that is wanted soon comes after this part of the usual pause.
const HURRY: u32 = 5;

/// One life of one broker process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    /// `holderIdentity`: the pod's name.
    pub name: String,
    pub incarnation: String,
    /// `HOST:PORT` where it listens for heartbeats.
    pub heartbeat: String,
}

impl Holder {
    fn is(&self, other: &Self) -> bool {
        self.name == other.name && self.incarnation == other.incarnation
    }
}

/// One version of one object, as the API server names them. Every write makes another one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Version {
    /// Another one when the Lease was deleted and made anew. Without it an apply would bring back a Lease that was deleted.
    pub uid: String,
    pub resource_version: String,
}

/// What the Lease says, apart from times.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    pub version: Version,
    pub holder: Option<Holder>,
    pub transitions: i32,
    /// What the Lease itself says, if it does.
    pub lease_duration: Option<Duration>,
    /// Its last holder gave it back. Otherwise somebody may have held it who acts still: until it was deleted, or edited.
    pub released: bool,
}

/// A look at the Lease, or the answer to a write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    Present(Record),
    Absent,
    /// The Lease changed, appeared or vanished since it was looked at.
    Conflict,
    /// The request may have been carried out or not.
    Failed,
}

/// What is to be asked of the API server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    Look,
    /// Make a Lease that nobody holds.
    Create,
    /// Claim it, or renew the claim, with these transitions.
    Claim {
        version: Version,
        transitions: i32,
        acquired: bool,
    },
    /// Say that nobody holds it, with the same transitions.
    Release {
        version: Version,
        transitions: i32,
    },
}

/// What this process knows about who the controller is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Standing {
    Unknown,
    Follower { transitions: i32, holder: Holder },
    Holding { transitions: i32, act_until: Instant },
    Resigned,
}

#[derive(Clone, Debug)]
struct Seen {
    record: Record,
    /// When this version of it was received first.
    since: Instant,
}

/// Control thread. One candidate's view of the election.
#[derive(Debug)]
pub struct Election {
    me: Holder,
    timings: Timings,
    seen: Option<Seen>,
    /// The Lease is known not to be there.
    absent: bool,
    highest_transitions: i32,
    /// Until when this process may act, with which transitions.
    holding: Option<(i32, Instant)>,
    resigning: bool,
    resigned: bool,
    next_at: Instant,
    /// When the last answer came.
    answered_at: Instant,
    failures: u32,
    jitter: Jitter,
}

impl Election {
    /// `seed` makes the pauses of two candidates differ.
    ///
    /// # Panics
    /// If the deadline is not below the duration.
    #[must_use]
    pub fn new(me: Holder, timings: Timings, seed: u64, now: Instant) -> Self {
        assert!(timings.renew_deadline < timings.lease_duration, "a holder must stop before others may claim");
        Self {
            me,
            timings,
            seen: None,
            absent: false,
            highest_transitions: 0,
            holding: None,
            resigning: false,
            resigned: false,
            next_at: now,
            answered_at: now,
            failures: 0,
            jitter: Jitter(seed | 1),
        }
    }

    /// What to do next, and when. `None`: nothing any more. `floor` is the highest controller epoch that `assignment.json` has shown.
    ///
    /// # Panics
    /// After `i32::MAX` changes of controller.
    #[must_use]
    pub fn next(&self, now: Instant, floor: i32) -> Option<(Instant, Action)> {
        if self.resigned {
            return None;
        }
        let at = if self.resigning && self.failures == 0 { now } else { self.next_at };
        Some((at, self.action(now.max(at), floor)))
    }

    fn action(&self, now: Instant, floor: i32) -> Action {
        if self.absent {
            return if self.resigning { Action::Look } else { Action::Create };
        }
        let Some(seen) = &self.seen else { return Action::Look };
        let version = seen.record.version.clone();
        let transitions = seen.record.transitions;
        match &seen.record.holder {
            Some(holder) if holder.is(&self.me) => {
                if self.resigning {
                    Action::Release { version, transitions }
                } else {
                    Action::Claim { version, transitions, acquired: false }
                }
            }
            _ if now < self.expires(seen) || self.resigning => Action::Look,
            _ => {
                let highest = transitions.max(self.highest_transitions).max(floor);
                let transitions = highest.checked_add(1).expect("changes of controller do not reach i32::MAX");
                Action::Claim { version, transitions, acquired: true }
            }
        }
    }

    /// When others may claim it.
    fn expires(&self, seen: &Seen) -> Instant {
        if seen.record.holder.is_none() && seen.record.released {
            return seen.since;
        }
        let duration = seen.record.lease_duration.unwrap_or(self.timings.lease_duration);
        seen.since + duration.clamp(self.timings.lease_duration, LONGEST_LEASE.max(self.timings.lease_duration))
    }

    /// Takes note of an answer to `action`, which was sent at `sent`.
    pub fn answered(&mut self, action: &Action, answer: Answer, sent: Instant, now: Instant) {
        let failed = answer == Answer::Failed;
        match answer {
            Answer::Present(record) => self.present(action, record, sent, now),
            Answer::Absent => {
                self.absent = true;
                self.seen = None;
                self.holding = None;
            }
            // Looked at afresh, at once. Whoever holds it keeps what the last accepted write gave it.
            Answer::Conflict => {
                self.seen = None;
                self.absent = false;
            }
            // A write that was carried out after all shows as a conflict when it is tried again.
            Answer::Failed => self.absent = false,
        }
        self.answered_at = now;
        self.failures = if failed { self.failures.saturating_add(1) } else { 0 };
        if self.resigning {
            self.holding = None;
            self.resigned |= self.concluded();
        }
        self.next_at = now + self.pause(action, now);
    }

    fn present(&mut self, action: &Action, record: Record, sent: Instant, now: Instant) {
        self.absent = false;
        self.highest_transitions = self.highest_transitions.max(record.transitions);
        let mine = record.holder.as_ref().is_some_and(|holder| holder.is(&self.me));
        match action {
            Action::Claim { transitions, .. } if mine => {
                self.holding = Some((*transitions, sent + self.timings.renew_deadline));
            }
            _ if !mine => self.holding = None,
            _ => {}
        }
        match &mut self.seen {
            Some(seen) if seen.record.version == record.version => {}
            _ => self.seen = Some(Seen { record, since: now }),
        }
    }

    /// Nothing of this process is in the Lease.
    fn concluded(&self) -> bool {
        let mine =
            self.seen.as_ref().and_then(|seen| seen.record.holder.as_ref()).is_some_and(|holder| holder.is(&self.me));
        self.absent || (self.seen.is_some() && !mine)
    }

    fn pause(&mut self, action: &Action, now: Instant) -> Duration {
        if self.failures > 0 {
            let doubled = self.timings.retry_period.saturating_mul(1 << (self.failures - 1).min(16));
            // A holder's time runs out: it tries as often as ever.
            let limit = if self.holding.is_some() { self.timings.retry_period } else { self.timings.longest_pause };
            return self.jitter.around(doubled.min(limit));
        }
        match &self.seen {
            // A conflict: look again. Two that collide do not do so in step.
            None if !self.absent => self.jitter.around(self.timings.retry_period / 20),
            None => Duration::ZERO,
            Some(seen) => match &seen.record.holder {
                Some(holder) if holder.is(&self.me) => {
                    // Seen as ours by a look: for how long still, only a write of our own tells.
                    let renewed = matches!(action, Action::Claim { .. });
                    if renewed { self.jitter.around(self.timings.retry_period) } else { Duration::ZERO }
                }
                _ if now >= self.expires(seen) => Duration::ZERO,
                _ => {
                    // Not long after it expires, if that is sooner than the next look. Claimants are spread.
                    let until = self.expires(seen).saturating_duration_since(now);
                    let period = self.jitter.around(self.timings.retry_period);
                    let spread = self.jitter.around(self.timings.retry_period / 10);
                    period.min(until.saturating_add(spread))
                }
            },
        }
    }

    /// The controller that the Lease named does not answer: it may name another one by now, or nobody. Looks sooner, but not much more
    /// often than ever, and never while the API server does not answer either.
    pub fn hurry(&mut self, now: Instant) {
        if self.failures == 0 && self.holding.is_none() && !self.resigning {
            let soonest = self.answered_at + self.timings.retry_period / HURRY;
            self.next_at = self.next_at.min(soonest.max(now));
        }
    }

    /// This process takes part no longer, and gives back what it holds.
    pub fn resign(&mut self) {
        self.resigning = true;
        self.holding = None;
        self.resigned |= self.concluded();
    }

    /// Gives up trying to give it back: others will see it expire.
    pub fn abandon(&mut self) {
        self.resigning = true;
        self.resigned = true;
        self.holding = None;
    }

    /// Who the controller is. A holder whose time is up is none.
    #[must_use]
    pub fn standing(&self, now: Instant) -> Standing {
        if self.resigned {
            return Standing::Resigned;
        }
        if let Some((transitions, act_until)) = self.holding
            && now < act_until
        {
            return Standing::Holding { transitions, act_until };
        }
        match &self.seen {
            Some(seen) if now < self.expires(seen) => match &seen.record.holder {
                Some(holder) if !holder.is(&self.me) => {
                    Standing::Follower { transitions: seen.record.transitions, holder: holder.clone() }
                }
                _ => Standing::Unknown,
            },
            _ => Standing::Unknown,
        }
    }

    /// Consecutive requests that failed.
    #[must_use]
    pub fn failures(&self) -> u32 {
        self.failures
    }

    /// When [`Self::standing`] changes by itself.
    #[must_use]
    pub fn changes_at(&self, now: Instant) -> Option<Instant> {
        match self.standing(now) {
            Standing::Holding { act_until, .. } => Some(act_until),
            Standing::Follower { .. } => self.seen.as_ref().map(|seen| self.expires(seen)),
            Standing::Unknown | Standing::Resigned => None,
        }
    }
}

/// Spreads what candidates do: a multiplier of 0.8 to 1.2 (xorshift64).
#[derive(Debug)]
struct Jitter(u64);

impl Jitter {
    fn around(&mut self, pause: Duration) -> Duration {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        let fraction = u32::try_from(self.0 >> 40).expect("24 bits");
        pause.mul_f64(0.8 + 0.4 * f64::from(fraction) / f64::from(1 << 24))
    }
}

#[cfg(test)]
#[path = "election_tests.rs"]
mod tests;
