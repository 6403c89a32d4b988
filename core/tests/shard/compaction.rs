//! Compaction: what stays, what goes, and that no crash, takeover or failure on the way changes what a consumer knows.

use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use futures_lite::future;
use kaas_core::env::memory::{Doom, MemoryEnv};
use kaas_core::env::{Env, Volume};
use kaas_core::partition::error::{AppendError, FetchError};
use kaas_core::shard::operation::{
    DescribePartitions, IsolationLevel, ListOffsets, OffsetForLeaderEpoch, OffsetQuery, ShardOperation,
};
use kaas_proto::config::topic::TopicConfig;
use kaas_proto::layout::reserve_file;
use kaas_proto::record::{BatchBuilder, ControlRecordType, RecordBatchView};
use kaas_proto::types::{BrokerId, LeaderEpoch, Offset, ProducerEpoch, ProducerId, TimestampMs};
use tokio::sync::oneshot;

use crate::compaction_log::{Log, Row, Table, batches, consume, key as record_key, rows};
use crate::harness::{Broker, directory, key, names, run, topic_config};
use crate::random::Random;

const SEEDS: std::ops::Range<u64> = 0..25;
/// More than `log.cleaner.backoff.ms`.
const A_WHILE: Duration = Duration::from_secs(20);
/// More than `delete.retention.ms` below.
const LONG: Duration = Duration::from_secs(2 * 3600);
/// The key of what [`Broker::append`] appends.
const OWN_KEY: &[u8] = b"k";

/// Compacted as soon as anything is dirty; segments roll when they are a second old.
fn config(change: impl FnOnce(&mut TopicConfig)) -> Arc<TopicConfig> {
    let settings =
        [("cleanup.policy", "compact"), ("min.cleanable.dirty.ratio", "0"), ("delete.retention.ms", "3600000")];
    let mut config = (*topic_config(&settings)).clone();
    config.segment_ms = 1000;
    change(&mut config);
    Arc::new(config)
}

/// Where the segment begins that must not be touched because the last stable offset lies in it or in front of it.
fn bound(log: &Log) -> i64 {
    let start = |segment: &Vec<bytes::Bytes>| RecordBatchView::read(&segment[0]).unwrap().base_offset().0;
    let ends = log.segments.iter().skip(1).map(start).chain([log.end]);
    log.segments.iter().zip(ends).find(|&(_, end)| end > log.last_stable).map_or(log.end, |(segment, _)| start(segment))
}

fn without_own(mut table: Table) -> Table {
    table.remove(OWN_KEY);
    table
}

/// Everything that must hold at any time.
async fn check(what: &str, broker: &Broker, log: &Log) -> Vec<(i64, Row)> {
    let found = batches(broker, 0).await;
    let offsets: Vec<_> = found.iter().map(|bytes| RecordBatchView::read(bytes).unwrap().base_offset()).collect();
    assert!(offsets.is_sorted(), "{what}: {offsets:?}");
    let found_rows: Vec<_> = found
        .iter()
        .flat_map(|bytes| rows(RecordBatchView::read(bytes).unwrap()))
        .filter(|row| row.0 < log.end)
        .collect();
    for (offset, row) in &found_rows {
        let original = Row { is_aborted: false, ..log.rows[offset].clone() };
        assert_eq!(*row, original, "{what}: offset {offset}");
    }
    let bound = bound(log);
    let untouched =
        log.segments.iter().flatten().filter(|bytes| RecordBatchView::read(bytes).unwrap().base_offset().0 >= bound);
    for bytes in untouched {
        assert!(found.contains(bytes), "{what}: a batch above {bound} has changed");
    }
    for max_bytes in [1, 300, 1 << 20] {
        assert_eq!(without_own(consume(broker, max_bytes).await), log.table(log.end), "{what}, {max_bytes} at a time");
    }
    let fetched = broker.fetch_with(0, 0, IsolationLevel::ReadCommitted, 1, true).await.unwrap();
    if log.last_stable < log.end {
        assert_eq!(fetched.last_stable_offset.0, log.last_stable, "{what}");
    }
    found_rows
}

