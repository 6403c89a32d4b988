//! Group commit, asks, long polls.

use std::time::Duration;

use kaas_core::env::memory::{MemoryEnv, Operation};
use kaas_core::env::{Env, Volume};
use kaas_core::shard::operation::RequiredAcks;
use kaas_proto::record::{BatchBuilder, RecordBatchView};
use kaas_proto::types::{LeaderEpoch, Offset, ProducerEpoch, ProducerId, TimestampMs};

use crate::harness::{Broker, batch, directory, run, settle, topic_config};

#[test]
fn what_queues_during_a_write_goes_out_together() {
    let env = MemoryEnv::virtual_time();
    run(&env, async {
        let broker = Broker::start(&env, 1);
        broker.lead(0, None, &topic_config(&[])).await;
        broker.append(0, "first").await;
        let volume = env.volume();
        let (writes, asks) = (volume.count(Operation::WriteAt), volume.count(Operation::ReadAt));
        let answers: Vec<_> =
            (0..100).map(|_| broker.begin_produce(0, RequiredAcks::All, batch(&env, &["x"]))).collect();
        for (index, answer) in answers.into_iter().enumerate() {
            let appended = answer.await.unwrap().remove(0).unwrap();
            assert_eq!(appended.base_offset, Offset(1 + i64::try_from(index).unwrap()));
        }
        // The write task takes what is there when it begins.
        assert_eq!(volume.count(Operation::WriteAt) - writes, 1);
        assert_eq!(volume.count(Operation::ReadAt) - asks, 1);
        assert_eq!(broker.values(0).await.len(), 101);
    });
}

#[test]
fn the_next_write_is_in_flight_during_the_ask_and_one_ask_covers_all_that_completed() {
    let env = MemoryEnv::virtual_time();
    run(&env, async {
        let broker = Broker::start(&env, 1);
        broker.lead(0, None, &topic_config(&[])).await;
        broker.append(0, "first").await;
        let volume = env.volume();
        let (writes, asks) = (volume.count(Operation::WriteAt), volume.count(Operation::ReadAt));
        volume.hold(Operation::ReadAt);
        let mut answers = Vec::new();
        for _ in 0..5 {
            answers.push(broker.begin_produce(0, RequiredAcks::All, batch(&env, &["x"])));
            settle(&env).await;
        }
        assert_eq!(volume.count(Operation::WriteAt) - writes, 5, "writes do not wait for asks");
        assert!(answers[0].try_recv().is_err(), "nothing is acknowledged before its ask");
        assert_eq!(broker.fetch(0, 0).await.unwrap().high_watermark, Offset(1));
        volume.release(Operation::ReadAt);
        for answer in answers {
            answer.await.unwrap().remove(0).unwrap();
        }
        // The first ask began when one write was complete; the second covers the other four.
        assert_eq!(volume.count(Operation::ReadAt) - asks, 2);
    });
}

#[test]
fn large_batches_are_packed_during_a_write_and_recovered() {
    let env = MemoryEnv::virtual_time();
    run(&env, async {
        let config = topic_config(&[("segment.bytes", "1048576")]);
        let broker = Broker::start(&env, 1);
        broker.lead(0, None, &config).await;
        let value = |n: usize| format!("{n:05}").repeat(10_000 + n);
        let mut expected = Vec::new();
        for round in 0..20 {
            env.volume().hold(Operation::WriteAt);
            // A large write, and behind it batches of all sizes: more than it makes room for, and more than a segment takes.
            let sizes = [40_000, 1, 30_000, 7_000 + round, 100, 60_000, 3];
            let mut answers = Vec::new();
            for size in sizes {
                let text = value(round)[..size.min(50_000)].to_owned();
                answers.push(broker.begin_produce(0, RequiredAcks::All, batch(&env, &[&text, &text])));
                expected.extend([text.clone(), text]);
                settle(&env).await;
            }
            env.volume().release(Operation::WriteAt);
            for answer in answers {
                answer.await.unwrap().remove(0).unwrap();
            }
        }
        assert!(broker.metric("kaas_log_commits_packed_ahead_total") >= 5);
        assert!(broker.metric("kaas_log_segments_rolled_total") >= 3);
        let reread = |broker: Broker<MemoryEnv>| {
            let expected = expected.clone();
            async move {
                let mut read = Vec::new();
                while read.len() < expected.len() {
                    let more = broker.read(0, i64::try_from(read.len()).unwrap()).await;
                    assert!(!more.is_empty() && more[0].0 == i64::try_from(read.len()).unwrap());
                    read.extend(more.into_iter().map(|(_, value)| value));
                }
                assert!(read == expected);
                broker
            }
        };
        let broker = reread(broker).await;
        drop(broker);
        // What is on the volume is the same.
        let broker = Broker::start(&env, 2);
        broker.lead(0, None, &config).await;
        reread(broker).await;
    });
}

