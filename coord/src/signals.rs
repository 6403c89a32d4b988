//! SIGTERM and SIGINT: the first one asks for a clean stop, the second one ends the process at once.

use std::io;

use tokio::signal::unix::{Signal, SignalKind, signal};

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

    /// Ends the process with the next signal.
    pub(crate) async fn exit_at_next(mut self) {
        let name = self.next().await;
        tracing::warn!("{name} again: ending at once, the next start recovers what was not closed");
        std::process::exit(EXIT_AT_ONCE);
    }
}
