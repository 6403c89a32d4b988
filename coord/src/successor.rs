//! Notices that another process has taken the volume over, even when nothing is written.
//!
//! A leader asks its fence after each write, so a superseded broker never acknowledges anything. But an idle one does not
//! ask, and would go on telling its clients of a log that others extend. So the directory of one coordinator slot, which
//! any successor takes over first, is listed now and then: a fence above the epoch that this broker leads is not ours.

use std::cell::RefCell;
use std::fs;
use std::io;
use std::path::Path;
use std::time::Duration;

use kaas_proto::control::PartitionKey;
use kaas_proto::layout::slot_directory;
use kaas_proto::roots::Roots;
use kaas_proto::types::{LeaderEpoch, SlotId, TimestampMs};
use kaas_proto::utc_time::UtcTime;
use serde::Deserialize;
use tokio::time::sleep;

use crate::cluster_state::{ClusterState, Superseded};
use crate::topics::blocking;

const INTERVAL: Duration = Duration::from_secs(2);

/// Any slot would do.
const SLOT: SlotId = SlotId(0);

/// Completes when another process leads what this one led. Never without a volume.
pub(crate) async fn wait_for_successor(state: &RefCell<ClusterState>, roots: Option<&Roots>) -> Superseded {
    let Some(roots) = roots else { return std::future::pending().await };
    let directory = roots.locate(&slot_directory(SLOT));
    let mut suspected = None;
    loop {
        sleep(INTERVAL).await;
        let Some(led) = led_epoch(&state.borrow()) else {
            suspected = None;
            continue;
        };
        let listed = directory.clone();
        // A volume that can't be listed is the shards' to report.
        let Ok(Some(highest)) = blocking(move || highest_fence(&listed)).await else { continue };
        if highest <= led {
            suspected = None;
        } else if suspected == Some(led) {
            // Seen twice under the same epoch: it is not a takeover of our own, of which the shard would have told us.
            let own_fence = directory.join(format!("{:08x}.fence", led.0));
            let by = blocking(move || revoked_by(&own_fence)).await;
            return Superseded { partition: format!("coordinator slot {SLOT}"), epoch: highest, by: by.into() };
        } else {
            suspected = Some(led);
        }
    }
}

fn led_epoch(state: &ClusterState) -> Option<LeaderEpoch> {
    let leads = state.leadership().leads(PartitionKey::of_slot(SLOT));
    leads.then(|| state.view().slot(SLOT).epoch)
}

fn highest_fence(directory: &Path) -> io::Result<Option<LeaderEpoch>> {
    let mut highest = None;
    for entry in fs::read_dir(directory)? {
        let name = entry?.file_name();
        let epoch = name.to_str().and_then(|name| name.strip_suffix(".fence"));
        if let Some(epoch) = epoch.and_then(|epoch| i32::from_str_radix(epoch, 16).ok()) {
            highest = highest.max(Some(LeaderEpoch(epoch)));
        }
    }
    Ok(highest)
}

/// What a successor has written into our fence, if it can still be read.
fn revoked_by(fence: &Path) -> String {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Line {
        broker: i32,
        time_ms: TimestampMs,
    }
    let content = fs::read(fence).unwrap_or_default();
    // A second revocation may leave the end of a longer line behind its own.
    let line = content.split(|&byte| byte == b'\n').next().unwrap_or_default();
    match serde_json::from_slice(line) {
        Ok(Line { broker, time_ms }) => format!("broker {broker} since {}", UtcTime(time_ms)),
        Err(_) => "another broker".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]
    use std::sync::Arc;

    use kaas_proto::control::{PartitionChange, ShardEvent};
    use kaas_proto::types::{BrokerId, ShardId};
    use kaas_proto::view::{BrokerView, ClusterView};
    use tokio::sync::watch;
    use tokio::time::{Instant, timeout};

    use super::*;

    fn leading(epoch: i32) -> ShardEvent {
        let change = PartitionChange::Leading { epoch: LeaderEpoch(epoch) };
        ShardEvent { shard: ShardId(0), partition: PartitionKey::of_slot(SLOT), change }
    }

    fn state() -> RefCell<ClusterState> {
        let broker = BrokerView { id: BrokerId(1), rack: None, fenced: false, listeners: Vec::new() };
        RefCell::new(ClusterState::new(watch::channel(Arc::new(ClusterView::empty("c".into(), broker))).0))
    }

    #[tokio::test(start_paused = true)]
    async fn a_higher_fence_that_stays_is_a_successor() {
        let root = tempfile::tempdir().unwrap();
        let directory = root.path().join(slot_directory(SLOT));
        fs::create_dir_all(&directory).unwrap();
        let state = state();
        state.borrow_mut().apply([leading(3)]);
        fs::write(directory.join("00000003.fence"), "{\"epoch\":10,\"broker\":5,\"timeMs\":77}\n").unwrap();
        fs::write(directory.join("00000003.manifest.json"), "").unwrap();
        let roots = Roots::from(root.path());
        let waiting = || wait_for_successor(&state, Some(&roots));
        timeout(INTERVAL * 20, waiting()).await.expect_err("nobody else is there");

        fs::write(directory.join("0000000a.fence"), "").unwrap();
        let began = Instant::now();
        let superseded = waiting().await;
        assert!(began.elapsed() >= INTERVAL * 2, "not at first sight: it may be our own");
        assert_eq!((superseded.epoch, &*superseded.by), (LeaderEpoch(10), "broker 5 since 1970-01-01T00:00:00.077Z"));

        state.borrow_mut().apply([leading(10)]);
        timeout(INTERVAL * 20, waiting()).await.expect_err("it was our own, after a failed write");
    }

    #[tokio::test(start_paused = true)]
    async fn while_nothing_is_led_nobody_is_suspected() {
        let root = tempfile::tempdir().unwrap();
        let directory = root.path().join(slot_directory(SLOT));
        fs::create_dir_all(&directory).unwrap();
        fs::write(directory.join("0000000a.fence"), "").unwrap();
        let state = state();
        let roots = Roots::from(root.path());
        let waiting = wait_for_successor(&state, Some(&roots));
        timeout(INTERVAL * 20, waiting).await.expect_err("the takeover is still under way");
    }
}
