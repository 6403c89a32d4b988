//! A slot's committed offsets: commit, fetch, delete, expire.

use std::collections::BTreeSet;
use std::ops::Bound;
use std::time::Duration;

use kaas_proto::control::GONE_TOPIC_AGE;
use kaas_proto::kafka::ErrorCode;
use kaas_proto::kafka::messages::offset_delete::{OffsetDeleteResponsePartition, OffsetDeleteResponseTopic};
use kaas_proto::kafka::messages::offset_fetch::{
    OffsetFetchRequestGroup, OffsetFetchRequestTopics, OffsetFetchResponseGroup, OffsetFetchResponseTopics,
};
use kaas_proto::kafka::messages::{
    OffsetCommitRequest, OffsetCommitResponse, OffsetDeleteRequest, OffsetDeleteResponse,
};
use kaas_proto::types::{PartitionIndex, TimestampMs, TopicId};
use tokio::sync::oneshot;

use super::answer;
use super::consumer_protocol::subscribed_topics;
use super::effect::Now;
use super::error::GroupError;
use super::ids::GroupId;
use super::journal::{Then, Write};
use super::leave::Sender;
use super::ledger::{DurableGroup, commit_records};
use super::offsets::{Expiry, GroupOffsets, TopicPartitions};
use super::phase::GroupState;
use super::record::SlotRecord;
use super::request;
use super::slot::Slot;
use super::state::Group;

/// How many groups one turn of the search for expired offsets looks at, and how soon the next turn comes.
const GROUPS_PER_SWEEP_TURN: usize = 500;
const SWEEP_TURN_INTERVAL: Duration = Duration::from_millis(10);

/// What a commit adds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Growth {
    offsets: usize,
    /// Of texts.
    bytes: usize,
}

/// What the members of a group read.
#[derive(Debug, PartialEq, Eq)]
enum Subscription {
    /// There are no members.
    Nothing,
    Topics(BTreeSet<String>),
    /// Members whose subscriptions can't be read: any topic may be among them.
    Unknown,
}

impl Slot {
    /// Answered when the offsets are durable.
    pub(super) fn commit(
        &mut self,
        now: Now,
        request: &OffsetCommitRequest,
        reply: oneshot::Sender<OffsetCommitResponse>,
    ) {
        let id = GroupId::from(&*request.group_id);
        if let Err(error) = self.check_commit(now, &id, request) {
            let _ = reply.send(answer::commit(request, |_| error.into()));
            return;
        }
        let limit = self.shared.config.max_offset_metadata_bytes;
        let response = answer::commit(request, |metadata| {
            if metadata.len() > limit { ErrorCode::OffsetMetadataTooLarge } else { ErrorCode::None }
        });
        let topics = request.topics.iter();
        let topics = topics.map(|topic| request::topic_offsets(topic, request.retention_time_ms, limit, now.wall));
        let records = commit_records(&id, topics);
        if records.is_empty() {
            let _ = reply.send(response);
            return;
        }
        self.journal.push(Write { group: id, records, then: Then::Commit { reply, response } });
        self.report_usage();
    }

    fn check_commit(&mut self, now: Now, id: &GroupId, request: &OffsetCommitRequest) -> Result<(), GroupError> {
        let sender = Sender::of_commit(request);
        if self.deleting.contains(id) {
            return Err(GroupError::CoordinatorNotAvailable);
        }
        if self.live_group(id).is_some() {
            self.step(now, id, |group, step| group.check_commit(step, &sender))?;
        } else if sender.generation.0 >= 0 {
            let is_known = self.exists(id);
            return Err(if is_known { GroupError::UnknownMemberId } else { GroupError::IllegalGeneration });
        }
        let offsets: usize = request.topics.iter().map(|topic| topic.partitions.len()).sum();
        let (usage, limits) = (self.shared.usage(), self.shared.config.limits);
        let growth = self.growth(id, request);
        if offsets > limits.partitions_per_request
            || growth.offsets > 0 && usage.offsets + growth.offsets > limits.offsets
        {
            self.shared.counters.borrow_mut().offsets_over_limit += 1;
            return Err(GroupError::InvalidCommitOffsetSize);
        }
        self.check_held_bytes(growth.bytes)?;
        let mut counters = self.shared.counters.borrow_mut();
        if self.ledger.group(id).is_none() && usage.durable_groups >= limits.durable_groups {
            counters.groups_over_limit += 1;
            return Err(GroupError::CoordinatorNotAvailable);
        }
        if usage.queued_bytes >= limits.queued_bytes {
            counters.queue_over_limit += 1;
            return Err(GroupError::CoordinatorNotAvailable);
        }
        Ok(())
    }

