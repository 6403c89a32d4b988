//! Which files a shard opens: none of partitions that it does not lead, and a bounded number of older segments.

use std::path::Path;
use std::sync::Arc;

use kaas_core::env::memory::{MemoryEnv, Operation};
use kaas_core::env::{Env, Volume};
use kaas_core::log::open_segments::MAX_OLDER_SEGMENTS;
use kaas_core::shard::operation::IsolationLevel;
use kaas_proto::config::topic::TopicConfig;

use crate::harness::{Broker, directory, names, run, settle, topic_config};

/// A segment for each record, none of it in memory once it is written.
fn one_record_per_segment() -> Arc<TopicConfig> {
    Arc::new(TopicConfig { segment_bytes: 1, ..(*topic_config(&[])).clone() })
}

#[test]
fn a_directory_of_10_000_partitions_is_not_opened() {
    const PARTITIONS: i32 = 10_000;
    let env = MemoryEnv::virtual_time();
    run(&env, async {
        let config = topic_config(&[]);
        let first = Broker::start_with_a(&env, &config).await;
        first.shut_down().await;
        let volume = env.volume();
        let files = names(volume, 0).await;
        for partition in 1..PARTITIONS {
            volume.create_directories(&directory(partition)).await.unwrap();
            for name in &files {
                let content = volume.read(&directory(0).join(name), 1 << 20).await.unwrap();
                volume.write(&directory(partition).join(name), content).await.unwrap();
            }
        }
        let touching = [Operation::Open, Operation::Read, Operation::ReadAt, Operation::Overwrite, Operation::List];
        let count = || touching.map(|operation| volume.count(operation));
        let before = count();
        let broker = Broker::start(&env, 1);
        settle(&env).await;
        assert_eq!(count(), before, "a shard that leads nothing looks at nothing");
        assert_eq!(broker.metric("kaas_open_segments"), 0);
        // Taking one over opens its fence, the revoked fence's successor, and the end of its log; none of the others.
        broker.lead(4711, None, &config).await;
        let opened = volume.count(Operation::Open) - before[0];
        assert_eq!(opened, 2, "the own fence and the last segment");
        assert_eq!(broker.values(4711).await, ["a"]);
        assert_eq!(names(volume, 4712).await, files, "and nothing was made elsewhere");
    });
}

/// Reads one batch at an offset.
async fn read_one(broker: &Broker, offset: i64) {
    let fetched = broker.fetch_with(0, offset, IsolationLevel::ReadUncommitted, 1, true).await.unwrap();
    assert_eq!(fetched.records.len(), 1);
}

#[test]
fn older_segments_are_opened_on_demand_and_not_more_than_the_bound() {
    let env = MemoryEnv::virtual_time();
    run(&env, async {
        let config = one_record_per_segment();
        let segments = MAX_OLDER_SEGMENTS + 40;
        let first = Broker::start_with(&env, 1, |config| config.tail_cache_bytes = 0);
        first.lead(0, None, &config).await;
        for number in 0..segments {
            first.append(0, &number.to_string()).await;
        }
        first.shut_down().await;

        let broker = Broker::start_with(&env, 1, |config| config.tail_cache_bytes = 0);
        broker.lead(0, None, &config).await;
        assert_eq!(broker.metric("kaas_open_segments"), 0);
        assert_eq!(broker.values(0).await.len(), segments);
        assert_eq!(broker.metric("kaas_open_segments"), MAX_OLDER_SEGMENTS as u64);
        assert_eq!(broker.metric("kaas_log_segments_opened_total"), segments as u64);
        assert_eq!(broker.metric("kaas_log_segments_displaced_total"), 40);
        // What is in use stays open: the first segment that is still open is read again, then so many new ones that only
        // those used least recently have to go.
        let opened = |broker: &Broker| broker.metric("kaas_log_segments_opened_total");
        read_one(&broker, 40).await;
        for offset in 0..30 {
            read_one(&broker, offset).await;
        }
        let before = opened(&broker);
        read_one(&broker, 40).await;
        assert_eq!(opened(&broker), before, "it was used more recently than the 30 that made room");
        read_one(&broker, 45).await;
        assert_eq!(opened(&broker), before + 1, "it was not");
        broker.shut_down().await;
        assert_eq!(broker.metric("kaas_open_segments"), 0, "none after relinquish");
    });
}

#[test]
fn a_path_that_nobody_leads_stays_as_it_is() {
    let env = MemoryEnv::virtual_time();
    run(&env, async {
        let volume = env.volume();
        volume.create_directories(Path::new("t/other/0")).await.unwrap();
        let broker = Broker::start(&env, 1);
        broker.lead(0, None, &topic_config(&[])).await;
        settle(&env).await;
        assert!(volume.list(Path::new("t/other/0")).await.unwrap().is_empty());
    });
}
