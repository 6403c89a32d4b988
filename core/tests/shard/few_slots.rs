//! A shard that may have one active segment and one older segment open: the others close theirs, and go on.

use std::io::ErrorKind;
use std::time::Duration;

use kaas_core::env::memory::{MemoryEnv, Operation};
use kaas_core::env::{Env, Volume};
use kaas_core::log::led_log::STALL_LIMIT;
use kaas_core::partition::error::{AppendError, FetchError, NotLeading};
use kaas_core::shard::operation::RequiredAcks;
use kaas_proto::control::{PartitionChange, ShardCommand};
use kaas_proto::kafka::ErrorCode;
use kaas_proto::layout::slot_directory;
use kaas_proto::types::LeaderEpoch;
use tokio::sync::oneshot;

use crate::groups::slot;
use crate::harness::{Broker, batch, directory, key, names, run, settle, topic_config};

const LOG: &str = "00000001-00000000000000000000.log";
const REOPENED: &str = "kaas_log_active_segments_reopened_total";
const DISPLACED: &str = "kaas_log_active_segments_displaced_total";

/// Leads partitions from 0 on, with nothing in memory. It may not make directories: one that is gone stays gone.
async fn start(env: &MemoryEnv, partitions: i32) -> Broker {
    let broker = Broker::start_with(env, 1, |config| {
        (config.open_segments, config.tail_cache_bytes, config.owns_directories) = (2, 0, false);
    });
    for partition in 0..partitions {
        env.volume().create_directories(&directory(partition)).await.unwrap();
        broker.lead(partition, Some(1), &topic_config(&[])).await;
    }
    broker
}

/// Partition 0 has a record, and its segment is closed, because partition 1 has one too.
async fn start_closed(env: &MemoryEnv) -> Broker {
    let broker = start(env, 2).await;
    broker.append(0, "a").await;
    broker.append(1, "b").await;
    settle(env).await;
    assert_eq!(broker.metric(DISPLACED), 1);
    assert_eq!(broker.metric("kaas_open_active_segments"), 1);
    broker
}

#[test]
fn a_segment_that_was_closed_goes_on_where_it_was() {
    let env = MemoryEnv::virtual_time();
    run(&env, async {
        const PARTITIONS: i32 = 5;
        let value = |round: usize, partition| format!("{partition}-{round}-{}", "x".repeat(round * 997 % 9000));
        let broker = start(&env, PARTITIONS).await;
        let rounds = 0..20;
        for round in rounds.clone() {
            for partition in 0..PARTITIONS {
                let offset = broker.append(partition, &value(round, partition)).await;
                assert_eq!(offset, i64::try_from(round).unwrap());
                assert!(broker.metric("kaas_open_active_segments") <= 1);
            }
        }
        // Each append but the first of each needed the segment of another partition closed.
        let appends = 20 * u64::try_from(PARTITIONS).unwrap();
        assert_eq!(broker.metric(REOPENED), appends - u64::try_from(PARTITIONS).unwrap());
        assert_eq!(broker.metric(DISPLACED), appends - 1);
        assert_eq!(broker.metric("kaas_log_segment_waits_total"), 0);
        let all = |partition| rounds.clone().map(|round| value(round, partition)).collect::<Vec<_>>();
        for partition in 0..PARTITIONS {
            assert_eq!(broker.values(partition).await, all(partition), "from the volume");
        }
        // Reads took the slot too, and the index of the whole segment was kept.
        assert_eq!(broker.read(0, 19).await.len(), 1);
        broker.shut_down().await;
        assert_eq!(broker.metric("kaas_open_active_segments"), 0);
        let names = names(env.volume(), 0).await;
        assert!(names.contains(&LOG.replace(".log", ".index")), "{names:?}");
        for (epoch, is_clean) in [(2, true), (3, false)] {
            let next = Broker::start(&env, 1);
            for partition in 0..PARTITIONS {
                next.lead(partition, Some(epoch), &topic_config(&[])).await;
                assert_eq!(next.values(partition).await, all(partition), "after a stop: {is_clean}");
            }
        }
    });
}

#[test]
fn a_partition_in_use_keeps_its_slot_and_others_wait() {
    let env = MemoryEnv::virtual_time();
    run(&env, async {
        let broker = start(&env, 3).await;
        broker.append(0, "a").await;
        env.volume().hold(Operation::WriteAt);
        let waiting: Vec<_> =
            (0..3).map(|partition| broker.begin_produce(partition, RequiredAcks::All, batch(&env, &["b"]))).collect();
        settle(&env).await;
        assert_eq!(broker.metric("kaas_open_active_segments"), 1, "never more than there are slots");
        assert_eq!(broker.metric("kaas_log_segment_waits_total"), 2);
        // Those that wait hang as the write does.
        env.sleep(STALL_LIMIT + Duration::from_secs(10)).await;
        for partition in 0..3 {
            assert_eq!(broker.next_change().await, PartitionChange::Stalled(true));
            assert_eq!(broker.produce(partition, batch(&env, &["c"])).await, Err(AppendError::Stalled));
        }
        env.volume().release(Operation::WriteAt);
        for answer in waiting {
            answer.await.unwrap().remove(0).unwrap();
        }
        settle(&env).await;
        assert_eq!(broker.values(0).await, ["a", "b"]);
        assert_eq!(broker.append(2, "c").await, 1);
    });
}

