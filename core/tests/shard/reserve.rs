//! The reserve of a shard that keeps one: it goes when the volume is full, and records wait until it is back.

use std::path::Path;
use std::time::Duration;

use kaas_core::env::memory::{MemoryEnv, Operation};
use kaas_core::env::{Env, Volume};
use kaas_core::partition::error::AppendError;
use kaas_core::shard::operation::RequiredAcks;
use kaas_core::shard::reserve::{LOOK_INTERVAL, MIN_RESERVE_BYTES};
use kaas_proto::control::PartitionChange;
use kaas_proto::kafka::ErrorCode;
use kaas_proto::layout::{data_reserve_file, reserve_file};
use kaas_proto::reserve::Reserves;
use kaas_proto::types::{BrokerId, LeaderEpoch, Offset};

use crate::harness::{Broker, batch, key, run, topic_config};

/// A broker that leads partition 0, which holds `a`, on a volume of 64 MiB where it has its reserve.
async fn start(env: &MemoryEnv, settings: &[(&str, &str)]) -> Broker {
    env.volume().set_capacity(Some(64 << 20));
    let broker = Broker::start_with(env, 1, |config| config.keeps_reserve = true);
    broker.lead(0, None, &topic_config(settings)).await;
    broker.append(0, "a").await;
    env.sleep(LOOK_INTERVAL * 2).await;
    assert!(has_reserve(env).await);
    broker
}

async fn has_reserve(env: &MemoryEnv) -> bool {
    env.volume().size(&reserve_file(BrokerId(1))).await.is_ok_and(|bytes| bytes == MIN_RESERVE_BYTES)
}

/// Leaves no room for a single byte.
async fn fill(env: &MemoryEnv) {
    let space = env.volume().space(Path::new("")).await.unwrap();
    env.volume().set_capacity(Some(space.total_bytes - space.available_bytes));
}

#[test]
fn a_full_volume_is_led_at_the_expense_of_the_reserve_and_takes_records_when_that_is_back() {
    let env = MemoryEnv::virtual_time();
    run(&env, async {
        let broker = start(&env, &[]).await;
        fill(&env).await;
        let large = "x".repeat(5000);
        assert_eq!(broker.produce(0, batch(&env, &[&large])).await, Err(AppendError::VolumeFull));
        assert!(matches!(broker.next_change().await, PartitionChange::Failed { .. }));
        assert_eq!(broker.next_change().await, PartitionChange::Leading { epoch: LeaderEpoch(2) });
        assert!(!has_reserve(&env).await);
        for _ in 0..100 {
            env.sleep(LOOK_INTERVAL).await;
            assert_eq!(broker.produce(0, batch(&env, &[&large])).await, Err(AppendError::VolumeFull));
        }
        assert_eq!(broker.values(0).await, ["a"]);
        assert!(broker.no_change(), "it leads all the time");
        assert_eq!(broker.metric("kaas_reserve_given_up_total"), 1);
        assert_eq!(broker.metric("kaas_reserve_refused_appends_total"), 100);
        env.volume().set_capacity(Some(64 << 20));
        env.sleep(LOOK_INTERVAL * 2).await;
        assert!(has_reserve(&env).await);
        assert_eq!(broker.append(0, "b").await, 1);
        assert!(broker.no_change(), "without another takeover");
    });
}

#[test]
fn a_broker_that_finds_the_volume_full_takes_over_all_the_same() {
    let env = MemoryEnv::virtual_time();
    run(&env, async {
        let before = start(&env, &[]).await;
        before.shut_down().await;
        fill(&env).await;
        let broker = Broker::start_with(&env, 1, |config| config.keeps_reserve = true);
        for partition in 0..3 {
            broker.take_over(partition, None, &topic_config(&[])).await;
        }
        for _ in 0..3 {
            assert!(matches!(broker.next_change().await, PartitionChange::Leading { .. }));
        }
        assert_eq!(broker.values(0).await, ["a"]);
        assert_eq!(broker.produce(2, batch(&env, &["b"])).await, Err(AppendError::VolumeFull));
    });
}

