#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

use proptest::prelude::*;

use super::*;

const MS: fn(u64) -> Duration = Duration::from_millis;
const T: Timings = Timings::DEFAULT;

fn holder(name: &str) -> Holder {
    Holder { name: name.to_owned(), incarnation: format!("{name}-1"), heartbeat: format!("{name}:9094") }
}

fn version(resource_version: &str) -> Version {
    Version { uid: "u".to_owned(), resource_version: resource_version.to_owned() }
}

fn record(version: &str, held_by: Option<&str>, transitions: i32) -> Record {
    Record {
        version: self::version(version),
        holder: held_by.map(holder),
        transitions,
        lease_duration: Some(T.lease_duration),
        released: held_by.is_none(),
    }
}

/// As it is when it was just created.
fn new(version: &str) -> Record {
    Record { version: self::version(version), holder: None, transitions: 0, lease_duration: None, released: false }
}

fn claim(version: &str, transitions: i32, acquired: bool) -> Action {
    Action::Claim { version: self::version(version), transitions, acquired }
}

/// A candidate, and a clock that is put forward by hand.
struct Script {
    election: Election,
    now: Instant,
}

impl Script {
    fn new(name: &str) -> Self {
        let now = Instant::now();
        Self { election: Election::new(holder(name), T, 7, now), now }
    }

    /// Waits for the next step, and answers it at once.
    fn step(&mut self, expected: &Action, answer: Answer) -> Duration {
        let (at, action) = self.election.next(self.now, 0).unwrap();
        let waited = at.saturating_duration_since(self.now);
        self.now = self.now.max(at);
        assert_eq!(action, *expected);
        self.election.answered(&action, answer, self.now, self.now);
        waited
    }

    /// Looks at a new Lease until it may be claimed.
    fn wait(&mut self, lease: &Record) {
        let start = self.now;
        loop {
            let (at, action) = self.election.next(self.now, 0).unwrap();
            assert!(at.saturating_duration_since(start) < T.lease_duration + T.retry_period * 13 / 10);
            if action != Action::Look {
                assert!(at - start >= T.lease_duration);
                self.now = at;
                return;
            }
            self.step(&Action::Look, Answer::Present(lease.clone()));
        }
    }

    fn standing(&self) -> Standing {
        self.election.standing(self.now)
    }
}

#[test]
fn the_first_one_creates_the_lease_and_wins() {
    let mut script = Script::new("kaas-0");
    script.step(&Action::Look, Answer::Absent);
    script.step(&Action::Create, Answer::Present(new("1")));
    script.wait(&new("1"));
    script.step(&claim("1", 1, true), Answer::Present(record("2", Some("kaas-0"), 1)));
    let act_until = script.now + T.renew_deadline;
    assert_eq!(script.standing(), Standing::Holding { transitions: 1, act_until });
    let waited = script.step(&claim("2", 1, false), Answer::Present(record("3", Some("kaas-0"), 1)));
    assert!(waited >= T.retry_period * 8 / 10 && waited <= T.retry_period * 12 / 10, "{waited:?}");
}

#[test]
fn the_floor_counts_and_so_does_what_was_seen() {
    let mut script = Script::new("kaas-0");
    script.step(&Action::Look, Answer::Present(record("1", Some("kaas-1"), 7)));
    script.step(&Action::Look, Answer::Absent);
    script.step(&Action::Create, Answer::Present(new("5")));
    script.wait(&new("5"));
    let (_, action) = script.election.next(script.now, 3).unwrap();
    assert_eq!(action, claim("5", 8, true));
    let (_, action) = script.election.next(script.now, 11).unwrap();
    assert_eq!(action, claim("5", 12, true));
}

#[test]
fn what_another_holds_is_left_alone_until_it_was_unchanged_for_its_time() {
    let mut script = Script::new("kaas-0");
    let start = script.now;
    let seen = record("4", Some("kaas-1"), 9);
    script.step(&Action::Look, Answer::Present(seen.clone()));
    let follower = Standing::Follower { transitions: 9, holder: holder("kaas-1") };
    assert_eq!(script.standing(), follower);
    script.wait(&seen);
    assert_eq!(script.standing(), Standing::Unknown);
    assert_eq!(script.election.standing(start + T.lease_duration - MS(1)), follower);
    script.step(&claim("4", 10, true), Answer::Present(record("5", Some("kaas-0"), 10)));
    assert!(matches!(script.standing(), Standing::Holding { transitions: 10, .. }));
}

