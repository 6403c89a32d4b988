//! Shards as designed, seen from outside: threads on their processors, a listening socket each, counters that are merged.

#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

use std::collections::BTreeSet;
use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::thread::available_parallelism;

use kaas_bench::broker::{Broker, BrokerOptions, wait_until};
use kaas_bench::client::{Client, FETCH_VERSION, fetch_request};
use kaas_proto::kafka::ErrorCode;
use kaas_proto::kafka::messages::FetchRequest;
use kaas_proto::record::BatchBuilder;
use kaas_proto::types::{Offset, TimestampMs};

const BINARY: &str = env!("CARGO_BIN_EXE_kaas");

fn start(options: &BrokerOptions) -> Broker {
    let broker = Broker::start(options).unwrap();
    broker.wait_ready().unwrap();
    broker
}

/// Name, and the processors that it may use, of every thread.
fn threads(broker: &Broker) -> Vec<(String, String)> {
    let tasks = std::fs::read_dir(format!("/proc/{}/task", broker.process_id())).unwrap();
    let thread = |path: &Path| {
        // Workers of the kernel come and go.
        let name = std::fs::read_to_string(path.join("comm")).ok()?;
        let status = std::fs::read_to_string(path.join("status")).ok()?;
        let allowed = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"))?;
        Some((name.trim().to_owned(), allowed.trim().to_owned()))
    };
    tasks.filter_map(|task| thread(&task.unwrap().path())).collect()
}

/// The processors of the executors: each has a thread that is named after it and pinned, beside helpers that are not.
fn pinned(broker: &Broker) -> BTreeSet<(String, String)> {
    let is_one = |allowed: &str| allowed.parse::<usize>().is_ok();
    threads(broker).into_iter().filter(|(name, allowed)| name.starts_with("shard-") && is_one(allowed)).collect()
}

/// A part of the line that a broker logs first.
fn told(broker: &Broker, field: &str) -> String {
    let line = broker.wait_for_log("kaas starts").unwrap();
    let value = line.split_once(&format!(" {field}=")).unwrap_or_else(|| panic!("{field} is missing: {line}")).1;
    match value.strip_prefix('"') {
        Some(quoted) => quoted.split('"').next().unwrap().to_owned(),
        None => value.split(' ').next().unwrap().to_owned(),
    }
}

/// How many sockets of the process listen on a port, by the kernel's table.
fn listening(broker: &Broker, port: u16) -> usize {
    let handles = std::fs::read_dir(format!("/proc/{}/fd", broker.process_id())).unwrap();
    let target = |path: &Path| Some(std::fs::read_link(path).ok()?.to_str()?.to_owned());
    let own: BTreeSet<String> = handles.filter_map(|handle| target(&handle.unwrap().path())).collect();
    let table = std::fs::read_to_string("/proc/net/tcp").unwrap();
    let listens = |line: &&str| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        // The local address, the state, and the inode.
        fields[1].ends_with(&format!(":{port:04X}"))
            && fields[3] == "0A"
            && own.contains(&format!("socket:[{}]", fields[9]))
    };
    table.lines().skip(1).filter(listens).count()
}

#[test]
fn each_shard_has_a_processor_and_a_listening_socket() {
    let broker = start(&BrokerOptions::in_memory(Path::new(BINARY)));
    let processors = available_parallelism().unwrap().get();
    let shards: usize = told(&broker, "shards").parse().unwrap();
    assert_eq!(shards, if processors > 2 { processors - 1 } else { processors }, "one is left to the control thread");
    let pinned = pinned(&broker);
    let on: BTreeSet<&str> = pinned.iter().map(|(_, processor)| &**processor).collect();
    let cpus = told(&broker, "cpus");
    assert_eq!(on, cpus.split(',').collect(), "as it says");
    assert_eq!((on.len(), pinned.len()), (shards, shards), "one thread on each: {pinned:?}");
    let all = threads(&broker);
    let control = all.iter().find(|(name, _)| name == "control").unwrap();
    assert!(processors == 1 || control.1.parse::<usize>().is_err(), "the control thread goes where there is room");
    assert_eq!(listening(&broker, broker.kafka().port()), shards);

    // The id of a fetch session tells the shard that accepted its connection.
    let mut client = Client::connect(broker.kafka()).unwrap();
    client.create_topic("t", 1, &[]).unwrap();
    let mut accepted = BTreeSet::new();
    wait_until("connections reach every shard", || {
        let mut client = Client::connect(broker.kafka()).unwrap();
        let request = FetchRequest { session_epoch: 0, ..fetch_request("t", 0, Offset(0), 0) };
        let response = client.call(FETCH_VERSION, &request).unwrap();
        assert_eq!(response.error_code, ErrorCode::None);
        assert!(response.session_id > 0);
        accepted.insert(usize::try_from(response.session_id).unwrap() % shards);
        Ok(accepted.len() == shards)
    })
    .unwrap();
}

