//! Waiting with an end.

use std::future::Future;
use std::time::Duration;

use futures_lite::future;
use kaas_core::env::MonotonicTime;

use crate::context::now;

/// The output of the future, unless it takes longer.
pub(crate) async fn within<T>(timeout: Duration, future: impl Future<Output = T>) -> Option<T> {
    let timeout = async {
        glommio::timer::sleep(timeout).await;
        None
    };
    future::or(async { Some(future.await) }, timeout).await
}

/// A point in time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Deadline(MonotonicTime);

impl Deadline {
    pub(crate) fn after(duration: Duration) -> Self {
        let duration = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        Self(MonotonicTime(now().0.saturating_add(duration)))
    }

    pub(crate) fn left(self) -> Duration {
        Duration::from_nanos(self.0.0.saturating_sub(now().0))
    }

    /// The output of the future, unless the point comes first.
    pub(crate) async fn cut<T>(self, future: impl Future<Output = T>) -> Option<T> {
        within(self.left(), future).await
    }
}

/// The time that has passed since a point.
pub(crate) fn elapsed(since: MonotonicTime) -> Duration {
    Duration::from_nanos(now().0.saturating_sub(since.0))
}
