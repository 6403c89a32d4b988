//! The coordinator as clients see it: durability, restarts, moves.

use std::sync::Arc;
use std::time::Duration;

use kaas_proto::control::GONE_TOPIC_AGE;
use kaas_proto::kafka::ErrorCode;
use kaas_proto::kafka::messages::JoinGroupRequest;
use kaas_proto::kafka::messages::offset_fetch::OffsetFetchRequestTopics;
use kaas_proto::metrics::ShardMetrics;
use kaas_proto::record::BatchBuilder;
use kaas_proto::types::{GenerationId, LeaderEpoch, Offset, PartitionIndex, SlotId, TimestampMs, TopicId};

use super::client::{Broker, GROUP, Membership, TOPIC, TOPIC_ID, codes};
use crate::group::config::{GroupConfig, GroupLimits, SnapshotPolicy};
use crate::group::operation::GroupOperation;
use crate::partition::error::AppendError;

const SECOND: Duration = Duration::from_secs(1);
const DAY: Duration = Duration::from_secs(86_400);

fn config() -> GroupConfig {
    GroupConfig::default()
}

#[test]
fn d10_what_was_never_committed_is_offset_minus_1_without_error() {
    Broker::run(config(), async |broker| {
        let topic = |name: &str| OffsetFetchRequestTopics {
            name: name.into(),
            topic_id: TOPIC_ID,
            partition_indexes: vec![PartitionIndex(0), PartitionIndex(5)],
        };
        let answer = broker.fetch(Some(vec![topic(TOPIC), topic("other")])).await;
        assert_eq!((answer.error_code, answer.topics.len()), (ErrorCode::None, 2));
        for partition in answer.topics.iter().flat_map(|topic| &topic.partitions) {
            assert_eq!((partition.error_code, partition.committed_offset), (ErrorCode::None, Offset(-1)));
            assert_eq!(partition.metadata.as_deref(), Some(""));
            assert_eq!(partition.committed_leader_epoch, LeaderEpoch(-1));
        }
        assert!(broker.fetch(None).await.topics.is_empty());
    });
}

#[test]
fn d11_metadata_comes_back_and_has_a_limit() {
    Broker::run(config(), async |broker| {
        let (long, too_long) = ("x".repeat(4096), "x".repeat(4097));
        let codes = broker.commit(&[(0, 10, "note"), (1, 11, &long), (2, 12, &too_long)]).await;
        assert_eq!(codes, [ErrorCode::None, ErrorCode::None, ErrorCode::OffsetMetadataTooLarge]);
        let all = broker.fetch(None).await;
        assert_eq!((all.topics.len(), &*all.topics[0].name, all.topics[0].topic_id), (1, TOPIC, TOPIC_ID));
        let partitions = &all.topics[0].partitions;
        assert_eq!(partitions.len(), 2, "the third was not stored");
        assert_eq!(partitions[0].metadata.as_deref(), Some("note"));
        assert_eq!(partitions[1].metadata.as_deref(), Some(&*long));
        assert_eq!(
            (partitions[0].committed_offset, partitions[0].committed_leader_epoch),
            (Offset(10), LeaderEpoch(3))
        );
    });
}

#[test]
fn commits_are_answered_when_durable_and_travel_together() {
    Broker::run(config(), async |broker| {
        broker.log.control().latency.set(SECOND);
        let mut pending: Vec<_> =
            (0..100).map(|partition| broker.send_commit(Broker::commit_request(&[(partition, 5, "")]))).collect();
        let mut last = pending.pop().unwrap();
        assert_eq!(last.now().await, None);
        assert_eq!(broker.committed(99).await, -1, "not visible before it is durable");
        assert_eq!(codes(&last.answer().await), [ErrorCode::None]);
        assert_eq!(broker.committed(99).await, 5);
        assert_eq!(broker.log.control().appended_batches.get(), 1, "one write for all of them");
        for commit in pending {
            assert_eq!(codes(&commit.answer().await), [ErrorCode::None]);
        }
    });
}

#[test]
fn several_batches_may_be_on_their_way_and_take_effect_in_order() {
    Broker::run(config(), async |broker| {
        broker.log.control().latency.set(SECOND);
        let mut pending = Vec::new();
        for offset in 0..5 {
            pending.push(broker.send_commit(Broker::commit_request(&[(0, offset, "")])));
            broker.pass(Duration::from_millis(10)).await;
        }
        assert_eq!(broker.log.control().appended_batches.get(), 5);
        for commit in pending {
            assert_eq!(codes(&commit.answer().await), [ErrorCode::None]);
        }
        assert_eq!(broker.committed(0).await, 4);
    });
}

