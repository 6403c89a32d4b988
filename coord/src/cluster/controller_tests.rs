#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

use std::io;
use std::path::Path;
use std::sync::Mutex;

use kaas_proto::format::assignment::BrokerHealth;
use kaas_proto::reserve::Reserves;
use kaas_proto::types::{Incarnation, SlotId, TopicId};
use tempfile::TempDir;
use tokio::task::{LocalSet, spawn_local};
use tokio::time::timeout;

use super::super::ports::DesiredTopic;
use super::super::sample::{assignment, volume};
use super::*;
use crate::topics::disk::{Disk, FileSystem};

const PATIENCE: Duration = Duration::from_secs(30);
const CONTROLLER: BrokerId = BrokerId(1);
const OTHER: BrokerId = BrokerId(2);
const THIRD: BrokerId = BrokerId(3);

fn broker(id: BrokerId) -> RegisteredBroker {
    let listeners = Vec::new();
    RegisteredBroker { id, incarnation: Incarnation(7), rack: None, listeners, health: BrokerHealth::Alive }
}

fn elected_for(time: Duration) -> Leadership {
    Leadership::Controller { lease_transitions: 1, act_until: Instant::now() + time }
}

/// Broker 1, a candidate on a volume without topics, and all that it is told.
struct Office {
    root: TempDir,
    file: AssignmentFile,
    leadership: watch::Sender<Leadership>,
    desired: watch::Sender<Option<Arc<DesiredTopics>>>,
    _ready: watch::Sender<Option<BTreeSet<BrokerId>>>,
    sink: watch::Receiver<EventSink>,
}

fn office() -> (Office, Candidate) {
    office_with(Arc::new(FileSystem))
}

/// Runs a scenario that begins when the controller's term has.
async fn when_elected(scenario: impl AsyncFnOnce(Office)) {
    LocalSet::new()
        .run_until(async {
            let (mut office, candidate) = office();
            spawn_local(candidate.run());
            office.leadership.send_replace(elected_for(PATIENCE));
            office.sink.wait_for(Option::is_some).await.unwrap();
            scenario(office).await;
        })
        .await;
}

fn office_with(disk: Arc<dyn Disk>) -> (Office, Candidate) {
    let (root, file) = volume();
    let topics = TopicDirectory::open(&root.path().into(), CONTROLLER, disk).unwrap();
    let (elect, leadership) = watch::channel(Leadership::Unknown);
    let (desire, desired) = watch::channel(None);
    let (say_ready, ready) = watch::channel(None);
    let (sink, events) = watch::channel(None);
    let candidate = Candidate {
        own: broker(CONTROLLER),
        heartbeat: "h:1".into(),
        file: file.clone(),
        roots: root.path().into(),
        topics: Arc::new(topics),
        leadership: leadership.clone(),
        desired,
        ready,
        watcher: Watcher::new(file.clone(), leadership),
        sink,
        sweep: Rc::new(Notify::new()),
        reserves: Reserves::default(),
        facts: Rc::new(ControllerFacts::default()),
    };
    (Office { root, file, leadership: elect, desired: desire, _ready: say_ready, sink: events }, candidate)
}

type Told = mpsc::Receiver<Result<ControllerMessage, tonic::Status>>;

impl Office {
    fn written(&self) -> Option<Assignment> {
        self.file.read().unwrap().map(|bytes| Assignment::decode(&bytes).unwrap())
    }

    async fn assignment(&self, what: &str, condition: impl Fn(&Assignment) -> bool) -> Assignment {
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(found) = self.written().filter(&condition) {
                return found;
            }
            assert!(Instant::now() < deadline, "{what}: {:?}", self.written());
            tokio::task::yield_now().await;
        }
    }

    async fn tell(&self, event: SessionEvent) {
        let sink = self.sink.borrow().clone().unwrap();
        sink.send(event).await.unwrap();
    }

    async fn come(&self, id: BrokerId, session: u64) -> Told {
        let (to_broker, told) = mpsc::channel(64);
        self.tell(SessionEvent::Began { session: SessionId(session), broker: broker(id), to_broker }).await;
        self.say(id, session, Vec::new()).await;
        told
    }

    async fn say(&self, broker: BrokerId, session: u64, reports: Vec<Report>) {
        self.say_numbered(broker, session, reports, 0).await;
    }

    async fn say_numbered(&self, broker: BrokerId, session: u64, reports: Vec<Report>, number: u64) {
        let reports = reports.iter().map(wire_report).collect();
        let message = BrokerMessage { healthy: true, reports, number, ..BrokerMessage::default() };
        self.tell(SessionEvent::Heard { session: SessionId(session), broker, message }).await;
    }
}

