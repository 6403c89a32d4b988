//! Logs to compact: made up at random, put on a volume, and what a consumer must find of them afterwards.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use kaas_core::env::memory::MemoryEnv;
use kaas_core::env::{Env, Volume};
use kaas_core::format::chain::Chain;
use kaas_core::format::manifest::Manifest;
use kaas_core::format::partition_file::PartitionFile;
use kaas_core::format::segment_name::SegmentName;
use kaas_core::shard::operation::IsolationLevel;
use kaas_proto::record::{BatchBuilder, Batches, Compression, ControlRecordType, RecordBatchView, RecordSet, patch};
use kaas_proto::types::{LeaderEpoch, Offset, ProducerEpoch, ProducerId, TimestampMs};

use crate::harness::{Broker, directory};
use crate::random::Random;

/// Whoever wrote the log before the test began.
const EPOCH: LeaderEpoch = LeaderEpoch(1);
const COMPRESSIONS: [Compression; 5] =
    [Compression::None, Compression::Gzip, Compression::Snappy, Compression::Lz4, Compression::Zstd];

pub type Table = BTreeMap<Vec<u8>, (i64, Vec<u8>)>;

/// A record as a consumer sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    pub key: Option<Vec<u8>>,
    pub value: Option<Vec<u8>>,
    pub timestamp: i64,
    pub is_control: bool,
    pub is_aborted: bool,
}

/// A log, batch by batch, and what it means.
#[derive(Clone, Debug, Default)]
pub struct Log {
    pub segments: Vec<Vec<Bytes>>,
    pub rows: BTreeMap<i64, Row>,
    pub end: i64,
    /// Where the first transaction begins that is still open.
    pub last_stable: i64,
    sequences: BTreeMap<i64, i32>,
}

/// A transaction that is open.
struct Open {
    first_offset: i64,
    offsets: Vec<i64>,
}

pub fn key(number: usize) -> Vec<u8> {
    format!("key {number}").into_bytes()
}

impl Log {
    pub fn random(random: &mut Random, now: i64) -> Self {
        let mut log = Self { segments: vec![Vec::new()], ..Self::default() };
        let mut open: BTreeMap<i64, Open> = BTreeMap::new();
        let keys = random.of(&[3, 6, 20]);
        let mut time = now - 1_000_000;
        for _ in 0..30 + random.below(40) {
            time += i64::try_from(random.below(1000)).unwrap();
            match random.below(10) {
                0..=4 => log.data(random, keys, time, None),
                5 => {
                    let producer = i64::try_from(random.below(2)).unwrap();
                    log.data(random, keys, time, Some((producer, false)));
                }
                6 | 7 => {
                    let producer = 10 + i64::try_from(random.below(3)).unwrap();
                    let first_offset = log.end;
                    log.data(random, keys, time, Some((producer, true)));
                    let transaction = open.entry(producer).or_insert(Open { first_offset, offsets: Vec::new() });
                    transaction.offsets.extend(first_offset..log.end);
                }
                8 => {
                    let Some((producer, transaction)) = open.pop_first() else { continue };
                    let kind = random.of(&[ControlRecordType::Commit, ControlRecordType::Abort]);
                    log.marker(producer, kind, time);
                    if kind == ControlRecordType::Abort {
                        for offset in transaction.offsets {
                            log.rows.get_mut(&offset).unwrap().is_aborted = true;
                        }
                    }
                }
                _ => log.roll(),
            }
        }
        log.last_stable = open.values().map(|open| open.first_offset).min().unwrap_or(log.end);
        log.roll();
        log.segments.retain(|segment| !segment.is_empty());
        log
    }

    pub fn roll(&mut self) {
        if self.segments.last().is_none_or(|segment| !segment.is_empty()) {
            self.segments.push(Vec::new());
        }
    }

    pub fn push(&mut self, builder: BatchBuilder) {
        let bytes = builder.base_offset(Offset(self.end)).leader_epoch(EPOCH).build();
        let batch = RecordBatchView::read(&bytes).unwrap();
        self.rows.extend(rows(batch));
        self.end = batch.next_offset().0;
        self.last_stable = self.end;
        if self.segments.is_empty() {
            self.segments.push(Vec::new());
        }
        self.segments.last_mut().unwrap().push(bytes);
    }

    fn data(&mut self, random: &mut Random, keys: usize, time: i64, producer: Option<(i64, bool)>) {
        let mut builder = BatchBuilder::new().compression(random.of(&COMPRESSIONS));
        let count = 1 + random.below(4);
        if let Some((producer, transactional)) = producer {
            let sequence = self.sequences.entry(producer).or_default();
            builder = builder.producer(ProducerId(producer), ProducerEpoch(0), *sequence);
            *sequence += i32::try_from(count).unwrap();
            if transactional {
                builder = builder.transactional();
            }
        }
        for number in 0..count {
            let value = format!("value {}.{number} {}", self.end, "x".repeat(random.of(&[1, 100])));
            let value = (random.below(4) > 0).then_some(value.as_bytes());
            let timestamp = TimestampMs(time + i64::try_from(random.below(5)).unwrap());
            builder.push(timestamp, Some(&key(random.below(keys))), value, &[("header", Some(b"x"))]);
        }
        self.push(builder);
    }

