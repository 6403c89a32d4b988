//! Makes the volume hold the topics that there are to be. The controller does it; calls block.
//!
//! What is removed was named by an assignment of this cluster, and is desired no longer. A directory that no assignment ever
//! named is somebody else's, or older than the cluster: it is left alone, and said.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use kaas_proto::reserve::Reserve;
use kaas_proto::topic_name;
use kaas_proto::types::TopicId;

use super::configs::stored;
use super::plan::ProvisionedTopic;
use super::ports::DesiredTopics;
use crate::topics::decide::MAX_PARTITIONS_PER_TOPIC;
use crate::topics::{StoreError, StoredTopic, TopicDirectory};

/// How long topics are made and removed before the assignment follows.
const TURN: Duration = Duration::from_millis(500);

/// What to do for one topic.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    Create(StoredTopic),
    /// From so many partitions on.
    Grow(StoredTopic, i32),
    Configure(StoredTopic),
    Delete(StoredTopic),
}

/// The topics on the volume, as this controller knows them. It is the only one that changes them.
#[derive(Debug)]
pub(crate) struct Provisioner {
    directory: Arc<TopicDirectory>,
    reserve: Reserve,
    on_volume: BTreeMap<Arc<str>, StoredTopic>,
    /// Topics that assignments have named: they may be removed.
    assigned: BTreeSet<TopicId>,
    /// The topics were listed once, as this controller.
    listed: bool,
}

impl Provisioner {
    /// Reads the volume. `assigned` are the topics of the last assignment.
    ///
    /// # Errors
    /// The volume can't be listed.
    pub(crate) fn load(
        directory: Arc<TopicDirectory>,
        reserve: Reserve,
        assigned: impl Iterator<Item = TopicId>,
    ) -> Result<Self, StoreError> {
        directory.abandon_unfinished()?;
        let on_volume = directory.list()?.into_iter().map(|topic| (Arc::clone(&topic.name), topic)).collect();
        Ok(Self { directory, reserve, on_volume, assigned: assigned.collect(), listed: false })
    }

    /// The topics that an assignment may name: on the volume, and desired, or named by the last one while nothing is
    /// known of what is desired.
    pub(crate) fn assignable(&self, desired: Option<&DesiredTopics>) -> Vec<ProvisionedTopic> {
        let wanted = |topic: &&StoredTopic| match desired {
            Some(desired) if self.believes(desired) => {
                desired.get(&topic.name).is_some_and(|desired| desired.id == topic.id)
            }
            _ => self.assigned.contains(&topic.id),
        };
        let provisioned = |topic: &StoredTopic| ProvisionedTopic {
            name: Arc::clone(&topic.name),
            id: topic.id,
            partitions: topic.partitions,
        };
        self.on_volume.values().filter(wanted).map(provisioned).collect()
    }

    /// All topics that are on the volume.
    pub(crate) fn on_volume(&self) -> Vec<ProvisionedTopic> {
        let provisioned = |topic: &StoredTopic| ProvisionedTopic {
            name: Arc::clone(&topic.name),
            id: topic.id,
            partitions: topic.partitions,
        };
        self.on_volume.values().map(provisioned).collect()
    }

    /// A first list that is empty, on a volume that has topics, is more likely a mistake (another Kubernetes cluster, a
    /// restored volume) than the wish to lose them all.
    fn believes(&self, desired: &DesiredTopics) -> bool {
        self.listed || !desired.is_empty() || self.assigned.is_empty()
    }

    /// What is to be created, grown, configured and removed. To be asked for after an assignment is written that names nothing of
    /// what is removed; [`Provisioner::note`] hears what came of it.
    pub(crate) fn work(&mut self, desired: &DesiredTopics) -> Work {
        let mut left = VecDeque::new();
        if self.believes(desired) {
            self.listed = true;
            left = self.actions(desired).into();
        } else {
            tracing::error!(
                topics = self.assigned.len(),
                "no topic is desired, but the last assignment has some: nothing is deleted until at least one is desired"
            );
        }
        Work { directory: Arc::clone(&self.directory), reserve: self.reserve.clone(), left }
    }

