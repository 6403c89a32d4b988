//! Files and directories that somebody has removed from under a leader: it says that it does not lead, not that storage fails.

use std::io::ErrorKind;
use std::path::Path;
use std::time::Duration;

use kaas_core::env::memory::{MemoryEnv, Operation};
use kaas_core::env::{Env, Volume};
use kaas_core::partition::error::{AppendError, DeleteRecordsError, FetchError, LookupError, NotLeading};
use kaas_core::shard::operation::{IsolationLevel, ListOffsets, OffsetQuery, ShardOperation};
use kaas_proto::control::PartitionChange;
use kaas_proto::types::{LeaderEpoch, TimestampMs};
use tokio::sync::oneshot;

use crate::harness::{Broker, batch, directory, key, run, settle, topic_config};

const GONE: [ErrorKind; 2] = [ErrorKind::StaleNetworkFileHandle, ErrorKind::NotFound];

/// A broker that leads partition 0 in a directory that it may not make.
async fn start_with_a(env: &MemoryEnv) -> Broker {
    env.volume().create_directories(&directory(0)).await.unwrap();
    let broker = Broker::start_with(env, 1, |config| config.owns_directories = false);
    broker.lead(0, Some(1), &topic_config(&[])).await;
    broker.append(0, "a").await;
    broker
}

/// Another broker leads, and the first does not know it.
async fn start_deposed(env: &MemoryEnv) -> (Broker, Broker) {
    let deposed = start_with_a(env).await;
    let successor = Broker::start(env, 2);
    successor.lead(0, Some(2), &topic_config(&[])).await;
    (deposed, successor)
}

#[test]
fn a_fence_that_is_gone_ends_the_leadership_and_the_next_epoch_heals_it() {
    for kind in GONE {
        let env = MemoryEnv::virtual_time();
        run(&env, async {
            let broker = start_with_a(&env).await;
            env.volume().fail_next(Operation::ReadAt, kind);
            let refused = broker.produce(0, batch(&env, &["b"])).await;
            assert!(matches!(refused, Err(AppendError::NotLeading(NotLeading::Gone { .. }))), "{refused:?}");
            let refused = broker.fetch(0, 0).await;
            assert!(matches!(refused, Err(FetchError::NotLeading(NotLeading::Gone { .. }))), "{refused:?}");
            assert!(matches!(broker.next_change().await, PartitionChange::Failed { .. }));
            assert_eq!(broker.next_change().await, PartitionChange::Leading { epoch: LeaderEpoch(2) });
            // It was written, and recovery keeps what it finds.
            assert_eq!(broker.values(0).await, ["a", "b"]);
        });
    }
}

#[test]
fn a_successor_that_has_removed_the_fence_is_found_out() {
    let env = MemoryEnv::virtual_time();
    run(&env, async {
        let (deposed, successor) = start_deposed(&env).await;
        env.volume().fail_next(Operation::ReadAt, ErrorKind::StaleNetworkFileHandle);
        let refused = deposed.produce(0, batch(&env, &["b"])).await;
        assert!(matches!(refused, Err(AppendError::NotLeading(NotLeading::Gone { .. }))), "{refused:?}");
        assert!(matches!(deposed.next_change().await, PartitionChange::Failed { .. }));
        let change = deposed.next_change().await;
        assert!(matches!(change, PartitionChange::Superseded { epoch: LeaderEpoch(2), .. }), "{change:?}");
        assert_eq!(successor.values(0).await, ["a"]);
    });
}

#[test]
fn a_write_to_what_a_successor_has_removed_is_answered_by_the_fence() {
    for kind in GONE {
        let env = MemoryEnv::virtual_time();
        run(&env, async {
            let (deposed, _successor) = start_deposed(&env).await;
            env.volume().fail_next(Operation::WriteAt, kind);
            let refused = deposed.produce(0, batch(&env, &["b"])).await;
            assert!(matches!(refused, Err(AppendError::NotLeading(NotLeading::Superseded { .. }))), "{refused:?}");
        });
    }
}

