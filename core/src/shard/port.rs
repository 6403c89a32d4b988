//! The two ways to a shard: straight in on its own thread, or through its bounded queue from another.

use std::rc::Rc;

use futures_lite::future::{self, Boxed};
use tokio::sync::mpsc;
use tokio::sync::mpsc::error::TrySendError;

use super::operation::{OPERATION_QUEUE_LENGTH, ShardOperation, ShardPort};

/// Another shard. Crosses threads; cheap to clone.
#[derive(Clone, Debug)]
pub struct ShardHandle(mpsc::Sender<ShardOperation>);

/// The queue of a shard: one end for everybody else, one for itself.
#[must_use]
pub fn queue() -> (ShardHandle, mpsc::Receiver<ShardOperation>) {
    let (sender, receiver) = mpsc::channel(OPERATION_QUEUE_LENGTH);
    (ShardHandle(sender), receiver)
}

impl ShardPort for ShardHandle {
    fn submit(&self, operation: ShardOperation) -> Result<(), ShardOperation> {
        match self.0.try_send(operation) {
            // A shard that is gone drops the operation, and with it the reply: the caller learns of it there.
            Ok(()) | Err(TrySendError::Closed(_)) => Ok(()),
            Err(TrySendError::Full(operation)) => Err(operation),
        }
    }

    fn has_room(&self) -> Boxed<()> {
        let sender = self.0.clone();
        // The permit goes back at once: it only shows that there is one. A closed queue takes everything.
        Box::pin(async move { drop(sender.reserve().await) })
    }
}

/// This shard, on its own thread.
#[derive(Clone)]
pub struct LocalPort(Rc<dyn Fn(ShardOperation)>);

impl LocalPort {
    /// `submit` carries an operation out as far as order matters.
    #[must_use]
    pub fn new(submit: impl Fn(ShardOperation) + 'static) -> Self {
        Self(Rc::new(submit))
    }
}

impl std::fmt::Debug for LocalPort {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("LocalPort")
    }
}

impl ShardPort for LocalPort {
    fn submit(&self, operation: ShardOperation) -> Result<(), ShardOperation> {
        (self.0)(operation);
        Ok(())
    }

    fn has_room(&self) -> Boxed<()> {
        Box::pin(future::ready(()))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]
    use std::cell::Cell;

    use tokio::sync::oneshot;

    use super::*;
    use crate::shard::operation::AllocateProducerId;

    fn operation() -> ShardOperation {
        ShardOperation::AllocateProducerId(AllocateProducerId { reply: oneshot::channel().0 })
    }

    #[test]
    fn a_full_queue_gives_the_operation_back_until_there_is_room() {
        let (handle, mut receiver) = queue();
        for _ in 0..OPERATION_QUEUE_LENGTH {
            handle.submit(operation()).unwrap();
        }
        let refused = handle.submit(operation()).unwrap_err();
        let mut has_room = handle.has_room();
        assert_eq!(future::block_on(future::poll_once(&mut has_room)), None);
        receiver.try_recv().unwrap();
        future::block_on(has_room);
        handle.submit(refused).unwrap();
    }

    #[test]
    fn a_shard_that_is_gone_drops_the_reply() {
        let (handle, receiver) = queue();
        drop(receiver);
        let (reply, mut answer) = oneshot::channel();
        handle.submit(ShardOperation::AllocateProducerId(AllocateProducerId { reply })).unwrap();
        assert_eq!(answer.try_recv(), Err(oneshot::error::TryRecvError::Closed));
        future::block_on(handle.has_room());
    }

    #[test]
    fn the_own_shard_is_called_at_once() {
        let calls = Rc::new(Cell::new(0));
        let port = LocalPort::new({
            let calls = Rc::clone(&calls);
            move |_| calls.set(calls.get() + 1)
        });
        port.submit(operation()).unwrap();
        assert_eq!(calls.get(), 1);
        future::block_on(port.has_room());
    }
}
