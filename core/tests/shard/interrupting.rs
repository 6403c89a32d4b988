//! A newer command that arrives while an older one is being carried out, at any of its calls, whether or not the call returns.

use std::cell::RefCell;
use std::future::Future;
use std::rc::Rc;
use std::time::Duration;

use kaas_core::env::Env;
use kaas_core::env::memory::MemoryEnv;
use kaas_core::partition::error::{AppendError, NotLeading};
use kaas_core::shard::operation::RequiredAcks;
use kaas_proto::control::{PartitionChange, ShardCommand};
use kaas_proto::types::LeaderEpoch;
use tokio::sync::oneshot;

use crate::harness::{Broker, batch, key, run, settle, topic_config};
use crate::stepping::StepEnv;

/// More than a takeover or a relinquish has.
const MAX_STEPS: u64 = 60;

type Process = Broker<StepEnv>;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Newer {
    TakeOver,
    Relinquish,
    Abandon,
}

impl Newer {
    const ALL: [Self; 3] = [Self::TakeOver, Self::Relinquish, Self::Abandon];

    async fn send(self, broker: &Process) {
        match self {
            Self::TakeOver => broker.take_over(0, Some(7), &topic_config(&[])).await,
            Self::Relinquish => broker.command(ShardCommand::Relinquish { partition: key(0) }).await,
            Self::Abandon => abandon(broker).await,
        }
    }
}

async fn abandon(broker: &Process) {
    let (done, _) = oneshot::channel();
    broker.command(ShardCommand::Abandon { topic_id: key(0).topic_id, done }).await;
}

/// Interrupts what `begin` begins before each of its calls in turn, with each newer command. Returns the calls.
fn at_every_call<B: Future<Output = ()>>(what: &str, begin: impl Fn(Rc<Process>) -> B) -> Vec<String> {
    let mut calls = Vec::new();
    for step in 1..=MAX_STEPS {
        for newer in Newer::ALL {
            let env = MemoryEnv::virtual_time();
            let Some(call) = run(&env, interrupted(&env, what, step, newer, &begin)) else { return calls };
            if newer == Newer::Abandon {
                calls.push(call);
            }
        }
    }
    panic!("{what} does not come to an end: {calls:?}");
}

async fn interrupted<B: Future<Output = ()>>(
    env: &MemoryEnv,
    what: &str,
    step: u64,
    newer: Newer,
    begin: impl Fn(Rc<Process>) -> B,
) -> Option<String> {
    let config = topic_config(&[]);
    let former = Process::start(&StepEnv::new(env), 1);
    former.lead(0, Some(1), &config).await;
    former.append(0, "a").await;
    former.env.gate().stop();
    let broker = Rc::new(Process::start_with(&StepEnv::new(env), 2, |config| config.owns_directories = false));
    let gate = broker.env.gate().clone();
    gate.stop_before(step);
    begin(Rc::clone(&broker)).await;
    settle(env).await;
    let call = gate.stopped_before()?;
    let when = format!("{what}, stopped before {call}, then {newer:?}");
    while !broker.no_change() {}
    newer.send(&broker).await;
    settle(env).await;
    if newer == Newer::Abandon {
        // However long the call hangs, nothing stays open but what it works on.
        env.sleep(Duration::from_secs(31)).await;
        assert!(gate.open_files() <= 1, "{when}: {} files are open", gate.open_files());
        let refused = broker.produce(0, batch(env, &["x"])).await;
        assert_eq!(refused, Err(AppendError::NotLeading(NotLeading::NotHere)), "{when}");
    }
    gate.go_on();
    env.sleep(Duration::from_secs(5)).await;
    let mut expected = 1;
    if newer == Newer::TakeOver {
        let changes: Vec<_> = changes(&broker).await;
        assert_eq!(changes.last(), Some(&PartitionChange::Leading { epoch: LeaderEpoch(7) }), "{when}: {changes:?}");
        broker.append(0, "b").await;
        expected = 2;
    } else {
        assert_eq!(gate.open_files(), 0, "{when}");
        assert_eq!(broker.metric("kaas_partitions_wanted"), 0, "{when}");
        let reported = changes(&broker).await;
        let is_relinquished = |change: &PartitionChange| matches!(change, PartitionChange::Relinquished { .. });
        assert_eq!(reported.iter().any(is_relinquished), newer == Newer::Relinquish, "{when}: {reported:?}");
    }
    let last = Process::start(&StepEnv::new(env), 3);
    last.lead(0, Some(9), &config).await;
    let values = last.values(0).await;
    assert_eq!(values.iter().filter(|value| *value != "c").count(), expected, "{when}: {values:?}");
    Some(call)
}

