//! What a group has committed. Pure, shard-local.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::time::Duration;

use kaas_proto::types::{LeaderEpoch, Offset, PartitionIndex, TimestampMs, TopicId};

/// A committed offset.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CommittedOffset {
    pub offset: Offset,
    /// Of the last record that was read; -1 if the client did not say.
    pub leader_epoch: LeaderEpoch,
    /// Whatever the client wants to remember.
    pub metadata: Rc<str>,
    pub committed_at: TimestampMs,
    /// Only if the client set a retention time, which versions 2 to 4 of OffsetCommit can.
    pub expires_at: Option<TimestampMs>,
}

/// Offsets of one topic, as a commit brings them and a snapshot keeps them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TopicOffsets {
    pub name: Rc<str>,
    /// [`TopicId::ZERO`] if it is not known.
    pub id: TopicId,
    pub partitions: BTreeMap<PartitionIndex, CommittedOffset>,
}

/// Partitions of a topic, to look up or to forget.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TopicPartitions {
    pub name: Rc<str>,
    pub id: TopicId,
    pub partitions: Vec<PartitionIndex>,
}

/// When the offsets of a group expire.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Expiry {
    /// Counted from the commit, but not before the group became empty.
    SinceEmpty(TimestampMs),
    /// Only offsets of topics that nobody subscribes to any more, counted from the commit.
    Unsubscribed(BTreeSet<String>),
    /// Never: they are in use, or it is not known what is.
    Never,
}

/// The committed offsets of a group: one incarnation per topic name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GroupOffsets {
    topics: BTreeMap<Rc<str>, TopicOffsets>,
    count: usize,
    bytes: usize,
}

