//! Proof that the simulator finds bugs: with each one planted, some of the fixed seeds fail. Without any, all of them hold
//! ([`super::seeds`]).

use kaas_core::planted::{self, PlantedBug};

use crate::play::run::run_seed;
use crate::seeds::FIXED;

/// Some of the fixed seeds show the bug.
fn is_found(bug: PlantedBug) {
    let found = planted::with(Some(bug), || FIXED.into_iter().any(|seed| run_seed(seed).is_err()));
    assert!(found, "no fixed seed finds {bug:?}");
}

macro_rules! each_is_found {
    ($($name:ident: $bug:ident,)*) => {
        $(#[test]
        fn $name() {
            is_found(PlantedBug::$bug);
        })*

        #[test]
        fn every_bug_has_its_test() {
            assert_eq!(PlantedBug::ALL, [$(PlantedBug::$bug),*]);
        }
    };
}

each_is_found! {
    acknowledge_before_durable: AcknowledgeBeforeDurable,
    fence_not_exclusive: FenceNotExclusive,
    no_revocation: NoRevocation,
    no_truncation: NoTruncation,
    no_fence_check: NoFenceCheck,
    ask_before_write: AskBeforeWrite,
    scan_before_revoke: ScanBeforeRevoke,
    no_list_after_fence: NoListAfterFence,
    serve_before_ask: ServeBeforeAsk,
    cut_before_ask: CutBeforeAsk,
    go_on_after_failed_write: GoOnAfterFailedWrite,
    lowest_higher_start_cuts: LowestHigherStartCuts,
    duplicate_above_high_watermark: DuplicateAboveHighWatermark,
    snapshot_not_restored: SnapshotNotRestored,
    unlink_before_record: UnlinkBeforeRecord,
    tombstones_go_at_once: TombstonesGoAtOnce,
    aborted_records_replace: AbortedRecordsReplace,
    compaction_above_last_stable: CompactionAboveLastStable,
    replace_before_record: ReplaceBeforeRecord,
    replace_without_ask: ReplaceWithoutAsk,
    slot_cut_before_snapshot: SlotCutBeforeSnapshot,
    reserve_is_kept: ReserveIsKept,
}