#[test]
fn w51_offsets_are_there_after_a_restart_without_any_join() {
    Broker::run(config(), async |mut broker| {
        broker.commit(&[(0, 10, "note"), (3, 13, "")]).await;
        broker.commit(&[(0, 20, "newer")]).await;
        broker.restart(config()).await;
        assert_eq!((broker.committed(0).await, broker.committed(3).await), (20, 13));
        let all = broker.fetch(None).await;
        assert_eq!(all.topics[0].partitions[0].metadata.as_deref(), Some("newer"));
        let listed = broker.list(&[], &[]).await.unwrap();
        assert_eq!((&*listed[0].group_id, &*listed[0].group_state, &*listed[0].protocol_type), (GROUP, "Empty", ""));
    });
}

#[test]
fn c23_a_consumer_does_not_notice_that_its_coordinator_has_changed() {
    Broker::run(config(), async |mut broker| {
        let member = broker.stable(&[TOPIC]).await;
        broker.restart(config()).await;
        assert_eq!(broker.heartbeat(&member).await, ErrorCode::None);
        let mut commit = Broker::commit_request(&[(0, 7, "")]);
        commit.member_id = member.id.as_str().into();
        commit.generation_id_or_member_epoch = member.generation;
        assert_eq!(codes(&broker.send_commit(commit).answer().await), [ErrorCode::None]);
        assert_eq!(&broker.sync(&member, &[]).answer().await.assignment[..], b"work");
        let described = broker.describe(GROUP, 5).await;
        assert_eq!((&*described.group_state, &*described.protocol_data), ("Stable", "range"));
        assert_eq!(&*described.members[0].client_host, "/127.0.0.1");
        // One that does not show up again is missed after its session.
        broker.pass(11 * SECOND).await;
        assert_eq!(broker.heartbeat(&member).await, ErrorCode::UnknownMemberId);
        let next = broker.stable(&[TOPIC]).await;
        assert_eq!(next.generation, GenerationId(member.generation.0 + 2), "generations go on");
    });
}

#[test]
fn d40_everybody_is_told_at_once_when_the_slot_moves_away() {
    Broker::run(config(), async |broker| {
        let leader = broker.stable(&[TOPIC]).await;
        let mut joiner = broker.join(Broker::join_request("", &[TOPIC]), 3);
        assert_eq!(joiner.now().await, None);
        broker.log.control().latency.set(60 * SECOND);
        let mut commit = Broker::commit_request(&[(0, 7, "")]);
        commit.member_id = leader.id.as_str().into();
        commit.generation_id_or_member_epoch = leader.generation;
        let mut commit = broker.send_commit(commit);
        assert_eq!(commit.now().await, None);

        broker.coordinator.give_up(SlotId::of(GROUP));
        assert_eq!(joiner.now().await.unwrap().error_code, ErrorCode::NotCoordinator);
        assert_eq!(codes(&commit.now().await.unwrap()), [ErrorCode::NotCoordinator]);
        // And so is everybody who comes later.
        assert_eq!(broker.heartbeat(&leader).await, ErrorCode::NotCoordinator);
        assert_eq!(broker.fetch(None).await.error_code, ErrorCode::NotCoordinator);
        assert_eq!(broker.delete(GROUP).await, ErrorCode::NotCoordinator);
        assert_eq!(broker.describe(GROUP, 6).await.error_code, ErrorCode::NotCoordinator);
        assert_eq!(broker.list(&[], &[]).await.unwrap().len(), 0);
        assert_eq!(broker.coordinator.usage(), crate::group::usage::Usage::default());
    });
}

#[test]
fn w69_a_deposed_coordinator_learns_it_from_its_log_and_answers_nobody_with_success() {
    Broker::run(config(), async |broker| {
        let member = broker.stable(&[TOPIC]).await;
        let mut other = broker.join(Broker::join_request("", &[TOPIC]), 3);
        broker.log.control().supersede();
        let mut commit = Broker::commit_request(&[(0, 7, "")]);
        commit.member_id = member.id.as_str().into();
        commit.generation_id_or_member_epoch = member.generation;
        assert_eq!(codes(&broker.send_commit(commit).answer().await), [ErrorCode::NotCoordinator]);
        assert_eq!(other.now().await.unwrap().error_code, ErrorCode::NotCoordinator, "parked ones too");
        assert_eq!(broker.heartbeat(&member).await, ErrorCode::NotCoordinator);
    });
}

