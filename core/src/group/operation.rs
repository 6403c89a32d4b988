//! What a request handler asks of the coordinator of a group.

use std::collections::BTreeSet;
use std::sync::Arc;

use kaas_proto::kafka::ErrorCode;
use kaas_proto::kafka::messages::delete_groups::DeletableGroupResult;
use kaas_proto::kafka::messages::describe_groups::DescribedGroup;
use kaas_proto::kafka::messages::list_groups::ListedGroup;
use kaas_proto::kafka::messages::offset_fetch::{OffsetFetchRequestGroup, OffsetFetchResponseGroup};
use kaas_proto::kafka::messages::{
    HeartbeatRequest, HeartbeatResponse, JoinGroupRequest, JoinGroupResponse, LeaveGroupRequest, LeaveGroupResponse,
    ListGroupsRequest, OffsetCommitRequest, OffsetCommitResponse, OffsetDeleteRequest, OffsetDeleteResponse,
    SyncGroupRequest, SyncGroupResponse,
};
use kaas_proto::types::TopicId;
use tokio::sync::oneshot;

/// Who asks, for member ids, logs and DescribeGroups.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientIdentity {
    pub client_id: String,
    /// `/` and the address, as Kafka shows it.
    pub host: String,
}

/// A request to the coordinator of a group; the shard that owns the group's slot answers it, NOT_COORDINATOR included.
/// Crosses shards.
///
/// Requests that name several groups are split by slot before they come here. Topics carry both their name and their
/// id, whichever the client gave: the connection's shard resolves one from the other, and answers for unknown topics.
/// Answers carry both again.
#[derive(Debug)]
pub enum GroupOperation {
    Join {
        request: JoinGroupRequest,
        version: i16,
        client: ClientIdentity,
        reply: oneshot::Sender<JoinGroupResponse>,
    },
    Sync {
        request: SyncGroupRequest,
        reply: oneshot::Sender<SyncGroupResponse>,
    },
    Heartbeat {
        request: HeartbeatRequest,
        reply: oneshot::Sender<HeartbeatResponse>,
    },
    /// Versions below 3, which name one member outside the list and have the error on top, are understood.
    Leave {
        request: LeaveGroupRequest,
        version: i16,
        reply: oneshot::Sender<LeaveGroupResponse>,
    },
    Commit {
        request: OffsetCommitRequest,
        reply: oneshot::Sender<OffsetCommitResponse>,
    },
    /// One group of an OffsetFetch, in the form of version 8 and above.
    FetchOffsets {
        group: OffsetFetchRequestGroup,
        require_stable: bool,
        reply: oneshot::Sender<OffsetFetchResponseGroup>,
    },
    DeleteOffsets {
        request: OffsetDeleteRequest,
        reply: oneshot::Sender<OffsetDeleteResponse>,
    },
    /// All groups of this shard's slots that pass the filters, or COORDINATOR_LOAD_IN_PROGRESS.
    List {
        request: ListGroupsRequest,
        reply: oneshot::Sender<Result<Vec<ListedGroup>, ErrorCode>>,
    },
    /// Version 6 answers GROUP_ID_NOT_FOUND where earlier ones show a group in state Dead.
    Describe {
        group_id: String,
        version: i16,
        reply: oneshot::Sender<DescribedGroup>,
    },
    Delete {
        group_id: String,
        reply: oneshot::Sender<DeletableGroupResult>,
    },
    /// Topics that are gone: their committed offsets are dropped. By id, so that nothing of a topic that was created
    /// anew under the same name is lost.
    ForgetTopics {
        topics: Vec<TopicId>,
    },
    /// All topics that there are: offsets of others are dropped, if they were committed longer ago than
    /// [`GONE_TOPIC_AGE`](kaas_proto::control::GONE_TOPIC_AGE). Slots that are being loaded stay as they are.
    RetainTopics {
        topics: Arc<BTreeSet<TopicId>>,
    },
}
