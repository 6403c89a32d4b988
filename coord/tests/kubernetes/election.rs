use std::time::Duration;

use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::rbac::v1::RoleBinding;
use kaas_coord::cluster::ports::{Election, Leadership};
use kaas_coord::kubernetes::candidate;
use kaas_coord::kubernetes::election::Timings;
use kaas_coord::kubernetes::lease::{LEASE_NAME, LeaseStore};
use kube::Api;
use kube::api::DeleteParams;
use tokio::sync::{oneshot, watch};
use tokio::time::{Instant, sleep_until, timeout};

use super::cluster::{ApiServer, Namespace, PATIENCE, holder, reaches};

/// Shorter than in production, so that tests are; long enough for a busy machine.
const TIMINGS: Timings = Timings {
    lease_duration: Duration::from_secs(4),
    renew_deadline: Duration::from_secs(3),
    retry_period: Duration::from_millis(300),
    longest_pause: Duration::from_secs(1),
};

/// A candidate, with the floor that `assignment.json` would give it.
struct Candidate {
    election: Election,
    floor: watch::Sender<i32>,
}

impl Candidate {
    fn start(namespace: &Namespace, pod: &str, floor: i32) -> Self {
        let (me, connection) = (holder(pod), namespace.connection());
        let store = LeaseStore::new(connection.client(), connection.namespace(), me.clone(), TIMINGS);
        let (floor, receiver) = watch::channel(floor);
        Self { election: candidate::start(store, me, TIMINGS, receiver), floor }
    }

    async fn wins(&mut self) -> i32 {
        let leads = |leadership: &Leadership| matches!(leadership, Leadership::Controller { .. });
        match reaches(&mut self.election.leadership, "should be the controller", leads).await {
            Leadership::Controller { lease_transitions, .. } => lease_transitions,
            other => unreachable!("{other:?}"),
        }
    }

    async fn follows(&mut self, broker: i32) -> i32 {
        let follows = |leadership: &Leadership| matches!(leadership, Leadership::Follower { controller, .. } if controller.broker.0 == broker);
        match reaches(&mut self.election.leadership, "should follow", follows).await {
            Leadership::Follower { lease_transitions, controller } => {
                assert_eq!(&*controller.heartbeat, format!("kaas-{broker}.kaas-headless:9094"));
                lease_transitions
            }
            other => unreachable!("{other:?}"),
        }
    }

    async fn loses(&mut self) {
        let lost = |leadership: &Leadership| !matches!(leadership, Leadership::Controller { .. });
        reaches(&mut self.election.leadership, "should not be the controller", lost).await;
    }

    async fn resign(self) {
        let (done, answer) = oneshot::channel();
        self.election.resign.send(done).unwrap();
        timeout(PATIENCE, answer).await.unwrap().unwrap();
    }

    /// Until when it acts.
    fn deadline(&self) -> Instant {
        match &*self.election.leadership.borrow() {
            Leadership::Controller { act_until, .. } => *act_until,
            other => panic!("{other:?}"),
        }
    }
}

fn leases(namespace: &Namespace) -> Api<Lease> {
    Api::namespaced(namespace.admin.clone(), &namespace.name)
}

async fn lease(namespace: &Namespace) -> Lease {
    leases(namespace).get(LEASE_NAME).await.unwrap()
}

#[tokio::test]
async fn one_wins_and_renews_and_the_others_follow() {
    let namespace = ApiServer::shared().namespace("election-wins").await;
    let mut first = Candidate::start(&namespace, "kaas-0", 0);
    assert_eq!(first.wins().await, 1);
    let mut second = Candidate::start(&namespace, "kaas-1", 0);
    assert_eq!(second.follows(0).await, 1);
    let before = lease(&namespace).await.spec.unwrap();
    // Longer than the Lease lasts without a renewal.
    sleep_until(Instant::now() + TIMINGS.lease_duration + TIMINGS.retry_period).await;
    assert!(first.deadline() > Instant::now());
    let after = lease(&namespace).await;
    let annotations = after.metadata.annotations.clone().unwrap();
    assert_eq!(annotations["kaas.io/heartbeat"], "kaas-0.kaas-headless:9094");
    let after = after.spec.unwrap();
    assert_eq!(after.holder_identity.as_deref(), Some("kaas-0"));
    assert_eq!((after.lease_transitions, after.lease_duration_seconds), (Some(1), Some(4)));
    assert_eq!(after.acquire_time, before.acquire_time);
    assert!(after.renew_time.unwrap().0 > before.renew_time.unwrap().0);
}

#[tokio::test]
async fn of_many_that_start_together_one_wins() {
    let namespace = ApiServer::shared().namespace("election-race").await;
    let mut candidates: Vec<Candidate> =
        (0..5).map(|index| Candidate::start(&namespace, &format!("kaas-{index}"), 0)).collect();
    for candidate in &mut candidates {
        let known = |leadership: &Leadership| *leadership != Leadership::Unknown;
        reaches(&mut candidate.election.leadership, "should know the controller", known).await;
    }
    let won = candidates
        .iter()
        .filter(|candidate| matches!(*candidate.election.leadership.borrow(), Leadership::Controller { .. }))
        .count();
    assert_eq!(won, 1);
    assert_eq!(lease(&namespace).await.spec.unwrap().lease_transitions, Some(1));
}