#[test]
fn d40_loading_is_said_only_while_loading() {
    Broker::run(config(), async |mut broker| {
        broker.commit(&[(0, 10, "")]).await;
        broker.log = broker.log.next_leadership();
        broker.log.control().unreadable.set(true);
        broker.coordinator.take_over(SlotId::of(GROUP), broker.log.clone());
        assert_eq!(broker.fetch(None).await.error_code, ErrorCode::CoordinatorLoadInProgress);
        assert_eq!(broker.list(&[], &[]).await, Err(ErrorCode::CoordinatorLoadInProgress));
        let join = broker.join(Broker::join_request("", &[]), 3).answer().await;
        assert_eq!((join.error_code, join.generation_id), (ErrorCode::CoordinatorLoadInProgress, GenerationId(-1)));
        broker.pass(Duration::from_millis(10)).await;
        assert_eq!(broker.fetch(None).await.error_code, ErrorCode::CoordinatorNotAvailable);
        assert_eq!(broker.list(&[], &[]).await, Err(ErrorCode::CoordinatorNotAvailable));
        // It heals by itself.
        broker.pass(10 * SECOND).await;
        assert!(broker.coordinator.counters().failed_loads > 2);
        broker.log.control().unreadable.set(false);
        broker.pass(30 * SECOND).await;
        assert_eq!(broker.committed(0).await, 10);
    });
}

#[test]
fn a_slot_that_is_given_up_while_it_loads_is_over() {
    Broker::run(config(), async |mut broker| {
        broker.log = broker.log.next_leadership();
        broker.log.control().unreadable.set(true);
        broker.coordinator.take_over(SlotId::of(GROUP), broker.log.clone());
        broker.coordinator.give_up(SlotId::of(GROUP));
        broker.pass(SECOND).await;
        assert_eq!(broker.fetch(None).await.error_code, ErrorCode::NotCoordinator);
        assert!(broker.coordinator.counters().failed_loads <= 1);
    });
}

#[test]
fn a_log_that_is_not_ours_is_refused_and_not_skipped() {
    Broker::run(config(), async |mut broker| {
        broker.log = broker.log.next_leadership();
        let foreign = BatchBuilder::new().record(TimestampMs(0), Some(b"\x63\x01g"), Some(b"from the future"));
        broker.log.push_durable(foreign.build());
        broker.coordinator.take_over(SlotId::of(GROUP), broker.log.clone());
        broker.pass(SECOND).await;
        assert_eq!(broker.fetch(None).await.error_code, ErrorCode::CoordinatorNotAvailable);
    });
}

#[test]
fn w7_a_full_volume_refuses_commits_and_heals() {
    Broker::run(config(), async |broker| {
        broker.commit(&[(0, 10, "")]).await;
        for failure in [AppendError::VolumeFull, AppendError::Stalled, AppendError::QueueFull] {
            *broker.log.control().failure.borrow_mut() = Some(failure);
            assert_eq!(broker.commit(&[(0, 11, "")]).await, [ErrorCode::CoordinatorNotAvailable]);
            assert_eq!(broker.committed(0).await, 10);
        }
        // A rebalance can't be finished either, and its members are told to try again.
        let joined = broker.join(Broker::join_request("", &[TOPIC]), 3).answer().await;
        let member = Membership { id: joined.member_id.to_string(), generation: joined.generation_id };
        let synced = broker.sync(&member, &[]).answer().await;
        assert_eq!(synced.error_code, ErrorCode::CoordinatorNotAvailable);
        assert_eq!(broker.delete("other").await, ErrorCode::NotCoordinator);

        *broker.log.control().failure.borrow_mut() = None;
        let again = broker.join(Broker::join_request(&member.id, &[TOPIC]), 3).answer().await;
        assert_eq!(again.error_code, ErrorCode::None);
        let member = Membership { generation: again.generation_id, ..member };
        assert_eq!(broker.sync(&member, &[]).answer().await.error_code, ErrorCode::None);
    });
}

#[test]
fn c22_a_coordinator_that_lost_its_log_comes_back() {
    Broker::run(config(), async |mut broker| {
        broker.commit(&[(0, 10, "")]).await;
        *broker.log.control().failure.borrow_mut() = Some(AppendError::Storage("EIO".into()));
        assert_eq!(broker.commit(&[(0, 11, "")]).await, [ErrorCode::NotCoordinator]);
        assert_eq!(broker.commit(&[(0, 11, "")]).await, [ErrorCode::NotCoordinator]);
        // The partition takes itself over, and the shard hands the slot in again.
        broker.log = broker.log.next_leadership();
        broker.coordinator.take_over(SlotId::of(GROUP), broker.log.clone());
        broker.until_loaded().await;
        assert_eq!(broker.committed(0).await, 10);
    });
}

