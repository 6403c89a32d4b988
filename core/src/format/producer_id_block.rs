//! `__cluster/producer-ids/{block:016x}`: an empty file that claims a block of producer ids, made with `O_EXCL`.
//!
//! Never removed, and never used again after a restart: ids that were not given out are lost, of which there are enough.

/// How many producer ids one block holds.
pub const IDS_PER_BLOCK: i64 = 1000;

/// A block of producer ids: the n-th [`IDS_PER_BLOCK`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ProducerIdBlock(u64);

impl ProducerIdBlock {
    /// Where claiming begins: at one of so many blocks that nobody meets ids of before, all of which a double can represent, as some
    /// clients keep them.
    #[must_use]
    pub fn somewhere(random: u64) -> Self {
        Self(random % (1 << 42))
    }

    /// The block after this one; `None` when all ids of 63 bits are used up.
    #[must_use]
    pub fn next(self) -> Option<Self> {
        let next = Self(self.0 + 1);
        next.checked_first().map(|_| next)
    }

    /// The ids of this block.
    ///
    /// # Panics
    /// Never: no other way leads to a block whose ids do not fit.
    #[must_use]
    pub fn ids(self) -> std::ops::Range<i64> {
        let first = self.checked_first().expect("checked when the block was made");
        first..first + IDS_PER_BLOCK
    }

    fn checked_first(self) -> Option<i64> {
        let first = i64::try_from(self.0).ok()?.checked_mul(IDS_PER_BLOCK)?;
        first.checked_add(IDS_PER_BLOCK).map(|_| first)
    }

    #[must_use]
    pub fn file_name(self) -> String {
        format!("{:016x}", self.0)
    }

    /// None for a foreign name.
    #[must_use]
    pub fn parse(name: &str) -> Option<Self> {
        let block = Self(u64::from_str_radix(name, 16).ok()?);
        (block.file_name() == name && block.checked_first().is_some()).then_some(block)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]
    use super::*;

    #[test]
    fn names_are_golden() {
        let block = ProducerIdBlock::parse("000000000000001a").unwrap();
        assert_eq!(block.ids(), 26_000..27_000);
        assert_eq!(block.file_name(), "000000000000001a");
        assert_eq!(block.next().unwrap().file_name(), "000000000000001b");
        assert_eq!(ProducerIdBlock::somewhere(u64::MAX).ids(), 4_398_046_511_103_000..4_398_046_511_104_000);
        for foreign in ["", "1a", "000000000000001A", "+00000000000001a", "lost+found", "ffffffffffffffff"] {
            assert_eq!(ProducerIdBlock::parse(foreign), None, "{foreign}");
        }
    }
}
