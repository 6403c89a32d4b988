//! The brokers as the controller sees them: who is registered, who is alive, who may lead.
//!
//! A broker is alive while its session with the controller lasts, it says that it is healthy, and it has not said that it
//! is about to leave. Two rules keep a controller from handing out nothing, or everything to itself:
//!
//! - it always counts itself in, unless it is leaving and another one may lead;
//! - while it is not healthy itself, ill health of the others does not count: the volume is ill, not they.
//!
//! And one keeps planned moves short: as long as a new controller waits for brokers that were alive before, nobody joins. They have not
//! heard of this controller yet, and would not hand over.
//!
//! A broker that was registered once stays registered: coordinator slots are divided by all of them.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use kaas_proto::format::assignment::{BrokerHealth, RegisteredBroker};
use kaas_proto::types::{BrokerId, Incarnation};
use tokio::time::Instant;

/// How often a broker tells the controller that it lives.
pub const HEARTBEAT_INTERVAL: Duration = Duration::from_secs(1);
/// A session without a message for so long is over.
pub const SESSION_TIMEOUT: Duration = Duration::from_secs(3);
/// How long a new controller takes the word of others for who is alive, before all had the time to come to it.
pub const BOOTSTRAP_WAIT: Duration = Duration::from_secs(3);
/// The same for the controller before it, which most likely is gone: it has lost the Lease.
pub const FORMER_CONTROLLER_WAIT: Duration = Duration::from_secs(1);
/// A clock that was not looked at for so long says that this process stood still, and not that the others did.
const STOOD_STILL: Duration = Duration::from_secs(1);

/// One stream of heartbeats, from the controller's point of view.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SessionId(pub u64);

#[derive(Clone, Copy, Debug)]
struct Session {
    id: SessionId,
    heard: Instant,
    healthy: bool,
    draining: bool,
}

#[derive(Clone, Debug)]
struct Row {
    /// Its `health` is not kept up to date here.
    broker: RegisteredBroker,
    session: Option<Session>,
    /// Until when it is believed to be alive, although nothing was heard of it yet.
    presumed: Option<Instant>,
    /// It did not lead anything when it came: it takes from others.
    joins: bool,
}

/// Control thread, of the controller. Pure: the caller says what time it is.
#[derive(Debug)]
pub struct Registry {
    controller: BrokerId,
    rows: BTreeMap<BrokerId, Row>,
    checked: Instant,
}

impl Registry {
    /// What a new controller knows: the brokers of the last assignment. Those that were alive then, and whose endpoint is
    /// ready if that is known, are presumed to be alive still. `own` is the controller itself.
    ///
    /// That no endpoint at all is ready says nothing of the brokers: it is so where nobody fills in endpoints, and the controller,
    /// which runs, is not among them either.
    #[must_use]
    pub fn new(
        own: RegisteredBroker,
        former: &[RegisteredBroker],
        former_controller: Option<BrokerId>,
        ready: Option<&BTreeSet<BrokerId>>,
        now: Instant,
    ) -> Self {
        let controller = own.id;
        let ready = ready.filter(|ready| !ready.is_empty());
        let row = |broker: &RegisteredBroker| {
            let presumed = broker.health == BrokerHealth::Alive && ready.is_none_or(|ready| ready.contains(&broker.id));
            let wait = if former_controller == Some(broker.id) { FORMER_CONTROLLER_WAIT } else { BOOTSTRAP_WAIT };
            let presumed = presumed.then(|| now + wait);
            (broker.id, Row { broker: broker.clone(), session: None, presumed, joins: false })
        };
        let mut rows: BTreeMap<BrokerId, Row> = former.iter().map(row).collect();
        rows.insert(controller, Row { broker: own, session: None, presumed: None, joins: false });
        Self { controller, rows, checked: now }
    }

    /// A broker has come. Its `health` does not matter. A session that it had is over.
    pub fn connect(&mut self, session: SessionId, broker: RegisteredBroker, now: Instant) {
        let session = Session { id: session, heard: now, healthy: false, draining: false };
        let presumed = Some(now + SESSION_TIMEOUT);
        let was_alive = |row: &Row| row.broker.id == self.controller || row.session.is_some() || row.presumed.is_some();
        let joins = self.rows.get(&broker.id).is_none_or(|row| row.joins || !was_alive(row));
        self.rows.insert(broker.id, Row { broker, session: Some(session), presumed, joins });
    }

