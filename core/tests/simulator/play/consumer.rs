//! Consumers: they read what a broker shows, and hold it against everything that is known.

use std::collections::{BTreeSet, HashSet};

use kaas_core::partition::error::{FetchError, NotLeading};
use kaas_core::shard::operation::{Fetched, IsolationLevel};
use kaas_proto::record::{Batches, ControlRecordType, RecordBatchView, RecordSet};
use kaas_proto::types::{LeaderEpoch, ProducerId};

use super::broker::{Broker, Subject};
use super::cluster::Cluster;
use super::oracle::{Ends, Record};
use super::payload::name_of;

/// Longer than any record of a scenario.
const MAX_BATCH_BYTES: usize = 1 << 24;

/// What a consumer has got so far.
struct Reading {
    isolation: IsolationLevel,
    /// The records of a slot are nobody else's: only where they are counts.
    subject: Subject,
    next: i64,
    records: Vec<Record>,
    /// Whose records are skipped until their marker comes.
    aborting: HashSet<ProducerId>,
    ends: Ends,
    /// The first offsets that no batch has held.
    gap: Option<std::ops::Range<i64>>,
}

impl Reading {
    /// Where it ends.
    fn end(&self) -> i64 {
        match self.isolation {
            IsolationLevel::ReadUncommitted => self.ends.high_watermark,
            IsolationLevel::ReadCommitted => self.ends.last_stable,
        }
    }

    /// Takes what came in one answer, as a client of Kafka does.
    ///
    /// # Errors
    /// What came is garbage.
    fn take(&mut self, fetched: &Fetched) -> Result<Vec<Record>, String> {
        let mut aborted: Vec<_> = fetched.aborted.iter().rev().collect();
        let mut records = Vec::new();
        for batch in fetched.records.iter().flat_map(|part| Batches::new(part)) {
            let batch = batch.map_err(|error| error.to_string())?;
            batch.check_crc().map_err(|error| error.to_string())?;
            while let Some(transaction) = aborted.pop_if(|aborted| aborted.first_offset <= batch.last_offset()) {
                self.aborting.insert(transaction.producer_id);
            }
            if batch.base_offset().0 > self.next {
                self.gap.get_or_insert(self.next..batch.base_offset().0);
            }
            self.take_batch(batch, &mut records)?;
            self.next = self.next.max(batch.next_offset().0);
        }
        self.records.extend_from_slice(&records);
        Ok(records)
    }

    fn take_batch(&mut self, batch: RecordBatchView<'_>, records: &mut Vec<Record>) -> Result<(), String> {
        let producer = batch.producer_id();
        if self.subject == Subject::Slot {
            return Ok(());
        }
        if batch.is_control() {
            let kind = ControlRecordType::of(batch).map_err(|error| error.to_string())?;
            if kind == Some(ControlRecordType::Abort) {
                self.aborting.remove(&producer);
            }
            return Ok(());
        }
        let commits = self.isolation == IsolationLevel::ReadCommitted;
        if commits && batch.is_transactional() && self.aborting.contains(&producer) {
            return Ok(());
        }
        let set = RecordSet::read(batch, MAX_BATCH_BYTES).map_err(|error| error.to_string())?;
        for record in &set {
            let record = record.map_err(|error| error.to_string())?;
            let offset = set.offset(&record).0;
            if offset >= self.next {
                let key = String::from_utf8_lossy(record.key.unwrap_or_default()).into();
                let epoch = batch.partition_leader_epoch();
                records.push(Record { offset, key, value: name_of(&record), epoch });
            }
        }
        Ok(())
    }
}

impl Cluster {
    /// Reads what a broker shows from an offset on. The records, if it showed all up to its end.
    pub async fn read(&self, broker: &Broker, from: i64, isolation: IsolationLevel) -> Result<Vec<Record>, FetchError> {
        let epoch = broker.led.get().ok_or_else(not_here)?;
        let reading = self.read_on(broker, epoch, from, isolation).await?;
        self.look_for_gaps(broker, epoch, from, &reading).await;
        Ok(reading.records)
    }

