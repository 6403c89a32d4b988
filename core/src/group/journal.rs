//! What a slot has decided and not yet got onto stable storage: group commit and snapshots. Sync, shard-local.
//!
//! Writes queue, and all that have queued by the time the log takes the next batch go into it together. Several batches
//! may be on their way; they complete in the order of the log, and only then do their writes take effect.
//!
//! A snapshot writes every group once more, so that the log below its begin can go:
//! 1. `SnapshotBegin`; its offset is known when it is durable;
//! 2. chunk after chunk, each taken while nothing is on its way, because only then the ledger says all that the log
//!    does; other writes go on behind each chunk;
//! 3. `SnapshotEnd`; when it is durable, the records below the begin are deleted.
//!
//! A crash anywhere leaves a log that says the same: its records are absolute, and the start moves last.

use std::collections::{BTreeMap, VecDeque};

use bytes::Bytes;
use kaas_proto::kafka::messages::delete_groups::DeletableGroupResult;
use kaas_proto::kafka::messages::{OffsetCommitResponse, OffsetDeleteResponse};
use kaas_proto::record::BatchBuilder;
use kaas_proto::types::{Offset, TimestampMs};
use tokio::sync::oneshot;

use super::config::SnapshotPolicy;
use super::effect::AfterStore;
use super::ids::GroupId;
use super::ledger::Ledger;
use super::record::SlotRecord;
use crate::planted::{PlantedBug, is_planted};

/// Writes of about this many bytes go into one batch.
pub const BATCH_BYTES: usize = 1 << 20;
/// How many batches of a slot may be on their way at once.
pub const MAX_BATCHES_IN_FLIGHT: usize = 8;

/// Records that take effect together when they are durable, and who waits for that.
#[derive(Debug)]
pub(super) struct Write {
    pub(super) group: GroupId,
    pub(super) records: Vec<SlotRecord>,
    pub(super) then: Then,
}

/// What follows a write.
#[derive(Debug)]
pub(super) enum Then {
    Nothing,
    Membership(AfterStore),
    Commit { reply: oneshot::Sender<OffsetCommitResponse>, response: OffsetCommitResponse },
    DeleteOffsets { reply: oneshot::Sender<OffsetDeleteResponse>, response: OffsetDeleteResponse },
    DeleteGroup { reply: Option<oneshot::Sender<DeletableGroupResult>> },
}

/// A batch that the log has taken.
#[derive(Debug)]
enum Batch {
    Writes(Vec<Write>),
    SnapshotBegin,
    SnapshotChunk { is_last: bool },
    SnapshotEnd { begin: Offset },
}

#[derive(Debug)]
enum Snapshot {
    NotDue,
    /// The begin is on its way.
    Beginning,
    /// Some groups are still to be written. While a chunk is on its way, other writes go on.
    Writing {
        begin: Offset,
        groups: VecDeque<GroupId>,
        chunk: VecDeque<Bytes>,
        chunk_in_flight: bool,
        bytes: usize,
    },
    /// The end is on its way.
    Ending,
}

/// The writes of a slot.
#[derive(Debug)]
pub(super) struct Journal {
    queue: VecDeque<Write>,
    queued_bytes: usize,
    in_flight: VecDeque<Batch>,
    /// How many writes of a group are queued or on their way.
    open: BTreeMap<GroupId, usize>,
    policy: SnapshotPolicy,
    snapshot: Snapshot,
    bytes_since_snapshot: usize,
    snapshot_bytes: usize,
}

/// What a completed batch leads to.
#[derive(Debug, Default)]
pub(super) struct Completed {
    /// To be applied if the batch succeeded, to be failed otherwise.
    pub(super) writes: Vec<Write>,
    /// The records below are superfluous now.
    pub(super) delete_below: Option<Offset>,
}

impl Journal {
    /// The journal of a slot whose log has this many bytes.
    pub(super) fn new(log_bytes: usize, policy: SnapshotPolicy) -> Self {
        Self {
            policy,
            queue: VecDeque::new(),
            queued_bytes: 0,
            in_flight: VecDeque::new(),
            open: BTreeMap::new(),
            snapshot: Snapshot::NotDue,
            bytes_since_snapshot: log_bytes,
            snapshot_bytes: 0,
        }
    }

    pub(super) fn push(&mut self, write: Write) {
        self.queued_bytes += bytes_of(&write);
        *self.open.entry(write.group.clone()).or_default() += 1;
        self.queue.push_back(write);
    }

    /// Bytes that wait for their batch.
    pub(super) fn queued_bytes(&self) -> usize {
        self.queued_bytes
    }

    /// Whether a write of the group has not completed yet.
    pub(super) fn has_open_writes(&self, group: &GroupId) -> bool {
        self.open.contains_key(group)
    }

    /// The next batch for the log, if there is something to write and it may go now.
    pub(super) fn next_batch(&mut self, ledger: &Ledger, now: TimestampMs) -> Option<Bytes> {
        if let Some(batch) = self.next_of_snapshot(ledger, now) {
            return Some(batch);
        }
        let holds_writes_back = matches!(&self.snapshot, Snapshot::Writing { chunk_in_flight: false, .. });
        if self.queue.is_empty() || holds_writes_back || self.in_flight.len() >= MAX_BATCHES_IN_FLIGHT {
            return None;
        }
        let mut builder = BatchBuilder::new();
        let mut writes = Vec::new();
        while builder.size() < BATCH_BYTES
            && let Some(write) = self.queue.pop_front()
        {
            self.queued_bytes -= bytes_of(&write);
            write.records.iter().for_each(|record| push_record(&mut builder, record, now));
            writes.push(write);
        }
        self.bytes_since_snapshot += builder.size();
        self.in_flight.push_back(Batch::Writes(writes));
        Some(builder.build())
    }