#[test]
fn d37_commits_of_strangers_are_fenced() {
    Broker::run(config(), async |broker| {
        let commit = |member: &str, generation: i32| {
            let mut request = Broker::commit_request(&[(0, 7, "")]);
            request.member_id = member.into();
            request.generation_id_or_member_epoch = GenerationId(generation);
            broker.send_commit(request)
        };
        // No such group: only a consumer without membership may begin one.
        assert_eq!(codes(&commit("ghost", 3).answer().await), [ErrorCode::IllegalGeneration]);
        assert_eq!(codes(&commit("", -1).answer().await), [ErrorCode::None]);
        assert_eq!(codes(&commit("ghost", 3).answer().await), [ErrorCode::UnknownMemberId]);
        let member = broker.stable(&[TOPIC]).await;
        assert_eq!(codes(&commit("", -1).answer().await), [ErrorCode::UnknownMemberId]);
        assert_eq!(codes(&commit("ghost", 1).answer().await), [ErrorCode::UnknownMemberId]);
        assert_eq!(codes(&commit(&member.id, 0).answer().await), [ErrorCode::IllegalGeneration]);
        assert_eq!(codes(&commit(&member.id, 1).answer().await), [ErrorCode::None]);
    });
}

#[test]
fn w67_empty_group_ids_have_no_members() {
    Broker::run(config(), async |broker| {
        broker.coordinator.take_over(SlotId::of(""), super::memory_log::MemoryLog::new(&broker.env));
        broker.pass(SECOND).await;
        let join = JoinGroupRequest { group_id: "".into(), ..Broker::join_request("", &[]) };
        assert_eq!(broker.join(join, 9).answer().await.error_code, ErrorCode::InvalidGroupId);
        let mut commit = Broker::commit_request(&[(0, 1, "")]);
        commit.group_id = "".into();
        assert_eq!(codes(&broker.send_commit(commit).answer().await), [ErrorCode::None], "as old clients do");
    });
}

#[test]
fn w52_group_ids_are_only_names() {
    Broker::run(config(), async |mut broker| {
        for group in ["../acls", "a/b", "\0", "ä".repeat(16_000).as_str()] {
            broker.coordinator.take_over(SlotId::of(group), broker.log.next_leadership());
            broker.pass(SECOND).await;
            let mut commit = Broker::commit_request(&[(0, 1, "")]);
            commit.group_id = group.into();
            assert_eq!(codes(&broker.send_commit(commit).answer().await), [ErrorCode::None]);
        }
        broker.restart(config()).await;
        assert!(broker.list(&[], &[]).await.is_ok());
    });
}

#[test]
fn join_answers_follow_the_version() {
    Broker::run(config(), async |broker| {
        let first = broker.join(Broker::join_request("", &[TOPIC]), 4).answer().await;
        assert_eq!((first.error_code, first.generation_id), (ErrorCode::MemberIdRequired, GenerationId(-1)));
        assert!(first.member_id.starts_with("app-"), "{}", first.member_id);
        let joined = broker.join(Broker::join_request(&first.member_id, &[TOPIC]), 4).answer().await;
        assert_eq!((joined.error_code, &joined.member_id), (ErrorCode::None, &first.member_id));
        assert_eq!((&joined.leader, joined.members.len()), (&first.member_id, 1));
        assert_eq!(
            (joined.protocol_type.as_deref(), joined.protocol_name.as_deref()),
            (Some("consumer"), Some("range"))
        );

        let short = JoinGroupRequest { session_timeout_ms: 5999, ..Broker::join_request("", &[]) };
        assert_eq!(broker.join(short, 4).answer().await.error_code, ErrorCode::InvalidSessionTimeout);
        let unknown = broker.join(Broker::join_request("ghost", &[]), 4).answer().await;
        assert_eq!((unknown.error_code, &*unknown.member_id), (ErrorCode::UnknownMemberId, "ghost"));
    });
}

#[test]
fn leave_answers_follow_the_version() {
    Broker::run(config(), async |broker| {
        let member = broker.stable(&[TOPIC]).await;
        let old = |member_id: &str| kaas_proto::kafka::messages::LeaveGroupRequest {
            group_id: GROUP.into(),
            member_id: member_id.into(),
            ..Default::default()
        };
        let leave = async |request, version| {
            broker.send(|reply| GroupOperation::Leave { request, version, reply }).answer().await
        };
        assert_eq!(leave(old("ghost"), 2).await.error_code, ErrorCode::UnknownMemberId);
        assert_eq!(leave(old(&member.id), 0).await.error_code, ErrorCode::None);
        let again = broker.leave(&member).await;
        assert_eq!((again.error_code, again.members[0].error_code), (ErrorCode::None, ErrorCode::UnknownMemberId));
    });
}

