//! What may be missing between the start of a log and its end: nothing, unless the topic is compacted.
//!
//! Then a record may go when a later one of its key counts, a tombstone once it has been there for long enough, and what
//! belongs to an aborted transaction at any time. So the last record of each key is never missing.

use std::rc::Rc;
use std::time::Duration;

use kaas_core::env::MonotonicTime;

use super::oracle::{Oracle, Sent};

/// What the topic promises.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lasting {
    /// `delete.retention.ms`
    pub tombstones: Duration,
}

impl Oracle {
    /// Why a record must be among those that a log shows up to `end`; `None` if it may be missing.
    pub(super) fn must_last(&self, offset: i64, name: &Rc<str>, end: i64, now: MonotonicTime) -> Option<String> {
        let Some(lasting) = self.lasting else { return Some("nothing may be".to_owned()) };
        // What nobody sent is a violation already.
        let sent = self.sent.get(name)?;
        if sent.transaction.is_some_and(|transaction| self.transactions.get(&transaction) == Some(&false)) {
            return None;
        }
        let replaces = |later: &Sent| later.key == sent.key && self.may_count(later);
        let mut later = self.records.range(offset + 1..end).filter_map(|(_, (name, _))| self.sent.get(name));
        if later.any(replaces) {
            return None;
        }
        // The tombstone itself, or one that was not acknowledged and that nobody ever saw.
        let has_gone = |(name, tombstone): (&Rc<str>, &Sent)| {
            let is_later = self.places.get(name).is_none_or(|&place| (offset..end).contains(&place));
            let age = Duration::from_nanos(now.0 - tombstone.at.0);
            tombstone.is_tombstone && is_later && replaces(tombstone) && age >= lasting.tombstones
        };
        if self.sent.iter().any(has_gone) {
            return None;
        }
        let what = if sent.is_tombstone { "a young tombstone, and" } else { "it is" };
        Some(format!("{what} the last record of {}", sent.key))
    }

    /// Whether compaction may rely on a record.
    fn may_count(&self, sent: &Sent) -> bool {
        sent.transaction.is_none_or(|transaction| self.transactions.get(&transaction) == Some(&true))
    }
}
