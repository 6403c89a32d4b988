//! Fetch sessions (KIP-227): what a consumer wants is remembered, so that it names changes only and is told news only.
//!
//! Pure and shard-local: `(request, now) -> partitions to read`, then `rows -> rows to send`. A session lives on the shard
//! that accepted the connection it was opened on. A client that comes back on another shard is told
//! FETCH_SESSION_ID_NOT_FOUND and opens a new one; ids of different shards never meet.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use kaas_core::env::MonotonicTime;
use kaas_proto::kafka::messages::FetchRequest;
use kaas_proto::kafka::messages::fetch::{FetchTopic, PartitionData};
use kaas_proto::kafka::{ErrorCode, KafkaString};
use kaas_proto::types::{LeaderEpoch, Offset, PartitionIndex, ShardId};

use crate::cluster::TopicRef;
use crate::limits::{FETCH_SESSION_IDLE, FETCH_SESSION_PARTITIONS};

/// From this version on topics are named by id.
pub(crate) const TOPIC_IDS: i16 = 13;
/// In a request of this epoch no session is wanted, or the one that is named shall end.
const FINAL_EPOCH: i32 = -1;
/// A request of this epoch opens a session.
const INITIAL_EPOCH: i32 = 0;

/// A partition and what to read of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Wanted {
    pub(crate) topic: TopicRef,
    pub(crate) index: PartitionIndex,
    pub(crate) offset: Offset,
    pub(crate) max_bytes: usize,
    pub(crate) current_leader_epoch: Option<LeaderEpoch>,
    pub(crate) last_fetched_epoch: Option<LeaderEpoch>,
}

/// What a request is about, its session considered.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Begun {
    /// 0: no session.
    pub(crate) session_id: i32,
    /// Whether news alone are sent.
    pub(crate) incremental: bool,
    /// In the order in which they share the response.
    pub(crate) partitions: Vec<Wanted>,
}

type Key = (TopicRef, PartitionIndex);

/// The sessions of one shard.
#[derive(Debug)]
pub(crate) struct FetchSessions {
    sessions: HashMap<i32, Session>,
    slots: usize,
    /// Of all sessions.
    partitions: usize,
    shard: ShardId,
    shards: u16,
}

#[derive(Debug)]
struct Session {
    /// What the next request must say.
    next_epoch: i32,
    by_id: bool,
    /// A request is under way: another one would keep a second copy of what is wanted, for as long as it waits.
    in_use: bool,
    used_at: MonotonicTime,
    cached: HashMap<Key, Cached>,
    /// Positions in the order of the response. What was sent moves to the end, so that all partitions get their turn.
    order: BTreeMap<u64, Key>,
    next_position: u64,
}

#[derive(Debug)]
struct Cached {
    wanted: Wanted,
    position: u64,
    /// High watermark and log start offset that the client knows.
    told: Option<(Offset, Offset)>,
}

impl FetchSessions {
    pub(crate) fn new(slots: usize, shard: ShardId, shards: u16) -> Self {
        Self { sessions: HashMap::new(), slots, partitions: 0, shard, shards }
    }

    pub(crate) fn len(&self) -> usize {
        self.sessions.len()
    }

    /// Opens, continues or ends a session. `random` makes its id.
    ///
    /// # Errors
    /// What the whole request is refused with.
    pub(crate) fn begin(
        &mut self,
        request: &FetchRequest,
        version: i16,
        now: MonotonicTime,
        random: impl FnOnce() -> u64,
    ) -> Result<Begun, ErrorCode> {
        let (id, epoch) = (request.session_id, request.session_epoch);
        let by_id = version >= TOPIC_IDS;
        if epoch != FINAL_EPOCH && epoch != INITIAL_EPOCH {
            return self.go_on(request, by_id, now);
        }
        self.remove(id);
        let partitions = distinct(request.topics.iter().flat_map(|topic| wanted(topic, by_id)).collect());
        let session_id = if epoch == INITIAL_EPOCH { self.open(&partitions, by_id, now, random) } else { 0 };
        Ok(Begun { session_id, incremental: false, partitions })
    }

    /// The request of this session that was under way is over.
    pub(crate) fn release(&mut self, id: i32) {
        if let Some(session) = self.sessions.get_mut(&id) {
            session.in_use = false;
        }
    }

