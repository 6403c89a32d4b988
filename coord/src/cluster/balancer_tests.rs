use std::collections::{BTreeMap, BTreeSet};

use kaas_proto::types::BrokerId;
use proptest::prelude::*;

use super::*;

fn brokers(ids: &[i32]) -> BTreeSet<BrokerId> {
    ids.iter().copied().map(BrokerId).collect()
}

/// One letter per partition, `a` for broker 0 and so on, `.` for none; one word per topic.
fn parse(plan: &str) -> Vec<Placement> {
    let words = plan.split_whitespace().enumerate();
    let leader = |letter: u8| (letter != b'.').then(|| BrokerId(i32::from(letter - b'a')));
    words
        .flat_map(|(topic, word)| word.bytes().map(move |letter| Placement { topic, leader: leader(letter) }))
        .collect()
}

fn show(partitions: &[Placement], leaders: &[BrokerId]) -> String {
    let mut shown = String::new();
    for (index, (placement, leader)) in partitions.iter().zip(leaders).enumerate() {
        if index > 0 && partitions[index - 1].topic != placement.topic {
            shown.push(' ');
        }
        shown.push(char::from(b'a' + u8::try_from(leader.0).expect("a letter")));
    }
    shown
}

#[test]
fn golden_plans() {
    let mut wrong = Vec::new();
    for (before, alive, after, why) in [
        ("...... ...", &[0, 1, 2][..], "abcabc abc", "all new: round robin"),
        ("ababab", &[0, 1], "ababab", "nothing to do"),
        ("abcabc", &[0, 1], "abaabb", "the orphans of the third go where fewest are"),
        ("ababab", &[0, 1, 2], "ababcc", "a third broker gets its share, no more"),
        ("aaa", &[0, 1, 2], "acb", "one topic on one broker is evened out"),
        ("aab. bbcc", &[0, 1, 2], "acbc bbca", "one odd pair is traded"),
        ("aa bb", &[0, 1], "ab ba", "even brokers, uneven topics: one trade"),
        (". . . .", &[0, 1, 2], "a b c a", "topics of one partition spread over the cluster"),
        ("aaaa .", &[0], "aaaa a", "alone"),
        ("", &[0, 1], "", "nothing"),
    ] {
        let partitions = parse(before);
        let found = show(&partitions, &balance(&partitions, &brokers(alive)));
        if found != after {
            wrong.push(format!("{before} became {found}, not {after}: {why}"));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

fn counts(partitions: &[Placement], leaders: &[BrokerId], alive: &BTreeSet<BrokerId>) -> (Vec<usize>, Vec<Vec<usize>>) {
    let topics = partitions.iter().map(|p| p.topic + 1).max().unwrap_or(0);
    let index: BTreeMap<BrokerId, usize> = alive.iter().copied().enumerate().map(|(i, b)| (b, i)).collect();
    let mut of_topic = vec![vec![0; alive.len()]; topics];
    let mut total = vec![0; alive.len()];
    for (placement, leader) in partitions.iter().zip(leaders) {
        of_topic[placement.topic][index[leader]] += 1;
        total[index[leader]] += 1;
    }
    (total, of_topic)
}

fn spread(counts: &[usize]) -> usize {
    counts.iter().max().unwrap_or(&0) - counts.iter().min().unwrap_or(&0)
}

fn after(partitions: &[Placement], leaders: &[BrokerId]) -> Vec<Placement> {
    partitions.iter().zip(leaders).map(|(p, &leader)| Placement { topic: p.topic, leader: Some(leader) }).collect()
}

prop_compose! {
    fn clusters()(
        sizes in proptest::collection::vec(1_usize..9, 0..12),
        alive in proptest::collection::btree_set((0..7).prop_map(BrokerId), 1..6),
    )(
        leaders in proptest::collection::vec(proptest::option::weighted(0.8, (0..7).prop_map(BrokerId)), sizes.iter().sum::<usize>()),
        sizes in Just(sizes),
        alive in Just(alive),
    ) -> (Vec<Placement>, BTreeSet<BrokerId>) {
        let topics = sizes.iter().enumerate().flat_map(|(topic, &size)| std::iter::repeat_n(topic, size));
        (topics.zip(leaders).map(|(topic, leader)| Placement { topic, leader }).collect(), alive)
    }
}

proptest! {
    #[test]
    fn brokers_and_topics_are_even((partitions, alive) in clusters()) {
        let leaders = balance(&partitions, &alive);
        prop_assert!(leaders.iter().all(|leader| alive.contains(leader)));
        let (total, of_topic) = counts(&partitions, &leaders, &alive);
        prop_assert!(spread(&total) <= 1, "{total:?}");
        prop_assert!(of_topic.iter().all(|topic| spread(topic) <= 1), "{of_topic:?}");
    }

    #[test]
    fn doing_it_again_changes_nothing((partitions, alive) in clusters()) {
        let leaders = balance(&partitions, &alive);
        prop_assert_eq!(&balance(&after(&partitions, &leaders), &alive), &leaders);
    }

    /// What is even stays as it is, to the last partition, however it came to be.
    #[test]
    fn a_leader_that_is_alive_stays_unless_evening_needs_it((partitions, alive) in clusters(), turn in 0_usize..6) {
        let brokers: Vec<BrokerId> = alive.iter().copied().collect();
        let turned = |leader: &BrokerId| {
            let index = brokers.binary_search(leader).expect("an alive one");
            brokers[(index + turn) % brokers.len()]
        };
        let even: Vec<BrokerId> = balance(&partitions, &alive).iter().map(turned).collect();
        prop_assert_eq!(balance(&after(&partitions, &even), &alive), even);
    }

    /// Where topics are even by themselves, exactly as many move as are too many on their brokers.
    #[test]
    fn evening_moves_no_more_than_it_takes(
        leaders in proptest::collection::vec(proptest::option::weighted(0.8, (0..7).prop_map(BrokerId)), 0..40),
        alive in proptest::collection::btree_set((0..7).prop_map(BrokerId), 1..6),
    ) {
        let partitions: Vec<Placement> =
            leaders.into_iter().enumerate().map(|(topic, leader)| Placement { topic, leader }).collect();
        let after = balance(&partitions, &alive);
        let inherited = |p: &Placement| p.leader.filter(|leader| alive.contains(leader));
        let moved = partitions.iter().zip(&after).filter(|(p, leader)| inherited(p).is_some_and(|l| l != **leader)).count();
        let mut kept: Vec<usize> = alive.iter()
            .map(|broker| partitions.iter().filter(|p| inherited(p) == Some(*broker)).count()).collect();
        kept.sort_unstable_by(|a, b| b.cmp(a));
        let (each, odd) = (partitions.len() / alive.len(), partitions.len() % alive.len());
        let too_many = |(rank, &count): (usize, &usize)| count.saturating_sub(each + usize::from(rank < odd));
        prop_assert_eq!(moved, kept.iter().enumerate().map(too_many).sum::<usize>());
    }

    /// In an even cluster a new topic makes no inherited partition move, as long as its partitions alone can even it out.
    #[test]
    fn what_is_new_moves_first((partitions, alive) in clusters(), more in 1_usize..40) {
        let mut grown = after(&partitions, &balance(&partitions, &alive));
        let topic = grown.iter().map(|p| p.topic + 1).max().unwrap_or(0);
        grown.extend((0..more).map(|_| Placement { topic, leader: None }));
        let leaders = balance(&grown, &alive);
        let moved = grown.iter().zip(&leaders).filter(|(p, leader)| p.leader.is_some_and(|l| l != **leader)).count();
        prop_assert_eq!(moved, 0);
    }

    /// A broker that joins an even cluster gets its share, and nothing moves between the others but by trades.
    #[test]
    fn a_broker_that_joins_gets_its_share((partitions, alive) in clusters()) {
        let grown = after(&partitions, &balance(&partitions, &alive));
        let mut joined = alive.clone();
        joined.insert(BrokerId(9));
        let leaders = balance(&grown, &joined);
        let share = grown.len() / joined.len();
        let got = leaders.iter().filter(|&&leader| leader == BrokerId(9)).count();
        prop_assert!(got == share || got == share + 1);
    }
}

#[test]
fn ten_thousand_partitions_on_a_hundred_brokers() {
    let partitions: Vec<Placement> = (0..10_000)
        .map(|p| Placement { topic: p / 7, leader: Some(BrokerId(i32::try_from(p % 50).expect("small"))) })
        .collect();
    let alive: BTreeSet<BrokerId> = (10..110).map(BrokerId).collect();
    let leaders = balance(&partitions, &alive);
    let (total, of_topic) = counts(&partitions, &leaders, &alive);
    assert_eq!((total.iter().min(), total.iter().max()), (Some(&100), Some(&100)));
    assert!(of_topic.iter().all(|topic| spread(topic) <= 1));
}
