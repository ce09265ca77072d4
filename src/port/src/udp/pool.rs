//! Sockets that only send: the source ports of one address beside 4791.
//!
//! Networks spread flows over their paths, and NICs over their receive queues, by the outer
//! headers, in which the source port is all that tells the QPs of two hosts apart. A socket sends
//! from the port that it is bound to, so each port takes one.

use super::UdpOptions;
use super::socket::set_send_options;
use crate::OpenError;
use crate::open;
use crate::watch::Link;
use socket2::Socket;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd};
use urxe_wire::FIRST_SOURCE_PORT;

/// The send sockets of one address, each opened when it is first needed. A port that cannot be had
/// then is not asked for again, so that the packets of its flows stay in order.
pub(super) struct SendPool {
    sockets: Vec<Slot>,
}

enum Slot {
    Unopened,
    Open(Socket),
    Refused,
}

impl SendPool {
    /// For so many ports, from [`FIRST_SOURCE_PORT`] on.
    pub(super) fn new(ports: u8) -> SendPool {
        SendPool { sockets: (0..ports).map(|_| Slot::Unopened).collect() }
    }

    /// Whether a port is one of the pool, had or not.
    pub(super) fn contains(&self, port: u16) -> bool {
        slot_of(port) < self.sockets.len()
    }

    /// The socket of a port, if it is there.
    pub(super) fn socket(&self, port: u16) -> Option<BorrowedFd<'_>> {
        match self.sockets.get(slot_of(port)) {
            Some(Slot::Open(socket)) => Some(socket.as_fd()),
            _ => None,
        }
    }

    /// Whether a port has a socket; `None` if that was not tried yet.
    pub(super) fn is_open(&self, port: u16) -> Option<bool> {
        match self.sockets.get(slot_of(port)) {
            Some(Slot::Unopened) => None,
            slot => Some(matches!(slot, Some(Slot::Open(_)))),
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
        let Some(slot) = self.sockets.get_mut(slot_of(port)) else { return false };
        *slot = match send_socket(addr, port, interface, options) {
            Ok(socket) => Slot::Open(socket),
            Err(_) => Slot::Refused,
        };
        matches!(slot, Slot::Open(_))
    }
}

/// The number of a port in the pool; not one of those there are if it is none of the pool's.
fn slot_of(port: u16) -> usize {
    port.checked_sub(FIRST_SOURCE_PORT).map_or(usize::MAX, usize::from)
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
        .map_err(OpenError::system(addr, "setting socket options"))?;
    Ok(socket)
}
