//! A segment, batch by batch, by the same rules as recovery.

use std::io;

use kaas_proto::record::batch::{self, field};
use kaas_proto::record::{BatchError, Compression, RecordBatchView};
use kaas_proto::types::{LeaderEpoch, Offset};
use kaas_proto::utc_time::UtcTime;
use serde_json::{Value, json};

use super::damage::Damage;
use super::printer::Printer;
use super::source::Source;
use super::window::Window;
use super::{InspectError, Kind, records, slot};
use crate::format::partition_file::{PartitionFile, TemporaryOf};
use crate::format::segment_name::SegmentName;
use crate::log::commit::MAX_BATCH_BYTES;

/// How often a bad byte is looked at again when the file changes meanwhile: a leader may be writing there.
const MAX_LOOKS: usize = 5;

/// What the batches so far demand of the next one.
#[derive(Debug)]
struct Expectation {
    /// `None` in front of the first batch of a file with a foreign name.
    offset: Option<Offset>,
    epoch: Option<LeaderEpoch>,
    /// Compaction leaves gaps and the epochs of before.
    compacted: bool,
}

impl Expectation {
    fn new(name: Option<SegmentName>) -> Self {
        let compacted = name.is_some_and(|name| name.generation > 0);
        Self {
            offset: name.map(|name| name.base_offset),
            epoch: name.filter(|_| !compacted).map(|name| name.epoch),
            compacted,
        }
    }

    fn check(&self, batch: RecordBatchView<'_>, position: u64) -> Result<(), Damage> {
        let base = batch.base_offset();
        if let Some(expected) = self.offset
            && (base < expected || (base > expected && !self.compacted))
        {
            let what = if self.compacted { "base offset of at least" } else { "base offset" };
            let bytes = (expected.0.to_be_bytes(), base.0.to_be_bytes());
            let text = [expected.to_string(), base.to_string()];
            return Err(Damage::number(position + field::BASE_OFFSET as u64, what, bytes, text));
        }
        let epoch = batch.partition_leader_epoch();
        if let Some(expected) = self.epoch.filter(|&expected| expected != epoch) {
            let bytes = (expected.0.to_be_bytes(), epoch.0.to_be_bytes());
            let text = [expected.to_string(), epoch.to_string()];
            return Err(Damage::number(position + field::PARTITION_LEADER_EPOCH as u64, "leader epoch", bytes, text));
        }
        if let Err(BatchError::Crc { stored, computed }) = batch.check_crc() {
            let covered = (position + field::ATTRIBUTES as u64, batch.size() - field::ATTRIBUTES);
            return Err(Damage::checksum(position + field::CRC as u64, (stored, computed), covered));
        }
        if batch.last_offset_delta() < 0 {
            let at = position + field::LAST_OFFSET_DELTA as u64;
            return Err(Damage::new(at, "a last offset delta of 0 or more", batch.last_offset_delta().to_string()));
        }
        Ok(())
    }

    fn next(&mut self, batch: RecordBatchView<'_>) {
        self.offset = Some(batch.next_offset());
        if !self.compacted {
            self.epoch = Some(batch.partition_leader_epoch());
        }
    }
}

/// What was seen of a segment.
#[derive(Debug, Default)]
struct Summary {
    batches: u64,
    records: u64,
    max_timestamp: Option<i64>,
    padding: u64,
}

pub(super) fn print(source: Source, records: bool, printer: &mut Printer<'_>) -> Result<(), InspectError> {
    let name = match source.file {
        Some(PartitionFile::Log(name) | PartitionFile::Temporary { of: TemporaryOf::Log(name), .. }) => Some(name),
        _ => None,
    };
    let mut segment = Walk {
        source: &source,
        window: Window::new(&source),
        expectation: Expectation::new(name),
        summary: Summary::default(),
        decoded: source.is_in_a_slot(),
        records,
    };
    let mut looks = 0;
    let damage = loop {
        let before = source.version().map_err(|error| source.failed(error))?;
        let Some(damage) = segment.run(printer)? else { break None };
        looks += 1;
        let after = source.version().map_err(|error| source.failed(error))?;
        if before == after || looks == MAX_LOOKS {
            break Some(damage);
        }
    };
    let Walk { expectation, summary, window, .. } = segment;
    if damage.is_some() && summary.batches == 0 && name.is_none() {
        return Err(InspectError::Foreign { path: source.path, kind: Kind::Segment });
    }
    printer.facts(
        "segment",
        &[
            ("file", source.path.display().to_string().into()),
            ("epoch", name.map_or(Value::Null, |name| name.epoch.0.into())),
            ("baseOffset", name.map_or(Value::Null, |name| name.base_offset.0.into())),
            ("generation", name.map_or(Value::Null, |name| name.generation.into())),
            ("nextOffset", expectation.offset.map_or(Value::Null, |offset| offset.0.into())),
            ("batches", summary.batches.into()),
            ("records", summary.records.into()),
            ("goodBytes", window.position().into()),
            ("paddingBytes", summary.padding.into()),
            ("maxTimestamp", summary.max_timestamp.map_or(Value::Null, Value::from)),
            ("maxTime", summary.max_timestamp.map_or(Value::Null, time)),
        ],
    )?;
    if let Some(damage) = damage {
        printer.damage(&damage)?;
    }
    Ok(())
}

/// A timestamp in words; null without one.
pub(super) fn time(timestamp: i64) -> Value {
    if timestamp < 0 { Value::Null } else { UtcTime(timestamp.into()).to_string().into() }
}

