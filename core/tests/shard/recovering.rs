//! What recovery reads, in bytes, and what it rebuilds.

use std::collections::VecDeque;
use std::io::ErrorKind;
use std::time::Duration;

use bytes::Bytes;
use kaas_core::env::Env;
use kaas_core::env::memory::{MemoryEnv, Operation};
use kaas_core::format::partition_file::PartitionFile;
use kaas_core::shard::operation::RequiredAcks;
use kaas_proto::record::BatchBuilder;
use kaas_proto::types::LeaderEpoch;

use crate::harness::{Broker, names, run, sequenced, settle, topic_config};
use crate::stepping::StepEnv;

/// 64 MiB and a block.
const MOST_BYTES: u64 = (64 << 20) + 4096;
const BATCH_BYTES: usize = 1_000_000;

type Process = Broker<StepEnv>;

fn large(env: &impl Env) -> Bytes {
    BatchBuilder::new().record(env.wall_clock(), None, Some(&vec![7; BATCH_BYTES])).build()
}

/// Appends without waiting, as producers with much in flight do.
async fn append_many(broker: &Process, count: usize, in_flight: usize) {
    let batch = large(&broker.env);
    let mut answers = VecDeque::new();
    for _ in 0..count {
        answers.push_back(broker.begin_produce(0, RequiredAcks::All, batch.clone()));
        if answers.len() >= in_flight {
            answers.pop_front().unwrap().await.unwrap().remove(0).unwrap();
        }
    }
}

#[test]
fn after_a_crash_a_bounded_part_is_read() {
    for (count, in_flight) in [(10, 1), (40, 1), (63, 4), (100, 30), (143, 30)] {
        let env = MemoryEnv::virtual_time();
        run(&env, async {
            let config = topic_config(&[]);
            let first = Process::start(&StepEnv::new(&env), 1);
            first.lead(0, Some(1), &config).await;
            append_many(&first, count, in_flight).await;
            first.env.gate().stop();
            let second = Process::start(&StepEnv::new(&env), 2);
            second.lead(0, Some(2), &config).await;
            let read = second.metric("kaas_partition_recovered_bytes_total");
            assert!(read <= MOST_BYTES, "{read} bytes of {count} MB");
            assert!(count < 70 || read < (count as u64) * 1_000_000 / 2, "{read} bytes of {count} MB");
            // And all of it only once.
            second.env.gate().stop();
            let third = Process::start(&StepEnv::new(&env), 3);
            third.lead(0, Some(3), &config).await;
            assert_eq!(third.metric("kaas_partition_recovered_bytes_total"), 0);
        });
    }
}

#[test]
fn a_crash_between_two_captures_reads_what_came_since() {
    // The worst moment: the next checkpoint is all but written.
    let env = MemoryEnv::virtual_time();
    run(&env, async {
        let config = topic_config(&[]);
        let first = Process::start(&StepEnv::new(&env), 1);
        first.lead(0, Some(1), &config).await;
        let mut written = 0;
        for _ in 0..60 {
            append_many(&first, 1, 1).await;
            settle(&env).await;
            written += usize::from(names(env.volume(), 0).await.contains(&"00000001.checkpoint.json".to_owned()));
        }
        assert!(written >= 20, "a checkpoint was there after {} MB", 60 - written);
        env.sleep(Duration::from_secs(1)).await;
        first.env.gate().stop();
        let second = Process::start(&StepEnv::new(&env), 2);
        second.lead(0, Some(2), &config).await;
        let read = second.metric("kaas_partition_recovered_bytes_total");
        assert!(read <= 35_000_000, "{read} bytes: no more than between two checkpoints");
        assert_eq!(second.read(0, 59).await.len(), 1);
    });
}

#[test]
fn a_checkpoint_that_could_not_be_written_is_soon_followed_by_another() {
    let env = MemoryEnv::virtual_time();
    run(&env, async {
        let first = Process::start(&StepEnv::new(&env), 1);
        first.lead(0, Some(1), &topic_config(&[])).await;
        let has_checkpoint = async || names(env.volume(), 0).await.contains(&"00000001.checkpoint.json".to_owned());
        // The first append writes a manifest.
        append_many(&first, 1, 1).await;
        let writes = env.volume().count(Operation::Write);
        env.volume().fail_next(Operation::Write, ErrorKind::Other);
        append_many(&first, 35, 1).await;
        settle(&env).await;
        assert!(!has_checkpoint().await && env.volume().count(Operation::Write) > writes, "it failed");
        append_many(&first, 6, 1).await;
        settle(&env).await;
        assert!(has_checkpoint().await);
    });
}

