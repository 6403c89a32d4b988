//! The consumer: reads all partitions of the current topic, and judges what it reads.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::Ordering;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use kaas_proto::kafka::ErrorCode;
use kaas_proto::kafka::messages::fetch::{FetchPartition, FetchTopic, PartitionData};
use kaas_proto::kafka::messages::{FetchRequest, FetchResponse};
use kaas_proto::record::{Batches, RecordSet};
use kaas_proto::types::{Offset, PartitionIndex, TopicId};

use super::producer::value_of;
use super::{Shared, lock};
use crate::client::Client;

/// With topic ids.
const VERSION: i16 = 13;
/// Between two rounds.
const PAUSE: Duration = Duration::from_millis(20);
/// A leader that does not answer in this time is asked again on another connection.
const PATIENCE: Duration = Duration::from_secs(1);
/// Of one batch, decompressed.
const MAX_BATCH_BYTES: usize = 1 << 20;

/// Consumes until the load stops.
pub(super) fn run(shared: &Shared) {
    let mut connections: BTreeMap<SocketAddr, Client> = BTreeMap::new();
    while !shared.stopping() {
        begin_again_if_asked(shared);
        let mut by_leader: BTreeMap<SocketAddr, (TopicId, Vec<i32>)> = BTreeMap::new();
        for (partition, leader) in lock(&shared.leaders).all() {
            by_leader.entry(leader.address).or_insert((leader.topic, Vec::new())).1.push(partition);
        }
        connections.retain(|address, _| by_leader.contains_key(address));
        for (address, (topic, partitions)) in by_leader {
            let client = connections.remove(&address).map_or_else(|| Client::connect(address), Ok);
            let fetched = client.and_then(|mut client| {
                client.stream().set_read_timeout(Some(PATIENCE))?;
                Ok((client.call(VERSION, &request(shared, topic, &partitions))?, client))
            });
            // A leader that is gone is replaced; who it is then is told by metadata.
            if let Ok((response, client)) = fetched {
                connections.insert(address, client);
                take(shared, topic, &response);
            }
        }
        std::thread::sleep(PAUSE);
    }
}

/// Nothing is being fetched meanwhile, which would be judged by where it is to go on then.
fn begin_again_if_asked(shared: &Shared) {
    if shared.again.load(Ordering::SeqCst) {
        lock(&shared.consumed).clear();
        shared.again.store(false, Ordering::SeqCst);
    }
}

fn request(shared: &Shared, topic: TopicId, partitions: &[i32]) -> FetchRequest {
    let consumed = lock(&shared.consumed);
    let partition = |&partition: &i32| FetchPartition {
        partition: PartitionIndex(partition),
        fetch_offset: consumed.get(&(topic, partition)).copied().unwrap_or(Offset(0)),
        partition_max_bytes: 1 << 20,
        ..Default::default()
    };
    let partitions = partitions.iter().map(partition).collect();
    let topics = vec![FetchTopic { topic_id: topic, partitions, ..Default::default() }];
    FetchRequest { max_wait_ms: 0, min_bytes: 1, max_bytes: 50 << 20, topics, ..FetchRequest::default() }
}

fn take(shared: &Shared, topic: TopicId, response: &FetchResponse) {
    for row in response.responses.iter().flat_map(|topic| &topic.partitions) {
        let partition = row.partition_index.0;
        let mut consumed = lock(&shared.consumed);
        let next = consumed.entry((topic, partition)).or_insert(Offset(0));
        if let Err(error) = judge(topic, row, next) {
            let next = *next;
            drop(consumed);
            shared.violation(format!("partition {partition} of {topic}, read at {next}: {error:#}"));
        }
    }
}

