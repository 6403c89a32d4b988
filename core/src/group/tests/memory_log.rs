//! A slot's log in memory: it takes time, fails when told to, and survives its coordinators.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use kaas_proto::record::{RecordBatchView, patch};
use kaas_proto::types::Offset;

use crate::env::Env;
use crate::env::memory::MemoryEnv;
use crate::group::slot_log::SlotLog;
use crate::partition::error::{AppendError, DeleteRecordsError, FetchError, NotLeading};

/// Clones are the same leadership; [`MemoryLog::next_leadership`] begins another one on the same volume.
#[derive(Clone)]
pub(super) struct MemoryLog {
    env: MemoryEnv,
    volume: Rc<RefCell<Volume>>,
    leadership: Rc<Leadership>,
}

#[derive(Default)]
struct Volume {
    batches: Vec<Bytes>,
    start: Offset,
}

pub(super) struct Leadership {
    /// How long a batch takes to become durable.
    pub(super) latency: Cell<Duration>,
    next_offset: Cell<Offset>,
    /// What the next batches fail with.
    pub(super) failure: RefCell<Option<AppendError>>,
    /// Reads fail with it.
    pub(super) unreadable: Cell<bool>,
    /// From now on, nothing that this leadership appends gets onto the volume.
    superseded: Cell<bool>,
    pub(super) appended_batches: Cell<usize>,
    /// After so many batches the leadership is lost.
    pub(super) batches_left: Cell<usize>,
}

impl MemoryLog {
    pub(super) fn new(env: &MemoryEnv) -> Self {
        Self { env: env.clone(), volume: Rc::default(), leadership: Leadership::beginning_at(Offset(0)) }
    }

    /// A takeover: whatever the former leadership has not made durable is lost.
    pub(super) fn next_leadership(&self) -> Self {
        self.leadership.superseded.set(true);
        let end = self.volume.borrow().end();
        Self { env: self.env.clone(), volume: Rc::clone(&self.volume), leadership: Leadership::beginning_at(end) }
    }

    pub(super) fn control(&self) -> &Leadership {
        &self.leadership
    }

    pub(super) fn start(&self) -> Offset {
        self.volume.borrow().start
    }

    /// Puts a batch onto the volume, whoever leads.
    pub(super) fn push_durable(&self, batch: Bytes) {
        self.volume.borrow_mut().batches.push(batch);
    }
}

impl Leadership {
    fn beginning_at(offset: Offset) -> Rc<Self> {
        Rc::new(Self {
            latency: Cell::new(Duration::from_millis(1)),
            next_offset: Cell::new(offset),
            failure: RefCell::default(),
            unreadable: Cell::new(false),
            superseded: Cell::new(false),
            appended_batches: Cell::new(0),
            batches_left: Cell::new(usize::MAX),
        })
    }

    pub(super) fn supersede(&self) {
        self.superseded.set(true);
    }
}

impl Volume {
    fn end(&self) -> Offset {
        self.batches.last().map_or(Offset(0), |batch| RecordBatchView::read(batch).unwrap().next_offset())
    }
}

impl SlotLog for MemoryLog {
    fn append(&self, batch: Bytes) -> impl Future<Output = Result<Offset, AppendError>> + 'static {
        let (env, volume, leadership) = (self.env.clone(), Rc::clone(&self.volume), Rc::clone(&self.leadership));
        leadership.appended_batches.set(leadership.appended_batches.get() + 1);
        let failure = leadership.failure.borrow().clone();
        let offset = leadership.next_offset.get();
        let mut bytes = batch.to_vec();
        if failure.is_none() {
            patch::patch_base_offset(&mut bytes, offset);
            leadership.next_offset.set(RecordBatchView::read(&bytes).unwrap().next_offset());
        }
        async move {
            env.sleep(leadership.latency.get()).await;
            if let Some(failure) = failure {
                return Err(failure);
            }
            if leadership.batches_left.get() == 0 {
                leadership.superseded.set(true);
            }
            if leadership.superseded.get() {
                return Err(AppendError::NotLeading(NotLeading::Superseded { by: Arc::from("another") }));
            }
            leadership.batches_left.set(leadership.batches_left.get() - 1);
            volume.borrow_mut().batches.push(bytes.into());
            Ok(offset)
        }
    }

    fn log_start(&self) -> Offset {
        self.start()
    }

    fn high_watermark(&self) -> Offset {
        self.volume.borrow().end()
    }

    async fn read(&self, from: Offset, max_bytes: usize) -> Result<Vec<Bytes>, FetchError> {
        self.env.sleep(Duration::from_millis(1)).await;
        if self.leadership.unreadable.get() {
            return Err(FetchError::Storage("the volume is away".into()));
        }
        let volume = self.volume.borrow();
        let ends_above = |batch: &&Bytes| RecordBatchView::read(batch).unwrap().next_offset() > from;
        let mut taken = Vec::new();
        let mut bytes = 0;
        for batch in volume.batches.iter().filter(ends_above) {
            if bytes > 0 && bytes + batch.len() > max_bytes {
                break;
            }
            bytes += batch.len();
            taken.push(batch.clone());
        }
        Ok(taken)
    }

    async fn delete_records_below(&self, offset: Offset) -> Result<(), DeleteRecordsError> {
        self.env.sleep(Duration::from_millis(1)).await;
        if self.leadership.superseded.get() {
            return Err(DeleteRecordsError::NotLeading(NotLeading::NotHere));
        }
        let mut volume = self.volume.borrow_mut();
        assert!(offset <= volume.end() && offset >= volume.start);
        volume.start = offset;
        volume.batches.retain(|batch| RecordBatchView::read(batch).unwrap().next_offset() > offset);
        Ok(())
    }
}
