//! Record, ask, act: a leader that stops before any call of what it is doing, is deposed, and goes on later, changes nothing
//! that its successor relies on. After one more crash everything is still there.

use std::cell::RefCell;
use std::future::Future;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use kaas_core::env::memory::MemoryEnv;
use kaas_core::env::{Env, TaskClass};
use kaas_core::partition::error::FetchError;
use kaas_core::shard::operation::RequiredAcks;
use kaas_proto::config::topic::TopicConfig;
use kaas_proto::control::ShardCommand;

use crate::harness::{Broker, batch, key, run, settle, topic_config};
use crate::stepping::StepEnv;

/// More than any of the actions has.
const MAX_STEPS: u64 = 100;

type Process = Broker<StepEnv>;

/// What an action promised: that a record is there, or that the log begins no lower.
#[derive(Clone, Debug, Default)]
struct Promises(Rc<RefCell<Promised>>);

#[derive(Clone, Debug, Default)]
struct Promised {
    records: Vec<(i64, String)>,
    log_start: i64,
}

impl Promises {
    /// Appends in the background; an acknowledged record is a promise.
    fn append(&self, broker: &Process, value: &str) {
        let answer = broker.begin_produce(0, RequiredAcks::All, batch(&broker.env, &[value]));
        let (promises, value) = (self.clone(), value.to_owned());
        broker.env.spawn(TaskClass::Latency, async move {
            if let Ok(mut rows) = answer.await
                && let Ok(appended) = rows.remove(0)
            {
                promises.0.borrow_mut().records.push((appended.base_offset.0, value));
            }
        });
    }

    /// Deletes in the background; an acknowledged log start is a promise.
    fn delete(&self, broker: &Process, offset: i64) {
        let (answer, promises) = (broker.begin_delete_records(0, offset), self.clone());
        broker.env.spawn(TaskClass::Latency, async move {
            if let Ok(mut rows) = answer.await
                && let Ok(log_start) = rows.remove(0)
            {
                promises.0.borrow_mut().log_start = log_start.0;
            }
        });
    }

    fn check(&self, found: &Found, when: &str) {
        let promises = self.0.borrow();
        assert!(found.log_start >= promises.log_start, "{when}: the log starts at {}", found.log_start);
        for (offset, value) in promises.records.iter().filter(|(offset, _)| *offset >= found.log_start) {
            let is_there = found.records.iter().any(|(at, found)| at == offset && found == value);
            assert!(is_there, "{when}: what was acknowledged at {offset} is gone");
        }
    }
}

/// What readers see of a log.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Found {
    log_start: i64,
    high_watermark: i64,
    records: Vec<(i64, String)>,
}

async fn look(broker: &Process) -> Found {
    let log_start = broker.log_start(0).await;
    let fetched = match broker.fetch(0, log_start).await {
        Ok(fetched) => fetched,
        Err(FetchError::OffsetOutOfRange { .. }) => panic!("the log start moves"),
        Err(error) => panic!("{error}"),
    };
    let records = broker.read(0, log_start).await;
    Found { log_start, high_watermark: fetched.high_watermark.0, records }
}

/// Stops the first leader before each call of an action in turn; among them are those that `covers` names. `prepare` comes
/// before it.
fn at_every_step<P, A>(
    what: &str,
    covers: &[&str],
    config: &Arc<TopicConfig>,
    prepare: impl Fn(Rc<Process>) -> P,
    act: impl Fn(Rc<Process>, Promises) -> A,
) where
    P: Future<Output = ()>,
    A: Future<Output = ()>,
{
    let mut steps = Vec::new();
    for step in 1..=MAX_STEPS {
        let env = MemoryEnv::virtual_time();
        let stopped = run(&env, async {
            let first = Rc::new(Process::start(&StepEnv::new(&env), 1));
            first.lead(0, Some(1), config).await;
            prepare(Rc::clone(&first)).await;
            settle(&env).await;
            let promises = Promises::default();
            let gate = first.env.gate().clone();
            gate.stop_before(step);
            act(Rc::clone(&first), promises.clone()).await;
            settle(&env).await;
            let stopped = gate.stopped_before();
            let when = format!("{what}, stopped before {stopped:?}");
            let second = Process::start(&StepEnv::new(&env), 2);
            second.lead(0, Some(9), config).await;
            promises.check(&look(&second).await, &when);
            second.append(0, "after the takeover").await;
            let before = look(&second).await;
            gate.go_on();
            env.sleep(Duration::from_secs(200)).await;
            let after = look(&second).await;
            assert_eq!(after, before, "{when}");
            promises.check(&after, &when);
            second.append(0, "after that").await;
            let before = look(&second).await;
            second.env.gate().stop();
            let third = Process::start(&StepEnv::new(&env), 3);
            third.lead(0, Some(20), config).await;
            assert_eq!(look(&third).await, before, "{when}, after one more crash");
            third.append(0, "at the end").await;
            stopped
        });
        let Some(stopped) = stopped else {
            for call in covers {
                assert!(steps.iter().any(|step: &String| step.contains(call)), "{what} makes no {call}: {steps:?}");
            }
            return;
        };
        steps.push(stopped);
    }
    panic!("{what} does not come to an end: {steps:?}");
}

