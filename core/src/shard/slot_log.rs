//! A led coordinator slot as the log that its groups are kept in.

use std::rc::Rc;

use bytes::Bytes;
use kaas_proto::types::Offset;

use crate::env::Env;
use crate::group::slot_log::SlotLog;
use crate::log::read_progress::ReadProgress;
use crate::partition::error::{AppendError, DeleteRecordsError, FetchError};
use crate::partition::leader::Leader;

/// Shard-local; clones are the same log.
#[derive(Debug)]
pub(super) struct LeaderLog<E: Env>(Rc<Leader<E>>);

impl<E: Env> LeaderLog<E> {
    pub(super) fn new(leader: Rc<Leader<E>>) -> Self {
        Self(leader)
    }
}

impl<E: Env> Clone for LeaderLog<E> {
    fn clone(&self) -> Self {
        Self(Rc::clone(&self.0))
    }
}

impl<E: Env> SlotLog for LeaderLog<E> {
    fn append(&self, batch: Bytes) -> impl Future<Output = Result<Offset, AppendError>> + 'static {
        let appended = self.0.append_local(batch);
        async { appended.await.map(|appended| appended.base_offset) }
    }

    fn log_start(&self) -> Offset {
        self.0.log().log_start()
    }

    fn high_watermark(&self) -> Offset {
        self.0.log().high_watermark()
    }

    async fn read(&self, from: Offset, max_bytes: usize) -> Result<Vec<Bytes>, FetchError> {
        let mut progress = ReadProgress::new(from, self.high_watermark(), max_bytes, true);
        match self.0.log().read(&mut progress).await {
            Ok(()) => Ok(progress.parts),
            Err(error) => Err(FetchError::Storage(error.to_string().into())),
        }
    }

    async fn delete_records_below(&self, offset: Offset) -> Result<(), DeleteRecordsError> {
        self.0.raise_log_start(offset).await.map(drop)
    }
}