    /// The oldest batch on its way has become durable at this offset, or has failed.
    pub(super) fn completed(&mut self, ledger: &Ledger, base_offset: Option<Offset>) -> Completed {
        let batch = self.in_flight.pop_front().expect("batches complete once, in order");
        let Some(base_offset) = base_offset else {
            return match batch {
                Batch::Writes(writes) => self.close_writes(writes),
                // The log goes on growing for a while; then the next attempt is due.
                _ => {
                    self.snapshot = Snapshot::NotDue;
                    self.bytes_since_snapshot = 0;
                    Completed::default()
                }
            };
        };
        match batch {
            Batch::Writes(writes) => return self.close_writes(writes),
            Batch::SnapshotBegin => {
                let groups = ledger.groups().map(|(id, _)| id.clone()).collect();
                let chunk = VecDeque::new();
                self.snapshot =
                    Snapshot::Writing { begin: base_offset, groups, chunk, chunk_in_flight: false, bytes: 0 };
                if is_planted(PlantedBug::SlotCutBeforeSnapshot) {
                    return Completed { writes: Vec::new(), delete_below: Some(base_offset) };
                }
            }
            Batch::SnapshotChunk { is_last } => {
                if let Snapshot::Writing { chunk_in_flight, .. } = &mut self.snapshot
                    && is_last
                {
                    *chunk_in_flight = false;
                }
            }
            Batch::SnapshotEnd { begin } => {
                self.snapshot = Snapshot::NotDue;
                return Completed { writes: Vec::new(), delete_below: Some(begin) };
            }
        }
        Completed::default()
    }

    /// All writes that have not completed, oldest first. Nothing follows.
    pub(super) fn drain(&mut self) -> Vec<Write> {
        let in_flight = self.in_flight.drain(..).flat_map(|batch| match batch {
            Batch::Writes(writes) => writes,
            _ => Vec::new(),
        });
        let writes = in_flight.chain(self.queue.drain(..)).collect();
        (self.open, self.queued_bytes, self.snapshot) = (BTreeMap::new(), 0, Snapshot::NotDue);
        writes
    }

    fn close_writes(&mut self, writes: Vec<Write>) -> Completed {
        for write in &writes {
            if let Some(count) = self.open.get_mut(&write.group) {
                *count -= 1;
                if *count == 0 {
                    self.open.remove(&write.group);
                }
            }
        }
        Completed { writes, delete_below: None }
    }

    /// The part of a snapshot that goes next.
    fn next_of_snapshot(&mut self, ledger: &Ledger, now: TimestampMs) -> Option<Bytes> {
        match &mut self.snapshot {
            Snapshot::NotDue => {
                let threshold = self.policy.after_bytes.max(2 * self.snapshot_bytes);
                if self.bytes_since_snapshot < threshold || self.in_flight.len() >= MAX_BATCHES_IN_FLIGHT {
                    return None;
                }
                (self.snapshot, self.bytes_since_snapshot) = (Snapshot::Beginning, 0);
                self.in_flight.push_back(Batch::SnapshotBegin);
                Some(batch_of(&[SlotRecord::SnapshotBegin], now))
            }
            Snapshot::Beginning | Snapshot::Ending => None,
            Snapshot::Writing { begin, groups, chunk, chunk_in_flight, bytes } => {
                if chunk.is_empty() && !*chunk_in_flight && self.in_flight.is_empty() {
                    *chunk = take_chunk(groups, ledger, now, self.policy.chunk_bytes);
                    *bytes += chunk.iter().map(Bytes::len).sum::<usize>();
                    if chunk.is_empty() {
                        let begin = *begin;
                        (self.snapshot_bytes, self.snapshot) = (*bytes, Snapshot::Ending);
                        self.in_flight.push_back(Batch::SnapshotEnd { begin });
                        return Some(batch_of(&[SlotRecord::SnapshotEnd { begin }], now));
                    }
                }
                let batch = chunk.pop_front()?;
                *chunk_in_flight = chunk.is_empty();
                self.in_flight.push_back(Batch::SnapshotChunk { is_last: chunk.is_empty() });
                Some(batch)
            }
        }
    }
}

/// The next groups of a snapshot, as batches that have to follow one another. Empty when there are none left.
fn take_chunk(
    groups: &mut VecDeque<GroupId>,
    ledger: &Ledger,
    now: TimestampMs,
    chunk_bytes: usize,
) -> VecDeque<Bytes> {
    let mut batches = VecDeque::new();
    let mut builder = BatchBuilder::new();
    let mut full_bytes = 0;
    let mut is_empty = true;
    while (is_empty || full_bytes + builder.size() < chunk_bytes)
        && let Some(group) = groups.pop_front()
    {
        for record in ledger.records_of(&group) {
            push_record(&mut builder, &record, now);
            is_empty = false;
            if builder.size() >= BATCH_BYTES {
                full_bytes += builder.size();
                batches.push_back(std::mem::take(&mut builder).build());
            }
        }
    }
    if builder.count() > 0 {
        batches.push_back(builder.build());
    }
    batches
}

fn push_record(builder: &mut BatchBuilder, record: &SlotRecord, now: TimestampMs) {
    builder.push(now, Some(&record.key()), Some(&record.value()), &[]);
}

fn batch_of(records: &[SlotRecord], now: TimestampMs) -> Bytes {
    let mut builder = BatchBuilder::new();
    records.iter().for_each(|record| push_record(&mut builder, record, now));
    builder.build()
}

fn bytes_of(write: &Write) -> usize {
    write.records.iter().map(SlotRecord::size_hint).sum()
}
