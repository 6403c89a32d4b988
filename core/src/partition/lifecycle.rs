//! What a partition is doing on this shard: one state, the legal edges between them, one setter.
//!
//! ```text
//!              take over                                                   ask: no byte
//!   Closed ───────────────▶ Fencing ──▶ Recovering ──▶ Establishing ──▶ Asking ──▶ Leading ◀──▶ Stalled
//! ```
//!
//! That is the way there. Every way back, and every way aside:
//!
//! | from | to | when |
//! |---|---|---|
//! | `Fencing`, `Recovering`, `Establishing`, `Asking` | `Fencing` | overtaken, a standalone broker begins again above; or room was made on a full volume |
//! | `Fencing`, `Recovering`, `Establishing`, `Asking` | `Failed` | a step failed |
//! | `Fencing`, `Recovering`, `Establishing`, `Asking` | `Superseded` | somebody has this epoch or a higher one |
//! | `Fencing`, `Recovering`, `Establishing`, `Asking` | `Closed` | a newer command interrupts |
//! | `Leading`, `Stalled` | `Draining` | relinquish, or a takeover at a higher epoch |
//! | `Leading`, `Stalled`, `Draining` | `Failed` | a write or an ask failed |
//! | `Leading`, `Stalled`, `Draining` | `Superseded` | somebody has a higher epoch |
//! | `Leading`, `Stalled` | `Closed` | abandon |
//! | `Draining` | `Closed` | drained and persisted, or a newer command can't wait, or the volume hangs |
//! | `Failed` | `Fencing` | another try, at a higher epoch |
//! | `Failed` | `Superseded` | somebody has a higher epoch |
//! | `Superseded` | `Fencing` | a newer takeover |
//! | `Failed`, `Superseded` | `Closed` | relinquish or abandon |

use std::cell::Cell;

/// Shard-local.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum State {
    /// Known by name only; no handle is open. Answers: not here. Leaves with a takeover.
    Closed,
    /// Creates the own fence, looks for higher epochs, revokes lower fences. Answers: taking over.
    Fencing,
    /// Reads the newest chain and verifies the end of the log. Answers: taking over.
    Recovering,
    /// Writes the manifest of the new epoch. Answers: taking over.
    Establishing,
    /// Asks the own fence for the first time. Answers: taking over.
    Asking,
    /// Appends and reads.
    Leading,
    /// Leads, but a write, an ask or a file of its own has been hanging for too long: appends fail fast, reads go on. Heals by itself.
    Stalled,
    /// Accepts nothing more, waits for what is under way, persists, closes. Reads go on until then.
    Draining,
    /// The epoch ended with an unknown write, or a takeover did not succeed. Nothing is written until the partition has
    /// taken itself over at a higher epoch; what was acknowledged can still be read.
    Failed,
    /// Somebody else has a higher epoch. No handle is open, nothing is written. Leaves with a newer command.
    Superseded,
}

impl State {
    /// Every state.
    pub const ALL: [Self; 10] = [
        Self::Closed,
        Self::Fencing,
        Self::Recovering,
        Self::Establishing,
        Self::Asking,
        Self::Leading,
        Self::Stalled,
        Self::Draining,
        Self::Failed,
        Self::Superseded,
    ];

    /// Whether a partition may go from this state to `next`.
    #[must_use]
    pub fn may_become(self, next: Self) -> bool {
        use State::{
            Asking, Closed, Draining, Establishing, Failed, Fencing, Leading, Recovering, Stalled, Superseded,
        };
        match self {
            Closed => matches!(next, Fencing),
            // A standalone broker that was overtaken begins again; a newer command begins again or closes.
            Fencing => matches!(next, Recovering | Fencing | Failed | Superseded | Closed),
            Recovering => matches!(next, Establishing | Fencing | Failed | Superseded | Closed),
            Establishing => matches!(next, Asking | Fencing | Failed | Superseded | Closed),
            Asking => matches!(next, Leading | Fencing | Failed | Superseded | Closed),
            Leading => matches!(next, Stalled | Draining | Failed | Superseded | Closed),
            Stalled => matches!(next, Leading | Draining | Failed | Superseded | Closed),
            Draining => matches!(next, Failed | Superseded | Closed),
            Failed => matches!(next, Fencing | Superseded | Closed),
            Superseded => matches!(next, Fencing | Closed),
        }
    }

