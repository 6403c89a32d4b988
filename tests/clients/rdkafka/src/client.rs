//! librdkafka from Rust: what the cases are made of.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, TopicReplication};
use rdkafka::client::DefaultClientContext;
use rdkafka::consumer::{BaseConsumer, CommitMode, Consumer, ConsumerContext, Rebalance};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::message::{BorrowedMessage, DeliveryResult, Header, Headers, Message, OwnedHeaders};
use rdkafka::producer::{BaseRecord, Producer, ProducerContext, ThreadedProducer};
use rdkafka::{ClientConfig, ClientContext, Offset, TopicPartitionList};

use crate::protocol::{Outcome, STEP, wait_until};

const POLL: Duration = Duration::from_millis(100);

pub type OwnedHeader = (String, Option<Vec<u8>>);

/// One record; `None` is null.
#[derive(Clone, Debug, Default)]
pub struct Record {
    pub partition: i32,
    pub offset: i64,
    pub key: Option<Vec<u8>>,
    pub value: Option<Vec<u8>>,
    pub headers: Vec<OwnedHeader>,
    pub timestamp: Option<i64>,
}

impl Record {
    pub fn number(&self) -> usize {
        let text = String::from_utf8_lossy(self.value.as_deref().unwrap_or_default());
        text.parse().unwrap_or(usize::MAX)
    }
}

pub struct Client {
    bootstrap: String,
    admin: AdminClient<DefaultClientContext>,
}

impl Client {
    pub fn new(bootstrap: &str) -> Outcome<Self> {
        let admin = ClientConfig::new().set("bootstrap.servers", bootstrap).create()?;
        Ok(Self { bootstrap: bootstrap.to_owned(), admin })
    }

    fn configuration(&self) -> ClientConfig {
        let mut configuration = ClientConfig::new();
        configuration.set("bootstrap.servers", &self.bootstrap);
        configuration
    }

    fn consumer_configuration(&self, group: &str) -> ClientConfig {
        let mut configuration = self.configuration();
        configuration
            .set("group.id", group)
            .set("enable.auto.commit", "false")
            .set("auto.offset.reset", "earliest")
            .set("heartbeat.interval.ms", "300")
            .set("session.timeout.ms", "10000");
        configuration
    }

    /// `false` when the broker says TOPIC_ALREADY_EXISTS.
    pub fn create_topic(&self, topic: &str, partitions: i32) -> Outcome<bool> {
        let new = NewTopic::new(topic, partitions, TopicReplication::Fixed(1));
        let options = AdminOptions::new().operation_timeout(Some(STEP));
        let results = futures_executor::block_on(self.admin.create_topics([&new], &options))?;
        match results.into_iter().next() {
            Some(Ok(_)) => Ok(true),
            Some(Err((_, RDKafkaErrorCode::TopicAlreadyExists))) => Ok(false),
            other => Err(format!("create topic: {other:?}").into()),
        }
    }

    pub fn partition_count(&self, topic: &str) -> Outcome<usize> {
        let metadata = self.admin.inner().fetch_metadata(Some(topic), STEP)?;
        Ok(metadata.topics()[0].partitions().len())
    }

    /// Sends with acks=all and returns when all are acknowledged. `by_key`: the client's partitioner decides, and the
    /// producer is idempotent, since only that keeps the order when a batch has to be sent again.
    pub fn produce(&self, topic: &str, records: &[Record], codec: &str, by_key: bool) -> Outcome<()> {
        let deliveries = Deliveries::default();
        let mut configuration = self.configuration();
        configuration.set("acks", "all").set("compression.type", codec).set("enable.idempotence", by_key.to_string());
        let producer: ThreadedProducer<Deliveries> = configuration.create_with_context(deliveries.clone())?;
        for (number, record) in records.iter().enumerate() {
            let mut sent = BaseRecord::<[u8], [u8], _>::with_opaque_to(topic, Box::new(number));
            sent.partition = (!by_key).then_some(record.partition);
            sent.key = record.key.as_deref();
            sent.payload = record.value.as_deref();
            sent.timestamp = record.timestamp;
            if !record.headers.is_empty() {
                let headers = record.headers.iter().fold(OwnedHeaders::new(), |headers, (key, value)| {
                    headers.insert(Header { key, value: value.as_ref() })
                });
                sent.headers = Some(headers);
            }
            producer.send(sent).map_err(|(error, _)| error)?;
        }
        producer.flush(STEP)?;
        match deliveries.failures().first() {
            None => Ok(()),
            Some(failure) => Err(failure.clone().into()),
        }
    }

