//! Checkpoints while leading: so that a takeover after a crash reads little.
//!
//! Every [`CHECKPOINT_BYTES`] of log, or what the shard is told, the state of producers and transactions is captured. It
//! counts batches that are not acknowledged yet, so it is written only once the high watermark has reached what it counts: a
//! snapshot never speaks of records that might not be there. The checkpoint names the last end of a commit that is not behind
//! the snapshot.
//!
//! So what recovery reads is at most: what is appended between two captures, a commit, and what is appended while a checkpoint
//! is being written, behind everything urgent.
//!
//! Order: producer snapshot, index, checkpoint. A checkpoint is useful only with a snapshot that is not older.

use std::cell::{Cell, RefCell};
use std::io;

use kaas_proto::types::Offset;
use tokio::sync::Mutex;
use tracing::warn;

use super::leader::Leader;
use super::snapshot::capture;
use crate::env::{Env, TaskClass};
use crate::format::checkpoint::Checkpoint;
use crate::format::partition_file::PartitionFile;
use crate::log::led_log::{EndOfLog, LogPosition};

/// Bytes of log between two captures, unless somebody says otherwise: half of what recovery may read.
pub const CHECKPOINT_BYTES: u64 = 32 << 20;
/// After a checkpoint that could not be written the next one comes after this part of the bytes.
const RETRY_PART: u64 = 8;

/// Shard-local; part of a leader.
#[derive(Debug, Default)]
pub struct Checkpointer {
    /// Bytes that were appended when the last one was captured.
    captured_at: Cell<u64>,
    pending: RefCell<Option<Pending>>,
    writing: Cell<bool>,
    /// What the records below it say of producers is durable, wherever they are by now. One writes at a time.
    covered: Mutex<Offset>,
}

impl Checkpointer {
    /// Begins with what the takeover has made durable.
    #[must_use]
    pub fn new(covered: Offset) -> Self {
        Self { covered: Mutex::new(covered), ..Self::default() }
    }

    fn try_again_soon(&self, checkpoint_bytes: u64) {
        let ahead = checkpoint_bytes - checkpoint_bytes / RETRY_PART;
        self.captured_at.set(self.captured_at.get().saturating_sub(ahead));
    }
}

#[derive(Debug)]
struct Captured {
    /// The offset that the snapshot holds for.
    offset: Offset,
    snapshot: Vec<u8>,
    /// How many transactions were forgotten because of compaction until then.
    forgotten: u64,
}

#[derive(Debug)]
struct Pending {
    captured: Captured,
    /// The last acknowledged end of a commit at or in front of that.
    position: LogPosition,
}

impl<E: Env> Leader<E> {
    /// Captures when enough was appended; writes what was captured when the high watermark has come that far.
    pub(super) fn checkpoint_if_due(&self, high_watermark: Offset) {
        let checkpointer = &self.checkpointer;
        if let (Some(pending), Some(position)) =
            (checkpointer.pending.borrow_mut().as_mut(), self.log().acknowledged_at())
            && position.offset <= pending.captured.offset
        {
            pending.position = position;
        }
        let is_ready =
            checkpointer.pending.borrow().as_ref().is_some_and(|pending| pending.captured.offset <= high_watermark);
        if is_ready && !checkpointer.writing.replace(true) {
            let pending = checkpointer.pending.take().expect("seen above");
            let leader = self.this();
            self.context.env().spawn(TaskClass::Background, async move {
                if let Err(error) = leader.write_checkpoint(&pending).await {
                    if leader.context.log.may_log("checkpoint_failed") {
                        warn!(directory = %leader.log().directory().display(), %error, "the checkpoint was not written");
                    }
                    leader.checkpointer.try_again_soon(leader.context.checkpoint_bytes);
                }
                leader.checkpointer.writing.set(false);
            });
        }
        let bytes = self.log().appended_bytes();
        if bytes - checkpointer.captured_at.get() >= self.context.checkpoint_bytes
            && checkpointer.pending.borrow().is_none()
            && let Some(position) = self.log().acknowledged_at()
        {
            checkpointer.captured_at.set(bytes);
            checkpointer.pending.replace(Some(Pending { captured: self.capture(), position }));
        }
    }

    fn capture(&self) -> Captured {
        let offset = self.log().log_end();
        let transactions = self.transactions.borrow();
        let snapshot = capture(offset, &self.producers.borrow(), &transactions).encode();
        Captured { offset, snapshot, forgotten: transactions.forgotten() }
    }

    async fn write_checkpoint(&self, pending: &Pending) -> io::Result<()> {
        if self.log().has_ended() || !self.write_snapshot(&pending.captured).await? {
            return Ok(());
        }
        let file = PartitionFile::Checkpoint(self.epoch());
        self.log().write_index_of_head().await;
        let LogPosition { segment, position, offset } = pending.position;
        let checkpoint = Checkpoint { segment, position, offset, high_watermark: self.log().high_watermark() };
        Ok(self.log().replace(file, checkpoint.encode()).await?)
    }

    /// Replaces the snapshot. False if a newer one is there already, or if it speaks of transactions that were forgotten
    /// since it was captured.
    async fn write_snapshot(&self, captured: &Captured) -> io::Result<bool> {
        let mut covered = self.checkpointer.covered.lock().await;
        if captured.offset < *covered || captured.forgotten < self.transactions.borrow().forgotten() {
            return Ok(false);
        }
        self.replace_own(PartitionFile::Producers(self.epoch()), captured.snapshot.clone()).await?;
        *covered = captured.offset;
        Ok(true)
    }

    /// Before records below `offset` go: what they say of producers has to stay, or a repeated batch would be taken for a new
    /// one by the next leader.
    ///
    /// # Errors
    /// The snapshot is not known to be there.
    pub(super) async fn keep_producers_below(&self, offset: Offset) -> Result<(), EndOfLog> {
        let nothing_to_keep = self.producers.borrow().is_empty() && self.transactions.borrow().is_empty();
        if nothing_to_keep || offset <= *self.checkpointer.covered.lock().await {
            return Ok(());
        }
        self.write_present_snapshot().await
    }

    /// Before markers of aborted transactions go, which were just forgotten: a successor must not restore them, as nothing
    /// would end them for a consumer.
    ///
    /// # Errors
    /// The snapshot is not known to be there.
    pub(super) async fn write_present_snapshot(&self) -> Result<(), EndOfLog> {
        loop {
            let captured = self.capture();
            self.log().acknowledged_to(captured.offset).await?;
            match self.write_snapshot(&captured).await {
                Ok(true) => return Ok(()),
                Ok(false) => {}
                Err(error) => return Err(EndOfLog::not_written("the producer snapshot", &error)),
            }
        }
    }

    /// Writes snapshot, index and checkpoint of a log that is at rest. Nothing, if nothing was appended in this epoch.
    pub(super) async fn checkpoint_at_end(&self) -> io::Result<()> {
        match self.log().acknowledged_at() {
            Some(position) => self.write_checkpoint(&Pending { captured: self.capture(), position }).await,
            None => Ok(()),
        }
    }
}
