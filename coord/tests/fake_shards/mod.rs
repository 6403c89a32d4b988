//! Shards that do as they are told, each on a thread of its own, under a real control thread.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use kaas_coord::admin::{self, Facts};
use kaas_coord::standalone::{StandaloneOptions, prepare};
use kaas_coord::thread::{self, ControlError, Role};
use kaas_proto::config::broker::BrokerConfig;
use kaas_proto::control::{PartitionChange, PartitionKey, ShardCommand, ShardEvent, ShardLink, link};
use kaas_proto::reserve::Reserves;
use kaas_proto::types::{BrokerId, LeaderEpoch, SlotId};

const SHARDS: u16 = 2;
const DEADLINE: Duration = Duration::from_secs(30);

/// What happened on the shards, in order.
pub(crate) type Journal = Arc<Mutex<Vec<String>>>;

/// What a fake shard does with the coordinator slot 7, beside leading it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Accident {
    None,
    /// Another broker has it.
    Superseded,
    /// The shard ends when it is told to take it over.
    ShardEnds,
}

pub(crate) struct Broker {
    pub(crate) control: JoinHandle<Result<(), ControlError>>,
    pub(crate) shards: Vec<JoinHandle<()>>,
    pub(crate) admin: SocketAddr,
    pub(crate) journal: Journal,
}

pub(crate) fn start(accident: Accident) -> Broker {
    let options = StandaloneOptions {
        broker: BrokerId(1),
        listeners: Vec::new(),
        roots: None,
        config: Arc::new(BrokerConfig::default()),
        open_files: 1024,
    };
    let prepared = prepare(options).unwrap();
    let (control, links) = link(SHARDS, Arc::clone(prepared.view()), Reserves::default());
    let listener = admin::bind((Ipv4Addr::LOCALHOST, 0).into()).unwrap();
    let address = listener.local_addr().unwrap();
    let facts = Facts { version: "0", mode: "local-dev", started: Instant::now() };
    let control = thread::start(Role::Standalone(prepared), control, listener, facts).unwrap();
    let journal = Journal::default();
    let shard = |link| {
        let journal = Arc::clone(&journal);
        std::thread::spawn(move || obey(link, accident, &journal))
    };
    let shards = links.into_iter().map(shard).collect();
    Broker { control, shards, admin: address, journal }
}

fn obey(mut link: ShardLink, accident: Accident, journal: &Journal) {
    while let Some(command) = link.commands.blocking_recv() {
        match command {
            ShardCommand::TakeOver(take_over) => {
                let partition = take_over.partition;
                let mut change = PartitionChange::Leading { epoch: LeaderEpoch(1) };
                if partition == PartitionKey::of_slot(SlotId(7)) {
                    match accident {
                        Accident::None => {}
                        Accident::ShardEnds => return,
                        Accident::Superseded => {
                            change = PartitionChange::Superseded { epoch: LeaderEpoch(2), by: "broker 5".into() };
                        }
                    }
                }
                let event = ShardEvent { shard: link.shard, partition, change };
                let _ = link.events.blocking_send(event);
            }
            ShardCommand::Shutdown { done } => {
                journal.lock().unwrap().push(format!("stopping={} shutdown", *link.stopping.borrow()));
                done.send(()).unwrap();
                return;
            }
            ShardCommand::Ping { reply } => drop(reply.send(())),
            other => panic!("unexpected {other:?}"),
        }
    }
}

/// Asks until the endpoint is ready.
pub(crate) fn wait_until_ready(admin: SocketAddr) {
    let deadline = Instant::now() + DEADLINE;
    loop {
        let mut stream = TcpStream::connect(admin).unwrap();
        stream.write_all(b"GET /readyz HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        if answer.starts_with("HTTP/1.1 200") {
            return;
        }
        assert!(Instant::now() < deadline, "{answer}");
        std::thread::yield_now();
    }
}
