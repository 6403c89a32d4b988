//! What the controller answers in the status of the KafkaTopic objects.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use k8s_openapi::jiff::Timestamp;
use kube::api::{Patch, PatchParams};
use kube::{Api, Client, Resource};
use serde_json::json;
use tokio::sync::watch;
use tokio::time::{Instant, sleep};

use super::api_error::{ApiError, Request, within};
use super::desired::Verdict;
use super::kafka_topic::{KafkaTopic, KafkaTopicStatus};
use super::lease::FIELD_MANAGER;
use super::topics::Snapshot;
use crate::cluster::ports::Leadership;

const ACCEPTED: &str = "Accepted";
const REQUEST_LIMIT: Duration = Duration::from_secs(5);
/// After a status that could not be written. Nobody waits for it.
const PAUSE: Duration = Duration::from_secs(5);

/// Starts to write what is out of date, whenever this broker is the controller. Within a tokio runtime only.
pub fn start(
    client: Client,
    namespace: &str,
    leadership: watch::Receiver<Leadership>,
    snapshot: watch::Receiver<Arc<Snapshot>>,
) {
    let api: Api<KafkaTopic> = Api::namespaced(client, namespace);
    tokio::spawn(write(api, leadership, snapshot));
}

async fn write(
    api: Api<KafkaTopic>,
    mut leadership: watch::Receiver<Leadership>,
    mut snapshot: watch::Receiver<Arc<Snapshot>>,
) {
    loop {
        let current = Arc::clone(&snapshot.borrow_and_update());
        let acting = may_act(&leadership.borrow());
        let written = if acting { write_all(&api, &leadership, &snapshot, &current).await } else { Ok(()) };
        if let Err(error) = written {
            tracing::warn!("a topic's status was not written, it is tried again: {error}");
            sleep(PAUSE).await;
            continue;
        }
        let ended = tokio::select! {
            changed = snapshot.changed() => changed.is_err(),
            // Each renewal changes it; what counts is whether this broker acts.
            changed = leadership.wait_for(|leadership| may_act(leadership) != acting) => changed.is_err(),
        };
        if ended {
            return;
        }
    }
}

/// Ends early when there is something newer, or another controller.
async fn write_all(
    api: &Api<KafkaTopic>,
    leadership: &watch::Receiver<Leadership>,
    snapshot: &watch::Receiver<Arc<Snapshot>>,
    current: &Snapshot,
) -> Result<(), ApiError> {
    for (object, verdict) in &current.verdicts {
        if snapshot.has_changed().unwrap_or(true) || !may_act(&leadership.borrow()) {
            return Ok(());
        }
        let Some(status) = wanted(object, verdict, Timestamp::now()) else { continue };
        match apply(api, object, &status).await {
            // That is about this object: the others have theirs. It is tried again when something changes.
            Err(error @ ApiError::Invalid { .. }) => tracing::warn!("a topic's status is refused: {error}"),
            applied => applied?,
        }
    }
    Ok(())
}

fn may_act(leadership: &Leadership) -> bool {
    matches!(leadership, Leadership::Controller { act_until, .. } if Instant::now() < *act_until)
}

/// The uid makes sure that nothing is said about another incarnation.
async fn apply(api: &Api<KafkaTopic>, object: &KafkaTopic, status: &KafkaTopicStatus) -> Result<(), ApiError> {
    let name = object.metadata.name.as_deref().unwrap_or_default();
    let body = json!({
        "apiVersion": KafkaTopic::api_version(&()),
        "kind": KafkaTopic::kind(&()),
        "metadata": { "name": name, "uid": object.metadata.uid },
        "status": status,
    });
    let params = PatchParams::apply(FIELD_MANAGER).force();
    let request = Request::TOPIC_STATUS_PATCH;
    match within(REQUEST_LIMIT, request, api.patch_status(name, &params, &Patch::Apply(&body))).await {
        // Gone, or another incarnation by now: the watch brings it.
        Ok(_) | Err(ApiError::NotFound { .. } | ApiError::Conflict { .. }) => Ok(()),
        Err(error) => Err(error),
    }
}

/// The status as it should be, if it is not.
fn wanted(object: &KafkaTopic, verdict: &Verdict, now: Timestamp) -> Option<KafkaTopicStatus> {
    let (status, reason, message) = verdict.condition();
    let generation = object.metadata.generation;
    let former = object.status.as_ref().and_then(|status| status.conditions.iter().find(|row| row.type_ == ACCEPTED));
    let since = former.filter(|row| row.status == status).map_or(Time(now), |row| row.last_transition_time.clone());
    let accepted = Condition {
        type_: ACCEPTED.to_owned(),
        status: status.to_owned(),
        reason: reason.to_owned(),
        message: message.to_owned(),
        observed_generation: generation,
        last_transition_time: since,
    };
    let wanted = KafkaTopicStatus {
        topic_id: object.topic_id().filter(|_| verdict.is_served()).map(|id| id.to_string()),
        observed_generation: generation,
        conditions: vec![accepted],
    };
    (object.status.as_ref() != Some(&wanted)).then_some(wanted)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]
    use super::super::kafka_topic::KafkaTopicSpec;
    use super::*;

    #[test]
    fn a_status_is_written_when_it_says_something_new() {
        let spec = KafkaTopicSpec { partitions: 3, config: Default::default(), topic_name: None, topic_id: None };
        let mut object = KafkaTopic::new("orders", spec);
        object.metadata.uid = Some("3f2504e0-4f89-41d3-9a0c-0305e82c3301".to_owned());
        object.metadata.generation = Some(1);
        let at = |second| Timestamp::from_second(second).unwrap();
        let first = wanted(&object, &Verdict::Accepted, at(1)).unwrap();
        assert_eq!(first.topic_id.as_deref(), Some("PyUE4E-JQdOaDAMF6CwzAQ"));
        assert_eq!((first.observed_generation, first.conditions[0].status.as_str()), (Some(1), "True"));
        object.status = Some(first);
        assert_eq!(wanted(&object, &Verdict::Accepted, at(2)), None);
        object.metadata.generation = Some(2);
        let second = wanted(&object, &Verdict::Accepted, at(3)).unwrap();
        assert_eq!(second.conditions[0].last_transition_time, Time(at(1)), "it was accepted all the time");
        let taken = Verdict::NameTaken("by 'b'".to_owned());
        let third = wanted(&object, &taken, at(4)).unwrap();
        assert_eq!((third.topic_id, third.conditions[0].last_transition_time.clone()), (None, Time(at(4))));
    }
}
