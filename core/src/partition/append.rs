//! One decision per batch: may it be appended, is it a repetition, and what does the broker write into it?
//!
//! Pure. Structure, CRC and records were checked by the connection's shard; what depends on the topic and on the partition's state
//! is checked here, in the turn in which the batch gets its offset.

use kaas_proto::config::topic::{TimestampType, TopicConfig};
use kaas_proto::record::{ControlRecordType, RecordBatchView, RecordSet, Summary};
use kaas_proto::types::{Offset, TimestampMs};

use super::error::AppendError;
use super::producer_state::{ProducerTable, SequencedBatch, Verdict};
use super::transactions::{Outcome, TransactionIndex};
use crate::log::commit::{MAX_BATCH_BYTES, Stamp};

/// Who wrote a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// With what its records tell.
    Client(Summary),
    /// The broker itself: a coordinator's records, transaction markers. Not subject to the topic's limits.
    Broker,
}

/// What is to happen with a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    Append {
        stamp: Stamp,
        max_timestamp: TimestampMs,
    },
    /// It is in the log already: answer as then.
    Repeat(SequencedBatch),
}

/// Decides about a batch. Changes nothing.
///
/// # Errors
/// Why it is refused.
pub fn decide(
    batch: RecordBatchView<'_>,
    origin: Origin,
    config: &TopicConfig,
    producers: &ProducerTable,
    transactions: &TransactionIndex,
    now: TimestampMs,
) -> Result<Decision, AppendError> {
    if batch.size() > MAX_BATCH_BYTES {
        return Err(AppendError::TooLarge { size: batch.size(), limit: MAX_BATCH_BYTES });
    }
    let Origin::Client(summary) = origin else {
        return Ok(Decision::Append { stamp: Stamp::Nothing, max_timestamp: batch.max_timestamp() });
    };
    if batch.size() > config.max_message_bytes {
        return Err(AppendError::TooLarge { size: batch.size(), limit: config.max_message_bytes });
    }
    if batch.is_control() {
        return Err(AppendError::InvalidRecord("a client may not write a control batch".into()));
    }
    if batch.is_transactional() && !batch.has_producer_id() {
        return Err(AppendError::InvalidRecord("a transactional batch needs a producer id".into()));
    }
    if config.compact
        && let Some(index) = summary.first_keyless
    {
        return Err(AppendError::MissingKey { index });
    }
    let (stamp, max_timestamp) = stamp(batch, summary, config, now)?;
    if batch.has_producer_id()
        && let Verdict::Duplicate(original) = producers.check(batch)?
    {
        return Ok(Decision::Repeat(original));
    }
    if batch.is_transactional() && transactions.refuses(batch.producer_id()) {
        return Err(AppendError::TooManyTransactions);
    }
    Ok(Decision::Append { stamp, max_timestamp })
}

fn stamp(
    batch: RecordBatchView<'_>,
    summary: Summary,
    config: &TopicConfig,
    now: TimestampMs,
) -> Result<(Stamp, TimestampMs), AppendError> {
    if config.timestamp_type == TimestampType::LogAppendTime {
        return Ok((Stamp::LogAppendTime, now));
    }
    if batch.is_log_append_time() {
        return Err(AppendError::InvalidTimestamp);
    }
    let latest = now.0.saturating_add(config.timestamp_after_max_ms);
    let earliest = now.0.saturating_sub(config.timestamp_before_max_ms);
    if summary.latest.0 > latest || summary.earliest.is_some_and(|time| time.0 < earliest) {
        return Err(AppendError::InvalidTimestamp);
    }
    // What the header says counts for lookups and retention: it has to be what the records say.
    let stamp = if batch.max_timestamp() == summary.latest { Stamp::Nothing } else { Stamp::MaxTimestamp };
    Ok((stamp, summary.latest))
}

/// Takes note of a batch that has got its offset, or is found in the log by recovery. True if a producer was forgotten for it.
pub fn note(
    batch: RecordBatchView<'_>,
    base_offset: Offset,
    max_timestamp: TimestampMs,
    now: TimestampMs,
    producers: &mut ProducerTable,
    transactions: &mut TransactionIndex,
) -> bool {
    if !batch.has_producer_id() {
        return false;
    }
    let producer_id = batch.producer_id();
    if batch.is_control() {
        let keeps = |id| transactions.first_offset_of(id).is_some();
        let forgot = producers.marked(producer_id, batch.producer_epoch(), coordinator_epoch(batch), now, keeps);
        let outcome = match ControlRecordType::of(batch) {
            Ok(Some(ControlRecordType::Abort)) => Outcome::Aborted,
            Ok(Some(ControlRecordType::Commit)) => Outcome::Committed,
            // A type of a later version ends no transaction that we know of.
            Ok(None) | Err(_) => return forgot,
        };
        transactions.ended(producer_id, base_offset, outcome);
        forgot
    } else {
        let keeps = |id| transactions.first_offset_of(id).is_some();
        let forgot = producers.appended(batch, base_offset, max_timestamp, now, keeps);
        if batch.is_transactional() {
            transactions.begun(producer_id, base_offset);
        }
        forgot
    }
}

