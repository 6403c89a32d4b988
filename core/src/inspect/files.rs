//! The files that are read whole: index, manifest, producers, fence, checkpoint.

use kaas_proto::format::sealed_json::{self, SealedJsonError};
use kaas_proto::types::LeaderEpoch;
use serde_json::{Value, json};

use super::damage::{self, Damage};
use super::printer::{Field, Printer};
use super::segment::time;
use super::source::Source;
use super::{InspectError, Kind};
use crate::format::checkpoint::{self, Checkpoint, CheckpointError};
use crate::format::fence::{Fence, RevokedBy};
use crate::format::index::{self, SegmentIndex};
use crate::format::manifest::{self, Manifest, ManifestError};
use crate::format::partition_file::{PartitionFile, TemporaryOf};
use crate::format::producer_snapshot::{self, ProducerSnapshot};
use crate::format::{SealedBinaryError, fence};

/// A file in memory, with what everybody prints of it.
struct Whole {
    source: Source,
    kind: Kind,
    bytes: Vec<u8>,
}

impl Whole {
    fn read(source: Source, kind: Kind) -> Result<Self, InspectError> {
        let bytes = source.read()?;
        Ok(Self { source, kind, bytes })
    }

    /// The epoch in the file's name; for a foreign name, whatever the content says.
    fn named_epoch(&self, of_content: impl FnOnce(&[u8]) -> Option<LeaderEpoch>) -> LeaderEpoch {
        let named = self.source.file.map(PartitionFile::epoch);
        named.or_else(|| of_content(&self.bytes)).unwrap_or_default()
    }

    fn facts(&self, printer: &mut Printer<'_>, fields: Vec<Field>) -> Result<(), InspectError> {
        let file = [("file", self.source.path.display().to_string().into()), ("bytes", self.bytes.len().into())];
        let kind = match self.kind {
            Kind::Segment => "segment",
            Kind::Index => "index",
            Kind::Manifest => "manifest",
            Kind::Producers => "producers",
            Kind::Fence => "fence",
            Kind::Checkpoint => "checkpoint",
        };
        Ok(printer.facts(kind, &file.into_iter().chain(fields).collect::<Vec<_>>())?)
    }

    /// A file of a foreign name is damaged only if it begins like one of ours.
    fn damaged(self, printer: &mut Printer<'_>, foreign: bool, damage: &Damage) -> Result<(), InspectError> {
        if foreign && self.source.file.is_none() {
            return Err(InspectError::Foreign { path: self.source.path, kind: self.kind });
        }
        self.facts(printer, Vec::new())?;
        Ok(printer.damage(damage)?)
    }

    /// Whether the file has more bytes than any of its kind.
    fn too_large(&self, limit: usize) -> Option<Damage> {
        let found = "more";
        (self.bytes.len() > limit).then(|| Damage::new(limit as u64, format!("no more than {limit} bytes"), found))
    }
}

fn is_foreign_binary(error: &SealedBinaryError) -> bool {
    matches!(error, SealedBinaryError::Empty | SealedBinaryError::Magic { .. } | SealedBinaryError::Truncated { .. })
}

/// A file of a binary format: what is in it, unless it is damaged, which is printed then.
fn read_binary<T>(
    source: Source,
    kind: Kind,
    limit_bytes: usize,
    printer: &mut Printer<'_>,
    decode: impl FnOnce(&[u8]) -> Result<T, SealedBinaryError>,
) -> Result<Option<(Whole, T)>, InspectError> {
    let whole = Whole::read(source, kind)?;
    if let Some(damage) = whole.too_large(limit_bytes) {
        return whole.damaged(printer, true, &damage).map(|()| None);
    }
    match decode(&whole.bytes) {
        Ok(content) => Ok(Some((whole, content))),
        Err(error) => {
            let damage = Damage::in_binary(&whole.bytes, &error);
            whole.damaged(printer, is_foreign_binary(&error), &damage).map(|()| None)
        }
    }
}

fn is_foreign_json(error: &SealedJsonError) -> bool {
    matches!(error, SealedJsonError::Empty | SealedJsonError::Unsealed | SealedJsonError::Content(_))
}

