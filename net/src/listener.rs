//! Listening sockets: one per shard, address and listener, all on the same port.
//!
//! The kernel spreads connections over the sockets of a port that all have `SO_REUSEPORT`. The first one is bound
//! without it and gets it afterwards: so a second broker on the port is an error, not a thief of half the connections.

#![allow(unsafe_code, reason = "glommio takes listening sockets as bare descriptors, and lends those of its streams")]

use std::fmt;
use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, IntoRawFd};
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use glommio::net::{TcpListener, TcpStream};
use socket2::{Domain, Protocol, Socket, Type};
use thiserror::Error;

use crate::limits::ACCEPT_BACKLOG;
use crate::socket::ClientSocket;

/// The name of a listener that is given none.
pub const DEFAULT_LISTENER_NAME: &str = "PLAINTEXT";

/// `[NAME=]HOST:PORT`, as in `--listen` and `--advertise`. An IPv6 address stands in brackets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedAddress {
    /// Upper case.
    pub name: Arc<str>,
    /// Without brackets.
    pub host: Arc<str>,
    pub port: u16,
}

/// A text that is no [`NamedAddress`].
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum InvalidAddress {
    #[error("'{0}' is not [NAME=]HOST:PORT, for example 127.0.0.1:9092, [::1]:9092 or INTERNAL=broker-0:9092")]
    Form(String),
    #[error("'{name}' is no listener name: it consists of letters, digits, '_' and '-'")]
    Name { name: String },
}

impl FromStr for NamedAddress {
    type Err = InvalidAddress;

    fn from_str(text: &str) -> Result<Self, InvalidAddress> {
        let form = || InvalidAddress::Form(text.to_owned());
        let (name, address) = text.split_once('=').unwrap_or((DEFAULT_LISTENER_NAME, text));
        if name.is_empty() || !name.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-')) {
            return Err(InvalidAddress::Name { name: name.to_owned() });
        }
        let (host, port) = address.rsplit_once(':').ok_or_else(form)?;
        let bracketed = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
        // A colon outside brackets would leave open where the port begins.
        if host.is_empty() || bracketed.is_none() && host.contains([':', '[', ']']) {
            return Err(form());
        }
        Ok(Self {
            name: name.to_ascii_uppercase().into(),
            host: bracketed.unwrap_or(host).into(),
            port: port.parse().map_err(|_| form())?,
        })
    }
}

impl fmt::Display for NamedAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, host, port } = self;
        if host.contains(':') { write!(f, "{name}=[{host}]:{port}") } else { write!(f, "{name}={host}:{port}") }
    }
}

/// Why the broker can't listen.
#[derive(Debug, Error)]
pub enum ListenError {
    #[error("listener {listener}: the host '{host}' has no address: {source}; give an IP address, or 0.0.0.0 for all")]
    Resolve { listener: Arc<str>, host: Arc<str>, source: io::Error },
    #[error(
        "listener {listener}: {address} is in use, by another broker perhaps; stop that process or choose another port \
         with --listen (port 0 takes a free one)"
    )]
    InUse { listener: Arc<str>, address: SocketAddr },
    #[error("listener {listener}: {address} is not allowed to this user; ports below 1024 need CAP_NET_BIND_SERVICE")]
    Forbidden { listener: Arc<str>, address: SocketAddr },
    #[error("listener {listener}: {address} is no address of this machine; use one of its own, or 0.0.0.0 for all")]
    NotLocal { listener: Arc<str>, address: SocketAddr },
    #[error("listener {listener}: listening on {address} failed: {source}")]
    Other { listener: Arc<str>, address: SocketAddr, source: io::Error },
    #[error("two listeners are named {0}; give each its own name with --listen NAME=HOST:PORT")]
    SameName(Arc<str>),
}

impl ListenError {
    fn of(listener: &Arc<str>, address: SocketAddr, source: io::Error) -> Self {
        let listener = Arc::clone(listener);
        match source.kind() {
            io::ErrorKind::AddrInUse => Self::InUse { listener, address },
            io::ErrorKind::PermissionDenied => Self::Forbidden { listener, address },
            io::ErrorKind::AddrNotAvailable => Self::NotLocal { listener, address },
            _ => Self::Other { listener, address, source },
        }
    }
}