fn leads(assignment: &Assignment, broker: BrokerId) -> usize {
    assignment.consumer_groups.iter().filter(|slot| slot.leader == broker).count()
}

/// Waits until the broker is told that the partition was let go of.
async fn released(told: &mut Told, partition: PartitionKey) {
    let hear = async {
        loop {
            let message = told.recv().await.unwrap().unwrap();
            if message.relinquished.iter().filter_map(report).any(|report| report.partition == partition) {
                return;
            }
        }
    };
    timeout(PATIENCE, hear).await.expect("the release is passed on");
}

#[tokio::test]
async fn a_release_is_passed_on_also_to_a_leader_that_comes_after_the_word_of_it() {
    when_elected(async |office: Office| {
        let _controller = office.come(CONTROLLER, 10).await;
        let _other = office.come(OTHER, 20).await;
        office.assignment("two share the slots", |assignment| leads(assignment, OTHER) > 0).await;
        let mut third = office.come(THIRD, 30).await;
        let moved = |slot: &&AssignedSlot| slot.leader == THIRD && slot.previous == Some(OTHER);
        let shared = office
            .assignment("the third one has some", |assignment| assignment.consumer_groups.iter().any(|s| moved(&s)))
            .await;
        let slot = shared.consumer_groups.iter().find(moved).unwrap();
        let partition = PartitionKey::of_slot(slot.slot);
        let epoch = LeaderEpoch(slot.epoch.0 - 1);
        office.say(OTHER, 20, vec![Report { partition, epoch, what: What::Relinquished }]).await;
        released(&mut third, partition).await;
        // It may have been lost with the stream.
        let mut again = office.come(THIRD, 31).await;
        released(&mut again, partition).await;
    })
    .await;
}

/// The bug that this would find: each message became one, more than may wait, and the rest was lost.
#[tokio::test]
async fn many_releases_at_a_time_are_all_passed_on() {
    when_elected(async |office: Office| {
        let _controller = office.come(CONTROLLER, 10).await;
        let mut other = office.come(OTHER, 20).await;
        let shared = office.assignment("two share the slots", |assignment| leads(assignment, OTHER) > 1).await;
        let slots = shared.consumer_groups.iter().filter(|slot| slot.leader == OTHER);
        let partitions: Vec<_> = slots.map(|slot| PartitionKey::of_slot(slot.slot)).collect();
        let sink = office.sink.borrow().clone().unwrap();
        for number in 0..100 {
            // The last one is another one.
            let partition = partitions[usize::from(number == 99)];
            let report = Report { partition, epoch: LeaderEpoch(0), what: What::Relinquished };
            let message = BrokerMessage { healthy: true, reports: vec![wire_report(&report)], ..Default::default() };
            let session = SessionId(10);
            sink.try_send(SessionEvent::Heard { session, broker: CONTROLLER, message }).unwrap();
        }
        released(&mut other, partitions[1]).await;
    })
    .await;
}

#[tokio::test]
async fn who_reports_something_hears_that_it_was_passed_on() {
    when_elected(async |office: Office| {
        let mut other = office.come(OTHER, 20).await;
        let mut own = office.come(CONTROLLER, 10).await;
        let shared = office.assignment("two share the slots", |assignment| leads(assignment, OTHER) > 0).await;
        let slot = shared.consumer_groups.iter().find(|slot| slot.leader == OTHER).unwrap();
        let partition = PartitionKey::of_slot(slot.slot);
        let report = Report { partition, epoch: LeaderEpoch(0), what: What::Relinquished };
        office.say_numbered(CONTROLLER, 10, vec![report], 17).await;
        while timeout(PATIENCE, own.recv()).await.unwrap().unwrap().unwrap().heard < 17 {}
        // It lies in the stream by then, also if the controller ends at once.
        office.leadership.send_replace(Leadership::Unknown);
        released(&mut other, partition).await;
    })
    .await;
}

