//! What to do next for a partition: a pure function of what is wanted and what is.

use kaas_proto::types::LeaderEpoch;

use super::lifecycle::State;
use super::takeover::EpochChoice;

/// What the newest command wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wanted {
    /// Led here, at this epoch or, in a standalone broker, above all others.
    Lead(Option<LeaderEpoch>),
    /// Not led here; handed over in good order.
    Closed,
    /// Its topic is gone: closed, and nothing persisted.
    Abandoned,
    /// Nothing, until somebody says so: it was superseded.
    Parked,
}

/// What is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Situation {
    pub state: State,
    /// The epoch that is led, while it is led.
    pub led: Option<LeaderEpoch>,
    /// The highest epoch that was tried.
    pub attempted: Option<LeaderEpoch>,
}

/// What to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Nothing.
    Rest,
    TakeOver(EpochChoice),
    /// The same after a pause.
    TryAgain(EpochChoice),
    /// Drain, persist, close.
    Relinquish,
    /// Close, persist nothing.
    Abandon,
    /// Let go of what a failed or superseded leadership left.
    Close,
}

/// Decides. States that a task passes through on its way do not occur: there is one task, and it decides between its steps.
#[must_use]
pub fn next_action(wanted: Wanted, situation: Situation) -> Action {
    let Situation { state, led, attempted } = situation;
    let choice = |epoch: Option<LeaderEpoch>| epoch.map_or(EpochChoice::Above, EpochChoice::Exactly);
    match (wanted, state) {
        (Wanted::Parked, _) | (Wanted::Closed | Wanted::Abandoned, State::Closed) => Action::Rest,
        (Wanted::Lead(epoch), State::Closed | State::Superseded) => Action::TakeOver(choice(epoch)),
        (Wanted::Lead(Some(epoch)), State::Leading | State::Stalled) if led.is_some_and(|led| led < epoch) => {
            Action::Relinquish
        }
        (Wanted::Lead(_), State::Leading | State::Stalled) => Action::Rest,
        // Its own epoch is spent. In a standalone broker too: above whoever may have taken over meanwhile is not above us.
        (Wanted::Lead(epoch), State::Failed) => {
            let above = attempted.map(|attempted| LeaderEpoch(attempted.0.saturating_add(1)));
            Action::TryAgain(choice(above.max(epoch)))
        }
        (Wanted::Closed, State::Leading | State::Stalled) => Action::Relinquish,
        (Wanted::Closed | Wanted::Abandoned, State::Failed | State::Superseded) => Action::Close,
        (Wanted::Abandoned, State::Leading | State::Stalled) => Action::Abandon,
        (_, State::Fencing | State::Recovering | State::Establishing | State::Asking | State::Draining) => Action::Rest,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn act(wanted: Wanted, state: State) -> Action {
        let epoch = Some(LeaderEpoch(5));
        let led = matches!(state, State::Leading | State::Stalled | State::Draining).then_some(LeaderEpoch(5));
        next_action(wanted, Situation { state, led, attempted: epoch })
    }

    #[test]
    fn the_table() {
        use State::{Closed, Failed, Leading, Stalled, Superseded};
        let at = |epoch| Wanted::Lead(Some(LeaderEpoch(epoch)));
        let exactly = |epoch| EpochChoice::Exactly(LeaderEpoch(epoch));
        for (wanted, state, action) in [
            (at(7), Closed, Action::TakeOver(exactly(7))),
            (Wanted::Lead(None), Closed, Action::TakeOver(EpochChoice::Above)),
            (at(7), Superseded, Action::TakeOver(exactly(7))),
            (at(7), Leading, Action::Relinquish),
            (at(5), Leading, Action::Rest),
            (at(4), Leading, Action::Rest),
            (Wanted::Lead(None), Stalled, Action::Rest),
            (at(5), Failed, Action::TryAgain(exactly(6))),
            (at(9), Failed, Action::TryAgain(exactly(9))),
            (Wanted::Lead(None), Failed, Action::TryAgain(exactly(6))),
            (Wanted::Closed, Leading, Action::Relinquish),
            (Wanted::Closed, Stalled, Action::Relinquish),
            (Wanted::Closed, Failed, Action::Close),
            (Wanted::Closed, Superseded, Action::Close),
            (Wanted::Closed, Closed, Action::Rest),
            (Wanted::Abandoned, Leading, Action::Abandon),
            (Wanted::Abandoned, Failed, Action::Close),
            (Wanted::Abandoned, Closed, Action::Rest),
            (Wanted::Parked, Superseded, Action::Rest),
        ] {
            assert_eq!(act(wanted, state), action, "{wanted:?} in {state:?}");
        }
    }

    #[test]
    fn a_takeover_that_never_began_tries_again_as_it_was_told() {
        let situation = Situation { state: State::Failed, led: None, attempted: None };
        assert_eq!(next_action(Wanted::Lead(None), situation), Action::TryAgain(EpochChoice::Above));
    }
}
