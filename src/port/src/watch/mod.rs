//! Watching the machine's links and addresses.
//!
//! The kernel tells of every change over a netlink socket, which needs no privilege. Where it does
//! not (some sandboxes know no multicast groups of netlink), it is asked for all of them once a
//! second instead.

mod links;
mod message;
mod route_socket;

pub use links::{Link, Links};

use route_socket::RouteSocket;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

/// How often the kernel is asked where it does not tell of changes.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// The multicast groups that tell of links and addresses.
const GROUPS: [libc::c_int; 3] =
    [libc::RTMGRP_LINK, libc::RTMGRP_IPV4_IFADDR, libc::RTMGRP_IPV6_IFADDR];

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
    Notified(RouteSocket),
    /// It is asked.
    Polling { reason: io::Error, next: Instant },
}

impl Source {
    fn polling(reason: io::Error, now: Instant) -> Source {
        Source::Polling { reason, next: now + POLL_INTERVAL }
    }
}

impl Watch {
    /// Begins to watch, one way or the other, and learns what there is at the moment.
    pub fn open(now: Instant) -> Watch {
        let notified = RouteSocket::open(&GROUPS).and_then(|mut socket| {
            let links = socket.dump()?;
            Ok(Watch { source: Source::Notified(socket), links })
        });
        notified.unwrap_or_else(|reason| Watch::polling(reason, now))
    }

    fn polling(reason: io::Error, now: Instant) -> Watch {
        let mut watch = Watch { source: Source::polling(reason, now), links: Links::default() };
        watch.take(Links::now());
        watch
    }

    /// Takes in all that there is. Returns whether it is anything else than what is known; that
    /// stays where there is no answer.
    fn take(&mut self, links: io::Result<Links>) -> bool {
        let Ok(links) = links else { return false };
        let changed = links != self.links;
        self.links = links;
        changed
    }

    /// Why the kernel is only asked once a second, if it is.
    pub fn why_slow(&self) -> Option<&io::Error> {
        match &self.source {
            Source::Notified(_) => None,
            Source::Polling { reason, .. } => Some(reason),
        }
    }

    /// What is known.
    pub fn links(&self) -> &Links {
        &self.links
    }

    /// The descriptor for the event loop: readable when there may be a change.
    pub fn fd(&self) -> Option<BorrowedFd<'_>> {
        match &self.source {
            Source::Notified(socket) => Some(socket.as_fd()),
            Source::Polling { .. } => None,
        }
    }

    /// When to ask for a change although the descriptor is not ready. `None`: never.
    pub fn poll_timeout(&self) -> Option<Instant> {
        match &self.source {
            Source::Notified(_) => None,
            Source::Polling { next, .. } => Some(*next),
        }
    }

    /// Takes in the next change. Returns whether there was one; with an edge-triggered event loop,
    /// call until there is none.
    ///
    /// One change at a time, so that a link which goes down and comes up again is seen to have
    /// done both.
    pub fn next_change(&mut self, now: Instant) -> bool {
        match &mut self.source {
            Source::Polling { next, .. } => {
                if now < *next {
                    return false;
                }
                *next = now + POLL_INTERVAL;
                self.take(Links::now())
            }
            Source::Notified(socket) => match socket.next_change(&mut self.links) {
                Ok(changed) => changed,
                Err(reason) => {
                    self.source = Source::polling(reason, now);
                    self.take(Links::now())
                }
            },
        }
    }
}

#[cfg(test)]
mod tests;
