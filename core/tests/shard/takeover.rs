//! Two brokers on one volume: who is deposed acknowledges nothing that its successor does not keep.

use std::time::Duration;

use kaas_core::env::memory::{MemoryEnv, Operation};
use kaas_core::env::{Env, Volume};
use kaas_core::partition::error::{AppendError, FetchError, NotLeading};
use kaas_core::shard::operation::RequiredAcks;
use kaas_proto::control::PartitionChange;
use kaas_proto::types::LeaderEpoch;

use crate::harness::{Broker, batch, names, run, settle, topic_config};

#[test]
fn a_zombie_acknowledges_nothing() {
    let env = MemoryEnv::virtual_time();
    run(&env, async {
        let config = topic_config(&[]);
        let zombie = Broker::start(&env, 1);
        zombie.lead(0, Some(1), &config).await;
        zombie.append(0, "kept").await;
        // Its write hangs while somebody else takes over.
        env.volume().hold(Operation::WriteAt);
        let unacknowledged = zombie.begin_produce(0, RequiredAcks::All, batch(&env, &["late"]));
        settle(&env).await;
        let successor = Broker::start(&env, 2);
        assert_eq!(successor.lead(0, Some(2), &config).await, LeaderEpoch(2));
        env.volume().release(Operation::WriteAt);
        let outcome = unacknowledged.await.unwrap().remove(0);
        assert!(matches!(outcome, Err(AppendError::NotLeading(NotLeading::Superseded { .. }))), "{outcome:?}");
        let PartitionChange::Superseded { epoch, by } = zombie.next_change().await else { panic!("not superseded") };
        assert_eq!(epoch, LeaderEpoch(2));
        assert!(by.contains("broker 2"), "{by}");
        assert!(matches!(zombie.fetch(0, 0).await, Err(FetchError::NotLeading(NotLeading::Superseded { .. }))));
        // The late bytes lie in the old segment, behind what counts.
        assert_eq!(successor.append(0, "next").await, 1);
        assert_eq!(successor.values(0).await, ["kept", "next"]);
        drop(successor);
        let third = Broker::start(&env, 3);
        third.lead(0, Some(3), &config).await;
        assert_eq!(third.values(0).await, ["kept", "next"]);
    });
}

#[test]
fn a_write_that_landed_before_the_takeover_survives_unacknowledged() {
    let env = MemoryEnv::virtual_time();
    run(&env, async {
        let config = topic_config(&[]);
        let zombie = Broker::start(&env, 1);
        zombie.lead(0, Some(1), &config).await;
        zombie.append(0, "a").await;
        env.volume().hold(Operation::ReadAt);
        let mut waiting = zombie.begin_produce(0, RequiredAcks::All, batch(&env, &["b"]));
        settle(&env).await;
        env.volume().release(Operation::ReadAt);
        // The ask was in flight; whoever is asked first decides. Here nobody has revoked: it is acknowledged.
        settle(&env).await;
        waiting.try_recv().unwrap().remove(0).unwrap();
        let successor = Broker::start(&env, 2);
        successor.lead(0, Some(2), &config).await;
        assert_eq!(successor.values(0).await, ["a", "b"]);
    });
}

#[test]
fn a_second_standalone_broker_takes_over_and_the_first_says_who_did_it() {
    let env = MemoryEnv::virtual_time();
    run(&env, async {
        let config = topic_config(&[]);
        let first = Broker::start_with_a(&env, &config).await;
        let second = Broker::start(&env, 2);
        assert_eq!(second.lead(0, None, &config).await, LeaderEpoch(2));
        let refused = first.produce(0, batch(&env, &["b"])).await;
        assert!(matches!(refused, Err(AppendError::NotLeading(NotLeading::Superseded { .. }))), "{refused:?}");
        let PartitionChange::Superseded { by, .. } = first.next_change().await else { panic!("not superseded") };
        assert!(by.contains("broker 2 with epoch 2"), "{by}");
        // It does not fight back.
        env.sleep(Duration::from_secs(3600)).await;
        assert!(first.no_change() && second.no_change());
        assert_eq!(second.values(0).await, ["a"]);
    });
}

#[test]
fn two_that_start_together_end_with_one_leader() {
    let env = MemoryEnv::virtual_time();
    run(&env, async {
        let config = topic_config(&[]);
        let brokers = [Broker::start(&env, 1), Broker::start(&env, 2)];
        for broker in &brokers {
            broker.take_over(0, None, &config).await;
        }
        settle(&env).await;
        let mut acknowledged = 0;
        for _ in 0..3 {
            for broker in &brokers {
                acknowledged += usize::from(broker.produce(0, batch(&env, &["x"])).await.is_ok());
            }
        }
        assert!(acknowledged >= 3, "{acknowledged}");
        let leaders: Vec<_> = brokers.iter().filter(|broker| broker.metric("kaas_partitions_led") == 1).collect();
        assert_eq!(leaders.len(), 1);
        assert!(leaders[0].values(0).await.len() >= acknowledged);
    });
}