async fn append_some(broker: &Process, count: usize) {
    for index in 0..count {
        broker.append(0, &format!("{index}{}", "x".repeat(600_000))).await;
    }
}

fn small_segments(more: &[(&str, &str)]) -> Arc<TopicConfig> {
    topic_config(&[&[("segment.bytes", "1048576")], more].concat())
}

#[test]
fn appending_and_rolling() {
    at_every_step(
        "roll",
        &["write at 0", "write at 598016", "open CreateNew", "sync", ".index", "read at 0 after open CreateNew"],
        &small_segments(&[]),
        |broker| async move { append_some(&broker, 1).await },
        |broker, promises| async move {
            for value in ["a", &"b".repeat(600_000), "c", &"d".repeat(600_000)] {
                promises.append(&broker, value);
                settle(&broker.env).await;
            }
        },
    );
}

#[test]
fn deleting_records() {
    for upto in [2, 3, -1] {
        at_every_step(
            "DeleteRecords",
            &["write ", "manifest.json", "sync", "read at 0 after open CreateNew", "unlink", ".log"],
            &small_segments(&[]),
            |broker| async move { append_some(&broker, 4).await },
            move |broker, promises| async move { promises.delete(&broker, upto) },
        );
    }
}

#[test]
fn retention_by_size_and_time() {
    for limit in [("retention.bytes", "1000000"), ("retention.ms", "1000")] {
        at_every_step(
            "retention",
            &["write ", "manifest.json", "sync", "read at 0 after open CreateNew", "unlink"],
            &small_segments(&[limit]),
            |broker| async move { append_some(&broker, 4).await },
            |broker, _| async move { broker.env.sleep(Duration::from_secs(301)).await },
        );
    }
}

#[test]
fn handing_over() {
    at_every_step(
        "relinquish",
        &["producers", ".index", "checkpoint.json", "manifest.json", "sync"],
        &small_segments(&[]),
        |broker| async move { append_some(&broker, 2).await },
        |broker, promises| async move {
            promises.append(&broker, "the last");
            broker.command(ShardCommand::Relinquish { partition: key(0) }).await;
        },
    );
}

#[test]
fn taking_over_and_tidying() {
    // It leads at epoch 1, with a torn tail and what others left; then takes itself over at 2.
    at_every_step(
        "takeover",
        &[
            "open CreateNew",
            "list",
            "overwrite",
            "00000001.manifest.json",
            "00000002.manifest.json",
            "unlink",
            ".fence",
        ],
        &small_segments(&[]),
        |broker| async move {
            append_some(&broker, 2).await;
            broker.delete_records(0, 1).await.unwrap();
            append_some(&broker, 2).await;
        },
        |broker, _| async move {
            broker.take_over(0, Some(2), &small_segments(&[])).await;
            broker.env.sleep(Duration::from_secs(1)).await;
        },
    );
}

#[test]
fn writing_checkpoints() {
    let chunk = || "x".repeat(1_000_000);
    let before = kaas_core::partition::checkpoint::CHECKPOINT_BYTES / 1_000_000;
    at_every_step(
        "checkpoint",
        &["producers", ".index", "checkpoint.json"],
        &topic_config(&[]),
        |broker| async move {
            for _ in 0..before {
                broker.append(0, &chunk()).await;
            }
        },
        |broker, promises| async move {
            for value in [&chunk(), "a", "b"] {
                promises.append(&broker, value);
                settle(&broker.env).await;
            }
        },
    );
}