pub(super) fn print_index(source: Source, printer: &mut Printer<'_>) -> Result<(), InspectError> {
    let read = read_binary(source, Kind::Index, index::LIMIT_BYTES, printer, SegmentIndex::decode)?;
    let Some((whole, index)) = read else { return Ok(()) };
    whole.facts(
        printer,
        vec![
            ("baseOffset", index.base_offset.0.into()),
            ("nextOffset", index.next_offset.0.into()),
            ("coveredBytes", index.covered_bytes.into()),
            ("maxTimestamp", index.max_timestamp.0.into()),
            ("maxTime", time(index.max_timestamp.0)),
            ("offsetOfMaxTimestamp", index.offset_of_max_timestamp.0.into()),
            ("entries", index.entries().len().into()),
        ],
    )?;
    for entry in index.entries() {
        printer.row(
            "entry",
            &[
                ("offset", (index.base_offset.0 + i64::from(entry.relative_offset)).into()),
                ("position", entry.position.into()),
                ("maxTimestampBefore", entry.max_timestamp_before.0.into()),
                ("maxTimeBefore", time(entry.max_timestamp_before.0)),
            ],
        )?;
    }
    if let Some(PartitionFile::Index(name) | PartitionFile::Temporary { of: TemporaryOf::Index(name), .. }) =
        whole.source.file
        && name.base_offset != index.base_offset
    {
        let bytes = (name.base_offset.0.to_be_bytes(), index.base_offset.0.to_be_bytes());
        let text = [name.base_offset.to_string(), index.base_offset.to_string()];
        printer.damage(&Damage::number(index::BASE_OFFSET_AT, "the base offset of the name,", bytes, text))?;
    }
    Ok(())
}

pub(super) fn print_producers(source: Source, printer: &mut Printer<'_>) -> Result<(), InspectError> {
    let read = read_binary(source, Kind::Producers, producer_snapshot::LIMIT_BYTES, printer, ProducerSnapshot::decode)?;
    let Some((whole, snapshot)) = read else { return Ok(()) };
    whole.facts(
        printer,
        vec![
            ("offset", snapshot.offset.0.into()),
            ("producers", snapshot.producers.len().into()),
            ("aborted", snapshot.aborted.len().into()),
        ],
    )?;
    for producer in &snapshot.producers {
        let batches: Value = if printer.is_json() {
            let batch = |batch: &producer_snapshot::BatchEntry| {
                json!({
                    "firstSequence": batch.first_sequence,
                    "lastSequence": batch.last_sequence,
                    "baseOffset": batch.base_offset.0,
                    "timestamp": batch.timestamp.0,
                })
            };
            producer.batches.iter().map(batch).collect()
        } else {
            let batch = |batch: &producer_snapshot::BatchEntry| {
                format!("{}..{}@{}", batch.first_sequence, batch.last_sequence, batch.base_offset)
            };
            producer.batches.iter().map(batch).collect::<Vec<_>>().into()
        };
        printer.row(
            "producer",
            &[
                ("producerId", producer.producer_id.0.into()),
                ("producerEpoch", producer.producer_epoch.0.into()),
                ("coordinatorEpoch", producer.coordinator_epoch.into()),
                ("lastTimestamp", producer.last_timestamp.0.into()),
                ("lastTime", time(producer.last_timestamp.0)),
                ("openTransaction", producer.open_transaction.map_or(Value::Null, |offset| offset.0.into())),
                ("batches", batches),
            ],
        )?;
    }
    for aborted in &snapshot.aborted {
        printer.row(
            "abortedTransaction",
            &[
                ("producerId", aborted.producer_id.0.into()),
                ("firstOffset", aborted.first_offset.0.into()),
                ("markerOffset", aborted.marker_offset.0.into()),
            ],
        )?;
    }
    Ok(())
}

pub(super) fn print_manifest(source: Source, printer: &mut Printer<'_>) -> Result<(), InspectError> {
    let whole = Whole::read(source, Kind::Manifest)?;
    if let Some(damage) = whole.too_large(manifest::LIMIT_BYTES) {
        return whole.damaged(printer, true, &damage);
    }
    let of_content = |bytes: &[u8]| sealed_json::decode::<Manifest>(bytes).ok().map(|manifest| manifest.epoch);
    let manifest = match Manifest::decode(whole.named_epoch(of_content), &whole.bytes) {
        Ok(manifest) => manifest,
        Err(error) => {
            let damage = Damage::in_manifest(&whole.bytes, &error);
            let foreign = matches!(&error, ManifestError::Json(error) if is_foreign_json(error));
            return whole.damaged(printer, foreign, &damage);
        }
    };
    let fields = vec![
        ("epoch", manifest.epoch.0.into()),
        ("highWatermark", manifest.high_watermark.0.into()),
        ("logStartOffset", manifest.log_start_offset.0.into()),
        ("relinquished", manifest.relinquished.into()),
    ];
    if printer.is_json() {
        let lists = [("chain", json!(manifest.chain)), ("replaced", json!(manifest.replaced))];
        return whole.facts(printer, fields.into_iter().chain(lists).collect());
    }
    whole.facts(printer, fields)?;
    print_chain(&manifest, printer)
}

