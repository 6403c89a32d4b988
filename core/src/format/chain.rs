//! Which epoch wrote which offsets: the one rule that every reader and every recovery follows.
//!
//! A chain is a list of `[epoch, start offset]`. Epoch `x` holds the offsets from its start up to the start of the
//! next entry; the last one is open. Only the chain in the manifest of the newest established epoch counts. Whatever
//! else lies on the volume is dead.

use kaas_proto::types::{LeaderEpoch, Offset};
use serde::{Deserialize, Serialize};
use thiserror::Error;

/// One epoch of a chain. Written as `[epoch, start]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "(LeaderEpoch, Offset)", into = "(LeaderEpoch, Offset)")]
pub struct ChainEntry {
    pub epoch: LeaderEpoch,
    pub start: Offset,
}

impl From<(LeaderEpoch, Offset)> for ChainEntry {
    fn from((epoch, start): (LeaderEpoch, Offset)) -> Self {
        Self { epoch, start }
    }
}

impl From<ChainEntry> for (LeaderEpoch, Offset) {
    fn from(entry: ChainEntry) -> Self {
        (entry.epoch, entry.start)
    }
}

/// Why a list of entries is no chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum InvalidChain {
    #[error("epoch {epoch} is negative or does not rise")]
    Epoch { epoch: LeaderEpoch },
    #[error("epoch {epoch} starts at {start}, below zero or below the epoch before it")]
    Start { epoch: LeaderEpoch, start: Offset },
}

/// Epochs rise strictly, starts never fall. Empty for a partition that nobody has led.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Vec<ChainEntry>")]
pub struct Chain(Vec<ChainEntry>);

impl TryFrom<Vec<ChainEntry>> for Chain {
    type Error = InvalidChain;

    fn try_from(entries: Vec<ChainEntry>) -> Result<Self, InvalidChain> {
        let mut before: Option<ChainEntry> = None;
        for &entry in &entries {
            let ChainEntry { epoch, start } = entry;
            if epoch.0 < 0 || before.is_some_and(|before| epoch <= before.epoch) {
                return Err(InvalidChain::Epoch { epoch });
            }
            if start < before.map_or(Offset(0), |before| before.start) {
                return Err(InvalidChain::Start { epoch, start });
            }
            before = Some(entry);
        }
        Ok(Self(entries))
    }
}

impl Chain {
    #[must_use]
    pub fn entries(&self) -> &[ChainEntry] {
        &self.0
    }

    #[must_use]
    pub fn last(&self) -> Option<ChainEntry> {
        self.0.last().copied()
    }

    /// The chain of a leader that takes over at `epoch` and found records up to `log_end`. Epochs that wrote nothing
    /// which counts drop out.
    ///
    /// # Errors
    /// When `epoch` is not above every epoch of the chain, or `log_end` is negative.
    pub fn extend(&self, epoch: LeaderEpoch, log_end: Offset) -> Result<Self, InvalidChain> {
        if let Some(last) = self.last()
            && epoch <= last.epoch
        {
            return Err(InvalidChain::Epoch { epoch });
        }
        let mut entries: Vec<_> = self.0.iter().copied().filter(|entry| entry.start < log_end).collect();
        entries.push(ChainEntry { epoch, start: log_end });
        Self::try_from(entries)
    }

    /// Without the epochs whose records all lie below `log_start`. The one that holds it stays as it is.
    #[must_use]
    pub fn trim(&self, log_start: Offset) -> Self {
        let gone = self.0.windows(2).take_while(|pair| pair[1].start <= log_start).count();
        Self(self.0[gone..].to_vec())
    }

    /// Where an epoch's offsets begin and end; an end of `None` is open. `None` for an epoch that is not in the chain.
    #[must_use]
    pub fn range_of(&self, epoch: LeaderEpoch) -> Option<(Offset, Option<Offset>)> {
        let index = self.0.binary_search_by_key(&epoch, |entry| entry.epoch).ok()?;
        Some((self.0[index].start, self.0.get(index + 1).map(|next| next.start)))
    }

    /// The epoch that wrote an offset at or above the chain's first start.
    #[must_use]
    pub fn epoch_of(&self, offset: Offset) -> Option<LeaderEpoch> {
        let behind = self.0.partition_point(|entry| entry.start <= offset);
        self.0[..behind].last().map(|entry| entry.epoch)
    }