/// Moves `next` behind the records of a row, if they are those that are due.
fn judge(topic: TopicId, row: &PartitionData, next: &mut Offset) -> Result<()> {
    match row.error_code {
        ErrorCode::None => {}
        ErrorCode::OffsetOutOfRange => bail!("out of range: {}..{}", row.log_start_offset, row.high_watermark),
        // Somebody else leads, or the topic is gone.
        _ => return Ok(()),
    }
    let joined = row.records.parts().concat();
    for batch in Batches::new(&joined) {
        let records = RecordSet::read(batch?, MAX_BATCH_BYTES)?;
        for record in records.iter() {
            let record = record?;
            let offset = records.offset(&record);
            if offset < *next {
                continue;
            }
            ensure!(offset == *next, "the next record is at {offset}");
            let key = std::str::from_utf8(record.key.context("a record has a key")?)?;
            ensure!(key.parse() == Ok(offset.0), "record {key} is at offset {offset}");
            let value = record.value.unwrap_or_default();
            ensure!(value == value_of(topic, row.partition_index.0), "of {:?}", String::from_utf8_lossy(value));
            *next = offset.plus(1);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

    use std::sync::Mutex;
    use std::sync::atomic::AtomicBool;

    use kaas_proto::kafka::messages::fetch::FetchableTopicResponse;
    use kaas_proto::record::BatchBuilder;
    use kaas_proto::types::TimestampMs;

    use super::super::leaders::Leaders;
    use super::*;

    const TOPIC: TopicId = TopicId([1; 16]);

    fn batch(base_offset: i64, numbers: &[i64], partition: i32) -> Vec<u8> {
        let mut builder = BatchBuilder::new().base_offset(Offset(base_offset));
        for number in numbers {
            let (key, value) = (number.to_string(), value_of(TOPIC, partition));
            builder.push(TimestampMs(1), Some(key.as_bytes()), Some(&value), &[]);
        }
        builder.build().to_vec()
    }

    /// Where the consumer goes on after it has read these batches from offset 2, or what it finds wrong.
    fn read(batches: &[Vec<u8>]) -> Result<i64, String> {
        let records = bytes::Bytes::from(batches.concat()).into();
        let row = PartitionData { records, ..PartitionData::default() };
        let mut next = Offset(2);
        judge(TOPIC, &row, &mut next).map_err(|error| error.to_string())?;
        Ok(next.0)
    }

    #[test]
    fn each_record_is_due_at_its_own_offset() {
        assert_eq!(read(&[]), Ok(2));
        assert_eq!(read(&[batch(2, &[2, 3], 0), batch(4, &[4], 0)]), Ok(5));
        assert_eq!(read(&[batch(1, &[1, 2], 0)]), Ok(3), "a batch begins before what was asked for");
        assert_eq!(read(&[batch(2, &[2], 0), batch(3, &[2], 0)]), Err("record 2 is at offset 3".to_owned()), "twice");
        assert_eq!(read(&[batch(2, &[3], 0), batch(3, &[2], 0)]), Err("record 3 is at offset 2".to_owned()), "order");
        assert_eq!(read(&[batch(2, &[3], 0)]), Err("record 3 is at offset 2".to_owned()), "one is lost");
        assert_eq!(read(&[batch(3, &[3], 0)]), Err("the next record is at 3".to_owned()), "offsets are left out");
        assert!(read(&[batch(2, &[2], 1)]).unwrap_err().starts_with("of "), "another partition's");
    }

    #[test]
    fn what_was_read_does_not_get_out_of_range() {
        let row = |error_code| PartitionData { error_code, ..PartitionData::default() };
        assert!(judge(TOPIC, &row(ErrorCode::OffsetOutOfRange), &mut Offset(2)).is_err());
        assert!(judge(TOPIC, &row(ErrorCode::NotLeaderOrFollower), &mut Offset(2)).is_ok());
    }

    /// Where a consumer that was at offset 4 is after it has begun again and read these batches, and whether all was well.
    fn read_again(batches: &[Vec<u8>]) -> (i64, bool) {
        let shared = Shared {
            stop: AtomicBool::new(false),
            leaders: Mutex::new(Leaders::new(Vec::new())),
            partitions: Vec::new(),
            consumed: Mutex::new([((TOPIC, 0), Offset(4))].into()),
            again: AtomicBool::new(true),
            violations: Mutex::default(),
        };
        begin_again_if_asked(&shared);
        assert!(!shared.again.load(Ordering::SeqCst));
        let records = bytes::Bytes::from(batches.concat()).into();
        let partitions = vec![PartitionData { records, ..PartitionData::default() }];
        let responses = vec![FetchableTopicResponse { topic_id: TOPIC, partitions, ..Default::default() }];
        take(&shared, TOPIC, &FetchResponse { responses, ..FetchResponse::default() });
        let (next, violations) = (lock(&shared.consumed)[&(TOPIC, 0)], lock(&shared.violations));
        (next.0, violations.is_empty())
    }

    #[test]
    fn what_is_lost_after_it_was_read_is_missed() {
        assert_eq!(read_again(&[batch(0, &[0, 1], 0), batch(2, &[2, 3], 0)]), (4, true));
        assert_eq!(read_again(&[batch(0, &[0], 0), batch(2, &[2, 3], 0)]), (1, false), "one in between");
        assert_eq!(read_again(&[batch(0, &[0, 1], 0)]), (2, true), "the last ones: they are waited for in vain");
        assert_eq!(read_again(&[batch(0, &[0, 2], 0)]), (1, false), "another one in its place");
    }
}
