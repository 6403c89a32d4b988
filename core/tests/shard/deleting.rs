//! DeleteRecords and retention.

use std::time::Duration;

use kaas_core::env::Env;
use kaas_core::env::memory::{MemoryEnv, Operation};
use kaas_core::partition::error::{DeleteRecordsError, FetchError};
use kaas_proto::control::PartitionChange;
use kaas_proto::types::{LeaderEpoch, Offset};

use crate::harness::{Broker, names, run, sequenced, settle, topic_config};

#[test]
fn deleted_records_stay_deleted() {
    let env = MemoryEnv::virtual_time();
    run(&env, async {
        let first = Broker::start(&env, 1);
        first.lead(0, None, &topic_config(&[])).await;
        for value in ["a", "b", "c"] {
            first.append(0, value).await;
        }
        assert_eq!(first.delete_records(0, 1).await, Ok(Offset(1)));
        assert!(matches!(first.fetch(0, 0).await, Err(FetchError::OffsetOutOfRange { log_start: Offset(1), .. })));
        let above = first.delete_records(0, 4).await;
        let expected = DeleteRecordsError::OffsetOutOfRange { offset: Offset(4), high_watermark: Offset(3) };
        assert_eq!(above, Err(expected));
        assert_eq!(first.delete_records(0, 0).await, Ok(Offset(1)), "it never falls");
        drop(first);
        let second = Broker::start(&env, 1);
        second.lead(0, None, &topic_config(&[])).await;
        assert_eq!(second.fetch(0, 1).await.unwrap().log_start_offset, Offset(1));
        assert_eq!(second.delete_records(0, -1).await, Ok(Offset(3)));
        assert_eq!(second.append(0, "d").await, 3);
        assert_eq!(second.read(0, 3).await, [(3, "d".into())]);
        settle(&env).await;
        drop(second);
        let third = Broker::start(&env, 1);
        third.lead(0, None, &topic_config(&[])).await;
        assert_eq!(third.read(0, 3).await, [(3, "d".into())]);
        settle(&env).await;
        assert!(!names(env.volume(), 0).await.iter().any(|name| name.starts_with("00000001-")));
    });
}

#[test]
fn the_log_start_is_recorded_and_asked_for_before_anything_goes() {
    let env = MemoryEnv::virtual_time();
    run(&env, async {
        let broker = Broker::start(&env, 1);
        broker.lead(0, None, &topic_config(&[("segment.bytes", "1048576")])).await;
        for _ in 0..4 {
            broker.append(0, &"x".repeat(600_000)).await;
        }
        let volume = env.volume();
        volume.fail_next(Operation::Rename, std::io::ErrorKind::Other);
        assert!(matches!(broker.delete_records(0, -1).await, Err(DeleteRecordsError::Storage(_))));
        settle(&env).await;
        assert_eq!(broker.read(0, 0).await.len(), 4);
        // The rename may yet happen, over whatever this epoch would write next: it writes nothing more.
        assert!(matches!(broker.next_change().await, PartitionChange::Failed { .. }));
        assert_eq!(broker.next_change().await, PartitionChange::Leading { epoch: LeaderEpoch(2) });
        settle(&env).await;
        let unlinks = volume.count(Operation::Unlink);
        assert_eq!(broker.delete_records(0, 3).await, Ok(Offset(3)));
        settle(&env).await;
        // Three segments and their indexes.
        assert_eq!(volume.count(Operation::Unlink) - unlinks, 6);
        assert_eq!(broker.read(0, 3).await.len(), 1);
    });
}

#[test]
fn producers_are_remembered_when_their_records_are_deleted() {
    let env = MemoryEnv::virtual_time();
    run(&env, async {
        let first = Broker::start(&env, 1);
        first.lead(0, None, &topic_config(&[])).await;
        assert_eq!(first.produce(0, sequenced(&env, 0, "a")).await.unwrap().base_offset, Offset(0));
        assert_eq!(first.delete_records(0, -1).await, Ok(Offset(1)));
        settle(&env).await;
        // It crashes, and the client has not got the answer.
        drop(first);
        let second = Broker::start(&env, 2);
        second.lead(0, None, &topic_config(&[])).await;
        let repeated = second.produce(0, sequenced(&env, 0, "a")).await.unwrap();
        assert_eq!(repeated.base_offset, Offset(0), "a repeated batch is no new one");
        assert_eq!(second.produce(0, sequenced(&env, 1, "b")).await.unwrap().base_offset, Offset(1));
    });
}