/// What should be gone, if the map of offsets was large enough.
fn check_compacted(what: &str, log: &Log, found: &[(i64, Row)]) {
    let mut keys = BTreeSet::new();
    for (offset, row) in found.iter().filter(|(offset, row)| *offset < bound(log) && !row.is_control) {
        assert!(!log.rows[offset].is_aborted, "{what}: offset {offset} was aborted");
        assert!(keys.insert(&row.key), "{what}: key of offset {offset} is there twice");
    }
}

/// An idempotent producer that sends its last batch again is told where it is.
async fn check_producers(what: &str, broker: &Broker, log: &Log) {
    for producer in [0, 1] {
        let Some((offset, bytes)) = log.last_batch_of(producer) else { continue };
        let again = broker.produce(0, bytes).await.unwrap();
        assert_eq!(again.base_offset, offset, "{what}: producer {producer}");
    }
}

/// A broker that leads a partition with this log.
async fn leader_of(env: &MemoryEnv, log: &Log) -> Broker {
    log.write(env).await;
    let broker = Broker::start(env, 1);
    broker.lead(0, None, &config(|_| ())).await;
    broker
}

/// Gives the newest segment another one, so that it may be compacted, and waits for that.
async fn go_on(env: &MemoryEnv, broker: &Broker) {
    broker.append(0, "own").await;
    env.sleep(A_WHILE).await;
}

#[test]
fn consumers_know_the_same_afterwards() {
    let mut dropped = 0;
    for seed in SEEDS {
        let env = MemoryEnv::virtual_time();
        run(&env, async {
            let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0xc0de);
            let log = Log::random(&mut random, env.wall_clock().0);
            log.write(&env).await;
            let map_bytes = random.of(&[200, 1 << 20, 1 << 20]);
            let segment_bytes = random.of(&[1000, 1 << 20]);
            let start = |id| Broker::start_with(&env, id, |config| config.compaction.map_bytes = map_bytes);
            let config = config(|config| config.segment_bytes = segment_bytes);
            let broker = start(1);
            broker.lead(0, None, &config).await;
            check(&format!("seed {seed} before"), &broker, &log).await;
            for pass in 0..4 {
                go_on(&env, &broker).await;
                let what = format!("seed {seed} pass {pass}");
                let found = check(&what, &broker, &log).await;
                if map_bytes > 1000 {
                    check_compacted(&what, &log, &found);
                }
                assert_eq!(broker.metric("kaas_compaction_failures_total"), 0, "{what}");
                env.sleep(LONG).await;
            }
            let found = check(&format!("seed {seed} late"), &broker, &log).await;
            let is_tombstone = |row: &Row| row.value.is_none() && !row.is_control;
            // An open transaction holds everything up, later passes too.
            if map_bytes > 1000 && log.last_stable == log.end {
                assert!(
                    !found.iter().any(|(offset, row)| *offset < bound(&log) && is_tombstone(row)),
                    "seed {seed}: tombstones are past their horizon"
                );
            }
            dropped += broker.metric("kaas_compaction_dropped_records_total");
            check_producers(&format!("seed {seed}"), &broker, &log).await;
            drop(broker);
            let second = start(2);
            second.lead(0, None, &config).await;
            check(&format!("seed {seed} taken over"), &second, &log).await;
            check_producers(&format!("seed {seed} taken over"), &second, &log).await;
            let logs = names(env.volume(), 0).await.into_iter().filter(|name| name.ends_with(".log")).count();
            go_on(&env, &second).await;
            check(&format!("seed {seed} compacted once more"), &second, &log).await;
            let after = names(env.volume(), 0).await.into_iter().filter(|name| name.ends_with(".log")).count();
            assert!(after <= logs + 2, "seed {seed}: what is replaced is unlinked");
            drop(second);
            // What the log itself says of producers and transactions is enough.
            let producers =
                names(env.volume(), 0).await.into_iter().rfind(|name| name.ends_with(".producers")).unwrap();
            env.volume().write(&directory(0).join(producers), b"noise".to_vec()).await.unwrap();
            let third = start(3);
            third.lead(0, None, &config).await;
            check(&format!("seed {seed} rebuilt"), &third, &log).await;
            check_producers(&format!("seed {seed} rebuilt"), &third, &log).await;
        });
    }
    assert!(dropped > SEEDS.end * 10, "{dropped} records dropped: too few to show anything");
}

