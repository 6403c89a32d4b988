//! Records and clocks that are wrong: retention, rolls and look-ups by time.

use std::time::Duration;

use bytes::Bytes;
use kaas_core::env::memory::{MemoryEnv, Operation};
use kaas_core::env::{Env, Volume};
use kaas_core::shard::operation::{FoundOffset, IsolationLevel, ListOffsets, OffsetQuery, ShardOperation};
use kaas_core::steady_clock::PROBATION;
use kaas_proto::record::BatchBuilder;
use kaas_proto::types::{Offset, TimestampMs};
use tokio::sync::oneshot;

use crate::harness::{Broker, directory, key, names, run, settle, topic_config};

const YEAR_MS: i64 = 365 * 24 * 3_600_000;
const HOUR: Duration = Duration::from_secs(3600);
/// Any timestamp goes.
const ANY: (&str, &str) = ("message.timestamp.after.max.ms", "9223372036854775807");
const SMALL_SEGMENTS: (&str, &str) = ("segment.bytes", "1048576");

async fn find<E: Env>(broker: &Broker<E>, query: OffsetQuery) -> FoundOffset {
    let (reply, answer) = oneshot::channel();
    let isolation = IsolationLevel::ReadUncommitted;
    let partitions = vec![(key(0), query, None)];
    broker.shard.submit(ShardOperation::ListOffsets(ListOffsets { isolation, partitions, reply }));
    answer.await.unwrap().remove(0).unwrap()
}

/// Offset and timestamp of what is found.
async fn found<E: Env>(broker: &Broker<E>, query: OffsetQuery) -> (i64, i64) {
    let found = find(broker, query).await;
    (found.offset.0, found.timestamp.0)
}

fn at_or_after(time: i64) -> OffsetQuery {
    OffsetQuery::AtOrAfter(TimestampMs(time))
}

/// A batch with records of these timestamps, each of so many bytes.
fn stamped(timestamps: &[i64], bytes: usize) -> Bytes {
    let value = vec![7; bytes];
    timestamps
        .iter()
        .fold(BatchBuilder::new(), |batch, &time| batch.record(TimestampMs(time), None, Some(&value)))
        .build()
}

#[test]
fn a_clock_that_jumps_ahead_and_back_deletes_nothing() {
    let env = MemoryEnv::virtual_time();
    run(&env, async {
        let config = topic_config(&[SMALL_SEGMENTS, ("retention.ms", "28800000")]);
        let broker = Broker::start(&env, 1);
        broker.lead(0, None, &config).await;
        broker.append(0, "old").await;
        env.sleep(HOUR).await;
        env.time().shift_wall_clock(20 * YEAR_MS);
        env.sleep(PROBATION - HOUR).await;
        assert_eq!(broker.metric("kaas_clock_doubted"), 1);
        assert_eq!(broker.append(0, "of the future").await, 1);
        env.time().shift_wall_clock(-20 * YEAR_MS);
        env.sleep(HOUR).await;
        assert_eq!(broker.metric("kaas_clock_doubted"), 0);
        assert_eq!(broker.values(0).await, ["old", "of the future"]);
        // What was appended meanwhile does not stay for twenty years.
        env.sleep(10 * HOUR).await;
        assert_eq!(broker.log_start(0).await, 2);
    });
}

/// Starts a broker that asks the volume for the time, and leads partition 0 with a retention of eight hours.
async fn restart(env: &MemoryEnv) -> Broker {
    let broker = Broker::start_with(env, 1, |config| config.asks_volume_for_time = true);
    broker.lead(0, None, &topic_config(&[SMALL_SEGMENTS, ("retention.ms", "28800000")])).await;
    broker
}

#[test]
fn a_clock_that_is_ahead_at_the_start_deletes_nothing() {
    let env = MemoryEnv::virtual_time();
    run(&env, async {
        let broker = restart(&env).await;
        broker.append(0, "a").await;
        env.sleep(HOUR).await;
        broker.shut_down().await;
        env.time().shift_wall_clock(20 * YEAR_MS);
        for _ in 0..2 {
            // Also not when it starts once more like that.
            let broker = restart(&env).await;
            env.sleep(HOUR).await;
            assert_eq!(broker.metric("kaas_clock_doubted"), 1);
            assert_eq!(broker.log_start(0).await, 0);
            broker.shut_down().await;
        }
        env.time().shift_wall_clock(-20 * YEAR_MS);
        let broker = restart(&env).await;
        env.sleep(HOUR).await;
        // Of the hours in between nothing was written that is believed by less than a restart.
        assert_eq!(broker.values(0).await, ["a"]);
        assert_eq!(broker.metric("kaas_clock_doubted"), 0);
        env.sleep(6 * HOUR).await;
        assert_eq!(broker.log_start(0).await, 1);
    });
}