    /// The rows to send: news alone if the response is incremental. What was sent goes behind the rest next time.
    pub(crate) fn finish(&mut self, begun: &Begun, rows: Vec<PartitionData>) -> Vec<(TopicRef, PartitionData)> {
        let mut session = self.sessions.get_mut(&begun.session_id);
        let mut sent = Vec::with_capacity(rows.len());
        for (wanted, row) in begun.partitions.iter().zip(rows) {
            let news = session.as_mut().is_none_or(|session| session.tell(wanted, &row));
            if news || !begun.incremental {
                sent.push((wanted.topic.clone(), row));
            }
        }
        sent
    }

    fn open(&mut self, partitions: &[Wanted], by_id: bool, now: MonotonicTime, random: impl FnOnce() -> u64) -> i32 {
        if partitions.is_empty() || !self.make_room(partitions.len(), now) {
            return 0;
        }
        let id = self.free_id(random());
        let mut session = Session {
            next_epoch: 1,
            by_id,
            in_use: true,
            used_at: now,
            cached: HashMap::new(),
            order: BTreeMap::new(),
            next_position: 0,
        };
        partitions.iter().for_each(|wanted| session.want(wanted.clone()));
        self.partitions += session.cached.len();
        self.sessions.insert(id, session);
        id
    }

    fn go_on(&mut self, request: &FetchRequest, by_id: bool, now: MonotonicTime) -> Result<Begun, ErrorCode> {
        let id = request.session_id;
        let session = self.sessions.get_mut(&id).ok_or(ErrorCode::FetchSessionIdNotFound)?;
        if session.by_id != by_id {
            return Err(ErrorCode::FetchSessionTopicIdError);
        }
        if session.next_epoch != request.session_epoch || session.in_use {
            return Err(ErrorCode::InvalidFetchSessionEpoch);
        }
        let before = session.cached.len();
        for topic in &request.topics {
            wanted(topic, by_id).for_each(|wanted| session.want(wanted));
        }
        for topic in &request.forgotten_topics_data {
            let name = if by_id { TopicRef::Id(topic.topic_id) } else { TopicRef::Name(topic.topic.clone()) };
            for index in &topic.partitions {
                session.forget(&(name.clone(), *index));
            }
        }
        (session.in_use, session.used_at) = (true, now);
        session.next_epoch = if request.session_epoch == i32::MAX { 1 } else { request.session_epoch + 1 };
        let partitions: Vec<Wanted> = session.in_order().cloned().collect();
        self.partitions = self.partitions + partitions.len() - before;
        if partitions.is_empty() {
            self.remove(id);
            return Ok(Begun { session_id: 0, incremental: false, partitions });
        }
        if self.partitions > FETCH_SESSION_PARTITIONS {
            self.remove(id);
            return Err(ErrorCode::FetchSessionIdNotFound);
        }
        Ok(Begun { session_id: id, incremental: true, partitions })
    }

    fn remove(&mut self, id: i32) {
        if let Some(session) = self.sessions.remove(&id) {
            self.partitions -= session.cached.len();
        }
    }

    /// Ends sessions that nobody uses until another one fits. Those in use stay: who comes last goes without.
    fn make_room(&mut self, partitions: usize, now: MonotonicTime) -> bool {
        while self.sessions.len() >= self.slots || self.partitions + partitions > FETCH_SESSION_PARTITIONS {
            let Some((&id, oldest)) = self.sessions.iter().min_by_key(|(_, session)| session.used_at) else {
                return false;
            };
            if Duration::from_nanos(now.0.saturating_sub(oldest.used_at.0)) < FETCH_SESSION_IDLE {
                return false;
            }
            self.remove(id);
        }
        true
    }

    /// A positive number that is this shard's modulo the number of shards, and free.
    fn free_id(&self, random: u64) -> i32 {
        let (shards, own) = (u64::from(self.shards), u64::from(self.shard.0));
        let mut candidate = random;
        loop {
            let id = candidate % (u64::from(i32::MAX.unsigned_abs()) / shards) * shards + own;
            let id = i32::try_from(id).expect("below i32::MAX");
            if id > 0 && !self.sessions.contains_key(&id) {
                return id;
            }
            candidate = candidate.wrapping_add(1);
        }
    }
}