#[test]
fn w68_groups_are_listed_and_described() {
    Broker::run(config(), async |broker| {
        assert_eq!(&*broker.describe(GROUP, 5).await.group_state, "Dead");
        assert_eq!(broker.describe(GROUP, 5).await.error_code, ErrorCode::None);
        let absent = broker.describe(GROUP, 6).await;
        assert_eq!((absent.error_code, &*absent.group_state), (ErrorCode::GroupIdNotFound, "Dead"));

        let joined = broker.join(Broker::join_request("", &[TOPIC]), 3).answer().await;
        let described = broker.describe(GROUP, 5).await;
        assert_eq!((&*described.group_state, &*described.protocol_data), ("CompletingRebalance", ""));
        assert_eq!(described.members[0].member_metadata.len(), 0, "not settled yet");
        let member = Membership { id: joined.member_id.to_string(), generation: joined.generation_id };
        broker.sync(&member, &[(&member.id, "work")]).answer().await;

        let described = broker.describe(GROUP, 5).await;
        assert_eq!((&*described.group_state, &*described.protocol_type), ("Stable", "consumer"));
        assert_eq!(described.members[0].member_metadata, super::client::subscription(&[TOPIC]));
        assert_eq!(
            (&described.members[0].member_assignment[..], &*described.members[0].client_id),
            (&b"work"[..], "app")
        );
        for (states, types, found) in [
            (&[][..], &[][..], 1),
            (&["Stable"], &[], 1),
            (&["stable", "dead"], &["CLASSIC"], 1),
            (&["Empty"], &[], 0),
            (&[], &["consumer"], 0),
        ] {
            assert_eq!(broker.list(states, types).await.unwrap().len(), found, "{states:?} {types:?}");
        }
        broker.leave(&member).await;
        broker.pass(SECOND).await;
        let listed = broker.list(&["Empty"], &[]).await.unwrap();
        assert_eq!((&*listed[0].protocol_type, &*listed[0].group_type), ("consumer", "classic"));
        assert_eq!(broker.coordinator.usage().active_groups, 0, "a group without members is not in memory");
    });
}

#[test]
fn groups_are_deleted_for_good() {
    Broker::run(config(), async |mut broker| {
        assert_eq!(broker.delete(GROUP).await, ErrorCode::GroupIdNotFound);
        let member = broker.stable(&[TOPIC]).await;
        assert_eq!(broker.delete(GROUP).await, ErrorCode::NonEmptyGroup);
        broker.leave(&member).await;
        broker.commit(&[(0, 10, "")]).await;
        broker.log.control().latency.set(SECOND);
        let deleted = broker.send(|reply| GroupOperation::Delete { group_id: GROUP.into(), reply });
        // Nothing may begin in it meanwhile.
        let join = broker.join(Broker::join_request("", &[]), 3).answer().await;
        assert_eq!(join.error_code, ErrorCode::CoordinatorNotAvailable);
        assert_eq!(broker.commit(&[(0, 11, "")]).await, [ErrorCode::CoordinatorNotAvailable]);
        assert_eq!(deleted.answer().await.error_code, ErrorCode::None);
        assert_eq!(broker.committed(0).await, -1);
        assert_eq!(broker.delete(GROUP).await, ErrorCode::GroupIdNotFound);
        broker.restart(config()).await;
        assert_eq!(broker.committed(0).await, -1);
        assert_eq!(broker.list(&[], &[]).await.unwrap().len(), 0);
        assert_eq!(broker.stable(&[TOPIC]).await.generation, GenerationId(1), "a new group of the same name");
    });
}

#[test]
fn a_deletion_that_fails_leaves_the_group_alone() {
    Broker::run(config(), async |broker| {
        broker.commit(&[(0, 10, "")]).await;
        *broker.log.control().failure.borrow_mut() = Some(AppendError::VolumeFull);
        assert_eq!(broker.delete(GROUP).await, ErrorCode::CoordinatorNotAvailable);
        *broker.log.control().failure.borrow_mut() = None;
        assert_eq!(broker.commit(&[(1, 11, "")]).await, [ErrorCode::None]);
        assert_eq!((broker.committed(0).await, broker.committed(1).await), (10, 11));
    });
}

#[test]
fn w53_offsets_are_deleted_and_the_others_stay() {
    Broker::run(config(), async |mut broker| {
        assert_eq!(broker.delete_offsets(TOPIC, &[0]).await.error_code, ErrorCode::GroupIdNotFound);
        broker.commit(&[(0, 10, ""), (1, 11, "")]).await;
        let deleted = broker.delete_offsets(TOPIC, &[0]).await;
        assert_eq!(
            (deleted.error_code, deleted.topics[0].partitions[0].error_code),
            (ErrorCode::None, ErrorCode::None)
        );
        broker.restart(config()).await;
        assert_eq!((broker.committed(0).await, broker.committed(1).await), (-1, 11));
        // Of a group with members only what nobody reads.
        broker.stable(&["read"]).await;
        let in_use = broker.delete_offsets("read", &[0]).await;
        assert_eq!(in_use.topics[0].partitions[0].error_code, ErrorCode::GroupSubscribedToTopic);
        let unused = broker.delete_offsets(TOPIC, &[1]).await;
        assert_eq!(unused.topics[0].partitions[0].error_code, ErrorCode::None);
        assert_eq!(broker.committed(1).await, -1);
    });
}

