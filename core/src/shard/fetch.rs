//! Fetch: partition after partition, under one budget. What the tail cache has is answered in the same turn.

use std::rc::Rc;

use super::Shard;
use super::operation::{Fetch, FetchPartition, Fetched, IsolationLevel};
use crate::env::{Env, TaskClass};
use crate::log::read_progress::ReadProgress;
use crate::partition::error::FetchError;
use crate::partition::leader::Leader;

/// A fetch that is under way.
struct Run {
    isolation: IsolationLevel,
    budget: usize,
    at_least_one: bool,
    rows: Vec<Result<Fetched, FetchError>>,
}

/// One partition of it.
struct Row<E: Env> {
    leader: Rc<Leader<E>>,
    wanted: FetchPartition,
    progress: ReadProgress,
    /// All but the records.
    fetched: Fetched,
}

impl<E: Env> Shard<E> {
    pub(super) fn fetch(&self, fetch: Fetch) {
        let Fetch { isolation, max_bytes, at_least_one_batch, partitions, reply } = fetch;
        let rows = Vec::with_capacity(partitions.len());
        let mut run = Run { isolation, budget: max_bytes, at_least_one: at_least_one_batch, rows };
        let mut rest = partitions.into_iter();
        while let Some(wanted) = rest.next() {
            let Some(row) = self.fetch_cached(&mut run, wanted) else { continue };
            // The volume is needed: go on in a task of its own.
            let shard = self.clone();
            self.env().spawn(TaskClass::Latency, async move {
                shard.fetch_row(&mut run, row).await;
                for wanted in rest {
                    if let Some(row) = shard.fetch_cached(&mut run, wanted) {
                        shard.fetch_row(&mut run, row).await;
                    }
                }
                drop(reply.send(run.rows));
            });
            return;
        }
        drop(reply.send(run.rows));
    }

    /// Answers one partition from memory, or gives back what is left to read.
    fn fetch_cached(&self, run: &mut Run, wanted: FetchPartition) -> Option<Row<E>> {
        let row = self.leader(wanted.partition).map_err(FetchError::from).and_then(|leader| begin(run, leader, wanted));
        let mut row = match row {
            Ok(row) => row,
            Err(error) => {
                run.rows.push(Err(error));
                return None;
            }
        };
        if row.fetched.diverging.is_some() || row.leader.log().read_cached(&mut row.progress) {
            run.finish(row);
            return None;
        }
        Some(row)
    }

    async fn fetch_row(&self, run: &mut Run, mut row: Row<E>) {
        let forgotten = row.leader.transactions.borrow().forgotten();
        match row.leader.log().read(&mut row.progress).await {
            // Whether what was read belongs to an aborted transaction is not known any more.
            Ok(()) if row.leader.transactions.borrow().forgotten() != forgotten => {
                let (leader, wanted) = (Rc::clone(&row.leader), row.wanted);
                match begin(run, leader, wanted) {
                    Ok(again) => Box::pin(self.fetch_row(run, again)).await,
                    Err(error) => run.rows.push(Err(error)),
                }
            }
            Ok(()) => run.finish(row),
            Err(error) => {
                if self.0.context.log.may_log("fetch_failed") {
                    let directory = row.leader.log().directory().display();
                    tracing::warn!(%directory, offset = %row.wanted.offset, %error, "a fetch failed");
                }
                let not_leading = row.leader.log().not_leading_after(&error).await;
                run.rows.push(Err(
                    not_leading.map_or_else(|| FetchError::Storage(error.to_string().into()), FetchError::from)
                ));
            }
        }
    }
}

/// Checks a row and sets its bounds.
fn begin<E: Env>(run: &Run, leader: Rc<Leader<E>>, wanted: FetchPartition) -> Result<Row<E>, FetchError> {
    leader.check_epoch(wanted.current_leader_epoch)?;
    let log = leader.log();
    let (log_start, end, offset) = (log.log_start(), log.log_end(), wanted.offset);
    let out_of_range = FetchError::OffsetOutOfRange { offset, log_start, end };
    // A client may know of records above the high watermark: it gets none, and no error.
    if offset < log_start || offset > end {
        return Err(out_of_range);
    }
    let diverging = match wanted.last_fetched_epoch {
        None => None,
        Some(epoch) => {
            let (found, found_end) = leader.chain().end_offset_for(epoch, end).ok_or(out_of_range)?;
            (found < epoch || found_end < offset).then_some((found, found_end))
        }
    };
    let fetched = Fetched {
        high_watermark: log.high_watermark(),
        last_stable_offset: leader.last_stable_offset(),
        log_start_offset: log_start,
        aborted: Vec::new(),
        records: Vec::new(),
        diverging,
    };
    let budget = wanted.max_bytes.min(run.budget);
    let visible_end = leader.visible_end(run.isolation);
    let progress = ReadProgress::new(offset, visible_end, budget, run.at_least_one);
    Ok(Row { leader, wanted, progress, fetched })
}

impl Run {
    fn finish<E: Env>(&mut self, row: Row<E>) {
        let Row { leader, wanted, progress, mut fetched } = row;
        if !progress.parts.is_empty() {
            self.at_least_one = false;
            let bytes: usize = progress.parts.iter().map(bytes::Bytes::len).sum();
            self.budget = self.budget.saturating_sub(bytes);
            if self.isolation == IsolationLevel::ReadCommitted {
                fetched.aborted = leader.aborted_between(wanted.offset, progress.offset);
            }
            fetched.records = progress.parts;
        }
        self.rows.push(Ok(fetched));
    }
}