#[test]
fn a_release_is_followed_at_the_next_look() {
    let mut script = Script::new("kaas-0");
    script.step(&Action::Look, Answer::Present(record("4", Some("kaas-1"), 9)));
    let waited = script.step(&Action::Look, Answer::Present(record("5", None, 9)));
    assert!(waited <= T.retry_period * 12 / 10);
    let waited = script.step(&claim("5", 10, true), Answer::Present(record("6", Some("kaas-0"), 10)));
    assert_eq!(waited, Duration::ZERO);
}

#[test]
fn of_two_claims_one_conflicts() {
    let mut script = Script::new("kaas-0");
    script.step(&Action::Look, Answer::Present(record("4", None, 9)));
    script.step(&claim("4", 10, true), Answer::Conflict);
    assert_eq!(script.standing(), Standing::Unknown);
    let waited = script.step(&Action::Look, Answer::Present(record("5", Some("kaas-2"), 10)));
    assert!(waited <= T.retry_period * 12 / 200);
    assert_eq!(script.standing(), Standing::Follower { transitions: 10, holder: holder("kaas-2") });
}

#[test]
fn a_holder_that_can_not_renew_stops_acting_and_may_go_on_later() {
    let mut script = Script::new("kaas-0");
    script.step(&Action::Look, Answer::Present(record("4", None, 9)));
    script.step(&claim("4", 10, true), Answer::Present(record("5", Some("kaas-0"), 10)));
    let won = script.now;
    while script.now - won < T.renew_deadline {
        assert!(matches!(script.standing(), Standing::Holding { .. }));
        script.step(&claim("5", 10, false), Answer::Failed);
    }
    assert_eq!(script.standing(), Standing::Unknown);
    // Nobody else had it in between: the holder did not change, and neither do the transitions.
    script.step(&claim("5", 10, false), Answer::Present(record("6", Some("kaas-0"), 10)));
    assert!(matches!(script.standing(), Standing::Holding { transitions: 10, .. }));
}

#[test]
fn the_deadline_counts_from_when_the_claim_was_sent() {
    let mut script = Script::new("kaas-0");
    script.step(&Action::Look, Answer::Present(record("4", None, 9)));
    let (sent, action) = script.election.next(script.now, 0).unwrap();
    let won = Answer::Present(record("5", Some("kaas-0"), 10));
    script.now = sent + T.renew_deadline - MS(100);
    script.election.answered(&action, won, sent, script.now);
    assert_eq!(script.standing(), Standing::Holding { transitions: 10, act_until: sent + T.renew_deadline });
    assert_eq!(script.election.changes_at(script.now), Some(sent + T.renew_deadline));
}

#[test]
fn a_claim_with_an_unknown_outcome_is_found_and_renewed() {
    let mut script = Script::new("kaas-0");
    script.step(&Action::Look, Answer::Present(record("4", None, 9)));
    script.step(&claim("4", 10, true), Answer::Failed);
    assert_eq!(script.standing(), Standing::Unknown);
    script.step(&claim("4", 10, true), Answer::Conflict);
    script.step(&Action::Look, Answer::Present(record("5", Some("kaas-0"), 10)));
    assert_eq!(script.standing(), Standing::Unknown, "how old it is is not known");
    let waited = script.step(&claim("5", 10, false), Answer::Present(record("6", Some("kaas-0"), 10)));
    assert_eq!(waited, Duration::ZERO);
    assert!(matches!(script.standing(), Standing::Holding { transitions: 10, .. }));
}

#[test]
fn another_life_of_the_same_pod_is_another_holder() {
    let mut script = Script::new("kaas-0");
    let mut former = record("4", Some("kaas-0"), 9);
    former.holder.as_mut().unwrap().incarnation = "earlier".to_owned();
    script.step(&Action::Look, Answer::Present(former));
    assert!(matches!(script.standing(), Standing::Follower { transitions: 9, .. }));
    assert_eq!(script.election.next(script.now, 0).unwrap().1, Action::Look);
}

#[test]
fn a_deleted_lease_ends_the_claim_and_the_next_one_is_higher() {
    let mut script = Script::new("kaas-0");
    script.step(&Action::Look, Answer::Present(record("4", None, 9)));
    script.step(&claim("4", 10, true), Answer::Present(record("5", Some("kaas-0"), 10)));
    script.step(&claim("5", 10, false), Answer::Absent);
    assert_eq!(script.standing(), Standing::Unknown);
    script.step(&Action::Create, Answer::Present(new("7")));
    script.wait(&new("7"));
    script.step(&claim("7", 11, true), Answer::Present(record("8", Some("kaas-0"), 11)));
}

