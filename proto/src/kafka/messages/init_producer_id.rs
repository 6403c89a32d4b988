//! InitProducerId: gives an idempotent or transactional producer its identity.

use crate::kafka::error_code::ErrorCode;
use crate::kafka::wire::KafkaString;
use crate::types::{ProducerEpoch, ProducerId};

message! {
    /// Asks for a producer id.
    pub message InitProducerIdRequest ["0-6", flexible "2+"] {
        transactional_id ["0+", nullable "0+"]: Option<KafkaString>,
        transaction_timeout_ms ["0+"]: i32,
        producer_id ["3+"]: ProducerId = ProducerId(-1),
        producer_epoch ["3+"]: ProducerEpoch = ProducerEpoch(-1),
        enable_2pc ["6+"]: bool,
        keep_prepared_txn ["6+"]: bool,
    }
}

message! {
    /// The producer id and epoch.
    pub message InitProducerIdResponse ["0-6", flexible "2+"] {
        throttle_time_ms ["0+"]: i32,
        error_code ["0+"]: ErrorCode,
        producer_id ["0+"]: ProducerId = ProducerId(-1),
        producer_epoch ["0+"]: ProducerEpoch,
        ongoing_txn_producer_id ["6+"]: ProducerId = ProducerId(-1),
        ongoing_txn_producer_epoch ["6+"]: ProducerEpoch = ProducerEpoch(-1),
    }
}
