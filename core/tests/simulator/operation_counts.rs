//! What each thing costs in storage operations, counted by the simulated volume.

use std::rc::Rc;
use std::time::Duration;

use kaas_core::env::sim::{Operation, Simulation};
use kaas_core::shard::operation::IsolationLevel;
use kaas_proto::types::LeaderEpoch;

use crate::play::broker::Broker;
use crate::play::cluster::{Cluster, Setup};
use crate::play::producer::{Producer, send_once};
use crate::play::run::run;
use crate::play::scenario::topic_config;

use Operation::{Close, List, Open, Overwrite, Read, ReadAt, Rename, Size, SyncDirectory, Unlink, Write, WriteAt};

/// A calm cluster, and what its brokers did.
struct Counted {
    cluster: Cluster,
}

impl Counted {
    async fn start(simulation: &Simulation, setup: Setup) -> Self {
        Self { cluster: Cluster::start(simulation, setup).await }
    }

    fn broker(&self, id: usize) -> Rc<Broker> {
        self.cluster.broker(id).unwrap()
    }

    /// Lets everything that was begun come to its end.
    async fn settle(&self) {
        self.cluster.simulation().time().sleep(Duration::from_millis(200)).await;
        self.cluster.check().unwrap();
    }

    async fn lead(&self, id: usize, epoch: i32) {
        self.cluster.take_over(&self.broker(id), LeaderEpoch(epoch));
        self.settle().await;
        assert_eq!(self.broker(id).led.get(), Some(LeaderEpoch(epoch)));
    }

    fn counts(&self, id: usize) -> [u64; Operation::ALL.len()] {
        let process = self.broker(id).env.process().id();
        Operation::ALL.map(|operation| self.cluster.simulation().count(process, operation))
    }

    /// The operations of a broker during `act` and until everything has settled.
    async fn during(&self, id: usize, act: impl AsyncFnOnce()) -> Vec<(Operation, u64)> {
        let before = self.counts(id);
        act().await;
        self.settle().await;
        let after = self.counts(id);
        let differences =
            Operation::ALL.into_iter().zip(before.into_iter().zip(after)).map(|(name, (a, b))| (name, b - a));
        differences.filter(|&(_, count)| count > 0).collect()
    }
}

fn count(settings: &[(&str, &str)], check: impl AsyncFnOnce(Counted)) {
    count_with(Setup::new(topic_config(settings)), check);
}

fn count_with(setup: Setup, check: impl AsyncFnOnce(Counted)) {
    let simulation = Simulation::new(1);
    let scenario = async {
        check(Counted::start(&simulation, setup).await).await;
        Ok(())
    };
    run(&simulation, scenario).unwrap();
}

#[test]
fn a_group_commit_is_one_write_and_one_read_of_the_fence() {
    count(&[], async |counted| {
        counted.lead(0, 1).await;
        let broker = counted.broker(0);
        let append = async |number| send_once(&counted.cluster, &broker, number, 100);
        // The first one begins a segment.
        let first = counted.during(0, async || append(0).await).await;
        assert_eq!(first, [(Open, 1), (SyncDirectory, 1), (WriteAt, 1), (ReadAt, 1)]);
        let commit = counted.during(0, async || append(1).await).await;
        assert_eq!(commit, [(WriteAt, 1), (ReadAt, 1)]);
        let trace = counted.cluster.simulation().trace();
        let ask = trace.lines().rev().find(|line| line.contains("ReadAt")).unwrap();
        assert!(ask.ends_with("00000001.fence at 0, 4096 bytes"), "{ask}");
        // What comes at once goes out at once.
        let together = counted
            .during(0, async || {
                for number in 2..12 {
                    append(number).await
                }
            })
            .await;
        assert_eq!(together, [(WriteAt, 1), (ReadAt, 1)]);
        // What queues while a write is in flight goes out as the next one, and one ask may cover both.
        let during_a_write = async || {
            append(12).await;
            counted.cluster.simulation().time().sleep(Duration::from_nanos(1)).await;
            for number in 13..23 {
                append(number).await;
            }
        };
        let queued = counted.during(0, during_a_write).await;
        assert_eq!(queued[0], (WriteAt, 2));
        assert!(matches!(queued[1..], [(ReadAt, 1 | 2)]), "{queued:?}");
        // A consumer at the tail costs nothing.
        let read = counted
            .during(0, async || drop(counted.cluster.read(&broker, 20, IsolationLevel::ReadUncommitted).await.unwrap()))
            .await;
        assert!(read.is_empty(), "{read:?}");
    });
}

