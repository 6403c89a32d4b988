//! One reply that is put together from several rows, each ready in its own time.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use tokio::sync::oneshot;

/// Collects rows and sends them when none is missing. Shard-local; the reply may go to another shard.
#[derive(Debug)]
pub struct Gather<T> {
    rows: RefCell<Vec<Option<T>>>,
    missing: Cell<usize>,
    reply: RefCell<Option<oneshot::Sender<Vec<T>>>>,
}

impl<T> Gather<T> {
    /// Waits for so many rows; replies at once to none.
    #[must_use]
    pub fn new(rows: usize, reply: oneshot::Sender<Vec<T>>) -> Rc<Self> {
        let gather = Rc::new(Self {
            rows: RefCell::new((0..rows).map(|_| None).collect()),
            missing: Cell::new(rows),
            reply: RefCell::new(Some(reply)),
        });
        gather.send_if_complete();
        gather
    }

    /// A row is known.
    ///
    /// # Panics
    /// If it was known before, or there is no such row.
    pub fn fill(&self, row: usize, value: T) {
        let former = self.rows.borrow_mut()[row].replace(value);
        assert!(former.is_none(), "row {row} is answered twice");
        self.missing.set(self.missing.get() - 1);
        self.send_if_complete();
    }

    fn send_if_complete(&self) {
        if self.missing.get() == 0
            && let Some(reply) = self.reply.take()
        {
            let rows = self.rows.take().into_iter().map(|row| row.expect("none is missing")).collect();
            // A requester that is gone needs no answer.
            drop(reply.send(rows));
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]
    use super::*;

    #[test]
    fn rows_come_in_any_order() {
        let (sender, mut receiver) = oneshot::channel();
        let gather = Gather::new(2, sender);
        gather.fill(1, "b");
        assert!(receiver.try_recv().is_err());
        gather.fill(0, "a");
        assert_eq!(receiver.try_recv().unwrap(), ["a", "b"]);
    }

    #[test]
    fn no_rows_are_complete_at_once() {
        let (sender, mut receiver) = oneshot::channel();
        drop(Gather::<u8>::new(0, sender));
        assert!(receiver.try_recv().unwrap().is_empty());
    }
}
