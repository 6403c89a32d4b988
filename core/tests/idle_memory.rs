//! What a led partition costs in memory while nothing happens to it.

#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use kaas_core::env::Env;
use kaas_core::env::memory::MemoryEnv;
use kaas_core::shard::operation::{Produce, ProduceBatch, RequiredAcks, ShardOperation};
use kaas_core::shard::port::queue;
use kaas_core::shard::{Shard, ShardChannels, ShardConfig};
use kaas_proto::config::broker::BrokerConfig;
use kaas_proto::config::topic::TopicConfig;
use kaas_proto::control::{PartitionKey, ShardCommand, TakeOver};
use kaas_proto::record::BatchBuilder;
use kaas_proto::types::{BrokerId, PartitionIndex, ShardId, TopicId};
use tokio::sync::{mpsc, oneshot};

/// The bound of the design; the volume in memory has its share in it.
const MAX_BYTES_PER_PARTITION: usize = 16 << 10;

const PARTITIONS: i32 = 500;

struct Counting;

static ALLOCATED: AtomicUsize = AtomicUsize::new(0);

// SAFETY: everything is handed on to the system's allocator; only sizes are counted.
#[expect(unsafe_code, reason = "an allocator that counts")]
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATED.fetch_add(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller's promises are those that the system's allocator asks for.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        ALLOCATED.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: as above.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[test]
fn an_idle_partition_is_small() {
    let env = MemoryEnv::virtual_time();
    env.run(async {
        let (commands, command_receiver) = mpsc::channel(64);
        let (event_sender, mut events) = mpsc::channel(1024);
        let (_handle, operations) = queue();
        let config = ShardConfig {
            owns_directories: true,
            tail_cache_bytes: 0,
            ..ShardConfig::new(ShardId(0), BrokerId(1), &BrokerConfig::default(), 1)
        };
        let channels = ShardChannels { commands: command_receiver, events: event_sender, operations };
        let shard = Shard::start(env.clone(), config, channels);
        let topic_config = Arc::new(TopicConfig::resolve(&BrokerConfig::default(), &BTreeMap::new()).unwrap());
        let key =
            |partition| PartitionKey { topic_id: TopicId(*b"an id of a topic"), partition: PartitionIndex(partition) };
        let lead = |partition| {
            commands.send(ShardCommand::TakeOver(TakeOver {
                partition: key(partition),
                topic: "t".into(),
                epoch: None,
                config: Arc::clone(&topic_config),
            }))
        };
        lead(PARTITIONS).await.unwrap();
        events.recv().await.unwrap();
        let before = ALLOCATED.load(Ordering::Relaxed);
        for partition in 0..PARTITIONS {
            lead(partition).await.unwrap();
            events.recv().await.unwrap();
        }
        env.sleep(Duration::from_secs(120)).await;
        let never_written = (ALLOCATED.load(Ordering::Relaxed) - before) / usize::try_from(PARTITIONS).unwrap();
        for partition in 0..PARTITIONS {
            let (reply, answer) = oneshot::channel();
            let batch = BatchBuilder::new().record(env.wall_clock(), None, Some(&[0; 3000])).build();
            let batches = vec![ProduceBatch::new(key(partition), batch).unwrap()];
            shard.submit(ShardOperation::Produce(Produce { acks: RequiredAcks::All, batches, reply }));
            answer.await.unwrap().remove(0).unwrap();
        }
        env.sleep(Duration::from_secs(120)).await;
        let written = (ALLOCATED.load(Ordering::Relaxed) - before) / usize::try_from(PARTITIONS).unwrap();
        assert!(never_written < MAX_BYTES_PER_PARTITION / 2, "{never_written} bytes");
        assert!(written < MAX_BYTES_PER_PARTITION, "{written} bytes");
    });
}
