//! Scenarios, again and again with random timing: what goes wrong, and how long partitions are without service.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use anyhow::{Result, bail};
use clap::ValueEnum;
use kaas_bench::api_server::ApiServer;
use kaas_bench::scenario::{Gap, Scenario, Setting, Stage};

/// Which scenarios, how often.
#[derive(Debug, clap::Args)]
pub(crate) struct SoakOptions {
    /// The broker; for timings build it with `cargo build --release`.
    #[arg(long, default_value = "target/release/kaas")]
    binary: std::path::PathBuf,
    #[arg(long, default_value_t = 100)]
    repetitions: u64,
    /// Only this one; repeatable. Default: all.
    #[arg(long)]
    scenario: Vec<Scenario>,
    /// Of the first repetition; the next ones have the seeds that follow.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// How many seconds a paused broker stands still. The API server is away for three times as long.
    #[arg(long, default_value_t = 20)]
    pause_seconds: u64,
    /// Writes what the brokers logged, where a partition whose leader changed was without service for longer than this.
    #[arg(long, value_name = "MILLISECONDS")]
    log_slower_than: Option<u64>,
    /// The brokers elect with a real Lease of a real API server, with the permissions of deploy/; it is built the first time.
    #[arg(long)]
    kubernetes: bool,
}

/// By step, and whether the leader has changed in it.
type Waits = BTreeMap<(&'static str, bool), Vec<Wait>>;

/// How long, with which seed, and what was in the way.
type Wait = (Duration, u64, String);

/// Runs the scenarios, each on a cluster of its own, and prints a table of each.
///
/// # Errors
/// There were violations.
pub(crate) fn print(directory: &Path, options: &SoakOptions) -> Result<()> {
    let all = Scenario::value_variants();
    let scenarios = if options.scenario.is_empty() { all } else { &options.scenario };
    println!("time between two acknowledgements of a partition, the longest of each step");
    let api_server = options.kubernetes.then(ApiServer::start).transpose()?;
    let mut violations = 0;
    for &scenario in scenarios {
        violations += soak(directory, options, scenario, api_server.as_ref())?;
    }
    if violations > 0 {
        bail!("{violations} violations");
    }
    Ok(())
}

fn soak(directory: &Path, options: &SoakOptions, scenario: Scenario, api_server: Option<&ApiServer>) -> Result<u64> {
    let pause = Duration::from_secs(options.pause_seconds);
    let mut stages = 0;
    let mut start = || {
        stages += 1;
        let namespace = format!("{scenario}-{stages}");
        let setting = match api_server {
            Some(server) => Setting::Kubernetes { server, namespace: &namespace },
            None => Setting::StandIn,
        };
        Stage::start(scenario, setting, &options.binary, directory, pause)
    };
    let (mut waits, mut violations, mut records) = (Waits::new(), 0, 0);
    let mut stage = start()?;
    for seed in options.seed..options.seed + options.repetitions {
        match stage.repeat(seed) {
            Ok(gaps) => {
                keep_logs(directory, options, &stage, seed, &gaps)?;
                gaps.into_iter().for_each(|gap| note(&mut waits, seed, gap));
            }
            Err(violation) => {
                violations += 1;
                println!(
                    "VIOLATION in {scenario}: run it again with --scenario {scenario} --seed {seed}\n{violation:#}"
                );
                stage = start()?;
            }
        }
    }
    match stage.finish() {
        Ok(acknowledged) => records += acknowledged,
        Err(violation) => {
            violations += 1;
            println!("VIOLATION in {scenario}, at the end: {violation:#}");
        }
    }
    let repetitions = options.repetitions;
    println!(
        "\n{scenario}: {repetitions} repetitions, {violations} violations, {records} records at the end all there once"
    );
    println!("{:<16} {:<14} {:>8} {:>10} {:>10} {:>10}", "step", "leader", "waits", "p50", "p99", "max");
    for ((step, moved), mut waits) in waits {
        waits.sort_unstable();
        let at = |share: usize| waits.get((waits.len() * share / 100).min(waits.len().saturating_sub(1)));
        let [p50, p99, max] = [50, 99, 100].map(|share| at(share).map_or(Duration::ZERO, |wait| wait.0));
        let (_, seed, obstacle) = waits.last().cloned().unwrap_or_default();
        let leader = if moved { "changes" } else { "stays" };
        println!(
            "{step:<16} {leader:<14} {:>8} {p50:>10.1?} {p99:>10.1?} {max:>10.1?}  seed {seed} {obstacle}",
            waits.len()
        );
    }
    Ok(violations)
}

fn keep_logs(directory: &Path, options: &SoakOptions, stage: &Stage, seed: u64, gaps: &[Gap]) -> Result<()> {
    let Some(limit) = options.log_slower_than.map(Duration::from_millis) else { return Ok(()) };
    let slow: Vec<String> =
        gaps.iter().filter(|gap| gap.moved && gap.waited > limit).map(|gap| format!("{gap:?}")).collect();
    if !slow.is_empty() {
        let path = directory.join(format!("slow-{seed}.log"));
        println!("seed {seed}: {} slow, see {}", slow.len(), path.display());
        std::fs::write(path, format!("{}\n{}", slow.join("\n"), stage.logs()))?;
    }
    Ok(())
}

fn note(waits: &mut Waits, seed: u64, gap: Gap) {
    waits.entry((gap.step, gap.moved)).or_default().push((gap.waited, seed, gap.obstacle));
}
