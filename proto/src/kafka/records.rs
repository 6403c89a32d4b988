//! [`Records`]: the record batches inside a Produce request or a Fetch response, as slices of where they come from.

use std::slice;

use bytes::Bytes;

/// Record batches as they are on the wire, in one or more parts that are sent one after the other.
#[derive(Clone, Debug, Default)]
pub struct Records(Parts);

#[derive(Clone, Debug, Default)]
enum Parts {
    #[default]
    Empty,
    One(Bytes),
    Many(Vec<Bytes>),
}

impl Records {
    /// Adds a part at the end.
    pub fn push(&mut self, part: Bytes) {
        self.0 = match std::mem::take(&mut self.0) {
            Parts::Empty => Parts::One(part),
            Parts::One(first) => Parts::Many(vec![first, part]),
            Parts::Many(mut parts) => {
                parts.push(part);
                Parts::Many(parts)
            }
        };
    }

    /// The parts, in order.
    #[must_use]
    pub fn parts(&self) -> &[Bytes] {
        match &self.0 {
            Parts::Empty => &[],
            Parts::One(part) => slice::from_ref(part),
            Parts::Many(parts) => parts,
        }
    }

    /// Bytes of all parts.
    #[must_use]
    pub fn len(&self) -> usize {
        self.parts().iter().map(Bytes::len).sum()
    }

    /// Whether there is not a single byte.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// All bytes in a row. Copies only if there is more than one part, which what was read from a frame never has.
    #[must_use]
    pub fn into_bytes(self) -> Bytes {
        match self.0 {
            Parts::Empty => Bytes::new(),
            Parts::One(part) => part,
            Parts::Many(parts) => parts.concat().into(),
        }
    }
}

impl From<Bytes> for Records {
    fn from(part: Bytes) -> Self {
        Self(if part.is_empty() { Parts::Empty } else { Parts::One(part) })
    }
}

impl From<Vec<Bytes>> for Records {
    fn from(parts: Vec<Bytes>) -> Self {
        Self(Parts::Many(parts))
    }
}

impl FromIterator<Bytes> for Records {
    fn from_iter<I: IntoIterator<Item = Bytes>>(parts: I) -> Self {
        let mut records = Self::default();
        parts.into_iter().for_each(|part| records.push(part));
        records
    }
}

/// Equal when the bytes are, however they are split.
impl PartialEq for Records {
    fn eq(&self, other: &Self) -> bool {
        let bytes = |records: &Self| records.parts().concat();
        bytes(self) == bytes(other)
    }
}

impl Eq for Records {}