    /// Reads from the given offsets to the present end, without a group.
    pub fn read(&self, topic: &str, starts: &BTreeMap<i32, i64>) -> Outcome<Vec<Record>> {
        let consumer: BaseConsumer = self.consumer_configuration("no-group").create()?;
        let mut assignment = TopicPartitionList::new();
        let mut left = BTreeMap::new();
        for (&partition, &start) in starts {
            assignment.add_partition_offset(topic, partition, Offset::Offset(start))?;
            let (_, end) = consumer.fetch_watermarks(topic, partition, STEP)?;
            if end > start {
                left.insert(partition, end);
            }
        }
        consumer.assign(&assignment)?;
        let mut records = Vec::new();
        wait_until("the end of the topic", || {
            while let Some(record) = next(&consumer)? {
                if left.get(&record.partition).is_some_and(|&end| record.offset + 1 >= end) {
                    left.remove(&record.partition);
                }
                records.push(record);
                if left.is_empty() {
                    break;
                }
            }
            Ok(left.is_empty())
        })?;
        Ok(records)
    }

    pub fn offset_for_time(&self, topic: &str, partition: i32, timestamp: i64) -> Outcome<Option<i64>> {
        let consumer: BaseConsumer = self.consumer_configuration("no-group").create()?;
        let mut question = TopicPartitionList::new();
        question.add_partition_offset(topic, partition, Offset::Offset(timestamp))?;
        let found = consumer.offsets_for_times(question, STEP)?;
        let element = found.find_partition(topic, partition).ok_or("the partition is not in the answer")?;
        element.error()?;
        Ok(match element.offset() {
            Offset::Offset(offset) => Some(offset),
            _ => None,
        })
    }

    /// Joins the group, takes `count` records, commits exactly those, and leaves.
    pub fn consume(&self, group: &str, topic: &str, count: usize) -> Outcome<Vec<Record>> {
        let consumer: BaseConsumer = self.consumer_configuration(group).create()?;
        consumer.subscribe(&[topic])?;
        let mut records: Vec<Record> = Vec::new();
        wait_until("the records", || {
            while records.len() < count {
                let Some(record) = next(&consumer)? else { break };
                records.push(record);
            }
            Ok(records.len() == count)
        })?;
        let positions: BTreeMap<i32, i64> =
            records.iter().map(|record| (record.partition, record.offset + 1)).collect();
        let mut committed = TopicPartitionList::new();
        for (partition, offset) in positions {
            committed.add_partition_offset(topic, partition, Offset::Offset(offset))?;
        }
        consumer.commit(&committed, CommitMode::Sync)?;
        Ok(records)
    }

    pub fn join(&self, group: &str, topic: &str) -> Outcome<Member> {
        let shared = Arc::new(Shared::default());
        let consumer: BaseConsumer<Assignments> =
            self.consumer_configuration(group).create_with_context(Assignments(shared.clone()))?;
        consumer.subscribe(&[topic])?;
        let thread = thread::spawn({
            let shared = shared.clone();
            move || consume_until_stopped(&consumer, &shared)
        });
        Ok(Member { shared, thread: Some(thread) })
    }

    /// Idempotent with acks=all: number n as text to partition n % partitions.
    pub fn produce_numbers(&self, topic: &str, partitions: usize) -> Outcome<NumberedProducer> {
        let deliveries = Deliveries::default();
        let mut configuration = self.configuration();
        configuration.set("enable.idempotence", "true").set("linger.ms", "5");
        let producer: ThreadedProducer<Deliveries> = configuration.create_with_context(deliveries.clone())?;
        let stopping = Arc::new(AtomicBool::new(false));
        let thread = thread::spawn({
            let (topic, stopping) = (topic.to_owned(), stopping.clone());
            move || send_numbers(&producer, &topic, partitions, &stopping)
        });
        Ok(NumberedProducer { deliveries, stopping, thread })
    }
}

/// The next record, if one comes soon. Errors that librdkafka retries by itself are not the case's concern.
fn next<C: ConsumerContext>(consumer: &BaseConsumer<C>) -> Outcome<Option<Record>> {
    match consumer.poll(POLL) {
        Some(Ok(message)) => Ok(Some(owned(&message))),
        Some(Err(error @ KafkaError::MessageConsumptionFatal(_))) => Err(error.into()),
        Some(Err(_)) | None => Ok(None),
    }
}

fn owned(message: &BorrowedMessage<'_>) -> Record {
    let headers = message.headers().map_or_else(Vec::new, |headers| {
        headers.iter().map(|header| (header.key.to_owned(), header.value.map(<[u8]>::to_vec))).collect()
    });
    Record {
        partition: message.partition(),
        offset: message.offset(),
        key: message.key().map(<[u8]>::to_vec),
        value: message.payload().map(<[u8]>::to_vec),
        headers,
        timestamp: message.timestamp().to_millis(),
    }
}

/// A group member that consumes and commits in a thread of its own until it is stopped.
pub struct Member {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<Outcome<()>>>,
}

#[derive(Default)]
struct Shared {
    assignment: Mutex<BTreeSet<i32>>,
    numbers: Mutex<Vec<usize>>,
    stopping: AtomicBool,
}

impl Member {
    pub fn assignment(&self) -> BTreeSet<i32> {
        self.shared.assignment.lock().unwrap().clone()
    }

    pub fn numbers(&self) -> Vec<usize> {
        self.shared.numbers.lock().unwrap().clone()
    }