/// How long a port may still belong to a broker that was killed just now.
const PORT_WAIT: Duration = Duration::from_secs(3);
const PORT_RETRY: Duration = Duration::from_millis(20);

/// A socket that listens, not yet bound to a shard. Crosses to its shard once.
#[derive(Debug)]
pub struct BoundListener {
    /// The listener's name.
    pub name: Arc<str>,
    /// Where it listens; the port is a real one.
    pub address: SocketAddr,
    socket: Socket,
}

/// Opens all listeners for so many shards. The result is indexed by shard.
///
/// A host name is bound on all its addresses: a `localhost` that is both 127.0.0.1 and ::1 is reached by either.
///
/// # Errors
/// Names the listener, the address and what to do about it.
pub fn bind(addresses: &[NamedAddress], shards: u16) -> Result<Vec<Vec<BoundListener>>, ListenError> {
    let mut listeners: Vec<Vec<BoundListener>> = (0..shards).map(|_| Vec::new()).collect();
    for (position, NamedAddress { name, host, port }) in addresses.iter().enumerate() {
        if addresses[..position].iter().any(|other| other.name == *name) {
            return Err(ListenError::SameName(Arc::clone(name)));
        }
        let mut port = *port;
        for mut address in resolve(name, host)? {
            address.set_port(port);
            let error = |source| ListenError::of(name, address, source);
            let first = open_first(address).map_err(error)?;
            first.set_reuse_port(true).map_err(error)?;
            let address = first.local_addr().map_err(error)?.as_socket().expect("bound to an address of IP");
            port = address.port();
            let mut first = Some(first);
            for shard in &mut listeners {
                let socket = first.take().map_or_else(|| open(address, true), Ok).map_err(error)?;
                shard.push(BoundListener { name: Arc::clone(name), address, socket });
            }
        }
    }
    // Only now that nothing can fail any more does a client get in.
    for listener in listeners.iter().flatten() {
        let error = |source| ListenError::of(&listener.name, listener.address, source);
        listener.socket.listen(ACCEPT_BACKLOG).map_err(error)?;
    }
    Ok(listeners)
}

fn resolve(name: &Arc<str>, host: &Arc<str>) -> Result<Vec<SocketAddr>, ListenError> {
    let failed = |source| ListenError::Resolve { listener: Arc::clone(name), host: Arc::clone(host), source };
    let mut addresses = Vec::new();
    for address in (&**host, 0).to_socket_addrs().map_err(failed)? {
        if !addresses.contains(&address) {
            addresses.push(address);
        }
    }
    match addresses.is_empty() {
        true => Err(failed(io::ErrorKind::NotFound.into())),
        false => Ok(addresses),
    }
}

/// Binds without sharing, which shows whether somebody else has the port. The kernel lets go of the sockets of a killed
/// broker only when it has undone what that broker asked of io_uring: some time after the process is gone.
#[expect(clippy::disallowed_methods, reason = "at start-up, before any shard runs")]
fn open_first(address: SocketAddr) -> io::Result<Socket> {
    let begin = std::time::Instant::now();
    let mut told = false;
    loop {
        match open(address, false) {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse && begin.elapsed() < PORT_WAIT => {
                if !std::mem::replace(&mut told, true) {
                    let seconds = PORT_WAIT.as_secs();
                    tracing::warn!(
                        "{address} is in use; trying for {seconds} s, a broker that was killed lets go soon"
                    );
                }
                std::thread::sleep(PORT_RETRY);
            }
            result => return result,
        }
    }
}

fn open(address: SocketAddr, reuse_port: bool) -> io::Result<Socket> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    // Connections of a former process that linger in TIME_WAIT don't hold the port.
    socket.set_reuse_address(true)?;
    socket.set_reuse_port(reuse_port)?;
    if address.is_ipv6() {
        socket.set_only_v6(false)?;
    }
    socket.bind(&address.into())?;
    Ok(socket)
}

