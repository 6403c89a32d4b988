//! Stands before the heartbeat port of a broker, and cuts the streams of some others to it.

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};

use anyhow::{Context, Result};

/// What happens to the streams of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cut {
    /// They are closed, and new ones are closed at once.
    Closed,
    /// Nothing gets through any more, in either direction and for ever: not by connections that are there, and not by those
    /// that are made until it heals.
    Silent,
    /// What the process says waits until it heals, and comes then. What it is told comes through.
    Held,
}

#[derive(Debug, Default)]
struct State {
    target: Option<SocketAddr>,
    cut: Option<(u32, Cut)>,
    /// Connections through which nothing comes any more.
    dead: BTreeSet<u64>,
    /// Both ends of each connection.
    connections: Vec<Connection>,
}

#[derive(Debug)]
struct Connection {
    number: u64,
    process: u32,
    ends: [TcpStream; 2],
}

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    healed: Condvar,
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("the lock is never poisoned: nobody panics with it")
    }
}

/// Its threads end with the process.
#[derive(Debug)]
pub struct Proxy {
    address: SocketAddr,
    shared: Arc<Shared>,
}

impl Proxy {
    /// Listens. Connections are closed until there is a target.
    ///
    /// # Errors
    /// There is no port.
    pub fn start() -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let proxy = Self { address: listener.local_addr()?, shared: Arc::default() };
        let shared = Arc::clone(&proxy.shared);
        std::thread::spawn(move || {
            for (number, from) in (0..).zip(listener.incoming()) {
                // What can't be forwarded is closed.
                let _ = from.map_err(anyhow::Error::from).and_then(|from| forward(&shared, number, from));
            }
        });
        Ok(proxy)
    }

    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Where connections go from now on.
    pub fn forward_to(&self, target: SocketAddr) {
        self.shared.state().target = Some(target);
    }

    /// Cuts the streams that a process has or makes.
    pub fn cut(&self, process: u32, how: Cut) {
        let mut state = self.shared.state();
        state.cut = Some((process, how));
        let own: Vec<u64> = state.connections.iter().filter(|it| it.process == process).map(|it| it.number).collect();
        match how {
            Cut::Closed => state.connections.iter().filter(|it| it.process == process).for_each(close),
            Cut::Silent => state.dead.extend(own),
            Cut::Held => {}
        }
    }

    /// New connections work again; what was held comes through.
    pub fn heal(&self) {
        self.shared.state().cut = None;
        self.shared.healed.notify_all();
    }
}

fn close(connection: &Connection) {
    for end in &connection.ends {
        // It may be closed already.
        let _ = end.shutdown(Shutdown::Both);
    }
}

fn forward(shared: &Arc<Shared>, number: u64, from: TcpStream) -> Result<()> {
    let process = owner(from.peer_addr()?, from.local_addr()?)?;
    let mut state = shared.state();
    let cut = state.cut.filter(|(whose, _)| *whose == process).map(|(_, how)| how);
    if cut == Some(Cut::Closed) {
        return Ok(());
    }
    let to = TcpStream::connect(state.target.context("there is a target")?)?;
    from.set_nodelay(true)?;
    to.set_nodelay(true)?;
    if cut == Some(Cut::Silent) {
        state.dead.insert(number);
    }
    state.connections.push(Connection { number, process, ends: [from.try_clone()?, to.try_clone()?] });
    drop(state);
    let directions = [(from.try_clone()?, to.try_clone()?, true), (to, from, false)];
    for (source, sink, upstream) in directions {
        let shared = Arc::clone(shared);
        std::thread::spawn(move || {
            pump(&shared, number, process, upstream, &source, &sink);
            let mut state = shared.state();
            state.connections.iter().filter(|it| it.number == number).for_each(close);
            state.connections.retain(|it| it.number != number);
        });
    }
    Ok(())
}

/// Copies until one of both ends.
fn pump(shared: &Shared, number: u64, process: u32, upstream: bool, mut source: &TcpStream, mut sink: &TcpStream) {
    let mut buffer = [0; 4096];
    while let Ok(count @ 1..) = source.read(&mut buffer) {
        let mut state = shared.state();
        while upstream && state.cut == Some((process, Cut::Held)) {
            state = shared.healed.wait(state).expect("the lock is never poisoned: nobody panics with it");
        }
        let dead = state.dead.contains(&number);
        drop(state);
        if !dead && sink.write_all(&buffer[..count]).is_err() {
            return;
        }
    }
}

/// The process that has made a connection between two addresses of this machine.
fn owner(own: SocketAddr, peer: SocketAddr) -> Result<u32> {
    let hex = |address: SocketAddr| match address {
        SocketAddr::V4(address) => {
            format!("{:08X}:{:04X}", u32::from_ne_bytes(address.ip().octets()), address.port())
        }
        SocketAddr::V6(address) => format!("{address}: not used"),
    };
    let (own, peer) = (hex(own), hex(peer));
    let table = std::fs::read_to_string("/proc/net/tcp")?;
    let mut rows = table.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    // proc(5): sl, local_address, rem_address, …, the tenth field is the inode.
    let row = rows.find(|row| row.get(1) == Some(&own.as_str()) && row.get(2) == Some(&peer.as_str()));
    let inode = *row.as_ref().and_then(|row| row.get(9)).context("the connection is in /proc/net/tcp")?;
    let socket = format!("socket:[{inode}]");
    for process in std::fs::read_dir("/proc")?.flatten() {
        let Some(id) = process.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
        if holds(&process.path().join("fd"), &socket) {
            return Ok(id);
        }
    }
    anyhow::bail!("no process has {socket}")
}

/// Whether a process, whose descriptors are in a directory, has a socket. Those of others can't be read.
fn holds(descriptors: &Path, socket: &str) -> bool {
    let entries = std::fs::read_dir(descriptors).into_iter().flatten().flatten();
    entries.filter_map(|entry| std::fs::read_link(entry.path()).ok()).any(|link| link.as_os_str() == socket)
}