/// Runs a pass in which one operation of the volume is doomed; false if it was over before.
async fn disturbed(seed: u64, operation: u64, doom: Doom, env: &MemoryEnv) -> bool {
    let mut random = Random(seed ^ 0xdead);
    // An open transaction would hold the later passes up.
    let log = loop {
        let log = Log::random(&mut random, env.wall_clock().0);
        if log.last_stable == log.end {
            break log;
        }
    };
    log.write(env).await;
    let config = config(|config| config.segment_bytes = 2000);
    let what = format!("seed {seed} operation {operation} {doom:?}");
    let first = Broker::start(env, 1);
    first.lead(0, None, &config).await;
    // The second pass drops tombstones, and the third markers.
    for _ in 0..seed % 3 {
        go_on(env, &first).await;
        env.sleep(LONG).await;
    }
    first.append(0, "own").await;
    env.sleep(Duration::from_secs(1)).await;
    env.volume().doom(operation, doom);
    env.sleep(3 * A_WHILE).await;
    let was_met = !env.volume().is_doomed();
    if doom != Doom::Hang || !was_met {
        env.volume().revive();
        check(&format!("{what}, the first"), &first, &log).await;
    }
    let second = Broker::start(env, 2);
    second.lead(0, None, &config).await;
    check(&format!("{what}, the second"), &second, &log).await;
    // A deposed leader wakes up.
    env.volume().revive();
    env.sleep(3 * A_WHILE).await;
    check(&format!("{what}, the second later"), &second, &log).await;
    check_producers(&what, &second, &log).await;
    go_on(env, &second).await;
    check(&format!("{what}, the second compacted"), &second, &log).await;
    let third = Broker::start(env, 3);
    third.lead(0, None, &config).await;
    let found = check(&format!("{what}, the third"), &third, &log).await;
    check_compacted(&what, &log, &found);
    was_met
}

fn disturb_every_operation(seeds: std::ops::Range<u64>, doom: Doom) {
    let mut operations = 0;
    for seed in seeds {
        for operation in 0.. {
            let env = MemoryEnv::virtual_time();
            if !run(&env, Box::pin(disturbed(seed, operation, doom, &env))) {
                break;
            }
            operations += 1;
        }
    }
    assert!(operations > 20, "{operations} operations: too few to show anything");
}

#[test]
fn a_crash_at_any_operation_loses_nothing() {
    disturb_every_operation(0..3, Doom::Hang);
}

#[test]
fn a_failure_of_any_operation_loses_nothing() {
    disturb_every_operation(4..6, Doom::Fail(ErrorKind::Other));
}

#[test]
fn a_full_volume_loses_nothing() {
    disturb_every_operation(8..9, Doom::Fail(ErrorKind::StorageFull));
}

/// Three segments of one plain batch each; keys repeat in every one.
fn plain(env: &MemoryEnv) -> Log {
    let mut log = Log::default();
    let time = env.wall_clock().0 - 1000;
    for round in 0..3 {
        log.roll();
        let mut builder = BatchBuilder::new();
        for number in 0..4 {
            let value = format!("{round}.{number}");
            let time = TimestampMs(time + round * 10 + i64::try_from(number).unwrap());
            builder.push(time, Some(&record_key(number)), Some(value.as_bytes()), &[]);
        }
        log.push(builder);
    }
    log
}

#[test]
fn fetches_under_way_see_what_was_or_what_is() {
    for operation in 0..5 {
        let env = MemoryEnv::virtual_time();
        run(&env, async {
            let log = plain(&env);
            let broker = leader_of(&env, &log).await;
            broker.append(0, "own").await;
            env.volume().doom(operation, Doom::Hang);
            let compaction = async {
                env.sleep(3 * A_WHILE).await;
                env.volume().revive();
            };
            let (fetched, ()) = future::zip(broker.fetch(0, 0), compaction).await;
            let fetched = fetched.unwrap();
            let first = RecordBatchView::read(&fetched.records[0]).unwrap();
            for (offset, row) in rows(first) {
                assert!(offset >= log.end || row == log.rows[&offset], "operation {operation}");
            }
            env.sleep(A_WHILE).await;
            let found = check("later", &broker, &log).await;
            check_compacted("later", &log, &found);
            assert_eq!(found.len(), 4);
            let logs: Vec<_> = names(env.volume(), 0).await.into_iter().filter(|name| name.ends_with(".log")).collect();
            assert_eq!(
                logs,
                ["00000002-00000000000000000000-00000001.log", "00000002-00000000000000000012.log"],
                "operation {operation}"
            );
        });
    }
}

