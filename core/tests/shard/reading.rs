//! Fetches from memory and from the volume, limits, offsets by time.

use kaas_core::env::Env;
use kaas_core::env::memory::{MemoryEnv, Operation};
use kaas_core::partition::error::{FetchError, LookupError, NotLeading};
use kaas_core::shard::operation::{
    Fetch, FetchPartition, FoundOffset, IsolationLevel, ListOffsets, OffsetForLeaderEpoch, OffsetQuery, ShardOperation,
};
use kaas_proto::record::{BatchBuilder, Batches};
use kaas_proto::types::{LeaderEpoch, Offset, TimestampMs};
use tokio::sync::oneshot;

use crate::harness::{Broker, key, run, settle, topic_config};

#[test]
fn tailing_consumers_never_touch_the_volume() {
    let env = MemoryEnv::virtual_time();
    run(&env, async {
        let broker = Broker::start(&env, 1);
        broker.lead(0, None, &topic_config(&[])).await;
        for value in 0..1000_i64 {
            let offset = broker.append(0, &format!("{value}")).await;
            let reads = env.volume().count(Operation::ReadAt);
            assert_eq!(broker.read(0, offset).await, [(value, format!("{value}"))]);
            assert_eq!(env.volume().count(Operation::ReadAt), reads);
        }
        assert_eq!(broker.metric("kaas_fetch_volume_reads_total"), 0);
    });
}

#[test]
fn what_the_cache_has_lost_comes_from_the_volume() {
    let env = MemoryEnv::virtual_time();
    run(&env, async {
        let writer = Broker::start(&env, 1);
        let config = topic_config(&[("segment.bytes", "1048576")]);
        writer.lead(0, None, &config).await;
        let mut expected = Vec::new();
        for value in 0..300_i64 {
            let text = format!("{value}-{}", "x".repeat(20_000));
            writer.append(0, &text).await;
            expected.push((value, text));
        }
        drop(writer);
        // Nothing is in memory after a restart.
        let reader = Broker::start(&env, 1);
        reader.lead(0, None, &config).await;
        assert_eq!(reader.read(0, 0).await, expected);
        for offset in [1, 57, 58, 299] {
            let fetched = reader.fetch_with(0, offset, IsolationLevel::ReadUncommitted, 1, true).await.unwrap();
            let bytes = fetched.records.concat();
            let found: Vec<_> = Batches::new(&bytes).map(|batch| batch.unwrap().base_offset().0).collect();
            assert_eq!(found, [offset]);
        }
        assert!(reader.metric("kaas_open_segments") > 3);
    });
}

#[test]
fn limits_hold_but_for_the_first_batch() {
    let env = MemoryEnv::virtual_time();
    run(&env, async {
        for from_volume in [false, true] {
            let broker = Broker::start(&env, 1);
            broker.lead(0, None, &topic_config(&[("max.message.bytes", "10000000")])).await;
            if !from_volume {
                broker.append(0, &"x".repeat(3_000_000)).await;
                broker.append(0, "small").await;
            } else {
                settle(&env).await;
            }
            let fetch = |max_bytes, at_least_one| {
                let fetched = broker.fetch_with(0, 0, IsolationLevel::ReadUncommitted, max_bytes, at_least_one);
                async { fetched.await.unwrap().records.iter().map(bytes::Bytes::len).sum::<usize>() }
            };
            assert!(fetch(100, true).await > 3_000_000);
            assert_eq!(fetch(100, false).await, 0);
            assert_eq!(fetch(2_000_000, false).await, 0);
            let first = fetch(3_000_100, false).await;
            assert!((3_000_000..3_000_100).contains(&first));
            assert!(fetch(4_000_000, false).await > first);
            drop(broker);
        }
    });
}

async fn find(broker: &Broker, query: OffsetQuery) -> FoundOffset {
    let (reply, answer) = oneshot::channel();
    let partitions = vec![(key(0), query, None)];
    let isolation = IsolationLevel::ReadUncommitted;
    broker.shard.submit(ShardOperation::ListOffsets(ListOffsets { isolation, partitions, reply }));
    answer.await.unwrap().remove(0).unwrap()
}