struct Walk<'source> {
    source: &'source Source,
    window: Window<'source>,
    expectation: Expectation,
    summary: Summary,
    /// Records of a coordinator slot are printed as what they mean.
    decoded: bool,
    records: bool,
}

impl Walk<'_> {
    /// Prints batches up to the end or the first bad byte. The window is left behind the last good batch.
    fn run(&mut self, printer: &mut Printer<'_>) -> Result<Option<Damage>, InspectError> {
        self.window.look_again();
        let mut wanted = batch::HEADER_BYTES;
        loop {
            self.window.fill(wanted).map_err(|error| self.source.failed(error))?;
            let (bytes, position) = (self.window.bytes(), self.window.position());
            let damage = match RecordBatchView::read(bytes) {
                Err(BatchError::Empty) => return Ok(None),
                Err(BatchError::TooShort { needed, .. }) if !self.window.at_end() && needed <= MAX_BATCH_BYTES => {
                    wanted = needed;
                    continue;
                }
                Err(error) => damage_of(&error, position, bytes),
                Ok(batch) => match self.expectation.check(batch, position) {
                    Ok(()) => {
                        let bad_record = self.print_batch(batch, position, printer)?;
                        self.expectation.next(batch);
                        self.summary.note(batch);
                        let size = batch.size();
                        self.window.advance(size);
                        if bad_record.is_some() {
                            return Ok(bad_record);
                        }
                        wanted = batch::HEADER_BYTES;
                        continue;
                    }
                    Err(damage) => damage,
                },
            };
            let mut ahead = Window::at(self.source, position);
            let zeros = ahead.only_zeros().map_err(|error| self.source.failed(error))?;
            let Some(padding) = zeros else { return Ok(Some(damage)) };
            self.summary.padding = padding;
            return Ok(None);
        }
    }

    /// A batch, and what is in it if that is wanted; a checksum that is right does not make records readable.
    fn print_batch(
        &self,
        batch: RecordBatchView<'_>,
        position: u64,
        printer: &mut Printer<'_>,
    ) -> Result<Option<Damage>, InspectError> {
        // In a table records stand for themselves; programs get both.
        if printer.is_json() || !(self.decoded || self.records) {
            print_header(batch, position, printer)?;
        }
        let at = position + field::RECORDS as u64;
        if self.decoded && !batch.is_control() {
            slot::print(batch, at, self.records, printer)
        } else if self.records {
            records::print(batch, at, printer)
        } else {
            Ok(None)
        }
    }
}

fn print_header(batch: RecordBatchView<'_>, position: u64, printer: &mut Printer<'_>) -> io::Result<()> {
    let number = |value: i64| if batch.has_producer_id() { Value::from(value) } else { Value::Null };
    let flags = [
        ("transactional", batch.is_transactional()),
        ("control", batch.is_control()),
        ("logAppendTime", batch.is_log_append_time()),
    ];
    let flags: Vec<_> = flags.iter().filter(|(_, set)| *set).map(|(name, _)| *name).collect();
    let compression = match batch.compression() {
        Ok(Compression::None) => "none".to_owned(),
        Ok(compression) => format!("{compression:?}").to_ascii_lowercase(),
        Err(error) => error.to_string(),
    };
    printer.row(
        "batch",
        &[
            ("position", position.into()),
            ("bytes", batch.size().into()),
            ("baseOffset", batch.base_offset().0.into()),
            ("lastOffset", batch.last_offset().0.into()),
            ("records", batch.record_count().into()),
            ("epoch", batch.partition_leader_epoch().0.into()),
            ("maxTimestamp", batch.max_timestamp().0.into()),
            ("maxTime", time(batch.max_timestamp().0)),
            ("compression", compression.into()),
            ("producerId", number(batch.producer_id().0)),
            ("producerEpoch", number(batch.producer_epoch().0.into())),
            ("baseSequence", number(batch.base_sequence().into())),
            ("flags", json!(flags)),
            ("crc32c", format!("{:08x}", batch.crc()).into()),
        ],
    )
}

impl Summary {
    fn note(&mut self, batch: RecordBatchView<'_>) {
        self.batches += 1;
        self.records += u64::try_from(batch.record_count()).unwrap_or(0);
        self.max_timestamp = self.max_timestamp.max(Some(batch.max_timestamp().0));
    }
}

/// Bytes at `position` that do not even look like a batch.
fn damage_of(error: &BatchError, position: u64, bytes: &[u8]) -> Damage {
    let at = |place: usize| position + place as u64;
    let largest = MAX_BATCH_BYTES;
    match *error {
        BatchError::Magic(magic) => Damage::new(at(field::MAGIC), format!("magic {}", batch::MAGIC), magic.to_string()),
        BatchError::TooShort { needed, left } if needed <= MAX_BATCH_BYTES => Damage::new(
            at(left),
            format!("{needed} bytes of the batch that begins at byte {position}"),
            format!("the end of the file behind {left}"),
        ),
        BatchError::TooShort { needed, .. } => {
            Damage::new(at(field::BATCH_LENGTH), format!("a batch of at most {largest} bytes"), format!("{needed}"))
        }
        BatchError::Length(length) => {
            let least = batch::HEADER_BYTES - batch::LOG_OVERHEAD;
            Damage::new(at(field::BATCH_LENGTH), format!("a batch length of at least {least}"), length.to_string())
        }
        _ => Damage::new(position, "a record batch", super::damage::shown(bytes, 0)),
    }
}