impl GroupOffsets {
    /// How many partitions have an offset.
    #[must_use]
    pub fn len(&self) -> usize {
        self.count
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Bytes of the names of topics and of the offsets' metadata.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// In order of name.
    pub fn topics(&self) -> impl Iterator<Item = &TopicOffsets> {
        self.topics.values()
    }

    /// Takes over a commit. Offsets of another incarnation of the topic mean nothing in this one and go.
    pub fn commit(&mut self, commit: &TopicOffsets) {
        if commit.partitions.is_empty() {
            return;
        }
        let bytes = &mut self.bytes;
        let topic = self.topics.entry(Rc::clone(&commit.name)).or_insert_with(|| {
            *bytes += commit.name.len();
            TopicOffsets { name: Rc::clone(&commit.name), id: commit.id, partitions: BTreeMap::new() }
        });
        self.count -= topic.partitions.len();
        if !same_incarnation(topic.id, commit.id) {
            *bytes -= topic.partitions.values().map(|offset| offset.metadata.len()).sum::<usize>();
            topic.partitions.clear();
        }
        if commit.id != TopicId::ZERO {
            topic.id = commit.id;
        }
        for (&partition, offset) in &commit.partitions {
            *bytes += offset.metadata.len();
            if let Some(former) = topic.partitions.insert(partition, offset.clone()) {
                *bytes -= former.metadata.len();
            }
        }
        self.count += topic.partitions.len();
    }

    /// The offset of a partition, unless it was committed for another incarnation of the topic.
    #[must_use]
    pub fn get(&self, name: &str, id: TopicId, partition: PartitionIndex) -> Option<&CommittedOffset> {
        let topic = self.topics.get(name).filter(|topic| same_incarnation(topic.id, id))?;
        topic.partitions.get(&partition)
    }

    /// Forgets offsets, of the given incarnation only.
    pub fn delete(&mut self, request: &TopicPartitions) {
        let Some(topic) = self.topics.get_mut(&request.name) else { return };
        if !same_incarnation(topic.id, request.id) {
            return;
        }
        self.count -= topic.partitions.len();
        for partition in &request.partitions {
            if let Some(former) = topic.partitions.remove(partition) {
                self.bytes -= former.metadata.len();
            }
        }
        self.count += topic.partitions.len();
        if topic.partitions.is_empty() {
            self.bytes -= request.name.len();
            self.topics.remove(&request.name);
        }
    }

    /// All partitions of the topics with these ids.
    #[must_use]
    pub fn of_topics(&self, ids: &[TopicId]) -> Vec<TopicPartitions> {
        self.select(|topic, _| topic.id != TopicId::ZERO && ids.contains(&topic.id))
    }

    /// All partitions of topics that are not among these, of each topic for which nothing was committed after `latest`.
    #[must_use]
    pub fn of_other_topics(&self, ids: &BTreeSet<TopicId>, latest: TimestampMs) -> Vec<TopicPartitions> {
        self.select(|topic, _| {
            let is_other = topic.id != TopicId::ZERO && !ids.contains(&topic.id);
            is_other && topic.partitions.values().all(|offset| offset.committed_at <= latest)
        })
    }

    /// What has been kept long enough.
    #[must_use]
    pub fn expired(&self, expiry: &Expiry, retention: Duration, now: TimestampMs) -> Vec<TopicPartitions> {
        let retention_ms = i64::try_from(retention.as_millis()).unwrap_or(i64::MAX);
        let is_over = |offset: &CommittedOffset, base: TimestampMs| match offset.expires_at {
            Some(expires_at) => expires_at <= now,
            None => now.0.saturating_sub(base.0) >= retention_ms,
        };
        self.select(|topic, offset| match expiry {
            Expiry::Never => false,
            Expiry::SinceEmpty(since) => is_over(offset, offset.committed_at.max(*since)),
            Expiry::Unsubscribed(subscribed) => {
                !subscribed.contains(&*topic.name) && is_over(offset, offset.committed_at)
            }
        })
    }

    fn select(&self, matches: impl Fn(&TopicOffsets, &CommittedOffset) -> bool) -> Vec<TopicPartitions> {
        let mut found = Vec::new();
        for topic in self.topics.values() {
            let matching = topic.partitions.iter().filter(|(_, offset)| matches(topic, offset));
            let partitions: Vec<PartitionIndex> = matching.map(|(&partition, _)| partition).collect();
            if !partitions.is_empty() {
                found.push(TopicPartitions { name: Rc::clone(&topic.name), id: topic.id, partitions });
            }
        }
        found
    }
}

/// Whether two ids may mean the same topic: one that is not known may be any.
fn same_incarnation(one: TopicId, other: TopicId) -> bool {
    one == other || one == TopicId::ZERO || other == TopicId::ZERO
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIRST: TopicId = TopicId([1; 16]);
    const SECOND: TopicId = TopicId([2; 16]);
    const DAY: Duration = Duration::from_secs(86_400);
    const DAY_MS: i64 = 86_400_000;

    fn offset(offset: i64, committed_at: i64) -> CommittedOffset {
        CommittedOffset {
            offset: Offset(offset),
            leader_epoch: LeaderEpoch(5),
            metadata: "m".into(),
            committed_at: TimestampMs(committed_at),
            expires_at: None,
        }
    }

    fn commit(name: &str, id: TopicId, offsets: &[(i32, CommittedOffset)]) -> TopicOffsets {
        let partitions = offsets.iter().map(|(partition, offset)| (PartitionIndex(*partition), offset.clone()));
        TopicOffsets { name: name.into(), id, partitions: partitions.collect() }
    }

    fn committed(offsets: &GroupOffsets, name: &str, id: TopicId, partition: i32) -> Option<i64> {
        offsets.get(name, id, PartitionIndex(partition)).map(|committed| committed.offset.0)
    }

    #[test]
    fn a_topic_that_is_created_anew_inherits_nothing() {
        let mut offsets = GroupOffsets::default();
        offsets.commit(&commit("t", FIRST, &[(0, offset(10, 0)), (1, offset(11, 0))]));
        assert_eq!(committed(&offsets, "t", FIRST, 0), Some(10));
        assert_eq!(committed(&offsets, "t", TopicId::ZERO, 1), Some(11));
        assert_eq!(committed(&offsets, "t", SECOND, 0), None);
        assert_eq!(offsets.len(), 2);

        offsets.commit(&commit("t", SECOND, &[(0, offset(1, 0))]));
        assert_eq!(committed(&offsets, "t", SECOND, 0), Some(1));
        assert_eq!(committed(&offsets, "t", SECOND, 1), None, "partition 1 was committed for the former topic");
        assert_eq!(offsets.len(), 1);
    }

    #[test]
    fn an_id_is_learnt_and_not_forgotten() {
        let mut offsets = GroupOffsets::default();
        offsets.commit(&commit("t", TopicId::ZERO, &[(0, offset(1, 0))]));
        offsets.commit(&commit("t", FIRST, &[(1, offset(2, 0))]));
        offsets.commit(&commit("t", TopicId::ZERO, &[(2, offset(3, 0))]));
        assert_eq!((committed(&offsets, "t", FIRST, 0), committed(&offsets, "t", FIRST, 2)), (Some(1), Some(3)));
        assert_eq!(committed(&offsets, "t", SECOND, 0), None);
    }

    #[test]
    fn deleting_is_for_one_incarnation() {
        let mut offsets = GroupOffsets::default();
        offsets.commit(&commit("t", SECOND, &[(0, offset(1, 0)), (1, offset(2, 0))]));
        let former = TopicPartitions { name: "t".into(), id: FIRST, partitions: vec![PartitionIndex(0)] };
        offsets.delete(&former);
        assert_eq!(offsets.len(), 2);
        assert!(offsets.of_topics(&[FIRST]).is_empty());
        for gone in offsets.of_topics(&[SECOND]) {
            offsets.delete(&gone);
        }
        assert!(offsets.is_empty());
        assert_eq!(offsets.topics().count(), 0);
    }

    #[test]
    fn c24_offsets_expire_only_when_nobody_uses_them() {
        let mut offsets = GroupOffsets::default();
        offsets.commit(&commit("old", FIRST, &[(0, offset(1, 0)), (1, offset(1, 3 * DAY_MS))]));
        let with_retention = CommittedOffset { expires_at: Some(TimestampMs(1000)), ..offset(1, 0) };
        offsets.commit(&commit("short", SECOND, &[(7, with_retention)]));
        let expired = |expiry, now| {
            let found = offsets.expired(&expiry, DAY, TimestampMs(now));
            found.iter().flat_map(|t| t.partitions.iter().map(|p| (t.name.to_string(), p.0))).collect::<Vec<_>>()
        };
        let name = |name: &str, partition| (name.to_owned(), partition);
        assert_eq!(expired(Expiry::Never, 1000 * DAY_MS), []);
        // Empty since the start: each offset has its own time, one that the client set counts alone.
        assert_eq!(expired(Expiry::SinceEmpty(TimestampMs(0)), 999), []);
        assert_eq!(expired(Expiry::SinceEmpty(TimestampMs(0)), DAY_MS - 1), [name("short", 7)]);
        assert_eq!(expired(Expiry::SinceEmpty(TimestampMs(0)), DAY_MS), [name("old", 0), name("short", 7)]);
        assert_eq!(expired(Expiry::SinceEmpty(TimestampMs(0)), 4 * DAY_MS).len(), 3);
        // Empty since yesterday: what was committed long ago was in use until then.
        assert_eq!(expired(Expiry::SinceEmpty(TimestampMs(3 * DAY_MS)), 4 * DAY_MS - 1), [name("short", 7)]);
        // In use: only what nobody subscribes to.
        let subscribed = Expiry::Unsubscribed(["old".to_owned()].into());
        assert_eq!(expired(subscribed, 1000 * DAY_MS), [name("short", 7)]);
        let other = Expiry::Unsubscribed(["short".to_owned()].into());
        assert_eq!(expired(other, 2 * DAY_MS), [name("old", 0)]);
        // A wall clock that was set back expires nothing.
        assert_eq!(expired(Expiry::SinceEmpty(TimestampMs(0)), i64::MIN), []);
    }
}