#[test]
fn a_clock_that_is_behind_at_the_start_deletes_nothing() {
    let env = MemoryEnv::virtual_time();
    run(&env, async {
        let broker = restart(&env).await;
        broker.append(0, "a").await;
        broker.shut_down().await;
        env.time().shift_wall_clock(-20 * YEAR_MS);
        let broker = restart(&env).await;
        env.sleep(HOUR).await;
        env.time().shift_wall_clock(20 * YEAR_MS);
        env.sleep(HOUR).await;
        assert_eq!(broker.values(0).await, ["a"]);
        env.sleep(7 * HOUR).await;
        assert_eq!(broker.log_start(0).await, 1);
    });
}

#[test]
fn nothing_is_old_while_the_volume_does_not_say_what_time_it_is() {
    let env = MemoryEnv::virtual_time();
    run(&env, async {
        let broker = restart(&env).await;
        broker.append(0, "a").await;
        broker.shut_down().await;
        env.volume().hold(Operation::List);
        let broker = Broker::start_with(&env, 1, |config| config.asks_volume_for_time = true);
        broker.take_over(0, Some(9), &topic_config(&[("retention.ms", "28800000")])).await;
        env.sleep(9 * HOUR).await;
        env.volume().release(Operation::List);
        broker.next_change().await;
        env.sleep(HOUR).await;
        assert_eq!(broker.values(0).await, ["a"], "nobody was there for nine hours, as far as the volume can tell");
        env.sleep(PROBATION).await;
        assert_eq!(broker.log_start(0).await, 1);
    });
}

#[test]
fn a_clock_that_stays_ahead_is_followed() {
    let env = MemoryEnv::virtual_time();
    run(&env, async {
        let broker = Broker::start(&env, 1);
        broker.lead(0, None, &topic_config(&[("retention.ms", "86400000")])).await;
        broker.append(0, "old").await;
        env.time().shift_wall_clock(YEAR_MS);
        env.sleep(PROBATION - HOUR).await;
        assert_eq!(broker.log_start(0).await, 0);
        env.sleep(2 * HOUR).await;
        assert_eq!(broker.log_start(0).await, 1);
    });
}

#[test]
fn a_clock_that_is_behind_for_a_moment_makes_nothing_older() {
    let env = MemoryEnv::virtual_time();
    run(&env, async {
        let broker = Broker::start(&env, 1);
        broker.lead(0, None, &topic_config(&[SMALL_SEGMENTS, ANY, ("retention.ms", "1800000")])).await;
        let batch = stamped(&[env.wall_clock().0], 10);
        env.time().shift_wall_clock(-YEAR_MS);
        broker.produce(0, batch).await.unwrap();
        env.time().shift_wall_clock(YEAR_MS);
        env.sleep(HOUR / 3).await;
        assert_eq!(broker.log_start(0).await, 0, "it is not half an hour old");
        env.sleep(HOUR).await;
        assert_eq!(broker.log_start(0).await, 1);
    });
}

#[test]
fn a_clock_that_was_behind_during_a_takeover_makes_nothing_older() {
    let env = MemoryEnv::virtual_time();
    run(&env, async {
        let config = topic_config(&[SMALL_SEGMENTS, ("retention.ms", "1800000")]);
        let first = Broker::start(&env, 1);
        first.lead(0, None, &config).await;
        first.produce(0, stamped(&[env.wall_clock().0], 10)).await.unwrap();
        let second = Broker::start(&env, 2);
        env.time().shift_wall_clock(-YEAR_MS);
        second.lead(0, None, &config).await;
        env.time().shift_wall_clock(YEAR_MS);
        env.sleep(HOUR / 3).await;
        assert_eq!(second.log_start(0).await, 0, "it is not half an hour old");
        env.sleep(HOUR).await;
        assert_eq!(second.log_start(0).await, 1);
    });
}

