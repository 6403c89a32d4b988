//! What was promised so far, and whether everything that is seen keeps it.
//!
//! Every observation belongs to the leader epoch of whoever answered. A leader that was deposed and does not know it may
//! answer late and with little, but never with anything that a later epoch does not know.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Range;
use std::rc::Rc;
use std::time::Duration;

use kaas_core::env::MonotonicTime;
use kaas_core::env::sim::ProcessId;
use kaas_proto::types::LeaderEpoch;

use super::lasting::Lasting;
use super::payload::Payload;
use super::rising::Rising;
use super::run::short;

/// One record as a consumer sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    pub offset: i64,
    pub key: Rc<str>,
    /// No other record has it, so it stands for the record.
    pub value: Rc<str>,
    /// The leader epoch that wrote it.
    pub epoch: LeaderEpoch,
}

/// What held when a request was sent.
#[derive(Clone, Copy, Debug)]
pub struct Floor {
    high_watermark: i64,
    last_stable: i64,
    log_start: i64,
}

/// Where a leader says that its log ends and starts.
#[derive(Clone, Copy, Debug)]
pub struct Ends {
    pub high_watermark: i64,
    pub last_stable: i64,
    pub log_start: i64,
}

/// A record that somebody sends.
#[derive(Clone, Debug)]
pub(super) struct Sent {
    pub at: MonotonicTime,
    pub key: &'static str,
    pub is_tombstone: bool,
    /// The transaction that it belongs to.
    pub transaction: Option<u64>,
}

#[derive(Debug, Default)]
pub struct Oracle {
    violation: Option<String>,
    /// Everything that was acknowledged or shown, by offset.
    pub(super) records: BTreeMap<i64, (Rc<str>, Option<LeaderEpoch>)>,
    pub(super) places: HashMap<Rc<str>, i64>,
    pub(super) sent: HashMap<Rc<str>, Sent>,
    /// Those that have ended: whether they count.
    pub(super) transactions: HashMap<u64, bool>,
    high_watermarks: Rising,
    last_stable_offsets: Rising,
    log_starts: Rising,
    leaders: BTreeMap<LeaderEpoch, ProcessId>,
    /// The largest log start that somebody asked for.
    pub delete_up_to: i64,
    /// Records that are older may be gone.
    pub retention: Option<Duration>,
    /// What compaction must leave; `None` without compaction.
    pub lasting: Option<Lasting>,
    pub acknowledged: usize,
    pub reads: usize,
}

impl Oracle {
    /// The first thing that went wrong.
    pub fn violation(&self) -> Option<&str> {
        self.violation.as_deref()
    }

    pub fn violated(&mut self, what: String) {
        self.violation.get_or_insert(what);
    }

    /// The highest epoch that anybody has led with.
    pub fn newest_epoch(&self) -> LeaderEpoch {
        self.leaders.last_key_value().map_or(LeaderEpoch(0), |(&epoch, _)| epoch)
    }

    /// A broker says that it leads.
    pub fn leads(&mut self, epoch: LeaderEpoch, process: ProcessId) {
        let known = *self.leaders.entry(epoch).or_insert(process);
        if known != process {
            self.violated(format!("epoch {epoch} is led by process {} and by process {}", known.0, process.0));
        }
    }

    pub fn sends(&mut self, payload: &Payload, transaction: Option<u64>, now: MonotonicTime) {
        let Payload { ref name, key, is_tombstone } = *payload;
        self.sent.entry(Rc::clone(name)).or_insert(Sent { at: now, key, is_tombstone, transaction });
    }

    /// A transaction ends, from now on for good.
    pub fn decided(&mut self, transaction: u64, counts: bool) {
        self.transactions.insert(transaction, counts);
    }

    /// A producer is told that its record is stored.
    pub fn acknowledged(&mut self, offset: i64, value: &Rc<str>) {
        self.acknowledged += 1;
        self.holds("acknowledged", offset, value, None);
        // Whoever acknowledged it leads with the newest epoch, or with a lower one.
        self.high_watermarks.promised(self.newest_epoch(), offset + 1);
    }

    fn holds(&mut self, what: &str, offset: i64, value: &Rc<str>, epoch: Option<LeaderEpoch>) {
        let (known, known_epoch) = self.records.entry(offset).or_insert_with(|| (Rc::clone(value), epoch));
        if known != value {
            let violation = format!("{what} at offset {offset}: {}, but before it was {}", short(value), short(known));
            self.violated(violation);
            return;
        }
        match (*known_epoch, epoch) {
            (Some(before), Some(now)) if before != now => {
                self.violated(format!("{what} at offset {offset}: of epoch {now}, but before it was of {before}"));
            }
            (None, Some(_)) => *known_epoch = epoch,
            _ => {}
        }
        let place = *self.places.entry(Rc::clone(value)).or_insert(offset);
        if place != offset {
            self.violated(format!("{} is {what} at offset {offset}, and it is at offset {place} too", short(value)));
        }
        if !self.sent.contains_key(value) {
            self.violated(format!("{what} at offset {offset}: {}, which nobody sent", short(value)));
        }
    }

    /// A consumer that wants committed records only is shown one.
    pub fn counts(&mut self, record: &Record) {
        let Some(transaction) = self.sent.get(&record.value).and_then(|sent| sent.transaction) else { return };
        let (name, offset) = (short(&record.value), record.offset);
        let wrong = match self.transactions.get(&transaction) {
            Some(true) => return,
            Some(false) => format!("{name} at offset {offset} is shown, and its transaction was aborted"),
            None => format!("{name} at offset {offset} is shown, and its transaction has not ended"),
        };
        self.violated(wrong);
    }