#[test]
fn a_segment_that_is_gone_while_the_fence_is_held_is_a_failure_of_the_storage() {
    let env = MemoryEnv::virtual_time();
    run(&env, async {
        let broker = start_with_a(&env).await;
        env.volume().fail_next(Operation::WriteAt, ErrorKind::StaleNetworkFileHandle);
        let refused = broker.produce(0, batch(&env, &["b"])).await;
        assert!(matches!(refused, Err(AppendError::Storage(_))), "{refused:?}");
        assert_eq!(broker.values(0).await, ["a"]);
    });
}

#[test]
fn readers_of_what_a_successor_has_removed_are_told_that_nobody_leads_here() {
    let env = MemoryEnv::virtual_time();
    run(&env, async {
        let config = topic_config(&[]);
        let first = start_with_a(&env).await;
        first.shut_down().await;
        let look_up = async |broker: &Broker| {
            let (reply, answer) = oneshot::channel();
            let partitions = vec![(key(0), OffsetQuery::AtOrAfter(TimestampMs(0)), None)];
            let isolation = IsolationLevel::ReadUncommitted;
            broker.shard.submit(ShardOperation::ListOffsets(ListOffsets { isolation, partitions, reply }));
            answer.await.unwrap().remove(0)
        };
        for by_time in [false, true] {
            // What they read is not in memory.
            let deposed = Broker::start_with(&env, 1, |config| config.owns_directories = false);
            deposed.lead(0, None, &config).await;
            let successor = Broker::start(&env, 2);
            successor.lead(0, None, &config).await;
            settle(&env).await;
            env.volume().fail_next(Operation::Open, ErrorKind::NotFound);
            let refusal = if by_time {
                look_up(&deposed).await.map(drop).map_err(|error| match error {
                    LookupError::NotLeading(refusal) => refusal,
                    LookupError::Storage(reason) => panic!("{reason}"),
                })
            } else {
                deposed.fetch(0, 0).await.map(drop).map_err(|error| match error {
                    FetchError::NotLeading(refusal) => refusal,
                    other => panic!("{other}"),
                })
            };
            assert!(matches!(refusal, Err(NotLeading::Superseded { .. })), "{refusal:?}");
            successor.shut_down().await;
        }
    });
}

#[test]
fn a_directory_that_is_gone_is_no_failure_of_the_storage() {
    let env = MemoryEnv::virtual_time();
    run(&env, async {
        let broker = start_with_a(&env).await;
        let (here, aside) = (directory(0), directory(0).with_file_name("aside"));
        env.volume().rename(&here, &aside).await.unwrap();
        for name in ["00000001.fence"].map(|name| aside.join(name)) {
            env.volume().overwrite(&name, b"{}\n".to_vec()).await.unwrap();
        }
        let refused = broker.delete_records(0, 1).await;
        assert!(matches!(refused, Err(DeleteRecordsError::NotLeading(_))), "{refused:?}");
        let refused = broker.produce(0, batch(&env, &["b"])).await;
        assert!(matches!(refused, Err(AppendError::NotLeading(_))), "{refused:?}");
    });
}

#[test]
fn a_takeover_without_a_directory_says_so_and_leads_once_there_is_one() {
    let env = MemoryEnv::virtual_time();
    run(&env, async {
        let broker = Broker::start_with(&env, 1, |config| config.owns_directories = false);
        broker.take_over(0, Some(1), &topic_config(&[])).await;
        assert!(matches!(broker.next_change().await, PartitionChange::Failed { .. }));
        let refused = broker.produce(0, batch(&env, &["b"])).await;
        assert!(matches!(refused, Err(AppendError::NotLeading(NotLeading::Gone { .. }))), "{refused:?}");
        env.volume().create_directories(Path::new(&directory(0))).await.unwrap();
        env.sleep(Duration::from_secs(1)).await;
        assert!(matches!(broker.next_change().await, PartitionChange::Leading { .. }));
    });
}
