//! Checkpoints while leading: so that a takeover after a crash reads little.
//!
//! Every [`CHECKPOINT_BYTES`] of log the state of producers and transactions is captured, together with the last
//! acknowledged end of the log. The captured state counts batches that are not acknowledged yet, so it is written only once
//! the high watermark has reached what it counts: a snapshot never speaks of records that might not be there.
//!
//! Order: producer snapshot, index, checkpoint. A checkpoint is useful only with a snapshot that is not older.

use std::cell::{Cell, RefCell};
use std::io;

use kaas_proto::types::Offset;
use tracing::warn;

use super::leader::Leader;
use super::snapshot::capture;
use crate::env::{Env, TaskClass};
use crate::format::checkpoint::Checkpoint;
use crate::format::partition_file::PartitionFile;
use crate::log::led_log::LogPosition;
use crate::log::persist;

/// Recovery reads at most about twice this much.
pub const CHECKPOINT_BYTES: u64 = 16 << 20;

/// Shard-local; part of a leader.
#[derive(Debug, Default)]
pub struct Checkpointer {
    /// Acknowledged bytes when the last one was captured.
    captured_at: Cell<u64>,
    pending: RefCell<Option<Pending>>,
    writing: Cell<bool>,
}

#[derive(Debug)]
struct Pending {
    /// The offset that the snapshot holds for.
    offset: Offset,
    snapshot: Vec<u8>,
    position: LogPosition,
}

impl<E: Env> Leader<E> {
    /// Captures when enough was appended; writes what was captured when the high watermark has come that far.
    pub(super) fn checkpoint_if_due(&self, high_watermark: Offset) {
        let checkpointer = &self.checkpointer;
        let is_ready = checkpointer.pending.borrow().as_ref().is_some_and(|pending| pending.offset <= high_watermark);
        if is_ready && !checkpointer.writing.replace(true) {
            let pending = checkpointer.pending.take().expect("seen above");
            let leader = self.this();
            self.context.env().spawn(TaskClass::Background, async move {
                if let Err(error) = leader.write_checkpoint(&pending).await {
                    warn!(directory = %leader.log().directory().display(), %error, "the checkpoint was not written");
                }
                leader.checkpointer.writing.set(false);
            });
        }
        let bytes = self.log().acknowledged_bytes();
        if bytes - checkpointer.captured_at.get() >= CHECKPOINT_BYTES
            && checkpointer.pending.borrow().is_none()
            && let Some(position) = self.log().acknowledged_at()
        {
            checkpointer.captured_at.set(bytes);
            checkpointer.pending.replace(Some(self.captured(position)));
        }
    }

    fn captured(&self, position: LogPosition) -> Pending {
        let offset = self.log().log_end();
        let snapshot = capture(offset, &self.producers.borrow(), &self.transactions.borrow()).encode();
        Pending { offset, snapshot, position }
    }

    async fn write_checkpoint(&self, pending: &Pending) -> io::Result<()> {
        if self.log().has_ended() {
            return Ok(());
        }
        let (env, directory, epoch) = (self.context.env(), self.log().directory(), self.epoch());
        let producers = PartitionFile::Producers(epoch).to_string();
        persist::replace(env, directory, &producers, pending.snapshot.clone()).await?;
        self.log().write_index_of_head().await;
        let LogPosition { segment, position, offset } = pending.position;
        let checkpoint = Checkpoint { segment, position, offset, high_watermark: self.log().high_watermark() };
        let name = PartitionFile::Checkpoint(epoch).to_string();
        persist::replace(env, directory, &name, checkpoint.encode()).await
    }

    /// Writes snapshot, index and checkpoint of a log that is at rest. Nothing, if nothing was appended in this epoch.
    pub(super) async fn checkpoint_at_end(&self) -> io::Result<()> {
        match self.log().acknowledged_at() {
            Some(position) => self.write_checkpoint(&self.captured(position)).await,
            None => Ok(()),
        }
    }
}
