//! Brokers that take one partition from each other in random order, on a volume whose calls hang, fail and land late.
//!
//! What a broker acknowledges stays at its offset, whoever leads afterwards; what a consumer was shown never changes. A
//! failure prints its seed. `KAAS_SEEDS=from..to` runs others.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::rc::Rc;
use std::time::Duration;

use kaas_core::env::memory::{MemoryEnv, Operation};
use kaas_core::env::{Env, TaskClass};
use kaas_core::shard::operation::RequiredAcks;
use kaas_proto::control::ShardCommand;

use crate::harness::{Broker, batch, key, run, sequenced_by, topic_config};

const SEEDS: std::ops::Range<u64> = 0..150;
const STEPS: usize = 120;
const BROKERS: i32 = 3;
const PRODUCERS: usize = 2;
/// One for what is appended to, and one for what is older.
const FEW_SEGMENTS: usize = 2;

const FAULTY: [Operation; 12] = [
    Operation::WriteAt,
    Operation::WriteAt,
    Operation::WriteAt,
    Operation::ReadAt,
    Operation::ReadAt,
    Operation::Open,
    Operation::List,
    Operation::Read,
    Operation::Write,
    Operation::Overwrite,
    Operation::Rename,
    Operation::SyncDirectory,
];

pub struct Random(pub u64);

impl Random {
    pub fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let bits = usize::try_from(self.0 >> 33).unwrap();
        bits % bound
    }

    pub fn of<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len())]
    }
}

/// What was shown or acknowledged: offset and value. It must never change.
#[derive(Clone, Default)]
struct Promises(Rc<RefCell<BTreeMap<i64, String>>>);

impl Promises {
    fn hold(&self, seed: u64, what: &str, offset: i64, value: &str) {
        let mut promises = self.0.borrow_mut();
        let known = promises.entry(offset).or_insert_with(|| value.to_owned());
        assert_eq!(known, value, "seed {seed}: {what} at offset {offset}");
    }
}

/// Log starts that were asked for, and that were promised.
#[derive(Clone, Default)]
struct Deletes {
    requested: Rc<Cell<i64>>,
    acknowledged: Rc<Cell<i64>>,
}

/// Sends a batch; `then` runs if it is acknowledged.
fn begin_append(
    seed: u64,
    env: &MemoryEnv,
    broker: &Broker,
    acked: &Promises,
    (batch, value): (bytes::Bytes, String),
    then: impl FnOnce() + 'static,
) {
    let answer = broker.begin_produce(0, RequiredAcks::All, batch);
    let acked = acked.clone();
    env.spawn(TaskClass::Latency, async move {
        if let Ok(rows) = answer.await
            && let Ok(appended) = &rows[0]
        {
            acked.hold(seed, "acknowledged", appended.base_offset.0, &value);
            then();
        }
    });
}

/// What happened in a scenario.
struct Summary {
    acknowledged: usize,
    /// Active segments that were closed for others.
    displaced: u64,
}

