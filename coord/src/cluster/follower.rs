//! What this broker does about an assignment: takes over, hands over, lets go. Pure: facts in, steps out.
//!
//! ```text
//!               assigned, with somebody who hands over        that one has let go, or HANDOVER_WAIT is over
//!   (nothing) ──────────────────────────────────────▶ Awaiting ──────────────────┐
//!       │        assigned, with nobody to wait for                               ▼
//!       └──────────────────────────────────────────────────────────────────▶  Told ◀─── assigned again ───┐
//!                                              assigned to another: │ Relinquish                         │
//!                                                                   ▼                                    │
//!                              (nothing) ◀── Relinquished ──── Relinquishing ────────────────────────────┘
//! ```
//!
//! A topic that is gone is abandoned from any state: closed, and nothing persisted.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use kaas_proto::control::{GONE_TOPIC_AGE, PartitionChange, PartitionKey};
use kaas_proto::format::assignment::Assignment;
use kaas_proto::types::{BrokerId, Incarnation, LeaderEpoch, TopicId};
use tokio::time::Instant;

use super::releases::{RecentReleases, Releases};

/// How long a new leader waits for the word of the one before it. Then it takes over without: the fence stops that one.
pub const HANDOVER_WAIT: Duration = Duration::from_millis(500);

/// What to do next for a partition or topic.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    TakeOver {
        partition: PartitionKey,
        topic: Arc<str>,
        epoch: LeaderEpoch,
    },
    Relinquish {
        partition: PartitionKey,
    },
    /// On every shard.
    Abandon {
        topic_id: TopicId,
    },
    /// This broker is no longer to lead it, and has nothing more to do for that.
    Forget {
        partition: PartitionKey,
    },
    Report(Report),
    /// On every shard: these topics there are, and no others.
    RetainTopics {
        topics: BTreeSet<TopicId>,
    },
}

/// What the controller must hear of a partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Report {
    pub partition: PartitionKey,
    pub epoch: LeaderEpoch,
    pub what: What,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    /// This broker leads at an epoch above the one that it was told.
    Leads,
    /// Somebody holds the epoch, or a higher one.
    Superseded,
    /// This broker leads no longer.
    Relinquished,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Awaiting { until: Instant },
    Told,
    Relinquishing,
}

#[derive(Clone, Debug)]
struct Held {
    topic: Arc<str>,
    /// What the newest assignment says.
    epoch: LeaderEpoch,
    state: State,
    /// The epoch that is led.
    led: Option<LeaderEpoch>,
    /// The highest epoch that somebody else was found to hold.
    superseded: Option<LeaderEpoch>,
}

/// Control thread, of every broker.
#[derive(Debug)]
pub struct Follower {
    broker: BrokerId,
    incarnation: Incarnation,
    held: HashMap<PartitionKey, Held>,
    /// Topics of the newest assignment.
    topics: BTreeSet<TopicId>,
    /// Topics that are gone, though an assignment may still name them.
    deleted: HashSet<TopicId>,
    /// What may be let go for this broker, before it was told to lead it.
    releases: Releases,
    /// What this broker itself has let go of.
    own_releases: RecentReleases,
    /// When slots that were taken over are to be told which topics there are.
    retain_due: Option<Instant>,
}

impl Follower {
    #[must_use]
    pub fn new(broker: BrokerId, incarnation: Incarnation) -> Self {
        Self {
            broker,
            incarnation,
            held: HashMap::new(),
            topics: BTreeSet::new(),
            deleted: HashSet::new(),
            releases: Releases::default(),
            own_releases: RecentReleases::default(),
            retain_due: None,
        }
    }