    /// Fails when the member has ended by itself.
    pub fn check(&mut self) -> Outcome<()> {
        match &self.thread {
            Some(thread) if thread.is_finished() => self.stop(),
            _ => Ok(()),
        }
    }

    /// Leaves the group; what was delivered is committed.
    pub fn stop(&mut self) -> Outcome<()> {
        self.shared.stopping.store(true, Ordering::Relaxed);
        self.thread.take().map_or(Ok(()), |thread| thread.join().map_err(|_| "a member panicked")?)
    }
}

fn consume_until_stopped(consumer: &BaseConsumer<Assignments>, shared: &Shared) -> Outcome<()> {
    while !shared.stopping.load(Ordering::Relaxed) {
        let Some(record) = next(consumer)? else { continue };
        shared.numbers.lock().unwrap().push(record.number());
        // Everything that is here already is committed together.
        while let Some(Ok(message)) = consumer.poll(Duration::ZERO) {
            shared.numbers.lock().unwrap().push(owned(&message).number());
        }
        match consumer.commit_consumer_state(CommitMode::Sync).map_err(|error| (error.rdkafka_error_code(), error)) {
            Ok(()) => {}
            // A commit that a rebalance overtakes only means that the records come again.
            Err((
                Some(
                    RDKafkaErrorCode::RebalanceInProgress
                    | RDKafkaErrorCode::IllegalGeneration
                    | RDKafkaErrorCode::NoOffset,
                ),
                _,
            )) => {}
            Err((_, error)) => return Err(error.into()),
        }
    }
    Ok(())
}

struct Assignments(Arc<Shared>);

impl ClientContext for Assignments {}

impl ConsumerContext for Assignments {
    fn pre_rebalance(&self, _: &BaseConsumer<Self>, rebalance: &Rebalance<'_>) {
        if let Rebalance::Revoke(_) = rebalance {
            self.0.assignment.lock().unwrap().clear();
        }
    }

    fn post_rebalance(&self, _: &BaseConsumer<Self>, rebalance: &Rebalance<'_>) {
        if let Rebalance::Assign(partitions) = rebalance {
            *self.0.assignment.lock().unwrap() =
                partitions.elements().iter().map(|element| element.partition()).collect();
        }
    }
}

/// Which records were delivered, by number, and which were not.
#[derive(Clone, Default)]
struct Deliveries(Arc<DeliveryState>);

#[derive(Default)]
struct DeliveryState {
    acknowledged: Mutex<BTreeMap<i32, Vec<usize>>>,
    count: AtomicUsize,
    failures: Mutex<Vec<String>>,
}

impl Deliveries {
    fn failures(&self) -> Vec<String> {
        self.0.failures.lock().unwrap().clone()
    }
}

impl ClientContext for Deliveries {}

impl ProducerContext for Deliveries {
    type DeliveryOpaque = Box<usize>;

    fn delivery(&self, result: &DeliveryResult<'_>, number: Self::DeliveryOpaque) {
        match result {
            Ok(message) => {
                self.0.acknowledged.lock().unwrap().entry(message.partition()).or_default().push(*number);
                self.0.count.fetch_add(1, Ordering::Relaxed);
            }
            Err((error, _)) => self.0.failures.lock().unwrap().push(format!("{number}: {error}")),
        }
    }
}

/// Sends numbers in a thread of its own until it is stopped.
pub struct NumberedProducer {
    deliveries: Deliveries,
    stopping: Arc<AtomicBool>,
    thread: JoinHandle<Outcome<()>>,
}

impl NumberedProducer {
    pub fn await_more(&self, more: usize) -> Outcome<()> {
        let count = || self.deliveries.0.count.load(Ordering::Relaxed);
        let goal = count() + more;
        wait_until(&format!("{more} more acknowledgements"), || Ok(count() >= goal))
    }

    /// Flushes; the acknowledged numbers by partition.
    pub fn stop(self) -> Outcome<BTreeMap<i32, Vec<usize>>> {
        self.stopping.store(true, Ordering::Relaxed);
        self.thread.join().map_err(|_| "the producer panicked")??;
        match self.deliveries.failures().first() {
            None => Ok(self.deliveries.0.acknowledged.lock().unwrap().clone()),
            Some(failure) => Err(format!("a send failed: {failure}").into()),
        }
    }
}

fn send_numbers(
    producer: &ThreadedProducer<Deliveries>,
    topic: &str,
    partitions: usize,
    stopping: &AtomicBool,
) -> Outcome<()> {
    let mut number = 0;
    while !stopping.load(Ordering::Relaxed) {
        let text = number.to_string();
        let partition = i32::try_from(number % partitions)?;
        let record =
            BaseRecord::<[u8], str, _>::with_opaque_to(topic, Box::new(number)).partition(partition).payload(&text);
        producer.send(record).map_err(|(error, _)| error)?;
        number += 1;
        // About two thousand records a second, so that the topic stays small enough to read back.
        if number % 10 == 0 {
            thread::sleep(Duration::from_millis(5));
        }
    }
    producer.flush(STEP)?;
    Ok(())
}
