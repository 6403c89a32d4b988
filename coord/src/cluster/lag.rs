//! Which brokers have not followed an assignment that was written a while ago: each says with its heartbeats what it follows.
//!
//! Nothing is taken from them for it. A broker that does not see the new file leads what it was told before, and the fences
//! stop it where another one was told since. But it serves nothing that is new, and somebody has to look at its volume.

use std::collections::BTreeMap;
use std::time::Duration;

use kaas_proto::types::{AssignmentVersion, BrokerId, ControllerEpoch};
use tokio::time::Instant;

/// How long a broker has to follow: it is told at once and with each heartbeat, looks once a second anyway, and says so within
/// another one.
pub const LONGEST_LAG: Duration = Duration::from_secs(5);

type Generation = (ControllerEpoch, AssignmentVersion);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Follows {
    generation: Generation,
    /// When it came.
    since: Instant,
    is_behind: bool,
}

/// Control thread, of the controller. Pure: the caller says what time it is.
#[derive(Debug, Default)]
pub struct Lag {
    brokers: BTreeMap<BrokerId, Follows>,
    newest: Generation,
    /// Written long enough ago to be followed by all.
    required: Generation,
    /// The one that is required next, and since when it is there.
    next: Option<(Generation, Instant)>,
}

/// What a broker follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row {
    pub broker: BrokerId,
    pub generation: Generation,
    pub is_behind: bool,
}

impl Lag {
    /// An assignment was written.
    pub fn written(&mut self, generation: Generation, now: Instant) {
        self.newest = generation;
        self.next.get_or_insert((generation, now));
    }

    /// A broker follows this one.
    pub fn heard(&mut self, broker: BrokerId, generation: Generation, now: Instant) {
        let follows = self.brokers.entry(broker).or_insert(Follows { generation, since: now, is_behind: false });
        follows.generation = generation;
        follows.is_behind &= generation < self.required;
    }

    /// The session of a broker has ended.
    pub fn gone(&mut self, broker: BrokerId) {
        self.brokers.remove(&broker);
    }

    /// Looks at the clock. Returns the brokers that have just been found behind.
    pub fn look(&mut self, now: Instant) -> Vec<Row> {
        if let Some((generation, since)) = self.next
            && now.duration_since(since) >= LONGEST_LAG
        {
            self.required = generation;
            self.next = (generation < self.newest).then_some((self.newest, now));
        }
        let required = self.required;
        let mut found = Vec::new();
        for (&broker, follows) in &mut self.brokers {
            let had_time = now.duration_since(follows.since) >= LONGEST_LAG;
            let is_behind = had_time && follows.generation < required;
            if is_behind && !follows.is_behind {
                found.push(Row { broker, generation: follows.generation, is_behind });
            }
            follows.is_behind = is_behind;
        }
        found
    }

    /// In order of broker.
    #[must_use]
    pub fn rows(&self) -> Vec<Row> {
        let row = |(&broker, follows): (&BrokerId, &Follows)| Row {
            broker,
            generation: follows.generation,
            is_behind: follows.is_behind,
        };
        self.brokers.iter().map(row).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn generation(version: i64) -> Generation {
        (ControllerEpoch(3), AssignmentVersion(version))
    }

    fn behind(lag: &Lag) -> Vec<BrokerId> {
        lag.rows().into_iter().filter(|row| row.is_behind).map(|row| row.broker).collect()
    }

    #[test]
    fn who_does_not_follow_in_time_is_found_once() {
        let (mut lag, now) = (Lag::default(), Instant::now());
        lag.written(generation(7), now);
        lag.heard(BrokerId(1), generation(7), now);
        lag.heard(BrokerId(2), generation(6), now);
        assert_eq!(lag.look(now), []);
        assert_eq!(behind(&lag), [], "it has its time");
        let late = now + LONGEST_LAG;
        let row = Row { broker: BrokerId(2), generation: generation(6), is_behind: true };
        assert_eq!(lag.look(late), [row]);
        assert_eq!((lag.look(late), behind(&lag)), (vec![], vec![BrokerId(2)]), "said once");
        lag.heard(BrokerId(2), generation(7), late);
        assert_eq!((lag.look(late), behind(&lag)), (vec![], vec![]));
        lag.gone(BrokerId(2));
        assert_eq!(lag.rows().len(), 1);
        // Whoever comes has its time, too.
        lag.heard(BrokerId(3), Default::default(), late);
        assert_eq!(lag.look(late), []);
        assert_eq!(lag.look(late + LONGEST_LAG).len(), 1);
    }

    #[test]
    fn one_that_is_written_before_another_was_followed_gives_no_more_time() {
        let (mut lag, now) = (Lag::default(), Instant::now());
        lag.heard(BrokerId(1), generation(6), now);
        for second in 0..4 {
            lag.written(generation(7 + i64::from(second)), now + Duration::from_secs(1) * second);
        }
        assert_eq!(lag.look(now + LONGEST_LAG).len(), 1);
        // It follows the first of them; the last has its own time.
        lag.heard(BrokerId(1), generation(7), now + LONGEST_LAG);
        assert_eq!((lag.look(now + LONGEST_LAG), behind(&lag)), (vec![], vec![]));
        assert_eq!(lag.look(now + LONGEST_LAG * 2).len(), 1);
    }
}
