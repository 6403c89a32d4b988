//! Requests to the coordinator of a group: to the shard that owns the group's slot, if this broker leads it.

use kaas_core::shard::operation::{GroupOperation, ShardOperation};
use kaas_proto::kafka::ErrorCode;
use kaas_proto::types::SlotId;
use tokio::sync::oneshot;

use crate::cluster;
use crate::context::Call;

/// An answer that was asked for and is still to come.
#[derive(Debug)]
pub(crate) struct Answer<R>(Result<oneshot::Receiver<R>, ErrorCode>);

impl<R> Answer<R> {
    /// The answer, or why this broker has none.
    pub(crate) async fn get(self) -> Result<R, ErrorCode> {
        // A shard that ends hands its slots over: the client looks for the new coordinator.
        self.0?.await.map_err(|_| ErrorCode::NotCoordinator)
    }
}

/// Puts a question to the coordinator of a group, without waiting for the answer.
pub(crate) async fn submit<R>(
    call: &Call,
    group_id: &str,
    operation: impl FnOnce(oneshot::Sender<R>) -> GroupOperation,
) -> Answer<R> {
    let slot = SlotId::of(group_id);
    if let Err(code) = cluster::slot_here(&call.view(), slot) {
        return Answer(Err(code));
    }
    let (reply, answer) = oneshot::channel();
    let router = &call.shard.router;
    router.submit(router.slot_owner(slot), ShardOperation::Group(Box::new(operation(reply)))).await;
    Answer(Ok(answer))
}

/// Puts a question to the coordinator of a group.
pub(crate) async fn ask<R>(
    call: &Call,
    group_id: &str,
    operation: impl FnOnce(oneshot::Sender<R>) -> GroupOperation,
) -> Result<R, ErrorCode> {
    submit(call, group_id, operation).await.get().await
}
