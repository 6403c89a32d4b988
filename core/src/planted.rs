//! Bugs on purpose: each breaks one rule of the protocol, so that tests can show that the simulator finds it.
//!
//! Without the feature `simulator`, and in every release build, [`is_planted`] is `false` for the compiler already and the
//! code behind it does not exist. Nothing but `core/tests/simulator` plants any.

/// One rule of the protocol, left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlantedBug {
    /// A commit counts as durable when its write is sent.
    AcknowledgeBeforeDurable,
    /// A fence that is there already is taken for the own one.
    FenceNotExclusive,
    /// Lower fences stay as they are.
    NoRevocation,
    /// Records behind the end that the chain gives to a segment count.
    NoTruncation,
    /// A commit is acknowledged without an ask.
    NoFenceCheck,
    /// The fence is asked before the write, not after it.
    AskBeforeWrite,
    /// Recovery reads before the lower fences are revoked.
    ScanBeforeRevoke,
    /// Higher epochs in the directory are overlooked.
    NoListAfterFence,
    /// Recovered records are served without an ask.
    ServeBeforeAsk,
    /// The last segment is cut where recovery saw it end, before the ask.
    CutBeforeAsk,
    /// After a failed write the next one goes to the same place, under the same epoch.
    GoOnAfterFailedWrite,
    /// The lowest start of any higher epoch cuts a segment, instead of the newest chain.
    LowestHigherStartCuts,
    /// A repeated batch is answered although its original is not acknowledged.
    DuplicateAboveHighWatermark,
    /// Recovery does not look at the producer snapshot.
    SnapshotNotRestored,
    /// Segments are unlinked before the log start is recorded.
    UnlinkBeforeRecord,
    /// Compaction drops the last record of a key when it is a tombstone, however young.
    TombstonesGoAtOnce,
    /// Compaction takes the records of aborted transactions for records that replace others.
    AbortedRecordsReplace,
    /// Compaction goes on above the last stable offset.
    CompactionAboveLastStable,
    /// Compacted segments replace others before they are recorded.
    ReplaceBeforeRecord,
    /// Compacted segments replace others without an ask.
    ReplaceWithoutAsk,
    /// A coordinator slot forgets its old records although the snapshot that replaces them is not complete.
    SlotCutBeforeSnapshot,
    /// A takeover that finds no room leaves the reserve where it is.
    ReserveIsKept,
}

impl PlantedBug {
    pub const ALL: [Self; 22] = [
        Self::AcknowledgeBeforeDurable,
        Self::FenceNotExclusive,
        Self::NoRevocation,
        Self::NoTruncation,
        Self::NoFenceCheck,
        Self::AskBeforeWrite,
        Self::ScanBeforeRevoke,
        Self::NoListAfterFence,
        Self::ServeBeforeAsk,
        Self::CutBeforeAsk,
        Self::GoOnAfterFailedWrite,
        Self::LowestHigherStartCuts,
        Self::DuplicateAboveHighWatermark,
        Self::SnapshotNotRestored,
        Self::UnlinkBeforeRecord,
        Self::TombstonesGoAtOnce,
        Self::AbortedRecordsReplace,
        Self::CompactionAboveLastStable,
        Self::ReplaceBeforeRecord,
        Self::ReplaceWithoutAsk,
        Self::SlotCutBeforeSnapshot,
        Self::ReserveIsKept,
    ];
}

#[cfg(all(feature = "simulator", debug_assertions))]
std::thread_local! {
    static PLANTED: std::cell::Cell<Option<PlantedBug>> = const { std::cell::Cell::new(None) };
}

/// Whether the bug is planted in this thread.
#[cfg(all(feature = "simulator", debug_assertions))]
pub(crate) fn is_planted(bug: PlantedBug) -> bool {
    PLANTED.get() == Some(bug)
}

#[cfg(not(all(feature = "simulator", debug_assertions)))]
#[inline(always)]
pub(crate) const fn is_planted(_: PlantedBug) -> bool {
    false
}

/// Runs `test` with a bug in this thread.
#[cfg(all(feature = "simulator", debug_assertions))]
pub fn with<T>(bug: Option<PlantedBug>, test: impl FnOnce() -> T) -> T {
    struct Uproot;
    impl Drop for Uproot {
        fn drop(&mut self) {
            PLANTED.set(None);
        }
    }
    PLANTED.set(bug);
    let _uproot = Uproot;
    test()
}