    /// A request to a leader of this epoch is sent now.
    pub fn floor(&self, epoch: LeaderEpoch) -> Floor {
        Floor {
            high_watermark: self.high_watermarks.floor(epoch),
            last_stable: self.last_stable_offsets.floor(epoch),
            log_start: self.log_starts.floor(epoch),
        }
    }

    /// A leader shows its ends.
    pub fn sees_ends(&mut self, epoch: LeaderEpoch, floor: Floor, ends: Ends, now: MonotonicTime) {
        let Ends { high_watermark, last_stable, log_start } = ends;
        if high_watermark < floor.high_watermark || !self.high_watermarks.note(epoch, high_watermark) {
            self.violated(format!(
                "the high watermark of epoch {epoch} is {high_watermark}, it was {} already: {:?}",
                floor.high_watermark, self.high_watermarks
            ));
        }
        if last_stable < floor.last_stable || !self.last_stable_offsets.note(epoch, last_stable) {
            self.violated(format!(
                "the last stable offset of epoch {epoch} is {last_stable}, it was {} already: {:?}",
                floor.last_stable, self.last_stable_offsets
            ));
        }
        if log_start < floor.log_start || !self.log_starts.note(epoch, log_start) {
            self.violated(format!(
                "the log of epoch {epoch} starts at {log_start}, it was {} already: {:?}",
                floor.log_start, self.log_starts
            ));
        }
        let too_young = |&(_, (value, _)): &(&i64, &(Rc<str>, _))| {
            let age = self.sent.get(value).map(|sent| Duration::from_nanos(now.0 - sent.at.0));
            self.retention.is_none_or(|retention| age.is_some_and(|age| age < retention))
        };
        let kept = self.records.range(self.delete_up_to..log_start.max(self.delete_up_to)).find(too_young);
        if let Some((offset, _)) = kept {
            self.violated(format!("the log starts at {log_start}, but nobody wanted offset {offset} deleted"));
        }
    }

    /// A leader shows records.
    pub fn sees_records(&mut self, records: &[Record]) {
        self.reads += 1;
        for record in records {
            self.holds("shown", record.offset, &record.value, Some(record.epoch));
            if let Some(sent) = self.sent.get(&record.value)
                && *sent.key != *record.key
            {
                let (name, offset, sent) = (short(&record.value), record.offset, sent.key);
                self.violated(format!("{name} at offset {offset} has the key {}, it was sent with {sent}", record.key));
            }
        }
    }

    /// Something that is missing in `shown`, which a consumer got of `range`, and why it should be there.
    pub fn lacks(&self, range: Range<i64>, shown: &BTreeSet<i64>, now: MonotonicTime) -> Option<(i64, String)> {
        let is_missing = |offset: &i64| !shown.contains(offset);
        let mut known = self.records.range(range.clone()).filter(|(offset, _)| is_missing(offset));
        known.find_map(|(&offset, (name, _))| {
            let reason = self.must_last(offset, name, range.end, now)?;
            Some((offset, format!("{} at offset {offset} is missing: {reason}", short(name))))
        })
    }

    /// A leader of `epoch` says where an older epoch ends.
    pub fn sees_end_of_epoch(&mut self, wanted: LeaderEpoch, epoch: LeaderEpoch, end: i64) {
        let from = self.log_starts.floor(LeaderEpoch(i32::MAX));
        let wrong = self.records.range(from..).find(|&(&offset, &(_, of))| match of {
            Some(of) if of <= wanted => offset >= end,
            Some(_) => offset < end,
            None => false,
        });
        if let Some((offset, (_, of))) = wrong {
            let of = of.unwrap_or_default();
            self.violated(format!(
                "epoch {wanted} ends at {end} says the leader of {epoch}, but offset {offset} is of epoch {of}"
            ));
        }
    }

    /// Epochs that have written records that somebody saw.
    pub fn epochs_with_records(&self) -> Vec<LeaderEpoch> {
        let mut epochs: Vec<_> = self.records.values().filter_map(|(_, epoch)| *epoch).collect();
        epochs.dedup();
        epochs
    }

    /// The end of all that is known.
    pub fn end(&self) -> i64 {
        self.records.last_key_value().map_or(0, |(offset, _)| offset + 1)
    }

    /// Somebody is told that the log starts here.
    pub fn deleted(&mut self, log_start: i64) {
        self.log_starts.promised(self.newest_epoch(), log_start);
    }

    /// Producers count their records: in a whole log none is missing between two, and none comes too late.
    pub fn check_order(&mut self, records: &[Record]) {
        let mut last: HashMap<&str, u64> = HashMap::new();
        let mut wrong = None;
        for record in records {
            let Some((producer, sequence)) = record.value.strip_prefix('p').and_then(|value| value.split_once(':'))
            else {
                continue;
            };
            let sequence = sequence.split(':').next().and_then(|sequence| sequence.parse().ok()).unwrap_or_default();
            let follows = |before| if self.lasting.is_some() { sequence > before } else { sequence == before + 1 };
            if let Some(before) = last.insert(producer, sequence)
                && !follows(before)
            {
                wrong.get_or_insert(format!(
                    "producer {producer}: sequence {before} is followed by {sequence} at offset {}",
                    record.offset
                ));
            }
        }
        if let Some(wrong) = wrong {
            self.violated(wrong);
        }
    }
}