#[test]
fn who_resigns_sends_the_same_transitions() {
    let mut script = Script::new("kaas-0");
    script.step(&Action::Look, Answer::Present(record("4", None, 9)));
    script.step(&claim("4", 10, true), Answer::Present(record("5", Some("kaas-0"), 10)));
    script.election.resign();
    assert_ne!(script.election.next(script.now, 0), None);
    assert_eq!(script.standing(), Standing::Unknown, "acts no longer while the release is on its way");
    let release = Action::Release { version: version("5"), transitions: 10 };
    script.step(&release, Answer::Failed);
    let waited = script.step(&release, Answer::Conflict);
    assert!(waited > Duration::ZERO);
    script.step(&Action::Look, Answer::Present(record("6", None, 10)));
    assert_eq!(script.election.next(script.now, 0), None);
    assert_eq!(script.standing(), Standing::Resigned);
}

#[test]
fn a_follower_resigns_at_once() {
    let mut script = Script::new("kaas-0");
    script.step(&Action::Look, Answer::Present(record("4", Some("kaas-1"), 9)));
    script.election.resign();
    assert_eq!(script.election.next(script.now, 0), None);
}

#[test]
fn pauses_grow_while_requests_fail() {
    let mut script = Script::new("kaas-0");
    let waited: Vec<Duration> = (0..8).map(|_| script.step(&Action::Look, Answer::Failed)).collect();
    assert_eq!(waited[0], Duration::ZERO);
    assert!(waited[1] >= T.retry_period * 8 / 10 && waited[1] <= T.retry_period * 12 / 10, "{waited:?}");
    assert!(waited[7] >= MS(6400) && waited[7] <= MS(9600), "{waited:?}");
    assert_eq!(script.election.failures(), 8);
}

#[test]
fn a_lease_of_a_day_is_believed_for_two_minutes() {
    let mut script = Script::new("kaas-0");
    let mut long = record("4", Some("kaas-1"), 9);
    long.lease_duration = Some(Duration::from_secs(86_400));
    script.step(&Action::Look, Answer::Present(long));
    script.now += LONGEST_LEASE;
    assert_eq!(script.election.next(script.now, 0).unwrap().1, claim("4", 10, true));
}

/// An API server, candidates, and a network between them that delays and loses, in virtual time.
mod races {
    use super::*;

    /// `(kind, candidate, delay to the server, delay back)`, used one after the other.
    type Fault = (u8, u8, u16, u16);

    struct Server {
        version: u64,
        lease: Option<Record>,
        highest: i32,
        last_holder: Option<Holder>,
        /// What `assignment.json` says: the controller writes its epoch as soon as it has one.
        file: i32,
    }

    impl Server {
        fn carry_out(&mut self, me: &Holder, action: &Action) -> Answer {
            self.version += 1;
            let resource_version = self.version.to_string();
            let (expected, held_by, transitions) = match action {
                Action::Look => return self.lease.clone().map_or(Answer::Absent, Answer::Present),
                Action::Create if self.lease.is_some() => return Answer::Conflict,
                Action::Create => {
                    let empty = new(&resource_version);
                    self.lease = Some(empty.clone());
                    self.last_holder = None;
                    return Answer::Present(empty);
                }
                Action::Claim { version, transitions, .. } => (version, Some(me.clone()), *transitions),
                Action::Release { version, transitions } => (version, None, *transitions),
            };
            match &self.lease {
                None => return Answer::Conflict,
                Some(lease) if lease.version != *expected => return Answer::Conflict,
                Some(_) => {}
            }
            if held_by.is_none() || held_by == self.last_holder {
                assert_eq!(transitions, self.highest, "the holder did not change");
            } else {
                assert!(transitions > self.highest, "the holder changed: {transitions} after {}", self.highest);
            }
            self.highest = transitions;
            self.file = transitions;
            self.last_holder.clone_from(&held_by);
            let lease = Record {
                version: version(&resource_version),
                released: held_by.is_none(),
                holder: held_by,
                transitions,
                lease_duration: Some(T.lease_duration),
            };
            self.lease = Some(lease.clone());
            Answer::Present(lease)
        }
    }

    enum Flight {
        Idle,
        ToServer { arrives: Instant, back: Option<Duration>, sent: Instant, action: Action },
        ToCandidate { arrives: Instant, sent: Instant, action: Action, answer: Answer },
    }

    struct Candidate {
        me: Holder,
        election: Election,
        flight: Flight,
        frozen_until: Instant,
        lives: u32,
    }

