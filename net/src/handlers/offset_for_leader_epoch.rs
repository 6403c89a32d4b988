//! OffsetForLeaderEpoch 2–4: where an epoch ended, from the partition's chain of epochs (KIP-320).
//!
//! A consumer that was away while the leader changed asks it before it goes on. The answer is the largest epoch not above
//! the wanted one and its end offset, both -1 if there is none. As in Kafka; `replica_id` is ignored.

use kaas_core::shard::operation::{OffsetForLeaderEpoch, ShardOperation};
use kaas_proto::kafka::messages::offset_for_leader_epoch::{
    EpochEndOffset, OffsetForLeaderEpochRequest, OffsetForLeaderEpochResponse, OffsetForLeaderTopicResult,
};
use kaas_proto::types::LeaderEpoch;

use crate::context::{Call, Handle};
use crate::leaders::{self, Asked};

impl Handle for OffsetForLeaderEpochRequest {
    async fn handle(self, call: &Call) -> OffsetForLeaderEpochResponse {
        let questions = self.topics.iter().flat_map(|topic| {
            topic.partitions.iter().map(|partition| {
                let current = Some(partition.current_leader_epoch).filter(|epoch| epoch.0 >= 0);
                Asked::by_name(&topic.topic, partition.partition, (partition.leader_epoch, current))
            })
        });
        let operation = |partitions: Vec<(_, (LeaderEpoch, Option<LeaderEpoch>))>, reply| {
            let flat = |(partition, (wanted, current))| (partition, wanted, current);
            let partitions = partitions.into_iter().map(flat).collect();
            ShardOperation::OffsetForLeaderEpoch(OffsetForLeaderEpoch { partitions, reply })
        };
        let mut answers = leaders::ask(call, questions.collect(), operation).await.into_iter();
        let topics = self.topics.into_iter().map(|topic| {
            let partitions = topic.partitions.into_iter().map(|partition| {
                let row = EpochEndOffset { partition: partition.partition, ..Default::default() };
                match answers.next().expect("one answer per question") {
                    Ok((leader_epoch, end_offset)) => EpochEndOffset { leader_epoch, end_offset, ..row },
                    Err(refusal) => EpochEndOffset { error_code: refusal.code, ..row },
                }
            });
            OffsetForLeaderTopicResult { partitions: partitions.collect(), topic: topic.topic }
        });
        OffsetForLeaderEpochResponse { topics: topics.collect(), ..Default::default() }
    }
}