#[test]
fn a_clock_that_jumps_back_stops_no_roll() {
    let env = MemoryEnv::virtual_time();
    run(&env, async {
        let broker = Broker::start_with_a(&env, &topic_config(&[("segment.ms", "3600000")])).await;
        env.time().shift_wall_clock(-10 * YEAR_MS);
        for value in ["b", "c"] {
            env.sleep(HOUR / 2).await;
            broker.append(0, value).await;
        }
        settle(&env).await;
        let logs = names(env.volume(), 0).await.into_iter().filter(|name| name.ends_with(".log"));
        assert_eq!(logs.count(), 2);
    });
}

#[test]
fn segments_roll_a_random_time_earlier() {
    let env = MemoryEnv::virtual_time();
    run(&env, async {
        let broker = Broker::start(&env, 1);
        let config = topic_config(&[("segment.ms", "3600000"), ("segment.jitter.ms", "3600000")]);
        for partition in 0..20 {
            broker.lead(partition, None, &config).await;
            broker.append(partition, "a").await;
        }
        env.sleep(HOUR / 2).await;
        for partition in 0..20 {
            broker.append(partition, "b").await;
        }
        let rolled = broker.metric("kaas_log_segments_rolled_total");
        assert!((3..18).contains(&rolled), "{rolled} of 20 have rolled after half the time");
    });
}

#[test]
fn timestamps_of_the_future_pin_nothing() {
    let env = MemoryEnv::virtual_time();
    run(&env, async {
        let config = topic_config(&[SMALL_SEGMENTS, ANY, ("retention.ms", "7200000")]);
        let future = env.wall_clock().0 + 10 * YEAR_MS;
        let first = Broker::start(&env, 1);
        first.lead(0, None, &config).await;
        for _ in 0..3 {
            first.produce(0, stamped(&[future], 600_000)).await.unwrap();
        }
        env.sleep(HOUR).await;
        assert_eq!(first.log_start(0).await, 0);
        env.sleep(2 * HOUR).await;
        assert_eq!(first.log_start(0).await, 3);
        first.produce(0, stamped(&[future], 10)).await.unwrap();
        first.shut_down().await;
        // A restart forgets when it was appended: it counts from then on.
        let second = Broker::start(&env, 1);
        second.lead(0, None, &config).await;
        env.sleep(HOUR).await;
        assert_eq!(second.log_start(0).await, 3);
        env.sleep(2 * HOUR).await;
        assert_eq!(second.log_start(0).await, 4);
    });
}

#[test]
fn all_expired_segments_go_at_once_after_a_restart() {
    let env = MemoryEnv::virtual_time();
    run(&env, async {
        let config = topic_config(&[SMALL_SEGMENTS, ("retention.ms", "3600000")]);
        let first = Broker::start(&env, 1);
        first.lead(0, None, &config).await;
        for _ in 0..8 {
            first.append(0, &"x".repeat(600_000)).await;
        }
        first.shut_down().await;
        env.sleep(2 * HOUR).await;
        let second = Broker::start(&env, 1);
        second.lead(0, None, &config).await;
        env.sleep(Duration::from_secs(301)).await;
        assert_eq!(second.log_start(0).await, 8);
    });
}

#[test]
fn deleted_records_have_no_largest_timestamp() {
    let env = MemoryEnv::virtual_time();
    run(&env, async {
        let config = topic_config(&[SMALL_SEGMENTS, ANY]);
        let base = env.wall_clock().0;
        let mut broker = Broker::start(&env, 1);
        broker.lead(0, None, &config).await;
        broker.produce(0, stamped(&[base + 900, base + 100], 10)).await.unwrap();
        broker.produce(0, stamped(&[base + 300, base + 200, base + 50], 600_000 / 3)).await.unwrap();
        broker.produce(0, stamped(&[base + 40], 600_000)).await.unwrap();
        assert_eq!(found(&broker, OffsetQuery::MaxTimestamp).await, (0, base + 900));
        // Into the middle of a batch, then behind what was next largest.
        for (log_start, largest) in
            [(1, (2, base + 300)), (3, (3, base + 200)), (4, (4, base + 50)), (5, (5, base + 40))]
        {
            broker.delete_records(0, log_start).await.unwrap();
            assert_eq!(found(&broker, OffsetQuery::MaxTimestamp).await, largest);
            assert_eq!(found(&broker, at_or_after(base + 301)).await, (-1, -1));
            broker = Broker::start(&env, 2);
            broker.lead(0, None, &config).await;
            assert_eq!(found(&broker, OffsetQuery::MaxTimestamp).await, largest, "after a takeover");
        }
    });
}