    async fn read_on(
        &self,
        broker: &Broker,
        epoch: LeaderEpoch,
        from: i64,
        isolation: IsolationLevel,
    ) -> Result<Reading, FetchError> {
        let ends = Ends { high_watermark: 0, last_stable: 0, log_start: 0 };
        let subject = self.setup().subject;
        let (records, aborting) = (Vec::new(), HashSet::new());
        let mut reading = Reading { isolation, subject, next: from, records, aborting, ends, gap: None };
        loop {
            let floor = self.oracle(|oracle| oracle.floor(epoch));
            // A broker that was killed does not answer.
            let answer = broker.fetch(reading.next, epoch, isolation).await.map_err(|_| not_here())?.remove(0);
            let now = self.simulation().time().now();
            let fetched = match answer {
                Ok(fetched) => fetched,
                Err(FetchError::OffsetOutOfRange { log_start, .. })
                    if log_start.0 > reading.next && reading.records.is_empty() =>
                {
                    reading.next = log_start.0;
                    continue;
                }
                Err(error) => return Err(error),
            };
            reading.ends = Ends {
                high_watermark: fetched.high_watermark.0,
                last_stable: fetched.last_stable_offset.0,
                log_start: fetched.log_start_offset.0,
            };
            let before = reading.next;
            let records = match reading.take(&fetched) {
                Ok(records) => records,
                Err(error) => {
                    let garbage = format!("a consumer reads garbage at {before}: {error}");
                    self.oracle(|oracle| oracle.violated(garbage));
                    return Err(not_here());
                }
            };
            self.oracle(|oracle| {
                oracle.sees_ends(epoch, floor, reading.ends, now);
                oracle.sees_records(&records);
                if isolation == IsolationLevel::ReadCommitted {
                    records.iter().for_each(|record| oracle.counts(record));
                }
            });
            let end = reading.end();
            if reading.next < end && reading.next > before {
                continue;
            }
            if reading.next < end {
                self.oracle(|oracle| oracle.violated(format!("a consumer gets nothing at {before}, below {end}")));
            }
            let ends = reading.ends;
            let count = reading.records.len();
            self.simulation().note(format!("epoch {epoch} shows {count} records from {from}: {ends:?}"));
            return Ok(reading);
        }
    }

    /// Nothing is missing that must be there.
    async fn look_for_gaps(&self, broker: &Broker, epoch: LeaderEpoch, from: i64, reading: &Reading) {
        let Some((missing, _)) = self.lacks(from, reading) else {
            return self.look_for_holes(broker, epoch, reading).await;
        };
        // While it read, records may have been deleted, or replaced by others that were behind its end.
        let Ok(again) = self.read_on(broker, epoch, missing, reading.isolation).await else { return };
        if again.records.iter().any(|record| record.offset == missing) {
            let skipped = format!("a consumer did not get offset {missing} of epoch {epoch}, and it is there");
            self.oracle(|oracle| oracle.violated(skipped));
        } else if let Some((_, lack)) = self.lacks(missing, &again) {
            self.oracle(|oracle| oracle.violated(format!("epoch {epoch}: {lack}")));
        }
    }

    fn lacks(&self, from: i64, reading: &Reading) -> Option<(i64, String)> {
        let range = from.max(reading.ends.log_start)..reading.end();
        if range.is_empty() {
            return None;
        }
        let shown: BTreeSet<_> = reading.records.iter().map(|record| record.offset).collect();
        let now = self.simulation().time().now();
        self.oracle(|oracle| oracle.lacks(range, &shown, now))
    }

    /// Without compaction there is a batch for each offset, known or not, unless it was deleted meanwhile.
    async fn look_for_holes(&self, broker: &Broker, epoch: LeaderEpoch, reading: &Reading) {
        let Some(gap) = reading.gap.clone().filter(|_| self.oracle(|oracle| oracle.lasting.is_none())) else { return };
        let Ok(mut rows) = broker.fetch(gap.start, epoch, reading.isolation).await else { return };
        let is_there = match rows.remove(0) {
            Ok(_) => true,
            Err(FetchError::OffsetOutOfRange { log_start, .. }) => log_start.0 < gap.end,
            Err(_) => false,
        };
        if is_there {
            self.oracle(|oracle| oracle.violated(format!("a consumer does not get offsets {gap:?} of epoch {epoch}")));
        }
    }
}

fn not_here() -> FetchError {
    FetchError::NotLeading(NotLeading::NotHere)
}