    pub fn marker(&mut self, producer: i64, kind: ControlRecordType, time: i64) {
        let mut bytes = kind.batch(ProducerId(producer), ProducerEpoch(0), 7, TimestampMs(time)).to_vec();
        patch::patch_base_offset(&mut bytes, Offset(self.end));
        patch::patch_leader_epoch(&mut bytes, EPOCH);
        self.rows.extend(rows(RecordBatchView::read(&bytes).unwrap()));
        self.end += 1;
        self.segments.last_mut().unwrap().push(bytes.into());
    }

    /// The last batch of a producer, and where it lies.
    pub fn last_batch_of(&self, producer: i64) -> Option<(Offset, Bytes)> {
        let mut batches = self.segments.iter().flatten().rev();
        let of_producer = |bytes: &&Bytes| {
            let batch = RecordBatchView::read(bytes).unwrap();
            batch.producer_id() == ProducerId(producer) && !batch.is_control()
        };
        batches.find(of_producer).map(|bytes| (RecordBatchView::read(bytes).unwrap().base_offset(), bytes.clone()))
    }

    /// As if a leader of epoch 1 had written it.
    pub async fn write(&self, env: &MemoryEnv) {
        let volume = env.volume();
        volume.create_directories(&directory(0)).await.unwrap();
        for segment in &self.segments {
            let base_offset = RecordBatchView::read(&segment[0]).unwrap().base_offset();
            let name = SegmentName::appended(EPOCH, base_offset);
            let mut content = segment.concat();
            content.resize(content.len().next_multiple_of(4096), 0);
            volume.write(&directory(0).join(name.log()), content).await.unwrap();
        }
        let manifest = Manifest {
            epoch: EPOCH,
            high_watermark: Offset(self.end),
            log_start_offset: Offset(0),
            chain: Chain::default().extend(EPOCH, Offset(0)).unwrap(),
            replaced: vec![],
            relinquished: false,
        };
        let name = PartitionFile::Manifest(EPOCH).to_string();
        volume.write(&directory(0).join(name), manifest.encode()).await.unwrap();
    }

    /// What a read_committed consumer knows in the end of the first `end` offsets.
    pub fn table(&self, end: i64) -> Table {
        let mut table = Table::new();
        for (&offset, row) in self.rows.range(..end.min(self.last_stable)) {
            if !row.is_control && !row.is_aborted {
                apply(&mut table, offset, row);
            }
        }
        table
    }
}

fn apply(table: &mut Table, offset: i64, row: &Row) {
    let Some(key) = row.key.clone() else { return };
    match row.value.clone() {
        Some(value) => table.insert(key, (offset, value)),
        None => table.remove(&key),
    };
}

/// The records of a batch, by offset.
pub fn rows(batch: RecordBatchView<'_>) -> Vec<(i64, Row)> {
    batch.check_crc().unwrap();
    let records = RecordSet::read(batch, 1 << 24).unwrap();
    let row = |record: kaas_proto::record::Record<'_>| {
        let row = Row {
            key: record.key.map(<[u8]>::to_vec),
            value: record.value.map(<[u8]>::to_vec),
            timestamp: records.timestamp(&record).0,
            is_control: batch.is_control(),
            is_aborted: false,
        };
        (records.offset(&record).0, row)
    };
    records.iter().map(|record| row(record.unwrap())).collect()
}

/// All batches of the partition from an offset up to the high watermark.
pub async fn batches(broker: &Broker, from: i64) -> Vec<Bytes> {
    let (mut next, mut found) = (from, Vec::new());
    loop {
        let fetched = broker.fetch(0, next).await.unwrap();
        if fetched.records.is_empty() {
            return found;
        }
        for batch in fetched.records.iter().flat_map(|part| Batches::new(part)) {
            let batch = batch.unwrap();
            assert!(batch.next_offset().0 > next, "a fetch returns what was asked for");
            next = batch.next_offset().0;
            found.push(Bytes::copy_from_slice(batch.bytes()));
        }
    }
}

/// What a read_committed consumer makes of the partition, which fetches as Kafka's own does, some bytes at a time.
pub async fn consume(broker: &Broker, max_bytes: usize) -> Table {
    let (mut table, mut next) = (Table::new(), 0);
    loop {
        let fetched = broker.fetch_with(0, next, IsolationLevel::ReadCommitted, max_bytes, true).await.unwrap();
        if fetched.records.is_empty() {
            return table;
        }
        let mut coming: Vec<_> = fetched.aborted.iter().map(|entry| (entry.first_offset, entry.producer_id)).collect();
        coming.sort_unstable();
        coming.reverse();
        let mut aborting = BTreeSet::new();
        for batch in fetched.records.iter().flat_map(|part| Batches::new(part)) {
            let batch = batch.unwrap();
            while coming.last().is_some_and(|&(first_offset, _)| first_offset <= batch.last_offset()) {
                aborting.extend(coming.pop().map(|(_, producer)| producer.0));
            }
            if batch.is_control() {
                if ControlRecordType::of(batch).unwrap() == Some(ControlRecordType::Abort) {
                    aborting.remove(&batch.producer_id().0);
                }
            } else if !(batch.is_transactional() && aborting.contains(&batch.producer_id().0)) {
                rows(batch)
                    .iter()
                    .filter(|(offset, _)| *offset >= next)
                    .for_each(|(o, row)| apply(&mut table, *o, row));
            }
            next = next.max(batch.next_offset().0);
        }
    }
}