#[test]
fn compacted_topics_are_not_deleted_by_offset() {
    let env = MemoryEnv::virtual_time();
    run(&env, async {
        let broker = Broker::start(&env, 1);
        broker.lead(0, None, &topic_config(&[("cleanup.policy", "compact")])).await;
        assert_eq!(broker.delete_records(0, 0).await, Err(DeleteRecordsError::Compacted));
    });
}

#[test]
fn retention_by_size_keeps_enough() {
    let env = MemoryEnv::virtual_time();
    run(&env, async {
        let broker = Broker::start(&env, 1);
        let config = topic_config(&[("segment.bytes", "1048576"), ("retention.bytes", "2000000")]);
        broker.lead(0, None, &config).await;
        for _ in 0..10 {
            broker.append(0, &"x".repeat(600_000)).await;
        }
        env.sleep(Duration::from_secs(600)).await;
        let log_start = broker.fetch(0, 9).await.unwrap().log_start_offset;
        assert_eq!(log_start, Offset(6), "four segments of 0.6 MB are left: one more would be below the limit");
        assert_eq!(names(env.volume(), 0).await.iter().filter(|name| name.ends_with(".log")).count(), 4);
    });
}

#[test]
fn retention_by_time_takes_the_newest_segment_too() {
    let env = MemoryEnv::virtual_time();
    run(&env, async {
        let config = topic_config(&[("segment.bytes", "1048576"), ("retention.ms", "3600000")]);
        let first = Broker::start(&env, 1);
        first.lead(0, None, &config).await;
        for _ in 0..3 {
            first.append(0, &"x".repeat(600_000)).await;
        }
        env.sleep(Duration::from_secs(1800)).await;
        assert_eq!(first.fetch(0, 0).await.unwrap().log_start_offset, Offset(0));
        drop(first);
        // A restart does not make records younger.
        let second = Broker::start(&env, 1);
        second.lead(0, None, &config).await;
        env.sleep(Duration::from_secs(2400)).await;
        assert_eq!(second.fetch(0, 3).await.unwrap().log_start_offset, Offset(3));
        assert_eq!(second.append(0, "later").await, 3);
        settle(&env).await;
        let names = names(env.volume(), 0).await;
        let logs: Vec<_> = names.iter().filter(|name| name.ends_with(".log")).collect();
        assert_eq!(logs, ["00000002-00000000000000000003.log"]);
    });
}

#[test]
fn offsets_go_on_where_everything_was_deleted() {
    let env = MemoryEnv::virtual_time();
    run(&env, async {
        let config = topic_config(&[]);
        let first = Broker::start(&env, 1);
        first.lead(0, None, &config).await;
        for value in ["a", "b", "c"] {
            first.append(0, value).await;
        }
        assert_eq!(first.delete_records(0, -1).await, Ok(Offset(3)));
        settle(&env).await;
        let logs = |names: Vec<String>| names.into_iter().filter(|name| name.ends_with(".log")).collect::<Vec<_>>();
        assert_eq!(logs(names(env.volume(), 0).await), ["00000001-00000000000000000003.log"], "only its name is left");
        drop(first);
        // As after a crash, twice: nobody has written since.
        for _ in 0..2 {
            Broker::start(&env, 1).lead(0, None, &config).await;
        }
        let last = Broker::start(&env, 1);
        last.lead(0, None, &config).await;
        assert_eq!(last.append(0, "d").await, 3);
        assert_eq!(last.delete_records(0, -1).await, Ok(Offset(4)));
        assert_eq!(last.append(0, "e").await, 4);
        assert_eq!(last.read(0, 4).await, [(4, "e".into())]);
    });
}