    /// Removals first: a topic may be made anew under the same name.
    fn actions(&self, desired: &DesiredTopics) -> Vec<Action> {
        let mut actions = Vec::new();
        let mut blocked = BTreeSet::new();
        for topic in self.on_volume.values() {
            let wanted = desired.get(&topic.name);
            if wanted.is_some_and(|wanted| wanted.id == topic.id) {
                continue;
            }
            if self.assigned.contains(&topic.id) {
                actions.push(Action::Delete(topic.clone()));
            } else {
                blocked.insert(&topic.name);
                if wanted.is_some() {
                    tracing::error!(
                        topic = &*topic.name, id = %topic.id,
                        "the topic can't be made: its directory holds another one, which was never part of this cluster"
                    );
                }
            }
        }
        for topic in desired.values() {
            let partitions = topic.partitions;
            if topic_name::check(&topic.name).is_err() || !(1..=MAX_PARTITIONS_PER_TOPIC).contains(&partitions) {
                tracing::error!(
                    topic = &*topic.name,
                    partitions,
                    "no topic can have such a name or number of partitions"
                );
                continue;
            }
            match self.on_volume.get(&topic.name).filter(|known| known.id == topic.id) {
                None if blocked.contains(&topic.name) => {}
                None => actions.push(Action::Create(stored(topic))),
                Some(known) => {
                    if known.partitions < partitions {
                        actions.push(Action::Grow(stored(topic), known.partitions));
                    }
                    if known.own != topic.configs {
                        actions.push(Action::Configure(stored(topic)));
                    }
                }
            }
        }
        actions
    }

    /// Takes note of what was done.
    pub(crate) fn note(&mut self, done: Vec<Action>) {
        for action in done {
            match action {
                Action::Create(topic) => {
                    self.assigned.insert(topic.id);
                    self.on_volume.insert(Arc::clone(&topic.name), topic);
                }
                Action::Grow(topic, _) => {
                    if let Some(known) = self.on_volume.get_mut(&topic.name) {
                        known.partitions = topic.partitions;
                    }
                }
                Action::Configure(topic) => {
                    // Partitions are another matter, which may have failed.
                    if let Some(known) = self.on_volume.get_mut(&topic.name) {
                        known.own = topic.own;
                    }
                }
                Action::Delete(topic) => drop(self.on_volume.remove(&topic.name)),
            }
        }
    }
}

/// Changes of the volume. It may take long: the controller goes on meanwhile.
#[derive(Debug)]
pub(crate) struct Work {
    directory: Arc<TopicDirectory>,
    reserve: Reserve,
    left: VecDeque<Action>,
}

/// What came of a turn of work.
#[derive(Debug)]
pub(crate) struct Turn {
    pub(crate) done: Vec<Action>,
    /// Something did not work, and is not in what is left.
    pub(crate) failed: bool,
    /// What is left, if anything is.
    pub(crate) left: Option<Work>,
}

impl Work {
    /// Works for about [`TURN`]. What fails is left for another time. Blocks.
    pub(crate) fn turn(mut self) -> Turn {
        let began = std::time::Instant::now();
        // One line, however many there are: it may be the volume.
        let (mut done, mut failed) = (Vec::new(), Vec::new());
        while began.elapsed() < TURN
            && let Some(action) = self.left.pop_front()
        {
            match self.carry_out(&action) {
                Ok(()) => done.push(action),
                Err(error) => {
                    if matches!(action, Action::Delete(_)) && error.is_full() {
                        self.reserve.ask_for_room();
                    }
                    failed.push(error);
                }
            }
        }
        if let Some(first) = failed.first() {
            tracing::error!(failed = failed.len(), "{first}; it is tried again");
        }
        let failed = !failed.is_empty();
        Turn { done, failed, left: (!self.left.is_empty()).then_some(self) }
    }

