//! Handing a partition over in good order: drain, persist, close. Also abandoning it: close, persist nothing.
//!
//! The two stay apart. A relinquish is a change of leaders, and what it persists spares the next one work. An abandon
//! follows the deletion of a topic: whatever it wrote could land in the directory of a topic created anew.

use std::io;
use std::rc::Rc;
use std::time::Duration;

use futures_lite::future;
use kaas_proto::types::Offset;
use tracing::warn;

use super::leader::Leader;
use crate::env::{Env, Volume, is_gone};
use crate::format::manifest::Manifest;
use crate::format::partition_file::PartitionFile;
use crate::log::led_log::{EndOfLog, STALL_LIMIT};
use crate::log::persist::ReplaceError;

/// How long a partition that is handed over waits for its writes, and to persist what it knows.
const FAREWELL_LIMIT: Duration = STALL_LIMIT;

impl<E: Env> Leader<E> {
    /// Stops accepting, waits until everything queued is acknowledged, persists and closes. A leader that was superseded,
    /// or whose epoch ended by a failure, writes nothing and closes.
    ///
    /// `interrupted` completes when a newer command makes all of this pointless. A volume that hangs does so too: the next leader
    /// recovers as after a crash, and what is under way may land then, under names of this epoch.
    pub(super) async fn relinquish(self: &Rc<Self>, interrupted: impl Future<Output = ()>) {
        self.stop_accepting();
        let patience = async {
            self.context.env().sleep(FAREWELL_LIMIT).await;
            self.context.log.counters.farewells_cut_short.add(1);
            if self.context.log.may_log("relinquish_failed") {
                warn!(directory = %self.log().directory().display(), "relinquishing without persisting: the volume hangs");
            }
        };
        future::or(self.hand_over(), future::or(interrupted, patience)).await;
        self.close();
    }

    async fn hand_over(&self) {
        self.log().at_rest().await;
        let drained = !self.log().has_ended() && self.log().log_end() == self.log().high_watermark();
        if drained {
            let _permit = self.context.farewells.wait(self.key()).await;
            // The last look: if somebody else has taken over, even hints are theirs to write.
            if self.log().ask().await.is_ok()
                && let Err(error) = self.persist().await
                && self.context.log.may_log("relinquish_failed")
            {
                // The next leader recovers as after a crash.
                warn!(directory = %self.log().directory().display(), %error, "relinquishing without persisting");
            }
        }
    }

    async fn persist(&self) -> io::Result<()> {
        self.checkpoint_at_end().await?;
        let mut manifest = self.manifest.lock().await;
        // Whoever held it may have learned that somebody else leads.
        if self.log().has_ended() {
            return Ok(());
        }
        // A log start that was recorded stays recorded, also if nobody was told yet.
        let relinquished =
            Manifest { high_watermark: self.log().high_watermark(), relinquished: true, ..manifest.clone() };
        self.write_manifest(&relinquished).await?;
        *manifest = relinquished;
        Ok(())
    }

    /// Replaces the own manifest, durably.
    pub(super) async fn write_manifest(&self, manifest: &Manifest) -> io::Result<()> {
        self.replace_own(PartitionFile::Manifest(self.epoch()), manifest.encode()).await?;
        let synced = self.context.env().volume().sync_directory(self.log().directory()).await;
        synced.inspect_err(|error| self.outcome_unknown(error))
    }

    /// Replaces a file of the own epoch that the next leader relies on. If it may be replaced later, over what is written
    /// then, the epoch is over: nothing more is written under it.
    pub(super) async fn replace_own(&self, file: PartitionFile, content: Vec<u8>) -> io::Result<()> {
        match self.log().replace(file, content).await {
            Ok(()) => Ok(()),
            Err(ReplaceError::NotReplaced(error)) => Err(error),
            Err(ReplaceError::Unknown(error)) => {
                self.outcome_unknown(&error);
                Err(error)
            }
        }
    }

    fn outcome_unknown(&self, error: &io::Error) {
        if self.context.log.may_log("replace_failed") {
            warn!(directory = %self.log().directory().display(), %error, "a file may yet be replaced, the epoch ends");
        }
        let text = format!("a file can't be replaced: {error}").into();
        let is_gone = is_gone(error);
        self.log().end_with(if is_gone { EndOfLog::Gone { what: text } } else { EndOfLog::Failed { reason: text } });
    }

    /// Fails what waits and lets go of every handle; writes nothing. What is under way may still land.
    pub(super) fn close(&self) {
        self.stop_accepting();
        self.log().end_with(EndOfLog::Closed);
        self.log().close_handles();
    }

    /// What producers need of the records below `offset`, then the manifest without them.
    async fn write_log_start(&self, manifest: &Manifest, offset: Offset) -> Result<Manifest, EndOfLog> {
        self.keep_producers_below(offset).await?;
        let changed = Manifest {
            high_watermark: self.log().high_watermark(),
            log_start_offset: offset,
            chain: manifest.chain.trim(offset),
            ..manifest.clone()
        };
        let written = self.write_manifest(&changed).await;
        written.map_err(|error| EndOfLog::not_written("the manifest", &error))?;
        Ok(changed)
    }

    /// On a full volume without a reserve: gives up the indexes of segments below `offset`, which are to go with them anyway, so that there is
    /// room to say so. True if there were any.
    async fn make_room(&self, offset: Offset) -> Result<bool, EndOfLog> {
        self.log().ask().await?;
        let volume = self.context.env().volume();
        let mut made_room = false;
        for segment in self.log().segments() {
            if segment.end.get().is_some_and(|end| end <= offset) {
                made_room |= volume.unlink(&self.log().directory().join(segment.name.index())).await.is_ok();
            }
        }
        Ok(made_room)
    }

    /// Makes a higher log start durable, then asks whether that still counts.
    ///
    /// # Errors
    /// It is not known to be durable, or was not ours to decide.
    pub(super) async fn record_log_start(&self, offset: Offset) -> Result<(), EndOfLog> {
        let mut manifest = self.manifest.lock().await;
        if offset <= manifest.log_start_offset {
            return self.log().end().map_or(Ok(()), Err);
        }
        if let Some(end) = self.log().end() {
            return Err(end);
        }
        let mut written = self.write_log_start(&manifest, offset).await;
        let lacks_room = written == Err(EndOfLog::VolumeFull);
        if lacks_room && (self.context.log.make_room(self.key()).await || self.make_room(offset).await?) {
            written = self.write_log_start(&manifest, offset).await;
        }
        if matches!(written, Err(EndOfLog::Gone { .. })) {
            self.log().ask().await?;
        }
        let changed = written?;
        let chain = changed.chain.clone();
        *manifest = changed;
        self.log().ask().await?;
        self.set_chain(chain);
        self.log().raise_log_start(offset);
        self.transactions.borrow_mut().forget_below(offset);
        Ok(())
    }
}