    /// A message of a session. Says whether the session counts: it does not once the broker has begun another one.
    pub fn heard(&mut self, broker: BrokerId, session: SessionId, healthy: bool, draining: bool, now: Instant) -> bool {
        let Some(row) = self.rows.get_mut(&broker) else { return false };
        let Some(current) = row.session.as_mut().filter(|current| current.id == session) else { return false };
        *current = Session { id: session, heard: now, healthy, draining: draining || current.draining };
        row.presumed = None;
        true
    }

    /// A stream has ended.
    pub fn disconnect(&mut self, broker: BrokerId, session: SessionId) {
        if let Some(row) = self.rows.get_mut(&broker)
            && row.session.is_some_and(|current| current.id == session)
        {
            row.session = None;
            row.presumed = None;
        }
    }

    /// Ends sessions that are silent, and presumptions. To be called at least every [`HEARTBEAT_INTERVAL`]. Returns the brokers
    /// of the sessions that have ended: whatever else is said in them does not count, so they have to begin new ones.
    pub fn expire(&mut self, now: Instant) -> Vec<BrokerId> {
        let mut silent = Vec::new();
        let stood_still = now.duration_since(self.checked) > HEARTBEAT_INTERVAL + STOOD_STILL;
        self.checked = now;
        for row in self.rows.values_mut() {
            if let Some(session) = &mut row.session {
                if stood_still {
                    // Messages that came meanwhile are still to be read.
                    session.heard = now;
                } else if now.duration_since(session.heard) >= SESSION_TIMEOUT {
                    row.session = None;
                    row.presumed = None;
                    silent.push(row.broker.id);
                }
            }
            row.presumed = row.presumed.filter(|&until| now < until);
        }
        silent
    }

    /// Those that may lead. Never empty.
    #[must_use]
    pub fn candidates(&self) -> BTreeSet<BrokerId> {
        let own = self.rows.get(&self.controller).and_then(|row| row.session);
        // Before its first message it has said nothing against itself.
        let controller_ill = own.is_some_and(|session| !session.healthy)
            && self.rows.get(&self.controller).is_some_and(|row| row.presumed.is_none());
        let some_are_awaited = self.rows.values().any(|row| row.session.is_none() && row.presumed.is_some());
        let may_lead = |row: &Row| match row.session {
            _ if row.joins && some_are_awaited => false,
            _ if row.presumed.is_some() && row.session.is_none_or(|session| !session.draining) => true,
            Some(session) => (session.healthy || controller_ill) && !session.draining,
            None => false,
        };
        let mut candidates: BTreeSet<BrokerId> =
            self.rows.values().filter(|row| may_lead(row)).map(|row| row.broker.id).collect();
        let leaving = own.is_some_and(|session| session.draining);
        if !leaving || candidates.is_empty() {
            candidates.insert(self.controller);
        }
        candidates
    }

    /// All brokers in order of id, with the health that follows from `candidates`.
    #[must_use]
    pub fn brokers(&self, candidates: &BTreeSet<BrokerId>) -> Vec<RegisteredBroker> {
        let health = |row: &Row| match row.session {
            _ if candidates.contains(&row.broker.id) => BrokerHealth::Alive,
            Some(session) if session.draining => BrokerHealth::Draining,
            _ => BrokerHealth::Dead,
        };
        self.rows.values().map(|row| RegisteredBroker { health: health(row), ..row.broker.clone() }).collect()
    }

    /// The life of a broker that is registered.
    #[must_use]
    pub fn incarnation(&self, broker: BrokerId) -> Option<Incarnation> {
        self.rows.get(&broker).map(|row| row.broker.incarnation)
    }