async fn find(broker: &Broker, query: OffsetQuery) -> (i64, i64) {
    let (reply, answer) = oneshot::channel();
    let partitions = vec![(key(0), query, None)];
    let isolation = IsolationLevel::ReadUncommitted;
    broker.shard.submit(ShardOperation::ListOffsets(ListOffsets { isolation, partitions, reply }));
    let found = answer.await.unwrap().remove(0).unwrap();
    (found.offset.0, found.timestamp.0)
}

#[test]
fn every_question_is_answered_over_gaps() {
    let env = MemoryEnv::virtual_time();
    run(&env, async {
        let log = plain(&env);
        let time = env.wall_clock().0 - 1000;
        log.write(&env).await;
        let broker = Broker::start(&env, 1);
        let config = config(|_| ());
        broker.lead(0, None, &config).await;
        go_on(&env, &broker).await;
        for restarted in [false, true] {
            let second = restarted.then(|| Broker::start(&env, 2));
            if let Some(second) = &second {
                second.lead(0, None, &config).await;
                env.sleep(Duration::from_secs(1)).await;
            }
            let broker = second.as_ref().unwrap_or(&broker);
            // Offsets 0 to 7 are gone; 12 is the broker's own.
            for offset in 0..12 {
                let fetched = broker.fetch(0, offset).await.unwrap();
                let first = RecordBatchView::read(&fetched.records[0]).unwrap();
                assert_eq!(first.base_offset(), Offset(8), "from {offset}");
                assert_eq!(fetched.log_start_offset, Offset(0));
            }
            assert_eq!(find(broker, OffsetQuery::Earliest).await.0, 0);
            assert_eq!(find(broker, OffsetQuery::AtOrAfter(TimestampMs(time))).await, (8, time + 20));
            assert_eq!(find(broker, OffsetQuery::AtOrAfter(TimestampMs(time + 22))).await, (10, time + 22));
            assert_eq!(find(broker, OffsetQuery::AtOrAfter(TimestampMs(time + 24))).await.0, 12);
            assert_eq!(find(broker, OffsetQuery::MaxTimestamp).await.0, 12);
            let (reply, answer) = oneshot::channel();
            let partitions = vec![(key(0), LeaderEpoch(1), None)];
            broker.shard.submit(ShardOperation::OffsetForLeaderEpoch(OffsetForLeaderEpoch { partitions, reply }));
            assert_eq!(answer.await.unwrap(), [Ok((LeaderEpoch(1), Offset(12)))]);
            let (reply, answer) = oneshot::channel();
            broker.shard.submit(ShardOperation::DescribePartitions(DescribePartitions { reply }));
            let size = answer.await.unwrap()[0].bytes;
            let found: usize = batches(broker, 0).await.iter().map(bytes::Bytes::len).sum();
            let padding = if restarted { 4096 } else { 0 };
            assert!((found..=found + padding).contains(&usize::try_from(size).unwrap()), "{size} of {found}");
        }
    });
}

#[test]
fn what_waits_is_left_alone_and_what_waited_too_long_is_not() {
    let env = MemoryEnv::virtual_time();
    run(&env, async {
        plain(&env).write(&env).await;
        let broker = Broker::start(&env, 1);
        let lazy = |change: fn(&mut TopicConfig)| {
            config(|config| {
                config.min_cleanable_dirty_ratio = 1.0;
                change(config);
            })
        };
        broker.lead(0, None, &lazy(|_| ())).await;
        go_on(&env, &broker).await;
        let passes = || broker.metric("kaas_compaction_passes_total");
        assert_eq!(passes(), 0, "the ratio is not above one");
        broker.take_over(0, None, &lazy(|config| config.min_compaction_lag_ms = 10_000_000)).await;
        env.sleep(A_WHILE).await;
        assert_eq!(passes(), 0);
        let eager = lazy(|config| (config.min_compaction_lag_ms, config.max_compaction_lag_ms) = (60_000, 120_000));
        broker.take_over(0, None, &eager).await;
        env.sleep(A_WHILE).await;
        assert_eq!(passes(), 0, "not old enough");
        env.sleep(Duration::from_secs(120)).await;
        assert_eq!(passes(), 1);
        let young = config(|config| config.min_compaction_lag_ms = 10_000_000);
        broker.take_over(0, None, &young).await;
        go_on(&env, &broker).await;
        assert_eq!(passes(), 1, "dirty, but young");
    });
}