impl Session {
    fn want(&mut self, wanted: Wanted) {
        let key = (wanted.topic.clone(), wanted.index);
        if let Some(cached) = self.cached.get_mut(&key) {
            cached.wanted = wanted;
            return;
        }
        let position = self.next_position;
        self.next_position += 1;
        self.order.insert(position, key.clone());
        self.cached.insert(key, Cached { wanted, position, told: None });
    }

    fn forget(&mut self, key: &Key) {
        if let Some(cached) = self.cached.remove(key) {
            self.order.remove(&cached.position);
        }
    }

    fn in_order(&self) -> impl Iterator<Item = &Wanted> {
        self.order.values().map(|key| &self.cached[key].wanted)
    }

    /// Whether the row is news to the client; if so, it is told now.
    fn tell(&mut self, wanted: &Wanted, row: &PartitionData) -> bool {
        let key = (wanted.topic.clone(), wanted.index);
        let Some(cached) = self.cached.get_mut(&key) else { return true };
        let now = (row.error_code == ErrorCode::None).then_some((row.high_watermark, row.log_start_offset));
        let records = !row.records.is_empty();
        let diverging = row.diverging_epoch.end_offset != Offset(-1);
        // Errors are always news, and so is what follows an error.
        let news = records || diverging || now.is_none() || cached.told != now;
        if news {
            cached.told = now;
        }
        if records {
            self.order.remove(&cached.position);
            cached.position = self.next_position;
            self.next_position += 1;
            self.order.insert(cached.position, key);
        }
        news
    }
}

/// Each partition once. Who names one twice gets it where it stood first, as it was asked for last.
fn distinct(partitions: Vec<Wanted>) -> Vec<Wanted> {
    let mut places: HashMap<(TopicRef, PartitionIndex), usize> = HashMap::with_capacity(partitions.len());
    let mut distinct: Vec<Wanted> = Vec::with_capacity(partitions.len());
    for wanted in partitions {
        match places.entry((wanted.topic.clone(), wanted.index)) {
            Entry::Occupied(place) => distinct[*place.get()] = wanted,
            Entry::Vacant(place) => {
                place.insert(distinct.len());
                distinct.push(wanted);
            }
        }
    }
    distinct
}