#[tokio::test]
async fn epochs_that_are_taken_are_gone_above() {
    when_elected(async |office: Office| {
        let _controller = office.come(CONTROLLER, 10).await;
        let _other = office.come(OTHER, 20).await;
        let first = office.assignment("two share the slots", |assignment| leads(assignment, OTHER) > 1).await;
        let mut of_other = first.consumer_groups.iter().filter(|slot| slot.leader == OTHER).map(|slot| slot.slot);
        let (lost, healed) = (of_other.next().unwrap(), of_other.next().unwrap());
        let report = |slot: SlotId, epoch, what| Report { partition: PartitionKey::of_slot(slot), epoch, what };
        let reports = [(lost, What::Superseded), (healed, What::Leads)];
        office.say(OTHER, 20, reports.map(|(slot, what)| report(slot, LeaderEpoch(9), what)).into()).await;
        let row = |assignment: &Assignment, slot: SlotId| assignment.consumer_groups[usize::from(slot.0)];
        let lifted = office.assignment("above", |assignment| row(assignment, lost).epoch == LeaderEpoch(10)).await;
        assert_eq!(row(&lifted, lost).leader, OTHER, "who was superseded may lead all the same");
        assert_eq!((row(&lifted, healed).leader, row(&lifted, healed).epoch), (OTHER, LeaderEpoch(9)), "it may stay");
    })
    .await;
}

#[tokio::test]
async fn a_controller_whose_lease_is_not_renewed_stops() {
    LocalSet::new()
        .run_until(async {
            let (mut office, candidate) = office();
            spawn_local(candidate.run());
            office.leadership.send_replace(elected_for(Duration::from_secs(1)));
            office.sink.wait_for(Option::is_some).await.unwrap();
            let former = office.sink.borrow().clone().unwrap();
            office.assignment("the first one", |_| true).await;
            // Nothing says that it is deposed: its time is up.
            timeout(PATIENCE, office.sink.wait_for(Option::is_none)).await.unwrap().unwrap();
            assert!(matches!(*office.leadership.borrow(), Leadership::Controller { .. }));
            timeout(PATIENCE, former.closed()).await.expect("sessions end with it");
            let last = office.written().unwrap();

            office.leadership.send_replace(elected_for(PATIENCE));
            let next =
                office.assignment("the next term", |assignment| assignment.controller_epoch > last.controller_epoch);
            assert_eq!(next.await.assignment_version.0, last.assignment_version.0 + 1, "nothing was written between");
        })
        .await;
}

#[tokio::test]
async fn what_was_written_too_slowly_is_withdrawn() {
    let (office, candidate) = office();
    let stage = || office.file.stage(&assignment(3, 8), None).unwrap();
    let temporaries = || {
        let names = std::fs::read_dir(office.root.path().join(kaas_proto::layout::CLUSTER_DIRECTORY)).unwrap();
        names.filter(|entry| entry.as_ref().unwrap().file_type().unwrap().is_file()).count()
    };
    let before = temporaries();
    let elsewhere = super::super::ports::Controller { broker: OTHER, heartbeat: "h:2".into() };
    for over in [
        elected_for(Duration::ZERO),
        Leadership::Unknown,
        Leadership::Follower { lease_transitions: 2, controller: elsewhere },
    ] {
        office.leadership.send_replace(over);
        let refused = candidate.if_still_elected(stage()).await;
        assert!(matches!(refused, Err(TermError::NotElected)), "{refused:?}");
        assert_eq!((temporaries(), office.written()), (before, None));
    }
    office.leadership.send_replace(elected_for(PATIENCE));
    candidate.if_still_elected(stage()).await.unwrap().publish().unwrap();
    assert_eq!(office.written(), Some(assignment(3, 8)));
}

