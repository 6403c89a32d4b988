//! DeleteRecords 0–2: raises log start offsets, durably before the answer.
//!
//! Offset -1 means up to the high watermark; beyond it is OFFSET_OUT_OF_RANGE. A topic whose `cleanup.policy` lacks
//! `delete` is POLICY_VIOLATION, one with the name of one of Kafka's own INVALID_TOPIC_EXCEPTION. As in Kafka.

use kaas_core::partition::error::DeleteRecordsError;
use kaas_core::shard::operation::{DeleteRecords, ShardOperation};
use kaas_proto::kafka::ErrorCode;
use kaas_proto::kafka::messages::delete_records::{
    DeleteRecordsPartitionResult, DeleteRecordsRequest, DeleteRecordsResponse, DeleteRecordsTopicResult,
};
use kaas_proto::topic_name;
use kaas_proto::types::Offset;

use crate::context::{Call, Handle, admin_timeout};
use crate::deadline;
use crate::leaders::{self, Asked, Refusal};

impl Handle for DeleteRecordsRequest {
    async fn handle(self, call: &Call) -> DeleteRecordsResponse {
        let questions: Vec<Asked<Offset>> = self
            .topics
            .iter()
            .filter(|topic| !topic_name::is_internal(&topic.name))
            .flat_map(|topic| {
                let ask = |partition: &kaas_proto::kafka::messages::delete_records::DeleteRecordsPartition| {
                    Asked::by_name(&topic.name, partition.partition_index, partition.offset)
                };
                topic.partitions.iter().map(ask).collect::<Vec<_>>()
            })
            .collect();
        let count = questions.len();
        let operation = |partitions, reply| ShardOperation::DeleteRecords(DeleteRecords { partitions, reply });
        let asked = leaders::ask::<Offset, Offset, DeleteRecordsError>(call, questions, operation);
        let late = || vec![Err(Refusal::new(ErrorCode::RequestTimedOut, "it takes longer than the timeout")); count];
        let answers = deadline::within(admin_timeout(self.timeout_ms), asked).await.unwrap_or_else(late);
        let mut answers = answers.into_iter();
        let topics = self.topics.into_iter().map(|topic| {
            let internal = topic_name::is_internal(&topic.name);
            let partitions = topic.partitions.into_iter().map(|partition| {
                let answer = if internal {
                    Err(Refusal::new(ErrorCode::InvalidTopicException, "internal topics keep their records"))
                } else {
                    answers.next().expect("one answer per question")
                };
                DeleteRecordsPartitionResult {
                    partition_index: partition.partition_index,
                    error_code: answer.as_ref().err().map_or(ErrorCode::None, |refusal| refusal.code),
                    low_watermark: answer.unwrap_or(Offset(-1)),
                }
            });
            DeleteRecordsTopicResult { partitions: partitions.collect(), name: topic.name }
        });
        DeleteRecordsResponse { topics: topics.collect(), ..Default::default() }
    }
}