    /// How many brokers have a session.
    #[must_use]
    pub fn connected(&self) -> usize {
        self.rows.values().filter(|row| row.session.is_some()).count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn broker(id: i32, incarnation: u64, health: BrokerHealth) -> RegisteredBroker {
        RegisteredBroker {
            id: BrokerId(id),
            incarnation: Incarnation(incarnation),
            rack: None,
            listeners: Vec::new(),
            health,
        }
    }

    fn alive(id: i32) -> RegisteredBroker {
        broker(id, 1, BrokerHealth::Alive)
    }

    fn ids(ids: &[i32]) -> BTreeSet<BrokerId> {
        ids.iter().copied().map(BrokerId).collect()
    }

    const OWN: SessionId = SessionId(10);
    const TWO: SessionId = SessionId(20);
    const THREE: SessionId = SessionId(30);

    /// The controller is 1; 2 and 3 have come and are well.
    fn registry(now: Instant) -> Registry {
        let mut registry = Registry::new(alive(1), &[], None, None, now);
        for (id, session) in [(1, OWN), (2, TWO), (3, THREE)] {
            registry.connect(session, alive(id), now);
            assert!(registry.heard(BrokerId(id), session, true, false, now));
        }
        registry
    }

    fn health(registry: &Registry) -> Vec<BrokerHealth> {
        registry.brokers(&registry.candidates()).iter().map(|broker| broker.health).collect()
    }

    #[test]
    fn alive_is_connected_and_healthy_and_not_draining() {
        use BrokerHealth::{Alive, Dead, Draining};
        let now = Instant::now();
        let mut registry = registry(now);
        assert_eq!(registry.candidates(), ids(&[1, 2, 3]));
        registry.heard(BrokerId(2), TWO, false, false, now);
        assert_eq!(health(&registry), [Alive, Dead, Alive]);
        registry.heard(BrokerId(2), TWO, true, true, now);
        assert_eq!(health(&registry), [Alive, Draining, Alive]);
        registry.heard(BrokerId(2), TWO, true, false, now);
        assert_eq!(health(&registry), [Alive, Draining, Alive], "who leaves does not stay");
        registry.disconnect(BrokerId(2), TWO);
        registry.disconnect(BrokerId(3), THREE);
        assert_eq!(health(&registry), [Alive, Dead, Dead], "rows of the dead are kept");
    }

    #[test]
    fn silence_ends_a_session_unless_it_was_the_controller_that_slept() {
        let now = Instant::now();
        let second = |count: u32| now + HEARTBEAT_INTERVAL * count;
        let mut registry = registry(now);
        for count in 1..=3 {
            registry.heard(BrokerId(1), OWN, true, false, second(count));
            registry.heard(BrokerId(2), TWO, true, false, second(count));
            registry.expire(second(count));
        }
        assert_eq!(registry.candidates(), ids(&[1, 2]));
        registry.expire(second(23));
        assert_eq!(registry.candidates(), ids(&[1, 2]), "20 s without a look at the clock");
        assert_eq!(registry.expire(second(24)), []);
        assert_eq!(registry.expire(second(25)), []);
        assert_eq!(registry.expire(second(26)), [BrokerId(1), BrokerId(2)], "their streams are to be closed");
        assert!(!registry.heard(BrokerId(2), TWO, true, false, second(27)), "it has to begin a new session");
        registry.expire(second(27));
        assert_eq!(registry.candidates(), ids(&[1]), "the controller stays, whatever is heard of it");
    }

    #[test]
    fn a_newer_session_takes_the_place_of_an_older_one() {
        let now = Instant::now();
        let mut registry = registry(now);
        let again = SessionId(21);
        registry.connect(again, broker(2, 7, BrokerHealth::Dead), now);
        assert_eq!(registry.incarnation(BrokerId(2)), Some(Incarnation(7)));
        assert!(registry.candidates().contains(&BrokerId(2)), "what it will say of itself is about to come");
        registry.disconnect(BrokerId(2), TWO);
        assert!(!registry.heard(BrokerId(2), TWO, false, true, now), "the older one has no say");
        assert!(registry.heard(BrokerId(2), again, true, false, now));
        assert_eq!(registry.candidates(), ids(&[1, 2, 3]));
    }

    #[test]
    fn the_volume_is_ill_and_not_the_brokers() {
        let now = Instant::now();
        let mut registry = registry(now);
        for (id, session) in [(1, OWN), (2, TWO)] {
            registry.heard(BrokerId(id), session, false, false, now);
        }
        assert_eq!(registry.candidates(), ids(&[1, 2, 3]), "the controller suffers too");
        registry.heard(BrokerId(1), OWN, true, false, now);
        assert_eq!(registry.candidates(), ids(&[1, 3]));
    }

    #[test]
    fn a_controller_that_leaves_goes_last() {
        let now = Instant::now();
        let mut registry = registry(now);
        registry.heard(BrokerId(1), OWN, true, true, now);
        assert_eq!(registry.candidates(), ids(&[2, 3]));
        registry.disconnect(BrokerId(2), TWO);
        registry.disconnect(BrokerId(3), THREE);
        assert_eq!(registry.candidates(), ids(&[1]), "nobody else could lead");
    }

    #[test]
    fn a_new_controller_presumes_that_those_live_whose_endpoints_are_ready() {
        let now = Instant::now();
        let former = [broker(1, 9, BrokerHealth::Alive), alive(2), alive(3), broker(4, 1, BrokerHealth::Dead)];
        let ready = ids(&[2, 4]);
        let registry = Registry::new(alive(1), &former, None, Some(&ready), now);
        assert_eq!(registry.candidates(), ids(&[1, 2]));
        assert_eq!(registry.incarnation(BrokerId(1)), Some(Incarnation(1)), "its own row is its own");

        let registry = Registry::new(alive(1), &former, None, Some(&ids(&[])), now);
        assert_eq!(registry.candidates(), ids(&[1, 2, 3]), "no endpoint is ready: nobody fills them in");

        let mut registry = Registry::new(alive(1), &former, None, None, now);
        assert_eq!(registry.candidates(), ids(&[1, 2, 3]), "nothing is known of endpoints");
        registry.connect(TWO, alive(2), now);
        registry.heard(BrokerId(2), TWO, true, false, now);
        for count in 1..=3 {
            registry.heard(BrokerId(2), TWO, true, false, now + HEARTBEAT_INTERVAL * count);
            registry.expire(now + HEARTBEAT_INTERVAL * count);
        }
        assert_eq!(registry.candidates(), ids(&[1, 2]), "3 did not come");
        assert_eq!(health(&registry).len(), 4);
    }

    #[test]
    fn nobody_joins_while_those_who_would_hand_over_are_awaited() {
        let now = Instant::now();
        let former = [alive(1), alive(2), broker(3, 1, BrokerHealth::Draining), broker(4, 1, BrokerHealth::Alive)];
        let start = || Registry::new(alive(1), &former, None, None, now);
        let come = |registry: &mut Registry, id, session| {
            registry.connect(session, broker(id, 8, BrokerHealth::Dead), now);
            assert!(registry.heard(BrokerId(id), session, true, false, now));
        };
        let mut registry = start();
        come(&mut registry, 3, THREE);
        assert_eq!(registry.candidates(), ids(&[1, 2, 4]), "2 and 4 have not heard of this controller");
        come(&mut registry, 4, SessionId(40));
        assert_eq!(registry.candidates(), ids(&[1, 2, 4]), "another life of 4 has its place");
        come(&mut registry, 2, TWO);
        assert_eq!(registry.candidates(), ids(&[1, 2, 3, 4]));
        registry.disconnect(BrokerId(2), TWO);
        assert_eq!(registry.candidates(), ids(&[1, 3, 4]), "who has been there is not awaited any more");

        let mut registry = start();
        come(&mut registry, 3, THREE);
        registry.heard(BrokerId(3), THREE, true, false, now + BOOTSTRAP_WAIT);
        registry.expire(now + BOOTSTRAP_WAIT / 2);
        assert_eq!(registry.candidates(), ids(&[1, 2, 4]));
        registry.expire(now + BOOTSTRAP_WAIT);
        assert_eq!(registry.candidates(), ids(&[1, 3]), "they do not come");
    }

    #[test]
    fn the_controller_before_is_not_waited_for_as_long() {
        let now = Instant::now();
        let mut registry = Registry::new(alive(1), &[alive(2), alive(3)], Some(BrokerId(2)), None, now);
        assert_eq!(registry.candidates(), ids(&[1, 2, 3]));
        registry.expire(now + FORMER_CONTROLLER_WAIT);
        assert_eq!(registry.candidates(), ids(&[1, 3]));
    }
}