#[test]
fn a_log_that_rolls_all_the_time_is_not_kept_busy_by_passes() {
    let env = MemoryEnv::virtual_time();
    run(&env, async {
        let broker = Broker::start(&env, 1);
        broker.lead(0, None, &config(|config| config.segment_ms = 1)).await;
        for round in 0..300 {
            broker.append(0, &format!("{round}")).await;
            env.sleep(Duration::from_millis(100)).await;
        }
        let (passes, rolled) =
            (broker.metric("kaas_compaction_passes_total"), broker.metric("kaas_log_segments_rolled_total"));
        assert!(rolled >= 299, "{rolled} segments rolled");
        assert!((1..=3).contains(&passes), "{passes} passes in 30 s, one per log.cleaner.backoff.ms is enough");
        env.sleep(A_WHILE).await;
        assert_eq!(batches(&broker, 0).await.len(), 2, "the last value, in a segment that may be compacted or not");
    });
}

#[test]
fn the_newest_segment_is_left_alone_whoever_leads() {
    let env = MemoryEnv::virtual_time();
    run(&env, async {
        let log = plain(&env);
        let broker = leader_of(&env, &log).await;
        env.sleep(A_WHILE).await;
        // Nothing was appended by this leader: a consumer must still find the end of the log.
        let found = check("idle", &broker, &log).await;
        assert_eq!(found.iter().map(|row| row.0).collect::<Vec<_>>(), [4, 5, 6, 7, 8, 9, 10, 11]);
    });
}

#[test]
fn keys_beyond_the_map_wait_for_the_next_pass() {
    let env = MemoryEnv::virtual_time();
    run(&env, async {
        let mut log = Log::default();
        for number in 0..40 {
            let mut builder = BatchBuilder::new();
            builder.push(env.wall_clock(), Some(&record_key(number % 20)), Some(&[1; 100]), &[]);
            log.push(builder);
        }
        log.write(&env).await;
        // Six keys of one segment at a time.
        let broker = Broker::start_with(&env, 1, |config| config.compaction.map_bytes = 8 * 24);
        broker.lead(0, None, &config(|_| ())).await;
        go_on(&env, &broker).await;
        check("in parts", &broker, &log).await;
        assert!(broker.metric("kaas_compaction_map_full_total") >= 5);
        assert_eq!(broker.metric("kaas_compaction_failures_total"), 0);
        assert_eq!(batches(&broker, 0).await.len(), 21, "all keys in the end");
    });
}

#[test]
fn a_batch_beyond_the_map_is_named_and_changes_nothing() {
    let env = MemoryEnv::virtual_time();
    run(&env, async {
        let log = plain(&env);
        log.write(&env).await;
        let broker = Broker::start_with(&env, 1, |config| config.compaction.map_bytes = 4 * 24);
        broker.lead(0, None, &config(|_| ())).await;
        go_on(&env, &broker).await;
        env.sleep(Duration::from_secs(120)).await;
        let failures = broker.metric("kaas_compaction_failures_total");
        assert!((2..6).contains(&failures), "{failures}: again, after longer and longer pauses");
        assert_eq!(check("full", &broker, &log).await.len(), 12);
    });
}

#[test]
fn damage_is_counted_and_nothing_is_dropped_on_its_word() {
    let env = MemoryEnv::virtual_time();
    run(&env, async {
        let log = plain(&env);
        let broker = leader_of(&env, &log).await;
        broker.append(0, "own").await;
        let path = directory(0).join("00000001-00000000000000000004.log");
        let content = env.volume().read(&path, 1 << 20).await.unwrap();
        let mut damaged = content.clone();
        damaged[80] ^= 1;
        env.volume().write(&path, damaged).await.unwrap();
        env.sleep(A_WHILE).await;
        assert_eq!(broker.metric("kaas_compaction_failures_total"), 1);
        assert_eq!(broker.metric("kaas_compaction_segments_replaced_total"), 0);
        env.volume().write(&path, content).await.unwrap();
        env.sleep(LONG).await;
        let found = check("repaired", &broker, &log).await;
        check_compacted("repaired", &log, &found);
    });
}

