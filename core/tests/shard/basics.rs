//! Append, fetch, restart.

use kaas_core::env::Env;
use kaas_core::env::memory::{MemoryEnv, Operation};
use kaas_core::partition::error::{AppendError, FetchError, NotLeading};
use kaas_core::shard::operation::{
    Appended, DescribeVolume, Produce, ProduceBatch, RequiredAcks, ShardOperation, ShardPort,
};
use kaas_proto::types::{LeaderEpoch, Offset, TimestampMs};

use crate::harness::{Broker, batch, key, names, run, sequenced, settle, topic_config};

#[test]
fn what_was_appended_is_read() {
    let env = MemoryEnv::virtual_time();
    run(&env, async {
        let broker = Broker::start(&env, 1);
        assert_eq!(broker.lead(0, None, &topic_config(&[])).await, LeaderEpoch(1));
        assert_eq!(broker.append(0, "a").await, 0);
        let appended = broker.produce(0, batch(&env, &["b", "c"])).await.unwrap();
        let expected =
            Appended { base_offset: Offset(1), log_append_time: TimestampMs(-1), log_start_offset: Offset(0) };
        assert_eq!(appended, expected);
        assert_eq!(broker.append(0, "d").await, 3);
        let read = broker.read(0, 0).await;
        assert_eq!(read, [(0, "a".into()), (1, "b".into()), (2, "c".into()), (3, "d".into())]);
        assert_eq!(broker.read(0, 2).await.len(), 2, "the batch is whole, the client skips");
        let fetched = broker.fetch(0, 4).await.unwrap();
        assert_eq!((fetched.high_watermark, fetched.records.len()), (Offset(4), 0));
        assert!(matches!(broker.fetch(0, 5).await, Err(FetchError::OffsetOutOfRange { .. })));
    });
}

#[test]
fn a_partition_that_is_not_led_says_so() {
    let env = MemoryEnv::virtual_time();
    run(&env, async {
        let broker = Broker::start(&env, 1);
        assert_eq!(broker.produce(7, batch(&env, &["x"])).await, Err(AppendError::NotLeading(NotLeading::NotHere)));
        broker.take_over(0, None, &topic_config(&[])).await;
        futures_lite::future::yield_now().await;
        assert_eq!(broker.produce(0, batch(&env, &["x"])).await, Err(AppendError::NotLeading(NotLeading::TakingOver)));
    });
}

#[test]
fn everything_is_there_after_a_clean_stop_and_after_a_crash() {
    let env = MemoryEnv::virtual_time();
    run(&env, async {
        let first = Broker::start_with_a(&env, &topic_config(&[])).await;
        first.append(0, "b").await;
        first.shut_down().await;
        // A clean stop: the end is read, nothing else.
        let second = Broker::start(&env, 1);
        assert_eq!(second.lead(0, None, &topic_config(&[])).await, LeaderEpoch(2));
        assert!(second.metric("kaas_partition_recovered_bytes_total") <= 4096);
        assert_eq!(second.append(0, "c").await, 2);
        drop(second);
        // As after a crash: nobody said goodbye.
        let third = Broker::start(&env, 1);
        assert_eq!(third.lead(0, None, &topic_config(&[])).await, LeaderEpoch(3));
        assert_eq!(third.values(0).await, ["a", "b", "c"]);
        assert_eq!(third.append(0, "d").await, 3);
        assert_eq!(third.values(0).await, ["a", "b", "c", "d"]);
        settle(&env).await;
        let files = names(env.volume(), 0).await;
        assert_eq!(
            files,
            [
                "00000001-00000000000000000000.index",
                "00000001-00000000000000000000.log",
                "00000001.fence",
                "00000002-00000000000000000002.log",
                "00000002.fence",
                "00000003-00000000000000000003.log",
                "00000003.fence",
                "00000003.manifest.json",
            ]
        );
    });
}

#[test]
fn an_append_is_one_write_and_one_ask() {
    let env = MemoryEnv::virtual_time();
    run(&env, async {
        let broker = Broker::start(&env, 1);
        broker.lead(0, None, &topic_config(&[])).await;
        broker.append(0, "first").await;
        let volume = env.volume();
        let before = [Operation::WriteAt, Operation::ReadAt].map(|operation| volume.count(operation));
        broker.append(0, "second").await;
        let after = [Operation::WriteAt, Operation::ReadAt].map(|operation| volume.count(operation));
        assert_eq!([after[0] - before[0], after[1] - before[1]], [1, 1]);
    });
}

#[test]
fn acks_0_is_answered_at_once() {
    let env = MemoryEnv::virtual_time();
    run(&env, async {
        let broker = Broker::start(&env, 1);
        broker.lead(0, None, &topic_config(&[])).await;
        let mut answer = broker.begin_produce(0, RequiredAcks::None, batch(&env, &["x"]));
        assert_eq!(answer.try_recv().unwrap()[0].as_ref().unwrap().base_offset, Offset(0));
        settle(&env).await;
        assert_eq!(broker.values(0).await, ["x"]);
    });
}

#[test]
fn repeated_batches_are_recognised_also_after_a_restart() {
    let env = MemoryEnv::virtual_time();
    run(&env, async {
        let first = Broker::start(&env, 1);
        first.lead(0, None, &topic_config(&[])).await;
        for sequence in 0..3 {
            first.produce(0, sequenced(&env, sequence, "v")).await.unwrap();
        }
        assert_eq!(first.produce(0, sequenced(&env, 1, "v")).await.unwrap().base_offset, Offset(1));
        drop(first);
        for clean in [false, true, false] {
            let broker = Broker::start(&env, 1);
            broker.lead(0, None, &topic_config(&[])).await;
            assert_eq!(broker.produce(0, sequenced(&env, 2, "v")).await.unwrap().base_offset, Offset(2));
            let gap = broker.produce(0, sequenced(&env, 9, "v")).await;
            assert_eq!(gap, Err(AppendError::OutOfOrderSequence { expected: 3, got: 9 }));
            if clean {
                broker.shut_down().await;
            }
        }
    });
}

#[test]
fn other_shards_reach_it_through_its_queue() {
    let env = MemoryEnv::virtual_time();
    run(&env, async {
        let broker = Broker::start(&env, 1);
        broker.lead(0, None, &topic_config(&[])).await;
        let port = broker.handle();
        let mut answers = Vec::new();
        for value in 0..3 {
            let (reply, answer) = tokio::sync::oneshot::channel();
            let batches = vec![ProduceBatch::new(key(0), batch(&env, &[&value.to_string()])).unwrap()];
            port.submit(ShardOperation::Produce(Produce { acks: RequiredAcks::All, batches, reply })).unwrap();
            answers.push(answer);
        }
        for answer in answers {
            answer.await.unwrap().remove(0).unwrap();
        }
        assert_eq!(broker.values(0).await, ["0", "1", "2"]);
    });
}

#[test]
fn the_size_of_a_volume_is_told_unless_it_is_memory() {
    let env = MemoryEnv::virtual_time();
    run(&env, async {
        env.volume().set_capacity(Some(5000));
        for (owns_directories, expected) in [(true, None), (false, Some(5000))] {
            let broker = Broker::start_with(&env, 1, |config| config.owns_directories = owns_directories);
            let (reply, answer) = tokio::sync::oneshot::channel();
            broker.shard.submit(ShardOperation::DescribeVolume(DescribeVolume { reply }));
            assert_eq!(answer.await.unwrap().map(|space| space.total_bytes), expected);
        }
    });
}