    fn run(faults: &[Fault], seed: u64) {
        const CANDIDATES: u8 = 3;
        let start = Instant::now();
        let mut server = Server { version: 0, lease: None, highest: 0, last_holder: None, file: 0 };
        let mut candidates: Vec<Candidate> = (0..CANDIDATES)
            .map(|index| {
                let me = holder(&format!("kaas-{index}"));
                let election = Election::new(me.clone(), T, seed + u64::from(index), start);
                Candidate { me, election, flight: Flight::Idle, frozen_until: start, lives: 1 }
            })
            .collect();
        let mut faults = faults.iter();
        let tick = MS(25);
        let chaos_ends = start + Duration::from_secs(60);
        let end = chaos_ends + Duration::from_secs(30);
        let mut now = start;
        let mut ticks = 0_u64;
        while now < end {
            now += tick;
            ticks += 1;
            let fault = if now < chaos_ends && ticks.is_multiple_of(16) { faults.next() } else { None };
            if let Some(&(kind, who, a, b)) = fault {
                let candidate = &mut candidates[usize::from(who % CANDIDATES)];
                match kind % 8 {
                    0 => {
                        server.lease = None;
                        server.last_holder = None;
                    }
                    1 | 2 => candidate.frozen_until = now + MS(u64::from(a % 12_000)),
                    3 => {
                        candidate.lives += 1;
                        candidate.me.incarnation = format!("{}-{}", candidate.me.name, candidate.lives);
                        candidate.election = Election::new(candidate.me.clone(), T, u64::from(b), now);
                        candidate.flight = Flight::Idle;
                    }
                    _ => {}
                }
            }
            for candidate in &mut candidates {
                let frozen = now < candidate.frozen_until;
                match std::mem::replace(&mut candidate.flight, Flight::Idle) {
                    Flight::ToServer { arrives, back, sent, action } if arrives <= now => {
                        let answer = server.carry_out(&candidate.me, &action);
                        let (back, answer) = match back {
                            Some(back) => (back, answer),
                            None => (MS(2000), Answer::Failed),
                        };
                        candidate.flight = Flight::ToCandidate { arrives: now + back, sent, action, answer };
                    }
                    Flight::ToCandidate { arrives, sent, action, answer } if arrives <= now && !frozen => {
                        candidate.election.answered(&action, answer, sent, now);
                    }
                    Flight::Idle if !frozen => {
                        if let Some((at, action)) = candidate.election.next(now, server.file)
                            && at <= now
                        {
                            let (to, back) = match fault {
                                Some(&(kind, _, a, b)) if kind % 8 > 3 => {
                                    let back = (kind % 8 != 7).then(|| MS(u64::from(b % 3000)));
                                    (MS(u64::from(a % 3000)), back)
                                }
                                _ => (MS(25), Some(MS(25))),
                            };
                            candidate.flight = Flight::ToServer { arrives: now + to, back, sent: now, action };
                        }
                    }
                    other => candidate.flight = other,
                }
            }
            let holding: Vec<&str> = candidates
                .iter()
                .filter(|candidate| matches!(candidate.election.standing(now), Standing::Holding { .. }))
                .map(|candidate| candidate.me.name.as_str())
                .collect();
            assert!(holding.len() <= 1, "{holding:?} hold it at a time");
            if now + tick >= end {
                assert_eq!(holding.len(), 1, "somebody holds it when all is well again");
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(300))]
        #[test]
        fn one_holder_at_a_time_and_transitions_that_rise(
            faults in proptest::collection::vec(any::<Fault>(), 0..150),
            seed in any::<u32>(),
        ) {
            run(&faults, u64::from(seed));
        }
    }
}

#[test]
fn whoever_misses_the_controller_looks_sooner() {
    let mut script = Script::new("kaas-1");
    let held = record("5", Some("kaas-0"), 3);
    script.step(&Action::Look, Answer::Present(held.clone()));
    script.election.hurry(script.now);
    script.election.hurry(script.now);
    assert_eq!(script.step(&Action::Look, Answer::Present(held.clone())), T.retry_period / 5);
    script.now += MS(500);
    script.election.hurry(script.now);
    assert_eq!(script.step(&Action::Look, Answer::Present(held.clone())), MS(0), "long enough after the last one");
    // It has not expired: nobody claims it for that.
    assert!(matches!(script.standing(), Standing::Follower { .. }));
    script.step(&Action::Look, Answer::Failed);
    script.election.hurry(script.now);
    assert!(script.step(&Action::Look, Answer::Failed) >= T.retry_period * 8 / 10, "the API server is not pressed");
    // Given back meanwhile: claimed at once.
    let released = record("6", None, 3);
    script.step(&Action::Look, Answer::Present(released));
    let mine = record("7", Some("kaas-1"), 4);
    assert_eq!(script.step(&claim("6", 4, true), Answer::Present(mine.clone())), MS(0));
    script.election.hurry(script.now);
    assert!(
        script.step(&claim("7", 4, false), Answer::Present(mine)) >= T.retry_period * 8 / 10,
        "a holder renews as ever"
    );
}
