//! SIGTERM and SIGINT: the first one asks for a clean stop, a later one ends the process at once.

use std::io;
use std::time::Duration;

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::time::Instant;

/// Within this time a signal is the same one again: a process manager may send it to the process and to its group.
const SAME_SIGNAL: Duration = Duration::from_millis(500);

/// The exit status after a second signal.
const EXIT_AT_ONCE: i32 = 1;

#[derive(Debug)]
pub(crate) struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    /// From now on the signals no longer end the process by themselves. Within a tokio runtime.
    pub(crate) fn catch() -> io::Result<Self> {
        Ok(Self { terminate: signal(SignalKind::terminate())?, interrupt: signal(SignalKind::interrupt())? })
    }

    /// Completes with the next signal.
    pub(crate) async fn next(&mut self) -> &'static str {
        tokio::select! {
            _ = self.terminate.recv() => "SIGTERM",
            _ = self.interrupt.recv() => "SIGINT",
        }
    }

    /// Ends the process when a further signal comes.
    pub(crate) async fn exit_at_next(mut self) {
        let began = Instant::now();
        let mut name = self.next().await;
        while began.elapsed() < SAME_SIGNAL {
            name = self.next().await;
        }
        tracing::warn!("{name} again: ending at once, the next start recovers what was not closed");
        std::process::exit(EXIT_AT_ONCE);
    }
}