/// The epoch of the coordinator that wrote a marker: behind the version in the record's value. -1 if it can't be read.
fn coordinator_epoch(batch: RecordBatchView<'_>) -> i32 {
    const MAX_MARKER_BYTES: usize = 4096;
    let read = || {
        let records = RecordSet::read(batch, MAX_MARKER_BYTES).ok()?;
        let record = records.iter().next()?.ok()?;
        let epoch = record.value?.get(2..)?.first_chunk::<4>()?;
        Some(i32::from_be_bytes(*epoch))
    };
    read().unwrap_or(-1)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]
    use std::collections::BTreeMap;

    use bytes::Bytes;
    use kaas_proto::config::broker::BrokerConfig;
    use kaas_proto::record::BatchBuilder;
    use kaas_proto::types::{ProducerEpoch, ProducerId};

    use super::*;

    const NOW: TimestampMs = TimestampMs(1_000_000_000);

    fn config(settings: &[(&str, &str)]) -> TopicConfig {
        let own: BTreeMap<_, _> = settings.iter().map(|&(key, value)| (key.to_owned(), value.to_owned())).collect();
        TopicConfig::resolve(&BrokerConfig::default(), &own).unwrap()
    }

    fn batch(timestamp: i64, key: Option<&[u8]>) -> Bytes {
        BatchBuilder::new().record(TimestampMs(timestamp), key, Some(b"value")).build()
    }

    fn offer(bytes: &Bytes, config: &TopicConfig) -> Result<Decision, AppendError> {
        let batch = RecordBatchView::read(bytes).unwrap();
        let (producers, transactions) = (ProducerTable::default(), TransactionIndex::default());
        decide(batch, Origin::Client(Summary::of(batch).unwrap()), config, &producers, &transactions, NOW)
    }

    #[test]
    fn sizes_are_limited_for_clients() {
        let bytes = BatchBuilder::new().record(NOW, None, Some(&[0; 2000])).build();
        let small = config(&[("max.message.bytes", "1000")]);
        assert_eq!(offer(&bytes, &small), Err(AppendError::TooLarge { size: bytes.len(), limit: 1000 }));
        let view = RecordBatchView::read(&bytes).unwrap();
        assert!(
            decide(view, Origin::Broker, &small, &ProducerTable::default(), &TransactionIndex::default(), NOW).is_ok()
        );
        assert!(offer(&bytes, &config(&[])).is_ok());
    }

    #[test]
    fn compacted_topics_need_keys() {
        let compacted = config(&[("cleanup.policy", "compact")]);
        assert_eq!(offer(&batch(NOW.0, None), &compacted), Err(AppendError::MissingKey { index: 0 }));
        assert!(offer(&batch(NOW.0, Some(b"k")), &compacted).is_ok());
    }

    #[test]
    fn timestamps_lie_between_the_limits() {
        let default = config(&[]);
        assert_eq!(offer(&batch(NOW.0 + 3_600_001, None), &default), Err(AppendError::InvalidTimestamp));
        assert!(offer(&batch(NOW.0 + 3_600_000, None), &default).is_ok());
        assert!(offer(&batch(0, None), &default).is_ok());
        let strict = config(&[("message.timestamp.before.max.ms", "1000")]);
        assert_eq!(offer(&batch(NOW.0 - 1001, None), &strict), Err(AppendError::InvalidTimestamp));
        assert!(offer(&batch(NOW.0 - 1000, None), &strict).is_ok());
        let appended = config(&[("message.timestamp.type", "LogAppendTime")]);
        let expected = Decision::Append { stamp: Stamp::LogAppendTime, max_timestamp: NOW };
        assert_eq!(offer(&batch(i64::MAX / 2, None), &appended), Ok(expected));
    }

    #[test]
    fn an_unset_largest_timestamp_is_computed() {
        let bytes = BatchBuilder::new().record(TimestampMs(5), None, None).record(TimestampMs(9), None, None).build();
        let mut unset = bytes.to_vec();
        kaas_proto::record::patch::set_max_timestamp(&mut unset, TimestampMs(-1));
        let expected = Decision::Append { stamp: Stamp::MaxTimestamp, max_timestamp: TimestampMs(9) };
        assert_eq!(offer(&unset.into(), &config(&[])), Ok(expected));
    }

    #[test]
    fn clients_write_no_markers() {
        let marker = ControlRecordType::Commit.batch(ProducerId(1), ProducerEpoch(0), 3, NOW);
        assert!(matches!(offer(&marker, &config(&[])), Err(AppendError::InvalidRecord(_))));
        assert_eq!(coordinator_epoch(RecordBatchView::read(&marker).unwrap()), 3);
    }

    #[test]
    fn what_was_noted_decides_the_next() {
        let (mut producers, mut transactions) = (ProducerTable::default(), TransactionIndex::default());
        let bytes = BatchBuilder::new()
            .producer(ProducerId(1), ProducerEpoch(0), 0)
            .transactional()
            .record(NOW, None, None)
            .build();
        let view = RecordBatchView::read(&bytes).unwrap();
        note(view, Offset(7), NOW, NOW, &mut producers, &mut transactions);
        assert_eq!(transactions.last_stable_offset(Offset(8)), Offset(7));
        let origin = Origin::Client(Summary::of(view).unwrap());
        let again = decide(view, origin, &config(&[]), &producers, &transactions, NOW);
        assert!(matches!(again, Ok(Decision::Repeat(original)) if original.base_offset == Offset(7)));
        let marker = ControlRecordType::Abort.batch(ProducerId(1), ProducerEpoch(0), 3, NOW);
        note(RecordBatchView::read(&marker).unwrap(), Offset(8), NOW, NOW, &mut producers, &mut transactions);
        transactions.acknowledged(Offset(9));
        assert_eq!(transactions.last_stable_offset(Offset(9)), Offset(9));
        assert_eq!(transactions.aborted().count(), 1);
        assert_eq!(producers.get(ProducerId(1)).unwrap().coordinator_epoch, 3);
    }
}
