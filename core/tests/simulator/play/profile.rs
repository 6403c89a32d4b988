//! What kind of trouble a seed gets.

use std::time::Duration;

use kaas_core::env::sim::{Faults, SimRandom};

use super::broker::Subject;
use super::cluster::Setup;
use super::lasting::Lasting;
use super::scenario::topic_config;

/// One thing that may happen in a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    SendOnce,
    SendIdempotent,
    /// A transaction begins; it ends by itself.
    Transact,
    Commit,
    LookAtCommits,
    TakeOver,
    /// Two brokers are told to lead at nearly the same time, while records are on their way.
    Duel,
    Relinquish,
    Pause,
    Resume,
    Crash,
    LosePower,
    DeleteRecords,
    Read,
    AskEndsOfEpochs,
    Trouble,
    Calm,
    FillVolume,
    /// There is hardly any room left.
    FillUp,
    /// There is room for a while.
    MakeRoom,
    /// A broker that has its reserve leads, although there is no room for a byte.
    LeadWithoutRoom,
    SetClock,
    LongSleep,
}

#[derive(Clone, Debug)]
pub struct Profile {
    pub name: &'static str,
    /// What goes wrong while there is trouble.
    pub trouble: Faults,
    /// And otherwise.
    pub calm: Faults,
    pub steps: Vec<(Step, u32)>,
    pub count: usize,
    pub brokers: usize,
    pub nodes: u32,
    pub names_are_durable: bool,
    pub removed_files_are_stale: bool,
    pub settings: Vec<(&'static str, &'static str)>,
    pub retention: Option<Duration>,
    pub subject: Subject,
    /// What compaction must leave; `None` without compaction.
    pub lasting: Option<Lasting>,
    /// Memory for the keys of a pass of compaction.
    pub map_bytes: usize,
    /// The size of the volume while there is room on it.
    pub capacity: Option<u64>,
    /// Each broker leads another partition, which is appended to in every step, and may hardly have any segment open.
    pub is_crowded: bool,
}

const COMMON: [(Step, u32); 7] = [
    (Step::SendOnce, 10),
    (Step::SendIdempotent, 10),
    (Step::TakeOver, 4),
    (Step::DeleteRecords, 1),
    (Step::Read, 6),
    (Step::AskEndsOfEpochs, 1),
    (Step::Resume, 3),
];

impl Profile {
    /// Seeds take turns.
    pub fn of(seed: u64, random: &SimRandom) -> Self {
        let trouble = |number| match number {
            0 | 3 => Self::duels(),
            1 => Self::failing(),
            2 => Self::crashing(),
            4 => Self::powerless(),
            6 => Self::filling(),
            _ => Self::aging(),
        };
        let mut profile = match seed % 8 {
            6 => trouble(seed / 8 % 7).compacted(random),
            7 => trouble(seed / 8 % 7).of_slot(),
            3 if seed / 8 % 2 == 1 => trouble(6),
            number => trouble(number),
        };
        profile.brokers = random.of(&[2, 3, 3]);
        profile.nodes = random.of(&[1, 2, 3]);
        profile.removed_files_are_stale = random.chance(500);
        profile.is_crowded = seed / 8 % 3 == 1;
        profile
    }

    fn new(name: &'static str, steps: &[(Step, u32)]) -> Self {
        Self {
            name,
            trouble: Faults::NONE,
            calm: Faults::NONE,
            steps: COMMON.iter().chain(steps).copied().collect(),
            count: 80,
            brokers: 3,
            nodes: 3,
            names_are_durable: true,
            removed_files_are_stale: false,
            settings: Vec::new(),
            retention: None,
            subject: Subject::Partition,
            lasting: None,
            map_bytes: 1 << 20,
            capacity: None,
            is_crowded: false,
        }
    }

    /// The same trouble for a compacted topic, with transactions. Its clocks are right: a tombstone is as old as they say.
    fn compacted(mut self, random: &SimRandom) -> Self {
        let policy = if self.retention.is_some() { "compact,delete" } else { "compact" };
        self.steps.retain(|&(step, _)| step != Step::SetClock);
        self.steps.extend([(Step::Transact, 6), (Step::LongSleep, 4)]);
        self.settings.extend([
            ("cleanup.policy", policy),
            ("segment.ms", "1000"),
            ("min.cleanable.dirty.ratio", "0.01"),
            ("delete.retention.ms", "15000"),
        ]);
        self.lasting = Some(Lasting { tombstones: Duration::from_secs(15) });
        self.map_bytes = random.of(&[128, 1 << 20, 1 << 20]);
        Self { name: "compacted", ..self }
    }

