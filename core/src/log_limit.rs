//! Log lines that clients or a broken volume cause at any rate, see [`kaas_proto::log_limit`].

pub use kaas_proto::log_limit::*;

/// Tells how many lines were not logged.
pub fn tell(suppressed: Vec<Suppressed>) {
    for Suppressed { cause, lines } in suppressed {
        tracing::warn!(cause, lines, "more of the same was not logged");
    }
}
