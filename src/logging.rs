//! What people read: log lines on stderr, in UTC, and the last line of a process that panics.

use std::io::IsTerminal;
use std::panic;
use std::process;

use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

/// From now on the process logs, and ends when any of its threads panics: no half-alive broker.
pub(crate) fn start(level: Targets) {
    let lines = tracing_subscriber::fmt::layer()
        .compact()
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        .with_target(false);
    tracing_subscriber::registry().with(lines).with(level).init();
    panic::set_hook(Box::new(|panic| {
        let thread = std::thread::current();
        let thread = thread.name().unwrap_or("without a name").to_owned();
        let at = panic.location().map_or_else(|| "an unknown place".to_owned(), ToString::to_string);
        let text = panic.payload().downcast_ref::<&str>().copied();
        let message = text.or_else(|| panic.payload().downcast_ref::<String>().map(String::as_str));
        let message = message.unwrap_or("no message");
        let backtrace = std::backtrace::Backtrace::capture();
        tracing::error!(thread, at, "kaas ends because of a bug: {message}\n{backtrace}");
        process::abort();
    }));
}