    /// Whether the partition is led here.
    #[must_use]
    pub fn is_leading(self) -> bool {
        matches!(self, Self::Leading | Self::Stalled | Self::Draining)
    }
}

/// The state of one partition, and its only setter.
#[derive(Debug)]
pub struct Lifecycle(Cell<State>);

impl Default for Lifecycle {
    fn default() -> Self {
        Self(Cell::new(State::Closed))
    }
}

impl Lifecycle {
    #[must_use]
    pub fn state(&self) -> State {
        self.0.get()
    }

    /// Goes on to `next`.
    ///
    /// # Panics
    /// When there is no such edge: somebody acts on what is no longer true.
    pub fn enter(&self, next: State) {
        let current = self.0.get();
        assert!(current.may_become(next), "a partition can't go from {current:?} to {next:?}");
        self.0.set(next);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_drawn_edges_are_legal() {
        use State::{
            Asking, Closed, Draining, Establishing, Failed, Fencing, Leading, Recovering, Stalled, Superseded,
        };
        let drawn: [(State, &[State]); 10] = [
            (Closed, &[Fencing]),
            (Fencing, &[Closed, Fencing, Recovering, Failed, Superseded]),
            (Recovering, &[Closed, Fencing, Establishing, Failed, Superseded]),
            (Establishing, &[Closed, Fencing, Asking, Failed, Superseded]),
            (Asking, &[Closed, Fencing, Leading, Failed, Superseded]),
            (Leading, &[Closed, Stalled, Draining, Failed, Superseded]),
            (Stalled, &[Closed, Leading, Draining, Failed, Superseded]),
            (Draining, &[Closed, Failed, Superseded]),
            (Failed, &[Closed, Fencing, Superseded]),
            (Superseded, &[Closed, Fencing]),
        ];
        let legal = State::ALL.map(|from| (from, State::ALL.into_iter().filter(|&to| from.may_become(to)).collect()));
        assert_eq!(legal, drawn.map(|(from, to)| (from, to.to_vec())));
    }

    #[test]
    fn only_a_takeover_leads() {
        let before_leading: Vec<_> = State::ALL.into_iter().filter(|state| state.may_become(State::Leading)).collect();
        assert_eq!(before_leading, [State::Asking, State::Stalled]);
        let before_stalled: Vec<_> = State::ALL.into_iter().filter(|state| state.may_become(State::Stalled)).collect();
        assert_eq!(before_stalled, [State::Leading]);
    }

    #[test]
    fn every_state_can_be_closed_and_ends_nowhere() {
        for state in State::ALL {
            assert!(state == State::Closed || state.may_become(State::Closed), "{state:?}");
            assert!(State::ALL.into_iter().any(|next| state.may_become(next)), "{state:?}");
        }
    }

    #[test]
    fn the_way_to_leading_is_in_order() {
        let lifecycle = Lifecycle::default();
        for next in [State::Fencing, State::Recovering, State::Establishing, State::Asking, State::Leading] {
            assert!(!lifecycle.state().may_become(State::Leading) || lifecycle.state() == State::Asking);
            lifecycle.enter(next);
        }
        assert!(!lifecycle.state().may_become(State::Fencing), "who leads drains or fails first");
    }

    #[test]
    #[should_panic(expected = "from Closed to Leading")]
    fn an_illegal_edge_panics() {
        Lifecycle::default().enter(State::Leading);
    }
}