#[test]
fn offsets_are_found_by_time() {
    let env = MemoryEnv::virtual_time();
    run(&env, async {
        let config = topic_config(&[("segment.bytes", "1048576"), ("message.timestamp.after.max.ms", "9000000000000")]);
        let start = env.wall_clock().0;
        for restarted in [false, true] {
            let broker = Broker::start(&env, 1);
            broker.lead(0, None, &config).await;
            if !restarted {
                for index in 0..100 {
                    // Times go up and down; the last but one batch has the largest.
                    let time =
                        |record: i64| TimestampMs(start + if index == 98 { 5_000_000 } else { index * 1000 + record });
                    let padding = vec![7; 30_000];
                    let builder = BatchBuilder::new().record(time(0), None, Some(&padding));
                    broker.produce(0, builder.record(time(1), None, Some(&padding)).build()).await.unwrap();
                }
            }
            let at = |offset: i64, timestamp: i64| (Offset(offset), TimestampMs(timestamp));
            let answer = |found: FoundOffset| (found.offset, found.timestamp);
            assert_eq!(answer(find(&broker, OffsetQuery::Latest).await), at(200, -1));
            assert_eq!(answer(find(&broker, OffsetQuery::Earliest).await), at(0, -1));
            assert_eq!(answer(find(&broker, OffsetQuery::MaxTimestamp).await), at(196, start + 5_000_000));
            for (wanted, offset, found) in
                [(0, 0, 0), (1, 1, 1), (2, 2, 1000), (50_000, 100, 50_000), (97_001, 195, 97_001)]
            {
                let query = OffsetQuery::AtOrAfter(TimestampMs(start + wanted));
                assert_eq!(answer(find(&broker, query).await), at(offset, start + found), "{wanted}");
            }
            assert_eq!(
                answer(find(&broker, OffsetQuery::AtOrAfter(TimestampMs(start + 97_002))).await),
                at(196, start + 5_000_000)
            );
            assert_eq!(answer(find(&broker, OffsetQuery::AtOrAfter(TimestampMs(start + 5_000_001))).await), at(-1, -1));
            drop(broker);
        }
    });
}

#[test]
fn epochs_end_where_the_chain_says() {
    let env = MemoryEnv::virtual_time();
    run(&env, async {
        for _ in 0..3 {
            let broker = Broker::start(&env, 1);
            broker.lead(0, None, &topic_config(&[])).await;
            broker.append(0, "x").await;
            broker.append(0, "y").await;
            drop(broker);
        }
        let broker = Broker::start(&env, 1);
        broker.lead(0, Some(9), &topic_config(&[])).await;
        let (reply, answer) = oneshot::channel();
        let partitions = [1, 2, 3, 4, 9, 10].map(|epoch| (key(0), LeaderEpoch(epoch), None)).to_vec();
        broker.shard.submit(ShardOperation::OffsetForLeaderEpoch(OffsetForLeaderEpoch { partitions, reply }));
        let found: Vec<_> =
            answer.await.unwrap().into_iter().map(|row| row.map(|(epoch, end)| (epoch.0, end.0)).unwrap()).collect();
        assert_eq!(found, [(1, 2), (2, 4), (3, 6), (3, 6), (9, 6), (-1, -1)]);
    });
}

/// KIP-320: who believes in another epoch is told so, whatever it asks for; who says nothing, or the right one, is answered.
#[test]
fn a_wrong_leader_epoch_is_refused() {
    let env = MemoryEnv::virtual_time();
    run(&env, async {
        let broker = Broker::start(&env, 1);
        broker.lead(0, Some(5), &topic_config(&[])).await;
        broker.append(0, "x").await;
        let current = LeaderEpoch(5);
        let fenced = |client| Err(NotLeading::FencedLeaderEpoch { client: LeaderEpoch(client), current });
        let unknown = |client| Err(NotLeading::UnknownLeaderEpoch { client: LeaderEpoch(client), current });
        for (believed, expected) in [
            (None, Ok(())),
            (Some(5), Ok(())),
            (Some(0), fenced(0)),
            (Some(4), fenced(4)),
            (Some(6), unknown(6)),
            (Some(i32::MAX), unknown(i32::MAX)),
        ] {
            let believed = believed.map(LeaderEpoch);
            assert_eq!(fetch_believing(&broker, believed).await, expected.clone().map_err(FetchError::from));
            let expected = expected.map_err(LookupError::from);
            for query in [
                OffsetQuery::Latest,
                OffsetQuery::Earliest,
                OffsetQuery::MaxTimestamp,
                OffsetQuery::AtOrAfter(TimestampMs(0)),
            ] {
                let (reply, answer) = oneshot::channel();
                let (isolation, partitions) = (IsolationLevel::ReadUncommitted, vec![(key(0), query, believed)]);
                broker.shard.submit(ShardOperation::ListOffsets(ListOffsets { isolation, partitions, reply }));
                assert_eq!(answer.await.unwrap().remove(0).map(|_| ()), expected, "{query:?} {believed:?}");
            }
            let (reply, answer) = oneshot::channel();
            let partitions = vec![(key(0), current, believed)];
            broker.shard.submit(ShardOperation::OffsetForLeaderEpoch(OffsetForLeaderEpoch { partitions, reply }));
            let end = answer.await.unwrap().remove(0);
            assert_eq!(end, expected.map(|()| (current, Offset(1))), "{believed:?}");
        }
    });
}

