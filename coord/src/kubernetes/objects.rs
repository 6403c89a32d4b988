//! Follows all objects of a kind: lists them, watches them, lists them anew when the watch can't go on.
//!
//! What was known stays in force while the API server is away, and while a new list is incomplete: an object counts as
//! deleted only when the API server says so, or when a complete list lacks it.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::fmt::Debug;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::{FutureExt, StreamExt};
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, Resource, ResourceExt};
use serde::de::DeserializeOwned;
use tokio::time::sleep;

use super::api_error::{ApiError, Request};

/// Objects by name.
pub(super) type ByName<K> = BTreeMap<String, Arc<K>>;

/// After the first failure, doubling up to the longest.
const FIRST_PAUSE: Duration = Duration::from_millis(500);
const LONGEST_PAUSE: Duration = Duration::from_secs(10);
/// Of so many failures in a row, one is mentioned in the log.
const FAILURES_PER_WARNING: u32 = 12;

/// What is known of the objects.
struct Known<K> {
    current: ByName<K>,
    /// A list that is still coming in.
    listing: Option<ByName<K>>,
    complete: bool,
}

impl<K: Resource> Known<K> {
    /// Whether `current` changed.
    fn apply(&mut self, event: Event<K>) -> bool {
        match event {
            Event::Init => {
                self.listing = Some(BTreeMap::new());
                false
            }
            Event::InitApply(object) => {
                put(self.listing.get_or_insert_default(), object);
                false
            }
            Event::InitDone => {
                self.current = self.listing.take().unwrap_or_default();
                self.complete = true;
                true
            }
            Event::Apply(object) => {
                put(&mut self.current, object);
                true
            }
            Event::Delete(object) => self.current.remove(&object.name_any()).is_some(),
        }
    }
}

fn put<K: Resource>(objects: &mut ByName<K>, mut object: K) {
    // Often the largest part, and nobody reads it.
    object.meta_mut().managed_fields = None;
    objects.insert(object.name_any(), Arc::new(object));
}

/// Calls `changed` with all objects after every change; the first time when they were listed completely.
pub(super) async fn follow<K>(
    api: Api<K>,
    config: watcher::Config,
    [list, watch]: [Request; 2],
    mut changed: impl FnMut(&ByName<K>),
) -> Infallible
where
    K: Resource + Clone + DeserializeOwned + Debug + Send + 'static,
{
    let mut known = Known { current: BTreeMap::new(), listing: None, complete: false };
    let mut events = pin!(watcher(api, config));
    let mut failures = 0_u32;
    loop {
        let mut dirty = false;
        // All that is there at a time makes one change.
        let mut next = events.next().await;
        while let Some(event) = next {
            match event {
                Ok(event) => {
                    if failures > 0 {
                        tracing::info!(resource = list.resource, "watched again, after {failures} failures");
                    }
                    failures = 0;
                    dirty |= known.apply(event);
                }
                Err(error) => {
                    if failures.is_multiple_of(FAILURES_PER_WARNING) {
                        warn(list, watch, error);
                    }
                    failures = failures.saturating_add(1);
                    break;
                }
            }
            next = events.next().now_or_never().flatten();
        }
        if dirty && known.complete {
            changed(&known.current);
        }
        if failures > 0 {
            // The stream goes on, or lists anew, when it is polled again.
            sleep(FIRST_PAUSE.saturating_mul(1 << (failures - 1).min(8)).min(LONGEST_PAUSE)).await;
        }
    }
}

fn warn(list: Request, watch: Request, error: watcher::Error) {
    let error = match error {
        watcher::Error::InitialListFailed(error) => ApiError::of(list, error),
        watcher::Error::WatchStartFailed(error) | watcher::Error::WatchFailed(error) => ApiError::of(watch, error),
        // An old version: it is listed anew. This is how the API server works.
        watcher::Error::WatchError(status) if status.code == 410 => return,
        watcher::Error::WatchError(status) => ApiError::of(watch, kube::Error::Api(status)),
        watcher::Error::NoResourceVersion => {
            tracing::warn!(resource = watch.resource, "the API server sent an object without a version");
            return;
        }
    };
    tracing::warn!(resource = watch.resource, "what was known stays in force: {error}");
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]
    use k8s_openapi::api::coordination::v1::Lease;

    use super::*;

    fn object(name: &str) -> Lease {
        let mut lease = Lease::default();
        lease.metadata.name = Some(name.to_owned());
        lease
    }

    #[test]
    fn a_list_counts_when_it_is_complete() {
        let mut known = Known { current: BTreeMap::new(), listing: None, complete: false };
        let names = |known: &Known<Lease>| known.current.keys().cloned().collect::<Vec<_>>();
        assert!(!known.apply(Event::Init));
        assert!(!known.apply(Event::InitApply(object("a"))));
        assert!(!known.apply(Event::InitApply(object("b"))));
        assert!(known.apply(Event::InitDone));
        assert!(known.apply(Event::Apply(object("c"))));
        assert!(known.apply(Event::Delete(object("a"))));
        assert_eq!(names(&known), ["b", "c"]);
        // The list starts again and breaks off: what was known stays.
        known.apply(Event::Init);
        known.apply(Event::InitApply(object("d")));
        known.apply(Event::Init);
        assert_eq!(names(&known), ["b", "c"]);
        known.apply(Event::InitApply(object("b")));
        assert!(known.apply(Event::InitDone));
        assert_eq!(names(&known), ["b"]);
    }
}
