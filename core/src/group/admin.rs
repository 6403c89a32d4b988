//! What administrators ask of a slot: list, describe, delete.

use kaas_proto::kafka::messages::ListGroupsRequest;
use kaas_proto::kafka::messages::delete_groups::DeletableGroupResult;
use kaas_proto::kafka::messages::describe_groups::DescribedGroup;
use kaas_proto::kafka::messages::list_groups::ListedGroup;
use tokio::sync::oneshot;

use super::answer;
use super::error::GroupError;
use super::ids::{GroupId, ProtocolName};
use super::journal::{Then, Write};
use super::ledger::DurableGroup;
use super::phase::GroupState;
use super::record::SlotRecord;
use super::slot::Slot;

/// The type of the groups of this protocol in ListGroups.
const GROUP_TYPE: &str = "classic";

impl Slot {
    /// The groups that pass the filters. Names of states and types are compared without regard to case.
    pub(super) fn list(&self, request: &ListGroupsRequest) -> Vec<ListedGroup> {
        let passes = |filter: &[kaas_proto::kafka::KafkaString], value: &str| {
            filter.is_empty() || filter.iter().any(|name| name.eq_ignore_ascii_case(value))
        };
        if !passes(&request.types_filter, GROUP_TYPE) {
            return Vec::new();
        }
        let live = self.live_groups().map(|(id, group)| (id, group.state(), group.protocol_type()));
        let at_rest = self.ledger.groups().filter(|(id, _)| self.live_group(id).is_none());
        let at_rest = at_rest.map(|(id, durable)| (id, GroupState::Empty, protocol_type(durable)));
        let groups = live.chain(at_rest).filter(|(_, state, _)| passes(&request.states_filter, state.as_str()));
        groups
            .map(|(id, state, protocol_type)| ListedGroup {
                group_id: id.as_str().into(),
                protocol_type: protocol_type.map(|name| name.as_str().into()).unwrap_or_default(),
                group_state: state.as_str().into(),
                group_type: GROUP_TYPE.into(),
            })
            .collect()
    }

    pub(super) fn describe(&self, group_id: &str, version: i16) -> DescribedGroup {
        let id = GroupId::from(group_id);
        match (self.live_group(&id), self.ledger.group(&id)) {
            (Some(group), _) => answer::described(group),
            (None, Some(durable)) => DescribedGroup {
                group_id: group_id.into(),
                group_state: GroupState::Empty.as_str().into(),
                protocol_type: protocol_type(durable).map(|name| name.as_str().into()).unwrap_or_default(),
                ..DescribedGroup::default()
            },
            (None, None) => answer::described_absence(group_id, version),
        }
    }

    /// Deletes a group without members, with its offsets. Answered when that is durable.
    pub(super) fn delete(&mut self, group_id: &str, reply: oneshot::Sender<DeletableGroupResult>) {
        let id = GroupId::from(group_id);
        let refusal = match self.live_group(&id).map(|group| group.state()) {
            _ if !self.exists(&id) => Some(GroupError::GroupIdNotFound),
            _ if self.deleting.contains(&id) => Some(GroupError::CoordinatorNotAvailable),
            Some(GroupState::Empty) | None => None,
            Some(_) => Some(GroupError::NonEmptyGroup),
        };
        if let Some(error) = refusal {
            let _ = reply.send(answer::deleted(&id, Err(error)));
            return;
        }
        self.deleting.insert(id.clone());
        let records = vec![SlotRecord::GroupDeleted { group: id.clone() }];
        self.journal.push(Write { group: id, records, then: Then::DeleteGroup { reply: Some(reply) } });
    }
}

fn protocol_type(durable: &DurableGroup) -> Option<&ProtocolName> {
    durable.metadata.as_ref()?.protocol_type.as_ref()
}
