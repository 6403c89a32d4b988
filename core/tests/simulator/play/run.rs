//! Runs one seed, whatever comes of it.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use futures_lite::future;
use kaas_core::env::sim::Simulation;

use super::scenario::play;

/// Longer than anything here takes: virtual time would go on for ever.
const DEADLINE: Duration = Duration::from_secs(24 * 3600);

/// What a seed came to.
#[derive(Clone, Copy, Debug, Default)]
#[allow(dead_code, reason = "shown to people")]
pub struct Summary {
    pub acknowledged: usize,
    pub reads: usize,
    pub records: usize,
    pub operations: u64,
}

/// A seed that shows a bug.
#[derive(Debug)]
pub struct Failure {
    pub seed: u64,
    pub what: String,
    pub trace: String,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { seed, what, trace } = self;
        writeln!(f, "{trace}")?;
        writeln!(f, "seed {seed}: {what}")?;
        write!(f, "just this one: cargo run -p kaas-core --features simulator --example simulate -- --seed {seed}")
    }
}

/// # Errors
/// The seed shows a bug.
pub fn run_seed(seed: u64) -> Result<Summary, Box<Failure>> {
    let simulation = Simulation::new(seed);
    let outcome = run(&simulation, play(seed, &simulation));
    outcome.map_err(|what| Box::new(Failure { seed, what, trace: simulation.trace() }))
}

/// Drives a scenario to its end.
///
/// # Errors
/// What did not hold, a panic, or that there is no end.
pub fn run<T>(simulation: &Simulation, scenario: impl Future<Output = Result<T, String>>) -> Result<T, String> {
    let deadline = async {
        simulation.time().sleep(DEADLINE).await;
        Err("the scenario does not come to an end".to_owned())
    };
    let outcome = catch_unwind(AssertUnwindSafe(|| simulation.run(future::or(scenario, deadline))));
    outcome.unwrap_or_else(|panic| Err(format!("panicked: {}", panic_message(&*panic))))
}

fn panic_message(panic: &(dyn std::any::Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("without a message")
}

/// The beginning of a value.
pub fn short(value: &str) -> &str {
    &value[..value.len().min(30)]
}
