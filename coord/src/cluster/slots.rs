//! Which broker leads which coordinator slot.
//!
//! A slot belongs to a broker by its number and the number of brokers that were ever registered, dead ones included: so
//! groups stay where they are when a broker comes back. While it can't lead, a stand-in does, which depends on the slot
//! and on who is alive, and on nothing else.

use std::collections::BTreeSet;

use kaas_proto::types::{BrokerId, COORDINATOR_SLOTS};

/// The leader of each slot, all of them in `candidates`. `registered` is in order of id.
///
/// # Panics
/// If there is no candidate, or none is registered.
#[must_use]
pub fn slot_leaders(registered: &[BrokerId], candidates: &BTreeSet<BrokerId>) -> Vec<BrokerId> {
    let alive: Vec<BrokerId> = candidates.iter().copied().collect();
    let leader = |slot: usize| {
        let (owner, round) = (slot % registered.len(), slot / registered.len());
        let owner_id = registered[owner];
        if candidates.contains(&owner_id) { owner_id } else { alive[(owner + round) % alive.len()] }
    };
    (0..usize::from(COORDINATOR_SLOTS)).map(leader).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ids(ids: &[i32]) -> Vec<BrokerId> {
        ids.iter().copied().map(BrokerId).collect()
    }

    fn count(leaders: &[BrokerId], broker: i32) -> usize {
        leaders.iter().filter(|leader| leader.0 == broker).count()
    }

    #[test]
    fn slots_go_round_by_index() {
        let registered = ids(&[0, 1, 2]);
        let leaders = slot_leaders(&registered, &registered.iter().copied().collect());
        assert_eq!(leaders[..7], ids(&[0, 1, 2, 0, 1, 2, 0]));
        assert_eq!((count(&leaders, 0), count(&leaders, 1), count(&leaders, 2)), (17, 17, 16));
    }

    #[test]
    fn a_stand_in_takes_the_slots_of_the_dead_and_nothing_else_moves() {
        let registered = ids(&[0, 1, 2]);
        let all = slot_leaders(&registered, &registered.iter().copied().collect());
        let without = slot_leaders(&registered, &ids(&[0, 2]).into_iter().collect());
        for (before, after) in all.iter().zip(&without) {
            assert!(before.0 == 1 || before == after);
        }
        assert!(count(&without, 0).abs_diff(count(&without, 2)) <= 2, "they share what the dead one had");
        assert_eq!(slot_leaders(&registered, &ids(&[1]).into_iter().collect()), vec![BrokerId(1); 50]);
    }
}
