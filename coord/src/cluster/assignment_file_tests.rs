#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

use kaas_proto::layout::CLUSTER_DIRECTORY;
use kaas_proto::types::ControllerEpoch;

use super::super::sample::{assignment, volume};
use super::*;

fn generation(file: &AssignmentFile) -> Option<(i32, i64)> {
    let assignment = file.load().unwrap().assignment?;
    Some((assignment.controller_epoch.0, assignment.assignment_version.0))
}

#[test]
fn a_fresh_volume_has_none_and_nothing_is_lost() {
    let (_root, file) = volume();
    let stored = file.load().unwrap();
    assert!(stored.assignment.is_none() && stored.lost.is_none());
    assert!(file.read().unwrap().is_none());
}

#[test]
fn what_is_staged_counts_once_it_is_published() {
    let (root, file) = volume();
    let (first, second) = (assignment(1, 1), assignment(1, 2));
    file.stage(&first, None).unwrap().publish().unwrap();
    let staged = file.stage(&second, Some(&first)).unwrap();
    assert_eq!(generation(&file), Some((1, 1)));
    staged.publish().unwrap();
    assert_eq!(generation(&file), Some((1, 2)));
    file.stage(&assignment(1, 3), Some(&second)).unwrap().withdraw();
    let mut left = names(&root.path().join(CLUSTER_DIRECTORY)).unwrap();
    left.sort();
    assert_eq!(left, [FORMER_ASSIGNMENT_FILE, ASSIGNMENT_FILE], "no temporary file stays");
}

#[test]
fn the_former_one_stands_in_for_one_that_is_lost_and_that_is_said() {
    let (root, file) = volume();
    let path = root.path().join(CLUSTER_DIRECTORY).join(ASSIGNMENT_FILE);
    file.stage(&assignment(1, 1), None).unwrap().publish().unwrap();
    file.stage(&assignment(1, 2), Some(&assignment(1, 1))).unwrap().publish().unwrap();
    fs::write(&path, "").unwrap();
    let stored = file.load().unwrap();
    assert_eq!(stored.assignment, Some(assignment(1, 1)));
    assert_eq!(stored.lost.unwrap(), "assignment.json can't be read: the file is empty");
    fs::remove_file(&path).unwrap();
    assert_eq!(file.load().unwrap().lost.unwrap(), "assignment.json is missing");
    fs::write(root.path().join(CLUSTER_DIRECTORY).join(FORMER_ASSIGNMENT_FILE), "{}").unwrap();
    let stored = file.load().unwrap();
    assert!(stored.assignment.is_none());
    assert!(stored.lost.unwrap().starts_with("assignment.former.json can't be read"));
}

#[test]
fn no_controller_epoch_is_given_out_twice() {
    let (root, file) = volume();
    assert_eq!(file.claim_epoch(ControllerEpoch(1)).unwrap(), ControllerEpoch(1));
    assert_eq!(file.claim_epoch(ControllerEpoch(1)).unwrap(), ControllerEpoch(2));
    assert_eq!(file.claim_epoch(ControllerEpoch(9)).unwrap(), ControllerEpoch(9), "the Lease may be ahead");
    let left = names(&root.path().join(CLUSTER_DIRECTORY).join(CONTROLLER_EPOCHS_DIRECTORY)).unwrap();
    assert_eq!(left, ["00000009"], "the highest is enough to know");
    let claims: Vec<_> = (0..8)
        .map(|_| {
            let file = file.clone();
            std::thread::spawn(move || file.claim_epoch(ControllerEpoch(1)).unwrap())
        })
        .collect();
    let mut claimed: Vec<_> = claims.into_iter().map(|claim| claim.join().unwrap()).collect();
    claimed.sort_unstable();
    claimed.dedup();
    assert_eq!(claimed.len(), 8);
    assert!(claimed[0] > ControllerEpoch(9));
}

#[test]
fn a_controller_that_is_paused_before_its_rename_finds_its_file_gone() {
    let (_root, file) = volume();
    let old = file.claim_epoch(ControllerEpoch(1)).unwrap();
    let staged = file.stage(&assignment(old.0, 1), None).unwrap();
    let new = file.claim_epoch(ControllerEpoch(1)).unwrap();
    file.stage(&assignment(new.0, 1), None).unwrap().publish().unwrap();
    assert!(staged.publish().is_err());
    assert_eq!(generation(&file), Some((new.0, 1)));
}
