//! Commands of the control thread: in order, a newer one interrupts.

use kaas_core::env::memory::{MemoryEnv, Operation};
use kaas_core::env::{Env, Volume};
use kaas_core::partition::error::{AppendError, NotLeading};
use kaas_core::shard::operation::RequiredAcks;
use kaas_proto::control::{PartitionChange, ShardCommand};
use kaas_proto::types::LeaderEpoch;
use tokio::sync::oneshot;

use crate::harness::{Broker, batch, directory, key, run, settle, topic_config};

#[test]
fn a_relinquish_answers_what_was_accepted() {
    let env = MemoryEnv::virtual_time();
    run(&env, async {
        let broker = Broker::start(&env, 1);
        broker.lead(0, Some(3), &topic_config(&[])).await;
        let accepted = broker.begin_produce(0, RequiredAcks::All, batch(&env, &["a"]));
        broker.command(ShardCommand::Relinquish { partition: key(0) }).await;
        accepted.await.unwrap().remove(0).unwrap();
        assert_eq!(broker.next_change().await, PartitionChange::Relinquished { epoch: LeaderEpoch(3) });
        let refused = broker.produce(0, batch(&env, &["b"])).await;
        assert_eq!(refused, Err(AppendError::NotLeading(NotLeading::NotHere)));
        broker.command(ShardCommand::Relinquish { partition: key(0) }).await;
        assert!(matches!(broker.next_change().await, PartitionChange::Relinquished { .. }), "said once more");
        assert_eq!(broker.lead(0, Some(4), &topic_config(&[])).await, LeaderEpoch(4));
        assert_eq!(broker.values(0).await, ["a"]);
    });
}

#[test]
fn a_higher_epoch_is_taken_from_oneself() {
    let env = MemoryEnv::virtual_time();
    run(&env, async {
        let broker = Broker::start(&env, 1);
        let config = topic_config(&[]);
        assert_eq!(broker.lead(0, Some(3), &config).await, LeaderEpoch(3));
        broker.append(0, "a").await;
        assert_eq!(broker.lead(0, Some(3), &config).await, LeaderEpoch(3), "nothing to do");
        assert_eq!(broker.lead(0, Some(2), &config).await, LeaderEpoch(3), "nor for an older one");
        assert_eq!(broker.lead(0, Some(7), &config).await, LeaderEpoch(7));
        assert_eq!(broker.append(0, "b").await, 1);
        assert_eq!(broker.values(0).await, ["a", "b"]);
    });
}

#[test]
fn a_newer_command_interrupts_a_takeover_at_every_step() {
    let steps = [
        Operation::CreateDirectories,
        Operation::Open,
        Operation::List,
        Operation::Overwrite,
        Operation::Read,
        Operation::Write,
        Operation::Rename,
        Operation::SyncDirectory,
        Operation::ReadAt,
    ];
    for step in steps {
        let env = MemoryEnv::virtual_time();
        run(&env, async {
            let config = topic_config(&[]);
            let before = Broker::start(&env, 1);
            before.lead(0, Some(1), &config).await;
            before.append(0, "a").await;
            drop(before);
            let broker = Broker::start(&env, 2);
            env.volume().hold(step);
            broker.take_over(0, Some(2), &config).await;
            settle(&env).await;
            broker.command(ShardCommand::Relinquish { partition: key(0) }).await;
            settle(&env).await;
            env.volume().release(step);
            let change = broker.next_change().await;
            assert!(
                matches!(change, PartitionChange::Relinquished { .. } | PartitionChange::Leading { .. }),
                "{step:?}: {change:?}"
            );
            settle(&env).await;
            assert_eq!(broker.metric("kaas_partitions_led"), 0, "{step:?}");
            assert_eq!(broker.lead(0, Some(3), &config).await, LeaderEpoch(3), "{step:?}");
            assert_eq!(broker.values(0).await, ["a"], "{step:?}");
        });
    }
}

#[test]
fn an_abandoned_partition_persists_nothing() {
    let env = MemoryEnv::virtual_time();
    run(&env, async {
        let broker = Broker::start_with_a(&env, &topic_config(&[])).await;
        let mut poll = broker.watch(0, 1, 1);
        let waiting = broker.begin_produce(0, RequiredAcks::All, batch(&env, &["b"]));
        let writes = env.volume().count(Operation::Write);
        let (done, is_done) = oneshot::channel();
        broker.command(ShardCommand::Abandon { topic_id: key(0).topic_id, done }).await;
        is_done.await.unwrap();
        assert!(poll.try_recv().is_ok());
        assert_eq!(waiting.await.unwrap().remove(0), Err(AppendError::NotLeading(NotLeading::NotHere)));
        assert_eq!(env.volume().count(Operation::Write), writes);
        assert!(env.volume().list(&directory(0)).await.is_err(), "local-dev mode removes the directory");
        assert!(broker.no_change());
        assert_eq!(broker.metric("kaas_partitions_wanted"), 0);
    });
}

#[test]
fn many_partitions_are_taken_over_with_bounded_concurrency() {
    let env = MemoryEnv::virtual_time();
    run(&env, async {
        let broker = Broker::start(&env, 1);
        let config = topic_config(&[]);
        env.volume().hold(Operation::SyncDirectory);
        for partition in 0..50 {
            broker.take_over(partition, None, &config).await;
        }
        settle(&env).await;
        assert_eq!(env.volume().count(Operation::SyncDirectory), 16);
        env.volume().release(Operation::SyncDirectory);
        for _ in 0..50 {
            assert!(matches!(broker.next_change().await, PartitionChange::Leading { .. }));
        }
        assert_eq!(broker.metric("kaas_partitions_led"), 50);
        broker.shut_down().await;
        assert_eq!(broker.metric("kaas_partitions_led"), 0);
    });
}

#[test]
fn a_changed_configuration_counts_at_once() {
    let env = MemoryEnv::virtual_time();
    run(&env, async {
        let broker = Broker::start(&env, 1);
        broker.lead(0, None, &topic_config(&[])).await;
        broker.append(0, &"x".repeat(2000)).await;
        broker.lead(0, None, &topic_config(&[("max.message.bytes", "1000")])).await;
        let refused = broker.produce(0, batch(&env, &[&"x".repeat(2000)])).await;
        assert!(matches!(refused, Err(AppendError::TooLarge { limit: 1000, .. })));
        assert_eq!(broker.append(0, "small").await, 1);
    });
}
