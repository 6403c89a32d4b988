//! Groups that commit offsets to a coordinator slot: ever larger ones, one at a time.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use kaas_core::group::operation::GroupOperation;
use kaas_proto::kafka::ErrorCode;
use kaas_proto::kafka::messages::OffsetCommitRequest;
use kaas_proto::kafka::messages::offset_commit::{OffsetCommitRequestPartition, OffsetCommitRequestTopic};
use kaas_proto::kafka::messages::offset_fetch::OffsetFetchRequestGroup;
use kaas_proto::types::{GenerationId, Offset, PartitionIndex, SlotId, TopicId};
use tokio::sync::oneshot;

use super::broker::{Broker, slot};
use super::cluster::Cluster;
use super::rising::Rising;

/// Clones are the same group.
#[derive(Clone)]
pub struct Committer(Rc<State>);

struct State {
    group: String,
    cluster: Cluster,
    /// The last offset that was sent, and the last that was acknowledged.
    sent: Cell<i64>,
    acknowledged: Cell<i64>,
    is_sending: Cell<bool>,
    /// What leaders have shown as committed, or acknowledged; one more, so that 0 stands for nothing.
    shown: RefCell<Rising>,
}

impl Committer {
    /// Groups of the slot that the brokers lead.
    pub fn some(cluster: &Cluster, count: usize) -> Vec<Self> {
        let names = (0..).map(|number| format!("group {number}"));
        let here = names.filter(|name| SlotId::of(name) == slot()).take(count);
        here.map(|group| Self::new(cluster, group)).collect()
    }

    fn new(cluster: &Cluster, group: String) -> Self {
        Self(Rc::new(State {
            group,
            cluster: cluster.clone(),
            sent: Cell::new(-1),
            acknowledged: Cell::new(-1),
            is_sending: Cell::new(false),
            shown: RefCell::default(),
        }))
    }

    pub fn is_sending(&self) -> bool {
        self.0.is_sending.get()
    }

    /// Everything was acknowledged.
    pub fn is_done(&self) -> bool {
        !self.is_sending() && self.0.acknowledged.get() == self.0.sent.get()
    }

    /// Commits the next offset, once.
    pub fn commit(&self, broker: &Broker, padding: usize) {
        let state = &self.0;
        if state.is_sending.replace(true) {
            return;
        }
        let offset = state.sent.get() + 1;
        state.sent.set(offset);
        let partition = OffsetCommitRequestPartition {
            partition_index: PartitionIndex(0),
            committed_offset: Offset(offset),
            committed_metadata: Some("x".repeat(padding).as_str().into()),
            ..OffsetCommitRequestPartition::default()
        };
        let topic = OffsetCommitRequestTopic {
            name: "t".into(),
            topic_id: TopicId(*b"an id of a topic"),
            partitions: vec![partition],
        };
        let request = OffsetCommitRequest {
            group_id: state.group.as_str().into(),
            generation_id_or_member_epoch: GenerationId(-1),
            topics: vec![topic],
            ..OffsetCommitRequest::default()
        };
        let (reply, answer) = oneshot::channel();
        broker.group(GroupOperation::Commit { request, reply });
        let this = self.clone();
        state.cluster.spawn(async move {
            let code = answer.await.map(|answer| answer.topics[0].partitions[0].error_code);
            let Self(state) = &this;
            state.cluster.hear();
            state.cluster.simulation().note(format!("{} commits {offset}: {code:?}", state.group));
            if code == Ok(ErrorCode::None) {
                state.cluster.oracle(|oracle| oracle.acknowledged += 1);
                state.acknowledged.set(offset);
                let newest = state.cluster.oracle(|oracle| oracle.newest_epoch());
                state.shown.borrow_mut().promised(newest, offset + 1);
            }
            state.is_sending.set(false);
        });
    }

    /// Asks a broker for what is committed, and holds it against what is known. Whether it answered.
    pub async fn look(&self, broker: &Broker) -> bool {
        let state = &self.0;
        let Some(epoch) = broker.led.get() else { return false };
        let floor = state.shown.borrow().floor(epoch);
        let (reply, answer) = oneshot::channel();
        let group = OffsetFetchRequestGroup { group_id: state.group.as_str().into(), ..Default::default() };
        broker.group(GroupOperation::FetchOffsets { group, require_stable: true, reply });
        let Ok(answer) = answer.await else { return false };
        state.cluster.hear();
        // Of an answer it is known who gave it only if nothing has changed meanwhile.
        if answer.error_code != ErrorCode::None || broker.led.get() != Some(epoch) {
            return false;
        }
        state.cluster.oracle(|oracle| oracle.reads += 1);
        let committed = answer.topics.first().map_or(-1, |topic| topic.partitions[0].committed_offset.0);
        state.cluster.simulation().note(format!("epoch {epoch} shows {committed} for {}", state.group));
        let wrong = if committed > state.sent.get() {
            Some("nobody has committed it".to_owned())
        } else if committed + 1 < floor || !state.shown.borrow_mut().note(epoch, committed + 1) {
            Some(format!("before it was {}: {:?}", floor - 1, state.shown.borrow()))
        } else {
            None
        };
        if let Some(wrong) = wrong {
            let group = &state.group;
            state.cluster.oracle(|oracle| {
                oracle.violated(format!("epoch {epoch} shows offset {committed} for {group}, but {wrong}"));
            });
        }
        true
    }
}
