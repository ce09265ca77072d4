//! Sockets that only send: the source ports of one address beside 4791.
//!
//! Networks spread flows over their paths, and NICs over their receive queues, by the outer
//! headers, in which the source port is all that tells the QPs of two hosts apart. A socket sends
//! from the port that it is bound to, so each port takes one.
//!
//! Each slot has ports of its own. To share them would need sockets that one process binds for all
//! slots, used or not (a group takes none of another user's); and flows of several slots would
//! leave from one port, where a peer's NIC coalesces what is for different slots of that peer.

use super::UdpOptions;
use super::socket::set_send_options;
use crate::OpenError;
use crate::open;
use crate::shared_socket::SharedSocket;
use crate::sys::option;
use crate::watch::Link;
use socket2::Socket;
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd};

/// The send sockets of one address, each opened when it is first needed. A port that cannot be had
/// then is not asked for again, so that the packets of its flows stay in order.
pub(super) struct SendPool {
    first: u16,
    sockets: Vec<Entry>,
}

enum Entry {
    Unopened,
    Open(SharedSocket),
    Refused,
}

impl SendPool {
    /// For so many ports, from `first` on.
    pub(super) fn new(first: u16, ports: u8) -> SendPool {
        SendPool { first, sockets: (0..ports).map(|_| Entry::Unopened).collect() }
    }

    /// Whether a port is one of the pool, had or not.
    pub(super) fn contains(&self, port: u16) -> bool {
        self.index_of(port) < self.sockets.len()
    }

    /// The socket of a port, if it is there.
    pub(super) fn socket(&self, port: u16) -> Option<BorrowedFd<'_>> {
        match self.sockets.get(self.index_of(port)) {
            Some(Entry::Open(socket)) => Some(socket.as_fd()),
            _ => None,
        }
    }

    /// Whether a port has a socket; `None` if that was not tried yet.
    pub(super) fn is_open(&self, port: u16) -> Option<bool> {
        match self.sockets.get(self.index_of(port)) {
            Some(Entry::Unopened) => None,
            entry => Some(matches!(entry, Some(Entry::Open(_)))),
        }
    }

    /// Opens the socket of a port. Returns whether it is there now.
    pub(super) fn open(
        &mut self,
        addr: IpAddr,
        port: u16,
        interface: &Link,
        options: &UdpOptions,
    ) -> bool {
        let index = self.index_of(port);
        let Some(entry) = self.sockets.get_mut(index) else { return false };
        *entry = match send_socket(addr, port, interface, options) {
            Ok(socket) => Entry::Open(SharedSocket::new(socket, options.share.as_ref())),
            Err(_) => Entry::Refused,
        };
        matches!(entry, Entry::Open(_))
    }

    /// Whether what is open is also open where pollers are.
    pub(super) fn is_shared(&self) -> bool {
        let is_shared = |entry: &Entry| match entry {
            Entry::Open(socket) => socket.is_shared(),
            Entry::Unopened | Entry::Refused => true,
        };
        self.sockets.iter().all(is_shared)
    }

    /// The number of a port in the pool; not one of those there are if it is none of the pool's.
    fn index_of(&self, port: u16) -> usize {
        port.checked_sub(self.first).map_or(usize::MAX, usize::from)
    }
}

fn send_socket(
    addr: IpAddr,
    port: u16,
    interface: &Link,
    options: &UdpOptions,
) -> Result<Socket, OpenError> {
    let socket = open::bind(addr, port, interface)?;
    open::receive_nothing(&socket)
        .and_then(|()| set_send_options(&socket, addr, options))
        .and_then(|()| open::send_to_groups(&socket, addr, interface.index))
        .and_then(|()| hear_of_errors(&socket, addr))
        .map_err(OpenError::system(addr, "setting socket options"))?;
    Ok(socket)
}

/// Has the kernel keep what ICMP says of what is sent.
fn hear_of_errors(socket: &Socket, addr: IpAddr) -> io::Result<()> {
    let (level, name) = match addr {
        IpAddr::V4(_) => (libc::IPPROTO_IP, libc::IP_RECVERR),
        IpAddr::V6(_) => (libc::IPPROTO_IPV6, libc::IPV6_RECVERR),
    };
    option::set(socket.as_fd(), level, name, 1)
}