#[test]
fn what_can_not_be_opened_again_is_not_acknowledged_and_heals() {
    for operation in [Operation::Open, Operation::WriteAt] {
        let env = MemoryEnv::virtual_time();
        run(&env, async {
            let broker = start_closed(&env).await;
            env.volume().fail_next(operation, ErrorKind::Other);
            let refused = broker.produce(0, batch(&env, &["lost"])).await;
            assert!(matches!(refused, Err(AppendError::Storage(_))), "{refused:?}");
            assert!(matches!(broker.next_change().await, PartitionChange::Failed { .. }));
            assert_eq!(broker.next_change().await, PartitionChange::Leading { epoch: LeaderEpoch(2) });
            assert_eq!(broker.append(0, "c").await, 1);
            assert_eq!(broker.values(0).await, ["a", "c"]);
            assert_eq!(broker.values(1).await, ["b"]);
        });
    }
}

#[test]
fn a_read_that_can_not_open_it_again_changes_nothing() {
    let env = MemoryEnv::virtual_time();
    run(&env, async {
        let broker = start_closed(&env).await;
        env.volume().fail_next(Operation::Open, ErrorKind::Other);
        let refused = broker.fetch(0, 0).await;
        assert!(matches!(refused, Err(FetchError::Storage(_))), "{refused:?}");
        assert_eq!(broker.values(0).await, ["a"]);
        assert_eq!(broker.append(0, "c").await, 1);
        assert_eq!(broker.values(0).await, ["a", "c"]);
        assert!(broker.no_change());
    });
}

#[test]
fn another_file_of_the_name_is_not_written() {
    let env = MemoryEnv::virtual_time();
    run(&env, async {
        let broker = start_closed(&env).await;
        let path = directory(0).join(LOG);
        env.volume().write(&path, b"short".to_vec()).await.unwrap();
        let refused = broker.produce(0, batch(&env, &["lost"])).await;
        let Err(AppendError::Storage(reason)) = refused else { panic!("{refused:?}") };
        assert!(reason.contains(LOG) && reason.contains("fewer bytes"), "{reason}");
        assert_eq!(env.volume().read(&path, 100).await.unwrap(), b"short");
    });
}

#[test]
fn a_deposed_leader_opens_its_own_file_and_acknowledges_nothing() {
    let env = MemoryEnv::virtual_time();
    run(&env, async {
        let broker = start_closed(&env).await;
        let successor = Broker::start(&env, 2);
        successor.lead(0, Some(2), &topic_config(&[])).await;
        successor.append(0, "c").await;
        let refused = broker.produce(0, batch(&env, &["late"])).await;
        assert!(matches!(refused, Err(AppendError::NotLeading(NotLeading::Superseded { .. }))), "{refused:?}");
        assert_eq!(successor.values(0).await, ["a", "c"]);
    });
}

#[test]
fn a_topic_that_was_deleted_meanwhile_is_gone() {
    let env = MemoryEnv::virtual_time();
    run(&env, async {
        let broker = start_closed(&env).await;
        let volume = env.volume();
        for name in names(volume, 0).await {
            volume.unlink(&directory(0).join(name)).await.unwrap();
        }
        volume.remove_directory(&directory(0)).await.unwrap();
        // As the handle of a fence on NFS.
        volume.fail_next(Operation::ReadAt, ErrorKind::StaleNetworkFileHandle);
        let refused = broker.produce(0, batch(&env, &["late"])).await;
        assert!(matches!(refused, Err(AppendError::NotLeading(NotLeading::Gone { .. }))), "{refused:?}");
        assert!(volume.list(&directory(0)).await.is_err(), "and nothing was made");
    });
}

#[test]
fn who_waits_for_a_slot_while_the_topic_goes_makes_no_file() {
    let env = MemoryEnv::virtual_time();
    run(&env, async {
        let broker = start(&env, 2).await;
        broker.append(0, "a").await;
        env.volume().hold(Operation::WriteAt);
        let waiting = [0, 1].map(|partition| broker.begin_produce(partition, RequiredAcks::All, batch(&env, &["b"])));
        settle(&env).await;
        let (done, is_done) = oneshot::channel();
        broker.command(ShardCommand::Abandon { topic_id: key(0).topic_id, done }).await;
        for answer in waiting {
            let refused = answer.await.unwrap().remove(0);
            assert_eq!(refused, Err(AppendError::NotLeading(NotLeading::NotHere)));
        }
        env.volume().release(Operation::WriteAt);
        is_done.await.unwrap();
        settle(&env).await;
        assert_eq!(broker.metric("kaas_open_active_segments"), 0);
        let names = names(env.volume(), 1).await;
        assert!(!names.iter().any(|name| name.ends_with(".log")), "{names:?}");
    });
}

#[test]
fn partitions_that_hang_take_nothing_from_the_coordinator_slots() {
    let env = MemoryEnv::virtual_time();
    run(&env, async {
        let broker = start(&env, 2).await;
        env.volume().create_directories(&slot_directory(slot())).await.unwrap();
        broker.lead_slot(Some(1)).await;
        assert_eq!(broker.commit(1, None).await, ErrorCode::None);
        broker.append(0, "a").await;
        settle(&env).await;
        assert_eq!(broker.metric("kaas_open_active_segments"), 2, "one of the topic, one of the slot");
        broker.append(1, "b").await;
        settle(&env).await;
        assert_eq!(broker.commit(2, None).await, ErrorCode::None);
        assert_eq!((broker.metric(DISPLACED), broker.metric(REOPENED)), (1, 0), "only the topic's gave way");
    });
}
