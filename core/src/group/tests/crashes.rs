//! Crashes and takeovers at every batch: what was acknowledged is there, whoever reads it.

use std::collections::BTreeMap;
use std::time::Duration;

use kaas_proto::kafka::ErrorCode;
use kaas_proto::types::SlotId;
use proptest::prelude::*;

use super::client::{Broker, GROUP, TOPIC, codes};
use crate::group::config::{GroupConfig, SnapshotPolicy};

/// A snapshot after every few commits, in chunks of one group.
fn config() -> GroupConfig {
    let snapshots = SnapshotPolicy { after_bytes: 700, chunk_bytes: 1 };
    GroupConfig { snapshots, ..GroupConfig::default() }
}

/// What a client knows of a partition's offset: the last one acknowledged, and those sent since without an answer.
#[derive(Debug, Default)]
struct Known {
    acknowledged: i64,
    unanswered: Vec<i64>,
}

async fn run(mut broker: Broker, crashes: Vec<usize>) {
    let slot = SlotId::of(GROUP);
    let groups: Vec<String> =
        (0..).map(|n| format!("g{n}")).filter(|group| SlotId::of(group) == slot).take(4).collect();
    let mut known: BTreeMap<(usize, i32), Known> = BTreeMap::new();
    let mut next_offset = 0;
    for batches in crashes {
        broker.log.control().batches_left.set(batches);
        // Commits go on, several at a time, until the leadership is lost.
        let mut lost = false;
        while !lost {
            let mut pending = Vec::new();
            for (group, name) in groups.iter().enumerate() {
                next_offset += 1;
                let partition = i32::try_from(next_offset % 3).unwrap();
                let mut commit = Broker::commit_request(&[(partition, next_offset, "note")]);
                commit.group_id = name.as_str().into();
                known.entry((group, partition)).or_default().unanswered.push(next_offset);
                pending.push((group, partition, next_offset, broker.send_commit(commit)));
                broker.pass(Duration::from_micros(300)).await;
            }
            for (group, partition, offset, commit) in pending {
                match codes(&commit.answer().await)[0] {
                    ErrorCode::None => {
                        let known = known.get_mut(&(group, partition)).unwrap();
                        known.acknowledged = offset;
                        known.unanswered.retain(|other| *other > offset);
                    }
                    ErrorCode::NotCoordinator => lost = true,
                    other => panic!("{other}"),
                }
            }
        }
        broker.restart(config()).await;
        for ((group, partition), known) in &mut known {
            let found = committed(&broker, &groups[*group], *partition).await;
            let allowed = found == known.acknowledged || known.unanswered.contains(&found);
            assert!(allowed, "{TOPIC}-{partition} of {}: {found}, but {known:?}", groups[*group]);
            // It is durable now, so it may not go back either.
            *known = Known { acknowledged: found, unanswered: Vec::new() };
        }
    }
}

async fn committed(broker: &Broker, group: &str, partition: i32) -> i64 {
    use kaas_proto::kafka::messages::offset_fetch::{OffsetFetchRequestGroup, OffsetFetchRequestTopics};
    use kaas_proto::types::PartitionIndex;
    let topic = OffsetFetchRequestTopics {
        name: TOPIC.into(),
        topic_id: super::client::TOPIC_ID,
        partition_indexes: vec![PartitionIndex(partition)],
    };
    let group = OffsetFetchRequestGroup { group_id: group.into(), topics: Some(vec![topic]), ..Default::default() };
    let answer = broker
        .send(|reply| crate::group::operation::GroupOperation::FetchOffsets { group, require_stable: true, reply })
        .answer()
        .await;
    assert_eq!(answer.error_code, ErrorCode::None);
    answer.topics[0].partitions[0].committed_offset.0.max(0)
}

#[test]
fn a_crash_at_every_batch_of_a_snapshot_loses_nothing() {
    for batches in 1..40 {
        Broker::run(config(), |broker| run(broker, vec![batches, 5]));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    #[test]
    fn many_crashes_lose_nothing(crashes in prop::collection::vec(0..60_usize, 1..6)) {
        Broker::run(config(), |broker| run(broker, crashes));
    }
}