async fn scenario(seed: u64, env: &MemoryEnv) -> Summary {
    let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x5eed);
    let config = topic_config(&[("segment.bytes", "1048576")]);
    let is_crowded = seed % 3 == 1;
    let open_segments = if is_crowded { FEW_SEGMENTS } else { usize::MAX };
    let start = |id| Broker::start_with(env, id, |config| config.open_segments = open_segments);
    let brokers: Vec<_> = (0..BROKERS).map(start).collect();
    // Each has another partition, which takes the place among the open segments from the one that this is about.
    let neighbours = || brokers.iter().zip(1..).filter(|_| is_crowded);
    for (broker, neighbour) in neighbours() {
        broker.take_over(neighbour, None, &config).await;
    }
    let (shown, acked) = (Promises::default(), Promises::default());
    let deletes = Deletes::default();
    let mut held = Vec::new();
    let mut epoch = 0;
    let sequences: [Rc<Cell<i32>>; PRODUCERS] = Default::default();
    for step in 0..STEPS {
        for (broker, neighbour) in neighbours() {
            drop(broker.begin_produce(neighbour, RequiredAcks::All, batch(env, &["n"])));
        }
        let broker = &brokers[random.below(brokers.len())];
        match random.below(14) {
            0..=3 => {
                let value = format!("{seed}-{step}-{}", "x".repeat(random.of(&[1, 10, 3000, 300_000])));
                begin_append(seed, env, broker, &acked, (batch(env, &[&value]), value), || ());
            }
            4 | 5 => {
                // Idempotent: the same batch until it is acknowledged, to whichever broker.
                let producer = random.below(PRODUCERS);
                let sequence = sequences[producer].get();
                let value = format!("{seed}-producer-{producer}-{sequence}");
                let batch = sequenced_by(env, i64::try_from(producer).unwrap(), sequence, &value);
                let next = Rc::clone(&sequences[producer]);
                let then = move || next.set(next.get().max(sequence + 1));
                begin_append(seed, env, broker, &acked, (batch, value), then);
            }
            6 | 7 => {
                epoch += 1 + i32::try_from(random.below(2)).unwrap();
                broker.take_over(0, Some(epoch), &config).await;
            }
            8 => broker.command(ShardCommand::Relinquish { partition: key(0) }).await,
            9 => {
                let operation = random.of(&FAULTY);
                env.volume().hold(operation);
                held.push(operation);
            }
            10 => held.drain(..).for_each(|operation| env.volume().release(operation)),
            11 => {
                let kind = random.of(&[ErrorKind::Other, ErrorKind::StorageFull, ErrorKind::StaleNetworkFileHandle]);
                env.volume().fail_next(random.of(&FAULTY), kind);
            }
            12 => {
                let offset = i64::try_from(random.below(8)).unwrap();
                deletes.requested.set(deletes.requested.get().max(offset));
                let (answer, deleted) = (broker.begin_delete_records(0, offset), deletes.clone());
                env.spawn(TaskClass::Latency, async move {
                    if let Ok(rows) = answer.await
                        && let Ok(log_start) = rows[0]
                    {
                        deleted.acknowledged.set(deleted.acknowledged.get().max(log_start.0));
                    }
                });
            }
            _ => {
                let offset = i64::try_from(random.below(10)).unwrap();
                if held.is_empty()
                    && let Ok(records) = broker.try_read(0, offset).await
                {
                    records.iter().for_each(|(offset, value)| shown.hold(seed, "shown", *offset, value));
                }
            }
        }
        let pause = Duration::from_millis(random.of(&[0, 0, 1, 20, 500]));
        env.sleep(pause).await;
    }
    held.drain(..).for_each(|operation| env.volume().release(operation));
    env.sleep(Duration::from_secs(60)).await;
    for operation in FAULTY {
        env.volume().forget_failures(operation);
    }
    // Somebody new leads in the end, and finds everything that was promised.
    let last = Broker::start(env, BROKERS);
    last.lead(0, Some(epoch + 1000), &config).await;
    let log_start = last.log_start(0).await;
    assert!(log_start >= deletes.acknowledged.get(), "seed {seed}: deleted records are back");
    assert!(log_start <= deletes.requested.get(), "seed {seed}: records were deleted that nobody wanted to");
    let found: BTreeMap<_, _> = last.read(0, log_start).await.into_iter().collect();
    for (what, promises) in [("acknowledged", &acked), ("shown", &shown)] {
        for (offset, value) in promises.0.borrow().range(log_start..) {
            assert_eq!(found.get(offset), Some(value), "seed {seed}: {what} at offset {offset}");
        }
    }
    let mut of_producers: Vec<_> = found.values().filter(|value| value.contains("producer")).collect();
    let count = of_producers.len();
    of_producers.sort();
    of_producers.dedup();
    assert_eq!(of_producers.len(), count, "seed {seed}: a repeated batch is in the log twice");
    let displaced = |broker: &Broker| broker.metric("kaas_log_active_segments_displaced_total");
    let displaced = brokers.iter().map(displaced).sum();
    Summary { acknowledged: acked.0.borrow().len(), displaced }
}

#[test]
fn promises_are_kept() {
    let seeds = std::env::var("KAAS_SEEDS").ok().and_then(|text| {
        let (from, to) = text.split_once("..")?;
        Some(from.parse().ok()?..to.parse().ok()?)
    });
    let seeds = seeds.unwrap_or(SEEDS);
    let count = usize::try_from(seeds.end - seeds.start).unwrap();
    let (mut acknowledged, mut displaced) = (0, 0);
    for seed in seeds {
        let env = MemoryEnv::virtual_time();
        let summary = run(&env, scenario(seed, &env));
        acknowledged += summary.acknowledged;
        displaced += summary.displaced;
    }
    assert!(displaced > count as u64 * 3, "{displaced} active segments closed: too few to show anything");
    assert!(acknowledged > count * 3, "{acknowledged} batches acknowledged: too few to show anything");
}
