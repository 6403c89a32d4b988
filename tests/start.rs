//! What a broker says at its start: bad options and limits are refused in words.

#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

use std::fs::Permissions;
use std::io::ErrorKind;
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use kaas_bench::broker::{Broker, BrokerOptions, wait_until};
use kaas_bench::client::Client;
use kaas_proto::record::BatchBuilder;
use kaas_proto::types::{Offset, TimestampMs};

const BOUND: &str = "kaas_net_bound_reached_total";
const BINARY: &str = env!("CARGO_BIN_EXE_kaas");

/// Starts a broker that must not start, and returns what it says.
fn refusal(command: &mut Command) -> String {
    let output = command.output().unwrap();
    assert!(!output.status.success());
    String::from_utf8_lossy(&output.stderr).into_owned() + &String::from_utf8_lossy(&output.stdout)
}

fn limited(files: u32) -> Command {
    let mut command = Command::new("prlimit");
    command.arg(format!("--nofile={files}")).arg(BINARY);
    command
}

#[test]
fn a_bad_value_of_a_variable_is_named_with_the_variable() {
    for (variable, value, parts) in [
        ("KAAS_SHARDS", "", ["--shards", "''", "1 to 1024"]),
        ("KAAS_SHARDS", "x", ["--shards", "'x'", "1 to 1024"]),
        ("KAAS_ACCEPT_NFS3", "maybe", ["--accept-nfs3", "'maybe'", "yes"]),
        ("KAAS_LISTEN", "9092", ["--listen", "'9092'", "HOST:PORT"]),
    ] {
        let said = refusal(Command::new(BINARY).env(variable, value));
        assert!(said.contains(variable), "{variable} is missing in: {said}");
        for part in parts {
            assert!(said.contains(part), "{part} is missing in: {said}");
        }
    }
    let said = refusal(Command::new(BINARY).env("KAAS_SHARDS", "2").args(["--shards", "x"]));
    assert!(said.contains("'x'") && !said.contains("KAAS_SHARDS"), "{said}");
}

#[test]
fn too_few_open_files_are_refused() {
    let said = refusal(limited(64).args(["--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0"]));
    assert!(said.contains("64 files may be open") && said.contains("ulimit -n"), "{said}");
}

#[test]
fn without_a_data_directory_it_warns() {
    let broker = Broker::start(&BrokerOptions::in_memory(Path::new(BINARY))).unwrap();
    assert!(broker.wait_for_log("--data-dir DIR keeps it").unwrap().contains("WARN"));
}

#[test]
fn connections_leave_files_for_the_volume_and_the_probes() {
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let script = directory.path().join("kaas-limited");
    std::fs::write(&script, format!("#!/bin/sh\nulimit -n 1024\nexec {BINARY} \"$@\"\n")).unwrap();
    std::fs::set_permissions(&script, Permissions::from_mode(0o755)).unwrap();
    let data = directory.path().join("data");
    let broker = Broker::start(&BrokerOptions::new(&script, &data).with(&["--shards", "1"])).unwrap();
    broker.wait_ready().unwrap();
    let mut client = Client::connect(broker.kafka()).unwrap();
    client.create_topic("t", 20, &[]).unwrap();
    let mut idle: Vec<_> = (0..980).map(|_| TcpStream::connect(broker.kafka()).unwrap()).collect();
    let mut refused = 0;
    wait_until("most connections are refused, and closed", || {
        idle.retain_mut(|stream| {
            stream.set_nonblocking(true).unwrap();
            matches!(stream.peek(&mut [0]), Err(error) if error.kind() == ErrorKind::WouldBlock)
        });
        refused = 980 - idle.len();
        let counted = broker.metric(BOUND, "open_files").unwrap_or(0.0);
        Ok(refused > 500 && counted == f64::from(u32::try_from(refused).unwrap()))
    })
    .unwrap();
    assert!(idle.len() > 200, "only {} were taken", idle.len());
    // Of one shard: some lines, then how many more there were.
    let lines = broker.log_lines().iter().filter(|line| line.contains("refused the connection")).count();
    assert!((1..100).contains(&lines), "{lines} of {refused} are logged");
    broker.wait_for_log("more of the same was not logged").unwrap();

    let batch = || BatchBuilder::new().record(TimestampMs(1_700_000_000_000), None, Some(b"value")).build();
    (0..20).for_each(|partition| assert_eq!(client.produce("t", partition, batch()).unwrap(), Offset(0)));
    client.create_topic("made-meanwhile", 20, &[]).unwrap();
    (0..20).for_each(|partition| assert_eq!(client.produce("made-meanwhile", partition, batch()).unwrap(), Offset(0)));
    for page in ["/healthz", "/readyz", "/metrics"] {
        assert_eq!(broker.get(page).unwrap().0, 200, "{page}");
    }
    drop(idle);
    wait_until("there is room for clients again", || {
        Ok(Client::connect(broker.kafka()).and_then(|mut client| client.metadata("t")).is_ok())
    })
    .unwrap();
}