    /// The same trouble for a coordinator slot.
    fn of_slot(self) -> Self {
        let is_for_records = |step| {
            matches!(
                step,
                Step::SendOnce | Step::SendIdempotent | Step::DeleteRecords | Step::Duel | Step::AskEndsOfEpochs
            )
        };
        let mut steps = self.steps.clone();
        steps.retain(|&(step, _)| !is_for_records(step) || step == Step::Duel);
        steps.extend([(Step::Commit, 25), (Step::LookAtCommits, 8)]);
        // As the control thread configures slots.
        let settings = vec![("cleanup.policy", ""), ("retention.ms", "-1")];
        Self { name: "slot", steps, settings, subject: Subject::Slot, retention: None, ..self }
    }

    /// Brokers take the partition from each other; nothing fails, everything is slow.
    fn duels() -> Self {
        let slow = Faults {
            slow_rate: 250,
            slow: Duration::from_millis(40),
            split_rate: 300,
            long_write_rate: 300,
            ..Faults::NONE
        };
        let steps = [(Step::Duel, 25), (Step::Pause, 4), (Step::Resume, 4), (Step::Relinquish, 1)];
        Self { trouble: slow, calm: slow, ..Self::new("duels", &steps) }
    }

    /// Operations fail, hang, and happen nevertheless.
    fn failing() -> Self {
        let trouble = Faults {
            slow_rate: 100,
            hang_rate: 3,
            refusal_rate: 20,
            unknown_rate: 60,
            split_rate: 300,
            late: Duration::from_secs(3),
            ..Faults::NONE
        };
        let steps =
            [(Step::Trouble, 4), (Step::Calm, 3), (Step::FillVolume, 1), (Step::Pause, 1), (Step::LongSleep, 1)];
        Self { trouble, ..Self::new("failing", &steps) }
    }

    /// Brokers are killed and start again.
    fn crashing() -> Self {
        let late = Duration::from_secs(5);
        let slow = Faults { slow_rate: 100, split_rate: 500, long_write_rate: 100, late, ..Faults::NONE };
        let steps = [(Step::Crash, 6), (Step::Duel, 3), (Step::Pause, 2), (Step::Relinquish, 2), (Step::LongSleep, 1)];
        Self { trouble: slow, calm: slow, ..Self::new("crashing", &steps) }
    }

    /// A local disk that loses what was not synced.
    fn powerless() -> Self {
        let slow = Faults { slow_rate: 100, split_rate: 300, ..Faults::NONE };
        let steps = [(Step::LosePower, 4), (Step::Crash, 2), (Step::Relinquish, 2), (Step::LongSleep, 1)];
        Self { trouble: slow, calm: slow, names_are_durable: false, ..Self::new("powerless", &steps) }
    }

    /// Segments roll by time and retention deletes them; clocks are set.
    fn aging() -> Self {
        let slow = Faults { slow_rate: 100, split_rate: 300, ..Faults::NONE };
        let steps = [
            (Step::LongSleep, 8),
            (Step::SetClock, 1),
            (Step::DeleteRecords, 3),
            (Step::Crash, 2),
            (Step::Duel, 3),
            (Step::Pause, 2),
            (Step::Relinquish, 2),
        ];
        Self {
            trouble: slow,
            calm: slow,
            settings: vec![("segment.ms", "2000"), ("retention.ms", "60000")],
            retention: Some(Duration::from_secs(60)),
            ..Self::new("aging", &steps)
        }
    }

    /// The volume is full again and again; brokers keep a reserve for that.
    fn filling() -> Self {
        let slow = Faults { slow_rate: 100, split_rate: 300, ..Faults::NONE };
        let steps = [
            (Step::FillUp, 6),
            (Step::LeadWithoutRoom, 6),
            (Step::MakeRoom, 4),
            (Step::DeleteRecords, 4),
            (Step::LongSleep, 4),
            (Step::Crash, 2),
            (Step::Duel, 2),
            (Step::Pause, 1),
            (Step::Relinquish, 1),
        ];
        // As small as a volume that has the smallest reserve.
        let capacity = Some(1000 << 20);
        Self {
            trouble: slow,
            calm: slow,
            settings: vec![("segment.ms", "2000")],
            capacity,
            ..Self::new("filling", &steps)
        }
    }

    pub fn setup(&self) -> Setup {
        let Self { subject, brokers, nodes, map_bytes, capacity, is_crowded, .. } = *self;
        Setup { subject, config: topic_config(&self.settings), brokers, nodes, map_bytes, capacity, is_crowded }
    }

    pub fn step(&self, random: &SimRandom) -> Step {
        let total: u32 = self.steps.iter().map(|(_, weight)| weight).sum();
        let mut left = random.below(u64::from(total));
        for &(step, weight) in &self.steps {
            match left.checked_sub(u64::from(weight)) {
                None => return step,
                Some(rest) => left = rest,
            }
        }
        unreachable!("a number below the sum of the weights")
    }
}
