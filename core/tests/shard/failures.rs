//! Writes that fail, hang, or find no room.

use std::io::ErrorKind;
use std::time::Duration;

use kaas_core::env::Env;
use kaas_core::env::memory::{MemoryEnv, Operation};
use kaas_core::partition::error::AppendError;
use kaas_core::shard::operation::RequiredAcks;
use kaas_proto::control::PartitionChange;
use kaas_proto::types::{LeaderEpoch, Offset};

use crate::harness::{Broker, batch, run, sequenced, settle, topic_config};

#[test]
fn a_failed_write_ends_the_epoch_and_the_partition_comes_back_above_it() {
    let env = MemoryEnv::virtual_time();
    run(&env, async {
        let broker = Broker::start(&env, 1);
        broker.lead(0, None, &topic_config(&[])).await;
        broker.append(0, "a").await;
        env.volume().fail_next(Operation::WriteAt, ErrorKind::Other);
        let failed = broker.produce(0, sequenced(&env, 0, "lost")).await;
        assert!(matches!(failed, Err(AppendError::Storage(_))), "{failed:?}");
        assert_eq!(broker.read(0, 0).await, [(0, "a".into())], "reads go on");
        assert!(matches!(broker.next_change().await, PartitionChange::Failed { .. }));
        assert_eq!(broker.next_change().await, PartitionChange::Leading { epoch: LeaderEpoch(2) });
        assert_eq!(broker.produce(0, sequenced(&env, 0, "b")).await.unwrap().base_offset, Offset(1));
        assert_eq!(broker.values(0).await, ["a", "b"]);
    });
}

#[test]
fn an_ask_that_fails_ends_the_epoch_too() {
    let env = MemoryEnv::virtual_time();
    run(&env, async {
        let broker = Broker::start(&env, 1);
        broker.lead(0, None, &topic_config(&[])).await;
        broker.append(0, "a").await;
        env.volume().fail_next(Operation::ReadAt, ErrorKind::StaleNetworkFileHandle);
        assert!(matches!(broker.produce(0, batch(&env, &["b"])).await, Err(AppendError::Storage(_))));
        assert!(matches!(broker.next_change().await, PartitionChange::Failed { .. }));
        assert_eq!(broker.next_change().await, PartitionChange::Leading { epoch: LeaderEpoch(2) });
        // It was written, and recovery keeps what it finds.
        assert_eq!(broker.values(0).await, ["a", "b"]);
    });
}

#[test]
fn a_full_volume_refuses_producers_serves_consumers_and_heals() {
    let env = MemoryEnv::virtual_time();
    run(&env, async {
        let broker = Broker::start(&env, 1);
        broker.lead(0, None, &topic_config(&[])).await;
        broker.append(0, "a").await;
        settle(&env).await;
        env.volume().set_capacity(Some(0));
        assert_eq!(broker.produce(0, batch(&env, &[&"x".repeat(5000)])).await, Err(AppendError::VolumeFull));
        for _ in 0..100 {
            env.sleep(Duration::from_secs(10)).await;
            assert_eq!(broker.produce(0, batch(&env, &["y"])).await, Err(AppendError::VolumeFull));
            assert_eq!(broker.values(0).await, ["a"]);
        }
        let fences = |names: &[String]| names.iter().filter(|name| name.ends_with(".fence")).count();
        assert!(fences(&crate::harness::names(env.volume(), 0).await) <= 2, "no litter while it waits");
        env.volume().set_capacity(None);
        env.sleep(Duration::from_secs(2)).await;
        assert_eq!(broker.append(0, "b").await, 1);
        assert_eq!(broker.values(0).await, ["a", "b"]);
    });
}

#[test]
fn a_hanging_write_stalls_the_partition_and_heals_by_itself() {
    let env = MemoryEnv::virtual_time();
    run(&env, async {
        let broker = Broker::start(&env, 1);
        broker.lead(0, None, &topic_config(&[])).await;
        broker.append(0, "a").await;
        env.volume().hold(Operation::WriteAt);
        let hanging = broker.begin_produce(0, RequiredAcks::All, batch(&env, &["b"]));
        env.sleep(Duration::from_secs(29)).await;
        assert!(broker.no_change());
        env.sleep(Duration::from_secs(3)).await;
        assert_eq!(broker.next_change().await, PartitionChange::Stalled(true));
        assert_eq!(broker.produce(0, batch(&env, &["c"])).await, Err(AppendError::Stalled));
        assert_eq!(broker.values(0).await, ["a"], "reads from memory go on");
        assert_eq!(broker.metric("kaas_partitions_stalled"), 1);
        env.volume().release(Operation::WriteAt);
        hanging.await.unwrap().remove(0).unwrap();
        assert_eq!(broker.next_change().await, PartitionChange::Stalled(false));
        assert_eq!(broker.append(0, "c").await, 2);
        assert_eq!(broker.values(0).await, ["a", "b", "c"]);
    });
}

#[test]
fn failures_in_a_row_back_off() {
    let env = MemoryEnv::virtual_time();
    run(&env, async {
        let broker = Broker::start(&env, 1);
        broker.lead(0, None, &topic_config(&[])).await;
        for _ in 0..5 {
            env.volume().fail_next(Operation::List, ErrorKind::Other);
        }
        env.volume().fail_next(Operation::WriteAt, ErrorKind::Other);
        let start = env.now();
        broker.produce(0, batch(&env, &["x"])).await.unwrap_err();
        for _ in 0..6 {
            assert!(matches!(broker.next_change().await, PartitionChange::Failed { .. }));
        }
        assert_eq!(broker.next_change().await, PartitionChange::Leading { epoch: LeaderEpoch(7) });
        let elapsed = Duration::from_nanos(env.now().0 - start.0);
        assert!(elapsed >= Duration::from_millis(100 + 200 + 400 + 800 + 1600 + 3200), "{elapsed:?}");
    });
}
