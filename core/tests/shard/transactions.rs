//! Transactional batches and markers that recovery finds on the volume.

use kaas_core::env::memory::MemoryEnv;
use kaas_core::env::{Env, Volume};
use kaas_core::shard::operation::IsolationLevel;
use kaas_proto::record::{BatchBuilder, ControlRecordType, patch};
use kaas_proto::types::{LeaderEpoch, Offset, ProducerEpoch, ProducerId};

use crate::harness::{Broker, directory, run, topic_config};

fn transactional(env: &MemoryEnv, producer: i64, sequence: i32) -> bytes::Bytes {
    let builder = BatchBuilder::new().producer(ProducerId(producer), ProducerEpoch(0), sequence).transactional();
    builder.record(env.wall_clock(), Some(b"k"), Some(b"v")).build()
}

async fn committed(broker: &Broker, offset: i64) -> (i64, Vec<(i64, i64)>) {
    let fetched = broker.fetch_with(0, offset, IsolationLevel::ReadCommitted, usize::MAX, true).await.unwrap();
    let aborted = fetched.aborted.iter().map(|aborted| (aborted.producer_id.0, aborted.first_offset.0)).collect();
    (fetched.last_stable_offset.0, aborted)
}

#[test]
fn open_and_aborted_transactions_are_rebuilt() {
    let env = MemoryEnv::virtual_time();
    run(&env, async {
        let config = topic_config(&[]);
        let broker = Broker::start(&env, 1);
        broker.lead(0, None, &config).await;
        broker.append(0, "plain").await;
        broker.produce(0, transactional(&env, 1, 0)).await.unwrap();
        broker.produce(0, transactional(&env, 2, 0)).await.unwrap();
        assert_eq!(committed(&broker, 0).await, (1, vec![]));
        let bytes: Vec<u8> = broker.fetch(0, 0).await.unwrap().records.concat();
        drop(broker);
        // What a transaction coordinator adds: the first is aborted, then the second goes on.
        let mut marker = ControlRecordType::Abort.batch(ProducerId(1), ProducerEpoch(0), 5, env.wall_clock()).to_vec();
        patch::patch_base_offset(&mut marker, Offset(3));
        patch::patch_leader_epoch(&mut marker, LeaderEpoch(1));
        let path = directory(0).join("00000001-00000000000000000000.log");
        env.volume().write(&path, [bytes, marker].concat()).await.unwrap();
        for _ in 0..2 {
            let again = Broker::start(&env, 1);
            again.lead(0, None, &config).await;
            let (last_stable_offset, aborted) = committed(&again, 0).await;
            assert_eq!(last_stable_offset, 2, "the second is still open");
            assert_eq!(aborted, [(1, 1)]);
            assert_eq!(committed(&again, 2).await.0, 2);
            again.shut_down().await;
        }
    });
}
