//! Looks at every unlink and every cut before it happens: is that file dead by the newest established manifest?
//!
//! It sees the server's files without any of the lies, which no broker does.

use std::path::Path;
use std::rc::Rc;

use kaas_core::env::sim::{Change, Guard, View};
use kaas_core::format::inventory::{Inventory, LiveRange, newest_manifest};
use kaas_core::format::manifest::Manifest;
use kaas_core::format::partition_file::PartitionFile;
use kaas_proto::layout::reserve_directory;
use kaas_proto::record::RecordBatchView;
use kaas_proto::types::{LeaderEpoch, Offset};

pub fn guard() -> Rc<Guard> {
    Rc::new(|view, change| match change {
        Change::Unlink { path } => wrong_unlink(view, path),
        Change::Cut { path, length } => wrong_cut(view, path, length),
    })
}

/// The newest established manifest of the directory, and what is there.
fn established(view: &View<'_>, directory: &str) -> Option<(Manifest, Vec<String>)> {
    let names = view.names(directory);
    let epoch = newest_manifest(names.iter().map(String::as_str), LeaderEpoch(i32::MAX))?;
    let content = view.content(&format!("{directory}/{}", PartitionFile::Manifest(epoch)))?;
    Some((Manifest::decode(epoch, &content).ok()?, names))
}

fn live(view: &View<'_>, directory: &str) -> Option<(Manifest, Vec<LiveRange>)> {
    let (manifest, names) = established(view, directory)?;
    let inventory = Inventory::new(&manifest, names.iter().map(String::as_str));
    Some((manifest, inventory.live))
}

fn wrong_unlink(view: &View<'_>, path: &str) -> Option<String> {
    let (directory, name) = path.rsplit_once('/')?;
    if Path::new(directory) == reserve_directory() {
        return None;
    }
    let Some(file) = PartitionFile::parse(name) else { return Some(format!("the foreign {path} is unlinked")) };
    let (manifest, live) = live(view, directory)?;
    let is_wrong = match file {
        PartitionFile::Log(segment) => live.iter().any(|range| range.segment == segment),
        PartitionFile::Manifest(epoch) | PartitionFile::Producers(epoch) | PartitionFile::Checkpoint(epoch) => {
            epoch == manifest.epoch
        }
        PartitionFile::Fence(_) => view.content(path).is_some_and(|content| content.is_empty()),
        PartitionFile::Index(_) | PartitionFile::Temporary { .. } => false,
    };
    is_wrong.then(|| format!("{path} is unlinked, but alive by the manifest of epoch {}", manifest.epoch))
}

fn wrong_cut(view: &View<'_>, path: &str, length: u64) -> Option<String> {
    let (directory, name) = path.rsplit_once('/')?;
    let Some(PartitionFile::Log(segment)) = PartitionFile::parse(name) else { return Some(format!("{path} is cut")) };
    let (manifest, live) = live(view, directory)?;
    let range = live.iter().find(|range| range.segment == segment)?;
    let Some(end) = range.end else {
        return Some(format!("{path} is cut, but the chain of epoch {} leaves it open", manifest.epoch));
    };
    let content = view.content(path)?;
    let left = end_of_batches(&content[..content.len().min(usize::try_from(length).unwrap_or(usize::MAX))]);
    let loses = left.is_none_or(|left| left < end);
    loses.then(|| format!("{path} is cut to {length} bytes, its records up to {end} count"))
}

/// Behind the last whole batch.
fn end_of_batches(mut bytes: &[u8]) -> Option<Offset> {
    let mut end = None;
    while let Ok(batch) = RecordBatchView::read(bytes) {
        end = Some(batch.next_offset());
        bytes = &bytes[batch.size()..];
    }
    end
}
