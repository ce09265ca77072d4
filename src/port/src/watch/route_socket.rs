//! Route netlink sockets: where the kernel tells of links and addresses.

use super::links::Links;
use super::message::{self, Message, Request};
use netlink_sys::protocols::NETLINK_ROUTE;
use netlink_sys::{Socket, SocketAddr};
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd};

/// Bytes of the longest datagram that the kernel sends: it fills up to 32 KiB when it is asked.
const DATAGRAM_MAX: usize = 64 * 1024;

/// A socket that can ask for all links and addresses and is told of their changes.
pub(super) struct RouteSocket {
    pub(super) socket: Socket,
    /// What was received last, and which part of it was not read yet.
    datagram: Box<[u8]>,
    unread: Range<usize>,
}

impl RouteSocket {
    /// Makes a socket that is told of changes by these multicast groups (`RTMGRP_*`).
    pub(super) fn open(groups: &[libc::c_int]) -> io::Result<RouteSocket> {
        let mut socket = Socket::new(NETLINK_ROUTE)?;
        let groups = groups.iter().fold(0, |all, group| all | *group as u32);
        // Port 0: the kernel chooses one.
        socket.bind(&SocketAddr::new(0, groups))?;
        socket.set_non_blocking(true)?;
        let datagram = vec![0; DATAGRAM_MAX].into_boxed_slice();
        Ok(RouteSocket { socket, datagram, unread: 0..0 })
    }

    /// Asks for all links and addresses. The kernel answers at once, so that there is no waiting.
    /// What was not read yet is older than the answer and is forgotten.
    pub(super) fn dump(&mut self) -> io::Result<Links> {
        let mut links = Links::default();
        self.unread = 0..0;
        for request in [Request::Links, Request::Addresses] {
            self.socket.send(&request.to_bytes(), 0)?;
            let mut answered = false;
            while !answered {
                let len = match self.receive() {
                    Ok(Some(len)) => len,
                    Ok(None) => return Err(io::ErrorKind::TimedOut.into()),
                    // Changes were lost that the answer tells of anyway.
                    Err(error) if error.raw_os_error() == Some(libc::ENOBUFS) => continue,
                    Err(error) => return Err(error),
                };
                let mut rest = &self.datagram[..len];
                while let Some(message) = message::take(&mut rest) {
                    match message {
                        Message::Done => answered = true,
                        Message::Refused { errno } => {
                            return Err(io::Error::from_raw_os_error(errno));
                        }
                        message => {
                            links.apply(message);
                        }
                    }
                }
            }
        }
        Ok(links)
    }

    /// Reads what the kernel tells until something has changed; `false` if it tells no more.
    pub(super) fn next_change(&mut self, links: &mut Links) -> io::Result<bool> {
        loop {
            let mut rest = &self.datagram[self.unread.clone()];
            while let Some(message) = message::take(&mut rest) {
                self.unread.start = self.unread.end - rest.len();
                if message == Message::Overrun {
                    *links = self.dump()?;
                    return Ok(true);
                }
                if links.apply(message) {
                    return Ok(true);
                }
            }
            self.unread = 0..0;
            match self.receive() {
                Ok(Some(len)) => self.unread = 0..len,
                Ok(None) => return Ok(false),
                // Changes were lost, because more came than the socket holds: all anew.
                Err(error) if error.raw_os_error() == Some(libc::ENOBUFS) => {
                    *links = self.dump()?;
                    return Ok(true);
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Receives a datagram. `None`: there is none.
    fn receive(&mut self) -> io::Result<Option<usize>> {
        match self.socket.recv(&mut &mut self.datagram[..], libc::MSG_DONTWAIT | libc::MSG_TRUNC) {
            Ok(len) if len > self.datagram.len() => {
                Err(io::Error::from_raw_os_error(libc::ENOBUFS))
            }
            Ok(len) => Ok(Some(len)),
            Err(error) => match error.kind() {
                io::ErrorKind::WouldBlock => Ok(None),
                io::ErrorKind::Interrupted => Ok(Some(0)),
                _ => Err(error),
            },
        }
    }
}

impl AsFd for RouteSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