#[test]
fn offsets_of_other_protocol_types_are_not_deleted_under_their_members() {
    Broker::run(config(), async |broker| {
        let request = JoinGroupRequest { protocol_type: "connect".into(), ..Broker::join_request("", &[]) };
        broker.join(request, 3).answer().await;
        assert_eq!(broker.delete_offsets(TOPIC, &[0]).await.error_code, ErrorCode::NonEmptyGroup);
    });
}

#[test]
fn c24_offsets_expire_after_their_retention_and_not_in_use() {
    Broker::run(config(), async |mut broker| {
        broker.commit(&[(0, 10, "")]).await;
        broker.pass(6 * DAY).await;
        broker.restart(config()).await;
        assert_eq!(broker.committed(0).await, 10, "a restart neither forgets nor keeps longer");
        broker.pass(DAY + Duration::from_secs(1200)).await;
        assert_eq!(broker.committed(0).await, -1);
        assert_eq!(broker.list(&[], &[]).await.unwrap().len(), 0, "nothing is left of the group");
        assert_eq!(broker.coordinator.counters().expired_offsets, 1);

        // In use for weeks, then empty: counted from when it became empty.
        let member = broker.stable(&[TOPIC]).await;
        let mut commit = Broker::commit_request(&[(0, 20, "")]);
        (commit.member_id, commit.generation_id_or_member_epoch) = (member.id.as_str().into(), member.generation);
        broker.send_commit(commit).answer().await;
        for _ in 0..20 * 24 * 400 {
            broker.pass(9 * SECOND).await;
            assert_eq!(broker.heartbeat(&member).await, ErrorCode::None);
        }
        assert_eq!(broker.committed(0).await, 20);
        broker.leave(&member).await;
        broker.pass(6 * DAY).await;
        assert_eq!(broker.committed(0).await, 20);
        broker.pass(DAY + Duration::from_secs(1200)).await;
        assert_eq!(broker.committed(0).await, -1);
    });
}

#[test]
fn a_retention_time_of_the_client_counts_for_its_commit() {
    Broker::run(config(), async |broker| {
        let mut commit = Broker::commit_request(&[(0, 10, "")]);
        commit.retention_time_ms = 60_000;
        broker.send_commit(commit).answer().await;
        broker.commit(&[(1, 11, "")]).await;
        broker.pass(Duration::from_secs(1200)).await;
        assert_eq!((broker.committed(0).await, broker.committed(1).await), (-1, 11));
    });
}

#[test]
fn a_sweep_takes_many_groups_in_turns() {
    Broker::run(config(), async |broker| {
        // All of the one slot: ids are tried until they fall into it.
        let slot = SlotId::of(GROUP);
        let groups: Vec<String> = (0..).map(|n| format!("g{n}")).filter(|g| SlotId::of(g) == slot).take(1200).collect();
        let mut pending = Vec::new();
        for group in &groups {
            let mut commit = Broker::commit_request(&[(0, 1, "")]);
            commit.group_id = group.as_str().into();
            pending.push(broker.send_commit(commit));
        }
        for commit in pending {
            assert_eq!(codes(&commit.answer().await), [ErrorCode::None]);
        }
        assert_eq!(broker.coordinator.usage().durable_groups, 1200);
        broker.pass(7 * DAY + Duration::from_secs(1200)).await;
        assert_eq!(broker.coordinator.usage().durable_groups, 0);
    });
}

#[test]
fn c26_a_topic_that_is_created_anew_starts_without_offsets() {
    Broker::run(config(), async |mut broker| {
        broker.commit(&[(0, 10, ""), (1, 11, "")]).await;
        let anew = TopicId([8; 16]);
        let fetch = |id| OffsetFetchRequestTopics {
            name: TOPIC.into(),
            topic_id: id,
            partition_indexes: vec![PartitionIndex(0)],
        };
        let fetched = broker.fetch(Some(vec![fetch(anew)])).await;
        assert_eq!(fetched.topics[0].partitions[0].committed_offset, Offset(-1));

        let mut commit = Broker::commit_request(&[(0, 1, "")]);
        commit.topics[0].topic_id = anew;
        broker.send_commit(commit).answer().await;
        // That the former one is gone is heard late: it must not hit the new one.
        broker.coordinator.execute(GroupOperation::ForgetTopics { topics: vec![TOPIC_ID] });
        broker.pass(SECOND).await;
        let fetched = broker.fetch(Some(vec![fetch(anew)])).await;
        assert_eq!(fetched.topics[0].partitions[0].committed_offset, Offset(1));
        // One that goes while the slot moves is not missed either.
        broker.move_slot(config());
        broker.coordinator.execute(GroupOperation::ForgetTopics { topics: vec![anew] });
        broker.pass(SECOND).await;
        assert!(broker.fetch(None).await.topics.is_empty());
        broker.restart(config()).await;
        assert!(broker.fetch(None).await.topics.is_empty());
    });
}

