//! The directory of a partition: what each file is, and whether it counts.

#![expect(clippy::disallowed_methods, reason = "a process of its own looks at files that a broker may have open")]

use std::fs;
use std::path::Path;

use kaas_proto::types::{LeaderEpoch, Offset};
use serde_json::{Value, json};

use super::damage::Damage;
use super::files::print_chain;
use super::printer::{Field, Printer};
use super::source::{Source, is_slot_directory};
use super::{InspectError, Kind};
use crate::format::fence::Fence;
use crate::format::inventory::{Inventory, newest_manifest};
use crate::format::manifest::Manifest;
use crate::format::partition_file::PartitionFile;

/// What the directory holds.
struct Listing {
    /// In order of name, with the size.
    names: Vec<(String, u64)>,
    is_slot: bool,
}

/// No leader has established itself behind an epoch that has all bits.
const ABOVE_ALL: LeaderEpoch = LeaderEpoch(i32::MAX);

pub(super) fn print(directory: &Path, printer: &mut Printer<'_>) -> Result<(), InspectError> {
    let listing = list(directory)?;
    let names = || listing.names.iter().map(|(name, _)| name.as_str());
    if names().filter_map(PartitionFile::parse).next().is_none() {
        return Err(InspectError::NoPartition(directory.to_owned()));
    }
    let epoch = newest_manifest(names(), ABOVE_ALL);
    let manifest = epoch.map(|epoch| read_manifest(directory, epoch));
    let readable = manifest.as_ref().and_then(|manifest| manifest.as_ref().ok());
    let inventory = readable.map(|manifest| Inventory::new(manifest, names()));
    let number = |offset: Option<Offset>| offset.map_or(Value::Null, |offset| offset.0.into());
    let leader = names().filter_map(PartitionFile::parse).filter(|file| matches!(file, PartitionFile::Fence(_))).max();
    let mut facts = vec![
        ("directory", directory.display().to_string().into()),
        ("coordinatorSlot", listing.is_slot.into()),
        ("epoch", epoch.map_or(Value::Null, |epoch| epoch.0.into())),
        ("highestFence", leader.map_or(Value::Null, |fence| fence.epoch().0.into())),
        ("logStartOffset", number(readable.map(|manifest| manifest.log_start_offset))),
        ("highWatermark", number(readable.map(|manifest| manifest.high_watermark))),
        ("relinquished", readable.map_or(Value::Null, |manifest| manifest.relinquished.into())),
    ];
    if printer.is_json() {
        facts.push(("chain", readable.map_or(Value::Null, |manifest| json!(manifest.chain))));
        facts.push(("replaced", readable.map_or(Value::Null, |manifest| json!(manifest.replaced))));
        printer.facts("partition", &facts)?;
    } else {
        printer.facts("partition", &facts)?;
        if let Some(manifest) = readable {
            print_chain(manifest, printer)?;
        }
    }
    let row = |(name, bytes): &(String, u64)| file_row(directory, name, *bytes, epoch, inventory.as_ref());
    printer.rows("file", &listing.names.iter().map(row).collect::<Vec<_>>())?;
    match &manifest {
        None => printer.note("no manifest: nobody has led this partition, or what counts can't be told")?,
        Some(Err(damage)) => {
            printer.note(&format!("the manifest of epoch {} is damaged", epoch.unwrap_or_default()))?;
            printer.damage(damage)?;
        }
        Some(Ok(_)) => {}
    }
    for segment in inventory.iter().flat_map(|inventory| &inventory.missing) {
        printer.missing(&format!("{}, which the manifest names", segment.log()))?;
    }
    Ok(())
}

fn read_manifest(directory: &Path, epoch: LeaderEpoch) -> Result<Manifest, Damage> {
    let source = Source::open(&directory.join(PartitionFile::Manifest(epoch).to_string()));
    let bytes = source.and_then(|source| source.read());
    let bytes = bytes.map_err(|error| Damage::new(0, "a file that can be read", error.to_string()))?;
    Manifest::decode(epoch, &bytes).map_err(|error| Damage::in_manifest(&bytes, &error))
}

/// What a fence says.
fn read_fence(path: &Path) -> &'static str {
    match Source::open(path).and_then(|source| source.read()).map(|bytes| Fence::decode(&bytes)) {
        Ok(Fence::Held) => "held",
        Ok(Fence::Revoked(_)) => "revoked",
        Err(_) => "unreadable",
    }
}

fn file_row(
    directory: &Path,
    name: &str,
    bytes: u64,
    established: Option<LeaderEpoch>,
    inventory: Option<&Inventory>,
) -> Vec<Field> {
    let file = PartitionFile::parse(name);
    let range = match (file, inventory) {
        (Some(PartitionFile::Log(segment)), Some(inventory)) => {
            inventory.live.iter().find(|range| range.segment == segment)
        }
        _ => None,
    };
    let state = match (file, inventory) {
        (None, _) => "foreign",
        (Some(PartitionFile::Fence(_)), _) => read_fence(&directory.join(name)),
        (Some(_), None) => "unknown",
        (Some(file), Some(inventory)) => match file {
            _ if inventory.newer.contains(&file) => "newer",
            _ if inventory.dead.contains(&file) => "dead",
            PartitionFile::Log(_) if range.is_none() => "unused",
            PartitionFile::Temporary { .. } => "temporary",
            _ => "live",
        },
    };
    let kind = match file {
        None => Value::Null,
        Some(PartitionFile::Temporary { .. }) => "temporary".into(),
        Some(file) => Kind::of(file).to_string().into(),
    };
    let is_own = file.is_some_and(|file| Some(file.epoch()) == established);
    vec![
        ("name", name.into()),
        ("kind", kind),
        ("bytes", bytes.into()),
        ("state", state.into()),
        ("newestEpoch", is_own.into()),
        ("from", range.map_or(Value::Null, |range| range.start.0.into())),
        ("to", range.and_then(|range| range.end).map_or(Value::Null, |end| end.0.into())),
    ]
}

fn list(directory: &Path) -> Result<Listing, InspectError> {
    let failed = |error| InspectError::Read { path: directory.to_owned(), error };
    if !fs::metadata(directory).map_err(failed)?.is_dir() {
        return Err(InspectError::NoDirectory(directory.to_owned()));
    }
    let mut names = Vec::new();
    for entry in fs::read_dir(directory).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        // A file that is gone meanwhile is left out.
        let Ok(metadata) = entry.metadata() else { continue };
        names.push((entry.file_name().to_string_lossy().into_owned(), metadata.len()));
    }
    names.sort_unstable();
    Ok(Listing { names, is_slot: is_slot_directory(directory) })
}
