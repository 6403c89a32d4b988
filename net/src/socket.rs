//! The socket of one client: reads into a given buffer, writes many parts with one call.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::io::{self, IoSlice};
use std::net::{Shutdown, SocketAddr};
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::{Buf, Bytes};
use futures_lite::{AsyncRead, AsyncWrite};
use glommio::net::TcpStream;
use socket2::SockRef;

use crate::limits::PARTS_PER_SEND;
use crate::listener;

/// Shard-local. One task reads while another part of it writes, so the stream is borrowed within a poll only.
#[derive(Debug)]
pub(crate) struct ClientSocket {
    stream: RefCell<TcpStream>,
    /// The client's address.
    pub(crate) peer: SocketAddr,
    /// The address that the client connected to.
    pub(crate) local: SocketAddr,
    sends: Cell<u64>,
}

/// A client of IPv4 that came through a socket of IPv6 is shown as what it is.
fn plain(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

impl ClientSocket {
    pub(crate) fn new(stream: TcpStream) -> io::Result<Self> {
        stream.set_nodelay(true)?;
        let (peer, local) = (plain(stream.peer_addr()?), plain(stream.local_addr()?));
        Ok(Self { stream: RefCell::new(stream), peer, local, sends: Cell::new(0) })
    }

    /// Reads what is there; 0 at the end of the stream.
    pub(crate) fn poll_read(&self, cx: &mut Context<'_>, buffer: &mut [u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut *self.stream.borrow_mut()).poll_read(cx, buffer)
    }

    /// Writes some of the parts, at least one byte, and takes what is written off them.
    pub(crate) async fn write_some(&self, parts: &mut Parts) -> io::Result<usize> {
        let written = match self.try_send(parts) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                // glommio can wait for room only while it writes itself: let it write the first part.
                let first = parts.0.front().expect("nothing is written of nothing");
                poll_fn(|cx| Pin::new(&mut *self.stream.borrow_mut()).poll_write(cx, first)).await?
            }
            sent => sent?,
        };
        self.sends.set(self.sends.get() + 1);
        if written == 0 {
            return Err(io::ErrorKind::WriteZero.into());
        }
        parts.advance(written);
        Ok(written)
    }

    fn try_send(&self, parts: &Parts) -> io::Result<usize> {
        let stream = self.stream.borrow();
        let mut slices = [IoSlice::new(&[]); PARTS_PER_SEND];
        let mut count = 0;
        for (slice, part) in slices.iter_mut().zip(&parts.0) {
            *slice = IoSlice::new(part);
            count += 1;
        }
        let socket = listener::descriptor(&stream);
        SockRef::from(&socket).send_vectored_with_flags(&slices[..count], libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL)
    }

    /// Whoever waits for something to read finds the end.
    pub(crate) fn stop_reading(&self) {
        let stream = self.stream.borrow();
        let socket = listener::descriptor(&stream);
        // An error means that the other side was first.
        let _ = SockRef::from(&socket).shutdown(Shutdown::Read);
    }

    /// How often something was written, for counting system calls.
    pub(crate) fn take_sends(&self) -> u64 {
        self.sends.take()
    }
}

/// Bytes to send, in order. Records are parts of their own and are never joined with anything.
#[derive(Debug, Default)]
pub(crate) struct Parts(std::collections::VecDeque<Bytes>);

impl Parts {
    pub(crate) fn extend(&mut self, parts: impl IntoIterator<Item = Bytes>) {
        self.0.extend(parts.into_iter().filter(|part| !part.is_empty()));
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn advance(&mut self, mut written: usize) {
        while let Some(part) = self.0.front_mut() {
            if written < part.len() {
                part.advance(written);
                return;
            }
            written -= part.len();
            self.0.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_taken_off_as_they_are_sent() {
        let mut parts = Parts::default();
        parts.extend(["abc", "", "de", "f"].map(|part| Bytes::from_static(part.as_bytes())));
        parts.advance(1);
        assert_eq!(parts.0, ["bc", "de", "f"]);
        parts.advance(3);
        assert_eq!(parts.0, ["e", "f"]);
        parts.advance(2);
        assert!(parts.is_empty());
    }

    #[test]
    fn addresses_of_ipv4_are_shown_as_such() {
        let mapped: SocketAddr = "[::ffff:127.0.0.1]:9".parse().expect("an address");
        assert_eq!(plain(mapped).to_string(), "127.0.0.1:9");
    }
}
