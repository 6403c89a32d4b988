//! A continuous load on one topic: an idempotent producer with `acks=all` and a consumer, and a checker of what both see.
//!
//! ```text
//!   leaders  ◀── metadata, again and again, from whichever broker answers
//!      │
//!      ├──▶ producer: record n to offset n of each partition; a record without an answer is sent again, with its sequence
//!      └──▶ consumer: at offset n of each partition there is record n, and nothing else
//! ```
//!
//! Everything is addressed by topic id: a topic that is deleted and made anew is another one, and begins with record 0. So an
//! acknowledged record that is lost, twice there or out of order shows as a record at an offset that is not its own.

mod consumer;
mod leaders;
mod producer;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
use kaas_proto::types::{Offset, TopicId};

use crate::broker::{Broker, wait_until};
use crate::cluster::Cluster;
use crate::tester::connect;
use leaders::Leaders;

/// Of a topic whose records are to stay: theirs are times of long ago, which a look at retention, every five minutes, would act on.
pub(crate) const KEPT: [(&str, &str); 1] = [("retention.ms", "-1")];

/// Violations that are remembered.
const MAX_VIOLATIONS: usize = 20;

/// What all threads of a load share.
#[derive(Debug)]
struct Shared {
    stop: AtomicBool,
    leaders: Mutex<Leaders>,
    partitions: Vec<Mutex<Progress>>,
    /// Where the consumer goes on, by topic id and partition.
    consumed: Mutex<BTreeMap<(TopicId, i32), Offset>>,
    /// The consumer is to begin again, at offset 0. It takes this back when it does.
    again: AtomicBool,
    violations: Mutex<Vec<String>>,
}

/// How far the producer is in a partition.
#[derive(Debug)]
struct Progress {
    topic: Option<TopicId>,
    /// Records acknowledged of this topic id.
    acknowledged: i64,
    /// Acknowledgements since the start, of all topic ids.
    total: u64,
    last: Instant,
    /// The longest time between two acknowledgements since the gaps were reset.
    longest: Duration,
    /// What was in the way then.
    longest_obstacle: String,
    /// Why the last attempt failed since the last acknowledgement.
    obstacle: String,
}

