//! Torn tails, damaged files, foreign files.

use kaas_core::env::memory::MemoryEnv;
use kaas_core::env::{Env, Volume};
use kaas_core::partition::error::{AppendError, NotLeading};
use kaas_proto::control::PartitionChange;
use kaas_proto::types::{LeaderEpoch, Offset};

use crate::harness::{Broker, batch, directory, names, run, sequenced, settle, topic_config};

const SEGMENT: &str = "00000001-00000000000000000000.log";

async fn rewrite(env: &MemoryEnv, name: &str, change: impl FnOnce(&mut Vec<u8>)) {
    let path = directory(0).join(name);
    let mut content = env.volume().read(&path, 1 << 30).await.unwrap();
    change(&mut content);
    env.volume().write(&path, content).await.unwrap();
}

#[test]
fn a_torn_tail_is_cut_at_the_last_good_byte() {
    let env = MemoryEnv::virtual_time();
    run(&env, async {
        let broker = Broker::start_with_a(&env, &topic_config(&[])).await;
        let end: usize = broker.fetch(0, 0).await.unwrap().records.iter().map(bytes::Bytes::len).sum();
        broker.append(0, &"b".repeat(100)).await;
        drop(broker);
        // The second batch was never acknowledged, and only half of it has landed.
        rewrite(&env, SEGMENT, |content| content[end + 70..].fill(0)).await;
        let again = Broker::start(&env, 1);
        again.lead(0, None, &topic_config(&[])).await;
        assert_eq!(again.values(0).await, ["a"]);
        settle(&env).await;
        assert_eq!(env.volume().size(&directory(0).join(SEGMENT)).await.unwrap(), end as u64);
        assert_eq!(again.append(0, "c").await, 1);
        drop(again);
        let third = Broker::start(&env, 1);
        third.lead(0, None, &topic_config(&[])).await;
        assert_eq!(third.values(0).await, ["a", "c"]);
    });
}

/// Nobody stopped this broker: only the segment itself says what was acknowledged. A flipped bit must not be taken for a
/// torn tail, and the whole batches behind it for something to delete.
#[test]
fn whole_batches_behind_a_bad_one_are_kept() {
    for bad in [0, 1, 3] {
        let env = MemoryEnv::virtual_time();
        run(&env, async {
            let broker = Broker::start(&env, 1);
            broker.lead(0, None, &topic_config(&[])).await;
            let mut starts = vec![0];
            for value in ["a", "b", "c", "d", "e"] {
                broker.append(0, value).await;
                let records = broker.fetch(0, 0).await.unwrap().records;
                starts.push(records.iter().map(bytes::Bytes::len).sum::<usize>());
            }
            drop(broker);
            rewrite(&env, SEGMENT, |content| content[starts[bad] + 65] ^= 1).await;
            let damaged = env.volume().read(&directory(0).join(SEGMENT), 1 << 30).await.unwrap();
            for round in 0..3 {
                let again = Broker::start(&env, 1);
                again.lead(0, None, &topic_config(&[])).await;
                let values = again.values(0).await;
                let intact = &["a", "b", "c", "d", "e"][..bad];
                assert_eq!(values[..bad], *intact, "what stands in front of the damage is served");
                assert_eq!(values[bad..], vec!["new"; round], "and what was appended since");
                assert_eq!(again.append(0, "new").await, i64::try_from(bad + round).unwrap());
                settle(&env).await;
                let kept = if bad == 0 { format!("{SEGMENT}.damaged") } else { SEGMENT.to_owned() };
                let found = env.volume().read(&directory(0).join(&kept), 1 << 30).await.unwrap();
                assert!(found == damaged, "{kept} keeps its bytes");
            }
        });
    }
}

#[test]
fn lost_records_are_not_passed_over_in_silence() {
    let env = MemoryEnv::virtual_time();
    run(&env, async {
        let broker = Broker::start_with_a(&env, &topic_config(&[])).await;
        broker.append(0, "b").await;
        broker.shut_down().await;
        // Both were acknowledged, as the manifest knows; one is damaged.
        rewrite(&env, SEGMENT, |content| content[100] ^= 1).await;
        rewrite(&env, "00000001.checkpoint.json", Vec::clear).await;
        let again = Broker::start(&env, 1);
        again.take_over(0, None, &topic_config(&[])).await;
        let PartitionChange::Failed { reason } = again.next_change().await else { panic!("it leads") };
        assert!(reason.contains("were acknowledged"), "{reason}");
        let refused = again.produce(0, batch(&env, &["c"])).await;
        assert!(matches!(refused, Err(AppendError::NotLeading(NotLeading::Failed { .. }))), "{refused:?}");
        assert!(names(env.volume(), 0).await.iter().any(|name| name == SEGMENT), "nothing is deleted");
    });
}

