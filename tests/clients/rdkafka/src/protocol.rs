//! What a client program and the driver say to each other: lines on standard input and output (see tests/README.md).

use std::error::Error;
use std::fmt::Debug;
use std::io::stdin;
use std::thread::sleep;
use std::time::{Duration, Instant};

/// How long any single wait of a case may take before the case fails.
pub const STEP: Duration = Duration::from_secs(60);

pub type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;

pub fn say(line: &str) {
    println!("{}", line.split_whitespace().collect::<Vec<_>>().join(" "));
}

/// Asks the driver to kill -9 the broker and to start it again; returns when it answers.
pub fn kill_broker() -> Outcome<()> {
    say("KILL");
    let mut answer = String::new();
    stdin().read_line(&mut answer)?;
    expect_equal("the driver's answer", answer.trim(), "RESTARTED")
}

pub fn wait_until(what: &str, mut condition: impl FnMut() -> Outcome<bool>) -> Outcome<()> {
    let deadline = Instant::now() + STEP;
    while !condition()? {
        if Instant::now() > deadline {
            return Err(format!("waited {STEP:?} for: {what}").into());
        }
        sleep(Duration::from_millis(5));
    }
    Ok(())
}

pub fn expect_equal<T: PartialEq<U> + Debug, U: Debug>(what: &str, found: T, expected: U) -> Outcome<()> {
    if found == expected {
        return Ok(());
    }
    Err(format!("{what}: found {:.300} where {:.300} was expected", text(&found), text(&expected)).into())
}

fn text(value: &impl Debug) -> String {
    format!("{value:?}")
}