#[test]
fn an_idle_partition_costs_nothing() {
    let env = MemoryEnv::virtual_time();
    run(&env, async {
        let broker = Broker::start(&env, 1);
        broker.lead(0, None, &topic_config(&[])).await;
        broker.append(0, "x").await;
        settle(&env).await;
        env.sleep(Duration::from_secs(120)).await;
        let operations = [Operation::WriteAt, Operation::ReadAt, Operation::Read, Operation::List, Operation::Write];
        let before = operations.map(|operation| env.volume().count(operation));
        env.sleep(Duration::from_secs(3600)).await;
        assert_eq!(before, operations.map(|operation| env.volume().count(operation)));
    });
}

#[test]
fn a_segment_rolls_when_it_is_full_or_old() {
    let env = MemoryEnv::virtual_time();
    run(&env, async {
        let broker = Broker::start(&env, 1);
        let config = topic_config(&[("segment.bytes", "1048576"), ("segment.ms", "60000")]);
        broker.lead(0, None, &config).await;
        let large = "x".repeat(400_000);
        for _ in 0..5 {
            broker.append(0, &large).await;
        }
        env.sleep(Duration::from_secs(61)).await;
        broker.append(0, "later").await;
        settle(&env).await;
        let names = crate::harness::names(env.volume(), 0).await;
        let logs: Vec<_> = names.iter().filter_map(|name| name.strip_suffix(".log")).collect();
        let expected = [0, 2, 4, 5].map(|base| format!("00000001-{base:020}"));
        assert_eq!(logs, expected);
        assert_eq!(names.iter().filter(|name| name.ends_with(".index")).count(), 3, "{names:?}");
        assert_eq!(broker.values(0).await.len(), 6);
        drop(broker);
        let again = Broker::start(&env, 1);
        assert_eq!(again.lead(0, None, &config).await, LeaderEpoch(2));
        assert_eq!(again.values(0).await.last().unwrap(), "later");
        assert_eq!(again.values(0).await.len(), 6);
    });
}

#[test]
fn long_polls_wake_up() {
    let env = MemoryEnv::virtual_time();
    run(&env, async {
        let broker = Broker::start_with_a(&env, &topic_config(&[])).await;
        let mut one_byte = broker.watch(0, 1, 1);
        let mut many_bytes = broker.watch(0, 1, 200);
        assert!(broker.watch(0, 0, 1).try_recv().is_ok(), "there is something already");
        settle(&env).await;
        assert!(one_byte.try_recv().is_err());
        broker.append(0, "b").await;
        assert!(one_byte.try_recv().is_ok());
        assert!(many_bytes.try_recv().is_err());
        broker.append(0, &"c".repeat(200)).await;
        assert!(many_bytes.try_recv().is_ok());
        let mut lost = broker.watch(0, 3, 1);
        broker.shut_down().await;
        assert!(lost.try_recv().is_ok());
        assert!(broker.watch(0, 3, 1).try_recv().is_ok(), "not led here");
    });
}