#[test]
fn after_a_clean_stop_only_the_last_block_is_read() {
    let env = MemoryEnv::virtual_time();
    run(&env, async {
        let config = topic_config(&[]);
        let first = Process::start(&StepEnv::new(&env), 1);
        first.lead(0, Some(1), &config).await;
        append_many(&first, 40, 4).await;
        first.append(0, "the last").await;
        first.shut_down().await;
        let second = Process::start(&StepEnv::new(&env), 2);
        let before = second.env.gate().read_bytes();
        second.lead(0, Some(2), &config).await;
        let segment = second.metric("kaas_partition_recovered_bytes_total");
        assert!(segment <= 4096, "{segment} bytes");
        // With manifest, checkpoint and producer snapshot.
        let all = second.env.gate().read_bytes() - before;
        assert!(all <= segment + 1024, "{all} bytes");
        assert_eq!(second.read(0, 40).await, [(40, "the last".into())]);
    });
}

#[test]
fn a_producer_snapshot_that_a_listing_lacks_is_looked_for_by_its_name() {
    let env = MemoryEnv::virtual_time();
    run(&env, async {
        let config = topic_config(&[]);
        let first = Broker::start(&env, 1);
        first.lead(0, Some(1), &config).await;
        let offset = first.produce(0, sequenced(&env, 0, "a")).await.unwrap().base_offset;
        // What the second has found is in its snapshot only: nothing else lies behind where its epoch starts.
        let second = Broker::start(&env, 2);
        second.lead(0, Some(2), &config).await;
        let snapshot = PartitionFile::Producers(LeaderEpoch(2)).to_string();
        assert!(names(env.volume(), 0).await.contains(&snapshot));
        env.volume().overlook(&snapshot);
        assert!(!names(env.volume(), 0).await.contains(&snapshot));
        let third = Broker::start(&env, 3);
        third.lead(0, Some(3), &config).await;
        let again = third.produce(0, sequenced(&env, 0, "a")).await.unwrap();
        assert_eq!(again.base_offset, offset, "a duplicate is known");
        third.produce(0, sequenced(&env, 2, "too far")).await.unwrap_err();
    });
}

#[test]
fn what_lies_between_the_checkpoint_and_its_snapshot_is_noted_once() {
    let env = MemoryEnv::virtual_time();
    run(&env, async {
        let config = topic_config(&[]);
        let first = Process::start(&StepEnv::new(&env), 1);
        first.lead(0, Some(1), &config).await;
        // Sequences before, around and behind each capture.
        let mut sequence = 0;
        let mut answers = Vec::new();
        let filler = large(&env);
        for _ in 0..50 {
            answers.push(first.begin_produce(0, RequiredAcks::All, sequenced(&env, sequence, &format!("{sequence}"))));
            answers.push(first.begin_produce(0, RequiredAcks::All, filler.clone()));
            sequence += 1;
            if answers.len() > 20 {
                for answer in answers.drain(..) {
                    answer.await.unwrap().remove(0).unwrap();
                }
            }
        }
        for answer in answers {
            answer.await.unwrap().remove(0).unwrap();
        }
        let offset = first.produce(0, sequenced(&env, sequence, "the last")).await.unwrap().base_offset;
        first.env.gate().stop();
        let second = Process::start(&StepEnv::new(&env), 2);
        second.lead(0, Some(2), &config).await;
        assert!(second.metric("kaas_partition_recovered_bytes_total") < 30_000_000, "there was a checkpoint");
        let again = second.produce(0, sequenced(&env, sequence, "the last")).await.unwrap();
        assert_eq!(again.base_offset, offset, "a duplicate is known");
        second.produce(0, sequenced(&env, sequence + 1, "next")).await.unwrap();
        second.produce(0, sequenced(&env, sequence + 3, "too far")).await.unwrap_err();
        assert_eq!(second.append(0, "more").await, 102);
    });
}