/// Which epoch holds what, as tables.
pub(super) fn print_chain(manifest: &Manifest, printer: &mut Printer<'_>) -> Result<(), InspectError> {
    for entry in manifest.chain.entries() {
        let end = manifest.chain.range_of(entry.epoch).and_then(|(_, end)| end);
        let end = end.map_or(Value::Null, |end| end.0.into());
        printer.row("chain", &[("epoch", entry.epoch.0.into()), ("start", entry.start.0.into()), ("end", end)])?;
    }
    for replaced in &manifest.replaced {
        printer.row(
            "replaced",
            &[
                ("from", replaced.from.0.into()),
                ("to", replaced.to.0.into()),
                ("compacted", replaced.segment.to_string().into()),
            ],
        )?;
    }
    Ok(())
}

pub(super) fn print_checkpoint(source: Source, printer: &mut Printer<'_>) -> Result<(), InspectError> {
    let whole = Whole::read(source, Kind::Checkpoint)?;
    if let Some(damage) = whole.too_large(checkpoint::LIMIT_BYTES) {
        return whole.damaged(printer, true, &damage);
    }
    let of_content =
        |bytes: &[u8]| sealed_json::decode::<Checkpoint>(bytes).ok().map(|checkpoint| checkpoint.segment.epoch);
    match Checkpoint::decode(whole.named_epoch(of_content), &whole.bytes) {
        Ok(checkpoint) => whole.facts(
            printer,
            vec![
                ("segment", checkpoint.segment.to_string().into()),
                ("position", checkpoint.position.into()),
                ("offset", checkpoint.offset.0.into()),
                ("highWatermark", checkpoint.high_watermark.0.into()),
            ],
        ),
        Err(error) => {
            let bytes = &whole.bytes;
            let fits = "members that fit together and the name";
            let (foreign, damage) = match &error {
                CheckpointError::Json(error) => (is_foreign_json(error), Damage::in_json(bytes, error)),
                CheckpointError::Epoch { .. } => {
                    (false, Damage::new(damage::member_at(bytes, "segment"), fits, error.to_string()))
                }
                CheckpointError::Offset { .. } => {
                    (false, Damage::new(damage::member_at(bytes, "offset"), fits, error.to_string()))
                }
            };
            whole.damaged(printer, foreign, &damage)
        }
    }
}

pub(super) fn print_fence(source: Source, printer: &mut Printer<'_>) -> Result<(), InspectError> {
    let whole = Whole::read(source, Kind::Fence)?;
    let epoch = whole.source.file.map_or(Value::Null, |file| file.epoch().0.into());
    let first_block = &whole.bytes[..whole.bytes.len().min(fence::LIMIT_BYTES)];
    let state = |state: &str| vec![("epoch", epoch.clone()), ("state", state.into())];
    match Fence::decode(first_block) {
        Fence::Held if whole.source.file.is_none() => {
            Err(InspectError::Foreign { path: whole.source.path, kind: Kind::Fence })
        }
        Fence::Held => whole.facts(printer, state("held")),
        Fence::Revoked(RevokedBy::Known(revocation)) => {
            let mut fields = state("revoked");
            fields.extend([
                ("byEpoch", revocation.epoch.0.into()),
                ("byBroker", revocation.broker.0.into()),
                ("timeMs", revocation.time_ms.0.into()),
                ("time", time(revocation.time_ms.0)),
            ]);
            whole.facts(printer, fields)
        }
        Fence::Revoked(RevokedBy::Unreadable) => {
            if whole.source.file.is_none() {
                return Err(InspectError::Foreign { path: whole.source.path, kind: Kind::Fence });
            }
            whole.facts(printer, state("revoked by somebody that can't be told"))?;
            let line = first_block.split(|&byte| byte == b'\n').next().unwrap_or_default();
            let error = serde_json::from_slice::<fence::Revocation>(line).err();
            let at = error.as_ref().map_or(0, |error| damage::position(line, error.line(), error.column()));
            let found = error.map_or_else(String::new, |error| error.to_string());
            Ok(printer.damage(&Damage::new(at, "no byte, or one line that says who revoked it", found))?)
        }
    }
}
