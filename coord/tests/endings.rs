//! How a broker ends: cleanly when it is told to, with an error when it can't go on, never half alive.

#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

mod fake_shards;

use std::process::Command;

use fake_shards::{Accident, Broker, start, wait_until_ready};

/// One test, because a signal is for the whole process.
#[test]
fn every_ending() {
    superseded_says_by_whom_and_relinquishes_the_rest();
    a_shard_that_ends_ends_the_broker();
    sigterm_stops_listeners_then_shards_and_is_no_error();
}

/// The message that the broker ended with, if any, and what its shards were told.
fn end(broker: Broker) -> (Option<String>, Vec<String>) {
    let error = broker.control.join().unwrap().err().map(|error| error.to_string());
    broker.shards.into_iter().for_each(|shard| shard.join().unwrap());
    let journal = broker.journal.lock().unwrap().clone();
    (error, journal)
}

fn superseded_says_by_whom_and_relinquishes_the_rest() {
    let (error, journal) = end(start(Accident::Superseded));
    let error = error.unwrap();
    assert!(error.contains("coordinator slot 7 is led by broker 5 with epoch 2"), "{error}");
    assert!(error.contains("--data-dir"), "says what to change: {error}");
    assert_eq!(journal, ["stopping=true shutdown"; 2]);
}

fn a_shard_that_ends_ends_the_broker() {
    let (error, journal) = end(start(Accident::ShardEnds));
    let error = error.unwrap();
    assert!(error.starts_with("shard ") && error.ends_with(" has ended"), "{error}");
    assert_eq!(journal, ["stopping=true shutdown"; 1], "the other one was told to stop");
}

fn sigterm_stops_listeners_then_shards_and_is_no_error() {
    let broker = start(Accident::None);
    wait_until_ready(broker.admin);
    let killed = Command::new("kill").args(["-TERM", &std::process::id().to_string()]).status().unwrap();
    assert!(killed.success());
    assert_eq!(end(broker), (None, vec!["stopping=true shutdown".to_owned(); 2]));
}
