//! What was promised so far, and whether everything that is seen keeps it.
//!
//! Every observation belongs to the leader epoch of whoever answered. A leader that was deposed and does not know it may
//! answer late and with little, but never with anything that a later epoch does not know.

use std::collections::{BTreeMap, HashMap};
use std::rc::Rc;
use std::time::Duration;

use kaas_core::env::MonotonicTime;
use kaas_core::env::sim::ProcessId;
use kaas_proto::types::LeaderEpoch;

/// One record as a consumer sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    pub offset: i64,
    pub value: Rc<str>,
    /// The leader epoch that wrote it.
    pub epoch: LeaderEpoch,
}

/// The smallest and the largest that leaders of one epoch have shown.
#[derive(Clone, Copy, Debug)]
struct Range {
    low: i64,
    high: i64,
}

/// A number that never goes back, neither within an epoch nor from one to the next.
#[derive(Debug, Default)]
struct Rising(BTreeMap<LeaderEpoch, Range>);

impl Rising {
    /// The largest that epochs up to this one have shown.
    fn floor(&self, epoch: LeaderEpoch) -> i64 {
        self.0.range(..=epoch).map(|(_, range)| range.high).max().unwrap_or(0)
    }

    /// Takes note of what a leader shows; false if that contradicts another epoch.
    fn note(&mut self, epoch: LeaderEpoch, value: i64) -> bool {
        let range = self.0.entry(epoch).or_insert(Range { low: value, high: value });
        (range.low, range.high) = (range.low.min(value), range.high.max(value));
        let lower = self.0.range(..epoch).all(|(_, range)| range.high <= value);
        let higher = self.0.range(LeaderEpoch(epoch.0 + 1)..).all(|(_, range)| value <= range.low);
        lower && higher
    }
}

/// What held when a request was sent.
#[derive(Clone, Copy, Debug)]
pub struct Floor {
    high_watermark: i64,
    log_start: i64,
}

#[derive(Debug, Default)]
pub struct Oracle {
    violation: Option<String>,
    /// Everything that was acknowledged or shown, by offset.
    records: BTreeMap<i64, (Rc<str>, Option<LeaderEpoch>)>,
    places: HashMap<Rc<str>, i64>,
    sent: HashMap<Rc<str>, MonotonicTime>,
    high_watermarks: Rising,
    log_starts: Rising,
    leaders: BTreeMap<LeaderEpoch, ProcessId>,
    /// The largest log start that somebody asked for.
    pub delete_up_to: i64,
    /// Records that are older may be gone.
    pub retention: Option<Duration>,
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

    pub fn sends(&mut self, value: &Rc<str>, now: MonotonicTime) {
        self.sent.entry(Rc::clone(value)).or_insert(now);
    }

    /// A producer is told that its record is stored.
    pub fn acknowledged(&mut self, offset: i64, value: &Rc<str>) {
        self.acknowledged += 1;
        self.holds("acknowledged", offset, value, None);
        // Whoever acknowledged it leads with the newest epoch, or with a lower one.
        let newest = self.newest_epoch();
        let range = self.high_watermarks.0.entry(newest).or_insert(Range { low: i64::MAX, high: 0 });
        range.high = range.high.max(offset + 1);
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

    /// A request to a leader of this epoch is sent now.
    pub fn floor(&self, epoch: LeaderEpoch) -> Floor {
        Floor { high_watermark: self.high_watermarks.floor(epoch), log_start: self.log_starts.floor(epoch) }
    }

    /// A leader shows its ends.
    pub fn sees_ends(
        &mut self,
        epoch: LeaderEpoch,
        floor: Floor,
        high_watermark: i64,
        log_start: i64,
        now: MonotonicTime,
    ) {
        if high_watermark < floor.high_watermark || !self.high_watermarks.note(epoch, high_watermark) {
            self.violated(format!(
                "the high watermark of epoch {epoch} is {high_watermark}, it was {} already: {:?}",
                floor.high_watermark, self.high_watermarks
            ));
        }
        if log_start < floor.log_start || !self.log_starts.note(epoch, log_start) {
            self.violated(format!(
                "the log of epoch {epoch} starts at {log_start}, it was {} already: {:?}",
                floor.log_start, self.log_starts
            ));
        }
        let too_young = |&(_, (value, _)): &(&i64, &(Rc<str>, _))| {
            let age = self.sent.get(value).map(|sent| Duration::from_nanos(now.0 - sent.0));
            self.retention.is_none_or(|retention| age.is_some_and(|age| age < retention))
        };
        let kept = self.records.range(self.delete_up_to..log_start.max(self.delete_up_to)).find(too_young);
        if let Some((offset, _)) = kept {
            self.violated(format!("the log starts at {log_start}, but nobody wanted offset {offset} deleted"));
        }
    }

    /// A leader shows records: those from `from` on. Returns the first gap, if there is one.
    pub fn sees_records(&mut self, from: i64, records: &[Record]) -> Option<std::ops::Range<i64>> {
        self.reads += 1;
        let (mut expected, mut gap) = (from, None);
        for record in records {
            if record.offset != expected {
                gap.get_or_insert(expected..record.offset);
            }
            expected = record.offset + 1;
            self.holds("shown", record.offset, &record.value, Some(record.epoch));
        }
        gap
    }

    /// A leader of `epoch` says where an older epoch ends.
    pub fn sees_end_of_epoch(&mut self, wanted: LeaderEpoch, epoch: LeaderEpoch, end: i64) {
        let from = self.log_starts.0.values().map(|range| range.high).max().unwrap_or(0);
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
        let newest = self.newest_epoch();
        let range = self.log_starts.0.entry(newest).or_insert(Range { low: i64::MAX, high: 0 });
        range.high = range.high.max(log_start);
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
            if let Some(before) = last.insert(producer, sequence)
                && sequence != before + 1
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

fn short(value: &str) -> &str {
    &value[..value.len().min(30)]
}
