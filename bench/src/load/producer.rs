//! The producer's part for one partition: one record after the other, each until it is acknowledged.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use bytes::Bytes;
use kaas_proto::kafka::ErrorCode;
use kaas_proto::kafka::messages::ProduceRequest;
use kaas_proto::kafka::messages::produce::{PartitionProduceData, TopicProduceData};
use kaas_proto::record::BatchBuilder;
use kaas_proto::types::{PartitionIndex, ProducerEpoch, ProducerId, TimestampMs, TopicId};

use super::leaders::Leader;
use super::{Shared, lock};
use crate::client::Client;

/// With topic ids.
const VERSION: i16 = 13;
/// Between a record and the next one.
const PACE: Duration = Duration::from_millis(5);
/// After an answer that was none.
const PAUSE: Duration = Duration::from_millis(5);
/// How often somebody who waits for an answer looks whether another broker leads by now.
const LOOK: Duration = Duration::from_millis(20);
/// A request that gets no answer for so long is sent again.
const PATIENCE: Duration = Duration::from_secs(2);

/// The identity of a producer.
type Identity = (ProducerId, ProducerEpoch);

/// The key says which record of the partition it is, the value which partition of which topic.
pub(super) fn value_of(topic: TopicId, partition: i32) -> Vec<u8> {
    format!("{topic} {partition}").into_bytes()
}

fn batch(identity: Identity, topic: TopicId, partition: i32, number: i64) -> Result<Bytes> {
    let time = TimestampMs(1_700_000_000_000 + number);
    let (key, value) = (number.to_string(), value_of(topic, partition));
    let builder = BatchBuilder::new().producer(identity.0, identity.1, i32::try_from(number)?);
    Ok(builder.record(time, Some(key.as_bytes()), Some(&value)).build())
}

/// Produces until the load stops or finds a violation.
pub(super) fn run(shared: &Shared, identity: Identity, partition: i32) {
    let progress = usize::try_from(partition).ok().and_then(|index| shared.partitions.get(index));
    let Some(progress) = progress else { return };
    let mut connection: Option<(Leader, Client)> = None;
    let (mut topic, mut number) = (None, 0);
    while !shared.stopping() {
        let leader = lock(&shared.leaders).of(partition);
        let Some(leader) = leader else {
            std::thread::sleep(PAUSE);
            continue;
        };
        if topic != Some(leader.topic) {
            (topic, number) = (Some(leader.topic), 0);
            let mut progress = lock(progress);
            (progress.topic, progress.acknowledged) = (topic, 0);
        }
        let client = match connection.take() {
            Some((same, client)) if same == leader => Ok(client),
            _ => Client::connect(leader.address),
        };
        let done = client.and_then(|mut client| {
            let outcome = produce(shared, &mut client, identity, leader, partition, number)?;
            Ok((outcome, client))
        });
        match done {
            Ok((Outcome::Acknowledged, client)) => {
                number += 1;
                connection = Some((leader, client));
                acknowledge(&mut lock(progress), number);
                std::thread::sleep(PACE);
            }
            Ok((Outcome::Refused(error), client)) => {
                connection = Some((leader, client));
                lock(progress).obstacle = format!("{leader:?}: {error:?}");
                std::thread::sleep(PAUSE);
            }
            Ok((Outcome::Violation(what), _)) => {
                shared.violation(format!("partition {partition}, record {number}, {leader:?}: {what}"));
                return;
            }
            Err(error) => {
                lock(progress).obstacle = format!("{leader:?}: {error:#}");
                std::thread::sleep(PAUSE);
            }
        }
    }
}

fn acknowledge(progress: &mut super::Progress, acknowledged: i64) {
    let now = Instant::now();
    let (waited, obstacle) = (now - progress.last, std::mem::take(&mut progress.obstacle));
    if waited > progress.longest {
        (progress.longest, progress.longest_obstacle) = (waited, obstacle);
    }
    progress.last = now;
    progress.acknowledged = acknowledged;
    progress.total += 1;
}

enum Outcome {
    Acknowledged,
    /// To be tried again.
    Refused(ErrorCode),
    Violation(String),
}

/// One attempt. An error leaves open whether the record was appended.
fn produce(
    shared: &Shared,
    client: &mut Client,
    identity: Identity,
    leader: Leader,
    partition: i32,
    number: i64,
) -> Result<Outcome> {
    let records = batch(identity, leader.topic, partition, number)?.into();
    let data = PartitionProduceData { index: PartitionIndex(partition), records };
    let data = TopicProduceData { topic_id: leader.topic, partition_data: vec![data], ..Default::default() };
    let request = ProduceRequest { acks: -1, timeout_ms: 30_000, topic_data: vec![data], ..ProduceRequest::default() };
    client.send(VERSION, &request)?;
    let began = Instant::now();
    while !client.wait_for_answer(LOOK)? {
        let now = lock(&shared.leaders).of(partition);
        if now != Some(leader) || began.elapsed() > PATIENCE || shared.stopping() {
            bail!("no answer for {:?}; the leader is {now:?}", began.elapsed());
        }
    }
    let response = client.receive::<ProduceRequest>(VERSION)?;
    let row = response.responses.first().and_then(|topic| topic.partition_responses.first()).context("a row")?;
    Ok(match row.error_code {
        ErrorCode::None if row.base_offset.0 == number => Outcome::Acknowledged,
        ErrorCode::None => Outcome::Violation(format!("acknowledged at offset {}", row.base_offset)),
        ErrorCode::DuplicateSequenceNumber => Outcome::Acknowledged,
        error @ (ErrorCode::OutOfOrderSequenceNumber
        | ErrorCode::UnknownProducerId
        | ErrorCode::InvalidProducerEpoch
        | ErrorCode::CorruptMessage
        | ErrorCode::InvalidRecord) => Outcome::Violation(format!("{error:?} {:?}", row.error_message)),
        error => Outcome::Refused(error),
    })
}
