//! Reading a slot's log, from its start to the end of what is durable.

use kaas_proto::record::{BatchError, Batches, RecordError, RecordSet};
use kaas_proto::types::Offset;
use thiserror::Error;

use super::ledger::Ledger;
use super::record::{SlotRecord, SlotRecordError};
use super::slot_log::SlotLog;
use crate::env::Env;
use crate::partition::error::FetchError;

/// How much of the log is in memory at a time.
const REPLAY_READ_BYTES: usize = 1 << 20;
/// More than any batch of a slot holds; these are never compressed.
const MAX_RECORDS_BYTES: usize = 64 << 20;

/// Why a slot can't be loaded.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ReplayError {
    #[error(transparent)]
    Read(#[from] FetchError),
    #[error("the log ends at {at}, the high watermark is {high_watermark}")]
    Short { at: Offset, high_watermark: Offset },
    #[error("the batch at {at} is broken: {error}")]
    Batch { at: Offset, error: BatchError },
    #[error("the records at {at} are broken: {error}")]
    Records { at: Offset, error: RecordError },
    #[error("the record at {at} can't be understood: {error}")]
    Record { at: Offset, error: SlotRecordError },
}

/// What a log says.
#[derive(Debug, Default)]
pub struct Replayed {
    pub ledger: Ledger,
    pub log_bytes: usize,
    pub records: u64,
}

/// Reads the whole log. Its memory is bounded by what the log says and one read.
///
/// # Errors
/// Reading failed, or the log is not one of ours.
pub async fn replay<E: Env, L: SlotLog>(env: &E, log: &L) -> Result<Replayed, ReplayError> {
    let mut replayed = Replayed::default();
    let (mut next, end) = (log.log_start(), log.high_watermark());
    while next < end {
        let chunks = log.read(next, REPLAY_READ_BYTES).await?;
        let before = next;
        for chunk in &chunks {
            replayed.log_bytes += chunk.len();
            next = replayed.take(chunk, next)?;
        }
        if next == before {
            return Err(ReplayError::Short { at: next, high_watermark: end });
        }
        env.yield_now().await;
    }
    Ok(replayed)
}

impl Replayed {
    /// Applies the batches of a chunk, as far as they lie at or above `next`. Returns where the next one begins.
    fn take(&mut self, chunk: &[u8], mut next: Offset) -> Result<Offset, ReplayError> {
        for batch in Batches::new(chunk) {
            let batch = batch.map_err(|error| ReplayError::Batch { at: next, error })?;
            batch.check_crc().map_err(|error| ReplayError::Batch { at: next, error })?;
            let broken = |error| ReplayError::Records { at: next, error };
            let records = RecordSet::read(batch, MAX_RECORDS_BYTES).map_err(broken)?;
            for record in &records {
                let record = record.map_err(broken)?;
                let at = records.offset(&record);
                if at < next {
                    continue;
                }
                let decoded =
                    SlotRecord::decode(record.key, record.value).map_err(|error| ReplayError::Record { at, error })?;
                self.ledger.apply(&decoded);
                self.records += 1;
            }
            next = next.max(batch.next_offset());
        }
        Ok(next)
    }
}
