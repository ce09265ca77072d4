//! Watching the machine's links and addresses.
//!
//! The kernel tells of every change over a netlink socket, which needs no privilege. Where there is
//! none to be had (a sandbox forbids it), the interfaces are looked at once a second instead.

mod links;
mod message;

pub use links::{Link, Links};

use crate::sys::{netlink, option};
use message::{Message, Question};
use pnet::datalink::{self, NetworkInterface};
use rustix::net::RecvFlags;
use socket2::{Domain, Socket, Type};
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

/// Bytes of the longest datagram that the kernel sends: it fills up to 32 KiB when it is asked.
const DATAGRAM_MAX: usize = 64 * 1024;

/// How often the interfaces are looked at where the kernel does not tell of changes.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// What is known about the machine's links, kept up to date.
///
/// Nothing here blocks and nothing reads a clock.
pub struct Watch {
    source: Source,
    links: Links,
}

/// How changes are learned of.
enum Source {
    /// The kernel tells.
    Netlink { socket: Socket, datagram: Box<[u8]>, unread: Range<usize> },
    /// We look.
    Looking { reason: io::Error, again: Instant },
}

impl Watch {
    /// Begins to watch, one way or the other, and learns what there is at the moment.
    pub fn open(now: Instant) -> Watch {
        let by_netlink = netlink::socket().and_then(|socket| {
            let mut datagram = vec![0; DATAGRAM_MAX].into_boxed_slice();
            let links = ask_for_all(&socket, &mut datagram)?;
            Ok(Watch { source: Source::Netlink { socket, datagram, unread: 0..0 }, links })
        });
        by_netlink.unwrap_or_else(|reason| Watch::by_looking(reason, now))
    }

    fn by_looking(reason: io::Error, now: Instant) -> Watch {
        Watch { source: Source::Looking { reason, again: now + LOOK_INTERVAL }, links: look() }
    }

    /// Why the interfaces are only looked at once a second, if they are.
    pub fn why_slow(&self) -> Option<&io::Error> {
        match &self.source {
            Source::Netlink { .. } => None,
            Source::Looking { reason, .. } => Some(reason),
        }
    }

    /// What is known.
    pub fn links(&self) -> &Links {
        &self.links
    }

    /// The descriptor for the event loop: readable when there may be a change.
    pub fn fd(&self) -> Option<BorrowedFd<'_>> {
        match &self.source {
            Source::Netlink { socket, .. } => Some(socket.as_fd()),
            Source::Looking { .. } => None,
        }
    }

    /// When to ask for a change although the descriptor is not ready. `None`: never.
    pub fn poll_timeout(&self) -> Option<Instant> {
        match &self.source {
            Source::Netlink { .. } => None,
            Source::Looking { again, .. } => Some(*again),
        }
    }

    /// Takes in the next change. Returns whether there was one; with an edge-triggered event loop,
    /// call until there is none.
    ///
    /// One change at a time, so that a link which goes down and comes up again is seen to have
    /// done both.
    pub fn next_change(&mut self, now: Instant) -> bool {
        match &mut self.source {
            Source::Looking { again, .. } => {
                if now < *again {
                    return false;
                }
                *again = now + LOOK_INTERVAL;
                let seen = look();
                let changed = seen != self.links;
                self.links = seen;
                changed
            }
            Source::Netlink { socket, datagram, unread } => {
                match next_told(socket, datagram, unread, &mut self.links) {
                    Ok(changed) => changed,
                    Err(reason) => {
                        *self = Watch::by_looking(reason, now);
                        true
                    }
                }
            }
        }
    }
}

/// Reads what the kernel tells until something has changed; `false` if it tells no more.
fn next_told(
    socket: &Socket,
    datagram: &mut [u8],
    unread: &mut Range<usize>,
    links: &mut Links,
) -> io::Result<bool> {
    loop {
        let mut rest = &datagram[unread.clone()];
        while let Some(message) = message::take(&mut rest) {
            unread.start = unread.end - rest.len();
            if message == Message::Overrun {
                *links = ask_for_all(socket, datagram)?;
                *unread = 0..0;
                return Ok(true);
            }
            if links.apply(message) {
                return Ok(true);
            }
        }
        match receive(socket, datagram) {
            Ok(Some(len)) => *unread = 0..len,
            Ok(None) => {
                *unread = 0..0;
                return Ok(false);
            }
            // Changes were lost, because more came than the socket holds: all anew.
            Err(error) if error.raw_os_error() == Some(libc::ENOBUFS) => {
                *links = ask_for_all(socket, datagram)?;
                *unread = 0..0;
                return Ok(true);
            }
            Err(error) => return Err(error),
        }
    }
}

/// Receives a datagram. `None`: there is none.
fn receive(socket: &Socket, datagram: &mut [u8]) -> io::Result<Option<usize>> {
    match rustix::net::recv(socket, &mut *datagram, RecvFlags::DONTWAIT | RecvFlags::TRUNC) {
        Ok((_, len)) if len > datagram.len() => Err(io::Error::from_raw_os_error(libc::ENOBUFS)),
        Ok((_, len)) => Ok(Some(len)),
        Err(rustix::io::Errno::AGAIN) => Ok(None),
        Err(rustix::io::Errno::INTR) => Ok(Some(0)),
        Err(errno) => Err(errno.into()),
    }
}

/// Asks for all links and addresses. The kernel answers at once, so that there is no waiting.
fn ask_for_all(socket: &Socket, datagram: &mut [u8]) -> io::Result<Links> {
    let mut links = Links::default();
    for question in [Question::Links, Question::Addresses] {
        socket.send(&question.to_bytes())?;
        let mut answered = false;
        while !answered {
            let len = match receive(socket, datagram) {
                Ok(Some(len)) => len,
                Ok(None) => return Err(io::ErrorKind::TimedOut.into()),
                // Changes were lost that the answer tells of anyway.
                Err(error) if error.raw_os_error() == Some(libc::ENOBUFS) => continue,
                Err(error) => return Err(error),
            };
            let mut rest = &datagram[..len];
            while let Some(message) = message::take(&mut rest) {
                match message {
                    Message::Done => answered = true,
                    Message::Refused { errno } => return Err(io::Error::from_raw_os_error(errno)),
                    message => {
                        links.apply(message);
                    }
                }
            }
        }
    }
    Ok(links)
}

/// What the interfaces are like at the moment, as far as everybody may see.
fn look() -> Links {
    let socket = Socket::new(Domain::UNIX, Type::DGRAM, None).ok();
    let mtu_of = |name: &str| option::interface_mtu(socket.as_ref()?.as_fd(), name).ok();
    let link = |interface: NetworkInterface| Link {
        index: interface.index,
        mtu: mtu_of(&interface.name).unwrap_or(0),
        up: interface.is_up() && interface.is_running(),
        loopback: interface.is_loopback(),
        mac: interface.mac.map(|mac| mac.octets()),
        addrs: interface.ips.iter().map(|network| (network.ip(), network.prefix())).collect(),
        // Nobody says which these are. To bind to one fails until it can be used.
        tentative: Vec::new(),
        name: interface.name,
    };
    datalink::interfaces().into_iter().map(link).collect()
}

#[cfg(test)]
mod tests;