impl Shared {
    fn stopping(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    fn violation(&self, what: String) {
        let mut violations = lock(&self.violations);
        if violations.len() < MAX_VIOLATIONS {
            violations.push(what);
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().expect("the lock is never poisoned: nobody panics with it")
}

/// Runs until it is finished or dropped.
#[derive(Debug)]
pub struct Load {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

impl Load {
    /// Creates a topic and starts.
    ///
    /// # Errors
    /// No broker creates it, or gives a producer id.
    pub fn start(cluster: &Cluster, topic: &str, partitions: i32) -> Result<Self> {
        let bootstrap: Vec<_> = cluster.brokers.values().map(Broker::kafka).collect();
        let mut client = connect(*bootstrap.first().context("there is a broker")?)?;
        client.create_topic(topic, partitions, &KEPT)?;
        let identity = client.init_producer_id()?;
        let now = Instant::now();
        let progress = |_| {
            let (longest, obstacle, longest_obstacle) = (Duration::ZERO, String::new(), String::new());
            Mutex::new(Progress {
                topic: None,
                acknowledged: 0,
                total: 0,
                last: now,
                longest,
                longest_obstacle,
                obstacle,
            })
        };
        let shared = Arc::new(Shared {
            stop: AtomicBool::new(false),
            leaders: Mutex::new(Leaders::new(bootstrap)),
            partitions: (0..partitions).map(progress).collect(),
            consumed: Mutex::default(),
            again: AtomicBool::new(false),
            violations: Mutex::default(),
        });
        let mut load = Self { shared, threads: Vec::new() };
        let name = topic.to_owned();
        load.spawn(move |shared| leaders::keep_up_to_date(shared, &name));
        (0..partitions).for_each(|partition| load.spawn(move |shared| producer::run(shared, identity, partition)));
        load.spawn(consumer::run);
        load.wait_for_progress()?;
        Ok(load)
    }

    fn spawn(&mut self, run: impl FnOnce(&Shared) + Send + 'static) {
        let shared = Arc::clone(&self.shared);
        self.threads.push(std::thread::spawn(move || run(&shared)));
    }

    /// Waits until each partition has acknowledged two more records: so a gap that has begun is over.
    ///
    /// # Errors
    /// One does not in time.
    pub fn wait_for_progress(&self) -> Result<()> {
        let totals = || self.shared.partitions.iter().map(|progress| lock(progress).total).collect::<Vec<_>>();
        let before = totals();
        let all = || Ok(totals().iter().zip(&before).all(|(now, before)| *now >= before + 2));
        wait_until("all partitions are served", all).with_context(|| self.obstacles())?;
        self.no_violation()
    }

    fn obstacles(&self) -> String {
        let obstacle = |(partition, progress): (usize, &Mutex<Progress>)| {
            let progress = lock(progress);
            format!("partition {partition}, {:?} ago: {}", progress.last.elapsed(), progress.obstacle)
        };
        self.shared.partitions.iter().enumerate().map(obstacle).collect::<Vec<_>>().join("\n")
    }

    /// Gaps are measured from now on.
    pub fn reset_gaps(&self) {
        self.shared.partitions.iter().for_each(|progress| lock(progress).longest = Duration::ZERO);
    }

    /// The longest time between two acknowledgements, of each partition, and what was in the way, as far as it was told.
    #[must_use]
    pub fn gaps(&self) -> Vec<(Duration, String)> {
        let gap = |progress: &Mutex<Progress>| {
            let progress = lock(progress);
            (progress.longest, progress.longest_obstacle.clone())
        };
        self.shared.partitions.iter().map(gap).collect()
    }

    /// Acknowledgements so far.
    #[must_use]
    pub fn acknowledged(&self) -> u64 {
        self.shared.partitions.iter().map(|progress| lock(progress).total).sum()
    }

    /// Waits until the consumer has everything that is acknowledged by now, and says what was wrong until then.
    ///
    /// # Errors
    /// A record is lost, or one was twice there, or out of order.
    pub fn check(&self) -> Result<()> {
        let acknowledged: Vec<_> = (0..)
            .zip(&self.shared.partitions)
            .map(|(partition, progress)| {
                let progress = lock(progress);
                (progress.topic, partition, progress.acknowledged)
            })
            .collect();
        let caught_up = || {
            let consumed = lock(&self.shared.consumed);
            let current = lock(&self.shared.leaders).topic();
            acknowledged.iter().all(|(topic, partition, count)| {
                let next = topic.and_then(|topic| consumed.get(&(topic, *partition)));
                // What was acknowledged of a topic that is gone is gone.
                *topic != current || *count == 0 || next.is_some_and(|next| next.0 >= *count)
            })
        };
        let consumed = || lock(&self.shared.consumed).values().map(|next| next.0).sum::<i64>();
        // From the start there may be much to read: as long as it goes on, it is waited for.
        while !caught_up() {
            let before = consumed();
            let goes_on = || Ok(caught_up() || consumed() > before);
            wait_until("the consumer has all that was acknowledged", goes_on).with_context(|| {
                let violations = lock(&self.shared.violations).join("\n");
                format!("acknowledged: {acknowledged:?}\nconsumed: {:?}\n{violations}", lock(&self.shared.consumed))
            })?;
        }
        self.no_violation()
    }

    /// Has the consumer read everything once more: a record may be lost after it was read.
    fn check_again(&self) -> Result<()> {
        self.shared.again.store(true, Ordering::SeqCst);
        wait_until("the consumer begins again", || Ok(!self.shared.again.load(Ordering::SeqCst)))?;
        self.check()
    }

    fn no_violation(&self) -> Result<()> {
        let violations = lock(&self.shared.violations);
        ensure!(violations.is_empty(), "{}", violations.join("\n"));
        Ok(())
    }

    /// Stops, after a last check of all records from the first one. Returns how many records were acknowledged.
    ///
    /// # Errors
    /// As in [`Load::check`].
    pub fn finish(mut self) -> Result<u64> {
        self.check()?;
        self.check_again()?;
        self.shared.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            thread.join().map_err(|_| anyhow!("a thread of the load has panicked"))?;
        }
        self.no_violation()?;
        Ok(self.acknowledged())
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        // Not waited for: what they wait for may be what the test has ended.
        self.shared.stop.store(true, Ordering::Relaxed);
    }
}