#[test]
fn a_process_that_is_confined_to_a_processor_has_one_shard_there() {
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let script = directory.path().join("kaas-confined");
    std::fs::write(&script, format!("#!/bin/sh\nexec taskset -c 0 {BINARY} \"$@\"\n")).unwrap();
    std::fs::set_permissions(&script, Permissions::from_mode(0o755)).unwrap();
    let broker = start(&BrokerOptions::in_memory(&script));
    assert_eq!((told(&broker, "shards"), told(&broker, "cpus")), ("1".to_owned(), "0".to_owned()));
    assert!(threads(&broker).iter().all(|(_, allowed)| allowed == "0"));
    assert_eq!(listening(&broker, broker.kafka().port()), 1);
}

#[test]
fn more_shards_than_processors_are_not_pinned_and_it_says_so() {
    let shards = available_parallelism().unwrap().get() + 1;
    let broker = start(&BrokerOptions::in_memory(Path::new(BINARY)).with(&["--shards", &shards.to_string()]));
    assert_eq!(told(&broker, "shards"), shards.to_string());
    assert!(told(&broker, "cpus").contains("not pinned"));
    assert!(available_parallelism().unwrap().get() == 1 || pinned(&broker).is_empty());
    assert_eq!(listening(&broker, broker.kafka().port()), shards);
}

#[test]
fn the_first_line_says_what_starts() {
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let data_dir = directory.path().join("data");
    let options =
        BrokerOptions::new(Path::new(BINARY), &data_dir).with(&["--shards", "1", "--listen", "EXTRA=127.0.0.1:0"]);
    let broker = start(&options);
    assert_eq!(told(&broker, "version"), env!("CARGO_PKG_VERSION"));
    assert_eq!(told(&broker, "mode"), "standalone");
    assert_eq!(told(&broker, "shards"), "1");
    assert_eq!(Path::new(&told(&broker, "data_dir")), data_dir);
    assert!(!told(&broker, "file_system").is_empty());
    assert!(told(&broker, "open_files").parse::<u64>().unwrap() > 0);
    let listeners = told(&broker, "listeners");
    assert!(listeners.contains(&broker.kafka().to_string()) && listeners.contains("EXTRA=127.0.0.1:"), "{listeners}");
    assert!(!listeners.contains(":0,") && !listeners.ends_with(":0"), "real ports: {listeners}");
    let lines = broker.log_lines();
    assert!(
        lines.iter().position(|line| line.contains("kaas starts"))
            < lines.iter().position(|line| line.contains("listening on"))
    );
    assert_eq!(lines.iter().filter(|line| line.contains("kaas starts")).count(), 1);

    let in_memory = start(&BrokerOptions::in_memory(Path::new(BINARY)));
    assert_ne!(told(&in_memory, "mode"), "standalone");
}

#[test]
fn request_times_are_counted_by_api_over_all_shards() {
    let broker = start(&BrokerOptions::in_memory(Path::new(BINARY)));
    let mut client = Client::connect(broker.kafka()).unwrap();
    client.create_topic("t", 8, &[]).unwrap();
    let count = |series: &str, api: &str| broker.metric(series, &format!("api=\"{api}\"")).unwrap_or(0.0);
    let before = count("kaas_request_seconds_count", "Produce");
    // Many connections, so that every shard has some, to partitions of every shard.
    let batch = || BatchBuilder::new().record(TimestampMs(1_700_000_000_000), None, Some(b"value")).build();
    for connection in 0..40 {
        let mut client = Client::connect(broker.kafka()).unwrap();
        client.produce("t", connection % 8, batch()).unwrap();
        client.fetch("t", connection % 8, Offset(0), 0).unwrap();
    }
    wait_until("all are counted", || Ok(count("kaas_request_seconds_count", "Fetch") >= 40.0)).unwrap();
    assert_eq!(count("kaas_request_seconds_count", "Produce") - before, 40.0);
    assert_eq!(count("kaas_request_seconds_count", "Fetch"), 40.0);
    let (status, page) = broker.get("/metrics").unwrap();
    assert_eq!(status, 200);
    for series in ["kaas_request_seconds_count{api=\"Produce\"}", "kaas_request_seconds_sum{api=\"Produce\"}"] {
        assert_eq!(page.lines().filter(|line| line.starts_with(series)).count(), 1, "{series}: one for all shards");
    }
    // Buckets grow, and the last one has all.
    let buckets: Vec<f64> = page
        .lines()
        .filter(|line| line.starts_with("kaas_request_seconds_bucket{") && line.contains("api=\"Produce\""))
        .map(|line| line.rsplit_once(' ').unwrap().1.parse().unwrap())
        .collect();
    assert!(buckets.len() > 5 && buckets.is_sorted(), "{buckets:?}");
    assert_eq!(*buckets.last().unwrap(), count("kaas_request_seconds_count", "Produce"));
    let seconds = count("kaas_request_seconds_sum", "Produce");
    assert!(seconds > 0.0 && seconds < 60.0, "{seconds} s for 40 requests");
}
