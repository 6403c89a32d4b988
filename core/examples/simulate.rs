//! Runs the simulator for as long as asked and prints the seeds that fail.
//!
//! ```text
//! cargo run -p kaas-core --features simulator --example simulate -- --minutes 10 [--from SEED]
//! cargo run -p kaas-core --features simulator --example simulate -- --seed SEED
//! ```
//!
//! One seed is printed with everything that happened. Ends with 1 if a seed has failed.

#![allow(clippy::print_stdout, reason = "a program for the terminal")]
#![allow(clippy::disallowed_methods, reason = "runs outside a shard")]
#![allow(unreachable_pub, dead_code, reason = "the modules of a test are its own")]

use std::process::ExitCode;
use std::time::{Duration, Instant};

#[path = "../tests/simulator/play/mod.rs"]
mod play;

use play::run::run_seed;

const USAGE: &str = "usage: simulate --seed SEED | [--minutes N] [--from SEED]";

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    let (mut seed, mut from, mut minutes) = (None, 0, 1);
    while let Some(argument) = arguments.next() {
        let Some(number) = arguments.next().and_then(|value| value.parse::<u64>().ok()) else {
            println!("{argument} needs a number\n{USAGE}");
            return ExitCode::from(2);
        };
        match argument.as_str() {
            "--seed" => seed = Some(number),
            "--from" => from = number,
            "--minutes" => minutes = number,
            _ => {
                println!("unknown option {argument}\n{USAGE}");
                return ExitCode::from(2);
            }
        }
    }
    match seed {
        Some(seed) => run_one(seed),
        None => run_for(Duration::from_secs(minutes * 60), from),
    }
}

fn run_one(seed: u64) -> ExitCode {
    match run_seed(seed) {
        Ok(summary) => {
            println!("seed {seed} holds: {summary:?}");
            ExitCode::SUCCESS
        }
        Err(failure) => {
            println!("{failure}");
            ExitCode::FAILURE
        }
    }
}

fn run_for(limit: Duration, from: u64) -> ExitCode {
    let began = Instant::now();
    let mut failed = Vec::new();
    let mut seed = from;
    while began.elapsed() < limit {
        if let Err(failure) = run_seed(seed) {
            println!("seed {seed} FAILED: {}", failure.what);
            failed.push(seed);
        }
        seed += 1;
    }
    println!("{} seeds from {from} on, {} failed: {failed:?}", seed - from, failed.len());
    println!("one of them with all that happened: simulate --seed SEED");
    if failed.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
