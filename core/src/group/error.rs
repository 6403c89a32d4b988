//! Why the coordinator refuses.

use kaas_proto::kafka::ErrorCode;
use thiserror::Error;

/// What a group request is refused with; each variant is one Kafka error code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum GroupError {
    /// This broker does not lead the group's slot (any more): find the coordinator again.
    #[error("this broker does not coordinate the group")]
    NotCoordinator,
    /// The slot's log is being replayed.
    #[error("the coordinator is loading the group")]
    CoordinatorLoadInProgress,
    /// Nothing can be stored right now, or the group is just being deleted: try again.
    #[error("the coordinator can't serve the group right now")]
    CoordinatorNotAvailable,
    #[error("the group id is empty")]
    InvalidGroupId,
    #[error("the session timeout is outside group.min.session.timeout.ms and group.max.session.timeout.ms")]
    InvalidSessionTimeout,
    #[error("the group does not know the member")]
    UnknownMemberId,
    /// KIP-394: the member joins once more with the id that comes with this error.
    #[error("the member has to join with the id that it was given")]
    MemberIdRequired,
    #[error("another member has taken over the group.instance.id")]
    FencedInstanceId,
    #[error("the generation is not the group's current one")]
    IllegalGeneration,
    #[error("the group is rebalancing, the member has to join again")]
    RebalanceInProgress,
    #[error("the member's protocols don't fit the group's")]
    InconsistentGroupProtocol,
    #[error("the group has group.max.size members")]
    GroupMaxSizeReached,
    #[error("the group has members")]
    NonEmptyGroup,
    #[error("there is no such group")]
    GroupIdNotFound,
    #[error("the group subscribes to the topic")]
    GroupSubscribedToTopic,
    #[error("the metadata of the offset is longer than offset.metadata.max.bytes")]
    OffsetMetadataTooLarge,
    #[error("the coordinator holds as many offsets as it may")]
    InvalidCommitOffsetSize,
    /// Membership that doesn't fit a record. Kafka answers this case with UNKNOWN_SERVER_ERROR.
    #[error("the group's subscriptions and assignments are too large")]
    MembershipTooLarge,
}

impl From<GroupError> for ErrorCode {
    fn from(error: GroupError) -> Self {
        match error {
            GroupError::NotCoordinator => Self::NotCoordinator,
            GroupError::CoordinatorLoadInProgress => Self::CoordinatorLoadInProgress,
            GroupError::CoordinatorNotAvailable => Self::CoordinatorNotAvailable,
            GroupError::InvalidGroupId => Self::InvalidGroupId,
            GroupError::InvalidSessionTimeout => Self::InvalidSessionTimeout,
            GroupError::UnknownMemberId => Self::UnknownMemberId,
            GroupError::MemberIdRequired => Self::MemberIdRequired,
            GroupError::FencedInstanceId => Self::FencedInstanceId,
            GroupError::IllegalGeneration => Self::IllegalGeneration,
            GroupError::RebalanceInProgress => Self::RebalanceInProgress,
            GroupError::InconsistentGroupProtocol => Self::InconsistentGroupProtocol,
            GroupError::GroupMaxSizeReached => Self::GroupMaxSizeReached,
            GroupError::NonEmptyGroup => Self::NonEmptyGroup,
            GroupError::GroupIdNotFound => Self::GroupIdNotFound,
            GroupError::GroupSubscribedToTopic => Self::GroupSubscribedToTopic,
            GroupError::OffsetMetadataTooLarge => Self::OffsetMetadataTooLarge,
            GroupError::InvalidCommitOffsetSize => Self::InvalidCommitOffsetSize,
            GroupError::MembershipTooLarge => Self::UnknownServerError,
        }
    }
}