    fn carry_out(&self, action: &Action) -> Result<(), StoreError> {
        match action {
            Action::Create(topic) => {
                self.directory.create(topic)?;
                tracing::info!(topic = &*topic.name, id = %topic.id, partitions = topic.partitions, "topic created");
            }
            Action::Grow(topic, former) => {
                self.directory.grow(topic, *former)?;
                tracing::info!(topic = &*topic.name, from = former, to = topic.partitions, "partitions added");
            }
            Action::Configure(topic) => {
                self.directory.configure(topic)?;
                tracing::info!(topic = &*topic.name, settings = ?topic.own, "topic configured");
            }
            Action::Delete(topic) => {
                self.directory.delete(&topic.name, topic.id)?;
                tracing::info!(topic = &*topic.name, id = %topic.id, "topic deleted");
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]
    use kaas_proto::types::BrokerId;
    use tempfile::TempDir;

    use super::*;
    use crate::cluster::ports::DesiredTopic;
    use crate::topics::disk::FileSystem;

    fn id(byte: u8) -> TopicId {
        TopicId([byte; 16])
    }

    fn desired(topics: &[(&str, u8, i32)]) -> DesiredTopics {
        let topic = |&(name, byte, partitions): &(&str, u8, i32)| {
            let name: Arc<str> = name.into();
            (Arc::clone(&name), DesiredTopic { name, id: id(byte), partitions, configs: BTreeMap::new() })
        };
        topics.iter().map(topic).collect()
    }

    fn volume() -> (TempDir, Arc<TopicDirectory>) {
        let root = tempfile::tempdir().unwrap();
        let directory = TopicDirectory::open(&root.path().into(), BrokerId(1), Arc::new(FileSystem)).unwrap();
        (root, Arc::new(directory))
    }

    fn names(provisioner: &Provisioner, topics: &DesiredTopics) -> Vec<(String, u8, i32)> {
        let shown = |topic: ProvisionedTopic| (topic.name.to_string(), topic.id.0[0], topic.partitions);
        provisioner.assignable(Some(topics)).into_iter().map(shown).collect()
    }

    fn reconcile(provisioner: &mut Provisioner, topics: &DesiredTopics) -> bool {
        let Turn { done, failed, left } = provisioner.work(topics).turn();
        provisioner.note(done);
        !failed && left.is_none()
    }

    #[test]
    fn the_volume_follows_what_is_desired() {
        let (root, directory) = volume();
        let mut provisioner =
            Provisioner::load(Arc::clone(&directory), Reserve::default(), std::iter::empty()).unwrap();
        let mut step = |topics: &[(&str, u8, i32)]| {
            let topics = desired(topics);
            assert!(reconcile(&mut provisioner, &topics));
            names(&provisioner, &topics)
        };
        assert_eq!(step(&[("a", 1, 2), ("b", 2, 1)]), [("a".to_owned(), 1, 2), ("b".to_owned(), 2, 1)]);
        assert_eq!(
            step(&[("a", 1, 3), ("b", 9, 1)]),
            [("a".to_owned(), 1, 3), ("b".to_owned(), 9, 1)],
            "b is another one"
        );
        assert_eq!(step(&[("a", 1, 1)]), [("a".to_owned(), 1, 3)], "partitions are never taken away");
        assert_eq!(directory.leftovers().unwrap().len(), 2, "both former ones are aside, to be swept");
        assert!(root.path().join("a").join(id(1).to_string()).join("2").is_dir());
        assert_eq!(step(&[]), []);
    }

    #[test]
    fn settings_that_came_through_say_nothing_of_partitions_that_did_not() {
        let (_root, directory) = volume();
        let mut provisioner = Provisioner::load(directory, Reserve::default(), std::iter::empty()).unwrap();
        assert!(reconcile(&mut provisioner, &desired(&[("a", 1, 1)])));
        let mut grown = desired(&[("a", 1, 3)]);
        grown.values_mut().for_each(|topic| drop(topic.configs.insert("retention.ms".to_owned(), "5".to_owned())));
        let mut done: Vec<Action> = provisioner.work(&grown).turn().done;
        done.retain(|action| matches!(action, Action::Configure(_)));
        provisioner.note(done);
        assert_eq!(names(&provisioner, &grown), [("a".to_owned(), 1, 1)]);
        assert!(matches!(provisioner.actions(&grown)[..], [Action::Grow(_, 1)]), "it is tried again");
    }

    #[test]
    fn what_no_assignment_ever_named_is_left_alone() {
        let (root, directory) = volume();
        let alone = StoredTopic { name: "mine".into(), id: id(5), partitions: 1, own: BTreeMap::new() };
        directory.create(&alone).unwrap();
        let mut provisioner = Provisioner::load(directory, Reserve::default(), std::iter::empty()).unwrap();
        assert!(reconcile(&mut provisioner, &desired(&[("mine", 6, 1), ("other", 7, 1)])));
        assert!(root.path().join("mine").join(id(5).to_string()).is_dir());
        assert_eq!(names(&provisioner, &desired(&[("mine", 6, 1)])), []);
        assert_eq!(names(&provisioner, &desired(&[("mine", 5, 1)])), [("mine".to_owned(), 5, 1)], "adopted by its id");
    }

    #[test]
    fn a_first_list_that_is_empty_deletes_nothing() {
        let (root, directory) = volume();
        let topic = StoredTopic { name: "a".into(), id: id(1), partitions: 1, own: BTreeMap::new() };
        directory.create(&topic).unwrap();
        let mut provisioner = Provisioner::load(directory, Reserve::default(), std::iter::once(id(1))).unwrap();
        assert_eq!(provisioner.assignable(None).len(), 1, "as before, while nothing is known");
        assert!(reconcile(&mut provisioner, &desired(&[])));
        assert_eq!(provisioner.assignable(Some(&desired(&[]))).len(), 1);
        assert!(root.path().join("a").is_dir());
        assert!(reconcile(&mut provisioner, &desired(&[("b", 2, 1)])));
        assert!(!root.path().join("a").exists(), "this is meant");
    }
}