#[test]
fn a_lower_or_equal_epoch_is_superseded() {
    let env = MemoryEnv::virtual_time();
    run(&env, async {
        let config = topic_config(&[]);
        let leader = Broker::start(&env, 1);
        leader.lead(0, Some(5), &config).await;
        leader.append(0, "a").await;
        let late = Broker::start(&env, 2);
        for epoch in [5, 4] {
            late.take_over(0, Some(epoch), &config).await;
            let change = late.next_change().await;
            assert!(matches!(change, PartitionChange::Superseded { epoch: LeaderEpoch(5), .. }), "{change:?}");
        }
        assert_eq!(leader.append(0, "b").await, 1, "the leader is not disturbed");
    });
}

#[test]
fn a_zombie_that_is_told_to_lead_above_its_successor_does() {
    let env = MemoryEnv::virtual_time();
    run(&env, async {
        let config = topic_config(&[]);
        let zombie = Broker::start(&env, 1);
        zombie.lead(0, Some(1), &config).await;
        let successor = Broker::start(&env, 2);
        successor.lead(0, Some(2), &config).await;
        // It learns of its successor only when it hands over to itself.
        zombie.take_over(0, Some(3), &config).await;
        let change = zombie.next_change().await;
        assert!(matches!(change, PartitionChange::Superseded { epoch: LeaderEpoch(2), .. }), "{change:?}");
        assert_eq!(zombie.next_change().await, PartitionChange::Leading { epoch: LeaderEpoch(3) });
    });
}

#[test]
fn a_deposed_leader_writes_no_file_that_counts() {
    let env = MemoryEnv::virtual_time();
    run(&env, async {
        let config = topic_config(&[]);
        let zombie = Broker::start(&env, 1);
        zombie.lead(0, Some(1), &config).await;
        for value in ["a", "b", "c"] {
            zombie.append(0, value).await;
        }
        let successor = Broker::start(&env, 2);
        successor.lead(0, Some(2), &config).await;
        settle(&env).await;
        // It does not know yet, and tries to delete records and to hand over.
        assert!(zombie.delete_records(0, 2).await.is_err());
        zombie.shut_down().await;
        settle(&env).await;
        let left: Vec<_> =
            names(env.volume(), 0).await.into_iter().filter(|name| name.starts_with("00000001.")).collect();
        assert!(left.iter().all(|name| !name.contains("producers") && !name.contains("checkpoint")), "{left:?}");
        assert_eq!(successor.values(0).await, ["a", "b", "c"]);
        drop(successor);
        let third = Broker::start(&env, 3);
        third.lead(0, Some(3), &config).await;
        assert_eq!(third.values(0).await, ["a", "b", "c"], "the log start did not move");
    });
}

#[test]
fn revoked_fences_go_after_a_while() {
    let env = MemoryEnv::virtual_time();
    run(&env, async {
        let config = topic_config(&[]);
        for epoch in 1..5 {
            let broker = Broker::start(&env, epoch);
            broker.lead(0, Some(epoch), &config).await;
            drop(broker);
        }
        let broker = Broker::start(&env, 9);
        broker.lead(0, Some(9), &config).await;
        env.sleep(Duration::from_secs(61)).await;
        assert_eq!(names(env.volume(), 0).await, ["00000009.fence", "00000009.manifest.json"]);
    });
}

#[test]
fn every_operation_of_a_takeover_is_counted() {
    let env = MemoryEnv::virtual_time();
    run(&env, async {
        let config = topic_config(&[]);
        let first = Broker::start(&env, 1);
        first.lead(0, Some(1), &config).await;
        first.append(0, "a").await;
        first.shut_down().await;
        settle(&env).await;
        use Operation::{Open, Overwrite, Read, ReadAt, Rename, Size, SyncDirectory, Write};
        let counted = [Operation::List, Open, Overwrite, Read, ReadAt, Write, Rename, SyncDirectory, Size];
        let before = counted.map(|operation| env.volume().count(operation));
        let second = Broker::start(&env, 2);
        second.lead(0, Some(2), &config).await;
        let after = counted.map(|operation| env.volume().count(operation));
        let did: Vec<_> = counted.iter().zip(before.iter().zip(after)).map(|(name, (a, b))| (*name, b - a)).collect();
        let expected = [
            (Operation::List, 2),
            (Open, 2), // the own fence, the last segment
            (Overwrite, 1),
            (Read, 3),   // manifest, checkpoint, producer snapshot
            (ReadAt, 2), // the end of the log, the ask
            (Write, 1),
            (Rename, 1),
            (SyncDirectory, 1),
            (Size, 1), // of the segment that the checkpoint speaks of
        ];
        assert_eq!(did, expected);
        assert!(env.volume().list(&crate::harness::directory(0)).await.is_ok());
    });
}