    /// What a commit adds to what the group has: mostly it takes the place of a former one.
    fn growth(&self, id: &GroupId, request: &OffsetCommitRequest) -> Growth {
        let durable = self.ledger.group(id);
        let mut growth = Growth { offsets: 0, bytes: if durable.is_none() { id.as_str().len() } else { 0 } };
        for topic in &request.topics {
            let mut is_new_topic = true;
            for partition in &topic.partitions {
                let bytes = partition.committed_metadata.as_ref().map_or(0, |metadata| metadata.len());
                let former =
                    durable.and_then(|has| has.offsets.get(&topic.name, topic.topic_id, partition.partition_index));
                is_new_topic &= former.is_none();
                growth.offsets += usize::from(former.is_none());
                growth.bytes += bytes.saturating_sub(former.map_or(0, |former| former.metadata.len()));
            }
            growth.bytes += if is_new_topic { topic.name.len() } else { 0 };
        }
        growth
    }

    pub(super) fn fetch_offsets(&self, request: &OffsetFetchRequestGroup) -> OffsetFetchResponseGroup {
        let partitions: usize = request.topics.iter().flatten().map(|topic| topic.partition_indexes.len()).sum();
        if partitions > self.shared.config.limits.partitions_per_request {
            self.shared.counters.borrow_mut().offsets_over_limit += 1;
            return OffsetFetchResponseGroup {
                group_id: request.group_id.clone(),
                error_code: ErrorCode::InvalidRequest,
                ..OffsetFetchResponseGroup::default()
            };
        }
        let durable = self.ledger.group(&GroupId::from(&*request.group_id));
        let topics = match &request.topics {
            Some(topics) => topics.iter().map(|topic| fetch_topic(durable, topic)).collect(),
            None => durable.map(fetch_all).unwrap_or_default(),
        };
        OffsetFetchResponseGroup { group_id: request.group_id.clone(), topics, ..OffsetFetchResponseGroup::default() }
    }

    /// Forgets offsets; of a group with members only those that nobody subscribes to.
    pub(super) fn delete_offsets(
        &mut self,
        request: &OffsetDeleteRequest,
        reply: oneshot::Sender<OffsetDeleteResponse>,
    ) {
        let id = GroupId::from(&*request.group_id);
        let subscription = match self.check_delete_offsets(&id) {
            Ok(subscription) => subscription,
            Err(error) => {
                let refusal = OffsetDeleteResponse { error_code: error.into(), ..OffsetDeleteResponse::default() };
                let _ = reply.send(refusal);
                return;
            }
        };
        let is_in_use = |topic: &str| match &subscription {
            Subscription::Nothing => false,
            Subscription::Topics(topics) => topics.contains(topic),
            Subscription::Unknown => true,
        };
        let topics = request.topics.iter().map(|topic| {
            let in_use = is_in_use(&topic.name);
            let code = if in_use { GroupError::GroupSubscribedToTopic.into() } else { ErrorCode::None };
            let partitions = topic.partitions.iter().map(|partition| OffsetDeleteResponsePartition {
                partition_index: partition.partition_index,
                error_code: code,
            });
            OffsetDeleteResponseTopic { name: topic.name.clone(), partitions: partitions.collect() }
        });
        let response = OffsetDeleteResponse { topics: topics.collect(), ..OffsetDeleteResponse::default() };
        let gone = request.topics.iter().filter(|topic| !is_in_use(&topic.name)).map(|topic| TopicPartitions {
            name: (&*topic.name).into(),
            id: TopicId::ZERO,
            partitions: topic.partitions.iter().map(|partition| partition.partition_index).collect(),
        });
        let records = vec![SlotRecord::OffsetsDeleted { group: id.clone(), topics: gone.collect() }];
        self.journal.push(Write { group: id, records, then: Then::DeleteOffsets { reply, response } });
        self.report_usage();
    }

    fn check_delete_offsets(&self, id: &GroupId) -> Result<Subscription, GroupError> {
        if !self.exists(id) || self.deleting.contains(id) {
            return Err(GroupError::GroupIdNotFound);
        }
        if self.shared.usage().queued_bytes >= self.shared.config.limits.queued_bytes {
            self.shared.counters.borrow_mut().queue_over_limit += 1;
            return Err(GroupError::CoordinatorNotAvailable);
        }
        match self.live_group(id) {
            Some(group) if group.state() != GroupState::Empty && !is_consumer(group) => Err(GroupError::NonEmptyGroup),
            Some(group) => Ok(subscription(group)),
            None => Ok(Subscription::Nothing),
        }
    }

    /// Topics that are gone take their offsets along.
    pub(super) fn forget_topics(&mut self, topics: &[TopicId]) {
        self.forget_offsets(|offsets| offsets.of_topics(topics));
    }

    /// The same for topics that went while nobody led this slot: they are not among those that there are.
    pub(super) fn retain_topics(&mut self, now: Now, topics: &BTreeSet<TopicId>) {
        let age_ms = i64::try_from(GONE_TOPIC_AGE.as_millis()).unwrap_or(i64::MAX);
        let latest = TimestampMs(now.believed.0.saturating_sub(age_ms));
        let forgotten = self.forget_offsets(|offsets| offsets.of_other_topics(topics, latest));
        if forgotten > 0 {
            tracing::info!(slot = %self.id, offsets = forgotten, "offsets of topics that are gone are forgotten");
        }
    }

