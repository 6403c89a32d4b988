//! ListOffsets 1–11: offsets by time, and the special ones.
//!
//! -1 latest (last stable offset if read_committed, else high watermark), -2 earliest, -3 the record with the largest
//! timestamp (from version 7 on), -4 earliest on local storage (8), -5 latest in tiered storage (9), -6 earliest not yet
//! uploaded (11). A time finds the first record at or after it; offset and timestamp are -1 if there is none. Leader
//! epochs are checked and returned from version 4 on.
//!
//! Differences from Kafka: there is no tiered storage, so -4 is -2, and -5 and -6 find nothing. `replica_id` is ignored.

use std::collections::HashSet;

use kaas_core::shard::operation::{FoundOffset, IsolationLevel, ListOffsets, OffsetQuery, ShardOperation};
use kaas_proto::kafka::messages::list_offsets::{
    ListOffsetsPartition, ListOffsetsPartitionResponse, ListOffsetsRequest, ListOffsetsResponse,
    ListOffsetsTopicResponse,
};
use kaas_proto::kafka::{ErrorCode, KafkaString};
use kaas_proto::types::{LeaderEpoch, PartitionIndex, TimestampMs};

use crate::context::{Call, Handle};
use crate::leaders::{self, Asked, Refusal};

/// What a timestamp means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Meaning {
    Query(OffsetQuery),
    /// Something that does not exist here.
    Nothing,
    /// Not in this version of the request.
    Unsupported,
}

fn meaning(timestamp: TimestampMs, version: i16) -> Meaning {
    let since = |first: i16, meaning| if version >= first { meaning } else { Meaning::Unsupported };
    match timestamp.0 {
        -1 => Meaning::Query(OffsetQuery::Latest),
        -2 => Meaning::Query(OffsetQuery::Earliest),
        -3 => since(7, Meaning::Query(OffsetQuery::MaxTimestamp)),
        -4 => since(8, Meaning::Query(OffsetQuery::Earliest)),
        -5 => since(9, Meaning::Nothing),
        -6 => since(11, Meaning::Nothing),
        ..-6 => Meaning::Unsupported,
        0.. => Meaning::Query(OffsetQuery::AtOrAfter(timestamp)),
    }
}

type Question = (OffsetQuery, Option<LeaderEpoch>);

impl Handle for ListOffsetsRequest {
    async fn handle(self, call: &Call) -> ListOffsetsResponse {
        let isolation =
            if self.isolation_level == 1 { IsolationLevel::ReadCommitted } else { IsolationLevel::ReadUncommitted };
        let mut seen = HashSet::new();
        let mut questions: Vec<Asked<Question>> = Vec::new();
        let mut topics = Vec::with_capacity(self.topics.len());
        for topic in self.topics {
            let mut rows = Vec::with_capacity(topic.partitions.len());
            for partition in topic.partitions {
                let first = seen.insert((topic.name.clone(), partition.partition_index));
                rows.push((partition.partition_index, sort(&topic.name, &partition, first, call, &mut questions)));
            }
            topics.push((topic.name, rows));
        }
        let operation = |partitions: Vec<(_, Question)>, reply| {
            let flat = |(partition, (query, epoch))| (partition, query, epoch);
            let partitions = partitions.into_iter().map(flat).collect();
            ShardOperation::ListOffsets(ListOffsets { isolation, partitions, reply })
        };
        let mut answers = leaders::ask(call, questions, operation).await.into_iter();
        let mut answer = |index, row: Row| {
            let found = match row {
                Row::Done(code) => Err(code),
                Row::Asked => answers.next().expect("one answer per question").map_err(|refusal: Refusal| refusal.code),
            };
            partition_response(index, found)
        };
        let topics = topics.into_iter().map(|(name, rows): (KafkaString, Vec<(PartitionIndex, Row)>)| {
            let partitions = rows.into_iter().map(|(index, row)| answer(index, row)).collect();
            ListOffsetsTopicResponse { name, partitions }
        });
        ListOffsetsResponse { topics: topics.collect(), ..Default::default() }
    }
}

/// A row of the response before the shards were asked.
enum Row {
    Done(ErrorCode),
    Asked,
}

fn sort(
    topic: &KafkaString,
    partition: &ListOffsetsPartition,
    first: bool,
    call: &Call,
    questions: &mut Vec<Asked<Question>>,
) -> Row {
    if !first {
        return Row::Done(ErrorCode::InvalidRequest);
    }
    match meaning(partition.timestamp, call.version) {
        Meaning::Query(query) => {
            let epoch = Some(partition.current_leader_epoch).filter(|epoch| epoch.0 >= 0);
            questions.push(Asked::by_name(topic, partition.partition_index, (query, epoch)));
            Row::Asked
        }
        Meaning::Nothing => Row::Done(ErrorCode::None),
        Meaning::Unsupported => Row::Done(ErrorCode::UnsupportedVersion),
    }
}

fn partition_response(
    partition_index: PartitionIndex,
    found: Result<FoundOffset, ErrorCode>,
) -> ListOffsetsPartitionResponse {
    match found {
        Ok(FoundOffset { offset, timestamp, leader_epoch }) => ListOffsetsPartitionResponse {
            partition_index,
            error_code: ErrorCode::None,
            timestamp,
            offset,
            leader_epoch,
        },
        Err(error_code) => ListOffsetsPartitionResponse { partition_index, error_code, ..Default::default() },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn special_times_exist_from_their_versions_on() {
        let of = |timestamp, version| meaning(TimestampMs(timestamp), version);
        assert_eq!(of(-1, 1), Meaning::Query(OffsetQuery::Latest));
        assert_eq!(of(-2, 1), Meaning::Query(OffsetQuery::Earliest));
        assert_eq!(of(-3, 6), Meaning::Unsupported);
        assert_eq!(of(-3, 7), Meaning::Query(OffsetQuery::MaxTimestamp));
        assert_eq!(of(-4, 8), Meaning::Query(OffsetQuery::Earliest));
        assert_eq!((of(-5, 8), of(-5, 9)), (Meaning::Unsupported, Meaning::Nothing));
        assert_eq!((of(-6, 10), of(-6, 11)), (Meaning::Unsupported, Meaning::Nothing));
        assert_eq!(of(-7, 11), Meaning::Unsupported);
        assert_eq!(of(0, 1), Meaning::Query(OffsetQuery::AtOrAfter(TimestampMs(0))));
    }
}
