//! What the members of a consumer group put into the opaque bytes of JoinGroup and SyncGroup. The broker passes these
//! on unread, except that it must hand out something valid where the leader left a member without an assignment.

use bytes::Bytes;

use crate::kafka::message::Message;
use crate::kafka::wire::{DecodeError, KafkaString};
use crate::types::{GenerationId, PartitionIndex};

/// The protocol type of consumer groups.
pub const CONSUMER_PROTOCOL_TYPE: &str = "consumer";

/// An assignment of no partitions: version 0, no topics, null user data. A member that gets no bytes at all can't parse
/// them.
const EMPTY_ASSIGNMENT: [u8; 10] = [0, 0, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff];

/// An assignment of no partitions.
#[must_use]
pub fn empty_assignment() -> Bytes {
    Bytes::from_static(&EMPTY_ASSIGNMENT)
}

message! {
    /// What a member wants to read: the metadata of its protocols in JoinGroup.
    pub message ConsumerProtocolSubscription ["0-3", flexible "none"] {
        topics ["0+"]: Vec<KafkaString>,
        user_data ["0+", nullable "0+"]: Option<Bytes>,
        owned_partitions ["1+"]: Vec<OwnedPartitions>,
        generation_id ["2+"]: GenerationId = GenerationId(-1),
        rack_id ["3+", nullable "3+"]: Option<KafkaString>,
    }

    /// Partitions of one topic that the member has.
    pub struct OwnedPartitions {
        topic ["1+"]: KafkaString,
        partitions ["1+"]: Vec<PartitionIndex>,
    }
}

message! {
    /// What a member shall read.
    pub message ConsumerProtocolAssignment ["0-3", flexible "none"] {
        assigned_partitions ["0+"]: Vec<AssignedPartitions>,
        user_data ["0+", nullable "0+"]: Option<Bytes>,
    }

    /// Partitions of one topic that the member gets.
    pub struct AssignedPartitions {
        topic ["0+"]: KafkaString,
        partitions ["0+"]: Vec<PartitionIndex>,
    }
}

/// Reads bytes that start with the version of their schema.
pub fn decode_versioned<M: Message>(bytes: &Bytes) -> Result<M, DecodeError> {
    use crate::kafka::wire::Reader;
    let mut reader = Reader::new(bytes.clone(), 0, false);
    let within = |error: DecodeError| error.within(M::STRUCTURE.name, "version");
    let version = i16::from_be_bytes(reader.array().map_err(within)?);
    M::decode(reader.rest(), version)
}

/// Writes bytes that start with the version of their schema.
#[must_use]
pub fn encode_versioned<M: Message>(message: &M, version: i16) -> Bytes {
    let mut bytes = version.to_be_bytes().to_vec();
    bytes.extend_from_slice(&message.encode_joined(version));
    bytes.into()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]
    use super::*;

    #[test]
    fn empty_assignment_is_a_valid_one() {
        assert_eq!(encode_versioned(&ConsumerProtocolAssignment::default(), 0), empty_assignment());
        let read = decode_versioned::<ConsumerProtocolAssignment>(&empty_assignment()).unwrap();
        assert_eq!(read, ConsumerProtocolAssignment::default());
    }

    #[test]
    fn subscriptions_keep_what_their_version_has() {
        let subscription = ConsumerProtocolSubscription {
            topics: vec!["a".into(), "b".into()],
            owned_partitions: vec![OwnedPartitions { topic: "a".into(), partitions: vec![PartitionIndex(3)] }],
            generation_id: GenerationId(7),
            rack_id: Some("r".into()),
            ..Default::default()
        };
        assert_eq!(decode_versioned(&encode_versioned(&subscription, 3)), Ok(subscription.clone()));
        let v0 = ConsumerProtocolSubscription { topics: subscription.topics.clone(), ..Default::default() };
        assert_eq!(decode_versioned(&encode_versioned(&subscription, 0)), Ok(v0));
    }
}
