//! The states of a group and the ways between them.

/// ```text
///            first join                everybody (re)joined, or time is up
///   ┌───────┐────────▶┌────────────────────┐────────▶┌─────────────────────┐
///   │ Empty │         │ PreparingRebalance │         │ CompletingRebalance │
///   └───────┘◀────────└────────────────────┘◀────────└─────────────────────┘
///             nobody       ▲                  join,             │ the leader's assignment
///             is left      │                  leave, expiry     ▼ is durable
///                          │                              ┌────────┐
///                          └──────────────────────────────│ Stable │
///                               join, leave, expiry       └────────┘
///   every state ────▶ Dead: deleted, or the slot is led elsewhere
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum GroupState {
    /// No members; offsets may be there. Answers a join by starting a round, all else with UNKNOWN_MEMBER_ID.
    Empty,
    /// Members are called to join again; those that did are parked. Heartbeats answer REBALANCE_IN_PROGRESS.
    PreparingRebalance,
    /// The next generation has begun; its members wait for the leader's assignment.
    CompletingRebalance,
    /// Everybody can have the assignment.
    Stable,
    /// Gone from this coordinator. Never left.
    Dead,
}

impl GroupState {
    /// Whether a group may go from one state to the other: the edges of the graph above.
    #[must_use]
    pub fn may_become(self, next: Self) -> bool {
        use GroupState::{CompletingRebalance, Dead, Empty, PreparingRebalance, Stable};
        match (self, next) {
            (Dead, _) => false,
            (_, Dead) => true,
            (Empty | CompletingRebalance | Stable, PreparingRebalance)
            | (PreparingRebalance, CompletingRebalance | Empty)
            | (CompletingRebalance, Stable) => true,
            _ => false,
        }
    }

    /// As Kafka spells it in DescribeGroups and ListGroups.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Empty => "Empty",
            Self::PreparingRebalance => "PreparingRebalance",
            Self::CompletingRebalance => "CompletingRebalance",
            Self::Stable => "Stable",
            Self::Dead => "Dead",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::GroupState::{self, CompletingRebalance, Dead, Empty, PreparingRebalance, Stable};

    #[test]
    fn only_the_drawn_edges_are_legal() {
        let all = [Empty, PreparingRebalance, CompletingRebalance, Stable, Dead];
        let legal: Vec<(GroupState, GroupState)> =
            all.iter().flat_map(|&from| all.map(|to| (from, to))).filter(|(from, to)| from.may_become(*to)).collect();
        assert_eq!(
            legal,
            [
                (Empty, PreparingRebalance),
                (Empty, Dead),
                (PreparingRebalance, Empty),
                (PreparingRebalance, CompletingRebalance),
                (PreparingRebalance, Dead),
                (CompletingRebalance, PreparingRebalance),
                (CompletingRebalance, Stable),
                (CompletingRebalance, Dead),
                (Stable, PreparingRebalance),
                (Stable, Dead),
            ]
        );
    }
}
