//! The last offset of each key in the dirty part of a log, in memory of a fixed size.
//!
//! Keys are not kept, only 128 bits of a keyed hash: two keys that share them would be taken for one, which nobody can
//! bring about without knowing the seeds. Pure.

use std::hash::{DefaultHasher, Hash, Hasher};

use kaas_proto::types::Offset;

/// Memory for one key.
pub const SLOT_BYTES: usize = size_of::<Slot>();

/// Of so many slots all but one may be filled: fuller tables take long to search.
const FILLED_OF: usize = 4;

/// The hash, and one more than the offset; zeros while it is empty: so the kernel gives the memory as it is filled, and
/// nobody waits for all of it at once.
type Slot = [u64; 3];
const EMPTY: Slot = [0; 3];

/// No more keys fit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MapFull;

/// See the module.
#[derive(Debug)]
pub struct OffsetMap {
    slots: Vec<Slot>,
    filled: usize,
    seeds: [u64; 2],
    end: Offset,
}

impl OffsetMap {
    /// A map that takes at most `budget_bytes`, and no more than `keys` keys need. Nobody outside may know the seeds.
    #[must_use]
    pub fn new(budget_bytes: usize, keys: u64, seeds: [u64; 2]) -> Self {
        let wanted = usize::try_from(keys).unwrap_or(usize::MAX).saturating_add(1).saturating_mul(FILLED_OF);
        let slots = (wanted / (FILLED_OF - 1) + 1).min(budget_bytes / SLOT_BYTES).max(FILLED_OF);
        Self { slots: vec![EMPTY; slots], filled: 0, seeds, end: Offset(0) }
    }

    /// Notes a record. Call it in order of offsets.
    ///
    /// # Errors
    /// The key is new, and there is no room for it.
    pub fn put(&mut self, key: &[u8], offset: Offset) -> Result<(), MapFull> {
        let hash = self.hash(key);
        let place = self.place(hash);
        if self.slots[place] == EMPTY {
            if self.filled * FILLED_OF >= self.slots.len() * (FILLED_OF - 1) {
                return Err(MapFull);
            }
            self.filled += 1;
        }
        self.slots[place] = [hash[0], hash[1], offset.0.unsigned_abs() + 1];
        Ok(())
    }

    /// The last offset of a key, if it was noted.
    #[must_use]
    pub fn get(&self, key: &[u8]) -> Option<Offset> {
        let one_more = self.slots[self.place(self.hash(key))][2];
        one_more.checked_sub(1).map(|offset| Offset(offset.cast_signed()))
    }

    /// Says that all records below `end` are noted.
    pub fn reached(&mut self, end: Offset) {
        self.end = end;
    }

    /// All records of the dirty part below are noted.
    #[must_use]
    pub fn end(&self) -> Offset {
        self.end
    }

    #[must_use]
    pub fn len(&self) -> usize {
        self.filled
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.filled == 0
    }

    /// What it takes of memory.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.slots.len() * SLOT_BYTES
    }

    fn hash(&self, key: &[u8]) -> [u64; 2] {
        self.seeds.map(|seed| {
            let mut hasher = DefaultHasher::new();
            seed.hash(&mut hasher);
            key.hash(&mut hasher);
            hasher.finish()
        })
    }

    /// Where the key is, or belongs.
    fn place(&self, hash: [u64; 2]) -> usize {
        let count = self.slots.len();
        let mut place = usize::try_from(hash[0] % count as u64).expect("below a usize");
        while self.slots[place] != EMPTY && self.slots[place][..2] != hash {
            place = (place + 1) % count;
        }
        place
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn it_takes_no_more_than_its_budget() {
        let mut map = OffsetMap::new(1 << 12, u64::MAX, [1, 2]);
        assert!(map.bytes() <= 1 << 12);
        let fit = (0..1000_u32).take_while(|key| map.put(&key.to_be_bytes(), Offset(1)).is_ok()).count();
        assert!((100..1000).contains(&fit), "{fit}");
        assert_eq!(map.put(b"one more", Offset(2)), Err(MapFull));
        assert_eq!(map.put(&0_u32.to_be_bytes(), Offset(3)), Ok(()), "known keys need no room");
        assert_eq!((map.get(&0_u32.to_be_bytes()), map.get(b"one more")), (Some(Offset(3)), None));
        let small = OffsetMap::new(1 << 30, 10, [1, 2]);
        assert!(small.bytes() < 1000, "and no more than is needed");
    }

    proptest! {
        #[test]
        fn it_is_a_map(keys in proptest::collection::vec(proptest::collection::vec(0..3_u8, 0..4), 0..200), seeds: [u64; 2]) {
            let mut map = OffsetMap::new(1 << 20, keys.len() as u64, seeds);
            let mut model = HashMap::new();
            for (offset, key) in (0..).map(Offset).zip(&keys) {
                prop_assert_eq!(map.put(key, offset), Ok(()));
                model.insert(key, offset);
            }
            prop_assert_eq!(map.len(), model.len());
            for (key, offset) in model {
                prop_assert_eq!(map.get(key), Some(offset));
            }
            prop_assert_eq!(map.get(b"no such key"), None);
        }
    }
}
