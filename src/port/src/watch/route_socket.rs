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

/// How often the kernel is asked at most until nothing changes while it answers. What changes then
/// is told of too, so that what is missing at last comes with the next change.
const DUMPS_MAX: usize = 8;

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
        let mut answer = self.ask()?;
        for _ in 1..DUMPS_MAX {
            if !answer.interrupted {
                break;
            }
            answer = self.ask()?;
        }
        Ok(answer.links)
    }

    fn ask(&mut self) -> io::Result<Answer> {
        let mut answer = Answer::default();
        self.unread = 0..0;
        for request in [Request::Links, Request::Addresses] {
            self.socket.send(&request.to_bytes(), 0)?;
            let mut is_complete = false;
            while !is_complete {
                let len = match self.receive() {
                    Ok(Some(len)) => len,
                    Ok(None) => return Err(io::ErrorKind::TimedOut.into()),
                    // Changes were lost that the answer tells of anyway.
                    Err(error) if error.raw_os_error() == Some(libc::ENOBUFS) => continue,
                    Err(error) => return Err(error),
                };
                is_complete = answer.take(&self.datagram[..len])?;
            }
        }
        Ok(answer)
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

/// What the kernel says of all links and addresses.
#[derive(Debug, Default)]
struct Answer {
    links: Links,
    /// Something may be missing.
    interrupted: bool,
}

impl Answer {
    /// Takes a datagram in. Returns whether the answer to the request ends with it.
    fn take(&mut self, mut datagram: &[u8]) -> io::Result<bool> {
        let mut is_complete = false;
        loop {
            self.interrupted |= message::is_interrupted(datagram);
            match message::take(&mut datagram) {
                Some(Message::Done) => is_complete = true,
                Some(Message::Refused { errno }) => {
                    return Err(io::Error::from_raw_os_error(errno));
                }
                Some(message) => {
                    self.links.apply(message);
                }
                None => return Ok(is_complete),
            }
        }
    }
}

impl AsFd for RouteSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The end of an answer, as linux/netlink.h has it, with these flags.
    fn done(flags: u16) -> Vec<u8> {
        let len = 20u32;
        let mut bytes = len.to_ne_bytes().to_vec();
        bytes.extend((libc::NLMSG_DONE as u16).to_ne_bytes());
        bytes.extend(flags.to_ne_bytes());
        bytes.resize(len as usize, 0);
        bytes
    }

    #[test]
    fn an_answer_during_which_something_changed_is_not_relied_on() {
        let multi = libc::NLM_F_MULTI as u16;
        for (flags, interrupted) in [(multi, false), (multi | libc::NLM_F_DUMP_INTR as u16, true)] {
            let mut answer = Answer::default();
            assert!(answer.take(&done(flags)).unwrap());
            // It is said of one part, and of the answer that follows nothing is.
            assert!(answer.take(&done(multi)).unwrap());
            assert_eq!(answer.interrupted, interrupted);
        }
    }
}