#[test]
fn a_full_queue_refuses_and_recovers() {
    let env = MemoryEnv::virtual_time();
    run(&env, async {
        let broker = Broker::start_with_a(&env, &topic_config(&[])).await;
        env.volume().hold(Operation::WriteAt);
        let large = "x".repeat(1_000_000);
        let answers: Vec<_> =
            (0..40).map(|_| broker.begin_produce(0, RequiredAcks::All, batch(&env, &[&large]))).collect();
        settle(&env).await;
        env.volume().release(Operation::WriteAt);
        let mut outcomes = Vec::new();
        for answer in answers {
            outcomes.push(answer.await.unwrap().remove(0));
        }
        let refused = outcomes.iter().filter(|outcome| outcome.is_err()).count();
        assert!((5..10).contains(&refused), "{refused}");
        assert_eq!(broker.metric("kaas_append_queue_full_total"), refused as u64);
        broker.append(0, "fits again").await;
    });
}

#[test]
fn segments_hold_the_batches_as_they_are_on_the_wire() {
    let env = MemoryEnv::virtual_time();
    run(&env, async {
        let broker = Broker::start_with_a(&env, &topic_config(&[])).await;
        broker.append(0, "b").await;
        let path = directory(0).join("00000001-00000000000000000000.log");
        let content = env.volume().read(&path, 1 << 20).await.unwrap();
        let records: Vec<u8> = broker.fetch(0, 0).await.unwrap().records.concat();
        assert!(content.starts_with(&records));
        assert_eq!(content.len() % 4096, 0);
        assert!(content[records.len()..].iter().all(|&byte| byte == 0));
    });
}

#[test]
fn log_append_time_is_the_brokers() {
    let env = MemoryEnv::virtual_time();
    run(&env, async {
        let broker = Broker::start(&env, 1);
        broker.lead(0, None, &topic_config(&[("message.timestamp.type", "LogAppendTime")])).await;
        let old =
            BatchBuilder::new().producer(ProducerId(1), ProducerEpoch(0), 0).record(TimestampMs(5), None, None).build();
        let first = broker.produce(0, old.clone()).await.unwrap();
        assert_eq!(first.log_append_time, env.wall_clock());
        env.sleep(Duration::from_secs(5)).await;
        assert_eq!(broker.produce(0, old).await.unwrap(), first, "a repeated batch has the time of its original");
        let fetched = broker.fetch(0, 0).await.unwrap().records.concat();
        let stored = RecordBatchView::read(&fetched).unwrap();
        stored.check_crc().unwrap();
        assert!(stored.is_log_append_time());
        assert_eq!((stored.max_timestamp(), stored.base_timestamp()), (first.log_append_time, TimestampMs(5)));
    });
}

#[test]
fn the_durability_dial_acknowledges_early_and_says_so() {
    let env = MemoryEnv::virtual_time();
    run(&env, async {
        let broker = Broker::start(&env, 1);
        broker.lead(0, None, &topic_config(&[("flush.messages", "3")])).await;
        env.volume().hold(Operation::WriteAt);
        let mut answers: Vec<_> =
            (0..4).map(|_| broker.begin_produce(0, RequiredAcks::All, batch(&env, &["x"]))).collect();
        let answered: Vec<_> = answers.iter_mut().map(|answer| answer.try_recv().is_ok()).collect();
        assert_eq!(answered, [true, true, false, false], "the third waits until it is durable");
        assert_eq!(broker.fetch(0, 0).await.unwrap().high_watermark, Offset(0), "but nobody sees them before");
        assert_eq!(broker.metric("kaas_log_early_acknowledgements_total"), 2);
        env.volume().release(Operation::WriteAt);
        for answer in answers.drain(2..) {
            answer.await.unwrap().remove(0).unwrap();
        }
    });
}