/// From offset 0 on; with success there are records.
async fn fetch_believing(broker: &Broker, believed: Option<LeaderEpoch>) -> Result<(), FetchError> {
    let (reply, answer) = oneshot::channel();
    let wanted = FetchPartition {
        partition: key(0),
        offset: Offset(0),
        max_bytes: usize::MAX,
        current_leader_epoch: believed,
        last_fetched_epoch: None,
    };
    broker.shard.submit(ShardOperation::Fetch(Fetch {
        isolation: IsolationLevel::ReadUncommitted,
        max_bytes: usize::MAX,
        at_least_one_batch: true,
        partitions: vec![wanted],
        reply,
    }));
    answer.await.unwrap().remove(0).map(|fetched| assert!(!fetched.records.is_empty()))
}

#[test]
fn sequential_consumers_are_read_ahead_for() {
    let env = MemoryEnv::virtual_time();
    run(&env, async {
        let writer = Broker::start(&env, 1);
        let config = topic_config(&[]);
        writer.lead(0, None, &config).await;
        let value = "x".repeat(30_000);
        for _ in 0..400 {
            writer.append(0, &value).await;
        }
        drop(writer);
        let reader = Broker::start(&env, 1);
        reader.lead(0, None, &config).await;
        let (mut offset, mut bytes) = (0, 0);
        while offset < 400 {
            let fetched = reader.fetch_with(0, offset, IsolationLevel::ReadUncommitted, 1 << 20, true).await.unwrap();
            let records = fetched.records.concat();
            offset = Batches::new(&records).last().unwrap().unwrap().next_offset().0;
            bytes += records.len() as u64;
        }
        let ahead = reader.metric("kaas_fetch_reads_ahead_total");
        assert!(ahead >= 9, "{ahead} of {}", reader.metric("kaas_fetch_volume_reads_total"));
        let read = reader.metric("kaas_fetch_volume_read_bytes_total");
        assert!(read < bytes + (3 << 20), "{read} bytes read for {bytes}");
        assert!(reader.metric("kaas_read_ahead_bytes") <= 16 << 20);
    });
}

#[test]
fn batches_that_are_larger_than_what_is_read_ahead_are_read_too() {
    let env = MemoryEnv::virtual_time();
    run(&env, async {
        let writer = Broker::start(&env, 1);
        let config = topic_config(&[("max.message.bytes", "20000000")]);
        writer.lead(0, None, &config).await;
        let sizes = [3_000_000, 3_000_000, 3_000_000, 200_000, 200_000, 1_500_000, 200_000, 12_000_000, 900_000];
        for size in sizes {
            writer.append(0, &"x".repeat(size)).await;
        }
        drop(writer);
        let reader = Broker::start(&env, 1);
        reader.lead(0, None, &config).await;
        for (offset, size) in (0..).zip(sizes) {
            let fetched = reader.fetch_with(0, offset, IsolationLevel::ReadUncommitted, 100, true).await.unwrap();
            let records = fetched.records.concat();
            let batch = Batches::new(&records).next().unwrap().unwrap();
            assert_eq!(batch.base_offset().0, offset);
            assert!(batch.size() >= size && records.len() == batch.size(), "{offset}");
        }
        assert!(reader.metric("kaas_fetch_reads_ahead_total") >= 3);
    });
}