#[tokio::test(start_paused = true)]
async fn a_broker_that_does_not_follow_is_shown() {
    LocalSet::new()
        .run_until(async {
            let (mut office, candidate) = office();
            let facts = Rc::clone(&candidate.facts);
            spawn_local(candidate.run());
            office.leadership.send_replace(elected_for(PATIENCE * 100));
            office.sink.wait_for(Option::is_some).await.unwrap();
            // It says nothing of an assignment.
            let _other = office.come(OTHER, 20).await;
            let row = Row { broker: OTHER, generation: Default::default(), is_behind: true };
            let deadline = Instant::now() + PATIENCE;
            while *facts.followers.borrow() != [row] {
                assert!(Instant::now() < deadline, "{:?}", facts.followers.borrow());
                office.say(OTHER, 20, Vec::new()).await;
                tokio::time::sleep(HEARTBEAT_INTERVAL / 2).await;
            }
        })
        .await;
}

/// A volume on which no topic can be made for as long as the other end of the channel is there.
#[derive(Debug)]
struct Slow(Mutex<std::sync::mpsc::Receiver<()>>);

impl Disk for Slow {
    fn create_directory(&self, path: &Path) -> io::Result<()> {
        if path.file_name().is_some_and(|name| name == "0") {
            self.0.lock().unwrap().recv().unwrap_err();
        }
        FileSystem.create_directory(path)
    }

    fn write(&self, path: &Path, content: &[u8]) -> io::Result<()> {
        FileSystem.write(path, content)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        FileSystem.rename(from, to)
    }

    fn sync_directory(&self, path: &Path) -> io::Result<()> {
        FileSystem.sync_directory(path)
    }

    fn revoke(&self, fence: &Path, line: &[u8]) -> io::Result<()> {
        FileSystem.revoke(fence, line)
    }

    fn remove_tree(&self, path: &Path) -> io::Result<()> {
        FileSystem.remove_tree(path)
    }
}

#[tokio::test]
async fn a_topic_that_takes_long_to_make_keeps_nobody_waiting() {
    LocalSet::new()
        .run_until(async {
            let (slow, released) = std::sync::mpsc::channel::<()>();
            let (mut office, candidate) = office_with(Arc::new(Slow(Mutex::new(released))));
            let topic = |name: &str, byte| {
                let (name, configs): (Arc<str>, _) = (name.into(), Default::default());
                (Arc::clone(&name), DesiredTopic { name, id: TopicId([byte; 16]), partitions: 2, configs })
            };
            let named = |assignment: &Assignment| -> BTreeSet<u8> {
                assignment.partitions.iter().map(|row| row.topic_id.0[0]).collect()
            };
            spawn_local(candidate.run());
            office.leadership.send_replace(elected_for(PATIENCE));
            office.sink.wait_for(Option::is_some).await.unwrap();
            let _controller = office.come(CONTROLLER, 10).await;
            office.desired.send_replace(Some(Arc::new([topic("a", 1)].into())));
            let _other = office.come(OTHER, 20).await;
            office.assignment("it comes", |assignment| leads(assignment, OTHER) > 0).await;
            office.tell(SessionEvent::Ended { session: SessionId(20), broker: OTHER }).await;
            let gone = office.assignment("and goes", |assignment| leads(assignment, OTHER) == 0).await;
            assert_eq!(gone.partitions, []);
            // What is desired changes meanwhile.
            office.desired.send_replace(Some(Arc::new([topic("b", 2), topic("c", 3)].into())));
            drop(slow);
            office.assignment("what is desired now", |assignment| named(assignment) == [2, 3].into()).await;
            assert!(office.root.path().join("b").is_dir());
            let removed = async {
                while office.root.path().join("a").exists() {
                    tokio::task::yield_now().await;
                }
            };
            timeout(PATIENCE, removed).await.expect("what was made for nothing is removed");
        })
        .await;
}
