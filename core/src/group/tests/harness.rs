//! A group with a clock, a log that writes when told to, and a list of who got which answer.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use bytes::Bytes;
use kaas_proto::types::{GenerationId, TimestampMs};

use crate::env::MonotonicTime;
use crate::group::config::GroupConfig;
use crate::group::effect::{AfterStore, Effect, GroupCounters, JoinRefused, Joined, Now, Step, Synced, Waiter};
use crate::group::error::GroupError;
use crate::group::ids::MemberId;
use crate::group::join::JoinRequest;
use crate::group::leave::{Leaving, Sender};
use crate::group::metadata::GroupMetadata;
use crate::group::phase::GroupState;
use crate::group::protocol::Protocol;
use crate::group::state::Group;
use crate::group::sync::SyncRequest;

pub(super) const SESSION: Duration = Duration::from_secs(10);
pub(super) const REBALANCE: Duration = Duration::from_secs(60);

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Answer {
    Join(Result<Joined, JoinRefused>),
    Sync(Result<Synced, GroupError>),
}

pub(super) struct World {
    pub(super) group: Group,
    pub(super) config: GroupConfig,
    pub(super) counters: GroupCounters,
    pub(super) now: Now,
    answers: BTreeMap<Waiter, Answer>,
    /// Writes under way.
    pub(super) stores: VecDeque<(GroupMetadata, AfterStore)>,
    /// What is durable.
    pub(super) durable: Option<GroupMetadata>,
    /// Whether writes complete at once.
    pub(super) writes: bool,
    waiters: u64,
}

/// A dynamic consumer, as versions below 4 join.
pub(super) fn consumer(name: &str) -> JoinRequest {
    JoinRequest {
        member_id: None,
        instance_id: None,
        client_id: name.into(),
        client_host: "/127.0.0.1".into(),
        session_timeout: SESSION,
        rebalance_timeout: REBALANCE,
        protocol_type: "consumer".into(),
        protocols: offers(&[("range", "sub")]),
        requires_member_id: false,
        can_skip_assignment: false,
        random: 0,
    }
}

pub(super) fn static_consumer(instance: &str) -> JoinRequest {
    JoinRequest { instance_id: Some(instance.into()), ..consumer(instance) }
}

pub(super) fn offers(offers: &[(&str, &str)]) -> std::rc::Rc<[Protocol]> {
    let protocol = |(name, metadata): &(&str, &str)| Protocol {
        name: (*name).into(),
        metadata: Bytes::copy_from_slice(metadata.as_bytes()),
    };
    offers.iter().map(protocol).collect()
}

impl JoinRequest {
    pub(super) fn with_id(mut self, id: &MemberId) -> Self {
        self.member_id = Some(id.clone());
        self
    }

    pub(super) fn offering(mut self, protocols: &[(&str, &str)]) -> Self {
        self.protocols = offers(protocols);
        self
    }
}

impl World {
    pub(super) fn new() -> Self {
        let now = Now { monotonic: MonotonicTime(0), wall: TimestampMs(1_000_000), believed: TimestampMs(1_000_000) };
        Self {
            group: Group::new("group".into(), now),
            config: GroupConfig::default(),
            counters: GroupCounters::default(),
            now,
            answers: BTreeMap::new(),
            stores: VecDeque::new(),
            durable: None,
            writes: true,
            waiters: 0,
        }
    }

    /// A stable group of these consumers; the first one leads. Returns their ids.
    pub(super) fn stable(requests: &[JoinRequest]) -> (Self, Vec<MemberId>) {
        let mut world = Self::new();
        let waiters: Vec<_> = requests.iter().map(|request| world.join(request.clone())).collect();
        while world.is_parked(waiters[0]) {
            world.pass(world.config.initial_rebalance_delay);
        }
        let ids: Vec<_> = waiters.into_iter().map(|waiter| world.joined(waiter).member_id).collect();
        let assignments: Vec<_> = ids.iter().map(|id| (id.clone(), format!("work of {id}"))).collect();
        for id in &ids {
            world.sync(id, if *id == ids[0] { &assignments } else { &[] });
        }
        assert_eq!(world.group.state(), GroupState::Stable);
        (world, ids)
    }

