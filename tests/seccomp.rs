//! The seccomp profile of deploy/: a broker works under it, misses no system call, and says what is wrong where io_uring is blocked.

#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

use std::io::Write;
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Command, Stdio};

use kaas_bench::broker::{Broker, BrokerOptions};
use kaas_bench::tester::connect;

const BINARY: &str = env!("CARGO_BIN_EXE_kaas");
/// Enough for more than one segment.
const RECORDS: usize = 200;

fn in_repository(path: &str) -> String {
    format!("{}/{path}", env!("CARGO_MANIFEST_DIR"))
}

/// Runs kcat with this on its standard input, and returns what it prints.
fn kcat(broker: SocketAddr, arguments: &[&str], input: &str) -> String {
    let mut command = Command::new("timeout");
    command
        .args(["60", "kcat", "-b", &broker.to_string()])
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped());
    let mut child = command.spawn().unwrap();
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{command:?}: {}", output.status);
    String::from_utf8(output.stdout).unwrap()
}

fn start(directory: &Path, otherwise: &str) -> Broker {
    let options = BrokerOptions::new(Path::new(&in_repository("tests/seccomp/under")), directory)
        .with_variable("UNDER_PROFILE", &in_repository("deploy/seccomp/kaas.json"))
        .with_variable("UNDER_COMMAND", BINARY)
        .with_variable("UNDER_OTHERWISE", otherwise);
    let broker = Broker::start(&options).unwrap();
    broker.wait_ready().unwrap();
    // 2: a filter is in force.
    let status = std::fs::read_to_string(format!("/proc/{}/status", broker.process_id())).unwrap();
    assert!(status.contains("Seccomp:\t2"), "{status}");
    broker
}

#[test]
fn a_broker_works_under_the_profile() {
    // The same once more where a call that the profile does not allow is the end: else it may fail unseen.
    for otherwise in ["", "kill"] {
        let root = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let broker = start(root.path(), otherwise);
        let lines: String = (0..RECORDS).map(|number| format!("key:{number:08000}\n")).collect();
        connect(broker.kafka()).unwrap().create_topic("t", 1, &[("segment.bytes", "1048576")]).unwrap();
        kcat(broker.kafka(), &["-P", "-t", "t", "-K", ":"], &lines);
        assert_eq!(kcat(broker.kafka(), &["-C", "-t", "t", "-e", "-q", "-K", ":"], ""), lines);
        let group = ["-X", "auto.offset.reset=earliest", "-c", &RECORDS.to_string(), "-q", "-K", ":", "-G", "g", "t"];
        assert_eq!(kcat(broker.kafka(), &group, ""), lines);
        assert_eq!(broker.get("/metrics").unwrap().0, 200);
        assert!(broker.stop().unwrap().success());

        // Recovery, deletion.
        let broker = start(root.path(), otherwise);
        assert_eq!(kcat(broker.kafka(), &["-C", "-t", "t", "-e", "-q", "-K", ":"], ""), lines);
        connect(broker.kafka()).unwrap().delete_topic("t").unwrap();
        assert!(broker.stop().unwrap().success());
    }
}

#[test]
fn where_io_uring_is_blocked_it_says_what_to_allow() {
    for blocked in ["io_uring_setup,io_uring_enter,io_uring_register", "io_uring_setup"] {
        let output = Command::new(in_repository("tests/seccomp/under"))
            .env("UNDER_PROFILE", in_repository("deploy/seccomp/kaas.json"))
            .env("UNDER_COMMAND", BINARY)
            .env("UNDER_WITHOUT", blocked)
            .args(["--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0"])
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success(), "{said}");
        for part in ["io_uring is not allowed here", "seccomp profile", "io_uring_setup", "kernel.io_uring_disabled"] {
            assert!(said.contains(part), "{part} is missing in: {said}");
        }
    }
}