    /// The answer to OffsetForLeaderEpoch, exactly as Kafka gives it: the largest epoch not above `wanted`, and where
    /// it ends. An epoch older than all of the chain ends where the chain begins; for one newer than all, or of an
    /// empty chain, there is no answer.
    #[must_use]
    pub fn end_offset_for(&self, wanted: LeaderEpoch, log_end: Offset) -> Option<(LeaderEpoch, Offset)> {
        let behind = self.0.partition_point(|entry| entry.epoch <= wanted);
        match (self.0[..behind].last(), self.0.get(behind)) {
            (Some(found), Some(next)) => Some((found.epoch, next.start)),
            (Some(found), None) if found.epoch == wanted => Some((wanted, log_end)),
            (None, Some(first)) => Some((wanted, first.start)),
            (Some(_) | None, None) => None,
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]
    use proptest::prelude::*;

    use super::*;

    pub(in crate::format) fn chain(entries: &[(i32, i64)]) -> Chain {
        let entries: Vec<_> = entries
            .iter()
            .map(|&(epoch, start)| ChainEntry { epoch: LeaderEpoch(epoch), start: Offset(start) })
            .collect();
        Chain::try_from(entries).unwrap()
    }

    pub(in crate::format) fn any_chain() -> impl Strategy<Value = Chain> {
        proptest::collection::vec((1..5_i32, 0..50_i64), 0..6).prop_map(|steps| {
            let (mut epoch, mut start) = (0, 0);
            let entries = steps.into_iter().map(|(more_epochs, more_offsets)| {
                epoch += more_epochs;
                start += more_offsets;
                (epoch, start)
            });
            chain(&entries.collect::<Vec<_>>())
        })
    }

    #[test]
    fn json_is_golden() {
        let chain = chain(&[(1, 0), (3, 100)]);
        assert_eq!(serde_json::to_string(&chain).unwrap(), "[[1,0],[3,100]]");
        assert_eq!(serde_json::from_str::<Chain>("[[1,0],[3,100]]").unwrap(), chain);
        for bad in [
            "[[1,0],[1,5]]",
            "[[2,0],[1,5]]",
            "[[1,5],[2,4]]",
            "[[-1,0]]",
            "[[1,-1]]",
            "[[2147483647,0],[2147483647,1]]",
        ] {
            assert!(serde_json::from_str::<Chain>(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn taking_over_extends() {
        assert_eq!(Chain::default().extend(LeaderEpoch(4), Offset(0)), Ok(chain(&[(4, 0)])));
        assert_eq!(chain(&[(4, 0)]).extend(LeaderEpoch(5), Offset(9)), Ok(chain(&[(4, 0), (5, 9)])));
        // Epoch 5 wrote nothing.
        assert_eq!(chain(&[(4, 0), (5, 9)]).extend(LeaderEpoch(7), Offset(9)), Ok(chain(&[(4, 0), (7, 9)])));
        assert_eq!(chain(&[(4, 0)]).extend(LeaderEpoch(5), Offset(0)), Ok(chain(&[(5, 0)])));
        let error = Err(InvalidChain::Epoch { epoch: LeaderEpoch(4) });
        assert_eq!(chain(&[(4, 0)]).extend(LeaderEpoch(4), Offset(9)), error);
    }

    #[test]
    fn retention_trims() {
        let full = chain(&[(1, 0), (2, 10), (4, 20)]);
        assert_eq!(full.trim(Offset(9)), full);
        assert_eq!(full.trim(Offset(10)), chain(&[(2, 10), (4, 20)]));
        assert_eq!(full.trim(Offset(19)), chain(&[(2, 10), (4, 20)]));
        assert_eq!(full.trim(Offset(1000)), chain(&[(4, 20)]));
        assert_eq!(Chain::default().trim(Offset(5)), Chain::default());
    }

    #[test]
    fn end_offsets_are_kafkas() {
        let chain = chain(&[(2, 5), (4, 20)]);
        let answer = |epoch| chain.end_offset_for(LeaderEpoch(epoch), Offset(33)).map(|(epoch, end)| (epoch.0, end.0));
        assert_eq!(answer(1), Some((1, 5)), "older than all");
        assert_eq!(answer(2), Some((2, 20)));
        assert_eq!(answer(3), Some((2, 20)), "between two");
        assert_eq!(answer(4), Some((4, 33)), "the current one");
        assert_eq!(answer(5), None, "newer than all");
        assert_eq!(Chain::default().end_offset_for(LeaderEpoch(0), Offset(0)), None);
    }

    proptest! {
        #[test]
        fn each_offset_has_the_epoch_whose_range_holds_it(chain in any_chain(), offset in 0..300_i64) {
            let offset = Offset(offset);
            let holding: Vec<_> = chain.entries().iter().map(|entry| entry.epoch).filter(|&epoch| {
                let (start, end) = chain.range_of(epoch).unwrap();
                start <= offset && end.is_none_or(|end| offset < end)
            }).collect();
            prop_assert!(holding.len() <= 1);
            prop_assert_eq!(chain.epoch_of(offset), holding.first().copied());
        }

        #[test]
        fn extending_changes_nothing_below_the_log_end(chain in any_chain(), end in 0..300_i64, offset in 0..300_i64) {
            let epoch = LeaderEpoch(chain.last().map_or(0, |last| last.epoch.0) + 1);
            let extended = chain.extend(epoch, Offset(end)).unwrap();
            if offset < end {
                prop_assert_eq!(extended.epoch_of(Offset(offset)), chain.epoch_of(Offset(offset)));
            } else {
                prop_assert_eq!(extended.epoch_of(Offset(offset)), Some(epoch));
            }
            prop_assert_eq!(serde_json::from_str::<Chain>(&serde_json::to_string(&extended).unwrap()).unwrap(), extended);
        }

        #[test]
        fn trimming_changes_nothing_above_the_log_start(chain in any_chain(), start in 0..300_i64, offset in 0..300_i64) {
            if offset >= start {
                prop_assert_eq!(chain.trim(Offset(start)).epoch_of(Offset(offset)), chain.epoch_of(Offset(offset)));
            }
        }
    }
}