#[test]
fn a_compacted_segment_that_lost_its_end_is_noticed() {
    let env = MemoryEnv::virtual_time();
    run(&env, async {
        let mut log = plain(&env);
        log.roll();
        let mut builder = BatchBuilder::new();
        builder.push(env.wall_clock(), Some(b"large"), Some(&[7; 9000]), &[]);
        log.push(builder);
        let broker = leader_of(&env, &log).await;
        go_on(&env, &broker).await;
        let path = directory(0).join("00000002-00000000000000000000-00000001.log");
        let content = env.volume().read(&path, 1 << 20).await.unwrap();
        env.volume().write(&path, content[..4096].to_vec()).await.unwrap();
        assert!(matches!(broker.fetch(0, 12).await, Err(FetchError::Storage(_))));
    });
}

#[test]
fn retention_and_compaction_go_together() {
    let env = MemoryEnv::virtual_time();
    run(&env, async {
        let log = plain(&env);
        log.write(&env).await;
        let both = config(|config| {
            config.delete = true;
            config.retention_ms = None;
        });
        let broker = Broker::start(&env, 1);
        broker.lead(0, None, &both).await;
        go_on(&env, &broker).await;
        // Into a gap, then into the records, then behind all of them.
        for (offset, first) in [(3, 8), (9, 8), (12, 12)] {
            assert_eq!(broker.delete_records(0, offset).await, Ok(Offset(offset)));
            let fetched = broker.fetch(0, offset).await.unwrap();
            assert_eq!(RecordBatchView::read(&fetched.records[0]).unwrap().base_offset(), Offset(first));
            assert!(matches!(broker.fetch(0, offset - 1).await, Err(FetchError::OffsetOutOfRange { .. })));
        }
        env.sleep(Duration::from_secs(1)).await;
        let logs = |names: Vec<String>| names.into_iter().filter(|name| name.ends_with(".log")).collect::<Vec<_>>();
        assert_eq!(logs(names(env.volume(), 0).await), ["00000002-00000000000000000012.log"]);
        go_on(&env, &broker).await;
        let second = Broker::start(&env, 2);
        second.lead(0, None, &both).await;
        let left: Vec<_> = second.read(0, 12).await.into_iter().map(|(offset, _)| offset).collect();
        assert_eq!(left, [12, 13], "the newest segment replaces nothing yet");
        assert_eq!(second.log_start(0).await, 12);
    });
}

#[test]
fn a_pass_whose_segments_are_deleted_is_no_failure() {
    let env = MemoryEnv::virtual_time();
    run(&env, async {
        let log = plain(&env);
        log.write(&env).await;
        // So slow that it stops behind the first segment.
        let broker = Broker::start_with(&env, 1, |config| config.compaction.bytes_per_second = 10.0);
        broker.lead(0, None, &config(|config| config.delete = true)).await;
        broker.append(0, "own").await;
        while broker.metric("kaas_compaction_read_bytes_total") == 0 {
            env.sleep(Duration::from_millis(100)).await;
        }
        assert_eq!(broker.delete_records(0, log.end).await, Ok(Offset(log.end)));
        let left = async || names(env.volume(), 0).await.into_iter().filter(|name| name.ends_with(".log")).count();
        while left().await > 1 {
            env.sleep(Duration::from_millis(100)).await;
        }
        env.sleep(LONG).await;
        assert_eq!(broker.metric("kaas_compaction_failures_total"), 0);
        assert_eq!(broker.metric("kaas_compaction_segments_replaced_total"), 0);
        assert_eq!(broker.read(0, log.end).await, [(log.end, "own".to_owned())]);
    });
}

#[test]
fn records_need_keys_and_markers_do_not() {
    let env = MemoryEnv::virtual_time();
    run(&env, async {
        let broker = Broker::start(&env, 1);
        broker.lead(0, None, &config(|_| ())).await;
        let keyless = BatchBuilder::new().record(env.wall_clock(), None, Some(b"v")).build();
        assert_eq!(broker.produce(0, keyless).await, Err(AppendError::MissingKey { index: 0 }));
    });
}

