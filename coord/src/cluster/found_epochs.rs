//! The highest epoch that lies in the directory of each partition: the floor for new ones when no assignment tells it.
//! Blocks.

use std::fs;
use std::io;
use std::path::Path;

use kaas_proto::control::PartitionKey;
use kaas_proto::layout::partition_directory;
use kaas_proto::roots::Roots;
use kaas_proto::types::{COORDINATOR_SLOTS, LeaderEpoch, PartitionIndex, SlotId};

use super::plan::{ProvisionedTopic, TakenEpochs};

/// Digits of the epoch that each file name of a partition begins with.
const EPOCH_DIGITS: usize = 8;

/// Looks into every partition's and every coordinator slot's directory.
///
/// # Errors
/// A directory can't be listed. One that is not there holds nothing.
pub fn find_epochs(roots: &Roots, topics: &[ProvisionedTopic]) -> io::Result<TakenEpochs> {
    let slots = (0..COORDINATOR_SLOTS).map(|slot| ("", PartitionKey::of_slot(SlotId(slot))));
    let partitions = topics.iter().flat_map(|topic| {
        let key = |partition| PartitionKey { topic_id: topic.id, partition: PartitionIndex(partition) };
        (0..topic.partitions).map(move |partition| (&*topic.name, key(partition)))
    });
    let mut taken = TakenEpochs::default();
    for (topic, key) in slots.chain(partitions) {
        if let Some(epoch) = highest(&roots.locate(&partition_directory(topic, key)))? {
            taken.found(key, epoch);
        }
    }
    Ok(taken)
}

fn highest(directory: &Path) -> io::Result<Option<LeaderEpoch>> {
    let entries = match fs::read_dir(directory) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let mut highest = None;
    for entry in entries {
        highest = highest.max(entry?.file_name().to_str().and_then(epoch_of));
    }
    Ok(highest)
}

/// The epoch of a fence, manifest, segment or snapshot. Foreign names begin otherwise; one that does not raises the floor,
/// which does no harm.
fn epoch_of(name: &str) -> Option<LeaderEpoch> {
    let (digits, rest) = name.split_at_checked(EPOCH_DIGITS)?;
    let is_ours = rest.starts_with(['.', '-']) && !digits.starts_with('+');
    is_ours.then(|| i32::from_str_radix(digits, 16).ok()).flatten().map(LeaderEpoch)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]
    use super::*;

    #[test]
    fn the_highest_counts_and_foreign_names_do_not() {
        let root = tempfile::tempdir().unwrap();
        let directory = root.path().join("x");
        assert_eq!(highest(&directory).unwrap(), None);
        fs::create_dir(&directory).unwrap();
        for name in
            ["00000007.fence", "0000001a-00000000000000000042.log", "lost+found", ".nfs000000ff", "zzzzzzzz.fence"]
        {
            fs::write(directory.join(name), "").unwrap();
        }
        assert_eq!(highest(&directory).unwrap(), Some(LeaderEpoch(26)));
    }
}