#[test]
fn offsets_of_a_topic_that_went_while_nobody_led_the_slot_go_after_the_takeover() {
    Broker::run(config(), async |mut broker| {
        broker.commit(&[(0, 10, ""), (1, 11, "")]).await;
        broker.restart(config()).await;
        let retain = |ids: &[TopicId]| GroupOperation::RetainTopics { topics: Arc::new(ids.iter().copied().collect()) };
        let anew = TopicId([8; 16]);
        // The list may be older than the commit.
        broker.coordinator.execute(retain(&[anew]));
        broker.pass(GONE_TOPIC_AGE / 2).await;
        broker.commit(&[(1, 12, "")]).await;
        broker.pass(GONE_TOPIC_AGE / 2 + SECOND).await;
        broker.coordinator.execute(retain(&[]));
        broker.pass(SECOND).await;
        assert_eq!((broker.committed(0).await, broker.committed(1).await), (10, 12), "one of them is young");
        broker.pass(GONE_TOPIC_AGE).await;
        broker.coordinator.execute(retain(&[anew, TOPIC_ID]));
        broker.pass(SECOND).await;
        assert_eq!(broker.committed(0).await, 10, "the topic is there");
        // Another one has its name now.
        broker.coordinator.execute(retain(&[anew]));
        broker.pass(SECOND).await;
        assert!(broker.fetch(None).await.topics.is_empty());
        broker.restart(config()).await;
        assert!(broker.fetch(None).await.topics.is_empty());
    });
}

#[test]
fn bounds_are_kept_and_counted() {
    let limits = GroupLimits {
        active_groups: 1,
        durable_groups: 1,
        offsets: 3,
        parked_requests: 1,
        partitions_per_request: 4,
        ..GroupLimits::default()
    };
    Broker::run(GroupConfig { limits, ..config() }, async |broker| {
        let slot = SlotId::of(GROUP);
        let other = (0..).map(|n| format!("g{n}")).find(|group| SlotId::of(group) == slot).unwrap();
        broker.commit(&[(0, 1, ""), (1, 1, "")]).await;
        assert_eq!(broker.commit(&[(2, 1, ""), (3, 1, "")]).await, [ErrorCode::InvalidCommitOffsetSize; 2]);
        let mut commit = Broker::commit_request(&[(0, 1, "")]);
        commit.group_id = other.as_str().into();
        assert_eq!(codes(&broker.send_commit(commit).answer().await), [ErrorCode::CoordinatorNotAvailable]);

        let parked = broker.join(Broker::join_request("", &[]), 3);
        let refused = broker.join(Broker::join_request("", &[]), 3).answer().await;
        assert_eq!(refused.error_code, ErrorCode::CoordinatorNotAvailable);
        assert_eq!(parked.answer().await.error_code, ErrorCode::None);
        let join = JoinGroupRequest { group_id: other.into(), ..Broker::join_request("", &[]) };
        assert_eq!(broker.join(join, 3).answer().await.error_code, ErrorCode::CoordinatorNotAvailable);

        let unbounded = OffsetFetchRequestTopics {
            name: TOPIC.into(),
            topic_id: TOPIC_ID,
            partition_indexes: vec![PartitionIndex(0); 5],
        };
        assert_eq!(broker.fetch(Some(vec![unbounded])).await.error_code, ErrorCode::InvalidRequest);
        let mut protocols = Broker::join_request("", &[]);
        protocols.protocols = vec![protocols.protocols[0].clone(); 101];
        assert_eq!(broker.join(protocols, 3).answer().await.error_code, ErrorCode::InconsistentGroupProtocol);

        let counters = broker.coordinator.counters();
        assert_eq!((counters.offsets_over_limit, counters.groups_over_limit, counters.parked_over_limit), (2, 2, 1));
        let mut metrics = ShardMetrics::default();
        broker.coordinator.report(&mut metrics);
        let refused = metrics.values.iter().filter(|(name, _, _)| name.name == "kaas_group_refusals_total");
        assert!((refused.map(|(_, _, value)| value).sum::<f64>() - 5.0).abs() < f64::EPSILON);
    });
}

#[test]
fn a_queue_that_is_too_long_refuses_commits() {
    let limits = GroupLimits { queued_bytes: 2000, ..GroupLimits::default() };
    Broker::run(GroupConfig { limits, ..config() }, async |broker| {
        let pending: Vec<_> = (0..100).map(|p| broker.send_commit(Broker::commit_request(&[(p, 5, "")]))).collect();
        let mut refused = 0;
        for commit in pending {
            refused += usize::from(codes(&commit.answer().await) == [ErrorCode::CoordinatorNotAvailable]);
        }
        assert!(refused > 50, "{refused}");
        assert_eq!(broker.coordinator.counters().queue_over_limit, u64::try_from(refused).unwrap());
    });
}

