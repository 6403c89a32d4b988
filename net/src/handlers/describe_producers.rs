//! DescribeProducers 0: the producers that partitions remember (KIP-664).
//!
//! As in Kafka.

use kaas_core::partition::error::LookupError;
use kaas_core::shard::operation::{ActiveProducer, DescribeProducers, ShardOperation};
use kaas_proto::kafka::messages::describe_producers::{
    DescribeProducersRequest, DescribeProducersResponse, PartitionResponse, ProducerState, TopicResponse,
};

use crate::context::{Call, Handle};
use crate::leaders::{self, Asked};

impl Handle for DescribeProducersRequest {
    async fn handle(self, call: &Call) -> DescribeProducersResponse {
        let questions = self
            .topics
            .iter()
            .flat_map(|topic| topic.partition_indexes.iter().map(|index| Asked::by_name(&topic.name, *index, ())));
        let operation = |partitions: Vec<(_, ())>, reply| {
            let partitions = partitions.into_iter().map(|(partition, ())| partition).collect();
            ShardOperation::DescribeProducers(DescribeProducers { partitions, reply })
        };
        let answers = leaders::ask::<(), Vec<ActiveProducer>, LookupError>(call, questions.collect(), operation).await;
        let mut answers = answers.into_iter();
        let topics = self.topics.into_iter().map(|topic| {
            let partitions = topic.partition_indexes.into_iter().map(|partition_index| {
                match answers.next().expect("one answer per question") {
                    Ok(producers) => PartitionResponse {
                        partition_index,
                        active_producers: producers.into_iter().map(state).collect(),
                        ..Default::default()
                    },
                    Err(refusal) => PartitionResponse {
                        partition_index,
                        error_code: refusal.code,
                        error_message: Some(refusal.message.into()),
                        ..Default::default()
                    },
                }
            });
            TopicResponse { partitions: partitions.collect(), name: topic.name }
        });
        DescribeProducersResponse { topics: topics.collect(), ..Default::default() }
    }
}

fn state(producer: ActiveProducer) -> ProducerState {
    ProducerState {
        producer_id: producer.producer_id,
        producer_epoch: i32::from(producer.producer_epoch.0),
        last_sequence: producer.last_sequence,
        last_timestamp: producer.last_timestamp,
        coordinator_epoch: producer.coordinator_epoch,
        current_txn_start_offset: producer.current_transaction_start_offset,
    }
}
