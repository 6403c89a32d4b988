//! The control thread itself: a named thread with a single-threaded tokio runtime.

use std::io;
use std::net::TcpListener;
use std::thread::{Builder, JoinHandle};

use kaas_proto::control::ControlLink;
use tokio::task::LocalSet;

use crate::admin::Facts;
use crate::signals::Signals;
use crate::standalone::{self, Prepared, StandaloneError};

/// Calls to the volume at a time. A hung mount may hold that many, and no more.
const BLOCKING_THREADS: usize = 8;

/// The control thread has ended, and the broker with it.
#[derive(Debug, thiserror::Error)]
pub enum ControlError {
    #[error("the control thread could not start: {0}")]
    Start(#[from] io::Error),
    #[error(transparent)]
    Standalone(#[from] StandaloneError),
}

/// Starts the control thread. Its result is that of the broker: `Ok` after a clean stop.
///
/// `admin_listener` does not block.
///
/// # Errors
/// No thread could be made.
pub fn start(
    prepared: Prepared,
    link: ControlLink,
    admin_listener: TcpListener,
    facts: Facts,
) -> io::Result<JoinHandle<Result<(), ControlError>>> {
    Builder::new().name("control".to_owned()).spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .max_blocking_threads(BLOCKING_THREADS)
            .build()?;
        let driver = async move {
            let signals = Signals::catch()?;
            let admin_listener = tokio::net::TcpListener::from_std(admin_listener)?;
            Ok(standalone::run(prepared, link, admin_listener, signals, facts).await?)
        };
        let ended = LocalSet::new().block_on(&runtime, driver);
        // A call to a hung volume must not keep the process.
        runtime.shutdown_background();
        ended
    })
}