#[test]
fn a_segment_without_index_is_read_once() {
    let env = MemoryEnv::virtual_time();
    run(&env, async {
        let config = topic_config(&[("segment.bytes", "10485760")]);
        let base = env.wall_clock().0;
        let first = Broker::start(&env, 1);
        first.lead(0, None, &config).await;
        for index in 0..60 {
            first.produce(0, stamped(&[base + index], 500_000)).await.unwrap();
        }
        drop(first);
        settle(&env).await;
        for name in names(env.volume(), 0).await.iter().filter(|name| name.ends_with(".index")) {
            env.volume().unlink(&directory(0).join(name)).await.unwrap();
        }
        let second = Broker::start_with(&env, 1, |config| config.tail_cache_bytes = 0);
        second.lead(0, None, &config).await;
        let read = || second.metric("kaas_fetch_volume_read_bytes_total");
        let before = read();
        assert_eq!(found(&second, at_or_after(base + 30)).await, (30, base + 30));
        assert_eq!(found(&second, OffsetQuery::MaxTimestamp).await, (59, base + 59));
        assert!(read() - before < 40_000_000, "{} bytes the first time", read() - before);
        let (before, reads) = (read(), env.volume().count(Operation::ReadAt));
        for index in 0..60 {
            assert_eq!(found(&second, at_or_after(base + index)).await, (index, base + index));
        }
        assert_eq!(found(&second, at_or_after(base + 60)).await, (-1, -1));
        let (bytes, reads) = ((read() - before) / 60, env.volume().count(Operation::ReadAt) - reads);
        assert!(bytes < 1_200_000, "{bytes} bytes per look-up");
        assert!(reads <= 3 * 60, "{reads} reads");
    });
}

#[test]
fn several_that_ask_read_a_segment_once() {
    let env = MemoryEnv::virtual_time();
    run(&env, async {
        let config = topic_config(&[SMALL_SEGMENTS]);
        let base = env.wall_clock().0;
        let first = Broker::start(&env, 1);
        first.lead(0, None, &config).await;
        for index in 0..20 {
            first.produce(0, stamped(&[base + index], 50_000)).await.unwrap();
        }
        drop(first);
        let second = Broker::start(&env, 1);
        second.lead(0, None, &config).await;
        let (reply, answer) = oneshot::channel();
        let partitions = vec![(key(0), at_or_after(base + 500), None); 50];
        let isolation = IsolationLevel::ReadUncommitted;
        second.shard.submit(ShardOperation::ListOffsets(ListOffsets { isolation, partitions, reply }));
        assert!(answer.await.unwrap().iter().all(|row| row.as_ref().unwrap().offset == Offset(-1)));
        assert!(second.metric("kaas_fetch_volume_read_bytes_total") < 2_200_000);
    });
}

#[test]
fn an_index_that_covers_dead_records_does_not_count_them() {
    let env = MemoryEnv::virtual_time();
    run(&env, async {
        let config = topic_config(&[ANY]);
        let base = env.wall_clock().0;
        let zombie = Broker::start(&env, 1);
        zombie.lead(0, Some(1), &config).await;
        zombie.produce(0, stamped(&[base + 5], 10)).await.unwrap();
        env.volume().hold(Operation::WriteAt);
        drop(zombie.begin_produce(0, kaas_core::shard::operation::RequiredAcks::All, stamped(&[base + 900], 10)));
        settle(&env).await;
        let successor = Broker::start(&env, 2);
        successor.lead(0, Some(2), &config).await;
        env.volume().release(Operation::WriteAt);
        settle(&env).await;
        // As if the first had written its index in between.
        let mut index = kaas_core::format::index::SegmentIndex::new(Offset(0));
        for (offset, time) in [(0, 5), (1, 900)] {
            let (base_offset, max_timestamp) = (Offset(offset), TimestampMs(base + time));
            let span = kaas_core::format::index::BatchSpan {
                base_offset,
                next_offset: base_offset.plus(1),
                bytes: 88,
                max_timestamp,
            };
            index.push(span, 4096);
        }
        let path = directory(0).join("00000001-00000000000000000000.index");
        env.volume().write(&path, index.encode()).await.unwrap();
        successor.produce(0, stamped(&[base + 3], 10)).await.unwrap();
        assert_eq!(found(&successor, OffsetQuery::MaxTimestamp).await, (0, base + 5));
    });
}
