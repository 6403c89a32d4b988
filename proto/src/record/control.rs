//! Control batches: one record that ends a transaction.

use bytes::Bytes;

use super::batch::RecordBatchView;
use super::builder::BatchBuilder;
use super::record::{RecordError, RecordSet};
use crate::types::{ProducerEpoch, ProducerId, TimestampMs};

/// Key and value of a control record both start with this version.
const VERSION: i16 = 0;

/// A control record is a few bytes and never compressed.
const MAX_BYTES: usize = 4096;

/// How a transaction ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ControlRecordType {
    /// Its records are to be skipped.
    Abort,
    /// Its records count.
    Commit,
}

impl ControlRecordType {
    const fn code(self) -> i16 {
        match self {
            Self::Abort => 0,
            Self::Commit => 1,
        }
    }

    /// What a control batch says. `None` for a type that we do not know, which readers must pass over.
    pub fn of(batch: RecordBatchView<'_>) -> Result<Option<Self>, RecordError> {
        let records = RecordSet::read(batch, MAX_BYTES)?;
        let Some(record) = records.iter().next().transpose()? else { return Ok(None) };
        let Some(&[_, _, high, low]) = record.key.and_then(|key| key.first_chunk::<4>()) else { return Ok(None) };
        match i16::from_be_bytes([high, low]) {
            0 => Ok(Some(Self::Abort)),
            1 => Ok(Some(Self::Commit)),
            _ => Ok(None),
        }
    }

    /// The batch that ends a producer's transaction. It takes one offset like any record.
    #[must_use]
    pub fn batch(self, id: ProducerId, epoch: ProducerEpoch, coordinator_epoch: i32, now: TimestampMs) -> Bytes {
        let key = [VERSION.to_be_bytes(), self.code().to_be_bytes()].concat();
        let value = [&VERSION.to_be_bytes()[..], &coordinator_epoch.to_be_bytes()].concat();
        let batch = BatchBuilder::new().producer(id, epoch, -1).transactional().control();
        batch.record(now, Some(&key), Some(&value)).build()
    }
}