#[test]
fn an_aborted_transaction_leaves_no_trace_that_could_hide_a_later_one() {
    let env = MemoryEnv::virtual_time();
    run(&env, async {
        let mut log = Log::default();
        let transactional = |sequence: i32, key: &[u8]| {
            let builder = BatchBuilder::new().producer(ProducerId(10), ProducerEpoch(0), sequence).transactional();
            builder.record(env.wall_clock(), Some(key), Some(b"value"))
        };
        log.push(transactional(0, b"aborted"));
        log.marker(10, ControlRecordType::Abort, env.wall_clock().0);
        log.rows.get_mut(&0).unwrap().is_aborted = true;
        log.roll();
        log.push(transactional(1, b"committed"));
        log.marker(10, ControlRecordType::Commit, env.wall_clock().0);
        log.last_stable = log.end;
        log.write(&env).await;
        let config = config(|_| ());
        let broker = Broker::start(&env, 1);
        broker.lead(0, None, &config).await;
        for _ in 0..4 {
            go_on(&env, &broker).await;
            check("compacted", &broker, &log).await;
            env.sleep(LONG).await;
        }
        // The abort marker is gone, and with it the word of the transaction, whoever leads.
        let left: Vec<_> = check("in the end", &broker, &log).await.into_iter().map(|row| row.0).collect();
        assert_eq!(left, [2, 3]);
        let aborted = async |broker: &Broker| {
            broker.fetch_with(0, 0, IsolationLevel::ReadCommitted, 1 << 20, true).await.unwrap().aborted.len()
        };
        assert_eq!(aborted(&broker).await, 0);
        drop(broker);
        let second = Broker::start(&env, 2);
        second.lead(0, None, &config).await;
        assert_eq!(aborted(&second).await, 0);
        check("taken over", &second, &log).await;
    });
}

/// A leader of [`plain`] that keeps a reserve, on a volume of 64 MiB.
async fn leader_with_reserve(env: &MemoryEnv, log: &Log) -> Broker {
    env.volume().set_capacity(Some(64 << 20));
    log.write(env).await;
    let broker = Broker::start_with(env, 1, |config| config.keeps_reserve = true);
    broker.lead(0, None, &config(|_| ())).await;
    env.sleep(Duration::from_secs(1)).await;
    assert!(env.volume().size(&reserve_file(BrokerId(1))).await.is_ok());
    broker
}

fn passes(broker: &Broker) -> u64 {
    broker.metric("kaas_compaction_passes_total")
}

#[test]
fn compaction_waits_while_the_reserve_is_missing() {
    let env = MemoryEnv::virtual_time();
    run(&env, async {
        let log = plain(&env);
        let broker = leader_with_reserve(&env, &log).await;
        // Room for what would be written, but not for the reserve as well.
        env.volume().set_capacity(Some((1 << 20) + (100 << 10)));
        assert!(broker.reserve.ask_for_room());
        env.sleep(10 * A_WHILE).await;
        assert_eq!(passes(&broker), 0);
        assert!(names(env.volume(), 0).await.iter().all(|name| name.matches('-').count() < 2), "nothing was written");
        env.volume().set_capacity(Some(64 << 20));
        env.sleep(3 * A_WHILE).await;
        assert!(passes(&broker) > 0);
        check("with room", &broker, &log).await;
    });
}

#[test]
fn compaction_leaves_the_last_room_to_others() {
    let env = MemoryEnv::virtual_time();
    run(&env, async {
        let log = plain(&env);
        let broker = leader_with_reserve(&env, &log).await;
        let space = env.volume().space(Path::new("")).await.unwrap();
        env.volume().set_capacity(Some(space.total_bytes - space.available_bytes + (500 << 10)));
        env.sleep(10 * A_WHILE).await;
        assert_eq!(passes(&broker), 0);
        assert_eq!(broker.metric("kaas_reserve_given_up_total"), 0);
        broker.append(0, "there is room").await;
        env.volume().set_capacity(Some(64 << 20));
        env.sleep(Duration::from_secs(1300)).await;
        assert!(passes(&broker) > 0);
    });
}