fn wanted(topic: &FetchTopic, by_id: bool) -> impl Iterator<Item = Wanted> {
    // A copy: a slice would keep the whole request in memory for as long as the session lives.
    let name = if by_id { TopicRef::Id(topic.topic_id) } else { TopicRef::Name(KafkaString::from(&*topic.topic)) };
    let epoch = |epoch: LeaderEpoch| (epoch.0 >= 0).then_some(epoch);
    topic.partitions.iter().map(move |partition| Wanted {
        topic: name.clone(),
        index: partition.partition,
        offset: partition.fetch_offset,
        max_bytes: usize::try_from(partition.partition_max_bytes).unwrap_or(0),
        current_leader_epoch: epoch(partition.current_leader_epoch),
        last_fetched_epoch: epoch(partition.last_fetched_epoch),
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]
    use bytes::Bytes;
    use kaas_proto::kafka::Records;
    use kaas_proto::kafka::messages::fetch::{FetchPartition, ForgottenTopic};
    use kaas_proto::types::TopicId;

    use super::*;

    const NOW: MonotonicTime = MonotonicTime(1_000_000_000_000);

    impl FetchSessions {
        /// A request that is over before the next one comes.
        fn ask(
            &mut self,
            request: &FetchRequest,
            version: i16,
            now: MonotonicTime,
            random: u64,
        ) -> Result<Begun, ErrorCode> {
            let begun = self.begin(request, version, now, || random)?;
            self.release(begun.session_id);
            Ok(begun)
        }
    }

    fn sessions(slots: usize) -> FetchSessions {
        FetchSessions::new(slots, ShardId(1), 4)
    }

    fn request(session: (i32, i32), partitions: &[(i32, i64)]) -> FetchRequest {
        let partition = |&(index, offset): &(i32, i64)| FetchPartition {
            partition: PartitionIndex(index),
            fetch_offset: Offset(offset),
            partition_max_bytes: 100,
            ..Default::default()
        };
        let topic = FetchTopic {
            topic: "t".into(),
            topic_id: TopicId([1; 16]),
            partitions: partitions.iter().map(partition).collect(),
        };
        let topics = if partitions.is_empty() { vec![] } else { vec![topic] };
        FetchRequest { session_id: session.0, session_epoch: session.1, topics, ..Default::default() }
    }

    fn row(index: i32, high_watermark: i64, records: &'static str) -> PartitionData {
        PartitionData {
            partition_index: PartitionIndex(index),
            high_watermark: Offset(high_watermark),
            records: Records::from(Bytes::from_static(records.as_bytes())),
            ..Default::default()
        }
    }

    fn indexes(partitions: &[Wanted]) -> Vec<i32> {
        partitions.iter().map(|wanted| wanted.index.0).collect()
    }

    fn sent(sessions: &mut FetchSessions, begun: &Begun, rows: Vec<PartitionData>) -> Vec<i32> {
        sessions.finish(begun, rows).iter().map(|(_, row)| row.partition_index.0).collect()
    }

    #[test]
    fn without_a_session_everything_is_answered() {
        let mut all = sessions(10);
        let begun = all.ask(&request((0, FINAL_EPOCH), &[(0, 5), (1, 6)]), 12, NOW, 7).unwrap();
        assert_eq!((begun.session_id, begun.incremental), (0, false));
        assert_eq!(sent(&mut all, &begun, vec![row(0, 1, ""), row(1, 1, "")]), [0, 1]);
        assert_eq!(all.len(), 0);
    }

    #[test]
    fn a_session_tells_news_only_and_rotates() {
        let mut all = sessions(10);
        let begun = all.ask(&request((0, INITIAL_EPOCH), &[(0, 0), (1, 0), (2, 0)]), 12, NOW, 7).unwrap();
        let id = begun.session_id;
        assert!(id > 0 && id % 4 == 1, "{id}: this shard's");
        assert_eq!(sent(&mut all, &begun, vec![row(0, 1, ""), row(1, 1, ""), row(2, 1, "")]), [0, 1, 2]);

        let begun = all.ask(&request((id, 1), &[]), 12, NOW, 7).unwrap();
        assert!(begun.incremental);
        assert_eq!(sent(&mut all, &begun, vec![row(0, 1, "x"), row(1, 1, ""), row(2, 2, "")]), [0, 2]);

        let begun = all.ask(&request((id, 2), &[(0, 1)]), 12, NOW, 7).unwrap();
        assert_eq!(indexes(&begun.partitions), [1, 2, 0], "who got records goes behind");
        assert_eq!(begun.partitions[2].offset, Offset(1));
        let error = PartitionData { error_code: ErrorCode::KafkaStorageError, ..row(1, -1, "") };
        assert_eq!(sent(&mut all, &begun, vec![error.clone(), row(2, 2, ""), row(0, 1, "")]), [1]);
        let begun = all.ask(&request((id, 3), &[]), 12, NOW, 7).unwrap();
        assert_eq!(sent(&mut all, &begun, vec![error, row(2, 2, ""), row(0, 1, "")]), [1], "errors repeat");
        let begun = all.ask(&request((id, 4), &[]), 12, NOW, 7).unwrap();
        assert_eq!(sent(&mut all, &begun, vec![row(1, 1, ""), row(2, 2, ""), row(0, 1, "")]), [1], "it is healed");
    }

    #[test]
    fn forgotten_partitions_are_not_read_and_an_empty_session_ends() {
        let mut all = sessions(10);
        let id = all.ask(&request((0, INITIAL_EPOCH), &[(0, 0), (1, 0)]), 12, NOW, 7).unwrap().session_id;
        let forget = |epoch, index| FetchRequest {
            forgotten_topics_data: vec![ForgottenTopic {
                topic: "t".into(),
                partitions: vec![PartitionIndex(index)],
                ..Default::default()
            }],
            ..request((id, epoch), &[])
        };
        assert_eq!(indexes(&all.ask(&forget(1, 0), 12, NOW, 7).unwrap().partitions), [1]);
        let begun = all.ask(&forget(2, 1), 12, NOW, 7).unwrap();
        assert_eq!((begun.session_id, begun.partitions.len()), (0, 0));
        assert_eq!((all.len(), all.partitions), (0, 0));
    }

    #[test]
    fn epochs_are_checked_and_wrap_to_one() {
        let mut all = sessions(10);
        let id = all.ask(&request((0, INITIAL_EPOCH), &[(0, 0)]), 12, NOW, 7).unwrap().session_id;
        let refused = |all: &mut FetchSessions, id, epoch, version| {
            all.ask(&request((id, epoch), &[]), version, NOW, 7).unwrap_err()
        };
        assert_eq!(refused(&mut all, id + 4, 1, 12), ErrorCode::FetchSessionIdNotFound);
        assert_eq!(refused(&mut all, id, 2, 12), ErrorCode::InvalidFetchSessionEpoch);
        assert_eq!(refused(&mut all, id, 1, 13), ErrorCode::FetchSessionTopicIdError);
        all.sessions.get_mut(&id).unwrap().next_epoch = i32::MAX;
        all.ask(&request((id, i32::MAX), &[]), 12, NOW, 7).unwrap();
        all.ask(&request((id, 1), &[]), 12, NOW, 7).unwrap();
        // Epoch -1 with an id ends the session and answers in full.
        let begun = all.ask(&request((id, FINAL_EPOCH), &[(0, 0)]), 12, NOW, 7).unwrap();
        assert_eq!((begun.session_id, begun.incremental, all.len()), (0, false, 0));
        // Epoch 0 with an id replaces it.
        let id = all.ask(&request((0, INITIAL_EPOCH), &[(0, 0)]), 12, NOW, 7).unwrap().session_id;
        let other = all.ask(&request((id, INITIAL_EPOCH), &[(0, 0)]), 12, NOW, 8).unwrap().session_id;
        assert!(other != 0 && all.len() == 1);
    }

    #[test]
    fn sessions_in_use_are_not_evicted() {
        let mut all = sessions(2);
        let open = |all: &mut FetchSessions, now, random| {
            all.ask(&request((0, INITIAL_EPOCH), &[(0, 0)]), 12, now, random).unwrap().session_id
        };
        let first = open(&mut all, NOW, 1);
        assert_ne!(open(&mut all, NOW, 1), first, "ids are never given out twice");
        assert_eq!(open(&mut all, NOW, 3), 0, "no room: without a session");
        let later = MonotonicTime(NOW.0 + u64::try_from(FETCH_SESSION_IDLE.as_nanos()).unwrap());
        all.ask(&request((first, 1), &[]), 12, later, 7).unwrap();
        assert_ne!(open(&mut all, later, 4), 0);
        assert_eq!(all.len(), 2);
        assert!(all.sessions.contains_key(&first), "it was used");
    }

    #[test]
    fn a_session_has_one_request_at_a_time() {
        let mut all = sessions(10);
        let id = all.begin(&request((0, INITIAL_EPOCH), &[(0, 0)]), 12, NOW, || 7).unwrap().session_id;
        let early = all.begin(&request((id, 1), &[]), 12, NOW, || 7).unwrap_err();
        assert_eq!(early, ErrorCode::InvalidFetchSessionEpoch);
        all.release(id);
        assert!(all.begin(&request((id, 1), &[]), 12, NOW, || 7).unwrap().incremental);
        // Whoever gave up waiting replaces the session and is not held up by its former request.
        let other = all.begin(&request((id, INITIAL_EPOCH), &[(0, 0)]), 12, NOW, || 8).unwrap().session_id;
        all.release(id);
        assert_eq!(
            all.begin(&request((other, 1), &[]), 12, NOW, || 7).unwrap_err(),
            ErrorCode::InvalidFetchSessionEpoch
        );
    }

    #[test]
    fn a_partition_that_is_named_twice_is_read_once() {
        let mut all = sessions(10);
        for epoch in [FINAL_EPOCH, INITIAL_EPOCH] {
            let begun = all.ask(&request((0, epoch), &[(3, 1), (4, 2), (3, 9)]), 12, NOW, 7).unwrap();
            assert_eq!(indexes(&begun.partitions), [3, 4]);
            assert_eq!(begun.partitions[0].offset, Offset(9), "as it was asked for last");
        }
    }
}
