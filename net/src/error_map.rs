//! The one map from what a shard refuses to the codes that clients know. Exhaustive: a new refusal does not compile
//! until it has a code.

use kaas_core::partition::error::{
    AppendError, DeleteRecordsError, FetchError, LookupError, NotLeading, ProducerIdError,
};
use kaas_proto::kafka::ErrorCode;

/// A refusal and its code.
pub(crate) trait ErrorCodeOf {
    fn code(&self) -> ErrorCode;
}

impl ErrorCodeOf for NotLeading {
    fn code(&self) -> ErrorCode {
        match self {
            // Look the leader up again and retry there.
            Self::NotHere | Self::Superseded { .. } | Self::Gone { .. } => ErrorCode::NotLeaderOrFollower,
            // Retry here, soon.
            Self::TakingOver => ErrorCode::LeaderNotAvailable,
            Self::Failed { .. } => ErrorCode::KafkaStorageError,
            Self::FencedLeaderEpoch { .. } => ErrorCode::FencedLeaderEpoch,
            Self::UnknownLeaderEpoch { .. } => ErrorCode::UnknownLeaderEpoch,
        }
    }
}

impl ErrorCodeOf for AppendError {
    fn code(&self) -> ErrorCode {
        match self {
            Self::NotLeading(error) => error.code(),
            Self::Storage(_) | Self::VolumeFull | Self::Stalled => ErrorCode::KafkaStorageError,
            Self::QueueFull => ErrorCode::RequestTimedOut,
            Self::TooLarge { .. } => ErrorCode::MessageTooLarge,
            Self::InvalidRecord(_) | Self::MissingKey { .. } => ErrorCode::InvalidRecord,
            Self::InvalidTimestamp => ErrorCode::InvalidTimestamp,
            Self::OutOfOrderSequence { .. } => ErrorCode::OutOfOrderSequenceNumber,
            Self::InvalidProducerEpoch => ErrorCode::InvalidProducerEpoch,
            // Not retried by the producer itself: its application aborts, and may begin again later.
            Self::TooManyTransactions => ErrorCode::PolicyViolation,
        }
    }
}

impl ErrorCodeOf for FetchError {
    fn code(&self) -> ErrorCode {
        match self {
            Self::NotLeading(error) => error.code(),
            Self::OffsetOutOfRange { .. } => ErrorCode::OffsetOutOfRange,
            Self::Storage(_) => ErrorCode::KafkaStorageError,
        }
    }
}

impl ErrorCodeOf for LookupError {
    fn code(&self) -> ErrorCode {
        match self {
            Self::NotLeading(error) => error.code(),
            Self::Storage(_) => ErrorCode::KafkaStorageError,
        }
    }
}

impl ErrorCodeOf for DeleteRecordsError {
    fn code(&self) -> ErrorCode {
        match self {
            Self::NotLeading(error) => error.code(),
            Self::OffsetOutOfRange { .. } => ErrorCode::OffsetOutOfRange,
            Self::Storage(_) => ErrorCode::KafkaStorageError,
            Self::Compacted => ErrorCode::PolicyViolation,
        }
    }
}

impl ErrorCodeOf for ProducerIdError {
    fn code(&self) -> ErrorCode {
        match self {
            // Clients of InitProducerId retry this one; a storage error would be fatal to them.
            Self::Storage(_) => ErrorCode::CoordinatorNotAvailable,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use kaas_proto::types::{LeaderEpoch, Offset};

    use super::*;

    #[test]
    fn every_refusal_has_its_code() {
        let text = || Arc::from("text");
        let (older, newer) = (LeaderEpoch(1), LeaderEpoch(2));
        let (low, high) = (Offset(1), Offset(9));
        let leading: &[(NotLeading, i16)] = &[
            (NotLeading::NotHere, 6),
            (NotLeading::TakingOver, 5),
            (NotLeading::Superseded { by: text() }, 6),
            (NotLeading::Gone { what: text() }, 6),
            (NotLeading::Failed { reason: text() }, 56),
            (NotLeading::FencedLeaderEpoch { client: older, current: newer }, 74),
            (NotLeading::UnknownLeaderEpoch { client: newer, current: older }, 75),
        ];
        for (error, code) in leading {
            assert_eq!(error.code().code(), *code, "{error}");
            assert_eq!(AppendError::from(error.clone()).code().code(), *code);
            assert_eq!(FetchError::from(error.clone()).code().code(), *code);
            assert_eq!(LookupError::from(error.clone()).code().code(), *code);
            assert_eq!(DeleteRecordsError::from(error.clone()).code().code(), *code);
        }
        let rows: &[(&dyn ErrorCodeOf, i16)] = &[
            (&AppendError::Storage(text()), 56),
            (&AppendError::VolumeFull, 56),
            (&AppendError::Stalled, 56),
            (&AppendError::QueueFull, 7),
            (&AppendError::TooLarge { size: 2, limit: 1 }, 10),
            (&AppendError::InvalidRecord(text()), 87),
            (&AppendError::MissingKey { index: 0 }, 87),
            (&AppendError::InvalidTimestamp, 32),
            (&AppendError::OutOfOrderSequence { expected: 1, got: 3 }, 45),
            (&AppendError::InvalidProducerEpoch, 47),
            (&AppendError::TooManyTransactions, 44),
            (&FetchError::OffsetOutOfRange { offset: high, log_start: low, end: low }, 1),
            (&FetchError::Storage(text()), 56),
            (&LookupError::Storage(text()), 56),
            (&DeleteRecordsError::OffsetOutOfRange { offset: high, high_watermark: low }, 1),
            (&DeleteRecordsError::Storage(text()), 56),
            (&DeleteRecordsError::Compacted, 44),
            (&ProducerIdError::Storage(text()), 15),
        ];
        for (position, (error, code)) in rows.iter().enumerate() {
            assert_eq!(error.code().code(), *code, "row {position}");
        }
    }
}
