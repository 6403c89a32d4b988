//! Where things lie on the volume (DESIGN section 5). Paths are relative to the data directory.
//!
//! The control thread makes and removes the directories of topics, partitions and coordinator slots; a shard finds them
//! in place when it takes a partition over, and writes only inside them. In local-dev mode nothing is shared: there
//! each shard makes what it needs in its own memory.

use std::path::PathBuf;

use crate::control::PartitionKey;
use crate::types::{AssignmentVersion, BrokerId, ControllerEpoch, PartitionIndex, SlotId, TopicId};

/// State of the cluster as a whole. No topic has this name.
pub const CLUSTER_DIRECTORY: &str = "__cluster";
/// In [`CLUSTER_DIRECTORY`]: 22 characters of base64url.
pub const CLUSTER_ID_FILE: &str = "cluster-id";
/// In [`CLUSTER_DIRECTORY`]: one file per claimed block of producer ids.
pub const PRODUCER_IDS_DIRECTORY: &str = "producer-ids";
/// In [`CLUSTER_DIRECTORY`]: one directory per slot, each like a partition.
pub const COORDINATORS_DIRECTORY: &str = "coordinators";

/// In the data directory: the id of the cluster that it belongs to.
pub const DATA_CLUSTER_ID_FILE: &str = ".cluster-id";
/// In the data directory, where the cluster directory lies on a volume of its own: as [`RESERVE_DIRECTORY`]. No topic's name begins with a dot.
const DATA_RESERVE_DIRECTORY: &str = ".reserve";

/// In [`CLUSTER_DIRECTORY`]: one file of zeros per broker, [`crate::reserve`].
const RESERVE_DIRECTORY: &str = "reserve";

/// In [`CLUSTER_DIRECTORY`]: one file per broker, which says until when its clock was believed.
const CLOCKS_DIRECTORY: &str = "clocks";

/// In [`CLUSTER_DIRECTORY`]: who leads what, [`crate::format::assignment`].
pub const ASSIGNMENT_FILE: &str = "assignment.json";
/// In [`CLUSTER_DIRECTORY`]: the assignment before that one.
pub const FORMER_ASSIGNMENT_FILE: &str = "assignment.former.json";
/// In [`CLUSTER_DIRECTORY`]: one empty file per controller epoch, made by the controller that has it.
pub const CONTROLLER_EPOCHS_DIRECTORY: &str = "controller-epochs";

/// In a topic's directory: which incarnation lives there, [`crate::format::topic_id`].
pub const TOPIC_ID_FILE: &str = ".topic-id.json";
/// In a topic's directory: what was set for it, [`crate::format::topic_config`].
pub const TOPIC_CONFIG_FILE: &str = ".config.json";
/// What the directory of a deleted topic is renamed to begins with this. No topic's name begins with a dot.
const DELETED_PREFIX: &str = ".deleting-";
/// A topic is made in a directory that begins with this, and renamed to its name when it is whole.
const UNFINISHED_PREFIX: &str = ".creating-";

/// The directory of a coordinator slot.
#[must_use]
pub fn slot_directory(slot: SlotId) -> PathBuf {
    PathBuf::from(CLUSTER_DIRECTORY).join(COORDINATORS_DIRECTORY).join(format!("{:02}", slot.0))
}

/// The directory of a partition. Its topic id is part of the path: a topic that was created anew under the same name
/// lies elsewhere.
#[must_use]
pub fn partition_directory(topic: &str, partition: PartitionKey) -> PathBuf {
    match partition.slot() {
        Some(slot) => slot_directory(slot),
        None => incarnation_directory(topic, partition.topic_id).join(partition.partition.to_string()),
    }
}

/// The directory that holds the partitions of one incarnation of a topic.
#[must_use]
pub fn incarnation_directory(topic: &str, id: TopicId) -> PathBuf {
    PathBuf::from(topic).join(id.to_string())
}

/// The directory of producer-id blocks.
#[must_use]
pub fn producer_ids_directory() -> PathBuf {
    PathBuf::from(CLUSTER_DIRECTORY).join(PRODUCER_IDS_DIRECTORY)
}

/// The directory of what brokers say of their clocks.
#[must_use]
pub fn clocks_directory() -> PathBuf {
    PathBuf::from(CLUSTER_DIRECTORY).join(CLOCKS_DIRECTORY)
}

/// The file in which `broker` says until when its clock was believed.
#[must_use]
pub fn clock_file(broker: BrokerId) -> PathBuf {
    clocks_directory().join(broker.0.to_string())
}

/// The directory of the brokers' reserves.
#[must_use]
pub fn reserve_directory() -> PathBuf {
    PathBuf::from(CLUSTER_DIRECTORY).join(RESERVE_DIRECTORY)
}

/// The directory of the brokers' reserves on the volume of topics, if the cluster directory lies on another one.
#[must_use]
pub fn data_reserve_directory() -> PathBuf {
    PathBuf::from(DATA_RESERVE_DIRECTORY)
}