#[test]
fn a_damaged_manifest_is_never_replaced_by_an_older_one() {
    let env = MemoryEnv::virtual_time();
    run(&env, async {
        for content in [&b""[..], b"{}", b"noise"] {
            let broker = Broker::start(&env, 1);
            broker.lead(1, None, &topic_config(&[])).await;
            drop(broker);
            let path = directory(1).join("00000001.manifest.json");
            env.volume().write(&path, content.to_vec()).await.unwrap();
            let again = Broker::start(&env, 1);
            again.take_over(1, None, &topic_config(&[])).await;
            let PartitionChange::Failed { reason } = again.next_change().await else { panic!("it leads") };
            assert!(reason.contains("00000001.manifest.json is damaged"), "{reason}");
            // One bad partition does not stop the others.
            again.lead(0, None, &topic_config(&[])).await;
            drop(again);
            for name in names(env.volume(), 1).await {
                env.volume().unlink(&directory(1).join(name)).await.unwrap();
            }
        }
    });
}

#[test]
fn segments_without_a_manifest_are_refused() {
    let env = MemoryEnv::virtual_time();
    run(&env, async {
        let broker = Broker::start_with_a(&env, &topic_config(&[])).await;
        drop(broker);
        env.volume().unlink(&directory(0).join("00000001.manifest.json")).await.unwrap();
        let again = Broker::start(&env, 1);
        again.take_over(0, None, &topic_config(&[])).await;
        let PartitionChange::Failed { reason } = again.next_change().await else { panic!("it leads") };
        assert!(reason.contains("no manifest"), "{reason}");
        assert!(names(env.volume(), 0).await.contains(&SEGMENT.to_owned()));
    });
}

#[test]
fn hints_that_are_damaged_cost_time_only() {
    let env = MemoryEnv::virtual_time();
    run(&env, async {
        let config = topic_config(&[]);
        for name in ["checkpoint.json", "producers", "index"] {
            let first = Broker::start(&env, 1);
            let epoch = first.lead(0, None, &config).await;
            first.produce(0, sequenced(&env, epoch.0, "v")).await.unwrap();
            first.shut_down().await;
            let files = names(env.volume(), 0).await;
            let hint = files.iter().rfind(|file| file.ends_with(name)).unwrap();
            rewrite(&env, hint, |content| content[20] ^= 0x10).await;
        }
        let last = Broker::start(&env, 1);
        assert_eq!(last.lead(0, None, &config).await, LeaderEpoch(4));
        assert_eq!(last.values(0).await.len(), 3);
        assert_eq!(last.produce(0, sequenced(&env, 3, "v")).await.unwrap().base_offset, Offset(2), "known");
        assert_eq!(last.produce(0, sequenced(&env, 4, "v")).await.unwrap().base_offset, Offset(3));
    });
}

#[test]
fn foreign_files_are_left_alone() {
    let env = MemoryEnv::virtual_time();
    run(&env, async {
        env.volume().create_directories(&directory(0).join("lost+found")).await.unwrap();
        for name in [".snapshot", "manifest.json", "00000001-5.log", ".nfs0001"] {
            env.volume().write(&directory(0).join(name), b"foreign".to_vec()).await.unwrap();
        }
        let broker = Broker::start(&env, 1);
        assert_eq!(broker.lead(0, None, &topic_config(&[])).await, LeaderEpoch(1));
        broker.append(0, "a").await;
        drop(broker);
        let again = Broker::start(&env, 1);
        again.lead(0, None, &topic_config(&[])).await;
        settle(&env).await;
        let names = names(env.volume(), 0).await;
        for name in ["lost+found", ".snapshot", "manifest.json", "00000001-5.log", ".nfs0001"] {
            assert!(names.contains(&name.to_owned()), "{name}");
        }
    });
}

#[test]
fn a_large_log_is_recovered_from_its_checkpoint() {
    let env = MemoryEnv::virtual_time();
    run(&env, async {
        let config = topic_config(&[]);
        let broker = Broker::start(&env, 1);
        broker.lead(0, None, &config).await;
        let value = "x".repeat(900_000);
        for sequence in 0..100 {
            broker.produce(0, sequenced(&env, sequence, &value)).await.unwrap();
        }
        settle(&env).await;
        drop(broker);
        let again = Broker::start(&env, 1);
        again.lead(0, None, &config).await;
        let read = again.metric("kaas_partition_recovered_bytes_total");
        assert!(read <= (64 << 20) + 4096, "{read}");
        assert!(read > 1 << 20, "{read}");
        assert_eq!(again.produce(0, sequenced(&env, 97, &value)).await.unwrap().base_offset, Offset(97));
        assert_eq!(again.produce(0, sequenced(&env, 100, "end")).await.unwrap().base_offset, Offset(100));
    });
}