/// A listening socket in the executor of its shard.
#[derive(Debug)]
pub(crate) struct ShardListener {
    pub(crate) name: Arc<str>,
    listener: TcpListener,
}

impl ShardListener {
    /// Takes the socket into the executor that runs the caller.
    pub(crate) fn new(bound: BoundListener) -> Self {
        // SAFETY: the descriptor is an open listening socket, and `into_raw_fd` hands its ownership over.
        let listener = unsafe { TcpListener::from_raw_fd(bound.socket.into_raw_fd()) };
        Self { name: bound.name, listener }
    }

    /// The next connection, small responses on it not held back.
    pub(crate) async fn accept(&self) -> io::Result<ClientSocket> {
        ClientSocket::new(self.listener.accept().await?)
    }
}

/// The descriptor of a stream, for what glommio has no call for.
pub(crate) fn descriptor(stream: &TcpStream) -> BorrowedFd<'_> {
    // SAFETY: the stream keeps its descriptor open for as long as it is borrowed.
    unsafe { BorrowedFd::borrow_raw(stream.as_raw_fd()) }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]
    use super::*;

    fn address(text: &str) -> NamedAddress {
        text.parse().unwrap()
    }

    #[test]
    fn addresses_are_read_as_people_write_them() {
        let parts = |text: &str| {
            let NamedAddress { name, host, port } = address(text);
            (name.to_string(), host.to_string(), port)
        };
        let of = |name: &str, host: &str, port| (name.to_owned(), host.to_owned(), port);
        assert_eq!(parts("127.0.0.1:9092"), of("PLAINTEXT", "127.0.0.1", 9092));
        assert_eq!(parts("internal=broker-0.kaas:9"), of("INTERNAL", "broker-0.kaas", 9));
        assert_eq!(parts("[::1]:0"), of("PLAINTEXT", "::1", 0));
        assert_eq!(address("X=[::1]:1").to_string(), "X=[::1]:1");
        for bad in ["", "9092", "host:", ":9092", "::1:9092", "host:99999", "=host:1", "a b=host:1", "[::1:1"] {
            let error = bad.parse::<NamedAddress>().unwrap_err().to_string();
            assert!(error.contains(&format!("'{}", bad.split('=').next().unwrap())), "{error}");
        }
    }

    #[test]
    fn all_shards_share_the_port_that_the_kernel_chose() {
        let listeners = bind(&[address("A=127.0.0.1:0"), address("B=127.0.0.1:0")], 3).unwrap();
        assert_eq!(listeners.len(), 3);
        for shard in &listeners {
            assert_eq!(shard.len(), 2);
            assert_eq!(shard[0].address, listeners[0][0].address);
            assert_ne!(shard[0].address, shard[1].address);
        }
    }

    #[test]
    fn a_second_broker_on_the_port_is_told_so() {
        let first = bind(&[address("127.0.0.1:0")], 2).unwrap();
        let port = first[0][0].address.port();
        for host in ["127.0.0.1", "0.0.0.0"] {
            let error = bind(&[address(&format!("{host}:{port}"))], 2).unwrap_err();
            assert!(matches!(error, ListenError::InUse { .. }), "{error}");
            assert!(error.to_string().contains(&format!("{host}:{port}")), "{error}");
        }
        drop(first);
        bind(&[address(&format!("127.0.0.1:{port}"))], 2).unwrap();
    }

    #[test]
    fn what_is_wrong_is_named() {
        let error = bind(&[address("X=127.0.0.1:0"), address("x=127.0.0.1:0")], 1).unwrap_err();
        assert!(error.to_string().contains("named X"), "{error}");
        let error = bind(&[address("192.0.2.1:0")], 1).unwrap_err();
        assert!(matches!(error, ListenError::NotLocal { .. }), "{error}");
        let error = bind(&[address("host.invalid:0")], 1).unwrap_err();
        assert!(error.to_string().contains("host.invalid"), "{error}");
    }
}
