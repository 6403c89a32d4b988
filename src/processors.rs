//! Which processors the shards run on.

use kaas_core::env::probe;
use kaas_proto::types::ShardId;

/// The shards' share of the processors that this process may use.
#[derive(Clone, Debug)]
pub(crate) struct Processors {
    pub(crate) shards: u16,
    /// One for each shard; empty when there are more shards than processors: then none is pinned.
    pinned: Vec<usize>,
}

impl Processors {
    /// As many shards as wanted. Without a wish one for each allowed processor, as far as the cgroup's quota goes, but
    /// one of more than two is left to the control thread.
    pub(crate) fn of(wanted: Option<u16>) -> Self {
        Self::share(wanted, probe::allowed_cpus(), probe::cpu_quota())
    }

    fn share(wanted: Option<u16>, allowed: Vec<usize>, quota: Option<usize>) -> Self {
        let usable = allowed.len().min(quota.unwrap_or(usize::MAX)).max(1);
        let fitting = if usable > 2 { usable - 1 } else { usable };
        let shards = wanted.unwrap_or_else(|| u16::try_from(fitting).unwrap_or(u16::MAX));
        // The last processors: the first one takes most of the interrupts.
        let spare = allowed.len().checked_sub(usize::from(shards));
        let pinned = spare.map(|spare| allowed[spare..].to_vec()).unwrap_or_default();
        Self { shards, pinned }
    }

    pub(crate) fn cpu_of(&self, shard: ShardId) -> Option<usize> {
        self.pinned.get(usize::from(shard.0)).copied()
    }

    /// For the start line.
    pub(crate) fn in_words(&self) -> String {
        if self.pinned.is_empty() {
            return "not pinned: more shards than processors".to_owned();
        }
        self.pinned.iter().map(ToString::to_string).collect::<Vec<_>>().join(",")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn share(wanted: Option<u16>, allowed: usize, quota: Option<usize>) -> (u16, Vec<usize>) {
        let processors = Processors::share(wanted, (0..allowed).collect(), quota);
        (processors.shards, processors.pinned)
    }

    #[test]
    fn one_of_more_than_two_is_left_to_the_control_thread() {
        assert_eq!(share(None, 1, None), (1, vec![0]));
        assert_eq!(share(None, 2, None), (2, vec![0, 1]));
        assert_eq!(share(None, 4, None), (3, vec![1, 2, 3]));
        assert_eq!(share(None, 8, Some(3)), (2, vec![6, 7]));
    }

    #[test]
    fn a_wish_is_followed_and_pinned_where_that_is_possible() {
        assert_eq!(share(Some(1), 4, None), (1, vec![3]));
        assert_eq!(share(Some(3), 2, None), (3, vec![]));
    }
}