#[test]
fn what_had_queued_before_does_not_get_at_the_room() {
    let env = MemoryEnv::virtual_time();
    run(&env, async {
        let broker = start(&env, &[]).await;
        env.volume().hold(Operation::WriteAt);
        let written = broker.begin_produce(0, RequiredAcks::All, batch(&env, &["b"]));
        env.sleep(Duration::from_millis(1)).await;
        let queued = broker.begin_produce(0, RequiredAcks::All, batch(&env, &["c"]));
        assert!(broker.reserve.ask_for_room());
        env.volume().release(Operation::WriteAt);
        // What was being written may be there; nobody has promised it.
        written.await.unwrap().remove(0).ok();
        assert_eq!(queued.await.unwrap().remove(0), Err(AppendError::VolumeFull));
        env.sleep(LOOK_INTERVAL * 3).await;
        assert_eq!(broker.append(0, "d").await, 2);
        assert_eq!(broker.values(0).await, ["a", "b", "d"]);
    });
}

#[test]
fn records_are_deleted_at_the_expense_of_the_reserve() {
    let env = MemoryEnv::virtual_time();
    run(&env, async {
        let broker = start(&env, &[("segment.bytes", "1048576"), ("retention.ms", "-1")]).await;
        let mut last = 0;
        while last < 4 {
            last = broker.append(0, &"x".repeat(900_000)).await;
        }
        env.sleep(Duration::from_secs(1)).await;
        fill(&env).await;
        assert_eq!(broker.delete_records(0, last).await, Ok(Offset(last)));
        assert!(!has_reserve(&env).await);
        env.sleep(LOOK_INTERVAL * 3).await;
        assert!(has_reserve(&env).await, "the segments made room for it");
        assert_eq!(broker.append(0, "b").await, last + 1);
        assert!(broker.no_change(), "{:?} was led all the time", key(0));
    });
}

#[test]
fn retention_looks_at_once_whether_it_can_make_room() {
    let env = MemoryEnv::virtual_time();
    run(&env, async {
        let broker = start(&env, &[("segment.bytes", "1048576"), ("retention.bytes", "1048576")]).await;
        while broker.append(0, &"x".repeat(900_000)).await < 4 {}
        env.sleep(Duration::from_secs(1)).await;
        fill(&env).await;
        assert!(broker.reserve.ask_for_room());
        env.sleep(LOOK_INTERVAL * 3).await;
        assert!(broker.log_start(0).await > 0 && has_reserve(&env).await);
    });
}

/// Each in turn: records go on while offsets are refused, and the other way round.
#[test]
fn a_full_volume_of_topics_refuses_no_offsets_if_these_are_on_another_one() {
    let env = MemoryEnv::virtual_time();
    run(&env, async {
        env.volume().set_capacity(Some(64 << 20));
        let reserves = Reserves::apart();
        let broker = Broker::start_with_reserves(&env, 1, reserves.clone(), |config| config.keeps_reserve = true);
        broker.lead(0, None, &topic_config(&[])).await;
        broker.lead_slot(None).await;
        env.sleep(LOOK_INTERVAL * 2).await;
        for file in [reserve_file(BrokerId(1)), data_reserve_file(BrokerId(1))] {
            assert_eq!(env.volume().size(&file).await.unwrap(), MIN_RESERVE_BYTES, "{}", file.display());
        }
        let produce = || broker.produce(0, batch(&env, &["a"]));

        assert!(reserves.data.make_room().await);
        assert_eq!(env.volume().size(&data_reserve_file(BrokerId(1))).await.ok(), None);
        assert_eq!(broker.metric("kaas_reserve_bytes"), 0);
        assert_eq!(broker.metric("kaas_cluster_reserve_bytes"), MIN_RESERVE_BYTES);
        assert_eq!(produce().await, Err(AppendError::VolumeFull));
        assert_eq!(broker.commit(7, None).await, ErrorCode::None);
        env.sleep(LOOK_INTERVAL * 3).await;
        produce().await.unwrap();

        assert!(reserves.cluster.make_room().await);
        assert!(!has_reserve(&env).await);
        produce().await.unwrap();
        assert_eq!(broker.commit(8, None).await, ErrorCode::CoordinatorNotAvailable);
        assert_eq!(broker.committed().await, 7);
        env.sleep(LOOK_INTERVAL * 3).await;
        assert_eq!(broker.commit(8, None).await, ErrorCode::None);
    });
}