    fn forget_offsets(&mut self, of: impl Fn(&GroupOffsets) -> Vec<TopicPartitions>) -> usize {
        let gone: Vec<(GroupId, Vec<TopicPartitions>)> = self
            .ledger
            .groups()
            .map(|(id, durable)| (id.clone(), of(&durable.offsets)))
            .filter(|(_, topics)| !topics.is_empty())
            .collect();
        let count = gone.iter().flat_map(|(_, topics)| topics).map(|topic| topic.partitions.len()).sum();
        for (group, topics) in gone {
            let records = vec![SlotRecord::OffsetsDeleted { group: group.clone(), topics }];
            self.journal.push(Write { group, records, then: Then::Nothing });
        }
        count
    }

    /// One turn of the search for what has been kept for its whole retention.
    pub(super) fn sweep(&mut self, now: Now) {
        let start = self.sweep.after.take().map_or(Bound::Unbounded, Bound::Excluded);
        let turn: Vec<GroupId> =
            self.ledger.groups_from(start).take(GROUPS_PER_SWEEP_TURN).map(|(id, _)| id.clone()).collect();
        for id in &turn {
            self.expire(now, id);
        }
        if turn.len() == GROUPS_PER_SWEEP_TURN {
            self.sweep.after = turn.last().cloned();
            self.sweep.due = now.after(SWEEP_TURN_INTERVAL);
        } else {
            self.sweep.due = now.after(self.shared.config.offsets_retention_check_interval);
        }
    }

    /// Deletes the expired offsets of a group, and the group itself if nothing is left of it.
    fn expire(&mut self, now: Now, id: &GroupId) {
        // What is being written right now is not old; the next sweep looks again.
        if self.journal.has_open_writes(id) {
            return;
        }
        let Some(durable) = self.ledger.group(id) else { return };
        let live = self.live_group(id);
        let retention = self.shared.config.offsets_retention;
        let expired = durable.offsets.expired(&expiry(durable, live), retention, now.believed);
        let count: usize = expired.iter().map(|topic| topic.partitions.len()).sum();
        let is_over = live.is_none() && count == durable.offsets.len();
        let (record, then) = if is_over {
            self.deleting.insert(id.clone());
            (SlotRecord::GroupDeleted { group: id.clone() }, Then::DeleteGroup { reply: None })
        } else if count > 0 {
            (SlotRecord::OffsetsDeleted { group: id.clone(), topics: expired }, Then::Nothing)
        } else {
            return;
        };
        tracing::info!(group = %id, offsets = count, group_too = is_over, "offsets have expired");
        self.shared.counters.borrow_mut().expired_offsets += count as u64;
        self.journal.push(Write { group: id.clone(), records: vec![record], then });
    }
}

fn fetch_topic(durable: Option<&DurableGroup>, topic: &OffsetFetchRequestTopics) -> OffsetFetchResponseTopics {
    let committed = |partition: PartitionIndex| durable?.offsets.get(&topic.name, topic.topic_id, partition);
    let partitions =
        topic.partition_indexes.iter().map(|&partition| answer::fetched_partition(partition, committed(partition)));
    answer::fetched_topic(topic.name.clone(), topic.topic_id, partitions.collect())
}

fn fetch_all(durable: &DurableGroup) -> Vec<OffsetFetchResponseTopics> {
    let topics = durable.offsets.topics().map(|topic| {
        let partitions =
            topic.partitions.iter().map(|(&partition, offset)| answer::fetched_partition(partition, Some(offset)));
        answer::fetched_topic((&*topic.name).into(), topic.id, partitions.collect())
    });
    topics.collect()
}

/// From when the offsets of a group are of no use to anybody.
fn expiry(durable: &DurableGroup, live: Option<&Group>) -> Expiry {
    match (live, &durable.metadata) {
        (Some(group), _) if group.state() == GroupState::Empty => Expiry::SinceEmpty(group.since()),
        (Some(group), _) if group.state() == GroupState::Stable && is_consumer(group) => match subscription(group) {
            Subscription::Topics(topics) => Expiry::Unsubscribed(topics),
            Subscription::Nothing | Subscription::Unknown => Expiry::Never,
        },
        (Some(_), _) => Expiry::Never,
        (None, Some(metadata)) => Expiry::SinceEmpty(metadata.since),
        // Only ever committed to, without members.
        (None, None) => Expiry::SinceEmpty(TimestampMs(i64::MIN)),
    }
}

fn is_consumer(group: &Group) -> bool {
    group
        .protocol_type()
        .is_some_and(|name| name.as_str() == kaas_proto::kafka::consumer_protocol::CONSUMER_PROTOCOL_TYPE)
}

/// All topics of all protocols that any member offers.
fn subscription(group: &Group) -> Subscription {
    if group.members().is_empty() {
        return Subscription::Nothing;
    }
    let offers = group.members().values().flat_map(|member| member.profile.protocols.iter());
    let topics: Option<Vec<BTreeSet<String>>> = offers.map(|offer| subscribed_topics(&offer.metadata)).collect();
    match topics {
        Some(topics) => Subscription::Topics(topics.into_iter().flatten().collect()),
        None => Subscription::Unknown,
    }
}