#[tokio::test]
async fn a_release_sends_the_transitions_again_and_the_successor_is_quick() {
    let namespace = ApiServer::shared().namespace("election-release").await;
    let mut first = Candidate::start(&namespace, "kaas-0", 0);
    assert_eq!(first.wins().await, 1);
    first.resign().await;
    let released = lease(&namespace).await;
    assert_eq!(released.metadata.annotations.unwrap_or_default().get("kaas.io/heartbeat"), None);
    let released = released.spec.unwrap();
    assert_eq!((released.holder_identity, released.lease_transitions), (None, Some(1)));

    let mut second = Candidate::start(&namespace, "kaas-1", 0);
    assert_eq!(second.wins().await, 2);
    let mut third = Candidate::start(&namespace, "kaas-2", 0);
    third.follows(1).await;
    let released_at = Instant::now();
    second.resign().await;
    assert_eq!(third.wins().await, 3);
    let waited = released_at.elapsed();
    assert!(waited < TIMINGS.lease_duration, "nothing had to expire: {waited:?}");
}

#[tokio::test]
async fn what_expires_is_taken_and_a_new_life_of_the_same_pod_is_another_holder() {
    let namespace = ApiServer::shared().namespace("election-steal").await;
    let mut first = Candidate::start(&namespace, "kaas-0", 0);
    assert_eq!(first.wins().await, 1);
    let deadline = first.deadline();
    // As after kill -9: nothing is released.
    drop(first);
    let mut again = Candidate::start(&namespace, "kaas-0", 0);
    assert_eq!(again.wins().await, 2);
    assert!(Instant::now() > deadline, "the former life can't act any more");
    assert_eq!(lease(&namespace).await.spec.unwrap().lease_transitions, Some(2));
}

#[tokio::test]
async fn a_deleted_lease_does_not_take_the_epoch_back() {
    let namespace = ApiServer::shared().namespace("election-deleted").await;
    let mut first = Candidate::start(&namespace, "kaas-0", 40);
    assert_eq!(first.wins().await, 41, "above what assignment.json shows");
    let mut second = Candidate::start(&namespace, "kaas-1", 40);
    assert_eq!(second.follows(0).await, 41);
    for broker in [&first, &second] {
        broker.floor.send_replace(41);
    }
    leases(&namespace).delete(LEASE_NAME, &DeleteParams::default()).await.unwrap();
    let above = |leadership: &Leadership| match leadership {
        Leadership::Unknown => false,
        Leadership::Controller { lease_transitions, .. } | Leadership::Follower { lease_transitions, .. } => {
            *lease_transitions > 41
        }
    };
    let one = reaches(&mut first.election.leadership, "should be elected anew", above).await;
    let two = reaches(&mut second.election.leadership, "should be elected anew", above).await;
    let leads = |leadership: &Leadership| matches!(leadership, Leadership::Controller { .. });
    assert!(leads(&one) != leads(&two), "{one:?} {two:?}");
    assert_eq!(lease(&namespace).await.spec.unwrap().lease_transitions, Some(42));
}

#[tokio::test]
async fn without_the_api_server_nobody_acts_and_with_it_the_same_holder_goes_on() {
    let server = ApiServer::start().unwrap();
    let namespace = server.namespace("election-outage").await;
    let mut first = Candidate::start(&namespace, "kaas-0", 0);
    assert_eq!(first.wins().await, 1);
    let mut second = Candidate::start(&namespace, "kaas-1", 0);
    second.follows(0).await;
    server.command("stop").unwrap();
    let deadline = first.deadline();
    first.loses().await;
    assert!(Instant::now() >= deadline);
    let unknown = |leadership: &Leadership| *leadership == Leadership::Unknown;
    reaches(&mut second.election.leadership, "should know of no controller", unknown).await;
    server.command("start").unwrap();
    // Whoever is first: the Lease still names the first one, and has expired.
    let known = |leadership: &Leadership| *leadership != Leadership::Unknown;
    let one = reaches(&mut first.election.leadership, "should know the controller", known).await;
    let two = reaches(&mut second.election.leadership, "should know the controller", known).await;
    match (one, two) {
        (Leadership::Controller { lease_transitions: 1, .. }, Leadership::Follower { .. })
        | (Leadership::Follower { .. }, Leadership::Controller { lease_transitions: 2, .. }) => {}
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn forbidden_is_said_and_heals_when_it_is_allowed() {
    let namespace = ApiServer::shared().namespace("election-forbidden").await;
    let bindings: Api<RoleBinding> = Api::namespaced(namespace.admin.clone(), &namespace.name);
    let mut binding = bindings.get("kaas").await.unwrap();
    bindings.delete("kaas", &DeleteParams::default()).await.unwrap();

    let (me, connection) = (holder("kaas-0"), namespace.connection());
    let mut store = LeaseStore::new(connection.client(), connection.namespace(), me, TIMINGS);
    let look = kaas_coord::kubernetes::election::Action::Look;
    // RBAC follows its objects with a delay.
    let deadline = Instant::now() + PATIENCE;
    let error = loop {
        match store.carry_out(&look).await {
            Err(error) => break error.to_string(),
            Ok(_) => assert!(Instant::now() < deadline, "should be forbidden"),
        }
    };
    for part in ["forbidden", "kaas-controller", "'get'", "leases.coordination.k8s.io", "deploy/rbac.yaml"] {
        assert!(error.contains(part), "{error}");
    }
    let mut candidate = Candidate::start(&namespace, "kaas-0", 0);
    binding.metadata = kube::core::ObjectMeta { name: Some("kaas".to_owned()), ..Default::default() };
    bindings.create(&Default::default(), &binding).await.unwrap();
    assert_eq!(candidate.wins().await, 1);
}
