//! Files of a leader whose replacement hangs: checkpoint, snapshot, index and manifest.

use std::time::Duration;

use kaas_core::env::Env;
use kaas_core::env::memory::{MemoryEnv, Operation};
use kaas_core::log::led_log::STALL_LIMIT;
use kaas_core::partition::error::AppendError;
use kaas_core::shard::operation::RequiredAcks;
use kaas_proto::control::{PartitionChange, ShardCommand};
use kaas_proto::types::LeaderEpoch;

use crate::harness::{Broker, batch, key, names, run, settle, topic_config};

const CHECKPOINT_BYTES: u64 = 10_000;
const CALLS: [Operation; 2] = [Operation::Write, Operation::Rename];

/// A leader of a partition that has just captured what it is going to write to its checkpoint.
async fn start(env: &MemoryEnv) -> Broker {
    let broker = Broker::start_with(env, 1, |config| config.checkpoint_bytes = CHECKPOINT_BYTES);
    broker.lead(0, None, &topic_config(&[])).await;
    broker
}

async fn append_much(env: &MemoryEnv, broker: &Broker) {
    for _ in 0..4 {
        broker.append(0, &"x".repeat(5000)).await;
        settle(env).await;
    }
}

#[test]
fn a_checkpoint_that_hangs_stalls_the_partition_until_it_is_there() {
    for call in CALLS {
        let env = MemoryEnv::virtual_time();
        run(&env, async {
            let broker = start(&env).await;
            env.volume().hold(call);
            append_much(&env, &broker).await;
            // Longer than it takes to look.
            env.sleep(STALL_LIMIT + Duration::from_secs(10)).await;
            assert_eq!(broker.next_change().await, PartitionChange::Stalled(true));
            assert_eq!(broker.produce(0, batch(&env, &["b"])).await, Err(AppendError::Stalled), "{call:?}");
            assert_eq!(broker.values(0).await.len(), 4, "reads go on");
            env.volume().release(call);
            assert_eq!(broker.next_change().await, PartitionChange::Stalled(false));
            assert_eq!(broker.append(0, "b").await, 4);
            assert!(names(env.volume(), 0).await.contains(&"00000001.checkpoint.json".to_owned()));
        });
    }
}

#[test]
fn a_relinquish_does_not_wait_for_ever() {
    for call in [Operation::Write, Operation::Rename, Operation::WriteAt, Operation::SyncDirectory] {
        let env = MemoryEnv::virtual_time();
        run(&env, async {
            let broker = start(&env).await;
            broker.append(0, "a").await;
            env.volume().hold(call);
            let waiting = broker.begin_produce(0, RequiredAcks::All, batch(&env, &["b"]));
            let began = env.now();
            broker.command(ShardCommand::Relinquish { partition: key(0) }).await;
            loop {
                match broker.next_change().await {
                    PartitionChange::Relinquished { .. } => break,
                    change => assert_eq!(change, PartitionChange::Stalled(true), "{call:?}"),
                }
            }
            assert!(env.now().since(began) < STALL_LIMIT + Duration::from_secs(2), "{call:?}");
            assert_eq!(broker.metric("kaas_partition_farewells_cut_short_total"), 1);
            let acknowledged = waiting.await.unwrap().remove(0).is_ok();
            env.volume().release(call);
            let other = Broker::start(&env, 2);
            other.take_over(0, Some(9), &topic_config(&[])).await;
            while other.next_change().await != (PartitionChange::Leading { epoch: LeaderEpoch(9) }) {}
            let values = other.values(0).await;
            assert!(values == ["a", "b"] || !acknowledged && values == ["a"], "{call:?}: {values:?}");
        });
    }
}