    pub(super) fn step<T>(&mut self, act: impl FnOnce(&mut Group, &mut Step<'_>) -> T) -> T {
        let mut effects = Vec::new();
        let mut step =
            Step { now: self.now, config: &self.config, counters: &mut self.counters, effects: &mut effects };
        let value = act(&mut self.group, &mut step);
        let generations: BTreeSet<GenerationId> = effects
            .iter()
            .filter_map(|effect| match effect {
                Effect::AnswerJoin { answer: Ok(joined), .. } => Some(joined.generation),
                _ => None,
            })
            .collect();
        assert!(generations.len() <= 1, "one round, two generations: {generations:?}");
        for effect in effects {
            match effect {
                Effect::AnswerJoin { waiter, answer } => self.answer(waiter, Answer::Join(answer)),
                Effect::AnswerSync { waiter, answer } => self.answer(waiter, Answer::Sync(answer)),
                Effect::Store { metadata, then } => self.stores.push_back((metadata, then)),
            }
        }
        self.check_invariants();
        if self.writes {
            self.finish_writes(Ok(()));
        }
        value
    }

    fn answer(&mut self, waiter: Waiter, answer: Answer) {
        let former = self.answers.insert(waiter, answer.clone());
        assert_eq!(former, None, "{waiter:?} is answered twice, now with {answer:?}");
    }

    /// Completes all writes that are under way.
    pub(super) fn finish_writes(&mut self, outcome: Result<(), GroupError>) {
        while let Some((metadata, then)) = self.stores.pop_front() {
            assert_eq!(metadata.check(), Ok(()), "what is stored must be good to start from");
            if outcome.is_ok() {
                self.durable = Some(metadata);
            }
            match then {
                AfterStore::Nothing => {}
                AfterStore::Assign { generation } => {
                    self.step(|group, step| group.assignment_stored(step, generation, outcome));
                }
                AfterStore::AnswerJoin { waiter, joined } => {
                    self.answer(waiter, Answer::Join(outcome.map(|()| joined).map_err(Into::into)));
                }
            }
        }
    }

    /// Lets time pass, ticking whenever the group has asked for it.
    pub(super) fn pass(&mut self, duration: Duration) {
        let end = self.now.after(duration);
        loop {
            let next = self.group.alarm().filter(|alarm| *alarm <= end);
            let moment = next.unwrap_or(end).max(self.now.monotonic);
            let passed_ms = (moment.0 - self.now.monotonic.0) / 1_000_000;
            self.now.wall.0 += i64::try_from(passed_ms).unwrap();
            self.now.believed = self.now.wall;
            self.now.monotonic = moment;
            if next.is_none() {
                return;
            }
            self.step(Group::tick);
            assert!(self.group.alarm().is_none_or(|alarm| Some(alarm) > next), "a tick must move the alarm on");
        }
    }

    pub(super) fn waiter(&mut self) -> Waiter {
        self.waiters += 1;
        Waiter(self.waiters)
    }

    pub(super) fn join(&mut self, mut request: JoinRequest) -> Waiter {
        let waiter = self.waiter();
        request.random = u128::from(waiter.0);
        self.step(|group, step| group.join(step, &request, waiter));
        waiter
    }

    pub(super) fn sync_request(&self, id: &MemberId, assignments: &[(MemberId, String)]) -> SyncRequest {
        SyncRequest {
            member_id: id.clone(),
            instance_id: None,
            generation: self.group.generation(),
            protocol_type: Some("consumer".into()),
            protocol: self.group.protocol().cloned(),
            assignments: assignments.iter().map(|(id, work)| (id.clone(), Bytes::from(work.clone()))).collect(),
        }
    }

    pub(super) fn sync(&mut self, id: &MemberId, assignments: &[(MemberId, String)]) -> Waiter {
        let request = self.sync_request(id, assignments);
        self.sync_with(&request)
    }

    pub(super) fn sync_with(&mut self, request: &SyncRequest) -> Waiter {
        let waiter = self.waiter();
        self.step(|group, step| group.sync(step, request, waiter));
        waiter
    }

    pub(super) fn sender(&self, id: &MemberId) -> Sender {
        Sender { member_id: Some(id.clone()), instance_id: None, generation: self.group.generation() }
    }

    pub(super) fn heartbeat(&mut self, id: &MemberId) -> Result<(), GroupError> {
        let sender = self.sender(id);
        self.step(|group, step| group.heartbeat(step, &sender))
    }

    pub(super) fn commit(&mut self, sender: &Sender) -> Result<(), GroupError> {
        self.step(|group, step| group.check_commit(step, sender))
    }

    pub(super) fn leave(&mut self, id: &MemberId) -> Result<(), GroupError> {
        let leaving = [Leaving { member_id: Some(id.clone()), instance_id: None }];
        self.step(|group, step| group.leave(step, &leaving))[0]
    }

    pub(super) fn answered(&self, waiter: Waiter) -> Option<&Answer> {
        self.answers.get(&waiter)
    }

    pub(super) fn is_parked(&self, waiter: Waiter) -> bool {
        !self.answers.contains_key(&waiter)
    }

    #[track_caller]
    pub(super) fn joined(&self, waiter: Waiter) -> Joined {
        match self.answered(waiter) {
            Some(Answer::Join(Ok(joined))) => joined.clone(),
            other => panic!("not joined: {other:?}"),
        }
    }

    #[track_caller]
    pub(super) fn join_refused(&self, waiter: Waiter) -> JoinRefused {
        match self.answered(waiter) {
            Some(Answer::Join(Err(refused))) => refused.clone(),
            other => panic!("not refused: {other:?}"),
        }
    }

    #[track_caller]
    pub(super) fn synced(&self, waiter: Waiter) -> Result<Bytes, GroupError> {
        match self.answered(waiter) {
            Some(Answer::Sync(answer)) => answer.clone().map(|synced| synced.assignment),
            other => panic!("not synced: {other:?}"),
        }
    }

    pub(super) fn state(&self) -> GroupState {
        self.group.state()
    }

    pub(super) fn generation(&self) -> GenerationId {
        self.group.generation()
    }

    pub(super) fn ids(&self) -> Vec<MemberId> {
        self.group.members().keys().cloned().collect()
    }

    /// What holds after every step, whatever happened before.
    pub(super) fn check_invariants(&self) {
        let group = &self.group;
        group.check_invariants();
        let parked: Vec<Waiter> =
            group.members().values().flat_map(|member| [member.joining, member.syncing]).flatten().collect();
        for waiter in &parked {
            assert!(self.is_parked(*waiter), "{waiter:?} is answered and still parked");
        }
        let stored = self.stores.iter().filter_map(|(_, then)| match then {
            AfterStore::AnswerJoin { waiter, .. } => Some(*waiter),
            _ => None,
        });
        let held = parked.len() + stored.count();
        assert!(held <= usize::try_from(self.waiters).unwrap());
    }

    /// All requests that were made and neither answered nor held by the group or a write.
    pub(super) fn lost_waiters(&self) -> Vec<Waiter> {
        let parked = self.group.members().values().flat_map(|member| [member.joining, member.syncing]).flatten();
        let stored = self.stores.iter().filter_map(|(_, then)| match then {
            AfterStore::AnswerJoin { waiter, .. } => Some(*waiter),
            _ => None,
        });
        let held: BTreeSet<Waiter> = parked.chain(stored).collect();
        (1..=self.waiters).map(Waiter).filter(|w| self.is_parked(*w) && !held.contains(w)).collect()
    }
}

impl Group {
    /// What holds between any two steps.
    pub(super) fn check_invariants(&self) {
        let state = self.state;
        assert_eq!(state == GroupState::Empty, self.members.is_empty() && self.state == GroupState::Empty);
        if state == GroupState::Empty {
            assert!(self.members.is_empty() && self.leader.is_none() && self.protocol.is_none());
        }
        if matches!(state, GroupState::Stable | GroupState::CompletingRebalance) {
            assert!(!self.members.is_empty(), "{state:?} without members");
            assert!(self.protocol.is_some());
        }
        assert_eq!(self.leader.is_some(), !self.members.is_empty());
        if let Some(leader) = &self.leader {
            assert!(self.members.contains_key(leader), "the leader is a member");
        }
        let of_members: BTreeMap<_, _> = self
            .members
            .values()
            .filter_map(|member| Some((member.profile.instance_id.clone()?, member.profile.id.clone())))
            .collect();
        assert_eq!(of_members, self.static_members);
        assert!(self.members.iter().all(|(id, member)| *id == member.profile.id));
        assert!(self.pending.keys().all(|id| !self.members.contains_key(id)));
        assert_eq!(self.membership_bytes, self.members.values().map(|member| member.profile.bytes()).sum::<usize>());
        for member in self.members.values() {
            assert!(member.joining.is_none() || state == GroupState::PreparingRebalance, "joins park in rounds");
            assert!(member.syncing.is_none() || state == GroupState::CompletingRebalance, "syncs park in rounds");
        }
        if let Some(round) = &self.syncing {
            assert!(round.awaited.iter().all(|id| self.members.contains_key(id)));
            assert!(matches!(state, GroupState::CompletingRebalance | GroupState::Stable));
        }
        assert!(state != GroupState::CompletingRebalance || self.syncing.is_some());
        if state != GroupState::Dead {
            let due = self.next_deadline();
            assert!(due.is_none() || self.alarm().is_some_and(|alarm| alarm <= due.unwrap()), "the alarm is too late");
            let anyone = !self.members.is_empty() || !self.pending.is_empty();
            assert!(!anyone || due.is_some(), "somebody waits and no timer is set");
        }
    }
}