/// The file that keeps room on that volume for `broker`.
#[must_use]
pub fn data_reserve_file(broker: BrokerId) -> PathBuf {
    data_reserve_directory().join(broker.0.to_string())
}

/// The file that keeps room on the volume of the cluster directory for `broker`.
#[must_use]
pub fn reserve_file(broker: BrokerId) -> PathBuf {
    reserve_directory().join(broker.0.to_string())
}

/// Where the directory of a deleted topic is renamed to before it is removed.
#[must_use]
pub fn deleted_directory(id: TopicId) -> PathBuf {
    PathBuf::from(format!("{DELETED_PREFIX}{id}"))
}

/// The incarnation whose directory was renamed to `name`, if it is such a name.
#[must_use]
pub fn parse_deleted_directory(name: &str) -> Option<TopicId> {
    name.strip_prefix(DELETED_PREFIX)?.parse().ok()
}

/// Where a topic is made before it is renamed to its name.
#[must_use]
pub fn unfinished_directory(id: TopicId) -> PathBuf {
    PathBuf::from(format!("{UNFINISHED_PREFIX}{id}"))
}

/// The incarnation that was being made in `name`, if it is such a name.
#[must_use]
pub fn parse_unfinished_directory(name: &str) -> Option<TopicId> {
    name.strip_prefix(UNFINISHED_PREFIX)?.parse().ok()
}

/// The name under which a controller writes an assignment before it renames it: no two ever share one.
#[must_use]
pub fn assignment_temporary(epoch: ControllerEpoch, version: AssignmentVersion) -> String {
    format!("assignment.{:08x}.{:016x}.tmp", epoch.0, version.0)
}

/// Whether `name` is one that [`assignment_temporary`] makes, and of which controller epoch.
#[must_use]
pub fn parse_assignment_temporary(name: &str) -> Option<ControllerEpoch> {
    let (epoch, version) = name.strip_prefix("assignment.")?.strip_suffix(".tmp")?.split_once('.')?;
    let epoch = ControllerEpoch(i32::from_str_radix(epoch, 16).ok()?);
    let version = AssignmentVersion(i64::from_str_radix(version, 16).ok()?);
    (assignment_temporary(epoch, version) == name).then_some(epoch)
}

/// The name of the file that stands for a controller epoch.
#[must_use]
pub fn controller_epoch_file(epoch: ControllerEpoch) -> String {
    format!("{:08x}", epoch.0)
}

/// The controller epoch that `name` stands for.
#[must_use]
pub fn parse_controller_epoch_file(name: &str) -> Option<ControllerEpoch> {
    let epoch = ControllerEpoch(i32::from_str_radix(name, 16).ok()?);
    (controller_epoch_file(epoch) == name).then_some(epoch)
}

/// The partition that `name` stands for in an incarnation's directory. Anything else there is foreign.
#[must_use]
pub fn parse_partition(name: &str) -> Option<PartitionIndex> {
    let index: i32 = name.parse().ok()?;
    (index >= 0 && name == index.to_string()).then_some(PartitionIndex(index))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]
    use super::*;

    #[test]
    fn paths_are_those_of_the_design() {
        let topic_id = TopicId(*b"kaas/coordinatos");
        let key = PartitionKey { topic_id, partition: PartitionIndex(7) };
        assert_eq!(partition_directory("t", key), PathBuf::from("t").join(topic_id.to_string()).join("7"));
        let slot = PartitionKey::of_slot(SlotId(3));
        assert_eq!(partition_directory("", slot), PathBuf::from("__cluster/coordinators/03"));
        assert_eq!(producer_ids_directory(), PathBuf::from("__cluster/producer-ids"));
    }

    #[test]
    fn names_come_back_and_foreign_ones_do_not() {
        let id = TopicId::random();
        assert_eq!(parse_deleted_directory(deleted_directory(id).to_str().unwrap()), Some(id));
        assert_eq!(parse_deleted_directory(".deleting-x"), None);
        assert_eq!(parse_unfinished_directory(unfinished_directory(id).to_str().unwrap()), Some(id));
        let temporary = assignment_temporary(ControllerEpoch(26), AssignmentVersion(300));
        assert_eq!(temporary, "assignment.0000001a.000000000000012c.tmp");
        assert_eq!(parse_assignment_temporary(&temporary), Some(ControllerEpoch(26)));
        assert_eq!(parse_assignment_temporary("assignment.1a.12c.tmp"), None);
        assert_eq!(parse_controller_epoch_file(&controller_epoch_file(ControllerEpoch(26))), Some(ControllerEpoch(26)));
        assert_eq!(parse_controller_epoch_file("+000001a"), None);
        assert_eq!(parse_partition("12"), Some(PartitionIndex(12)));
        for foreign in ["012", "-1", "+1", "", "1a", "2147483648", "lost+found"] {
            assert_eq!(parse_partition(foreign), None, "{foreign}");
        }
    }
}