    /// A newer assignment is to be followed. Coordinator slots come first, because a group waits for one.
    pub fn adopt(&mut self, assignment: &Assignment, now: Instant) -> Vec<Step> {
        let mut steps = Vec::new();
        let mut mine = HashSet::new();
        if assignment.broker(self.broker).is_some_and(|row| row.incarnation == self.incarnation) {
            let (me, nameless): (_, Arc<str>) = (self.broker, "".into());
            for slot in assignment.consumer_groups.iter().filter(|slot| slot.leader == me) {
                let key = PartitionKey::of_slot(slot.slot);
                mine.insert(key);
                self.assigned(key, &nameless, slot.epoch, slot.previous, now, &mut steps);
            }
            for partition in assignment.partitions.iter().filter(|partition| partition.leader == me) {
                if self.deleted.contains(&partition.topic_id) {
                    continue;
                }
                let key = partition.key();
                mine.insert(key);
                self.assigned(key, &partition.topic, partition.epoch, partition.previous, now, &mut steps);
            }
        }
        let topics: BTreeSet<TopicId> = assignment.partitions.iter().map(|partition| partition.topic_id).collect();
        let gone: BTreeSet<TopicId> = self.topics.difference(&topics).copied().collect();
        self.releases.settle(assignment, &gone);
        self.topics = topics;
        for topic_id in gone {
            // Once it is in no assignment, it never is again.
            if !self.deleted.remove(&topic_id) {
                self.abandon(topic_id, &mut steps);
            }
        }
        let mut others: Vec<PartitionKey> = self.held.keys().filter(|key| !mine.contains(key)).copied().collect();
        others.sort_unstable();
        for partition in others {
            self.let_go(partition, now, &mut steps);
        }
        steps
    }

    fn assigned(
        &mut self,
        partition: PartitionKey,
        topic: &Arc<str>,
        epoch: LeaderEpoch,
        previous: Option<BrokerId>,
        now: Instant,
        steps: &mut Vec<Step>,
    ) {
        let others = previous.is_some_and(|previous| previous != self.broker);
        let must_wait = others && !self.releases.precede(partition, epoch);
        let take_over = Step::TakeOver { partition, topic: Arc::clone(topic), epoch };
        match self.held.get_mut(&partition) {
            None => {
                let state = if must_wait { State::Awaiting { until: now + HANDOVER_WAIT } } else { State::Told };
                let held = Held { topic: Arc::clone(topic), epoch, state, led: None, superseded: None };
                self.held.insert(partition, held);
                if state == State::Told {
                    steps.push(take_over);
                }
            }
            Some(held) => {
                let is_newer = held.epoch < epoch;
                held.epoch = held.epoch.max(epoch);
                match held.state {
                    State::Awaiting { .. } if must_wait => {}
                    State::Told if !is_newer => {}
                    State::Awaiting { .. } | State::Told | State::Relinquishing => {
                        held.state = State::Told;
                        held.superseded = held.superseded.filter(|&superseded| superseded >= epoch);
                        steps.push(take_over);
                    }
                }
            }
        }
    }

    /// Another broker is to lead it.
    fn let_go(&mut self, partition: PartitionKey, now: Instant, steps: &mut Vec<Step>) {
        let Some(held) = self.held.get_mut(&partition) else { return };
        match held.state {
            State::Relinquishing => {}
            State::Told => {
                held.state = State::Relinquishing;
                steps.push(Step::Relinquish { partition });
            }
            // No shard has heard of it.
            State::Awaiting { .. } => {
                let epoch = held.epoch;
                steps.extend(self.forget(partition, epoch, now));
            }
        }
    }

    fn forget(&mut self, partition: PartitionKey, epoch: LeaderEpoch, now: Instant) -> [Step; 2] {
        self.held.remove(&partition);
        self.own_releases.note(partition, epoch, now);
        [Step::Forget { partition }, Step::Report(Report { partition, epoch, what: What::Relinquished })]
    }

    fn abandon(&mut self, topic_id: TopicId, steps: &mut Vec<Step>) {
        self.held.retain(|partition, _| partition.topic_id != topic_id);
        steps.push(Step::Abandon { topic_id });
    }

    /// The topic is gone, before an assignment says so. Nothing of it is taken over again.
    pub fn delete_topic(&mut self, topic_id: TopicId) -> Vec<Step> {
        let mut steps = Vec::new();
        if self.topics.contains(&topic_id) && self.deleted.insert(topic_id) {
            self.abandon(topic_id, &mut steps);
        }
        steps
    }

    /// Whether the topic is known to be gone.
    #[must_use]
    pub fn is_deleted(&self, topic_id: TopicId) -> bool {
        self.deleted.contains(&topic_id)
    }

    /// A broker that led the partition, with this epoch, has let go of it.
    pub fn released(&mut self, partition: PartitionKey, epoch: LeaderEpoch) -> Option<Step> {
        match self.held.get_mut(&partition) {
            Some(held) if matches!(held.state, State::Awaiting { .. }) => Some(held.begin(partition)),
            // It was before this broker.
            Some(held) if epoch < held.epoch => None,
            // It may be ahead of the assignment that tells why.
            Some(_) | None => {
                self.releases.note(partition, epoch);
                None
            }
        }
    }

