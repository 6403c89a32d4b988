//! Writes that fail, hang, or find no room.

use std::io::ErrorKind;
use std::path::Path;
use std::time::Duration;

use kaas_core::env::memory::{MemoryEnv, Operation};
use kaas_core::env::{Env, Volume};
use kaas_core::log_limit::{INTERVAL, LINES_PER_CAUSE};
use kaas_core::partition::error::{AppendError, FetchError};
use kaas_core::shard::operation::RequiredAcks;
use kaas_proto::control::PartitionChange;
use kaas_proto::types::{LeaderEpoch, Offset};

use crate::harness::{Broker, batch, names, run, sequenced, settle, topic_config};

#[test]
fn a_failed_write_ends_the_epoch_and_the_partition_comes_back_above_it() {
    let env = MemoryEnv::virtual_time();
    run(&env, async {
        let broker = Broker::start_with_a(&env, &topic_config(&[])).await;
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
        let broker = Broker::start_with_a(&env, &topic_config(&[])).await;
        env.volume().fail_next(Operation::ReadAt, ErrorKind::TimedOut);
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
        let broker = Broker::start_with_a(&env, &topic_config(&[])).await;
        settle(&env).await;
        env.volume().set_capacity(Some(0));
        assert_eq!(broker.produce(0, batch(&env, &[&"x".repeat(5000)])).await, Err(AppendError::VolumeFull));
        for _ in 0..100 {
            env.sleep(Duration::from_secs(10)).await;
            assert_eq!(broker.produce(0, batch(&env, &["y"])).await, Err(AppendError::VolumeFull));
            assert_eq!(broker.values(0).await, ["a"]);
        }
        let fences = |names: &[String]| names.iter().filter(|name| name.ends_with(".fence")).count();
        assert!(fences(&names(env.volume(), 0).await) <= 2, "no litter while it waits");
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
        let broker = Broker::start_with_a(&env, &topic_config(&[])).await;
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

/// Appends small batches until so many segments are begun.
async fn append_segments(broker: &Broker, count: usize) {
    let logs = async || names(broker.env.volume(), 0).await.into_iter().filter(|name| name.ends_with(".log")).count();
    while logs().await < count {
        broker.append(0, &"x".repeat(5000)).await;
    }
}

/// Leaves no room for a single byte.
async fn fill(env: &MemoryEnv) {
    let space = env.volume().space(Path::new("")).await.unwrap();
    env.volume().set_capacity(Some(space.total_bytes - space.available_bytes));
}

#[test]
fn records_can_be_deleted_on_a_full_volume_and_that_heals_it() {
    let env = MemoryEnv::virtual_time();
    run(&env, async {
        let broker = Broker::start(&env, 1);
        broker.lead(0, None, &topic_config(&[("segment.bytes", "1048576")])).await;
        append_segments(&broker, 3).await;
        broker.produce(0, sequenced(&env, 0, "of a producer to remember")).await.unwrap();
        settle(&env).await;
        let end = broker.values(0).await.len();
        fill(&env).await;
        let start = i64::try_from(end).unwrap() - 1;
        assert_eq!(broker.delete_records(0, start).await, Ok(Offset(start)));
        settle(&env).await;
        assert_eq!(broker.append(0, &"x".repeat(5000)).await, start + 1);
        assert_eq!(broker.read(0, start).await.len(), 2);
    });
}

#[test]
fn retention_makes_room_while_producers_go_on_trying() {
    let env = MemoryEnv::virtual_time();
    run(&env, async {
        let broker = Broker::start(&env, 1);
        let config = topic_config(&[("segment.bytes", "1048576"), ("retention.bytes", "1048576")]);
        broker.lead(0, None, &config).await;
        append_segments(&broker, 5).await;
        settle(&env).await;
        fill(&env).await;
        let begin = env.now();
        loop {
            match broker.produce(0, batch(&env, &[&"y".repeat(5000)])).await {
                Ok(_) => break,
                Err(error) => assert_eq!(error, AppendError::VolumeFull),
            }
            env.sleep(Duration::from_secs(1)).await;
            assert!(env.now().since(begin) < Duration::from_secs(400), "nothing makes room");
        }
        settle(&env).await;
        let log_start = broker.log_start(0).await;
        assert!(log_start > 0);
        assert!(names(env.volume(), 0).await.iter().filter(|name| name.ends_with(".log")).count() <= 3);
    });
}

#[test]
fn a_full_volume_without_retention_keeps_its_indexes() {
    let env = MemoryEnv::virtual_time();
    run(&env, async {
        let broker = Broker::start(&env, 1);
        let config = topic_config(&[("segment.bytes", "1048576"), ("retention.ms", "-1")]);
        broker.lead(0, None, &config).await;
        append_segments(&broker, 3).await;
        settle(&env).await;
        fill(&env).await;
        for _ in 0..200 {
            assert_eq!(broker.produce(0, batch(&env, &[&"y".repeat(5000)])).await, Err(AppendError::VolumeFull));
            env.sleep(Duration::from_secs(1)).await;
        }
        let names = names(env.volume(), 0).await;
        assert_eq!(names.iter().filter(|name| name.ends_with(".index")).count(), 2, "{names:?}");
        assert!(names.iter().filter(|name| name.ends_with(".fence")).count() <= 2, "{names:?}");
    });
}

#[test]
fn a_hanging_ask_stalls_the_partition_and_heals_by_itself() {
    let env = MemoryEnv::virtual_time();
    run(&env, async {
        let broker = Broker::start_with_a(&env, &topic_config(&[])).await;
        env.volume().hold(Operation::ReadAt);
        let hanging = broker.begin_produce(0, RequiredAcks::All, batch(&env, &["b"]));
        env.sleep(Duration::from_secs(32)).await;
        assert_eq!(broker.next_change().await, PartitionChange::Stalled(true));
        assert_eq!(broker.produce(0, batch(&env, &["c"])).await, Err(AppendError::Stalled));
        assert_eq!(broker.values(0).await, ["a"]);
        env.volume().release(Operation::ReadAt);
        hanging.await.unwrap().remove(0).unwrap();
        assert_eq!(broker.next_change().await, PartitionChange::Stalled(false));
        assert_eq!(broker.append(0, "c").await, 2);
    });
}

#[test]
fn one_hanging_partition_does_not_hold_up_another() {
    let env = MemoryEnv::virtual_time();
    run(&env, async {
        let hanging = crate::stepping::StepEnv::new(&env);
        let (first, second) = (Broker::start(&hanging, 1), Broker::start(&env, 2));
        let config = topic_config(&[]);
        first.lead(0, None, &config).await;
        second.lead(1, None, &config).await;
        hanging.gate().stop();
        let waiting = first.begin_produce(0, RequiredAcks::All, batch(&env, &["a"]));
        env.sleep(Duration::from_secs(40)).await;
        assert_eq!(second.append(1, "b").await, 0);
        hanging.gate().go_on();
        waiting.await.unwrap().remove(0).unwrap();
    });
}

#[test]
fn a_volume_that_fails_every_fetch_does_not_fill_the_log() {
    let env = MemoryEnv::virtual_time();
    run(&env, async {
        let first = Broker::start_with_a(&env, &topic_config(&[])).await;
        first.shut_down().await;
        let broker = Broker::start(&env, 1);
        broker.lead(0, None, &topic_config(&[])).await;
        let suppressed = || broker.metric("kaas_storage_log_lines_suppressed_total");
        let fail = async |times: u64| {
            for _ in 0..times {
                env.volume().fail_next(Operation::ReadAt, ErrorKind::Other);
                assert!(matches!(broker.fetch(0, 0).await, Err(FetchError::Storage(_))));
                env.volume().forget_failures(Operation::ReadAt);
            }
        };
        fail(500).await;
        assert_eq!(suppressed(), 500 - u64::from(LINES_PER_CAUSE));
        env.sleep(2 * INTERVAL).await;
        fail(u64::from(LINES_PER_CAUSE)).await;
        assert_eq!(suppressed(), 500 - u64::from(LINES_PER_CAUSE), "they are logged again");
        assert_eq!(broker.values(0).await, ["a"]);
    });
}

#[test]
fn every_step_of_a_takeover_may_fail_and_is_tried_again() {
    for operation in [
        Operation::Open,
        Operation::List,
        Operation::Overwrite,
        Operation::Read,
        Operation::ReadAt,
        Operation::Write,
        Operation::Rename,
        Operation::SyncDirectory,
    ] {
        for kind in [ErrorKind::Other, ErrorKind::StorageFull, ErrorKind::StaleNetworkFileHandle] {
            let env = MemoryEnv::virtual_time();
            run(&env, async {
                let config = topic_config(&[]);
                let first = Broker::start_with_a(&env, &config).await;
                first.shut_down().await;
                settle(&env).await;
                env.volume().fail_next(operation, kind);
                let second = Broker::start(&env, 2);
                second.take_over(0, Some(2), &config).await;
                // Once the lower fence is revoked, it goes where there is no room, and the takeover goes on at once.
                let before = matches!(operation, Operation::Open | Operation::List | Operation::Overwrite);
                let goes_on = kind == ErrorKind::StorageFull && !before;
                if !goes_on {
                    let change = second.next_change().await;
                    assert!(matches!(change, PartitionChange::Failed { .. }), "{operation:?} {kind}: {change:?}");
                }
                let change = second.next_change().await;
                assert!(matches!(change, PartitionChange::Leading { .. }), "{operation:?} {kind}: {change:?}");
                let has_lower_fence = names(env.volume(), 0).await.contains(&"00000001.fence".to_owned());
                assert_eq!(has_lower_fence, !goes_on, "{operation:?} {kind}");
                assert_eq!(second.values(0).await, ["a"]);
            });
        }
    }
}