/// What was reported since the last look.
async fn changes(broker: &Process) -> Vec<PartitionChange> {
    let all = RefCell::new(Vec::new());
    let listen = async {
        loop {
            let change = broker.next_change().await;
            all.borrow_mut().push(change);
        }
    };
    futures_lite::future::or(listen, settle(&broker.env)).await;
    all.into_inner()
}

#[test]
fn a_takeover() {
    let calls =
        at_every_call("takeover", |broker| async move { broker.take_over(0, Some(3), &topic_config(&[])).await });
    assert!(calls.len() >= 12, "{calls:?}");
}

#[test]
fn a_standalone_takeover() {
    at_every_call("takeover above all", |broker| async move { broker.take_over(0, None, &topic_config(&[])).await });
}

#[test]
fn a_relinquish() {
    let relinquish = |broker: Rc<Process>| async move {
        broker.take_over(0, Some(3), &topic_config(&[])).await;
        settle(&broker.env).await;
        if broker.env.gate().stopped_before().is_none() {
            drop(broker.begin_produce(0, RequiredAcks::All, batch(&broker.env, &["c"])));
            broker.command(ShardCommand::Relinquish { partition: key(0) }).await;
        }
    };
    let calls = at_every_call("relinquish", relinquish);
    for call in ["write at 0", "producers", ".index", "checkpoint.json", "rename to", "manifest.json"] {
        assert!(calls.iter().any(|made| made.contains(call)), "{call}: {calls:?}");
    }
}

#[test]
fn an_abandon() {
    // Nothing is persisted: an abandon waits for the calls of a commit that is under way, and for nothing else.
    let begin = |broker: Rc<Process>| async move {
        broker.take_over(0, Some(3), &topic_config(&[])).await;
        settle(&broker.env).await;
        // The first one begins a segment; what comes after an abandon is not written.
        for is_last in [false, true] {
            if broker.env.gate().stopped_before().is_none() {
                drop(broker.begin_produce(0, RequiredAcks::All, batch(&broker.env, &["c"])));
                if is_last {
                    abandon(&broker).await;
                }
                settle(&broker.env).await;
            }
        }
    };
    let calls = at_every_call("abandon", begin);
    assert!(calls.iter().any(|call| call.contains("write at 0")), "{calls:?}");
    let persisted = calls.iter().filter(|call| call.contains("checkpoint.json") || call.contains(".index")).count();
    assert_eq!(persisted, 0, "{calls:?}");
}

#[test]
fn a_relinquish_that_is_told_twice_still_persists() {
    let env = MemoryEnv::virtual_time();
    run(&env, async {
        let broker = Process::start(&StepEnv::new(&env), 1);
        broker.lead(0, Some(1), &topic_config(&[])).await;
        broker.env.gate().stop_before(2);
        let last = broker.begin_produce(0, RequiredAcks::All, batch(&env, &["a"]));
        broker.command(ShardCommand::Relinquish { partition: key(0) }).await;
        settle(&env).await;
        let (done, is_done) = oneshot::channel();
        broker.command(ShardCommand::Shutdown { done }).await;
        settle(&env).await;
        broker.env.gate().go_on();
        is_done.await.unwrap();
        last.await.unwrap().remove(0).unwrap();
        let names = crate::harness::names(env.volume(), 0).await;
        assert!(names.contains(&"00000001.checkpoint.json".to_owned()), "{names:?}");
    });
}
