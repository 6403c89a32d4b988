//! InitProducerId 0–5: an identity for an idempotent producer, never given out before. An old identity that the client
//! mentions (from version 3 on) is of no interest without a transactional id; half of one is INVALID_REQUEST.
//!
//! Differences from Kafka: there are no transactions yet. A transactional id is refused with
//! TRANSACTIONAL_ID_AUTHORIZATION_FAILED: the one code that makes all clients give up at once and say what it is about;
//! others are retried by librdkafka without end.

use kaas_core::shard::operation::{AllocateProducerId, ShardOperation};
use kaas_proto::kafka::ErrorCode;
use kaas_proto::kafka::messages::{InitProducerIdRequest, InitProducerIdResponse};
use kaas_proto::types::{ProducerEpoch, ShardId};

use crate::context::{Call, Handle};
use crate::error_map::ErrorCodeOf;

/// The shard that holds the broker's block of producer ids.
const ALLOCATOR: ShardId = ShardId(0);

impl Handle for InitProducerIdRequest {
    async fn handle(self, call: &Call) -> InitProducerIdResponse {
        match &self.transactional_id {
            None if (self.producer_id.0 == -1) != (self.producer_epoch.0 == -1) => {
                return refused(ErrorCode::InvalidRequest);
            }
            None => {}
            Some(id) if id.is_empty() => return refused(ErrorCode::InvalidRequest),
            Some(id) => {
                if call.shard.may_log("transactional_id") {
                    let peer = call.client.peer;
                    tracing::warn!(%peer, transactional_id = &**id,
                        "refused a transactional producer: kaas has no transactions yet");
                }
                return refused(ErrorCode::TransactionalIdAuthorizationFailed);
            }
        }
        let allocate = |reply| ShardOperation::AllocateProducerId(AllocateProducerId { reply });
        match call.shard.router.ask(ALLOCATOR, allocate).await {
            Some(Ok(producer_id)) => InitProducerIdResponse { producer_id, ..Default::default() },
            Some(Err(error)) => {
                if call.shard.may_log("no_producer_id") {
                    tracing::warn!(%error, "no producer id");
                }
                refused(error.code())
            }
            None => refused(ErrorCode::CoordinatorNotAvailable),
        }
    }
}

fn refused(error_code: ErrorCode) -> InitProducerIdResponse {
    InitProducerIdResponse { error_code, producer_epoch: ProducerEpoch(-1), ..Default::default() }
}