    /// How often releases were forgotten, because there were too many.
    #[must_use]
    pub fn forgotten_releases(&self) -> u64 {
        self.releases.forgotten()
    }

    /// Takes over what was waited for long enough, and says which topics there are once slots have been led for a while.
    pub fn clock(&mut self, now: Instant) -> Vec<Step> {
        let due = self.held.iter_mut().filter(|(_, held)| held.waits_until().is_some_and(|until| until <= now));
        let mut steps: Vec<Step> = due.map(|(&partition, held)| held.begin(partition)).collect();
        if self.retain_due.is_some_and(|due| due <= now) {
            self.retain_due = None;
            let topics = self.topics.iter().filter(|topic_id| !self.deleted.contains(topic_id)).copied().collect();
            steps.push(Step::RetainTopics { topics });
        }
        steps
    }

    /// When [`Follower::clock`] has something to do next.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Instant> {
        self.held.values().filter_map(Held::waits_until).chain(self.retain_due).min()
    }

    /// Takes note of what a shard reports.
    pub fn changed(&mut self, partition: PartitionKey, change: &PartitionChange, now: Instant) -> Vec<Step> {
        let Some(held) = self.held.get_mut(&partition) else { return Vec::new() };
        match *change {
            PartitionChange::Leading { epoch } => {
                if partition.slot().is_some() {
                    self.retain_due = Some(now + GONE_TOPIC_AGE);
                }
                held.led = Some(epoch);
                held.superseded = None;
            }
            PartitionChange::Superseded { epoch, .. } => {
                held.led = None;
                held.superseded = held.superseded.max(Some(epoch));
            }
            PartitionChange::Relinquished { epoch } if held.state == State::Relinquishing => {
                return self.forget(partition, epoch, now).into();
            }
            PartitionChange::Relinquished { .. } | PartitionChange::Failed { .. } | PartitionChange::Stalled(_) => {
                return Vec::new();
            }
        }
        held.owed(partition).map(Step::Report).into_iter().collect()
    }

    /// What a controller that knows nothing but the assignment must hear: also what was let go of a moment ago, because who is to
    /// lead it next may wait for the word of it.
    #[must_use]
    pub fn outstanding(&self, now: Instant) -> Vec<Report> {
        let owed = self.held.iter().filter_map(|(&partition, held)| held.owed(partition));
        let released =
            self.own_releases.at(now).into_iter().filter(|(partition, _)| !self.held.contains_key(partition));
        let released = released.map(|(partition, epoch)| Report { partition, epoch, what: What::Relinquished });
        owed.chain(released).collect()
    }

    /// The partitions that shards are to lead, with the epoch that they were told, to repeat with another configuration.
    pub fn led_of(&self, topic_id: TopicId) -> impl Iterator<Item = (PartitionKey, LeaderEpoch)> {
        let of_topic = self.held.iter().filter(move |(partition, _)| partition.topic_id == topic_id);
        let told = of_topic.filter(|(_, held)| held.state == State::Told && held.superseded.is_none());
        told.map(|(&partition, held)| (partition, held.epoch))
    }

    /// The epoch that this broker leads the partition with, if it leads it.
    #[must_use]
    pub fn led(&self, partition: PartitionKey) -> Option<LeaderEpoch> {
        self.held.get(&partition)?.led
    }

    /// The topic of a partition that is held; empty for a slot.
    #[must_use]
    pub fn topic(&self, partition: PartitionKey) -> Option<&Arc<str>> {
        Some(&self.held.get(&partition)?.topic)
    }

    /// Whether this broker has let go of everything.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.held.is_empty()
    }
}

impl Held {
    fn waits_until(&self) -> Option<Instant> {
        match self.state {
            State::Awaiting { until } => Some(until),
            State::Told | State::Relinquishing => None,
        }
    }

    fn begin(&mut self, partition: PartitionKey) -> Step {
        self.state = State::Told;
        Step::TakeOver { partition, topic: Arc::clone(&self.topic), epoch: self.epoch }
    }

    fn owed(&self, partition: PartitionKey) -> Option<Report> {
        let report = |what| move |epoch| Report { partition, epoch, what };
        let superseded = self.superseded.filter(|&epoch| epoch >= self.epoch).map(report(What::Superseded));
        superseded.or_else(|| self.led.filter(|&led| led > self.epoch).map(report(What::Leads)))
    }
}

#[cfg(test)]
#[path = "follower_tests.rs"]
mod tests;
