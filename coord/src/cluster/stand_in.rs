//! Election and topics without Kubernetes: a few files in a directory that all brokers of one machine share.
//!
//! For tests, and for trying a cluster on one machine. A lease that runs out, with a count of its holders, and a list of
//! topics. It works like the real thing towards [`super::ports`], and is no substitute for it: it needs one clock.
//!
//! Each state of either is a file of its own, numbered; the last one counts. Who changes a state makes the next file, which
//! exists already if somebody was faster. No lock: a process that stands still holds up nobody.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use kaas_proto::control::TopicRefusal;
use kaas_proto::kafka::error_code::ErrorCode;
use kaas_proto::types::{BrokerId, Incarnation, TopicId};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tokio::sync::{Notify, mpsc, oneshot, watch};
use tokio::time::{Instant, sleep};

use super::ports::{
    Controller, DesiredTopic, DesiredTopics, Election, Leadership, Ports, TOPIC_REQUEST_QUEUE_LENGTH, TopicRequest,
    Topics,
};
use crate::topics::blocking;

/// How long a lease holds without being renewed.
const LEASE: Duration = Duration::from_millis(2000);
/// How long after a renewal its holder may act. Shorter: it stops before another one may begin.
const ACT: Duration = Duration::from_millis(1300);
/// How often it is renewed, and looked at.
const RENEW: Duration = Duration::from_millis(300);
/// How often topics are looked at.
const POLL: Duration = Duration::from_millis(50);

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Lease {
    holder: Option<Holder>,
    transitions: i32,
    renewed_ms: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Holder {
    broker: i32,
    incarnation: Incarnation,
    heartbeat: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct StoredTopic {
    name: String,
    id: TopicId,
    partitions: i32,
    configs: std::collections::BTreeMap<String, String>,
}

/// What is elected and what topics there are.
const LEASE_FILE: &str = "lease";
const TOPICS_FILE: &str = "topics";

/// So many states before the last one are kept: of two minutes and more, if nothing but the lease is renewed. A process that stood still for
/// longer between reading a state and changing it could make a file that was there before.
const KEPT_STATES: u64 = 500;

/// The directory that stands in for Kubernetes.
#[derive(Clone, Debug)]
struct Directory(PathBuf);

/// Starts to take part. Within a tokio runtime; ends with it.
///
/// # Errors
/// The directory can't be made.
pub fn start(directory: &Path, broker: BrokerId, incarnation: Incarnation, heartbeat: &str) -> io::Result<Ports> {
    fs::create_dir_all(directory)?;
    let directory = Directory(directory.to_owned());
    let holder = Holder { broker: broker.0, incarnation, heartbeat: heartbeat.to_owned() };
    let (publish, leadership) = watch::channel(Leadership::Unknown);
    let (resign, resigning) = oneshot::channel();
    let missed = Arc::new(Notify::new());
    tokio::spawn(elect(directory.clone(), holder, publish, resigning, Arc::clone(&missed)));
    let (publish, desired) = watch::channel(None);
    tokio::spawn(poll_topics(directory.clone(), publish));
    let (requests, received) = mpsc::channel(TOPIC_REQUEST_QUEUE_LENGTH);
    tokio::spawn(serve_requests(directory, received));
    // No one looks at it without Kubernetes: nothing is known of endpoints.
    let (_, ready_endpoints) = watch::channel(None);
    Ok(Ports {
        election: Election { leadership, resign, missed },
        topics: Topics { desired, requests },
        ready_endpoints,
    })
}

async fn elect(
    directory: Directory,
    own: Holder,
    publish: watch::Sender<Leadership>,
    mut resigning: oneshot::Receiver<oneshot::Sender<()>>,
    missed: Arc<Notify>,
) {
    loop {
        let began = Instant::now();
        let (looked, candidate) = (directory.clone(), own.clone());
        let lease = blocking(move || looked.compete(&candidate)).await;
        if let Ok(lease) = lease {
            publish.send_if_modified(|leadership| {
                let next = understand(&lease, &own, began);
                let changed = *leadership != next;
                *leadership = next;
                changed
            });
        }
        tokio::select! {
            () = sleep(RENEW) => {}
            () = missed.notified() => {}
            asked = &mut resigning => {
                let Ok(done) = asked else { return };
                publish.send_replace(Leadership::Unknown);
                let (left, former) = (directory.clone(), own.clone());
                let _ = blocking(move || left.resign(&former)).await;
                let _ = done.send(());
                return;
            }
        }
    }
}

fn understand(lease: &Lease, own: &Holder, renewed: Instant) -> Leadership {
    match &lease.holder {
        None => Leadership::Unknown,
        Some(holder) if holder == own => {
            Leadership::Controller { lease_transitions: lease.transitions, act_until: renewed + ACT }
        }
        Some(holder) => Leadership::Follower {
            lease_transitions: lease.transitions,
            controller: Controller { broker: BrokerId(holder.broker), heartbeat: holder.heartbeat.as_str().into() },
        },
    }
}

async fn poll_topics(directory: Directory, publish: watch::Sender<Option<Arc<DesiredTopics>>>) {
    while !publish.is_closed() {
        let looked = directory.clone();
        if let Ok((_, topics)) = blocking(move || looked.read::<Vec<StoredTopic>>(TOPICS_FILE)).await {
            let topics: DesiredTopics = topics.into_iter().map(desired).collect();
            publish.send_if_modified(|known| {
                let changed = known.as_deref() != Some(&topics);
                if changed {
                    *known = Some(Arc::new(topics));
                }
                changed
            });
        }
        sleep(POLL).await;
    }
}

fn desired(topic: StoredTopic) -> (Arc<str>, DesiredTopic) {
    let name: Arc<str> = topic.name.into();
    let topic =
        DesiredTopic { name: Arc::clone(&name), id: topic.id, partitions: topic.partitions, configs: topic.configs };
    (name, topic)
}

async fn serve_requests(directory: Directory, mut requests: mpsc::Receiver<TopicRequest>) {
    while let Some(request) = requests.recv().await {
        let directory = directory.clone();
        blocking(move || directory.carry_out(request)).await;
    }
}

impl Directory {
    fn state(&self, name: &str, number: u64) -> PathBuf {
        self.0.join(format!("{name}.{number:016x}.json"))
    }

    /// The last state and its number, 0 if there is none yet.
    fn read<T: DeserializeOwned + Default>(&self, name: &str) -> io::Result<(u64, T)> {
        let mut last = 0;
        for entry in fs::read_dir(&self.0)? {
            let file = entry?.file_name();
            let number =
                file.to_str().and_then(|file| file.strip_prefix(name)?.strip_prefix('.')?.strip_suffix(".json"));
            if let Some(number) = number.and_then(|number| u64::from_str_radix(number, 16).ok()) {
                last = last.max(number);
            }
        }
        if last == 0 {
            return Ok((0, T::default()));
        }
        let state = serde_json::from_slice(&fs::read(self.state(name, last))?).map_err(io::Error::other)?;
        Ok((last, state))
    }

    /// Makes `value` the state after number `last`. False if there is one already.
    fn write(&self, name: &str, last: u64, value: &impl Serialize) -> io::Result<bool> {
        let whole = self.0.join(format!("{name}.{}.tmp", TopicId::random()));
        fs::write(&whole, serde_json::to_vec(value).map_err(io::Error::other)?)?;
        let made = fs::hard_link(&whole, self.state(name, last + 1));
        fs::remove_file(whole)?;
        match made {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => return Ok(false),
            made => made?,
        }
        if let Some(old) = last.checked_sub(KEPT_STATES) {
            // It may never have been there.
            let _ = fs::remove_file(self.state(name, old));
        }
        Ok(true)
    }

    /// Renews the own lease, or takes one that has run out.
    fn compete(&self, own: &Holder) -> io::Result<Lease> {
        loop {
            let (last, mut lease): (u64, Lease) = self.read(LEASE_FILE)?;
            let now = now_ms();
            let is_own = lease.holder.as_ref() == Some(own);
            let age = Duration::from_millis(now.saturating_sub(lease.renewed_ms));
            if !is_own && lease.holder.is_some() && age <= LEASE {
                return Ok(lease);
            }
            if !is_own {
                lease.transitions += 1;
            }
            lease.holder = Some(own.clone());
            lease.renewed_ms = now;
            if self.write(LEASE_FILE, last, &lease)? {
                return Ok(lease);
            }
        }
    }

    fn resign(&self, own: &Holder) -> io::Result<()> {
        loop {
            let (last, lease): (u64, Lease) = self.read(LEASE_FILE)?;
            if lease.holder.as_ref() != Some(own) || self.write(LEASE_FILE, last, &Lease { holder: None, ..lease })? {
                return Ok(());
            }
        }
    }

    fn carry_out(&self, request: TopicRequest) {
        match request {
            TopicRequest::Create { name, partitions, configs, reply } => {
                let topic = StoredTopic { name: name.to_string(), id: TopicId::random(), partitions, configs };
                let created = self.change_topics(|topics| {
                    if topics.iter().any(|other| other.name == topic.name) {
                        return Err(refusal(ErrorCode::TopicAlreadyExists, "the topic exists already"));
                    }
                    topics.push(topic.clone());
                    Ok(())
                });
                let _ = reply.send(created.map(|()| desired(topic).1));
            }
            TopicRequest::Delete { id, reply, .. } => {
                let deleted = self.change_topics(|topics| {
                    let before = topics.len();
                    topics.retain(|topic| topic.id != id);
                    if topics.len() < before { Ok(()) } else { Err(unknown()) }
                });
                let _ = reply.send(deleted);
            }
            TopicRequest::SetPartitions { id, partitions, reply, .. } => {
                let _ = reply.send(self.change_topic(id, |topic| topic.partitions = partitions));
            }
            TopicRequest::SetConfigs { id, configs, reply, .. } => {
                let _ = reply.send(self.change_topic(id, |topic| topic.configs.clone_from(&configs)));
            }
        }
    }

    fn change_topic(&self, id: TopicId, change: impl Fn(&mut StoredTopic)) -> Result<(), TopicRefusal> {
        self.change_topics(|topics| topics.iter_mut().find(|topic| topic.id == id).map(&change).ok_or_else(unknown))
    }

    fn change_topics(
        &self,
        change: impl Fn(&mut Vec<StoredTopic>) -> Result<(), TopicRefusal>,
    ) -> Result<(), TopicRefusal> {
        let failed = |error: io::Error| refusal(ErrorCode::UnknownServerError, &error.to_string());
        loop {
            let (last, mut topics): (u64, Vec<StoredTopic>) = self.read(TOPICS_FILE).map_err(failed)?;
            change(&mut topics)?;
            if self.write(TOPICS_FILE, last, &topics).map_err(failed)? {
                return Ok(());
            }
        }
    }
}

fn refusal(code: ErrorCode, message: &str) -> TopicRefusal {
    TopicRefusal { code, message: message.to_owned() }
}

fn unknown() -> TopicRefusal {
    refusal(ErrorCode::UnknownTopicOrPartition, "there is no such topic any more")
}

fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]
    use super::*;

    #[tokio::test]
    async fn one_is_elected_and_another_after_it_resigned() {
        let root = tempfile::tempdir().unwrap();
        let start = |broker| start(root.path(), BrokerId(broker), Incarnation(7), &format!("h:{broker}")).unwrap();
        let first = start(1);
        let mut leadership = first.election.leadership.clone();
        let elected = leadership.wait_for(|l| matches!(l, Leadership::Controller { .. })).await.unwrap().clone();
        let Leadership::Controller { lease_transitions, .. } = elected else { unreachable!() };
        let second = start(2);
        let mut other = second.election.leadership.clone();
        let followed = other.wait_for(|l| *l != Leadership::Unknown).await.unwrap().clone();
        let controller = Controller { broker: BrokerId(1), heartbeat: "h:1".into() };
        assert_eq!(followed, Leadership::Follower { lease_transitions, controller });
        let (done, resigned) = oneshot::channel();
        first.election.resign.send(done).unwrap();
        resigned.await.unwrap();
        let next = |l: &Leadership| matches!(l, Leadership::Controller { lease_transitions: t, .. } if *t == lease_transitions + 1);
        other.wait_for(next).await.unwrap();
    }

    #[test]
    fn of_two_who_saw_the_same_state_one_changes_it() {
        let root = tempfile::tempdir().unwrap();
        let directory = Directory(root.path().to_owned());
        let holder = |broker| Holder { broker, incarnation: Incarnation(7), heartbeat: format!("h:{broker}") };
        assert_eq!(directory.compete(&holder(1)).unwrap().transitions, 1);
        // It stands still here, with what it has read.
        let (last, stale): (u64, Lease) = directory.read(LEASE_FILE).unwrap();
        for renewals in 1..=KEPT_STATES + 2 {
            assert_eq!(directory.compete(&holder(1)).unwrap().transitions, 1);
            assert_eq!(directory.read::<Lease>(LEASE_FILE).unwrap().0, last + renewals);
        }
        assert!(fs::read_dir(root.path()).unwrap().count() as u64 <= KEPT_STATES + 1);
        let (last, _): (u64, Lease) = directory.read(LEASE_FILE).unwrap();
        assert!(!directory.write(LEASE_FILE, last - 1, &stale).unwrap());
        directory.resign(&holder(1)).unwrap();
        assert_eq!(directory.compete(&holder(2)).unwrap().transitions, 2);
    }

    #[tokio::test]
    async fn topics_are_what_was_asked_for() {
        let root = tempfile::tempdir().unwrap();
        let ports = start(root.path(), BrokerId(1), Incarnation(7), "h:1").unwrap();
        let mut desired = ports.topics.desired.clone();
        let create = || async {
            let (reply, answer) = oneshot::channel();
            let request = TopicRequest::Create { name: "t".into(), partitions: 2, configs: Default::default(), reply };
            ports.topics.requests.send(request).await.unwrap();
            answer.await.unwrap()
        };
        let topic = create().await.unwrap();
        assert_eq!(create().await.unwrap_err().code, ErrorCode::TopicAlreadyExists);
        let shown = |known: &Option<Arc<DesiredTopics>>| known.as_ref().is_some_and(|topics| topics.contains_key("t"));
        desired.wait_for(shown).await.unwrap();
        let (reply, answer) = oneshot::channel();
        let request = TopicRequest::Delete { name: "t".into(), id: topic.id, reply };
        ports.topics.requests.send(request).await.unwrap();
        answer.await.unwrap().unwrap();
        desired.wait_for(|known| !shown(known)).await.unwrap();
    }
}