#[test]
fn an_append_to_a_closed_segment_closes_another_and_opens_it() {
    let setup = Setup { is_crowded: true, ..Setup::new(topic_config(&[])) };
    count_with(setup, async |counted| {
        counted.lead(0, 1).await;
        let broker = counted.broker(0);
        send_once(&counted.cluster, &broker, 0, 100);
        counted.settle().await;
        counted.during(0, async || broker.crowd()).await;
        let append = counted.during(0, async || send_once(&counted.cluster, &broker, 1, 100)).await;
        assert_eq!(append, [(Open, 1), (Size, 1), (WriteAt, 1), (ReadAt, 1), (Close, 1)]);
    });
}

#[test]
fn the_first_takeover() {
    count(&[], async |counted| {
        let first = counted.during(0, async || counted.lead(0, 1).await).await;
        assert_eq!(first, [(Open, 1), (List, 2), (Write, 1), (Rename, 1), (SyncDirectory, 1), (ReadAt, 1)]);
    });
}

#[test]
fn a_takeover_after_a_crash_and_one_after_a_relinquish() {
    count(&[], async |counted| {
        counted.lead(0, 1).await;
        send_once(&counted.cluster, &counted.broker(0), 0, 100);
        counted.settle().await;
        let after_crash = counted.during(1, async || counted.lead(1, 2).await).await;
        let expected = [
            (Open, 2), // the own fence, the last segment
            (List, 2),
            (Read, 2), // the manifest; a producer snapshot that is not there
            (Write, 1),
            (Overwrite, 1),
            (Rename, 1),
            (Unlink, 1), // the lower manifest, when it leads
            (SyncDirectory, 1),
            (ReadAt, 2), // the end of the log, the ask
            (Close, 1),
        ];
        assert_eq!(after_crash, expected);
        send_once(&counted.cluster, &counted.broker(1), 1, 100);
        counted.settle().await;
        let relinquish = counted.during(1, async || counted.broker(1).relinquish()).await;
        // Snapshot, index, checkpoint, manifest; one ask.
        assert_eq!(relinquish, [(Write, 4), (Rename, 4), (SyncDirectory, 1), (ReadAt, 1)]);
    });
}

#[test]
fn a_roll_begins_a_file_and_writes_an_index() {
    count(&[("segment.ms", "1000")], async |counted| {
        counted.lead(0, 1).await;
        send_once(&counted.cluster, &counted.broker(0), 0, 100);
        counted.settle().await;
        counted.cluster.simulation().time().sleep(Duration::from_secs(2)).await;
        let roll = counted.during(0, async || send_once(&counted.cluster, &counted.broker(0), 1, 100)).await;
        assert_eq!(roll, [(Open, 1), (Write, 1), (Rename, 1), (SyncDirectory, 1), (WriteAt, 1), (ReadAt, 1)]);
    });
}

#[test]
fn a_delete_is_one_manifest_one_ask_and_two_unlinks_for_each_segment() {
    count(&[("segment.ms", "1000")], async |counted| {
        counted.lead(0, 1).await;
        for number in 0..4 {
            send_once(&counted.cluster, &counted.broker(0), number, 100);
            counted.settle().await;
            counted.cluster.simulation().time().sleep(Duration::from_secs(2)).await;
        }
        let delete = counted.during(0, async || drop(counted.broker(0).delete_records(3))).await;
        assert_eq!(delete, [(Write, 1), (Rename, 1), (Unlink, 6), (SyncDirectory, 1), (ReadAt, 1)]);
        // Idempotent producers are remembered in a snapshot first.
        let producer = Producer::new(&counted.cluster, 1);
        producer.add(100);
        producer.send(&counted.broker(0));
        counted.settle().await;
        let delete = counted.during(0, async || drop(counted.broker(0).delete_records(5))).await;
        assert_eq!(delete[..2], [(Open, 1), (Write, 3)], "an empty segment; an index, the snapshot, the manifest");
    });
}