#[test]
fn snapshots_keep_the_log_short_and_say_everything() {
    let snapshots = SnapshotPolicy { after_bytes: 20_000, chunk_bytes: 500 };
    let config = GroupConfig { snapshots, ..config() };
    Broker::run(config, async |mut broker| {
        let member = broker.stable(&[TOPIC]).await;
        for round in 0..300 {
            let mut commit = Broker::commit_request(&[(round % 40, round.into(), "note")]);
            (commit.member_id, commit.generation_id_or_member_epoch) = (member.id.as_str().into(), member.generation);
            assert_eq!(codes(&broker.send_commit(commit).answer().await), [ErrorCode::None]);
        }
        broker.pass(SECOND).await;
        assert!(broker.coordinator.counters().snapshots >= 2, "{:?}", broker.coordinator.counters());
        assert!(broker.log.start() > Offset(0));
        broker.restart(config).await;
        for partition in 0..40 {
            let expected = (0..300).filter(|round| round % 40 == partition).max().unwrap();
            assert_eq!(broker.committed(partition).await, i64::from(expected));
        }
        assert_eq!(broker.heartbeat(&member).await, ErrorCode::None);
        let replayed = broker.coordinator.counters().replayed_records;
        assert!(replayed < 250, "{replayed} records for 40 offsets and one group");
    });
}

#[test]
fn members_are_bounded_over_all_groups() {
    let limits = GroupLimits { members: 2, ..GroupLimits::default() };
    Broker::run(GroupConfig { limits, ..config() }, async |broker| {
        let first = broker.join(Broker::join_request("", &[]), 4).answer().await;
        let second = broker.join(Broker::join_request("", &[]), 3);
        assert_eq!(broker.coordinator.usage().members, 2);
        let refused = broker.join(Broker::join_request("", &[]), 4).answer().await;
        assert_eq!(refused.error_code, ErrorCode::CoordinatorNotAvailable);
        assert_eq!(broker.coordinator.counters().members_over_limit, 1);
        // Who has an id already is welcome.
        let first = broker.join(Broker::join_request(&first.member_id, &[]), 4);
        assert_eq!(first.answer().await.error_code, ErrorCode::None);
        assert_eq!(second.answer().await.error_code, ErrorCode::None);
        broker.pass(DAY).await;
        assert_eq!((broker.coordinator.usage().members, broker.coordinator.usage().active_groups), (0, 0));
    });
}

/// However many groups there are and however much each of them wants to be remembered: who is there already goes on.
#[test]
fn bytes_are_bounded_over_all_groups() {
    let limits = GroupLimits { held_bytes: 3000, ..GroupLimits::default() };
    Broker::run(GroupConfig { limits, ..config() }, async |broker| {
        let held = |broker: &Broker| broker.coordinator.usage().held_bytes;
        assert_eq!(broker.commit(&[(0, 1, &"m".repeat(1000))]).await, [ErrorCode::None]);
        let with_offset = held(&broker);
        assert!((1000..1100).contains(&with_offset), "{with_offset}");
        assert_eq!(broker.commit(&[(0, 2, &"n".repeat(1000))]).await, [ErrorCode::None]);
        assert_eq!(held(&broker), with_offset, "it has taken the place of the former one");
        assert_eq!(broker.commit(&[(1, 1, &"m".repeat(2500))]).await, [ErrorCode::CoordinatorNotAvailable]);
        assert_eq!(broker.commit(&[(0, 3, &"m".repeat(1100))]).await, [ErrorCode::None]);

        let subscribing = |member: &str, bytes: usize| {
            let mut join = Broker::join_request(member, &[]);
            join.protocols[0].metadata = vec![7; bytes].into();
            join
        };
        let refused = broker.join(subscribing("", 2500), 3).answer().await;
        assert_eq!(refused.error_code, ErrorCode::CoordinatorNotAvailable);
        // With the handshake it is refused when it comes to the point, too.
        let id = broker.join(subscribing("", 10), 4).answer().await.member_id;
        let refused = broker.join(subscribing(&id, 2500), 4).answer().await;
        assert_eq!(refused.error_code, ErrorCode::CoordinatorNotAvailable);
        let joined = broker.join(subscribing(&id, 100), 4).answer().await;
        assert_eq!(joined.error_code, ErrorCode::None);
        assert_eq!(broker.coordinator.counters().bytes_over_limit, 3);
        broker.pass(DAY).await;
        assert!(held(&broker) < 1300, "members that are gone hold nothing: {}", held(&broker));
    });
}
